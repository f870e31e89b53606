"""Values as JSON, for people and for HTTP: lossless, with tags where JSON has no type.

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
"""

from __future__ import annotations

import base64
import math
import re
from typing import Any

from shoal.errors import InvalidValue
from shoal.values import forms, registry
from shoal.values.codec import encode
from shoal.values.forms import BY_CLASS

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
        return {_text(key): tree_of(item, depth - 1) for key, item in value.items()}
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
