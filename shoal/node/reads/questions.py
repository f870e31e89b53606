"""The questions of a graph as people read them: what is asked, and the id under which LangGraph takes the answer.

Laws:
- A question is told however its bytes are: what cannot be shown is said to be so, and never an error.
- Of a value above `DECODED_MAX` only the beginning of a text is shown, so that looking at a thread stays cheap.
- Nothing is built of the bytes of a graph: an object is shown by its class and its fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.errors import ShoalError
from shoal.kinds.label.asks import Ask
from shoal.protocol.requests import Question
from shoal.values.codec import LANGGRAPH, LANGGRAPH_FILE, decode_channel

DECODED_MAX = 16 * 1024  # Bytes of the questions of one task, packed.
SHOWN_MAX, CHARS_MAX = 4, 600  # Questions of a thread, and characters of one.
_ID = re.compile(rb"\xa2id\xd9\x20([0-9a-f]{32})")  # A field of an interrupt, as LangGraph's serialiser packs it.
_TEXT = re.compile(rb"\xa9Interrupt.{0,5}?\xa5value(?:\xd9.|\xda..|\xdb....)", re.DOTALL)  # The same, before a long text.
_HEAD = 256  # Bytes in which that is looked for.


def questions(asks: Sequence[Ask]) -> list[Question]:
    """The first `SHOWN_MAX` questions of a thread."""
    found: list[Question] = []
    for ask in asks:
        for id, says in _asked(ask):
            if len(found) == SHOWN_MAX:
                return found
            found.append(Question(id, _cut(says), ask.since_ms, ask.is_answered))
    return found


def _asked(ask: Ask) -> Iterator[tuple[str, str]]:
    if ask.kind == LANGGRAPH_FILE:
        yield "", "a value above 1 MiB, which is not shown here"
    elif ask.kind != "msgpack":
        yield "", "a value that only its graph can read" if "+" in ask.kind else f"a value of the kind {ask.kind}"
    elif len(ask.packed) > DECODED_MAX:
        yield _long(ask.packed)
    else:
        try:
            value = decode_channel(ask.packed, LANGGRAPH)
        except ShoalError:
            yield "", "a value that cannot be shown"
            return
        for each in value if isinstance(value, list | tuple) else [value]:
            yield _interrupt(each)


def _long(packed: bytes) -> tuple[str, str]:
    ids = _ID.findall(packed)
    head = _TEXT.search(packed[:_HEAD])
    if head is None:
        return ids[-1].decode() if ids else "", f"a value of {len(packed):,} bytes, which is not shown here"
    begun = packed[head.end() : head.end() + 4 * CHARS_MAX].decode(errors="ignore")
    return ids[-1].decode() if ids else "", begun


def _interrupt(told: Any) -> tuple[str, str]:
    match told:
        case {"class": str(name), "value": {"value": value, **rest}} if name.endswith("Interrupt"):
            id = rest.get("id", "")
            return id if isinstance(id, str) else "", _text(value)
    return "", _text(told)


def _text(value: Any) -> str:
    if isinstance(value, dict) and value and all(isinstance(name, str) for name in value):
        return ", ".join(f"{name}: {_plain(each)}" for name, each in value.items())
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # Keys that are no text, or halves of surrogate pairs.
        return repr(value)


def _cut(text: str) -> str:
    text = text.encode(errors="replace").decode()  # Half of a surrogate pair cannot be sent.
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 1] + "…"
