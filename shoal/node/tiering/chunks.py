"""Chunks that are not here: fetched from their packs, and put back.

Laws:
- A read that meets a stub is a read that meets damage: the pack is fetched, its chunks are put back, and the read is made
  again. Only what cannot be fetched is asked of peers, as other damage is.
- A pack comes back as a whole, in one write, which lets the pack go. So a pack is needed by all of its rows, or by none.
- Nothing is put back but a chunk that has its row's hash, in the place of a stub that names this pack.
- `FETCHES_MAX` packs are fetched at once, each once for all who wait for it; and so many are in memory to be put back. Who
  waits longer than `WAIT_S` gets an error that can be tried again; the fetch goes on.
- A bucket that cannot be reached, or lacks an object that peers do not have either, changes nothing here: the read is refused
  with an error that can be tried again.
- Of a space whose files stay in the object store (`staying`), a read of a file puts nothing back: it is read from memory, which
  holds the last packs, up to `HELD_BYTES_MAX`.
- What goes to peers and to backups has chunks in the place of stubs. Nothing is put back for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.crdt import deletion
from shoal.crdt.rows import successor
from shoal.errors import BackupUnreachable, Cold, ShoalError, StoreCorrupt
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Target
from shoal.node.replicas import ReadRepair
from shoal.node.tiering.packs import OpenedPack
from shoal.node.transaction import Transaction
from shoal.node.turns import Background, Steps, Stride, in_turns
from shoal.records import NamedTuple
from shoal.storage import cold, keys

if TYPE_CHECKING:
    from shoal.backup.bucket import ObjectStore

FETCHES_MAX = 4
WAIT_S = 30.0
HELD_BYTES_MAX = 16 * 1024 * 1024  # Of packs that were read for a peer or a backup, which asks for the next part soon.
_MISSING_MAX = 10_000  # Packs that are known to be lost; it is found out again of those beyond.
_STEP_BYTES = 512 * 1024  # Opened before others get a turn.
PUTTING, THERE, GOING = 0, 1, 2


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


class Brought(NamedTuple):
    """The outcome of a fetch."""

    came: bool  # Whether anything is here now that was away.
    missing: str  # What the bucket lacks, for people; empty if nothing.


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
        self._thaws = asyncio.Semaphore(FETCHES_MAX)
        self._under_way: dict[bytes, asyncio.Task[OpenedPack]] = {}  # By pack.
        self._held = context.storage.held
        self._missing: set[bytes] = set()  # Packs that their bucket lacked when they were last asked for.
        self._soon = Background()
        self._wanted: set[tuple[Target, tuple[bytes, ...]]] = set()
        self.staying: frozenset[str] = frozenset()
        """The spaces whose files stay in the object store."""
        self.fetched = self.fetched_bytes = self.failed = 0
        """Packs that were fetched for reads in this opening, their bytes, and fetches that failed."""
        self.troubles: dict[str, str] = {}
        """By space, why its last fetch failed, for people. No name of a thread is in it."""

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
        return (await self.brought_back(target, lost)).came

    async def brought_back(self, target: Target, lost: Iterable[bytes]) -> Brought:
        """As `bring_back`, and says what the bucket lacks."""
        of = keys.object_rows(target.partition, *target)
        stubs = self._stubs(target, lost)
        prefix = self.generations.current(Transaction(self._raw), target).rows.key(b"")
        passing = [row for row in stubs if target.space in self.staying and cold.is_of_file(row)]
        packs = {stub.pack: stub.key for row, stub in stubs.items() if row not in passing}
        work: list[Coroutine[Any, Any, bool]] = [self.thaw(of, pack, key) for pack, key in packs.items()]
        work += [self._passed(of, prefix + row, stubs[row]) for row in passing]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        missing, passed = "", False
        for pack, outcome in zip([*packs, *(stubs[row].pack for row in passing)], outcomes, strict=True):
            passed = passed or outcome is True
            if isinstance(outcome, StoreCorrupt):
                missing = missing or (outcome.message if pack in self._missing else "")
            elif isinstance(outcome, BaseException):
                raise outcome
        return Brought(passed or any(row not in self._stubs(target, stubs) for row in stubs), missing)

    def soon(self, target: Target, lost: tuple[bytes, ...], then: Callable[[], None] = lambda: None) -> bool:
        """Fetch those of these rows that are away, beside, and call `then`, also if that failed. False: nothing was begun."""
        wanted = target, lost
        if wanted in self._wanted or len(self._wanted) >= FETCHES_MAX or not self._stubs(target, lost):
            return False
        self._wanted.add(wanted)

        async def fetch() -> None:
            try:
                with suppress(ShoalError):
                    await self.bring_back(target, lost)
                then()
            finally:
                self._wanted.discard(wanted)

        self._soon.attempt(fetch)
        return True

    @property
    def is_fetching(self) -> bool:
        """Whether what `soon` was asked for is on its way, as far as is known."""
        return bool(self._wanted) and not any(target.space in self.troubles for target, _ in self._wanted)

    async def filled(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """These rows with chunks in the place of stubs.

        They may be of a snapshot: what has come back since is read where it is now.

        Raises:
            Cold: the bucket could not be read in time.
            StoreCorrupt: a pack is missing or was altered.
        """
        found: list[tuple[bytes, bytes]] = []
        for key, value in rows:
            stub = cold.stub_of(key, value)
            found.append((key, value if stub is None else await self._chunk(key, stub)))
        return found

    async def _chunk(self, key: bytes, stub: cold.Stub) -> bytes:
        of = keys.object_of(key)
        try:
            pack = self._held.get(stub.pack) or await self._opened(of, stub.pack, stub.key)
            self._hold(stub.pack, pack)
            return pack.chunk(key[len(of) :])
        except StoreCorrupt:
            chunk = self._raw.get(key)
            if chunk is None or sha256(chunk).digest() != cold.digest_in(key[len(of) :]):
                raise
            return chunk

    async def _passed(self, of: bytes, key: bytes, stub: cold.Stub) -> bool:
        """Have the pack of a chunk in memory, for the read that comes next. Raises as `thaw`."""
        opened = self._held.get(stub.pack) or await self._opened(of, stub.pack, stub.key)
        opened.chunk(key[len(of) :])
        self._hold(stub.pack, opened)
        return True

    async def thaw(self, of: bytes, pack: bytes, key: bytes) -> bool:
        """Put the chunks of a pack back, and let the pack go. Returns False: what came is to be looked for.

        Raises:
            Cold: the bucket could not be read in time.
            StoreCorrupt: the pack is missing or was altered. Nothing was put back.
            StorageFull, ReadOnly: storage rejects writes.
        """
        try:
            async with asyncio.timeout(WAIT_S):
                await self._thaws.acquire()
        except TimeoutError:
            raise Cold(self._told(of, f"other fetches took longer than {WAIT_S:g} s")) from None
        try:
            record = self.record(of, pack)
            if record is None or record.state != GOING:  # Else somebody else did it meanwhile.
                await self._thaw(of, pack, key)
        finally:
            self._thaws.release()
        return False

    async def _thaw(self, of: bytes, pack: bytes, key: bytes) -> None:
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

    def _stubs(self, target: Target, rows: Iterable[bytes]) -> dict[bytes, cold.Stub]:
        """Those of these rows of an object's current generation that are away."""
        prefix = self.generations.current(Transaction(self._raw), target).rows.key(b"")
        return {row: stub for row in rows if (stub := self._stub(prefix + row)) is not None}

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
            self._failed(of, error.message)
            told = self._told(of, error.message)
            if isinstance(error, BackupUnreachable):
                raise Cold(told) from error
            raise (StoreCorrupt(told) if isinstance(error, StoreCorrupt) else error) from None
        self.troubles.pop(keys.split_object(of)[2], None)
        self.fetched += 1
        self.fetched_bytes += opened.size
        return opened

    def _failed(self, of: bytes, why: str) -> None:
        space = keys.split_object(of)[2]
        self.failed += 1
        if self.troubles.get(space) != why:
            log(events.TIERING_TROUBLE, reason=why)
        self.troubles[space] = why

    async def _content(self, of: bytes, pack: bytes) -> bytes:
        """
        Raises:
            BackupUnreachable: the bucket cannot be read.
            StoreCorrupt: it has no such pack, or the pack is not known here.
        """
        record = self.record(of, pack)
        if record is None:
            raise StoreCorrupt(f"pack {pack.hex()} is not known here")
        name = name_of(record.node, pack)
        async with self._slots:
            content = await self.store(record.url).get(name)
        if content is None:
            if len(self._missing) >= _MISSING_MAX:
                self._missing.clear()
            self._missing.add(pack)
            raise StoreCorrupt(f"{name} is missing at {record.url}")
        self._missing.discard(pack)
        return content

    def _told(self, of: bytes, why: str) -> str:
        _, kind, space, name, _ = keys.split_object(of)
        return f"{kind.label} {name!r} of space {space!r} has chunks in the object store: {why}"

    def _hold(self, pack: bytes, opened: cold.HeldPack) -> None:
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
        missing = ""
        if error.lost:
            came, missing = await self._chunks.brought_back(self._target, error.lost)
            if came:
                return
        self._then = self._then or self._after(self._target)
        try:
            await self._then.repair(error)
        except StoreCorrupt as failed:
            if not missing:
                raise
            raise Cold(f"{missing}, and no peer has it. Is it the right bucket, or directory, and is it there?") from failed
