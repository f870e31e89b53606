"""Values between JSON and msgpack in steps: the result of one step, and no step is long."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidValue, TooLarge
from shoal.values import stepped
from shoal.values.codec import decode_channel
from shoal.values.forms import BY_CLASS
from shoal.values.stepped import has_more_values, made_at_once, packed_in_steps, text_in_steps
from tests.support.examples import examples
from tests.support.samples import anything

T = TypeVar("T")

WAYS: tuple[Callable[[Any], bytes], ...] = (
    lambda tree: json.dumps(tree).encode(),
    lambda tree: json.dumps(tree, indent=1, ensure_ascii=False).encode(),
    lambda tree: json.dumps(tree, sort_keys=True, separators=(",", ":")).encode(),
)


@contextmanager
def short_steps() -> Iterator[None]:
    """Steps of a few values, so that small values take many."""
    string = stepped._STRING.replace(b"2048", b"3")
    token, rest = (re.compile(text, re.DOTALL) for text in (b'"' + string + rb"|[][{},]", string))
    with patch.multiple(stepped, STEP_BYTES=24, STEP_PARTS=3, _TOKEN=token, _REST=rest):
        yield


def taken(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The result, and the number of turns for others."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, turns
        turns += 1


@examples(300)
@given(anything, st.sampled_from(WAYS))
def test_steps_give_what_one_step_gives(value: Any, way: Any) -> None:
    tree = values.to_json(value)
    with short_steps():
        text, _ = taken(text_in_steps(values.encode(value)))
        packed, _ = taken(packed_in_steps(way(tree)))
    assert text == msgspec.json.encode(tree)
    assert packed == values.encode(values.from_json(json.loads(way(tree))))


@pytest.mark.parametrize(
    "tree",
    [
        {"value": [list(range(90)), "x" * 90], "$type": "tuple"},  # The tag comes after parts were converted.
        {"a": {"value": [[1, "b" * 40]], "$type": "dict"}, "b": ["c" * 40, {}, [[]]]},
        {"quoted": 'a "b", [{c}] \\' * 20, "": ["\\" * 31]},
        [[[["deep", {"er": [None] * 40}], 1.5], {}], [], "x" * 40],
    ],
)
def test_order_and_text_do_not_mislead_the_steps(tree: Any) -> None:
    with short_steps():
        for way in WAYS:
            assert taken(packed_in_steps(way(tree)))[0] == values.encode(values.from_json(json.loads(way(tree))))


def test_the_last_of_equal_names_counts_in_steps() -> None:
    text = b'{"a": [1, 2], "b": "' + b"x" * 90 + b'", "a": 3, "c": "' + b"y" * 90 + b'", "d": 4}'
    with short_steps():
        assert taken(packed_in_steps(text))[0] == values.encode(json.loads(text))


@pytest.mark.parametrize(
    "value", [[[]] * 20_000, {str(nth): [nth] for nth in range(20_000)}, set(range(20_000)), ["x"] * 20_000]
)
def test_a_large_value_is_converted_in_many_steps(value: Any) -> None:
    packed = values.encode(value)
    text, turns = taken(text_in_steps(packed))
    assert turns >= 20_000 // stepped.STEP_PARTS
    again, turns = taken(packed_in_steps(text))
    assert again == packed
    assert turns >= 20_000 // stepped.STEP_PARTS


def _longest(steps: Generator[None, None, bytes], work: list[int]) -> int:
    """The most of `work` that was done without a turn for others. It is emptied at each."""
    longest = 0
    for _ in steps:
        longest = max(longest, sum(work))
        work.clear()
    return max(longest, sum(work))


@pytest.mark.parametrize("each", [b"[]," * 5_000, b'"' + b"x" * 2_000 + b'",' + b"0," * 6_000])
def test_all_levels_together_wait_for_one_step(each: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def decode(text: bytes) -> Any:
        decoded.append(len(text))
        return msgspec.json.decode(text)

    text = (b"[" + each) * 150 + b"0" + b"]" * 150
    monkeypatch.setattr(stepped, "msgspec", SimpleNamespace(json=SimpleNamespace(decode=decode)))
    assert _longest(packed_in_steps(text), decoded) <= 2 * stepped.STEP_BYTES


@pytest.mark.parametrize("level", [[0] * 2047, {f"{nth}": nth for nth in range(2047)}, dict.fromkeys(range(2047), 0)])
def test_a_part_is_copied_once_however_deep(level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value: Any = list(range(200_000))
    for _ in range(60):
        value = [*level, value] if type(level) is list else {**level, "last": value}
    packed, made = values.encode(value), []

    def encode(tree: Any) -> bytes:
        text = msgspec.json.encode(tree)
        made.append(len(text))
        return text

    monkeypatch.setattr(stepped, "msgspec", SimpleNamespace(json=SimpleNamespace(encode=encode)))
    text, _ = taken(text_in_steps(packed))
    assert sum(made) <= 2 * len(text)
    monkeypatch.undo()
    if 0 in level and type(level) is dict:
        return  # A tagged object, which is read as a whole.
    pieces: list[stepped._Pieces] = []
    joined = stepped._joined
    monkeypatch.setattr(stepped, "_joined", lambda made: pieces.append(made) or joined(made))  # type: ignore[func-returns-value]
    assert taken(packed_in_steps(text))[0] == packed
    assert len(pieces) == 1


@pytest.mark.parametrize(
    "value",
    [
        [(0,) * 16_000 for _ in range(50)],
        [deque([0] * 40_000) for _ in range(20)],
        {(nth, *[0] * 40_000): 0 for nth in range(20)},
        dict.fromkeys(range(50), (0,) * 16000),
    ],
)
def test_parts_that_are_read_whole_take_turns(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def decode(packed: bytes, schema: str) -> Any:
        read.append(len(packed))
        return decode_channel(packed, schema)

    monkeypatch.setattr(stepped, "decode_channel", decode)
    assert _longest(text_in_steps(values.encode(value)), read) <= 2 * stepped.WHOLE_VALUES_MAX


def test_extensions_that_nest_take_turns() -> None:
    packed = values.encode([0] * 20_000)
    for _ in range(90):
        packed = msgpack.packb(msgpack.ExtType(BY_CLASS[tuple].code, b"\x91" + packed))
    text, turns = taken(text_in_steps(packed))
    assert turns >= 90
    assert text.count(b'"tuple"') == 90


@pytest.mark.parametrize(
    "wrong",
    [
        {"$type": "tuple", "value": ["x" * 20_000], "a": "y" * 20_000, "b": 1},
        {"$type": ["x" * 20_000, 1, 2], "value": 1},
    ],
)
def test_a_tag_holds_for_all_of_a_large_object(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="tag"):
        taken(packed_in_steps(json.dumps(wrong).encode()))


def test_a_name_that_is_the_tags_survives_steps() -> None:
    value = {"$type": "x" * 20_000, "b": ["y"] * 5000}
    text, _ = taken(text_in_steps(values.encode(value)))
    assert values.from_json(json.loads(text)) == value


def test_a_large_tagged_object_is_refused_in_json() -> None:
    pairs = [[nth, nth] for nth in range(stepped.WHOLE_VALUES_MAX)]
    with pytest.raises(TooLarge, match="msgpack"):
        taken(packed_in_steps(json.dumps({"$type": "dict", "value": pairs}).encode()))
    queue = values.encode(deque(range(stepped.WHOLE_VALUES_MAX + 1)))
    with pytest.raises(TooLarge, match="msgpack"):
        taken(text_in_steps(queue))


def test_steps_refuse_what_nests_too_deep() -> None:
    deep = b"[" * 193 + b"1" + b',"x"' * 9000 + b"]" * 193
    with pytest.raises(InvalidValue, match="192 deep"):
        taken(packed_in_steps(deep))
    packed = b"\x91" * 193 + values.encode(["x"] * 9000)
    with pytest.raises(InvalidValue, match="192 deep"):
        taken(text_in_steps(packed))


def test_bytes_that_are_no_value_are_not_shown() -> None:
    for packed in (
        b"\xdd\xff\xff\xff\xff" + b"\x01" * 20_000,
        b"\xc1" * 20_000,
        b"\xc9\x00\x00\xff\xff\x02" + b"\x90" * 20_000,
    ):
        with pytest.raises(InvalidValue):
            taken(text_in_steps(packed))


def test_values_are_counted_without_what_strings_hold() -> None:
    assert not has_more_values(json.dumps(["a,b,[c]" * 100, 1, [2]]).encode(), 5)
    assert has_more_values(b"[1,2,[3],4]", 5 - 1)
    assert taken(made_at_once(b'{"a": [1, 2, {"b": [3, 4, 5]}], "c": ",,"}', 2))[0] == 5
