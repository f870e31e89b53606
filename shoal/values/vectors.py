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
    """The bytes of a vector.

    Raises:
        InvalidValue: it has no numbers, or one that does not fit 32 bits.
    """
    try:
        numbers = array("f", floats)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValue(f"{where} is no vector: {error}. Nothing was written. A vector is a list of numbers.") from None
    if sys.byteorder == "big":
        numbers.byteswap()
    packed = numbers.tobytes()
    check(packed, where=where)
    return packed


def unpack(packed: bytes) -> array[float]:
    """The numbers of a packed vector."""
    numbers = array("f", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def check(packed: bytes, *, where: str = "vector") -> None:
    """Check that the bytes are a vector. `where` names it in the error.

    Raises:
        InvalidValue: they are not.
    """
    if not packed or len(packed) % FLOAT_BYTES or not all(map(isfinite, unpack(packed))):
        raise InvalidValue(
            f"{where} is no vector: a vector has at least one 32-bit float, and all are finite. Nothing was written."
        )
