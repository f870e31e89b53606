"""Checkpoints and writes as bytes, and back: the saver's serialiser, once for each value.

Laws:
- A value is stored as the serialiser packs it, unchanged. If a list grew, the bytes
  grow at their end, so that the store writes only new data. A value that is not msgpack
  (bytes, None, ciphertext) is one extension value of a code that neither the serialiser
  nor Shoal uses, with the type's name, so that no value of a graph can be mistaken for it.
- Only the serialiser decodes values, with its own allow-list.
- Bytes that the saver did not write are read or refused (`InvalidValue`): no other error leaves this module.
- A checkpoint's metadata has LangGraph's metadata as plain fields, for Shoal's log and filters,
  if they are plain; beside them, under "langgraph", it has the parts that only LangGraph needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol

from shoal.errors import InvalidValue
from shoal.records import NamedTuple
from shoal.values.foreign import LANGGRAPH_TYPED

TYPED_CODE = LANGGRAPH_TYPED  # Neither Shoal's values nor LangGraph's serialiser use it.
_OWN_KEY = "langgraph"
_PACKED_OWN_KEY = msgspec.msgpack.encode(_OWN_KEY)
_EXTENSION_SIZES = {0xD4: 0, 0xD5: 0, 0xD6: 0, 0xD7: 0, 0xD8: 0, 0xC7: 1, 0xC8: 2, 0xC9: 4}  # First byte → length's size.
_SHORT_MAPS = [bytes([0x80 | count]) for count in range(16)]
_ENVELOPE_VERSION = 1

_encode = msgspec.msgpack.encode

P = ParamSpec("P")
T = TypeVar("T")


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """The parts of a checkpoint that only LangGraph needs."""

    version: int
    parent: str  # LangGraph's id of the parent; empty if there is none.
    kind: str  # The serialiser's type of `checkpoint`.
    checkpoint: bytes  # The checkpoint without its channels' values.
    metadata_kind: str = ""  # The serialiser's type of metadata without a plain form; empty if it has one.
    metadata: bytes = b""


class Write(msgspec.Struct, array_like=True, frozen=True):
    """A pending write, as a note's value."""

    task_path: str
    channel: str
    kind: str
    value: bytes


class Opened(NamedTuple):
    """A checkpoint's metadata, taken apart."""

    checkpoint: dict[str, Any]  # Without its channels' values.
    metadata: Any
    parent: str


_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_write = msgspec.msgpack.Decoder(Write).decode
_decode_note = msgspec.msgpack.Decoder(tuple[str, int]).decode
_decode_typed = msgspec.msgpack.Decoder(tuple[str, bytes]).decode


def _refusing(read: Callable[P, T]) -> Callable[P, T]:
    """`read`, which refuses bytes that the saver did not write with `InvalidValue`."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, RecursionError) as failure:
            name = type(failure).__name__
            raise InvalidValue(f"the bytes of a checkpoint or write are none that the saver writes: {name}.") from failure

    return reading


def pack_value(serde: SerializerProtocol, value: Any) -> bytes:
    """A channel's value, as the serialiser packs it."""
    kind, data = serde.dumps_typed(value)
    if kind == "msgpack" and not _is_typed(data):
        return data
    return _encode(msgspec.msgpack.Ext(TYPED_CODE, _encode((kind, bytes(data)))))


@_refusing
def unpack_value(serde: SerializerProtocol, packed: bytes) -> Any:
    """The value of `pack_value`."""
    if not _is_typed(packed):
        return serde.loads_typed(("msgpack", packed))
    extension = msgspec.msgpack.decode(packed, type=msgspec.msgpack.Ext)
    return serde.loads_typed(_decode_typed(extension.data))


def is_list(packed: bytes) -> bool:
    """Whether it is a packed list."""
    return 0x90 <= packed[0] <= 0x9F or packed[0] in (0xDC, 0xDD)


def added_elements(before: bytes, after: bytes) -> bytes | None:
    """The packed list of the elements that a packed list has after those of another; None if it does not begin with them."""
    if not is_list(after):
        return None
    (old, old_start), (new, new_start) = _read_list_header(before), _read_list_header(after)
    if new < old or not after.startswith(memoryview(before)[old_start:], new_start):
        return None
    return _list_header(new - old) + after[new_start + len(before) - old_start :]


def _read_list_header(packed: bytes) -> tuple[int, int]:
    """The number of elements, and the offset of the first one."""
    size = {0xDC: 2, 0xDD: 4}.get(packed[0], 0)
    return (int.from_bytes(packed[1 : 1 + size], "big"), 1 + size) if size else (packed[0] & 0x0F, 1)


def _list_header(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 65536 else b"\xdd" + count.to_bytes(4, "big")


def _is_typed(packed: bytes) -> bool:
    size = _EXTENSION_SIZES.get(packed[0]) if packed else None
    return size is not None and packed[1 + size : 2 + size] == bytes([TYPED_CODE])


def pack_metadata(serde: SerializerProtocol, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], parent: str) -> bytes:
    """The metadata of a Shoal checkpoint; `checkpoint` must come without its channels' values."""
    kind, packed = serde.dumps_typed(checkpoint)
    metadata_kind, data = serde.dumps_typed(metadata)
    count = len(metadata)
    header = _map_header(count)
    if metadata_kind == "msgpack" and _OWN_KEY not in metadata and data.startswith(header) and _is_plain(data):
        own = _encode(_encode(Envelope(_ENVELOPE_VERSION, parent, kind, bytes(packed))))
        return _map_header(count + 1) + _PACKED_OWN_KEY + own + data[len(header) :]
    own = _encode(_encode(Envelope(_ENVELOPE_VERSION, parent, kind, bytes(packed), metadata_kind, bytes(data))))
    return _map_header(1) + _PACKED_OWN_KEY + own


@_refusing
def unpack_metadata(serde: SerializerProtocol, packed: bytes) -> Opened | None:
    """The parts of `pack_metadata`; None for a checkpoint that the saver did not write.

    Raises:
        InvalidValue: it was written by a newer version.
    """
    count, at = _read_map_header(packed)
    if not packed.startswith(_PACKED_OWN_KEY, at):
        return None
    at += len(_PACKED_OWN_KEY)
    start, end = _read_bin(packed, at)
    envelope = _decode_envelope(packed[start:end])
    if envelope.version != _ENVELOPE_VERSION:
        raise InvalidValue(f"the checkpoint was saved in form {envelope.version} of another version. Upgrade this process.")
    if envelope.metadata_kind:
        metadata = serde.loads_typed((envelope.metadata_kind, envelope.metadata))
    else:
        metadata = serde.loads_typed(("msgpack", _map_header(count - 1) + packed[end:]))
    return Opened(serde.loads_typed((envelope.kind, envelope.checkpoint)), metadata, envelope.parent)


def pack_write(serde: SerializerProtocol, task_path: str, channel: str, value: Any) -> bytes:
    """A pending write, as the value of a note."""
    kind, data = serde.dumps_typed(value)
    return _encode(Write(task_path, channel, kind, bytes(data)))


@_refusing
def unpack_write(packed: bytes) -> Write:
    """The write of `pack_write`; its value is still packed."""
    return _decode_write(packed)


def pack_note_name(task_id: str, index: int) -> bytes:
    """The name of a pending write's note, unique among the writes of a checkpoint."""
    return _encode((task_id, index))


@_refusing
def unpack_note_name(packed: bytes) -> tuple[str, int]:
    """The task id and the index of `pack_note_name`."""
    return _decode_note(packed)


def _refused(code: int, data: memoryview) -> None:
    raise ValueError("not plain")


_decode_plain = msgspec.msgpack.Decoder(ext_hook=_refused).decode


def _is_plain(packed: bytes) -> bool:
    """Whether it has no extension values, whose codes mean something else in Shoal."""
    try:
        _decode_plain(packed)
    except ValueError:  # msgspec's own are ValueErrors too.
        return False
    return True


def _map_header(count: int) -> bytes:
    if count < 16:
        return _SHORT_MAPS[count]
    return b"\xde" + count.to_bytes(2, "big") if count < 65536 else b"\xdf" + count.to_bytes(4, "big")


def _read_map_header(packed: bytes) -> tuple[int, int]:
    """The number of entries, and the offset of the first one."""
    size = {0xDE: 2, 0xDF: 4}.get(packed[0], 0)
    return (int.from_bytes(packed[1 : 1 + size], "big"), 1 + size) if size else (packed[0] & 0x0F, 1)


def _read_bin(packed: bytes, at: int) -> tuple[int, int]:
    size = {0xC4: 1, 0xC5: 2, 0xC6: 4}[packed[at]]
    start = at + 1 + size
    return start, start + int.from_bytes(packed[at + 1 : start], "big")
