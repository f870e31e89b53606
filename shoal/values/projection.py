"""Packed values as plain JSON trees, for code that looks at a state and must not build its objects.

Law: a projection is a function of the bytes. No class needs to be registered and
none is built, so that a node and a client that check one state see the same tree.

    None, bool, int, float, str, list    themselves
    dict                                 an object; keys that are no text by their JSON text
    bytes                                base64
    tuple, set, frozenset                an array
    datetime, date, time, Decimal, UUID  their text
    timedelta, complex                   an array of their numbers
    NumPy number                         the number; other scalars and arrays {"dtype", "shape"}
    a registered class                   its stored form: the object of its fields, or an enum member's value

Parts of packed values, hidden or looked for without building what they hold.

Laws:
- No class needs to be registered, and none is built. What cannot be looked into (an object of a class, a tuple, a set, bytes
  that are no value) is hidden as a whole if a place leads into it.
- A place is a sequence of keys and indexes as text; `EVERY` stands for all. A place that leads nowhere has no effect.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import msgpack  # type: ignore[import-untyped]

from shoal.errors import InvalidValue, ShoalError
from shoal.values.codec import check, encode
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, NESTED_MAX, OBJECT_CODE, SET_CODE

DEPTH_MAX = 128
"""Of a tree. A deeper value cannot be checked, and is refused."""

_TUPLE_CODE, _INT_CODE, _DEQUE_CODE = BY_CLASS[tuple].code, BY_CLASS[int].code, BY_CLASS[deque].code
_ORDERED_CODE, _DEFAULT_CODE = BY_CLASS[OrderedDict].code, BY_CLASS[defaultdict].code
_PATH_CODE = BY_CLASS[PurePosixPath].code
_ARRAY_CODE, _SCALAR_CODE = 13, 14
_NUMBERS = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"} | {
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


def project(packed: bytes) -> Any:
    """The projection of a packed value.

    Raises:
        InvalidValue: it is no value, nests deeper than `DEPTH_MAX`, or two keys of a dict have the same text.
    """
    return _plain(_unpacked(packed, 0), DEPTH_MAX)


def _unpacked(packed: bytes, level: int) -> Any:
    if level > NESTED_MAX:
        raise InvalidValue(f"more than {NESTED_MAX} tuples, sets or objects lie inside each other. Nothing was written.")
    check(packed)  # A false length must not cause an allocation.

    def extension(code: int, inner: bytes) -> Any:
        return _projected(code, _unpacked(inner, level + 1))

    try:
        return msgpack.unpackb(packed, ext_hook=extension, strict_map_key=False, timestamp=3)
    except InvalidValue:
        raise
    except Exception as error:  # For example, a dict with an unhashable key.
        raise InvalidValue(f"the bytes are no value: {error or type(error).__name__}. Nothing was written.") from None


def _projected(code: int, plain: Any) -> Any:
    match code, plain:
        case (_, [_, form, *_]) if code == OBJECT_CODE:
            return form
        case (_, list()) if code in (_TUPLE_CODE, SET_CODE, FROZENSET_CODE):
            return _Array(plain)
        case (_, [[*items], _]) if code == _DEQUE_CODE:
            return _Array(items)
        case (_, list() as pairs) if code == _ORDERED_CODE:
            return dict(pairs)
        case (_, [_, inner]) if code in (_DEFAULT_CODE, _PATH_CODE):
            return inner
        case (_, bytes()) if code == _INT_CODE:
            return int.from_bytes(plain, "big", signed=True)
        case (_, [str() as dtype, bytes() as data]) if code == _SCALAR_CODE:
            return _number(dtype, data)
        case (_, [str() as dtype, list() as shape, bytes()]) if code == _ARRAY_CODE:
            return {"dtype": dtype, "shape": shape}
    return plain


class _Array(list[Any]):
    """A tuple or a set, which may be a dict's key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, default=repr))


def _number(dtype: str, data: bytes) -> Any:
    letter = _NUMBERS.get(dtype[1:])
    if letter is None:
        return {"dtype": dtype, "shape": []}
    try:
        return struct.unpack((">" if dtype[0] == ">" else "<") + letter, data)[0]
    except struct.error:
        raise InvalidValue(f"a NumPy scalar of type {dtype[:20]!r} came with {len(data)} bytes. Nothing was written.") from None


def _plain(tree: Any, depth: int) -> Any:
    if tree is None or type(tree) in _LEAVES:
        return tree
    if depth == 0:
        raise InvalidValue(
            f"the state nests more than {DEPTH_MAX} deep, too deep to be checked by a schema. Nothing was written."
        )
    if isinstance(tree, list):
        return [_plain(item, depth - 1) for item in tree]
    if isinstance(tree, dict):
        return _object(tree, lambda item: _plain(item, depth - 1))
    if isinstance(tree, bytes):
        return base64.b64encode(tree).decode()
    return tree.isoformat() if isinstance(tree, datetime) else str(tree)


_LEAVES = frozenset({bool, int, float, str})


def _object(tree: dict[Any, Any], plain: Callable[[Any], Any]) -> dict[str, Any]:
    made = {key if type(key) is str else json.dumps(plain(key)): plain(item) for key, item in tree.items()}
    if len(made) < len(tree):
        raise InvalidValue(
            "a dict has two keys with one text, such as 1 and '1', which no schema can tell apart. "
            "Nothing was written. Rename one."
        )
    return made


EVERY = "*"
Place = Sequence[str]
_OPAQUE = object()


def hidden(packed: bytes, places: Iterable[Place], text: str | None) -> bytes:
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


def _hidden(tree: Any, place: Place, text: str | None) -> Any:
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
