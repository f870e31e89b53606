"""Vectors as bytes: the 32-bit floats of an embedding, little-endian, one after another.

Law: all of them are finite, and there is one at least.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from math import isfinite

from shoal.errors import InvalidValue

FLOAT_BYTES = 4


def pack(floats: Iterable[float], *, where: str = "vector") -> bytes:
    """
    Raises:
        InvalidValue: it has no numbers, or one that no 32 bits hold.
    """
    try:
        numbers = array("f", floats)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValue(f"{where} is no vector: {error}. Nothing was written. It is a list of numbers.") from None
    if sys.byteorder == "big":
        numbers.byteswap()
    packed = numbers.tobytes()
    check(packed, where=where)
    return packed


def unpack(packed: bytes) -> array[float]:
    numbers = array("f", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def check(packed: bytes, *, where: str = "vector") -> None:
    """
    Raises:
        InvalidValue: these bytes are no vector.
    """
    if not packed or len(packed) % FLOAT_BYTES or not all(map(isfinite, unpack(packed))):
        raise InvalidValue(f"{where} is no vector: it is one 32-bit float or more, all of them finite. Nothing was written.")
