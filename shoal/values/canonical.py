"""The canonical form of a packed value: values that are equal, type by type, have equal bytes, whichever client packed them.

Law: maps are sorted by their packed keys, sets by their packed items, and
numbers and lengths have the shortest form. The content of an extension with an unknown code is left as it is.
"""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

from shoal.errors import InvalidValue
from shoal.values import arrays
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, NESTED_MAX, OBJECT_CODE, SET_CODE

_KNOWN = {OBJECT_CODE, arrays.ARRAY.code, arrays.SCALAR.code, *(form.code for form in BY_CLASS.values())}
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
