"""Packed values as bytes that sort as the values do.

Laws:
- Of two numbers, or two texts, the lesser never has the greater bytes; equal ones
  have equal bytes. Numbers are rounded to the nearest double and texts are cut, so different values may
  share their bytes too: a lookup must compare the values themselves.
- True and False are 1 and 0, as Python compares them. None has no bytes, like a missing value.
- All other values (a list, a map, an extension, NaN) are OTHER: no order of bytes matches theirs.
- No value's bytes are a prefix of another value's, so more bytes may follow them.

    01 double₈           a number: its sign bit flipped, or all bits of a negative one
    02 text 00 00        its first `TEXT_BYTES_MAX` bytes, each 00 as 00 FF
    FF                   other

The canonical form of a packed value: values that are equal, type by type, have equal bytes, whichever client packed them.

Law: maps are sorted by their packed keys, sets by their packed items, and
numbers and lengths have the shortest form. The content of an extension with an unknown code is left as it is.
"""

from __future__ import annotations

import struct
from math import isnan
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from shoal.errors import InvalidValue
from shoal.values import forms
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, NESTED_MAX, OBJECT_CODE, SET_CODE

NUMBER, TEXT, OTHER = b"\x01", b"\x02", b"\xff"
TEXT_BYTES_MAX = 128

_NIL = 0xC0
# The first bytes of msgpack's small integers, short texts, booleans, floats and integers, and other texts.
_PLAIN = frozenset([*range(0x80), *range(0xA0, 0xC0), 0xC2, 0xC3, *range(0xCA, 0xD4), *range(0xD9, 0xDC), *range(0xE0, 0x100)])
_SIGN = 1 << 63
_ALL = (1 << 64) - 1


def ordered(packed: bytes) -> bytes | None:
    """The bytes of a packed value; None for None."""
    if packed[0] == _NIL:
        return None
    return of_plain(msgspec.msgpack.decode(packed)) if packed[0] in _PLAIN else OTHER


def of_plain(value: object) -> bytes:
    """The bytes of a number or text; OTHER for any other value."""
    if isinstance(value, str):
        return TEXT + value.encode()[:TEXT_BYTES_MAX].replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    if isinstance(value, int | float):
        return OTHER if isnan(number := _double(value)) else NUMBER + _sortable(number)
    return OTHER


def length(row: bytes) -> int:
    """How many bytes at the beginning of `row` belong to a value."""
    if row.startswith(NUMBER):
        return 9
    return 1 if row.startswith(OTHER) else row.index(b"\x00\x00") + 2


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _sortable(number: float) -> bytes:
    bits = int.from_bytes(struct.pack(">d", number + 0.0), "big")  # -0.0 + 0.0 is 0.0.
    return (bits ^ (_ALL if bits & _SIGN else _SIGN)).to_bytes(8, "big")


_KNOWN = {OBJECT_CODE, forms.ARRAY.code, forms.SCALAR.code, *(form.code for form in BY_CLASS.values())}
_packer = msgpack.Packer()


def canonical(packed: bytes) -> bytes:
    """The canonical form of `packed`, which must have passed `check`.

    Raises:
        InvalidValue: it nests too deep, or holds text that is not valid Unicode.
    """
    try:
        return _spelled(_unpacked(packed), NESTED_MAX)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InvalidValue(
            f"the value has no canonical form to compare it by: {error or type(error).__name__}. Nothing was written."
        ) from None


class _Map:
    """A map's pairs as they were packed. A key need not be one that a Python dict accepts."""

    def __init__(self, pairs: list[tuple[Any, Any]]) -> None:
        self.pairs = pairs


def _unpacked(packed: bytes) -> Any:
    return msgpack.unpackb(packed, object_pairs_hook=_Map, ext_hook=msgpack.ExtType, strict_map_key=False, timestamp=0)


def _spelled(value: Any, levels: int) -> bytes:
    if isinstance(value, list):
        return _array([_spelled(item, levels) for item in value])
    if isinstance(value, _Map):
        pairs = sorted((_spelled(key, levels), _spelled(inner, levels)) for key, inner in value.pairs)
        return bytes(_packer.pack_map_header(len(pairs))) + b"".join(key + inner for key, inner in pairs)
    if isinstance(value, msgpack.ExtType) and value.code in _KNOWN and levels:
        return bytes(_packer.pack(msgpack.ExtType(value.code, _extension(value, levels - 1))))
    return bytes(_packer.pack(value))


def _extension(value: Any, levels: int) -> bytes:
    inner = _unpacked(value.data)
    if value.code in (SET_CODE, FROZENSET_CODE) and isinstance(inner, list):
        return _array(sorted(_spelled(item, levels) for item in inner))
    return _spelled(inner, levels)


def _array(items: list[bytes]) -> bytes:
    return bytes(_packer.pack_array_header(len(items))) + b"".join(items)
