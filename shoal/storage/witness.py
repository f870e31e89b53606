"""A record of what is durable, kept beside the database, so that a lost file is noticed.

RocksDB opens without an error if its write-ahead log was deleted or cut below
the fsynced part, or if the database is an older copy. The witness names the
highest sequence number and the newest log known to be durable; a database that
holds less is rejected.

Laws:
- It never claims more than was fsynced: a power cut cannot make it wrong.
- Two slots are written in turn, each in a block of its own: a torn write
  leaves the other, older slot.

A slot, big-endian: magic₈ generation₈ sequence₈ wal₈ crc32₄.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple

_MAGIC = b"SHOALWIT"
_SLOT = struct.Struct(">8sQQQ")
_CHECKSUM = struct.Struct(">I")
_SLOT_BYTES = 4096  # A torn write to one block does not damage another.

# Overwriting within the file changes no metadata that matters, so that fdatasync is enough where there is one.
_sync_data = getattr(os, "fdatasync", os.fsync)


class Witnessed(NamedTuple):
    """RocksDB's sequence number, and the number of its newest log file; both only grow."""

    sequence: int = 0
    wal: int = 0


class Witness:
    """The open file. `latest` is its content."""

    __slots__ = ("_descriptor", "_generation", "latest")

    def __init__(self, descriptor: int, generation: int, latest: Witnessed) -> None:
        self._descriptor: int | None = descriptor
        self._generation = generation
        self.latest = latest

    @classmethod
    def open(cls, path: Path) -> Witness:
        """Read the newest slot whose checksum is right.

        Raises:
            StoreCorrupt: the file is missing, or no slot passes its checksum; nothing was written.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _damaged(path, "is missing") from None
        slots = [_unpack(os.pread(descriptor, _SLOT.size + _CHECKSUM.size, at)) for at in (0, _SLOT_BYTES)]
        newest = max((slot for slot in slots if slot is not None), default=None)
        if newest is None:
            os.close(descriptor)
            raise _damaged(path, "does not pass its checksum")
        return cls(descriptor, *newest)

    def record(self, witnessed: Witnessed) -> None:
        """Make `witnessed` durable. Blocks for one fsync.

        Raises:
            OSError: the record may or may not be on disk.
        """
        assert self._descriptor is not None, "the witness is closed"
        generation = self._generation + 1
        os.pwrite(self._descriptor, _pack(generation, witnessed), generation % 2 * _SLOT_BYTES)
        _sync_data(self._descriptor)
        self._generation, self.latest = generation, witnessed

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def blank() -> bytes:
    """The whole file of a store in which nothing is durable yet."""
    return _pack(0, Witnessed()).ljust(_SLOT_BYTES, b"\0") + bytes(_SLOT_BYTES)


def _pack(generation: int, witnessed: Witnessed) -> bytes:
    packed = _SLOT.pack(_MAGIC, generation, *witnessed)
    return packed + _CHECKSUM.pack(zlib.crc32(packed))


def _unpack(packed: bytes) -> tuple[int, Witnessed] | None:
    body, checksum = packed[: _SLOT.size], packed[_SLOT.size :]
    if len(packed) != _SLOT.size + _CHECKSUM.size or checksum != _CHECKSUM.pack(zlib.crc32(body)):
        return None
    magic, generation, sequence, wal = _SLOT.unpack(body)
    return (generation, Witnessed(sequence, wal)) if magic == _MAGIC else None


def _damaged(path: Path, how: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} {how}, so Shoal cannot tell whether acknowledged writes are missing. Nothing was written. "
        "Move the directory aside, then restore a backup or rebuild it from the other nodes."
    )
