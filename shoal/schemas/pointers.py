"""JSON pointers (RFC 6901) into a state: to take a field out, or to hide it.

A state is a dict of channels; the pointer's first part is the channel. A part `*`
stands for every key and index. A pointer that leads nowhere has no effect.
A pointer that leads into an object, a set or another value without keys hides the whole of it.
Arguments are never changed: the parts on the way are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.errors import InvalidInput
from shoal.values.hiding import EVERY

POINTERS_MAX = 256
HIDDEN = "«secret»"


_GONE = object()
_LEAVES = (type(None), bool, int, float, complex, str, bytes)


def pointer(parts: Iterable[object]) -> str:
    """The pointer with these parts, such as `/plan/tasks/3`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a pointer; a name without a leading `/` is a channel's.

    Raises:
        InvalidInput: it is no pointer.
    """
    if not isinstance(text, str) or not text or text == "/":
        raise InvalidInput(
            f"a field must be a channel's name or a JSON pointer such as '/plan/token'; got {text!r}. Nothing was written."
        )
    if not text.startswith("/"):
        return (text,)
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


def without(state: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The state without these fields; an item of a list becomes None, so that the others keep their places."""
    kept = dict(state)
    for field in fields:
        kept = _changed(kept, parts_of(field), lambda _: _GONE)
    return kept


def redacted(state: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The state with `HIDDEN` in the place of these fields."""
    shown = dict(state)
    for field in fields:
        shown = _changed(shown, parts_of(field), _hide)
    return shown


def hidden(fields: Iterable[str], channel: str, path: str, value: Any) -> Any:
    """The value at `path` within a channel, with `HIDDEN` in the place of these fields."""
    if value is None:
        return None
    at = (channel, *path.split("/")[1:])
    for field in fields:
        parts = tuple(part.replace("~", "~0").replace("/", "~1") if n else part for n, part in enumerate(parts_of(field)))
        if all(EVERY in (mine, theirs) or mine == theirs for mine, theirs in zip(parts, at, strict=False)):
            value = _changed(value, parts_of(field)[len(at) :], _hide)
    return value


def covers(fields: Iterable[str], path: str) -> bool:
    """Whether the value at `path`, or a part of it, is one of the fields."""
    parts = parts_of(path) if path else ()
    return any(
        all(EVERY in (mine, theirs) or mine == theirs for mine, theirs in zip(parts_of(field), parts, strict=False))
        for field in fields
    )


def _changed(tree: Any, parts: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    if not parts:
        return change(tree)
    first, rest = parts[0], parts[1:]
    if isinstance(tree, dict):
        made: dict[Any, Any] = {}
        for key, item in tree.items():
            new = _changed(item, rest, change) if first in (EVERY, str(key)) else item
            if new is not _GONE:
                made[key] = new
        return made
    if type(tree) in (list, tuple):
        items = [_changed(item, rest, change) if first in (EVERY, str(at)) else item for at, item in enumerate(tree)]
        return type(tree)(None if item is _GONE else item for item in items)
    return HIDDEN if change is _hide and not isinstance(tree, _LEAVES) else tree


def _hide(_: Any) -> str:
    return HIDDEN
