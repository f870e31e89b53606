"""What the fields of a request may hold."""

from __future__ import annotations

import enum
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec
import numpy
import pytest

from shoal.errors import InvalidInput
from shoal.protocol import requests
from shoal.protocol.base import CURSOR_BYTES_MAX
from shoal.protocol.conformance import check_manner, conforming
from shoal.protocol.frames import decode_request

WRONG: Any = object()  # And what else a type checker would have refused:
ONE: Any = 1
STAR: Any = "star"
KINDS: tuple[Any, ...] = (*get_args(requests.AnyRequest), *get_args(requests.Subscription))


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def save(**fields: Any) -> requests.Save:
    return requests.Save("crew", "t", **{"channels": {"a": b"\x01"}, **fields})


def add(amount: Any) -> requests.Add:
    return requests.Add("crew", "c", amount)


LEGAL = [
    requests.Add("crew", "c", -(2**63), "k"),
    requests.Append("crew", "tür", b"\x01"),
    save(),
    save(channels={}, removed=["a", "é"], appended={"log": b"\x90"}, parent="x"),
    requests.PutItem("crew", "i", ["a"], "k", b"\xc0", ttl_ms=None, vectors=[b"1234"]),
    requests.GetItems("crew", "i", [(["a"], "k")]),
    requests.ReadLabels("crew", "t", channels=["a"]),
    requests.ReadLabels("crew", "t", channels=True),
    requests.Update("crew", "d", b"", roots={"a": "map"}, authors={1: "me"}),
    requests.Batch([requests.Add("crew", "c", 1), save()]),
    requests.Watch("crew", "thread", kinds=["document"]),
]


@pytest.mark.parametrize("request_", LEGAL, ids=lambda request: type(request).__name__)
def test_a_legal_request_is_handed_on_as_it_is(request_: Any) -> None:
    assert conforming(request_) is request_
    assert conforming(request_) is request_  # Also once its like is known.


@pytest.mark.answers("value-of-a-wrong-type-is-stored")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_request_is_checked_field_by_field(kind: type[msgspec.Struct]) -> None:
    """Each field refuses what no field takes, and names itself; so a new request is checked by itself."""
    samples = {str: "x", int: 1, bytes: b"\xc0", bool: False}

    def sample(annotation: Any) -> Any:
        if get_origin(annotation) is Annotated:
            return sample(get_args(annotation)[0])
        kind = msgspec.inspect.type_info(annotation)
        if isinstance(kind, msgspec.inspect.LiteralType):
            return kind.values[0]
        if isinstance(kind, msgspec.inspect.UnionType) and requests.Add in get_args(annotation):
            return requests.Add("crew", "c", 1)
        if isinstance(kind, msgspec.inspect.UnionType):
            return sample(bool) if bool in get_args(annotation) else None
        return samples[annotation] if annotation in samples else {} if isinstance(kind, msgspec.inspect.DictType) else []

    fields = msgspec.structs.fields(kind)
    legal = {field.name: sample(field.type) for field in fields}
    assert conforming(kind(**legal)) == kind(**legal)
    for field in fields:
        for wrong in (object(), 1.5, {1, 2}):
            with pytest.raises(InvalidInput, match=f"^{field.name} must be ") as refused:
                conforming(kind(**{**legal, field.name: wrong}))
            assert refused.value.detail["field"] == field.name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (requests.Add("crew", "c", True), r"amount must be an integer; got True \(bool\)"),
        (add(1.5), r"amount must be an integer; got 1.5 \(float\)"),
        (add(float("nan")), r"amount must be an integer; got nan"),
        (requests.Add("crew", "c", 2**70), "amount must be an integer of 64 bits"),
        (add(numpy.bool_(True)), "amount must be an integer; got a bool"),
        (requests.Add("crew", cast(Any, b"c"), 1), r"counter must be text; got b'c' \(bytes\)"),
        (save(label=None), "label must be text; got None"),
        (save(parent=3), "parent must be text or None; got 3"),
        (save(label="\ud800"), r"label holds a lone surrogate \(at 0\)"),
        (save(removed="abc"), "removed must be a list of text; got 'abc'"),
        (save(removed=["a", None]), r"removed\[1\] must be text; got None"),
        (save(channels={"a": "text"}), r"channels\['a'\] must be bytes"),
        (save(channels={"a\udc00": b"\x01"}), "a key of channels holds a lone surrogate"),
        (requests.Load("crew", "t", channels=["a", ONE]), r"channels\[1\] must be text"),
        (requests.Batch([requests.Add("crew", "c", True)]), r"writes\[0\].amount must be an integer"),
        (requests.Batch([WRONG]), r"writes\[0\] must be "),
        (requests.ReadLabels("crew", "t", channels=[ONE]), r"channels\[0\] must be text"),
        (requests.MoveThread("crew", "t", STAR), "status must be one of 'running'"),
        (requests.Watch("crew", kinds=[STAR]), r"kinds\[0\] must be one of 'thread'"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_holds(wrong: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        conforming(wrong)
    assert "Nothing was written." in str(refused.value)
    str(refused.value).encode()  # So that it can be sent, and printed.


def test_a_value_of_a_subclass_is_taken_as_what_it_holds() -> None:
    made = conforming(requests.Add("crew", Colour.RED, Level.HIGH, key=Colour.RED))
    assert made == requests.Add("crew", "red", 3, "red")
    assert [type(field) for field in msgspec.structs.astuple(made)] == [str, str, int, str]
    assert conforming(add(numpy.int64(7))).amount == 7
    made_save = conforming(save(channels={Colour.RED: bytearray(b"\x01")}, removed=("a",)))
    assert made_save == save(channels={"red": b"\x01"}, removed=["a"])


def test_a_subclass_deep_inside_is_found_also_where_a_like_request_was_legal() -> None:
    assert conforming(save(removed=["a"])) == save(removed=["a"])
    made = conforming(save(removed=[Colour.RED], channels={"red": b"\x01"}))
    assert type(made.removed[0]) is str
    with pytest.raises(InvalidInput, match=r"removed\[0\]"):
        conforming(save(removed=[None]))


@pytest.mark.parametrize("request_", LEGAL[:10], ids=lambda request: type(request).__name__)
def test_passing_values_are_the_same_on_the_wire(request_: Any) -> None:
    assert decode_request(msgspec.msgpack.encode(conforming(request_))) == request_


@pytest.mark.parametrize(
    ("manner", "said"),
    [
        ((3, "local", False), "key must be text"),
        (("\ud800", "local", False), "key holds a lone surrogate"),
        ((None, 1, False), "durability must be one of"),
        (
            (None, "quorom", False),
            r"durability must be one of .*'quorum', 'all'; got 'quorom' \(str\)\. Did you mean 'quorum'\?",
        ),
        ((None, None, "yes"), "stale must be True or False"),
    ],
)
def test_options_of_a_request_are_checked_too(manner: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_manner(*manner)
    check_manner("k", "local", True)


def test_a_cursor_that_no_answer_had_is_refused() -> None:
    conforming(requests.ReadSet("s", "n", after=b"x" * CURSOR_BYTES_MAX))
    for after in (b"x" * (CURSOR_BYTES_MAX + 1), bytearray(CURSOR_BYTES_MAX + 1)):
        with pytest.raises(InvalidInput, match="after has 1048577 bytes, and a cursor at most 1048576"):
            conforming(requests.ReadSet("s", "n", after=after))  # type: ignore[arg-type]
