"""Encode, decode and check: the hot path between Python values and msgpack bytes.

Law: a packer is used by one call at a time. Each nesting level of extension
values has its own packers, taken from a list and put back, so that threads and
the recursion from a packer into itself never share one; the number of levels
bounds the recursion. The path to an offending part is searched only on failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec

from shoal.errors import InvalidValue, TooLarge
from shoal.values import arrays, registry
from shoal.values.forms import BY_CLASS, FROZENSET_CODE, NESTED_MAX, OBJECT_CODE, SET_CODE
from shoal.values.location import LISTS_DEPTH_MAX, explain

VALUE_BYTES_MAX = 64 * 1024 * 1024

# msgpack packs by recursion, 1,024 lists deep in each extension value. Eight times that fit any thread's stack,
# `NESTED_MAX` times do not (8 MiB overflow at 24,000 lists): from there on the lists are counted.
_COUNTED_FROM = 8
_COUNTED_LISTS_MAX = 64

# A packer keeps its buffer. One whose buffer grew beyond this is dropped.
_KEPT_BYTES_MAX = 1024 * 1024

_LOADERS = {form.code: form.load for form in [*BY_CLASS.values(), arrays.ARRAY, arrays.SCALAR]}
_NO_CONTAINERS = bytes(byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF))
_skim = msgspec.msgpack.Decoder(msgspec.Raw).decode


def encode(value: object, *, where: str = "value") -> bytes:
    """`value` as msgpack. `where` names it in errors.

    Raises:
        InvalidValue: a part of it cannot be serialised; the message has the part's path and the remedy.
        TooLarge: it takes more than `VALUE_BYTES_MAX`.
    """
    try:
        packed = _LEVELS[0].pack(value)
    except MemoryError:
        raise
    except Exception as failure:
        # Without the traceback: it has a frame for every level of the value.
        raise explain(value, where, failure=failure, pack=_LEVELS[0].pack) from failure.with_traceback(None)
    if len(packed) > VALUE_BYTES_MAX:
        raise TooLarge(
            f"{where} takes {len(packed)} bytes; one value may take {VALUE_BYTES_MAX}, which no setting changes, and one "
            "request `request_bytes_max`, 16 MiB by default. Nothing was written. Split it over several writes, or keep it "
            'elsewhere and store where it is: docs/CONFIGURATION.md, "How large a value may be".'
        )
    return packed


def decode(packed: bytes) -> Any:
    """The value that `encode` was given. A standard msgpack timestamp becomes an aware datetime.

    Raises:
        InvalidValue: `packed` is not a value, or holds a class that is not registered.
        TooLarge: it is longer than `VALUE_BYTES_MAX`.
    """
    _check_size(packed)
    try:
        return _LEVELS[0].unpack(packed)
    except (InvalidValue, MemoryError):
        raise
    except Exception as failure:  # Registered classes may raise anything.
        raise InvalidValue(
            f"this process cannot read the bytes as a value: {failure or type(failure).__name__}. "
            "If they hold objects, check that the classes still accept their stored forms."
        ) from failure


def check(packed: bytes) -> None:
    """Return if `packed` is exactly one msgpack value. Builds nothing; does not look into extension values or text.

    Raises:
        InvalidValue: it is not.
        TooLarge: it is longer than `VALUE_BYTES_MAX`.
    """
    if len(packed) > VALUE_BYTES_MAX:
        _check_size(packed)
    try:
        _skim(packed)
    except (RecursionError, msgspec.MsgspecError):
        _check_structure(packed)
    # A value with fewer bytes that can begin a list or a map cannot nest deeper.
    if len(packed) > LISTS_DEPTH_MAX and len(packed.translate(None, _NO_CONTAINERS)) > LISTS_DEPTH_MAX:
        _check_depth(packed)


def _check_size(packed: bytes) -> None:
    if len(packed) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value has {len(packed)} bytes; at most {VALUE_BYTES_MAX} are allowed. Nothing was written.")


def _check_structure(packed: bytes) -> None:
    try:
        _skim(packed)
    except RecursionError:  # At about 900 lists on Python 3.11, at 10,000 on 3.13: no bound to rely on.
        _check_depth(packed)
    except msgspec.MsgspecError as error:
        raise InvalidValue(f"the bytes are not one msgpack value: {error}. Nothing was written.") from None


def _check_depth(packed: bytes) -> None:
    """Walk without recursion: slower, with msgpack's bound on every interpreter, but it misreads an extension of 4 GiB."""
    walker = msgpack.Unpacker(max_buffer_size=max(1, len(packed)))
    walker.feed(packed)
    try:
        walker.skip()
    except Exception as error:
        raise InvalidValue(
            f"the bytes are not one msgpack value, or nest more than {LISTS_DEPTH_MAX} deep: {error!r}. Nothing was written."
        ) from None
    if walker.tell() != len(packed):
        raise InvalidValue(f"{len(packed) - walker.tell()} bytes follow the msgpack value. Nothing was written.")


def _nests_deeper(value: Any, bound: int) -> bool:
    walks: list[Iterator[Any]] = [iter([value])]
    while 0 < len(walks) <= bound + 1:
        for item in walks[-1]:
            if type(item) in (list, dict):
                walks.append(iter(item if type(item) is list else item.values()))
                break
        else:
            walks.pop()
    return bool(walks)


class _Level:
    """Packs and unpacks the content of `depth` nested extension values."""

    __slots__ = ("_depth", "_idle")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._idle: list[msgpack.Packer] = []

    def pack(self, value: Any) -> bytes:
        if self._depth >= _COUNTED_FROM and _nests_deeper(value, _COUNTED_LISTS_MAX):
            raise ValueError(
                f"more than {_COUNTED_LISTS_MAX} lists nest inside {self._depth} tuples, sets or registered objects"
            )
        try:
            packer = self._idle.pop()
        except IndexError:
            packer = msgpack.Packer(default=self._extension, strict_types=True)
        packed: bytes = packer.pack(value)
        if len(packed) <= _KEPT_BYTES_MAX:
            self._idle.append(packer)
        return packed

    def unpack(self, packed: bytes) -> Any:
        # Check the structure first: a false length must not cause an allocation.
        _check_structure(packed)
        return msgpack.unpackb(packed, ext_hook=self._load, strict_map_key=False, timestamp=3)

    def _extension(self, value: Any) -> msgpack.ExtType:
        cls = type(value)
        form = BY_CLASS.get(cls) or arrays.form_of(cls)
        if form is not None:
            if form.code in (SET_CODE, FROZENSET_CODE):
                return msgpack.ExtType(form.code, self._inner().pack_sorted(value))
            return msgpack.ExtType(form.code, self._inner().pack(form.dump(value)))
        entry = registry.entry_of(cls)
        if entry is None:
            raise TypeError(f"{registry.default_name(cls)} is not registered")
        stored = [entry.name, entry.pack(value)] if entry.version == 1 else [entry.name, entry.pack(value), entry.version]
        return msgpack.ExtType(OBJECT_CODE, self._inner().pack(stored))

    def pack_sorted(self, items: Iterable[Any]) -> bytes:
        """An array of `items` in the order of their bytes."""
        packed = sorted(map(self.pack, items))
        return bytes(msgpack.Packer().pack_array_header(len(packed))) + b"".join(packed)

    def _load(self, code: int, packed: bytes) -> Any:
        plain = self._inner().unpack(packed)
        if code == OBJECT_CODE:
            name, packed_object, *version = plain
            return registry.entry_named(name).rebuild(packed_object, *(version or [1]))
        load = _LOADERS.get(code)
        if load is None:
            raise InvalidValue(
                f"the value holds extension type {code}, which this version does not know. Upgrade this process."
            )
        return load(plain)

    def _inner(self) -> _Level:
        if self._depth == NESTED_MAX:
            raise ValueError(f"more than {NESTED_MAX} tuples, sets or registered objects lie inside each other")
        return _LEVELS[self._depth + 1]


_LEVELS = tuple(_Level(depth) for depth in range(NESTED_MAX + 1))
