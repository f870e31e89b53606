"""Rebuild an object from the log, and compare the result with the stored rows.

Laws:
- The log is the truth: its hash chains were checked when it was written. Rows that differ from what it produces are
  replaced in one write. They are never merged with anything.
- If blobs that the log names by hash are missing or damaged here, they are fetched from a peer, beside the operation that
  the log here holds. If one of them cannot be fetched, nothing is replaced.
- A checkpoint that builds on data that was erased here can be read again once that data is back: the parts that peers
  still have are fetched, and those that are not needed are swept again.
- If an object changes meanwhile, it is rebuilt again, a few times.
- If operations of its partition have left the log, the rest of the log does not produce the rows. Then nothing is rebuilt,
  unless a peer shows what has left (`shown`): its operations are folded here, with those that are still in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from enum import Enum
from hashlib import sha256

from shoal.cluster import operation
from shoal.cluster.operation import NO_TIP, Tip
from shoal.crdt.applier import Blobs, What, is_gone
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp, successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node import mutation
from shoal.node.collection.entries import Generations, split
from shoal.node.collection.garbage import Collector
from shoal.node.context import NodeContext
from shoal.node.handler import Target
from shoal.node.retired import RetiredOrigins
from shoal.node.transaction import Transaction
from shoal.node.verification.evidence import Changes, Shown, changes_of
from shoal.node.verification.remains import bases, is_whole
from shoal.node.verification.replay import Folded, blank, differing, erased, fold
from shoal.node.verification.report import Logged, Object, ObjectPlace, unreadable
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.keys import Kind

_SLICE = 24  # Operations that are read or folded before other tasks get a turn; of rows it is `_ROWS`.
_ROWS = 256
_ATTEMPTS_MAX = 4

Supplied = Mapping[Dot, list[Blobs]]  # By operation: the blobs of each of its mutations.
Fetch = Callable[[int, list[Dot]], Awaitable[Supplied]]
Forget = Callable[[Transaction, Target], None]


class Outcome(Enum):
    """The outcome of rebuilding an object; the value describes its rows, or the object, for people."""

    SOUND = "they are what its log makes"
    REPLACED = "they were replaced by what its log makes"
    LACKING = "content that its log names is damaged here, and no peer gave it"
    TOO_LARGE = "the object is too large to be rebuilt while the node runs; run `shoal verify`"
    CHANGING = "the object changed during each comparison"
    DEAD = "a checkpoint of it builds on a pruned one that no peer has any more, so it cannot be read"
    REFUSED = "the log or the disk cannot be used"
    CONFIRMED = "they are those of most owners"
    ADOPTED = "they were replaced by those of most owners"
    PROVED = "they are what a peer's log makes"
    MENDED = "they were replaced by what a peer's log makes"
    RESTORED = "content that was damaged here was replaced by a peer's, which matches its hash"
    UNDECIDED = "its operations have left the log, and no majority of the owners has equal rows: nothing was replaced"


class _Made(NamedTuple):
    folded: Folded
    lacking: list[Dot]  # Operations whose content is missing or damaged here.
    erased: list[Dot]  # Saves whose content was erased here.
    pruned: tuple[Stamp, int] | None  # The last prune, and the generation that it belongs to.


class Rebuilder:
    """Rebuilds objects. `forget` registers with a transaction that memory drops the object once its rows are written."""

    def __init__(self, context: NodeContext, *, generations: Generations, garbage: Collector, forget: Forget) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._partitions = context.partitions
        self._generations = generations
        self._garbage = garbage
        self._forget = forget
        self._config = context.config

    def reaches_back(self, number: int) -> bool:
        """Whether the log of a partition is whole, so that it produces all rows."""
        return is_whole(self._storage, number)

    def left(self, number: int) -> dict[Origin, Tip] | None:
        """The last operations that have left the log of a partition; None if some of them were forgotten."""
        return None if RetiredOrigins(self._storage, number).forgotten else bases(self._storage, number)

    async def rebuild(self, place: ObjectPlace, fetch: Fetch) -> Outcome:
        """Rebuild an object and replace its rows if they differ. `fetch` asks peers for the blobs of operations.

        It never raises a `ShoalError`: that is `Outcome.REFUSED`.
        """
        supplied: Supplied = {}
        asked: set[Dot] = set()
        try:
            for _ in range(_ATTEMPTS_MAX):
                if await self._is_too_large(place):
                    return Outcome.TOO_LARGE
                partition = self._partitions.load(place.partition)
                if not is_whole(self._storage, place.partition):
                    return self._looked_at(place)
                vector = partition.vector
                entries = [entry async for entry in self._entries(place, vector, {})]
                made = await self._folded(place, entries, supplied)
                dead = not made.lacking and bool(self._unreadable(place, made.folded))
                wanted = made.lacking or [dot for dot in made.erased if dead and dot not in asked]
                if wanted:
                    found = await fetch(place.partition, wanted)
                    if made.lacking and not found.keys() - supplied.keys():
                        return Outcome.LACKING
                    asked.update(wanted)
                    erased_here = set(made.erased)
                    supplied = {
                        **supplied,
                        **{dot: sent for dot, sent in found.items() if dot not in erased_here or _has_any(sent)},
                    }
                elif not partition.closed and partition.vector == vector and not partition.base:
                    outcome = await self._replace(place, made, again=not asked.isdisjoint(supplied))
                    return Outcome.DEAD if dead else outcome
        except ShoalError:
            return Outcome.REFUSED
        return Outcome.CHANGING

    async def rebuild_with(self, place: ObjectPlace, shown: Shown) -> Outcome:
        """Rebuild an object from the log and what a peer showed of what has left it; replace its rows if they differ.

        It never raises a `ShoalError`: that is `Outcome.REFUSED`.
        """
        try:
            for _ in range(_ATTEMPTS_MAX):
                if await self._is_too_large(place):
                    return Outcome.TOO_LARGE
                partition = self._partitions.load(place.partition)
                vector = partition.vector
                logged = [entry async for entry in self._entries(place, vector, shown.bases)]
                made = await self._folded(place, [*shown.entries, *logged], {})
                if made.lacking:
                    supplied = {dot: shown.supplied[dot] for dot in made.lacking if dot in shown.supplied}
                    made = await self._folded(place, [*shown.entries, *logged], supplied)
                if made.lacking or self._unreadable(place, made.folded):
                    return Outcome.LACKING
                if bases(self._storage, place.partition) != shown.bases:
                    return Outcome.CHANGING
                if not partition.closed and partition.vector == vector:
                    return await self._replace(place, made, again=False)
        except ShoalError:
            return Outcome.REFUSED
        return Outcome.CHANGING

    def _looked_at(self, place: ObjectPlace) -> Outcome:
        """Whether an object can be read as it is."""
        if place.kind is not Kind.THREAD:
            return Outcome.SOUND
        rows = self._generations.current(Transaction(self._storage), Target(*place[1:])).rows
        return Outcome.DEAD if unreadable(dict(rows.scan(b""))) else Outcome.SOUND

    async def _is_too_large(self, place: ObjectPlace) -> bool:
        start: bytes | None = keys.object_rows(*place)
        assert start is not None
        stop, size = successor(start), 0
        while True:
            rows = list(self._storage.scan(start, stop, limit=_ROWS))
            size += sum(len(value) for _, value in rows)
            if size > self._config.rebuild_bytes_max:
                return True
            if len(rows) < _ROWS:
                return False
            start = rows[-1][0] + b"\x00"
            await asyncio.sleep(0)

    async def _entries(self, place: ObjectPlace, vector: VersionVector, after: Mapping[Origin, Tip]) -> AsyncIterator[Changes]:
        """The operations in the log, behind these, that changed the object."""
        retired = RetiredOrigins(self._storage, place.partition).all()
        for origin, last in sorted({**vector, **{origin: found.sequence for origin, found in retired}}.items()):
            first = after.get(origin, NO_TIP).sequence + 1
            while first <= last:
                stop = min(first + _SLICE - 1, last)
                scanned = self._storage.scan(
                    keys.log(place.partition, Dot(origin, first)), keys.log(place.partition, Dot(origin, stop + 1))
                )
                for key, stored in scanned:
                    _, dot = keys.split_log(key)
                    body = operation.decode(operation.LogEntry.unpack(stored).packed)
                    if (changes := changes_of(place, body)) is not None:
                        yield Changes(Logged(place.partition, body.hlc, dot, body), changes)
                first = stop + 1
                await asyncio.sleep(0)

    async def _folded(self, place: ObjectPlace, entries: list[Changes], supplied: Supplied) -> _Made:
        """Fold the operations of an object in causal order."""
        entries.sort(key=lambda entry: (entry.logged.hlc, entry.logged.dot))
        made = _Made(Folded({}, set(), *erased([entry.logged for entry in entries])), [], [], None)
        into, folded = blank(), VersionVector()
        for number, entry in enumerate(entries):
            made = self._fold(place, entry, supplied, context=folded, made=made, into=into)
            folded = folded.join(VersionVector([entry.logged.dot]))
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        made.folded.rows[place] = {row: value for row, value in into.rows.items() if value is not None}
        return made

    def _fold(
        self,
        place: ObjectPlace,
        entry: Changes,
        supplied: Supplied,
        *,
        context: VersionVector,
        made: _Made,
        into: Transaction,
    ) -> _Made:
        logged = entry.logged
        sent = supplied.get(logged.dot)
        for nth, change in enumerate(entry.changes):
            if _place(place.partition, change) != place:
                continue
            stamp = change.stamp(logged.dot, logged.body, context, nth)
            beside = sent[nth] if sent is not None and nth < len(sent) and mutation.names_content(change.change) else None
            try:
                if beside is None:
                    self._check_chunks(place, stamp, change, made.folded)
                gone = fold(self._storage, place, stamp, change, found=made.folded, into=into, supplied=beside)
            except ShoalError:
                made.lacking.append(logged.dot)
                break
            effects = mutation.effects_of(change.change)
            if effects is None:
                continue
            if gone and effects.record is not None:
                made.erased.append(logged.dot)
            elif effects.hides is not None and change.generation == made.folded.current(place):
                made = made._replace(pruned=(stamp, change.generation))
        return made

    def _unreadable(self, place: ObjectPlace, folded: Folded) -> list[bytes]:
        """The checkpoints that were not pruned but lack something; only prunes can cause that."""
        if place.kind is not Kind.THREAD or not folded.erased_of(place).checkpoints:
            return []
        own = {
            key: value for row, value in folded.rows[place].items() for of, key in [split(row)] if of == folded.current(place)
        }
        return unreadable(own)

    def _check_chunks(self, place: ObjectPlace, stamp: Stamp, change: mutation.Mutation, found: Folded) -> None:
        """Check the stored chunks that came with a change.

        Raises:
            StoreCorrupt: a chunk does not match its digest.
        """
        if place.kind is not Kind.THREAD or change.generation != found.current(place):
            return
        beside = mutation.attached_of(Object(self._storage, place, change.generation).rows, stamp, change.change)
        for digest, piece in beside.chunks.items():
            if digest and sha256(piece).digest() != digest:
                raise StoreCorrupt(f"chunk {digest.hex()} is damaged.")

    async def _replace(self, place: ObjectPlace, made: _Made, *, again: bool) -> Outcome:
        """Write the rows that differ, in the same step as the comparison, so that no other write comes between.

        `again`: peers supplied data that was erased here; the parts that are not needed must be swept again.
        """
        prefix = keys.object_rows(*place)
        stored = {key[len(prefix) :]: value for key, value in self._storage.scan(prefix, successor(prefix))}
        flawed = differing(place, stored, made.folded)
        if not flawed:
            return Outcome.SOUND
        swept = made.pruned if again else None
        await self.write(place, flawed, swept=swept)
        return Outcome.REPLACED

    async def write(
        self, place: ObjectPlace, flawed: Mapping[bytes, bytes | None], *, swept: tuple[Stamp, int] | None = None
    ) -> None:
        """Write the right values of an object's rows in one step; None deletes. `swept`: the prune whose sweep is repeated.

        Raises:
            ShoalError: the disk rejects it. Nothing was written.
        """
        prefix = keys.object_rows(*place)
        batch, target = Transaction(self._storage), Target(*place[1:])
        current = self._generations.current(batch, target)
        own = current.rows.key(b"")
        for row, value in flawed.items():
            key = prefix + row
            if not key.startswith(own):
                batch.rows[key] = value
            elif value is None:
                current.rows.delete(key[len(own) :])
            else:
                current.rows.put(key[len(own) :], value)  # With the indexes of items.
        if swept is not None:
            self._garbage.enter(batch, swept[0], What.CHECKPOINTS, target, swept[1])
        self._forget(batch, target)
        number = self._commit.write(batch.rows)
        partition = self._partitions.load(place.partition)
        partition.written = max(partition.written, number)
        batch.written()
        await self._commit.wait_durable(number)


def _has_any(sent: list[Blobs]) -> bool:
    return any(not is_gone(beside) for beside in sent)


def _place(partition: int, change: mutation.Mutation) -> ObjectPlace:
    return ObjectPlace(partition, Kind(change.kind), change.space, change.name)
