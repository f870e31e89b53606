"""A filter costs no more than what it names: it is measured before it is decoded, and so is what it is compared with."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidInput, TooLarge
from shoal.values import filtering
from shoal.values.filtering import Filter, meets
from shoal.values.work import NODES_MAX, Allowance
from tests.support.examples import examples

MANY = b"\xdd" + (2_000_000).to_bytes(4, "big") + b"\x90" * 2_000_000  # Two million lists: 0.7 s and 115 MB, decoded.
LARGE: list[Any] = [[]] * (NODES_MAX + 1)


def filter_of(wanted: Any) -> Filter:
    return Filter(values.encode(wanted), terms_max=64)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is decoded from now on."""
    sizes: list[int] = []
    decode = values.decode

    def counted(packed: bytes) -> Any:
        sizes.append(len(packed))
        return decode(packed)

    monkeypatch.setattr(values, "decode", counted)
    return sizes


@pytest.mark.parametrize(
    "packed",
    [
        MANY,
        b"\x81\xa1a" + MANY,
        b"\x81\xa1a\x81\xa3$eq" + MANY,
        values.encode({"a": tuple(range(NODES_MAX + 1))}),
        values.encode({"a": {"b": (set(range(NODES_MAX + 1)),)}}),
        values.encode({f"k{nth}": nth for nth in range(NODES_MAX)}),
    ],
)
def test_a_filter_is_measured_before_it_is_decoded(packed: bytes, decoded: list[int]) -> None:
    with pytest.raises(TooLarge, match="Nothing was read"):
        Filter(packed, terms_max=64)
    with pytest.raises(TooLarge, match="Nothing was read"):
        Filter.of_fields({"b": values.encode(1), "c": packed}, terms_max=64)
    assert max(decoded, default=0) < 10


@pytest.mark.parametrize("value", [LARGE, {"k": LARGE}, tuple(LARGE), {nth: [] for nth in range(NODES_MAX)}])
def test_a_large_field_is_not_decoded(value: Any, decoded: list[int]) -> None:
    stored = values.encode({"a": value, "b": 1})
    for wanted in ({"a": 1}, {"a": [1, 2]}, {"a": {"$gt": [1]}}, {"a": {"b": 1}}, {"a": {"$eq": [1]}}):
        assert not filter_of(wanted).matches(stored)
    assert filter_of({"a": {"$ne": 1}, "b": 1}).matches(stored)
    assert max(decoded) < 100


def test_named_parts_of_a_large_field_are_found(decoded: list[int]) -> None:
    stored = values.encode({"a": {"large": LARGE, "b": [1, {"c": 2}]}})
    for wanted in ({"a": {"b": [1, {"c": 2}]}}, {"a.b": [1, {"c": {"$gte": 2}}]}, {"a": {"b": [1, {"c": {"$ne": 3}}]}}):
        assert filter_of(wanted).matches(stored)
    assert not filter_of({"a": {"b": [1, {"c": 3}]}}).matches(stored)
    assert max(decoded) < 100


def test_of_a_large_map_only_named_fields_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(packed: bytes) -> Any:
        raise AssertionError("all of it was split")

    stored = values.encode({f"k{n}": n for n in range(20_000)} | {"a.b": 1, "c": {"d": 2}})
    monkeypatch.setattr(filtering, "_parts", fails)
    for wanted, expected in (({"k7": 7, "a.b": 1}, True), ({"k7": 8}, False), ({"absent": None}, True)):
        assert filter_of(wanted).matches(stored) is expected
    monkeypatch.undo()
    assert filter_of({"c.d": 2}).matches(stored)
    assert filter_of({"k1": 1}).matches(values.encode(dict.fromkeys([*range(30_000), "k1"], 1)))


def test_a_value_is_split_once_for_all_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = values.encode({"a": {f"k{nth}": nth for nth in range(50)}})
    matching = filter_of({f"a.k{nth}": nth for nth in range(50)})
    split: list[Any] = []
    parts = filtering._parts

    def counted(packed: Any) -> Any:
        split.append(packed)
        return parts(packed)

    monkeypatch.setattr(filtering, "_parts", counted)
    assert matching.matches(stored)
    assert len(split) == 2  # The value, and the map at "a".


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 3) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@examples(300)
@given(st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3), st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=2))
def test_packed_and_decoded_values_match_alike(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert filter_of(wanted).matches(values.encode(stored)) == filtering.meets(stored, wanted)


@examples(200)
@given(PLAIN)
def test_packed_values_are_charged_as_values_are(value: Any) -> None:
    size = 0

    def count(part: Any) -> None:
        nonlocal size
        size += 1
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ():
            count(inner)

    count(value)
    with pytest.raises(TooLarge):
        Allowance(nodes=size * 100 - 1).charge_packed(values.encode([value] * 100))
    Allowance(nodes=10_000).charge_packed(values.encode([value] * 100))


@pytest.mark.parametrize("packed", [b"", b"\xc1" * 300, b"\xdc\xff\xff" + b"\x01" * 300, b"\xc7\xff" * 200, b"\xd9" * 300])
def test_bytes_that_are_no_value_are_measured_too(packed: bytes) -> None:
    Allowance().charge_packed(packed)


def test_arrays_of_numbers_are_one_value() -> None:
    filter_of({"a": numpy.zeros(NODES_MAX * 2)})


FIELDS = {"a": 1, "b": {"c": 2}, "b.d": 3, "b.c": 4, "l": [1, 2], "n": None}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"a": 1, "l": [1, 2]}, True),
        ({"a": 1, "b.d": 0}, False),
        ({"b.c": 4}, True),
        ({"b.c": 2}, False),
        ({"missing": None, "n": None}, True),
        ({"l": [1]}, False),
        ({"l": [1, {"$gt": 1}]}, True),
        ({"a": {"$gt": "text"}}, False),
        ({"a": {"$lt": "text"}}, False),
        ({"a": {"$ne": "text", "$lte": 1}}, True),
    ],
)
def test_packed_and_decoded_fields_match_alike(wanted: dict[str, Any], expected: bool) -> None:
    assert Filter(values.encode(wanted), terms_max=9).matches(values.encode(FIELDS)) is expected
    assert meets(FIELDS, wanted) is expected


def test_a_path_leads_where_no_field_has_its_name() -> None:
    fields = {"b": {"c": 2}}
    assert Filter(values.encode({"b.c": 2}), terms_max=9).matches(values.encode(fields))
    assert meets(fields, {"b.c": 2})


@pytest.mark.parametrize("wanted", [{"$gt": 1}, {"a": {"$like": 1}}, {"a": [{"$like": 1}]}])
def test_an_operator_is_never_data(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Filter(values.encode(wanted), terms_max=9)


def test_unreadable_values_equal_nothing() -> None:
    foreign = msgpack.packb({"a": 1, "f": msgpack.ExtType(1, msgpack.packb(["nobody.Knows", {}]))})
    assert not Filter(values.encode({"f": None}), terms_max=9).matches(foreign)
    assert Filter(values.encode({"a": 1}), terms_max=9).matches(foreign)
