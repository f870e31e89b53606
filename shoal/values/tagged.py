"""Values as JSON: lossless, with tags where JSON has no type; and as plain trees, for code that must not build objects.

Values as JSON, for people and for HTTP: lossless, with tags where JSON has no type.

Law: `from_json(to_json(v))` equals `v`, in type too, for every value that
`encode` accepts and that nests at most `JSON_DEPTH_MAX` deep (a NaN comes back
as a NaN, without its payload bits).

    None, bool, str, finite float        themselves
    int within ±(2⁵³ − 1)                itself; beyond, {"$type": "int", "value": "9007199254740993"}
    NaN, infinities                      {"$type": "float", "value": "nan" | "inf" | "-inf"}
    bytes                                {"$type": "bytes", "value": base64}
    list                                 an array
    dict with string keys                an object, unless it has a key "$type"
    any other dict                       {"$type": "dict", "value": [[key, value], …]}
    a registered class                   {"$type": "object", "class": name, "value": …}, and "version" unless it is 1
    every other form                     {"$type": its tag, "value": …}: "datetime", "tuple", "decimal", …

A JSON object with the key "$type" is always a tag; data that has such a key of
its own is written as a "dict". Integers beyond 2⁵³ are accepted untagged.

Packed values as plain JSON trees, for code that looks at a state and must not build its objects.

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
import math
import re
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import msgpack  # type: ignore[import-untyped]

from shoal.errors import InvalidValue, ShoalError
from shoal.values import forms, registry
from shoal.values.codec import check, encode
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, NESTED_MAX, OBJECT_CODE, SET_CODE

JSON_DEPTH_MAX = 192

# Every JSON reader holds integers up to this one exactly (RFC 7493, I-JSON).
_SAFE_INT_MAX = 2**53 - 1
# Beyond this many bits hexadecimal is used: Python bounds the length of decimal text, and reading it is quadratic.
_DECIMAL_BITS_MAX = 2048

_FORMS_BY_TAG = {form.tag: form for form in [*BY_CLASS.values(), forms.ARRAY, forms.SCALAR]}
_INT_TEXT = re.compile(r"-?(0x[0-9a-f]+|[0-9]{1,1000})")
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: object) -> Any:
    """`value` in a form that `json.dumps` takes.

    Raises:
        InvalidValue: it holds something that cannot be serialised, or nests too deep.
    """
    return tree_of(value, JSON_DEPTH_MAX)


def from_json(tree: object) -> Any:
    """The value of `tree`, which `to_json` made or somebody wrote by hand.

    Raises:
        InvalidValue: a tag is unknown, or its value does not fit it.
    """
    try:
        return value_of(tree, JSON_DEPTH_MAX)
    except (InvalidValue, MemoryError):
        raise
    except Exception as failure:  # Registered classes may raise anything.
        raise InvalidValue(f"the JSON is no value: {failure or type(failure).__name__}. Nothing was written.") from failure


def too_deep() -> InvalidValue:
    """The error for a value that JSON cannot show."""
    return InvalidValue(f"the value nests more than {JSON_DEPTH_MAX} deep, too deep for JSON. Read it as msgpack instead.")


def tree_of(value: Any, depth: int) -> Any:
    """As `to_json`, for a part that may nest so deep."""
    if depth == 0:
        raise too_deep()
    cls = type(value)
    if value is None or cls is bool:
        return value
    if cls is str:
        return _text(value)
    if cls is int:
        return value if abs(value) <= _SAFE_INT_MAX else {"$type": "int", "value": _int_text(value)}
    if cls is float:
        return value if math.isfinite(value) else {"$type": "float", "value": str(value)}
    if cls is list:
        return [tree_of(item, depth - 1) for item in value]
    if cls is dict:
        return _dict_to_json(value, depth)
    return _extension_to_json(value, depth)


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(
                f"a text holds a lone surrogate (at {error.start}), which is no Unicode text. Nothing was written. "
                'Replace it: text.encode("utf-8", "replace").decode().'
            ) from None
    return value


def _int_text(value: int) -> str:
    return str(value) if value.bit_length() <= _DECIMAL_BITS_MAX else hex(value)


def _dict_to_json(value: dict[Any, Any], depth: int) -> Any:
    if "$type" not in value and all(type(key) is str for key in value):
        # Most values are such: no call for each.
        return {
            key if key.isascii() else _text(key): item
            if type(item) is int and -_SAFE_INT_MAX <= item <= _SAFE_INT_MAX
            else tree_of(item, depth - 1)
            for key, item in value.items()
        }
    pairs = [[tree_of(key, depth - 1), tree_of(item, depth - 1)] for key, item in value.items()]
    return {"$type": "dict", "value": pairs}


def _extension_to_json(value: Any, depth: int) -> Any:
    cls = type(value)
    if cls in (bytes, bytearray, memoryview):
        return {"$type": "bytes", "value": base64.b64encode(value).decode()}
    if cls in (set, frozenset):
        # Converted first, because that bounds the depth of the items that are encoded for the order.
        converted = {encode(item): tree_of(item, depth - 1) for item in value}
        return {"$type": cls.__name__, "value": [converted[packed] for packed in sorted(converted)]}
    form = BY_CLASS.get(cls) or forms.form_of(cls)
    if form is not None:
        try:
            plain = form.dump(value)
        except ValueError as error:
            raise InvalidValue(f"a {registry.default_name(cls)} cannot be serialised: {error}. Nothing was written.") from None
        return {"$type": form.tag, "value": tree_of(plain, depth - 1)}
    entry = registry.entry_of(cls)
    if entry is None:  # msgpack's own extension values are encoded as they are, and mean nothing here.
        raise InvalidValue(f"a {registry.default_name(cls)} has no JSON form.")
    shown = {"$type": "object", "class": entry.name, "value": tree_of(entry.pack(value), depth - 1)}
    return shown if entry.version == 1 else {**shown, "version": entry.version}


def value_of(tree: Any, depth: int) -> Any:
    """As `from_json`, for a part that may nest so deep; what classes raise is passed on."""
    if depth == 0:
        raise InvalidValue(f"the JSON nests more than {JSON_DEPTH_MAX} deep. Nothing was written.")
    if type(tree) is list:
        return [value_of(item, depth - 1) for item in tree]
    if type(tree) is not dict:
        return tree
    if "$type" not in tree:
        return {key: value_of(item, depth - 1) for key, item in tree.items()}
    return _untag(tree, depth - 1)


def _untag(tree: dict[str, Any], depth: int) -> Any:
    tag = tree["$type"]
    keys = tree.keys() - {"version"} if tag == "object" else tree.keys()
    if keys != ({"$type", "value", "class"} if tag == "object" else {"$type", "value"}):
        raise InvalidValue(
            f'a JSON object with the key "$type" must be a tagged value; this one has the keys {sorted(tree)}. '
            'Data with such a key is written as {"$type": "dict", "value": [[key, value], …]}. Nothing was written.'
        )
    if tag in ("int", "float", "bytes"):
        return _untag_scalar(tag, tree["value"])
    plain = value_of(tree["value"], depth)
    if tag == "dict":
        return dict(plain)
    if tag == "object":
        return registry.entry_named(tree["class"]).rebuild(plain, tree.get("version", 1))
    if type(tag) is not str or tag not in _FORMS_BY_TAG:
        raise InvalidValue(f'the JSON tag "$type": {str(tag)[:80]!r} is unknown. Nothing was written.')
    return _FORMS_BY_TAG[tag].load(plain)


def _untag_scalar(tag: str, text: Any) -> int | float | bytes:
    if type(text) is not str:
        raise InvalidValue(f'the JSON tag "$type": "{tag}" needs a string as its value. Nothing was written.')
    if tag == "bytes":
        return base64.b64decode(text, validate=True)
    if tag == "float" and text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if tag == "int" and _INT_TEXT.fullmatch(text):
        return int(text, 0)
    raise InvalidValue(f"{text[:80]!r} is no JSON form of {tag}. Nothing was written.")


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
