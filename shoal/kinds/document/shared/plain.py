"""The values that a document can hold, checked before the engine sees them.

The engine panics at keys that are not strings, at integers beyond 64 bits and at lone surrogates; a value within another
that it does not know becomes null, silently. Nodes refuse values that nest too deep, so that a mirror with one is stuck.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NoReturn

import pycrdt

from shoal.errors import InvalidValue
from shoal.kinds.document.state.yjs import VALUE_DEPTH_MAX

_INTEGER_MAX = 2**63 - 1
# As `NESTING_MAX` of a document, which the node measures with what the value is put into.
_NESTING_MAX = 64

Where = Literal["map", "array", "text", "XML text", "XML"]
"""The shared type that something is put into; "XML" is a fragment or an element."""

_SHARED = (pycrdt.Map, pycrdt.Array, pycrdt.Text, pycrdt.XmlFragment, pycrdt.XmlElement, pycrdt.XmlText)
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_PLACED = (pycrdt.Map, pycrdt.Array, pycrdt.Text, pycrdt.XmlFragment)
_EMBEDDED = (pycrdt.Map, pycrdt.Array, pycrdt.Text)
_NODES = (pycrdt.XmlElement, pycrdt.XmlText)
_HOLDS: dict[Where, tuple[type[Any], ...]] = {
    "map": _PLACED,
    "array": _PLACED,
    "text": _EMBEDDED,
    "XML text": (*_EMBEDDED, *_NODES),
    "XML": _NODES,
}


def fail(why: str) -> NoReturn:
    """Raise InvalidValue with this text, to which it adds that nothing was written."""
    raise InvalidValue(f"{why}. Nothing was written.")


def check_text(text: str) -> str:
    """Return the text.

    Raises:
        InvalidValue: it holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        fail("a key or a string holds a lone surrogate")
    return text


def check_key(key: Any) -> None:
    """
    Raises:
        TypeError: it is no string.
        InvalidValue: it holds a lone surrogate.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key in a document is a string, not {type(key).__name__} ({key!r:.40}). Nothing was written.")
    check_text(key)


def check_value(value: Any, depth: int = 0) -> None:
    """Check a plain value: None, booleans, numbers, strings, bytes, and lists and dicts of them.

    Raises:
        InvalidValue: a document cannot hold it.
    """
    if depth > VALUE_DEPTH_MAX:
        fail(f"a value is nested deeper than {VALUE_DEPTH_MAX}")
    if isinstance(value, str):
        check_text(value)
    elif type(value) in _PLAIN and type(value) is not int:
        return
    elif isinstance(value, list | tuple):
        for each in value:
            check_value(each, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                fail(f"an object's keys must be strings, not {key!r:.40}")
            check_text(key)
            check_value(each, depth + 1)
    elif isinstance(value, int):
        if not -_INTEGER_MAX - 1 <= value <= _INTEGER_MAX:
            fail("an integer of more than 64 bits cannot be stored; store it as a string")
    elif isinstance(value, _SHARED):
        fail(f"a plain list or dict cannot hold a shared {type(value).__name__}. Put it into a pycrdt.Map or pycrdt.Array")
    elif value is not None and not isinstance(value, bool | int | float | bytes):
        fail(f"a document cannot hold a value of type {type(value).__name__} ({value!r:.40})")


def check_json(value: Any) -> None:
    """Check a format of a text, or an object to embed in one: the engine writes them as JSON.

    Raises:
        InvalidValue: it is no JSON.
    """
    check_value(value)
    if not _is_json(value):
        fail("a format or an object in a text is JSON, which has no bytes, no NaN and no infinities")


def check_formats(formats: Any) -> None:
    """
    Raises:
        TypeError: it is no dict, or has a key that is no string.
        InvalidValue: a value is no JSON.
    """
    if formats is None:
        return
    if not hasattr(formats, "items"):
        raise TypeError(f"the formats of a text are a dict, not {type(formats).__name__}. Nothing was written.")
    for key, value in formats.items():
        check_key(key)
        check_json(value)


def _is_json(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return not isinstance(value, bytes) and not (isinstance(value, float) and not math.isfinite(value))


def check_new(value: Any, where: Where, depth: int = 0) -> None:
    """Check a value to be put into a shared type: a plain one, or a new shared type with all that it begins with.

    Raises:
        InvalidValue: it cannot be held there, or it is a shared type that is in a document.
        TypeError: a key of it, or what a text begins with, is no string.
    """
    if depth > _NESTING_MAX:
        fail(f"shared types are nested deeper than {_NESTING_MAX}")
    if type(value) in _PLAIN:  # Most are; to find that a value is no shared type takes longer.
        _check_unshared(value, where)
        return
    if isinstance(value, pycrdt.Doc):
        fail("a document cannot hold another document")
    if not isinstance(value, _SHARED):
        _check_unshared(value, where)
        return
    if not isinstance(value, _HOLDS[where]):
        held = ", ".join(kind.__name__ for kind in _HOLDS[where])
        fail(f"a shared {where} holds no {type(value).__name__}, but {held}")
    if value.is_integrated:
        fail(f"this {type(value).__name__} is in a document already. Put a new one, or the result of its to_py(), instead")
    _check_begun(value, depth + 1)


def check_root(value: Any) -> None:
    """Check what a new root begins with, if it begins with anything. Raises as `check_new`."""
    if isinstance(value, _SHARED) and not value.is_integrated:
        _check_begun(value, 1)


def _check_unshared(value: Any, where: Where) -> None:
    if where == "XML":
        if not isinstance(value, str):
            fail(f"a node of XML is a string, XmlText or XmlElement, not {type(value).__name__}")
        check_text(value)
    elif where in ("text", "XML text"):
        check_json(value)
    else:
        check_value(value)


def _check_begun(value: Any, depth: int) -> None:
    """Check what a new shared type begins with."""
    begun = value.prelim
    if isinstance(value, pycrdt.XmlElement):
        tag, attributes, begun = begun
        check_key(tag)
        for key, each in attributes:
            check_attribute(key, each)
    if isinstance(value, pycrdt.Text | pycrdt.XmlText):
        if begun is not None:
            check_string(begun)
    elif isinstance(value, pycrdt.Map):
        for key, each in (begun or {}).items():
            check_key(key)
            check_new(each, "map", depth)
    else:
        for each in begun or ():
            check_new(each, "array" if isinstance(value, pycrdt.Array) else "XML", depth)


def check_attribute(key: Any, value: Any) -> None:
    """Check an attribute of XML: the engine would write null for a shared type.

    Raises:
        TypeError, InvalidValue: the key or the value cannot be one.
    """
    check_key(key)
    if isinstance(value, _SHARED):
        fail(f"the attribute {key!r:.40} is a shared type; attributes of XML are plain values")
    check_value(value)


def check_string(text: Any) -> None:
    """
    Raises:
        TypeError: it is no string.
        InvalidValue: it holds a lone surrogate.
    """
    if not isinstance(text, str):
        raise TypeError(f"a text holds strings, not {type(text).__name__} ({text!r:.40}). Nothing was written.")
    check_text(text)
