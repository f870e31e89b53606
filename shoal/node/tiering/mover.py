"""Moves chunks of a thread to a bucket, and looks after the packs that are there.

Laws:
- A chunk is let go only after its pack was read back from the bucket whole, with the right hash, and if its row still holds
  what was packed: one write puts all stubs of the pack, with its record. Until then nothing is different here.
- Before a pack is put, a durable record says that it may be there. So after a crash at any point each pack of this directory
  is known, and one that nothing needs is deleted.
- A pack is deleted only once no row leads to it any more, and that is durable.
- A pack of which a row was erased goes as a whole: what is left of it comes back first. So what is erased here is erased in
  the bucket, too; and it is unreadable before that, because the key went with the row.
- What says when a thread came back goes with the thread: nothing here names what was deleted.
- A directory deletes what it has put itself: the packs of a copied one belong to its original.
- Chunks of a file are packed in its order: who reads it from its start to its end fetches each pack once.
- Rows of at most `NODE_BYTES` stay, and so does what would make a pack of less than `PACK_BYTES_MIN`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice

import msgspec

from shoal.crdt.rows import successor
from shoal.errors import BackupDamaged, Cold, ReadOnly, ShoalError, StorageFull, StoreCorrupt
from shoal.kinds.file.state import HELD, MANIFEST, unpack_manifest
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Target
from shoal.node.tiering.chunks import GOING, PUTTING, THERE, Record, name_of, unpacked
from shoal.node.tiering.packs import KEY_BYTES, Pack, Packing
from shoal.node.transaction import Transaction
from shoal.node.turns import Steps, Stride, in_turns
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.cold import NODE_BYTES

PACK_BYTES = 2 * 1024 * 1024  # Of chunks in a pack; the last one may exceed it.
PACK_BYTES_MIN = 64 * 1024
LOOK_AGAIN_S = 600.0  # At packs of objects to which nothing was written since: sweeps take rows besides.
_RECORDS_AT_ONCE = 256


class Held(NamedTuple):
    """The chunks of a space that are away."""

    packs: int
    bytes: int


class _Filled(NamedTuple):
    packing: Packing
    rows: dict[bytes, bytes]  # What was packed, by key.
    is_last: bool  # Whether there are no more.


class Mover:
    """Moves and deletes, for one node, one thing after the other."""

    def __init__(self, context: NodeContext, database: Database) -> None:
        self._context = context
        self._raw = context.storage.raw
        self._commit = context.commit
        self._partitions = context.partitions
        self._environment = context.environment
        self._database = database
        self._chunks = database.chunks
        self._putting: set[bytes] = set()
        self._turn = asyncio.Lock()
        self._looked: dict[int, int] = {}  # By partition, its last write when its packs were looked at.
        self._whole_at = 0.0  # When all packs are looked at again.
        self.away: dict[str, Held] = {}
        """By space: what was away at the end of the last `tidy`."""
        self.moved = self.moved_bytes = self.deleted = 0
        """Packs that were put in this opening, the bytes of their chunks, and packs that were deleted."""

    # ── moving ────────────────────────────────────────────────────────────────

    async def move(self, target: Target, url: str, *, files: bool = False) -> int:
        """Move the chunks of a thread, or with `files` those of its files. Returns how many of its bytes went.

        Raises:
            BackupUnreachable, BackupDamaged: the bucket failed. What was moved before stays there; the rest stays here.
            StorageFull, ReadOnly: storage rejects writes.
        """
        async with self._turn:
            moved = await self._move(target, url, (cold.FILE_CHUNKS,) if files else cold.CHUNKS)
        if moved:
            self._database.garbage.reclaim_soon()
        return moved

    async def _move(self, target: Target, url: str, tables: Sequence[bytes]) -> int:
        moved = 0
        found = self._in_order(target, tables)
        while True:
            filled = await in_turns(self._fill(target, found, tables), self._environment.pause)
            if filled.packing.bytes >= PACK_BYTES_MIN:
                moved += await self._put(target, filled, url)
            if filled.is_last:
                return moved

    def _fill(self, target: Target, large: Iterator[tuple[bytes, bytes] | None], tables: Sequence[bytes]) -> Steps[_Filled]:
        """Pack the next of these chunks, as far as they are here."""
        of = keys.object_rows(target.partition, *target)
        packing = Packing(self._environment.entropy(KEY_BYTES))
        rows: dict[bytes, bytes] = {}
        for found in large:
            if found is None:
                yield
                continue
            key, value = found
            if key in rows or (len(tables) < len(cold.CHUNKS) and self._is_on_its_way(key)):
                continue
            row = key[len(of) :]
            if sha256(value).digest() == cold.digest_in(row):
                packing.add(row, value)
                rows[key] = value
                if packing.bytes >= PACK_BYTES:
                    return _Filled(packing, rows, is_last=False)
        return _Filled(packing, rows, is_last=True)

    def _in_order(self, target: Target, tables: Sequence[bytes]) -> Iterator[tuple[bytes, bytes] | None]:
        """The large rows of chunks as they are now, some of them twice: those of each file in its order, and then all."""
        prefix = self._prefix(target)
        start, stop = prefix + MANIFEST, successor(prefix + MANIFEST)
        stride = Stride.usual()
        while row := next(iter(self._raw.scan(start, stop, limit=1)), None):
            start = row[0] + b"\x00"
            for entry in unpack_manifest(row[1]):
                key = prefix + cold.FILE_CHUNKS + entry.digest
                value = self._raw.get(key) or b""
                if len(value) > NODE_BYTES:
                    yield key, value
                if stride.is_over(len(value)):
                    yield None
        yield from self._large(target, tables)

    def _is_on_its_way(self, key: bytes) -> bool:
        """Whether an upload holds a chunk: its file is put soon, and then read once more."""
        digest = cold.digest_in(key[len(keys.object_of(key)) :]) or b""
        held = key[: -len(cold.FILE_CHUNKS + digest)] + HELD + digest
        return next(iter(self._raw.scan(held, successor(held), limit=1)), None) is not None

    def bytes_here(self, target: Target, *, files: bool = False) -> Steps[int]:
        """The bytes of a thread's chunks, or with `files` of those of its files, that are here and would go."""
        size = 0
        for found in self._large(target, (cold.FILE_CHUNKS,) if files else cold.CHUNKS):
            if found is None:
                yield
            elif cold.stub_of(*found) is None:
                size += len(found[1])
        return size if size >= PACK_BYTES_MIN else 0

    def _large(self, target: Target, tables: Sequence[bytes]) -> Iterator[tuple[bytes, bytes] | None]:
        """The large rows of chunks; None where others are due a turn."""
        prefix = self._prefix(target)
        stride = Stride.usual()
        for table in tables:
            start, stop = prefix + table, successor(prefix + table)
            assert stop is not None  # It begins with the table's byte.
            at = start
            while at < stop:
                large: list[tuple[bytes, bytes]] = []  # Of one step: no scan is open while who takes them waits.
                for key, value in self._raw.scan(at, stop):
                    at = key + b"\x00"
                    if len(value) > NODE_BYTES:
                        large.append((key, value))
                    if stride.is_over(len(value)):
                        break
                else:
                    at = stop
                yield from large
                yield None

    async def _put(self, target: Target, filled: _Filled, url: str) -> int:
        of = keys.object_rows(target.partition, *target)
        pack = filled.packing.finish()
        node = self._context.incarnation.node
        record = Record(
            url=url,
            node=node,
            generation=self._generation(target),
            count=len(filled.rows),
            size=filled.packing.bytes,
            sealed=len(pack.content),
            state=PUTTING,
            wall_ms=self._environment.now_ms(),
        )
        self._putting.add(pack.name)
        try:
            await self._note(of, pack.name, record)
            await self._put_there(pack, url, name_of(node, pack.name))
            return self._let_go(target, of, pack, record, filled.rows)
        finally:
            self._putting.discard(pack.name)

    async def _put_there(self, pack: Pack, url: str, name: str) -> None:
        """Put a pack, and read it back."""
        store = self._chunks.store(url)
        await store.put_new(name, pack.content)
        found = await store.get(name)
        if found != pack.content:
            raise BackupDamaged(f"{name} at {url} is not what was put there. What is stored here stays here. Check the bucket.")

    def _let_go(self, target: Target, of: bytes, pack: Pack, record: Record, rows: dict[bytes, bytes]) -> int:
        """Put stubs in the places of the chunks, in one write, if all of them are still here."""
        partition = self._partitions.load(target.partition)
        is_same = self._generation(target) == record.generation and all(self._raw.get(key) == rows[key] for key in rows)
        if partition.closed or not is_same:
            return 0  # `tidy` deletes the pack.
        self._context.storage.arm()
        batch: dict[bytes, bytes | None] = {of + row: stub.packed() for row, stub in pack.stubs.items()}
        batch[cold.record_key(of, pack.name)] = msgspec.msgpack.encode(msgspec.structs.replace(record, state=THERE))
        batch[cold.warm_key(of)] = None
        partition.written = max(partition.written, self._commit.write(batch))
        self.moved += 1
        self.moved_bytes += record.size
        return record.size

    def _prefix(self, target: Target) -> bytes:
        return self._database.generations.current(Transaction(self._raw), target).rows.key(b"")

    def _generation(self, target: Target) -> int:
        return self._database.generations.current(Transaction(self._raw), target).number

    async def _note(self, of: bytes, pack: bytes, record: Record) -> None:
        """Write a record, durably."""
        transaction = Transaction(self._raw)
        self._context.incarnation.settle(transaction)  # The record names this directory.
        transaction.put(cold.record_key(of, pack), msgspec.msgpack.encode(record))
        number = self._commit.write(transaction.rows)
        transaction.written()
        await self._commit.wait_durable(number)

    # ── looking after ─────────────────────────────────────────────────────────

    async def tidy(self, returning: Iterable[str] = ()) -> dict[str, str]:
        """Delete the packs that nothing needs, and bring back those that were erased in part, and those of these spaces.

        Returns what could not be done, for people, by space.

        Raises:
            StorageFull, ReadOnly: storage rejects writes.
        """
        async with self._turn:
            return await self._tidy(frozenset(returning))

    async def _tidy(self, spaces: frozenset[str]) -> dict[str, str]:
        troubles: dict[str, str] = {}
        after = b""
        now = self._environment.monotonic()
        if now >= self._whole_at:
            self._looked, self._whole_at = {}, now + LOOK_AGAIN_S
            await self._forget(spaces)
        looked: dict[int, int] = {}
        away: dict[str, Held] = {}
        while some := list(islice(cold.records(self._raw, after=after), _RECORDS_AT_ONCE)):
            by_object: dict[bytes, list[tuple[bytes, Record]]] = {}
            for of, pack, stored in some:
                by_object.setdefault(of, []).append((pack, unpacked(stored)))
                after = of + pack
            for of, packs in by_object.items():
                space, number = keys.split_object(of)[2], int.from_bytes(of[1:3], "big")
                partition = self._partitions.load(number)
                if partition.closed:
                    continue
                looked.setdefault(number, partition.written)
                told = ""
                if self._looked.get(number) != looked[number] or space in spaces:
                    told = await self._look(of, packs, returns=space in spaces)
                for pack, _ in packs:
                    told = await self._tried(space, self._delete(of, pack)) or told
                if told:
                    troubles.setdefault(space, told)
                    looked[number] = -1  # Once more.
                for pack, _ in packs:
                    record = self._chunks.record(of, pack)
                    if record is not None and record.state == THERE:
                        before = away.get(space, Held(0, 0))
                        away[space] = Held(before.packs + 1, before.bytes + record.size)
            await self._environment.pause()
        self._looked, self.away = looked, away
        return troubles

    async def _forget(self, spaces: frozenset[str]) -> None:
        """Forget when something of these spaces came back, and of threads that are gone."""
        after = b""
        while some := list(islice(cold.warm(self._raw, after=after), _RECORDS_AT_ONCE)):
            for of in some:
                _, kind, space, name, _ = keys.split_object(of)
                if space in spaces or not self._database.catalog.holds(Target(kind, space, name)):
                    self._commit.write({cold.warm_key(of): None})
                after = of
            await self._environment.pause()

    async def _tried(self, space: str, work: Awaitable[object]) -> str:
        """Do this; returns why it failed, for people, and names no thread. One pack that fails holds up no other."""
        try:
            await work
        except (StorageFull, ReadOnly):
            raise
        except (Cold, StoreCorrupt):
            return self._chunks.troubles.get(space, "chunks could not be fetched in time")
        except ShoalError as error:
            return error.message
        return ""

    async def _look(self, of: bytes, packs: list[tuple[bytes, Record]], *, returns: bool) -> str:
        """Find out which packs of an object are needed, and by how many rows. Returns what failed, for people."""
        told = ""
        found = await in_turns(self._chunks.stubs(of, {record.generation for _, record in packs}), self._environment.pause)
        for pack, _ in packs:
            record = self._chunks.record(of, pack)
            if record is None or pack in self._putting:
                continue
            key, count = found.get(pack, (b"", 0))
            if count and (returns or count != record.count):
                told = await self._tried(keys.split_object(of)[2], self._chunks.thaw(of, pack, key)) or told
            elif not count and record.state != GOING:
                await self._note(of, pack, msgspec.structs.replace(record, state=GOING))
        return told

    async def _delete(self, of: bytes, pack: bytes) -> None:
        """Delete a pack that goes."""
        record = self._chunks.record(of, pack)
        if record is None or record.state != GOING or pack in self._putting:
            return
        await self._commit.wait_durable(self._commit.written)
        if record.node == self._context.incarnation.node:
            await self._chunks.store(record.url).delete([name_of(record.node, pack)])
            self.deleted += 1
        self._commit.write({cold.record_key(of, pack): None})
