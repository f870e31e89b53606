"""Pending writes as LangGraph's saver stores them, without LangGraph."""

from __future__ import annotations

from typing import Any

from msgspec.msgpack import Ext, encode

from shoal.kinds.label.state import Note

ASK, ANSWER, ERROR, OUTPUT = ("__interrupt__", -3), ("__resume__", -4), ("__error__", -1), ("branch:to:next", 0)
NO_TASK = "00000000-0000-0000-0000-000000000000"


def write(task: str, of: tuple[str, int], value: Any = None, *, kind: str = "msgpack") -> Note:
    """One pending write of a task."""
    channel, index = of
    packed = value if isinstance(value, bytes) else encode(value)
    return Note(encode([task, index]), encode(["~pull", channel, kind, packed]), index >= 0)


def interrupt(value: Any, id: str = "a" * 32) -> list[Any]:
    """An interrupt, as LangGraph's serialiser packs it."""
    fields = {"value": value, "id": id, "response_schema": None}
    return [Ext(2, encode(["langgraph.types", "Interrupt", fields]))]


def question(task: str, value: Any = "refund?", id: str = "a" * 32) -> Note:
    """What a task writes that stops at `interrupt(value)`."""
    return write(task, ASK, interrupt(value, id))
