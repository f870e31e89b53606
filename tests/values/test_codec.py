"""Values survive the way through bytes, and bytes that are no values are refused."""

from __future__ import annotations

import contextlib
import enum
import json
import math
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack  # type: ignore[import-untyped]
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidValue, TooLarge
from shoal.values import codec as location
from shoal.values import forms
from tests.support.examples import examples
from tests.support.samples import anything, hashables, shape


class Shade(enum.Enum):
    DARK = 1


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


class Model(pydantic.BaseModel):
    a: int


@examples(150)
@given(anything)
def test_any_value_survives_the_way_through_bytes(value: Any) -> None:
    packed = values.encode(value)
    values.check(packed)
    again = values.decode(packed)
    assert again == value
    assert shape(again) == shape(value)


@examples(50)
@given(anything)
def test_encoding_what_was_decoded_gives_the_same_bytes(value: Any) -> None:
    packed = values.encode(value)
    assert values.encode(values.decode(packed)) == packed


@examples(50)
@given(st.lists(hashables, max_size=6).flatmap(lambda items: st.tuples(st.just(items), st.permutations(items))))
def test_equal_sets_give_equal_bytes_whatever_the_order_they_were_filled_in(orders: tuple[list[Any], list[Any]]) -> None:
    # One item of each equality class: 1, 1.0 and True are one item, and whichever came first stays.
    first: dict[Any, Any] = {}
    for item in orders[0]:
        first.setdefault(item, item)
    assert values.encode(set(first)) == values.encode({first[item] for item in orders[1]})


@pytest.mark.parametrize("number", [math.inf, -math.inf, -0.0, 5e-324])
def test_special_floats_are_kept(number: float) -> None:
    again = values.decode(values.encode(number))
    assert (again, math.copysign(1, again)) == (number, math.copysign(1, number))


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict([("b", 1), ("a", (1, 2))]),
        OrderedDict({(1, "x"): {1}}),
        defaultdict(list, {"a": [1]}),
        defaultdict(None, {1: 2}),
        deque([1, "a"], maxlen=3),
        deque(),
        Counter("abca"),
        PurePosixPath("/tmp/ä"),
        PureWindowsPath("C:\\tmp"),
        Path("a/b"),
        {"nested": [deque([OrderedDict(a=defaultdict(int, b=1))])]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_standard_collections_come_back_unchanged(value: Any) -> None:
    for again in (values.decode(values.encode(value)), values.from_json(json.loads(json.dumps(values.to_json(value))))):
        assert again == value
        assert type(again) is type(value)
        assert getattr(again, "maxlen", None) == getattr(value, "maxlen", None)
        assert getattr(again, "default_factory", None) is getattr(value, "default_factory", None)
        assert not isinstance(value, OrderedDict) or list(again) == list(value)
        assert not isinstance(value, deque) or again.copy() == value.copy()
    assert values.canonical(values.encode(value)) == values.canonical(values.encode(values.decode(values.encode(value))))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (defaultdict(lambda: 1), "its default_factory is a function"),
        (deque([object()]), r"value\[0\] is an object, which is not registered"),
        (OrderedDict(a=object()), r'value\["a"\] is an object, which is not registered'),
        ([len], r"value\[0\] is a builtin_function_or_method, which cannot be stored"),
        ({"call": lambda: 1}, r'value\["call"\] is a function, which cannot be stored\. Store a name in its place'),
        ([Shade], r"value\[0\] is an? .*, which cannot be stored"),
        (Shade.DARK, r"register\(tests.values.test_codec.Shade\)"),
        (Point(1), r"register\(tests.values.test_codec.Point\)"),
        (Text("x"), r"register\(tests.values.test_codec.Text, pack=…, unpack=…\)"),
        (Model(a=1), r"register\(tests.values.test_codec.Model\)"),
    ],
)
def test_lossy_values_are_refused_with_advice(value: Any, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        values.encode(value)
    with pytest.raises(InvalidValue):
        values.to_json(value)


def test_a_schema_sees_plain_values() -> None:
    value = {"o": OrderedDict(a=1), "d": defaultdict(list, a=[1]), "q": deque([1, 2], 3), "c": Counter("aa"), "p": Path("a/b")}
    assert values.project(values.encode(value)) == {"o": {"a": 1}, "d": {"a": [1]}, "q": [1, 2], "c": {"a": 2}, "p": "a/b"}


def test_nan_is_kept() -> None:
    assert math.isnan(values.decode(values.encode(math.nan)))


@pytest.mark.parametrize("exponent", [63, 64, 65, 127, 128, 40_000])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_integers_of_any_length_survive(exponent: int, sign: int, offset: int) -> None:
    number = sign * 2**exponent + offset
    assert values.decode(values.encode(number)) == number


@pytest.mark.parametrize("text", ["NaN", "sNaN", "-Infinity", "-0", "1.00", "1E+1000"])
def test_decimals_keep_their_very_form(text: str) -> None:
    assert str(values.decode(values.encode(Decimal(text)))) == text


def test_a_repeated_hour_is_told_apart_by_its_fold() -> None:
    moment = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1)
    again = values.decode(values.encode(moment))
    assert again.timestamp() == moment.timestamp() != moment.replace(fold=0).timestamp()


def test_a_standard_timestamp_of_another_language_becomes_an_aware_datetime() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert values.decode(msgpack.packb(msgpack.Timestamp.from_datetime(moment))) == moment


def test_bytearrays_become_bytes() -> None:
    assert values.decode(values.encode(bytearray(b"ab"))) == b"ab"


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(12, dtype="<i4").reshape(3, 4),
        numpy.arange(12, dtype=">f8").reshape(3, 4).T,
        numpy.zeros((0, 3), dtype="u1"),
        numpy.array(3.5),
        numpy.array([True, False]),
        numpy.array(["a", "bcd"]),
        numpy.array(["2026-01-01", "NaT"], dtype="datetime64[s]"),
        numpy.array([1 + 2j]),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_arrays_survive_with_type_and_shape(array: Any) -> None:
    again = values.decode(values.encode({"weights": array}))["weights"]
    assert (again.dtype.str, again.shape, again.tobytes()) == (array.dtype.str, array.shape, array.tobytes())
    assert again.flags.writeable


@pytest.mark.parametrize("scalar", [numpy.float64(1.5), numpy.int8(-3), numpy.bool_(True), numpy.str_("hé")])
def test_numpy_scalars_stay_numpy_scalars(scalar: Any) -> None:
    again = values.decode(values.encode(scalar))
    assert type(again) is type(scalar)
    assert again == scalar


def test_an_array_of_objects_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidValue, match=r'state\["w"\] is a numpy.ndarray .*NumPy type .\|O. is not supported'):
        values.encode({"w": numpy.array([object()])}, where="state")


def test_an_array_whose_shape_does_not_fit_its_bytes_is_refused() -> None:
    lie = msgpack.packb(["<f8", [10**9], b"12345678"])
    with pytest.raises(InvalidValue):
        values.decode(msgpack.packb(msgpack.ExtType(13, lie)))


class _NamelessZone(tzinfo):
    def utcoffset(self, _moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    dst = utcoffset

    def tzname(self, _moment: datetime | None) -> None:
        return None


def test_a_time_zone_without_a_name_is_refused_not_flattened() -> None:
    with pytest.raises(InvalidValue, match="time zone"):
        values.encode(datetime(2026, 1, 1, tzinfo=_NamelessZone()))


def test_an_offset_finer_than_a_second_is_refused_not_read_as_utc() -> None:
    with pytest.raises(InvalidValue, match="fractions of a second"):
        values.encode(datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"plan": [1, object()]}, 'state["plan"][1] is an object'),
        ({"a": ({"b": {1, 2}}, {"c": {3: print}})}, 'state["a"][1]["c"][3] is a builtin_function_or_method'),
        ({"a": "ok\ud800"}, 'state["a"] is text with a lone surrogate (at 2)'),
        ({"\ud800": 1}, "a key of state is text with a lone surrogate"),
        ({("k", print): 1}, "a key of state[1] is a"),
        ({"s": frozenset([print])}, 'an item of state["s"] is a'),
    ],
)
def test_the_error_has_the_path_to_the_offending_part(value: Any, path: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        values.encode(value, where="state")
    assert path in caught.value.message
    assert caught.value.message.endswith("Nothing was written.")


def test_a_cycle_is_refused_and_located() -> None:
    state: dict[str, Any] = {"a": [1]}
    state["a"].append({"back": state})
    with pytest.raises(InvalidValue, match=r'state\["a"\]\[1\]\["back"\] refers back'):
        values.encode(state, where="state")


def test_a_cycle_through_extension_values_is_refused() -> None:
    inner: list[Any] = []
    inner.append((inner, inner))
    with pytest.raises(InvalidValue, match="refers back"):
        values.encode(inner)


def nest(wrap: Any, times: int) -> Any:
    value: Any = 1
    for _ in range(times):
        value = wrap(value)
    return value


@pytest.mark.parametrize("depth", [512, 1000, 1024])
def test_lists_nest_1024_deep_whatever_the_recursion_limit(depth: int) -> None:
    packed = values.encode(nest(lambda v: [v], depth))
    values.check(packed)
    assert values.encode(values.decode(packed)) == packed


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: frozenset([v])])
def test_deeper_values_are_refused(wrap: Any) -> None:
    with pytest.raises(InvalidValue, match=r"nested more than|inside each other"):
        values.encode(nest(wrap, 3000))


def wrapped_in_lists(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value]
    return value


def test_lists_within_many_tuples_are_counted_before_they_overflow_the_stack() -> None:
    shallow = nest(lambda v: (wrapped_in_lists(v, 60),), values.NESTED_MAX)
    assert values.encode(values.decode(values.encode(shallow))) == values.encode(shallow)
    with pytest.raises(InvalidValue, match="more than 64 lists nest inside"):
        values.encode(nest(lambda v: (wrapped_in_lists(v, 70),), 10))


@pytest.mark.parametrize("parts_max", [20_000, pytest.param(location._PARTS_MAX, marks=pytest.mark.thorough)])
def test_the_search_for_the_path_ends_where_parts_are_shared_a_million_times(
    monkeypatch: pytest.MonkeyPatch, parts_max: int
) -> None:
    monkeypatch.setattr(location, "_PARTS_MAX", parts_max)
    shared: Any = (1,) * 10
    for _ in range(values.NESTED_MAX):
        shared = (shared,) * 10
    with pytest.raises(InvalidValue, match="inside each other"):
        values.encode(shared)


def test_extension_values_nested_too_deep_in_bytes_are_refused() -> None:
    packed = b"\x90"
    for _ in range(values.NESTED_MAX + 1):
        packed = msgpack.packb(msgpack.ExtType(2, b"\x91" + packed))
    with pytest.raises(InvalidValue, match="inside each other"):
        values.decode(packed)


def test_a_value_past_the_bound_is_too_large() -> None:
    with pytest.raises(TooLarge, match="state takes"):
        values.encode(b"\0" * values.VALUE_BYTES_MAX, where="state")


def test_a_failed_encoding_leaves_nothing_behind_for_the_next() -> None:
    with pytest.raises(InvalidValue):
        values.encode([1, 2, (3, print)])
    assert values.encode([1]) == b"\x91\x01"


def test_threads_do_not_share_a_packer() -> None:
    start = threading.Barrier(4)
    wrong: list[int] = []

    def work(mark: int) -> None:
        value = [(mark, {mark: (mark,)})] * 20
        start.wait()
        wrong.extend(mark for _ in range(50) if values.decode(values.encode(value)) != value)

    # The shortest switching time, so that threads meet inside the packer.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


MALFORMED = [
    b"",
    b"\xc1",
    b"\x01\x01",
    b"\xa5ab",
    b"\xdd\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff" * 600,
    b"\xc9\xff\xff\xff\xff",
    b"\x91" * 3000 + b"\x01",
]


@pytest.mark.parametrize("packed", MALFORMED, ids=lambda packed: packed[:6].hex())
def test_bytes_that_are_not_one_value_do_not_pass_the_check(packed: bytes) -> None:
    with pytest.raises(InvalidValue):
        values.check(packed)


@pytest.mark.parametrize(
    "packed",
    [*MALFORMED, b"\xa2\xff\xfe", b"\x81\x90\x01", b"\xd4\xff\x00", b"\xd4\x63\x00"],
    ids=lambda packed: packed[:6].hex(),
)
def test_bytes_that_are_no_value_are_not_decoded(packed: bytes) -> None:
    with pytest.raises(InvalidValue):
        values.decode(packed)


def test_bytes_longer_than_the_bound_are_refused_unread() -> None:
    packed = b"\0" * (values.VALUE_BYTES_MAX + 1)
    for read in (values.check, values.decode):
        with pytest.raises(TooLarge):
            read(packed)


# Bytes of valid values with a few changed: they get further than noise does.
damaged = st.builds(
    lambda packed, at, byte: packed[: at % len(packed)] + bytes([byte]) + packed[at % len(packed) + 1 :],
    anything.map(values.encode),
    st.integers(0, 200),
    st.integers(0, 255),
)
extensions = st.builds(
    lambda code, body: bytes(msgpack.packb(msgpack.ExtType(code, body))), st.integers(0, 20), st.binary(max_size=20)
)
plausible = st.builds(
    lambda code, value: bytes(msgpack.packb(msgpack.ExtType(code, values.encode(value)))), st.integers(0, 20), anything
)


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@examples(400)
@given(st.one_of(st.binary(max_size=40), damaged, extensions, plausible))
def test_arbitrary_bytes_are_read_or_refused_and_nothing_else(packed: bytes) -> None:
    for read in (values.check, values.decode):
        with contextlib.suppress(InvalidValue):
            read(packed)


@examples(150)
@given(st.one_of(st.binary(max_size=40), damaged))
def test_decodable_values_pass_the_check(packed: bytes) -> None:
    try:
        values.decode(packed)
    except InvalidValue:
        return
    values.check(packed)


def test_text_forms_of_times_are_those_of_the_standards() -> None:
    moment = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1)
    assert values.to_json([moment, date(2026, 1, 2), UUID(int=1)]) == [
        {"$type": "datetime", "value": "2026-10-25T02:30:00+01:00[Europe/Paris][fold=1]"},
        {"$type": "date", "value": "2026-01-02"},
        {"$type": "uuid", "value": "00000000-0000-0000-0000-000000000001"},
    ]


def test_a_subclass_of_an_array_is_none() -> None:
    with pytest.raises(InvalidValue, match="not registered"):
        values.encode(numpy.ma.array([1, 2], mask=[True, False]))


def test_codes_of_forms_never_change() -> None:
    codes = {form.tag: form.code for form in forms.BY_CLASS.values()}
    assert (forms.OBJECT_CODE, forms.ARRAY.code, forms.SCALAR.code) == (1, 13, 14)
    tags = ["tuple", "set", "frozenset", "int", "complex", "datetime", "date", "time", "timedelta", "decimal", "uuid"]
    assert codes == dict(zip(tags, range(2, 13), strict=True)) | {
        "ordereddict": 15,
        "defaultdict": 16,
        "deque": 17,
        "counter": 18,
        "path": 19,
    }


@pytest.mark.parametrize(("code", "inner"), [(2, {"a": 1}), (3, "ab"), (5, 7), (10, [1, 2, "3"])])
def test_bytes_that_no_dump_makes_are_refused(code: int, inner: object) -> None:
    with pytest.raises(InvalidValue):
        values.decode(msgpack.packb(msgpack.ExtType(code, msgpack.packb(inner))))
