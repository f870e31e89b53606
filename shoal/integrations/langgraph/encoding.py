"""Checkpoints and writes as bytes, and back: the saver's serialiser, once for each value.

Laws:
- A value is stored as the serialiser packs it, unchanged. If a list grew, the bytes
  grow at their end, so that the store writes only new data. A value that is not msgpack
  (bytes, None, ciphertext) is one extension value of a code that neither the serialiser
  nor Shoal uses, with the type's name, so that no value of a graph can be mistaken for it. So is
  one that is a file.
- Only the serialiser decodes values, with its own allow-list.
- Bytes that the saver did not write are read or refused (`InvalidValue`): no other error leaves this module.
- A checkpoint's metadata has LangGraph's metadata as plain fields, for Shoal's log and filters,
  if they are plain; beside them, under "langgraph", it has the parts that only LangGraph needs.

LangGraph's ids as Shoal's names, and back.

Laws, beside those of `escaping`:
- A checkpoint's label is its namespace, `/`, its id, with no other `/` in the first part: a
  namespace's labels are those with one prefix, and lie in the order of their ids (those
  of LangGraph sort by time).

The saver's serialiser: LangGraph's, without the power to run code.

Laws:
- A saver decodes the kinds that it writes, null, bytes, bytearrays and msgpack, and no others: never pickle, and never
  the JSON of LangChain's objects. Anybody who may write to a thread chooses its bytes.
- Of the types that msgpack names, it makes LangGraph's safe ones and those that the caller allows. Another is an error that
  names it, and nothing is imported. Left as a dict, as LangGraph leaves it, it would fail later, in the graph.
- A serialiser that encrypts decodes ciphertext by its own rules, and what is not encrypted by these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from shoal import values
from shoal.errors import InvalidInput, InvalidValue
from shoal.integrations import contents
from shoal.integrations.contents import escaped, unescaped, unsafe
from shoal.records import NamedTuple
from shoal.values.codec import LANGGRAPH_FILE, LANGGRAPH_TYPED
from shoal.values.registry import FileRef, unpack_reference

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
    return typed(*serde.dumps_typed(value))


def typed(kind: str, data: bytes) -> bytes:
    """A channel's value, of what the serialiser made of it."""
    if kind == "msgpack" and not _is_typed(data):
        return data
    return _encode(msgspec.msgpack.Ext(TYPED_CODE, _encode((kind, bytes(data)))))


def referring(ref: FileRef) -> bytes:
    """A channel whose value is a file, packed: a reference stands there."""
    return _encode(msgspec.msgpack.Ext(TYPED_CODE, _encode((LANGGRAPH_FILE, values.encode(ref)))))


@_refusing
def reference_of(packed: bytes) -> FileRef | None:
    """The reference of `referring`; None for a value."""
    if not _is_typed(packed):
        return None
    kind, data = _decode_typed(msgspec.msgpack.decode(packed, type=msgspec.msgpack.Ext).data)
    return unpack_reference(data) if kind == LANGGRAPH_FILE else None


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


def written(task_path: str, channel: str, ref: FileRef) -> bytes:
    """A pending write whose value is a file, as the value of a note."""
    return _encode(Write(task_path, channel, LANGGRAPH_FILE, values.encode(ref)))


@_refusing
def unpack_write(packed: bytes) -> Write:
    """The write of `pack_write`; its value is still packed."""
    return _decode_write(packed)


@_refusing
def reference_in(write: Write) -> FileRef | None:
    """The file that is the value of a pending write; None if it has its value."""
    return unpack_reference(write.value) if write.kind == LANGGRAPH_FILE else None


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


_UNSAFE = unsafe()
_UNSAFE_OR_SLASH = unsafe("/")
_ROOT_BRANCH = "main"
CALL = ":"
"""The text before the id of a call in LangGraph's namespaces: `node:id|inner:id`. No name of a node holds it."""


class Place(NamedTuple):
    """A namespace of a LangGraph thread."""

    thread_id: str
    namespace: str


@lru_cache(maxsize=4096)
def name_of(id: str) -> str:
    """The name of a thread or channel."""
    return contents.name_of(id, _UNSAFE)


def id_of(name: str) -> str:
    """The id of `name_of`."""
    return contents.id_of(name)


@lru_cache(maxsize=4096)
def branch_of(namespace: str) -> str:
    """The branch that a namespace's checkpoints name. The root's is Shoal's default branch, so that commands show it.

    Of other namespaces there is no branch, unless an earlier version made it.
    """
    if not namespace:
        return _ROOT_BRANCH
    return f"%{namespace}" if namespace == _ROOT_BRANCH else name_of(namespace)


@lru_cache(maxsize=4096)
def prefix_of(namespace: str) -> str:
    """The prefix of the labels of a namespace's checkpoints."""
    return escaped(namespace, _UNSAFE_OR_SLASH) + "/"


def label_of(namespace: str, checkpoint_id: str) -> str:
    """The label of a checkpoint."""
    return prefix_of(namespace) + escaped(checkpoint_id, _UNSAFE)


def split_label(label: str) -> tuple[str, str] | None:
    """The namespace and the checkpoint id; None for a label that the saver did not write."""
    namespace, slash, id = label.partition("/")
    return (unescaped(namespace), unescaped(id)) if slash else None


AllowedTypes = Iterable[tuple[str, ...] | type] | Literal[True] | None
_WRITTEN = frozenset({"null", "bytes", "bytearray", "msgpack"})


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serialiser, which makes only types that are safe or allowed.

    Args:
        allowed: classes, or their modules and names. True allows all, which lets whoever writes to a thread run code here.
    """

    def __init__(self, allowed: AllowedTypes = None) -> None:
        super().__init__(allowed_msgpack_modules=allowed)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value of `dumps_typed`.

        Raises:
            InvalidValue: the bytes are none that this serialiser writes, or hold a type that it may not make.
        """
        kind = data[0]
        if kind not in _WRITTEN:
            raise InvalidValue(
                f"a stored value is of the kind {kind!r:.40}, which this saver never writes and does not decode: decoding "
                "it can run code. If you wrote it and trust all who may write here, pass a serialiser that decodes it: serde=."
            )
        blocked = _blocked.types = list[str]()
        try:
            value = super().loads_typed(data)
        except Exception as failure:  # Of the engine and of constructors: hostile bytes choose which.
            raise InvalidValue(f"a stored value cannot be decoded: {str(failure) or type(failure).__name__:.200}.") from failure
        finally:
            _blocked.types = None
        if blocked:
            raise InvalidValue(_refusal(blocked))
        return value


class SealedSerializer(EncryptedSerializer):
    """A serialiser that encrypts, as given; what was stored without encryption is decoded strictly."""

    def __init__(self, given: EncryptedSerializer, plain: StrictSerializer) -> None:
        super().__init__(given.cipher, given.serde)
        self._given = given
        self._plain = plain

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """As the given serialiser."""
        return self._given.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """As the given serialiser, if it is ciphertext. Raises as `StrictSerializer.loads_typed` otherwise."""
        return self._given.loads_typed(data) if "+" in data[0] else self._plain.loads_typed(data)


def serialiser(given: SerializerProtocol | None, allowed: AllowedTypes) -> SerializerProtocol:
    """The serialiser of a saver that got these arguments.

    Raises:
        InvalidInput: types are allowed of a serialiser that has its own rule.
    """
    if given is None:
        return StrictSerializer(allowed)
    if isinstance(given, EncryptedSerializer):
        return SealedSerializer(given, StrictSerializer(allowed))
    if allowed is not None:
        raise InvalidInput(
            "allowed_msgpack_modules= is for the saver's own serialiser, and serde= replaces that. "
            "Nothing was opened. Allow the types where you make the serialiser: JsonPlusSerializer(allowed_msgpack_modules=…)."
        )
    return given


def _refusal(blocked: list[str]) -> str:
    shown = ", ".join(dict.fromkeys(blocked))
    first = blocked[0].rsplit(".", 1)
    return (
        f"a stored value holds a type that this saver may not make: {shown:.200}. The value stays as it is. If it is a type of "
        f"your graph, allow it where you open the saver: allowed_msgpack_modules=[({first[0]!r:.80}, {first[-1]!r:.80})]."
    )


class _Blocked(threading.local):
    """The types that were not made since the list was put there, in this thread."""

    types: list[str] | None = None


_blocked = _Blocked()


def _note(event: SerdeEvent) -> None:
    if _blocked.types is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        _blocked.types.append(f"{event['module']}.{event['name']}")


# LangGraph tells in events what it did not make, also inside of other values, where no hook of a subclass comes.
register_serde_event_listener(_note)
