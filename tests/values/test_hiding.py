"""Parts of packed values are hidden without building what they hold."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.values.tagged import hidden, holds

MARK = "«secret»"


def shown(value: Any, *places: tuple[str, ...]) -> Any:
    return values.decode(hidden(values.encode(value), places, MARK))


@pytest.mark.parametrize(
    ("value", "place", "wanted"),
    [
        ({"a": 1, "b": 2}, ("a",), {"a": MARK, "b": 2}),
        ({"a": {"b": [1, {"c": 2}]}}, ("a", "b", "1", "c"), {"a": {"b": [1, {"c": MARK}]}}),
        ([{"k": 1}, {"k": 2}, 3], ("*", "k"), [{"k": MARK}, {"k": MARK}, 3]),
        ({1: "a", 2: "b"}, ("1",), {1: MARK, 2: "b"}),
        ("text", ("a",), "text"),
        ({"a": 1}, ("b", "c"), {"a": 1}),
        ([1], ("7",), [1]),
        (5, (), MARK),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC), "a": 1}, ("a",), {"when": datetime(2026, 1, 1, tzinfo=UTC), "a": MARK}),
    ],
)
def test_a_place_is_hidden_and_nothing_else(value: Any, place: tuple[str, ...], wanted: Any) -> None:
    assert shown(value, place) == wanted


@pytest.mark.parametrize("value", [(1, 2), {1, 2}, OrderedDict(a=1), 1 << 80])
def test_opaque_values_are_hidden_as_a_whole(value: Any) -> None:
    assert shown({"in": value}, ("in", "a")) == {"in": MARK}


def test_an_object_of_a_class_that_is_not_known_here_is_hidden_without_being_built() -> None:
    stored = msgpack.packb({"in": msgpack.ExtType(0, msgpack.packb(["no.such.Class", {"token": "hunter2"}]))})
    assert b"hunter2" not in hidden(stored, [("in", "token")], MARK)


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xa2\xff\xfe", b"\x01\x02"])
def test_bytes_that_are_no_value_are_hidden_as_a_whole(packed: bytes) -> None:
    assert values.decode(hidden(packed, [("a",)], MARK)) == MARK
    assert not holds(packed, [("a",)], MARK)


@given(st.binary(max_size=60), st.lists(st.lists(st.sampled_from(["*", "a", "0", ""]), max_size=3), max_size=3))
def test_nothing_that_is_stored_breaks_it(packed: bytes, places: list[list[str]]) -> None:
    hidden(packed, places, MARK)
    holds(packed, places, MARK)


def test_only_the_mark_itself_at_a_place_counts() -> None:
    packed = values.encode({"a": MARK, "list": [{"x": 1}, {"x": "no"}], "b": {"key": f"{MARK}s"}})
    assert holds(packed, [("a",)], MARK)
    assert not holds(packed, [("b",), ("*", "key"), ("list", "1", "x"), ("a", "b")], MARK)
