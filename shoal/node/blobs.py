"""The bytes beside a change: what it names by hash, and does not hold.

They travel beside the operation, are stored once, as rows, and are found again there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from shoal.errors import BadOperation


class Blobs(NamedTuple):
    """A record, an event or an update; and a checkpoint's new chunks."""

    content: bytes = b""
    chunks: Mapping[bytes, bytes] = {}
    erased: bool = False  # What is missing here was erased; with no content all is, and the change makes nothing.
    decoded: Any = None  # The content, where it was decoded already.


NOTHING = Blobs()
ERASED = Blobs(erased=True)


def is_gone(beside: Blobs) -> bool:
    """Whether all of it was erased."""
    return beside.erased and not beside.content


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    content: bytes
    chunks: list[bytes]
    erased: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Packed])


def pack(attached: Iterable[Blobs]) -> bytes:
    """What goes beside an operation: per mutation its content, its chunks without their hashes, and if some were erased."""
    return _encoder.encode([_Packed(beside.content, list(beside.chunks.values()), beside.erased) for beside in attached])


def unpack(packed: bytes) -> list[Blobs]:
    """Chunks are found under the hashes that they have.

    Raises:
        BadOperation: these bytes are nothing that `pack` made.
    """
    try:
        unpacked = _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors too.
        raise BadOperation(f"what came beside it cannot be read ({error})", reason="content") from None
    return [
        Blobs(packed.content, {sha256(piece).digest(): piece for piece in packed.chunks}, packed.erased) for packed in unpacked
    ]
