"""Parts of packed values, hidden or looked for without building what they hold.

Laws:
- No class needs to be registered, and none is built. What cannot be looked into (an object of a class, a tuple, a set, bytes
  that are no value) is hidden as a whole if a place leads into it.
- A place is a sequence of keys and indexes as text; `EVERY` stands for all. A place that leads nowhere has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from shoal.errors import ShoalError
from shoal.values.codec import check, encode

EVERY = "*"
Place = Sequence[str]
_OPAQUE = object()


def hidden(packed: bytes, places: Iterable[Place], text: str) -> bytes:
    """A packed value with `text` at these places."""
    tree = _tree(packed)
    for place in places:
        tree = _hidden(tree, place, text)
    return encode(text) if tree is _OPAQUE else bytes(msgpack.packb(tree))


def holds(packed: bytes, places: Iterable[Place], text: str) -> bool:
    """Whether the value at one of these places is `text`."""
    tree = _tree(packed)
    return any(_is_at(tree, place, text) for place in places)


def _tree(packed: bytes) -> Any:
    try:
        check(packed)
        return msgpack.unpackb(packed, ext_hook=msgpack.ExtType, strict_map_key=False, timestamp=0)
    except (ShoalError, ValueError, TypeError, msgpack.UnpackException):
        return _OPAQUE


def _hidden(tree: Any, place: Place, text: str) -> Any:
    if not place or tree is _OPAQUE or isinstance(tree, msgpack.ExtType):
        return text
    first, rest = place[0], place[1:]
    if isinstance(tree, dict):
        return {key: _hidden(item, rest, text) if _leads(first, key) else item for key, item in tree.items()}
    if isinstance(tree, list):
        return [_hidden(item, rest, text) if _leads(first, at) else item for at, item in enumerate(tree)]
    return tree


def _is_at(tree: Any, place: Place, text: str) -> bool:
    if not place:
        return bool(tree == text)
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return any(_is_at(item, place[1:], text) for key, item in items if _leads(place[0], key))


def _leads(part: str, key: object) -> bool:
    return part in (EVERY, str(key))
