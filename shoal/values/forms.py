"""The forms of values: built-in extension types, vectors as bytes, bytes that sort as values do, and the canonical form.

How each built-in extension type, NumPy's among them, becomes a plain value, and back.

NumPy itself is imported only once a value needs it.

Laws:
- A form's code is on disk and on the wire, and is never used for anything
  else; its tag is its name in JSON. `dump` returns a value of native types (or of
  other forms). `load` takes one back, and raises if `dump` could not have made it.
- Only types of fixed size without references are supported: booleans, integers,
  floats, complex numbers, datetimes, and text of fixed width. Objects, records and
  platform-dependent floats are refused. Arrays are written in C order; byte order
  is kept. A subclass of `ndarray` (masked, matrix) is not an array.

Vectors as bytes: the 32-bit floats of an embedding, little-endian, one after another.

Law: all of them are finite, and there is one at least.

Packed values as bytes that sort as the values do.

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

import pathlib
import re
import struct
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from math import isfinite, isnan
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack  # type: ignore[import-untyped]
import msgspec

from shoal.errors import InvalidValue
from shoal.records import NamedTuple

# Each level may take 40 KiB of C stack in msgpack; with this bound the total is well below the smallest thread's stack.
NESTED_MAX = 32


class Form(NamedTuple):
    """An extension type: its code in msgpack, its tag in JSON, and its conversions."""

    code: int
    tag: str
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


OBJECT_CODE = 1  # [registered name, the result of its `pack`], and the version of its class unless it is 1
SET_CODE = 3
FROZENSET_CODE = 4

_Moment = TypeVar("_Moment", datetime, time)


def _of(kind: type, plain: Any) -> Any:
    if type(plain) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(plain).__name__}")
    return plain


def _moment_text(value: datetime | time) -> str:
    """ISO 8601, the zone's name as in RFC 9557: `2026-10-25T02:30:00+01:00[Europe/Paris][fold=1]`."""
    return value.isoformat() + _zone_text(value.tzinfo) + ("[fold=1]" if value.fold else "")


def _zone_text(zone: tzinfo | None) -> str:
    if type(zone) is timezone and zone.utcoffset(None).microseconds:
        # CPython reads `+00:00:00.000001` as UTC.
        raise ValueError("its offset from UTC has fractions of a second, which readers of ISO 8601 drop; round it")
    if zone is None or type(zone) is timezone:
        return ""  # The offset, if any, is in the ISO text.
    if type(zone) is ZoneInfo and zone.key:
        return f"[{zone.key}]"
    raise ValueError(
        f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}, which has no name by which other processes "
        "could find it; use zoneinfo.ZoneInfo(name) or datetime.timezone"
    )


_MOMENT = re.compile(r"([^\[]+)(?:\[([^\[\]=]+)\])?(\[fold=1\])?")


def _load_moment(kind: type[_Moment], plain: Any) -> _Moment:
    parts = _MOMENT.fullmatch(_of(str, plain))
    if parts is None:
        raise ValueError(f"{plain[:80]!r} is not a {kind.__name__}")
    moment = kind.fromisoformat(parts[1])
    # With a zone's name the local time counts, not the offset: rules may have changed since it was written.
    zone = ZoneInfo(parts[2]) if parts[2] else moment.tzinfo
    return moment.replace(tzinfo=zone, fold=1 if parts[3] else 0)


def _load_timedelta(plain: Any) -> timedelta:
    days, seconds, microseconds = (_of(int, part) for part in _of(list, plain))
    return timedelta(days, seconds, microseconds)


def _load_complex(plain: Any) -> complex:
    real, imaginary = (_of(float, part) for part in _of(list, plain))
    return complex(real, imaginary)


_FACTORIES: dict[str, type] = {cls.__name__: cls for cls in (list, dict, set, int, float, str, bool, tuple, frozenset, bytes)}


def _dump_defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name) is not factory:
        raise ValueError("its default_factory is a function of the program, which bytes cannot hold; store dict(value)")
    return [None if factory is None else name, dict(value)]


def _load_defaultdict(plain: Any) -> defaultdict[Any, Any]:
    name, items = _of(list, plain)
    return defaultdict(None if name is None else _FACTORIES[name], _of(dict, items))


def _load_deque(plain: Any) -> deque[Any]:
    items, length_max = _of(list, plain)
    return deque(_of(list, items), length_max)


_PATHS: dict[str, type[pathlib.PurePath]] = {
    cls.__name__: cls for cls in (pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}


def _load_path(plain: Any) -> pathlib.PurePath:
    name, text = _of(list, plain)
    return _PATHS[name](_of(str, text))


_PATH = Form(19, "path", lambda value: [type(value).__name__, str(value)], _load_path)


def _dump_int(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


BY_CLASS: dict[type, Form] = {
    tuple: Form(2, "tuple", list, lambda plain: tuple(_of(list, plain))),
    set: Form(SET_CODE, "set", list, lambda plain: set(_of(list, plain))),
    frozenset: Form(FROZENSET_CODE, "frozenset", list, lambda plain: frozenset(_of(list, plain))),
    int: Form(5, "int", _dump_int, lambda plain: int.from_bytes(_of(bytes, plain), "big", signed=True)),
    complex: Form(6, "complex", lambda value: [value.real, value.imag], _load_complex),
    datetime: Form(7, "datetime", _moment_text, lambda plain: _load_moment(datetime, plain)),
    date: Form(8, "date", date.isoformat, lambda plain: date.fromisoformat(_of(str, plain))),
    time: Form(9, "time", _moment_text, lambda plain: _load_moment(time, plain)),
    timedelta: Form(10, "timedelta", lambda value: [value.days, value.seconds, value.microseconds], _load_timedelta),
    Decimal: Form(11, "decimal", str, lambda plain: Decimal(_of(str, plain))),
    UUID: Form(12, "uuid", str, lambda plain: UUID(_of(str, plain))),
    # 13 and 14 are NumPy's: `arrays`.
    OrderedDict: Form(15, "ordereddict", lambda value: [[key, item] for key, item in value.items()], OrderedDict),
    defaultdict: Form(16, "defaultdict", _dump_defaultdict, _load_defaultdict),
    deque: Form(17, "deque", lambda value: [list(value), value.maxlen], _load_deque),
    Counter: Form(18, "counter", dict, lambda plain: Counter(_of(dict, plain))),
    **dict.fromkeys(_PATHS.values(), _PATH),
}


FLOAT_BYTES = 4
VECTOR_DIMS_MAX = 4096  # Numbers of one vector.


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


_ALLOWED = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[mM]8(\[\w+\])?|[SU][1-9]\d{0,8})")


def form_of(cls: type) -> Form | None:
    """The form for `cls` if it is NumPy's. If NumPy is not loaded in this process, no class is."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray:
        return ARRAY
    return SCALAR if issubclass(cls, numpy.generic) else None


def _checked_dtype(text: Any) -> str:
    if type(text) is not str or _ALLOWED.fullmatch(text) is None:
        raise ValueError(
            f"NumPy type {text!r} is not supported: only booleans, numbers of up to 64 bits (complex 128), datetimes and "
            "fixed-width text are; convert it, for instance with .astype(float) or .tolist()"
        )
    return text


def _dump_array(value: Any) -> list[Any]:
    return [_checked_dtype(value.dtype.str), list(value.shape), value.tobytes()]


def _dump_scalar(value: Any) -> list[Any]:
    return [_checked_dtype(value.dtype.str), value.tobytes()]


def _load_array(plain: Any) -> Any:
    text, shape, data = plain
    return _read(text, tuple(shape), data).copy()  # The copy is writable, and does not pin the message it came in.


def _load_scalar(plain: Any) -> Any:
    text, data = plain
    return _read(text, (1,), data)[0]


def _read(text: Any, shape: tuple[int, ...], data: Any) -> Any:
    try:
        import numpy
    except ImportError:
        raise ValueError(
            "the value holds a NumPy array, and NumPy is not installed; install it in a clone of Shoal: pip install '.[numpy]'"
        ) from None
    array = numpy.ndarray(shape, numpy.dtype(_checked_dtype(text)), buffer=data)
    if array.nbytes != len(data):
        raise ValueError(f"an array of {array.nbytes} bytes came with {len(data)}")
    return array


ARRAY = Form(13, "ndarray", _dump_array, _load_array)
SCALAR = Form(14, "numpy", _dump_scalar, _load_scalar)


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


_KNOWN = {OBJECT_CODE, ARRAY.code, SCALAR.code, *(form.code for form in BY_CLASS.values())}
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
