"""References to files, as values hold them.

Laws:
- A reference is found in any bytes that hold it packed, by its mark, without decoding them: so also in values that another
  framework packed, and in parts of a value.
- A text that only looks like a reference keeps a file, and never loses one.

Packed, it is an object of the registered class `shoal.file`, whose form is [SHA-256₃₂ of the content, size, name, media type].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct, structs

from shoal.errors import InvalidValue
from shoal.values.forms import OBJECT_CODE
from shoal.values.registry import register

SHA_BYTES = 32
MARK = b"\xaashoal.file\x94\xc4\x20"
"""The bytes before the hash in a packed value: the class's name, and the beginning of the form."""
_MARKED = re.compile(re.escape(MARK) + b"(.{%d})" % SHA_BYTES, re.DOTALL)
_SHA = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of a thread, as a state refers to it: by the hash of its content, whatever its name holds by now.

    It keeps the content as long as a checkpoint, an event or a step of the thread holds it.
    """

    sha256: str  # Of the whole content: 64 hex digits.
    size: int  # In bytes.
    name: str
    type: str = "application/octet-stream"  # The media type.


def mentioned(packed: bytes) -> set[bytes]:
    """The hashes of the files to which packed values refer."""
    return set(_MARKED.findall(packed)) if MARK in packed else set()


def mentioned_in(request: Struct) -> set[bytes]:
    """The hashes of the files to which the bytes in a request or a reply refer, in one pass: each write takes it."""
    found: set[bytes] = set()
    waiting: list[Any] = [request]
    for part in waiting:  # It grows meanwhile.
        kind = type(part)
        if kind in _PLAIN:
            continue
        if kind is bytes:
            found |= mentioned(part)
        elif kind is dict:
            waiting.extend(part.values())
        elif kind is list:
            waiting.extend(part)
        elif isinstance(part, Struct):
            waiting.extend(structs.astuple(part))
        elif isinstance(part, bytes):
            found |= mentioned(part)
        elif isinstance(part, Mapping):
            waiting.extend(part.values())
        elif isinstance(part, Sequence) and not isinstance(part, str):
            waiting.extend(part)
    return found


_PLAIN = frozenset({bool, float, int, str, type(None)})


def packed_marks(hashes: Iterable[bytes]) -> bytes:
    """Bytes that mention these files, and nothing else."""
    return b"".join(MARK + hash for hash in sorted(hashes))


def _pack(ref: FileRef) -> list[Any]:
    return [bytes.fromhex(ref.sha256), ref.size, ref.name, ref.type]


def _unpack(form: Any) -> FileRef:
    if not isinstance(form, list) or [type(part) for part in form] != [bytes, int, str, str] or len(form[0]) != SHA_BYTES:
        raise InvalidValue("the value holds a reference to a file that is none.")
    return FileRef(form[0].hex(), *form[1:])


register(FileRef, "shoal.file", pack=_pack, unpack=_unpack)

_decode_object = msgspec.msgpack.Decoder(tuple[str, Any]).decode
_decode_extension = msgspec.msgpack.Decoder(msgspec.msgpack.Ext).decode


def unpack_reference(packed: bytes) -> FileRef:
    """A packed reference. Unlike `decode`, it builds nothing else, whatever the bytes are.

    Raises:
        InvalidValue: they are none.
    """
    try:
        extension = _decode_extension(packed)
        name, form = _decode_object(extension.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        name, form = "", None
    return _unpack(form if name == "shoal.file" and extension.code == OBJECT_CODE else None)
