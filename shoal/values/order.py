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
"""

from __future__ import annotations

import struct
from math import isnan

import msgspec

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
