"""One spelling of a packed value: values that are equal, type by type, have equal bytes, whoever packed them.

Law: maps are in the order of their packed keys, sets in that of their packed items, and
numbers and lengths have the shortest form. What an extension of an unknown code holds stays as it is.
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
    """`packed`, which `check` has passed, in its one spelling.

    Raises:
        InvalidValue: it nests too deep, or holds text that is no Unicode.
    """
    try:
        return _spelled(_unpacked(packed), NESTED_MAX)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InvalidValue(
            f"the value has no spelling that it could be compared by: {error or type(error).__name__}. Nothing was written."
        ) from None


class _Map:
    """As it was packed: its keys may be none of a Python dict's."""

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
