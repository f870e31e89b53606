"""A memory storage that keeps its rows encrypted, so that plans run on the real node with encryption at rest.

Law: whoever reads it, be it the node or a checker, sees plain rows; what a crash, a copy or a disk that is set back
leaves is sealed rows, and the keys as their file had them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Literal

from shoal.errors import StorageFull
from shoal.storage.encrypted.keyring import Keyring, KeysInMemory, LocalKeys
from shoal.storage.encrypted.rows import RowCipher
from shoal.storage.encrypted.storage import EncryptedSnapshot, EncryptedStorage
from shoal.storage.interface import MemorySnapshot, MemoryStorage
from simulation.world.disk import SimulatedDisk

_MASTER = b"the master key of all machines.."
_KEYS_MAX = 10_000
_ORDER_ROWS_MAX = 64  # Few, so that groups are also sorted in several steps.


class SealedMemory(MemoryStorage):
    """See `MemoryStorage`; `sealed` is what is between it and its rows."""

    def __init__(
        self, below: MemoryStorage | None = None, keys: bytes | None = None, random: Random | None = None, now_ms: int = 0
    ) -> None:
        self.below = below or MemoryStorage()
        self._random = random or Random(0)
        self._home = KeysInMemory(keys)
        self.now_ms = now_ms
        entropy = self._random.randbytes
        keyring = Keyring(
            self._home, LocalKeys([_MASTER], entropy), entropy=entropy, now_ms=lambda: self.now_ms, keys_max=_KEYS_MAX
        )
        self.sealed = EncryptedStorage(self.below, keyring, entropy=entropy, order_rows_max=_ORDER_ROWS_MAX)

    @property
    def identity(self) -> bytes:
        return self.below.identity

    @identity.setter
    def identity(self, identity: bytes) -> None:
        self.below.identity = identity

    @property
    def failed(self) -> str | None:
        return self.below.failed

    @failed.setter
    def failed(self, why: str | None) -> None:
        self.below.failed = why

    def get(self, key: bytes, /) -> bytes | None:
        return self.sealed.get(key)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self.sealed.scan(start, stop, reverse=reverse, limit=limit)

    def snapshot(self) -> MemorySnapshot:
        return _Shown(self.sealed.snapshot())

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        return self.sealed.write(rows, ranges)

    def sync(self) -> int:
        return self.sealed.sync()

    def bytes_on_disk(self) -> int:
        return self.below.bytes_on_disk()

    def bytes_free(self) -> int:
        return self.below.bytes_free()

    def close(self) -> None:
        self.sealed.close()

    def fail_next(self, operation: Literal["write", "sync"], /) -> None:
        self.below.fail_next(operation)

    def alter(self, key: bytes, value: bytes, /) -> None:
        """As of a memory storage: no checksum tells. Whoever does this has the keys."""
        scratch = MemoryStorage()
        altered = EncryptedStorage(scratch, self.sealed.keyring, entropy=self._random.randbytes, order_rows_max=1)
        altered.write({key: value})
        altered.hand_over()
        self._hand_over()
        for place, row in scratch.scan(b"", None):
            self.below.alter(place, row)
        self.sealed._recent.pop(key, None)

    def left_by_crash(self, keep: int | None = 0) -> SealedMemory:
        if keep is None:
            self._hand_over()
        return self._again(self.below.left_by_crash(keep))

    def crash(self, keep: int | None = 0) -> SealedMemory:
        return self._again(self.below.crash(keep))

    def _hand_over(self) -> None:
        with suppress(StorageFull):
            self.sealed.hand_over()

    def _again(self, below: MemoryStorage) -> SealedMemory:
        return SealedMemory(below, self._home.content, self._random, self.now_ms)


class _Shown(MemorySnapshot):
    def __init__(self, taken: EncryptedSnapshot) -> None:
        self._taken = taken

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        return self._taken.scan(start, stop)

    def close(self) -> None:
        self._taken.close()


class SealedDisk(SimulatedDisk):
    """A simulated disk that is an `EncryptedStorage` to the node, so that the node also looks after its keys."""

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        self._life.check()
        if rows and not ranges and all(self._storage.get(key) == value for key, value in rows.items()):
            return self._storage.write(rows)  # They are sealed anew: nothing that a watcher knows of.
        return super().write(rows, ranges)

    @property
    def _sealed(self) -> EncryptedStorage:
        assert isinstance(self._storage, SealedMemory)
        return self._storage.sealed

    @property
    def keyring(self) -> Keyring:
        return self._sealed.keyring

    @property
    def cipher(self) -> RowCipher:
        return self._sealed.cipher

    @property
    def inner(self) -> MemoryStorage:
        assert isinstance(self._storage, SealedMemory)
        return self._storage.below

    def hand_over(self) -> None:
        self._life.check()
        self._sealed.hand_over()

    def has_rows(self, start: bytes, stop: bytes) -> bool:
        return self._sealed.has_rows(start, stop)

    def opened(self, place: bytes, stored: bytes) -> tuple[bytes, bytes]:
        return self._sealed.opened(place, stored)

    def shows_before(self, version: int) -> bool:
        return self._sealed.shows_before(version)
