"""The bytes beside a change, which names them by hash and does not hold them.

They travel beside the operation, are stored once, as rows, and are read from there again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from shoal.errors import BadOperation
from shoal.records import NamedTuple


class Blobs(NamedTuple):
    """The blobs of one change: a record, an event or an update; and a checkpoint's new chunks by their SHA-256."""

    content: bytes = b""
    chunks: Mapping[bytes, bytes] = {}
    erased: bool = False  # Missing blobs were erased. If the content is missing too, all were, and the change makes nothing.
    decoded: Any = None  # The content, if it was decoded already.


NOTHING = Blobs()
ERASED = Blobs(erased=True)


def is_gone(beside: Blobs) -> bool:
    """Whether all blobs of the change were erased."""
    return beside.erased and not beside.content


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    content: bytes
    chunks: list[bytes]
    erased: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Packed])


def pack(attached: Iterable[Blobs]) -> bytes:
    """The bytes that go beside an operation: per mutation its content, its chunks without hashes, and if some were erased."""
    return _encoder.encode([_Packed(beside.content, list(beside.chunks.values()), beside.erased) for beside in attached])


def unpack(packed: bytes) -> list[Blobs]:
    """The blobs of each mutation. The key of a chunk is computed from its bytes, so a forged one is not found.

    Raises:
        BadOperation: `pack` did not make these bytes.
    """
    try:
        unpacked = _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors too.
        raise BadOperation(f"the bytes beside it cannot be read ({error})", reason="content") from None
    return [
        Blobs(packed.content, {sha256(piece).digest(): piece for piece in packed.chunks}, packed.erased) for packed in unpacked
    ]
