"""Chunks that are not here: fetched from their packs, and put back.

Laws:
- A read that meets a stub is a read that meets damage: the pack is fetched, its chunks are put back, and the read is made
  again. Only what cannot be fetched is asked of peers, as other damage is.
- A pack comes back as a whole, in one write, which lets the pack go. So a pack is needed by all of its rows, or by none.
- Nothing is put back but a chunk that has its row's hash, in the place of a stub that names this pack.
- `FETCHES_MAX` packs are fetched at once, each once for all who wait for it. Who waits longer than `WAIT_S` gets an error
  that can be tried again; the fetch goes on.
- A bucket that cannot be reached changes nothing here.
- What goes to peers and to backups has chunks in the place of stubs. Nothing is put back for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from shoal.crdt import deletion
from shoal.crdt.rows import successor
from shoal.errors import BackupUnreachable, Cold, ShoalError, StoreCorrupt
from shoal.node.collection.generations import Generations
from shoal.node.context import NodeContext
from shoal.node.replicas import ReadRepair
from shoal.node.target import Target
from shoal.node.tiering.packs import OpenedPack
from shoal.node.transaction import Transaction
from shoal.node.turns import Background, Steps, Stride, in_turns
from shoal.storage import cold, keys

if TYPE_CHECKING:
    from shoal.backup.bucket import ObjectStore

FETCHES_MAX = 4
WAIT_S = 30.0
HELD_BYTES_MAX = 16 * 1024 * 1024  # Of packs that were read for a peer or a backup, which asks for the next part soon.
_STEP_BYTES = 512 * 1024  # Opened before others get a turn.
PUTTING, THERE, GOING = 0, 1, 2

_log = logging.getLogger("shoal.node")


class Record(msgspec.Struct, array_like=True, frozen=True):
    """The note of a node on a pack."""

    url: str  # Of the bucket.
    node: bytes  # The directory that put it, and alone may delete it.
    generation: int  # Of the object.
    count: int  # Chunks.
    size: int  # Bytes of the chunks.
    sealed: int  # Bytes of the pack.
    state: int  # `PUTTING`: it may be in the bucket, and nothing needs it; `GOING` likewise.
    wall_ms: int


def name_of(node: bytes, pack: bytes) -> str:
    """The name of a pack's object."""
    return f"tiers/{node.hex()}/{pack.hex()}"


def unpacked(stored: bytes) -> Record:
    """
    Raises:
        StoreCorrupt: it is no record.
    """
    try:
        return msgspec.msgpack.decode(stored, type=Record)
    except ValueError as error:
        raise StoreCorrupt(f"the record of a pack cannot be decoded ({error}). Run `shoal verify`.") from None


class Chunks:
    """Fetches what this node has in buckets."""

    def __init__(self, context: NodeContext, *, generations: Generations) -> None:
        self._raw = context.storage.raw
        self._commit = context.commit
        self._partitions = context.partitions
        self._environment = context.environment
        self.generations = generations
        self._stores: dict[str, ObjectStore] = {}  # As many as there are addresses in records.
        self._slots = asyncio.Semaphore(FETCHES_MAX)
        self._under_way: dict[bytes, asyncio.Task[OpenedPack]] = {}  # By pack.
        self._held: OrderedDict[bytes, OpenedPack] = OrderedDict()
        self._soon = Background()
        self._wanted: set[tuple[Target, tuple[bytes, ...]]] = set()
        self.fetched = self.fetched_bytes = self.failed = 0
        """Packs that were fetched for reads in this opening, their bytes, and fetches that failed."""
        self.trouble = ""
        """Why the last fetch failed, for people; empty if it did not."""

    async def stop(self) -> None:
        """End all fetches. Stopping twice is allowed."""
        await self._soon.close()
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def store(self, url: str) -> ObjectStore:
        """The bucket at an address.

        Raises:
            InvalidInput, Unsupported: it is no address, or the library is not installed.
        """
        if url not in self._stores:
            self._stores[url] = self._environment.open_bucket(url)
        return self._stores[url]

    # ── reads ─────────────────────────────────────────────────────────────────

    def repairing(self, target: Target, after: Callable[[Target], ReadRepair]) -> ReadRepair:
        """The repair for one request about an object: fetches what is away, and leaves all else to the repair of `after`."""
        return _Fetching(self, target, after)

    async def bring_back(self, target: Target, lost: Iterable[bytes]) -> bool:
        """Fetch those of these rows of an object's current generation that are away, with all that is in their packs.

        Returns whether any came back: then the read can be made again.

        Raises:
            Cold: the bucket could not be read in time.
            StorageFull, ReadOnly: storage rejects writes.
        """
        of = keys.object_rows(target.partition, *target)
        prefix = self.generations.current(Transaction(self._raw), target).rows.key(b"")
        stubs = {row: stub for row in lost if (stub := self._stub(prefix + row)) is not None}
        packs = {stub.pack: stub.key for stub in stubs.values()}
        outcomes = await asyncio.gather(*(self.thaw(of, pack, key) for pack, key in packs.items()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, StoreCorrupt):
                raise outcome
        return any(self._stub(prefix + row) is None for row in stubs)

    def soon(self, target: Target, lost: tuple[bytes, ...]) -> None:
        """Fetch these beside: somebody asks again."""
        wanted = target, lost
        if wanted not in self._wanted and len(self._wanted) < FETCHES_MAX:
            self._wanted.add(wanted)

            async def fetch() -> None:
                try:
                    await self.bring_back(target, lost)
                finally:
                    self._wanted.discard(wanted)

            self._soon.attempt(fetch)

    async def filled(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """These rows with chunks in the place of stubs.

        Raises:
            Cold: the bucket could not be read in time.
            StoreCorrupt: a pack is missing or was altered.
        """
        found: list[tuple[bytes, bytes]] = []
        for key, value in rows:
            stub = cold.stub_of(key, value)
            if stub is None:
                found.append((key, value))
                continue
            of = keys.object_of(key)
            pack = self._held.get(stub.pack) or await self._opened(of, stub.pack, stub.key)
            self._hold(stub.pack, pack)
            found.append((key, pack.chunk(key[len(of) :])))
        return found

    async def thaw(self, of: bytes, pack: bytes, key: bytes) -> None:
        """Put the chunks of a pack back, and let the pack go.

        Raises:
            Cold: the bucket could not be read in time.
            StoreCorrupt: the pack is missing or was altered. Nothing was put back.
            StorageFull, ReadOnly: storage rejects writes.
        """
        opened = await self._opened(of, pack, key)
        chunks: dict[bytes, bytes] = {}
        size = 0
        for row, chunk in opened.chunks():
            chunks[of + row] = chunk
            size += len(chunk)
            if size >= _STEP_BYTES:
                size = 0
                await self._environment.pause()
        number = int.from_bytes(of[1:3], "big")
        partition = self._partitions.load(number)
        partition.check_open()
        batch: dict[bytes, bytes | None] = {key: chunk for key, chunk in chunks.items() if self._leads_to(key, pack)}
        if not batch:
            return  # Somebody else did it meanwhile.
        record = self.record(of, pack)
        if record is not None:
            batch[cold.record_key(of, pack)] = msgspec.msgpack.encode(msgspec.structs.replace(record, state=GOING))
        batch[cold.warm_key(of)] = self._environment.now_ms().to_bytes(8, "big")
        partition.written = max(partition.written, self._commit.write(batch))

    async def bring_back_all(self, of: bytes) -> None:
        """Bring back all chunks of an object, given the prefix of its rows.

        Raises:
            Cold, StoreCorrupt, StorageFull, ReadOnly: as `thaw`.
        """
        generations = {unpacked(stored).generation for _, _, stored in cold.records(self._raw, of=of)}
        if generations:
            for pack, (key, _) in (await in_turns(self.stubs(of, generations), self._environment.pause)).items():
                await self.thaw(of, pack, key)

    def stubs(self, of: bytes, generations: Iterable[int]) -> Steps[dict[bytes, tuple[bytes, int]]]:
        """By pack: its key, and how many rows lead to it."""
        found: dict[bytes, tuple[bytes, int]] = {}
        stride = Stride.usual()
        for generation in sorted(generations):
            for table in cold.CHUNKS:
                at = of + deletion.prefix(generation) + table
                stop = successor(at)
                assert stop is not None  # It begins with the table's byte.
                while at < stop:
                    for key, value in self._raw.scan(at, stop):
                        at = key + b"\x00"
                        stub = cold.stub_of(key, value)
                        if stub is not None:
                            found[stub.pack] = stub.key, found.get(stub.pack, (b"", 0))[1] + 1
                        if stride.is_over(len(value)):
                            break
                    else:
                        break
                    yield
        return found

    def record(self, of: bytes, pack: bytes) -> Record | None:
        """The note on a pack; None if there is none."""
        stored = self._raw.get(cold.record_key(of, pack))
        return None if stored is None else unpacked(stored)

    def _leads_to(self, key: bytes, pack: bytes) -> bool:
        stub = self._stub(key)
        return stub is not None and stub.pack == pack

    def _stub(self, key: bytes) -> cold.Stub | None:
        try:
            return cold.stub_of(key, self._raw.get(key) or b"")
        except StoreCorrupt:  # The block that holds it is damaged: that is mended elsewhere.
            return None

    # ── packs ─────────────────────────────────────────────────────────────────

    async def _opened(self, of: bytes, pack: bytes, key: bytes) -> OpenedPack:
        task = self._under_way.get(pack)
        if task is None:
            task = self._under_way[pack] = asyncio.get_running_loop().create_task(self._fetch(of, pack, key))
            task.add_done_callback(lambda done: self._ended(pack, done))
        done, _ = await asyncio.wait([task], timeout=WAIT_S)
        if not done:
            raise Cold(self._told(of, f"it was not read within {WAIT_S:g} s, and is still being read"))
        return task.result()

    def _ended(self, pack: bytes, task: asyncio.Task[OpenedPack]) -> None:
        self._under_way.pop(pack, None)
        if not task.cancelled():
            task.exception()  # It is told to those that wait, if there still are any.

    async def _fetch(self, of: bytes, pack: bytes, key: bytes) -> OpenedPack:
        try:
            opened = OpenedPack(pack, await self._content(of, pack), key)
        except ShoalError as error:
            self.failed += 1
            if error.message != self.trouble:
                _log.warning("tiering: %s", error.message)
            self.trouble = error.message
            raise
        self.trouble = ""
        self.fetched += 1
        self.fetched_bytes += opened.size
        return opened

    async def _content(self, of: bytes, pack: bytes) -> bytes:
        record = self.record(of, pack)
        if record is None:
            raise StoreCorrupt(self._told(of, f"pack {pack.hex()} is not known here"))
        name = name_of(record.node, pack)
        try:
            async with self._slots:
                content = await self.store(record.url).get(name)
        except BackupUnreachable as error:
            raise Cold(self._told(of, error.message)) from error
        if content is None:
            raise StoreCorrupt(self._told(of, f"{name} is missing at {record.url}"))
        return content

    def _told(self, of: bytes, why: str) -> str:
        _, kind, space, name, _ = keys.split_object(of)
        return f"{kind.label} {name!r} of space {space!r} has chunks in the object store: {why}"

    def _hold(self, pack: bytes, opened: OpenedPack) -> None:
        self._held[pack] = opened
        self._held.move_to_end(pack)
        while len(self._held) > 1 and sum(each.size for each in self._held.values()) > HELD_BYTES_MAX:
            self._held.popitem(last=False)


class _Fetching:
    def __init__(self, chunks: Chunks, target: Target, after: Callable[[Target], ReadRepair]) -> None:
        self._chunks = chunks
        self._target = target
        self._after = after
        self._then: ReadRepair | None = None

    async def repair(self, error: StoreCorrupt, /) -> None:
        if error.lost and await self._chunks.bring_back(self._target, error.lost):
            return
        self._then = self._then or self._after(self._target)
        await self._then.repair(error)
