"""A plain copy of a document's root, kept in step by the engine's events, which says what each of them changed.

Laws:
- After a transaction's events the copy is what `to_py` gives of the root itself.
- Its differences, done one after the other to what was shown before, give what is shown
  after: an index is that at which its difference is done.
- What it costs grows with the change; in a text also with the text, by one copy of its bytes.

The engine says of lists and texts how many were deleted, not what: that is what the copy is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pycrdt

from shoal.crdt.live import to_py

DifferenceKind = Literal["add", "set", "delete", "insert"]

# An embedded object of another editor's takes one position. No UTF-8 has this byte.
_EMBEDDED = b"\xff"


class Difference(NamedTuple):
    """What changed in one place.

    `add`, `set` and `delete` of a map's key, which ends the path: `old` and `new` are its values (None: there was
    none). `insert` and `delete` in an array or a text: the path ends with the index, which in a text counts UTF-8 bytes,
    and what was inserted or deleted is a list, or a string.
    """

    kind: DifferenceKind
    path: tuple[str | int, ...]
    old: Any
    new: Any


class Shadow:
    """Of the root `name`, which is `shared`."""

    def __init__(self, name: str, shared: Any) -> None:
        self._name = name
        self._copy = _copied(shared)

    def to_py(self) -> Any:
        return _shown(self._copy)

    def follow(self, events: Sequence[Any]) -> list[Difference]:
        """Take over one transaction's events of the root and what is within it."""
        found: list[Difference] = []
        # Those around come first: what is within a new value is in the copy of that value already.
        for event in sorted(events, key=lambda event: len(event.path)):
            inside = self._copy
            for step in event.path:
                inside = inside[step]
            path = (self._name, *event.path)
            if isinstance(event, pycrdt.MapEvent):
                found += _follow_map(inside, path, event.keys)  # type: ignore[attr-defined]
            elif isinstance(inside, list):
                found += _follow_list(inside, path, event.delta)
            else:
                found += _follow_text(inside, path, event.delta)
        return found


def _follow_map(entries: dict[str, Any], path: tuple[str | int, ...], keys: dict[str, Any]) -> list[Difference]:
    found: list[Difference] = []
    for key in sorted(keys):
        there, old = key in entries, _shown(entries.get(key))
        if keys[key]["action"] == "delete":
            entries.pop(key, None)
            if there:
                found.append(Difference("delete", (*path, key), old, None))
            continue
        entries[key] = _copied(keys[key]["newValue"])
        found.append(Difference("set" if there else "add", (*path, key), old, _shown(entries[key])))
    return found


def _follow_list(items: list[Any], path: tuple[str | int, ...], delta: list[dict[str, Any]]) -> list[Difference]:
    found: list[Difference] = []
    at = 0
    for step in delta:
        if "retain" in step:
            at += step["retain"]
        elif "delete" in step:
            gone = items[at : at + step["delete"]]
            del items[at : at + step["delete"]]
            found.append(Difference("delete", (*path, at), [_shown(item) for item in gone], None))
        else:
            new = [_copied(item) for item in step["insert"]]
            items[at:at] = new
            found.append(Difference("insert", (*path, at), None, [_shown(item) for item in new]))
            at += len(new)
    return found


def _follow_text(text: bytearray, path: tuple[str | int, ...], delta: list[dict[str, Any]]) -> list[Difference]:
    found: list[Difference] = []
    at = 0
    for step in delta:
        if "retain" in step:
            at += step["retain"]
        elif "delete" in step:
            gone = text[at : at + step["delete"]]
            del text[at : at + step["delete"]]
            found.append(Difference("delete", (*path, at), _decoded(gone), None))
        else:
            new = _encoded(step["insert"])
            text[at:at] = new
            found.append(Difference("insert", (*path, at), None, _decoded(new)))
            at += len(new)
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, pycrdt.Text):
        return bytearray(b"".join(_encoded(chunk) for chunk, _ in value.diff()))
    if isinstance(value, pycrdt.Map):
        return {key: _copied(value[key]) for key in value.keys()}  # noqa: SIM118
    if isinstance(value, pycrdt.Array):
        return [_copied(item) for item in value]
    return to_py(value)


def _shown(copy: Any) -> Any:
    if isinstance(copy, bytearray):
        return _decoded(copy)
    if isinstance(copy, dict):
        return {key: _shown(copy[key]) for key in sorted(copy)}
    if isinstance(copy, list):
        return [_shown(item) for item in copy]
    return copy


def _encoded(chunk: Any) -> bytes:
    return chunk.encode() if isinstance(chunk, str) else _EMBEDDED


def _decoded(text: bytes | bytearray) -> str:
    return text.replace(_EMBEDDED, b"").decode()
