"""The keys of an encrypted directory over time: data keys that are replaced, and those that seal nothing any more.

Laws:
- A data key is destroyed only when no durable row is sealed under it, and no open snapshot may show one. New rows take
  another key before that is looked at, so no row can take it meanwhile.
- A space without objects loses its keys once its last row is gone. What waits for time alone leaves it early, after
  `encryption_erase_s`: operations that all owners hold leave the log, and answers of requests about nothing else leave
  their keys' rows, which stay, so that no request is applied twice.
- A data key older than `encryption_rotate_s` is replaced: its rows are sealed anew, some at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.config import KiB
from shoal.crdt.rows import successor
from shoal.encryption import KeyService
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node.collection import answers
from shoal.node.collection.truncating import Truncator
from shoal.node.context import NodeContext
from shoal.storage import keys

ENCRYPTION_LOOK_S = 10.0  # Between two looks for keys to replace or destroy; at most a fifth of `encryption_erase_s`.

if TYPE_CHECKING:
    from shoal.storage.encrypted.storage import EncryptedStorage

_ROWS_MAX = 256  # Looked at in one step,
_BYTES_MAX = 256 * KiB  # or so many bytes.
_PAUSE_S_MAX = 600.0  # Between two looks that find the same keys.
_WAITING_MAX = 1000  # Spaces that are named to people.


class KeyKeeper:
    """Looks after the keys of one encrypted directory. `destroyed` counts the data keys that it destroyed in this opening.

    `reread` gets the master key from its source again; it may block.
    """

    def __init__(
        self, context: NodeContext, storage: EncryptedStorage, *, truncator: Truncator, reread: Callable[[], KeyService]
    ) -> None:
        self._storage = storage
        self._keyring = storage.keyring
        self._commit = context.commit
        self._truncator = truncator
        self._reread = reread
        self._environment = context.environment
        self._upkeep = context.upkeep
        self._turn = asyncio.Lock()  # One change of the keys at a time.
        self._erase_ms = int(context.config.encryption_erase_s * 1000)
        self._rotate_ms = int(context.config.encryption_rotate_s * 1000)
        self._look_s = min(ENCRYPTION_LOOK_S, context.config.encryption_erase_s / 5)
        self._empty_since: dict[bytes, float] = {}  # By scope, and monotonic.
        self._task: asyncio.Task[None] | None = None
        self.destroyed = 0

    @property
    def master(self) -> str:
        """The name of the master key."""
        return self._keyring.master

    @property
    def data_keys(self) -> int:
        """The number of data keys."""
        return sum(len(each.keys) for each in self._keyring.scopes.values())

    @property
    def waiting(self) -> list[str]:
        """Spaces without objects that still have keys, the first by name; with very many spaces, as at the last look."""
        scopes = self._keyring.scopes
        found = [scope for scope in scopes if self._is_empty(scope)] if len(scopes) <= _WAITING_MAX else self._empty_since
        return [scope.decode() for scope in sorted(found) if scope > b"\0"][:_WAITING_MAX]

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._task = self._upkeep.begin(self._run(), "destruction of data keys")

    async def stop(self) -> None:
        """End the task; the next opening goes on. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s, left = self._look_s, self._left()
        while self._commit.failed is None:
            with suppress(ShoalError):  # The master key is out of reach, or storage cannot be read. A later look tries again.
                await self.look()
            before, left = left, self._left()
            # A look reads all rows. What waits for a member that is away is looked at less and less often.
            pause_s = min(2 * pause_s, max(_PAUSE_S_MAX, self._look_s)) if left and left == before else self._look_s
            await asyncio.sleep(pause_s)

    def _left(self) -> frozenset[int]:
        """The data keys that are to be destroyed."""
        scopes = self._keyring.scopes.items()
        found = [key.number for scope, each in scopes for key in (each.keys if scope in self._empty_since else each.keys[:-1])]
        return frozenset(found)

    async def look(self) -> None:
        """Replace keys that are old, seal their rows anew, and destroy keys that seal nothing.

        Raises:
            ShoalError: the keys cannot be written or wrapped, or storage rejects writes or cannot be read.
        """
        async with self._turn:
            await self._look()

    async def reload(self) -> bool:
        """Wrap the directory's key by the master key as its source gives it now. False: it is the same as before.

        Raises:
            MasterKeyWrong: the source gives no key, or it cannot wrap. Nothing has changed.
            StorageFull: the file of the keys cannot be written.
        """
        async with self._turn:
            service = await self._environment.run_blocking(self._reread)
            if service.name == self._keyring.master:
                return False
            directory = await self._environment.run_blocking(lambda: self._keyring.renewed(service))
            self._keyring.adopt(directory)
            return True

    async def _look(self) -> None:
        empty = await self._ripe()
        oldest_ms = self._environment.now_ms() - self._rotate_ms
        scopes = self._keyring.scopes
        old = [scope for scope, each in scopes.items() if each.current.made_ms < oldest_ms and scope not in empty]
        if old:
            await self._environment.run_blocking(lambda: self._keyring.rotate(old))
        retired = {key.number for scope, each in self._keyring.scopes.items() if scope not in empty for key in each.keys[:-1]}
        if retired:
            await self._destroy(retired, reseal=True)
        for scope in empty:
            await self._erase(scope)

    async def _erase(self, scope: bytes) -> None:
        """Destroy the keys of a scope without objects if no row is left in it."""
        numbers = {key.number for key in self._keyring.scopes[scope].keys}
        if await self._hurry(scope, numbers) or not await self._seal_nothing(numbers, reseal=False):
            return
        await self._environment.run_blocking(lambda: self._keyring.rotate([scope]))
        await self._destroy(numbers, reseal=False, unless_used=scope)

    async def _destroy(self, numbers: Collection[int], *, reseal: bool, unless_used: bytes | None = None) -> None:
        """Destroy data keys under which nothing is written any more, if no row is left under them.

        `unless_used`: destroy this scope's present key as well, if nothing was sealed under it.
        """
        version = self._keyring.version
        if not await self._seal_nothing(numbers, reseal=reseal):
            return
        await self._commit.wait_durable(self._commit.written)
        directory = await self._environment.run_blocking(self._keyring.renewed)
        if self._storage.shows_before(version):
            return
        gone = set(numbers)
        if unless_used is not None and unless_used not in self._storage.cipher.lives:
            gone |= {key.number for key in self._keyring.scopes[unless_used].keys}
        self._keyring.adopt(directory, destroyed=gone)  # In one step with the look at `lives`: no write can come between.
        self._storage.cipher.follow()
        self.destroyed += len(gone)

    async def _seal_nothing(self, numbers: Collection[int], *, reseal: bool) -> bool:
        """Whether these data keys seal no row; with `reseal`, the rows that they seal are sealed anew first."""
        from shoal.storage.encrypted.storage import sealed_by

        start: bytes | None = b""
        damaged = 0
        while start is not None:
            found = sealed_by(self._storage, numbers, start, rows_max=_ROWS_MAX, bytes_max=_BYTES_MAX)
            if found.rows and not reseal:
                return False
            if found.rows:
                self._commit.write(found.rows)
            damaged += found.damaged
            start = found.behind
            await self._environment.pause()
        return not damaged

    async def _hurry(self, scope: bytes, numbers: Collection[int]) -> bool:
        """Have the log and the keys of requests let go of a space. True if some of it is left."""
        from shoal.storage.encrypted.storage import sealed_by

        partitions: set[int] = set()
        latest_ms = self._environment.now_ms() - self._erase_ms
        left = False
        for table in (keys.LOG, keys.KEY):
            start: bytes | None = table
            end = successor(table) or b""
            while start is not None and start < end:
                found = sealed_by(self._storage, numbers, start, rows_max=_ROWS_MAX, bytes_max=_BYTES_MAX)
                rows = {key: value for key, value in found.rows.items() if key < end}
                if table == keys.LOG:
                    partitions.update(int.from_bytes(key[1:3], "big") for key in rows)
                elif rows:
                    erased = {key: row for key, value in rows.items() if (row := self._answered(value, scope, latest_ms))}
                    left = left or len(erased) < len(rows)
                    if erased:
                        self._commit.write(erased)
                start = found.behind
                await self._environment.pause()
        if partitions:
            await self._truncator.hurry(partitions, self._erase_ms)
        return left

    def _answered(self, stored: bytes, scope: bytes, latest_ms: int) -> bytes | None:
        """The row of a request's key without its answer; None if it must keep that."""
        try:
            row = answers.unpack_answer(stored)
        except StoreCorrupt:
            return None  # `shoal verify` reports it.
        if row.kept is None or row.wall_ms is None or row.wall_ms > latest_ms:
            return None
        if any(changed.space.encode() != scope for changed in row.kept.changed):
            return None
        return answers.without_answer(stored, row.kept)

    async def _ripe(self) -> list[bytes]:
        """The scopes without objects for a while: a space that is deleted may be filled again at once."""
        since: dict[bytes, float] = {}
        for looked, scope in enumerate(list(self._keyring.scopes)):
            if self._is_empty(scope):
                since[scope] = self._empty_since.get(scope, self._environment.monotonic())
            if looked % _ROWS_MAX == _ROWS_MAX - 1:
                await self._environment.pause()
        self._empty_since = since
        now = self._environment.monotonic()
        return [scope for scope, began in since.items() if (now - began) * 1000 >= self._erase_ms]

    def _is_empty(self, scope: bytes) -> bool:
        """Whether a space has no objects, or the staged scope no pieces. The store itself is never empty."""
        if not scope:
            return False
        prefix = keys.STAGED if scope == b"\0" else keys.catalog_of(scope.decode())
        return not self._storage.has_rows(prefix, successor(prefix) or b"\xff")
