"""Takes snapshots of partitions from peers: stages and checks the pieces, and replaces the partition.

Laws:
- A partition is replaced only by a whole, checked snapshot that holds every operation that is held here, and whose rows the
  other owners confirm (`witnessing`).
- With the new rows it is written down from whom they came, and who confirmed them.
- From just before that until the new rows are durable, the partition is closed: it is neither read nor written, and its
  operations are neither taken nor sent.
- A snapshot of at most `snapshot_memory_bytes` replaces the partition in one write. A longer one is staged, and a marker
  makes it certain that the switch is finished, in this life of the node or at its next start.
- If storage fails after the marker, the partition stays closed; the next start finishes the switch.
- While others write here, snapshots take a fifth of the loop's time at most (`resting`).

From whom a partition's rows came, if a snapshot brought them, and which other owners had the same.

Law: the row is written with the rows that it is about, so it is there if they are.

Holds the taking of snapshots back while others write here.

Where nodes and clients share processors, most of a join's cost is the joining node's, so it has to rest, and not only its
senders.

Laws:
- While the store takes writes that are not of a snapshot, work on snapshots takes a fifth of the loop's time at most: after it,
  nothing is asked for until four times as long has passed as it took. There is no rest if no such write was made lately.
- Time is that of the wall, so where nodes and clients share processors, work takes longer, and the rests grow.
- A rest ends at most `_REST_S_MAX` after the work that caused it, however long that took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from msgspec import Struct, msgpack

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.cluster.taking import Snapshots
from shoal.crdt.rows import successor
from shoal.errors import BadOperation, Overloaded, ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.partitions import Partition
from shoal.node.snapshots import switching
from shoal.node.snapshots.checking import Checker, Content, differing, lacking
from shoal.node.snapshots.switching import Row, Write
from shoal.node.snapshots.witnessing import Others, Witnesses
from shoal.node.turns import Background
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

_TAKEN = keys.meta("taken/")  # Followed by the partition₂.


class Taken(Struct, array_like=True, frozen=True):
    """Where a snapshot came from. Nodes are named by their addresses at that time."""

    sender: str
    confirmed_by: list[str]
    wall_ms: int

    def row(self, number: int) -> dict[bytes, bytes | None]:
        """The row that records it of a partition."""
        return {_TAKEN + number.to_bytes(2, "big"): msgpack.encode(self)}

    @property
    def told(self) -> str:
        """For people: what happened to the rows."""
        compared = f"were compared with {' and '.join(self.confirmed_by)}" if self.confirmed_by else "were compared with nobody"
        return f"came in a snapshot from {self.sender}, and {compared}"

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The record in these bytes.

        Raises:
            ValueError: they are none.
        """
        return msgpack.decode(packed, type=cls)


def taken(storage: Storage) -> dict[int, Taken]:
    """The partitions whose rows came in a snapshot.

    Raises:
        ValueError: a record is damaged.
    """
    found = storage.scan(_TAKEN, successor(_TAKEN))
    return {int.from_bytes(key[len(_TAKEN) :], "big"): Taken.unpack(packed) for key, packed in found}


_RESTS = 4  # After some work, so many times as long as it took.
_REST_S_MAX = 1.0
_LATELY_S = 0.1  # The node writes its own records now and then: such a write costs a join next to nothing.


class Rests:
    """The rests of one node. `writes` counts the writes made of snapshots, which are no reason to rest."""

    def __init__(self, snapshots: Snapshots, commit: GroupCommit, now: Callable[[], float]) -> None:
        self.writes = 0
        self._snapshots = snapshots
        self._commit = commit
        self._now = now
        self._others = commit.written  # Writes that are not of a snapshot, when work ended last,
        self._lately_until = 0.0  # and until when they count.
        self._began: float | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on a snapshot while the context is open, without awaiting. Work within work counts once."""
        if self._began is not None:
            yield
            return
        self._began = self._now()
        try:
            yield
        finally:
            now, began, self._began = self._now(), self._began, None
            self._rest(now, now - began)

    def _rest(self, now: float, worked_s: float) -> None:
        others = self._commit.written - self.writes
        if others > self._others:
            self._others, self._lately_until = others, now + _LATELY_S
        if now < self._lately_until:
            rest_s = self._snapshots.rests_for(now) + _RESTS * worked_s
            self._snapshots.rest(now + min(rest_s, _REST_S_MAX))


@dataclass(slots=True)
class _Staging:
    """The pieces of one snapshot so far."""

    attempt: int
    checker: Checker
    held: list[list[Row]] = field(default_factory=list)  # The rows of each piece, until they are too many.
    held_bytes: int = 0
    pieces: int = 0
    is_on_disk: bool = False  # The pieces are staged, and not held.


class SnapshotReceiver:
    """The snapshots that this node takes. `installed` is called with each partition that was replaced."""

    def __init__(
        self,
        context: NodeContext,
        snapshots: Snapshots,
        database: Database,
        *,
        witnesses: Witnesses,
        others: Others,
        send: Callable[[bytes, SnapshotRequest], None],
        installed: Callable[[int], None],
    ) -> None:
        self._snapshots = snapshots
        self._database = database
        self._storage = context.storage.raw  # Rows are replaced whether they are stubs or not.
        self._commit = context.commit
        self._witnesses = witnesses
        self._send = send
        self._installed = installed
        self._others = others
        self._incarnation = context.incarnation
        self._environment = context.environment
        self._config = context.config
        self._staging: dict[int, _Staging] = {}  # At most `snapshots_open_max`.
        self._switching = Background()  # Of partitions that are being replaced; as many at most.
        self._rests = Rests(snapshots, context.commit, context.environment.monotonic)

    async def stop(self) -> None:
        """Stop all switches; the next start finishes what was begun."""
        await self._switching.close()

    def tick(self) -> None:
        """Drop what is staged of snapshots that were given up."""
        for number, staging in list(self._staging.items()):
            if not self._snapshots.is_current(number, staging.attempt):
                del self._staging[number]
                with suppress(ShoalError):  # The next snapshot, or the next start, drops it.
                    self._write(switching.discard(self._storage, number))

    async def received(self, peer: bytes, answer: SnapshotPiece) -> None:
        """Take a peer's answer."""
        number = answer.partition
        ready = self._snapshots.received(peer, answer, self._environment.monotonic())
        try:
            for nth, packed in ready:
                if nth and self._commit.written - self._commit.durable > self._config.writes_pending_max // 2:
                    await self._commit.wait_durable(self._commit.written)
                if not self._snapshots.is_current(number, answer.attempt):
                    return  # It was given up meanwhile.
                with self._rests.work():
                    self._stage(number, answer.attempt, nth, packed)
            pieces = self._snapshots.is_whole(number) if ready else None
            if pieces is not None:
                self._begin_switch(peer, number, pieces)
        except ShoalError as error:  # Nothing was replaced, and what is staged is dropped before it is used.
            self._fail(peer, number, error)

    def _stage(self, number: int, attempt: int, nth: int, packed: bytes) -> None:
        """Check a piece, and hold it; stage it and those before it once they are too large to be held.

        Raises:
            BadOperation: it is no piece of a sound snapshot.
            ReadOnly, StorageFull, Overloaded: it could not be written.
        """
        staging = self._staging.get(number)
        if nth == 0 or staging is None or staging.attempt != attempt:
            staging = self._staging[number] = _Staging(attempt, Checker(number, clock=self._database.clock_last))
        rows = staging.checker.take(packed)
        staging.pieces = nth + 1
        if staging.is_on_disk:
            self._write(Write({keys.staged(number, nth): packed}, []))
            return
        staging.held.append(rows)
        staging.held_bytes += len(packed)
        if nth and staging.held_bytes > self._config.snapshot_memory_bytes:
            self._write(switching.discard(self._storage, number))
            self._write(
                Write({keys.staged(number, place): switching.pack(each) for place, each in enumerate(staging.held)}, [])
            )
            staging.held, staging.is_on_disk = [], True

    def _begin_switch(self, peer: bytes, number: int, pieces: int) -> None:
        staging = self._staging.pop(number)
        if not self._snapshots.digest_holds(number) or staging.pieces != pieces:
            raise BadOperation(
                f"a peer's snapshot of partition {number} does not have the hash that it names.", reason="snapshot"
            )
        content = staging.checker.finish()
        self._switching.start(self._switch(peer, number, staging, content))

    async def _switch(self, peer: bytes, number: int, staging: _Staging, content: Content) -> None:
        try:
            verdict = await self._witnesses.believe(peer, number, content, partial(self._pieces, number, staging))
            if verdict.doubt:  # It may be that the others have swept already what this one has not.
                self._snapshots.doubted(number, verdict.others)
                raise BadOperation(verdict.doubt, reason="rows")
        except ShoalError as error:
            self._fail(peer, number, error)
            return
        taken = Taken(
            self._others.named(peer), [self._others.named(node) for node in verdict.agreeing], self._environment.now_ms()
        )
        await self._replace(peer, number, staging, content, taken)

    def _pieces(self, number: int, staging: _Staging) -> Iterable[list[Row]]:
        """The rows of a snapshot, piece by piece."""
        return switching.all_staged(self._storage, number, staging.pieces) if staging.is_on_disk else staging.held

    async def _replace(self, peer: bytes, number: int, staging: _Staging, content: Content, taken: Taken) -> None:
        partition, before = self._database.partitions.close(number), self._database.before_switch(number)
        begun = False
        try:
            await self._commit.wait_durable(partition.written)
            if self._others.is_removed(peer):
                raise BadOperation("its sender is no member any more.", reason="removed")
            self._check(partition, staging, content)
            begun = True
            if not staging.is_on_disk:
                with self._rests.work():
                    write = switching.at_once(switching.writes(self._storage, number, staging.held))
                    write.rows.update(before.transaction.rows | taken.row(number))
                await self._made(write)
            else:
                await self._made(
                    Write(switching.marker(number, staging.pieces) | before.transaction.rows | taken.row(number), [])
                )
                for write in switching.writes(self._storage, number, self._pieces(number, staging)):
                    await self._waited(write)
                    await self._environment.pause()
                await self._commit.wait_durable(self._commit.written)
        except ShoalError as error:
            if not begun:
                self._database.partitions.reopen(number)
                self._fail(peer, number, error)
            else:
                log(events.PARTITION_LOST, partition=number, reason=error.message)
            return
        self._database.after_switch(number, before)
        done = self._snapshots.installed(number)
        if done is not None:
            self._send(*done)
        self._installed(number)

    def _check(self, partition: Partition, staging: _Staging, content: Content) -> None:
        """Check that the snapshot may replace what is held here.

        Raises:
            BadOperation: it may not.
        """
        number = partition.number
        dot = lacking(content, partition.tips)
        if dot is not None:
            raise BadOperation(
                f"a peer's snapshot of partition {number} lacks operation {dot.sequence} of {dot.origin.hex()}, which is held "
                "here. The peer fetches it first.",
                reason="snapshot",
            )
        own = self._incarnation.current
        if own is not None and own in content.tips and content.tips[own].sequence > partition.tip(own).sequence:
            raise BadOperation(
                f"a peer's snapshot of partition {number} has operations of this node that it has not issued.",
                reason="snapshot",
            )
        pieces = partial(switching.staged, self._storage, number) if staging.is_on_disk else staging.held.__getitem__
        dot = differing(number, content, partition.tips, pieces)
        if dot is not None:
            raise BadOperation(
                f"a peer's snapshot of partition {number} has another operation {dot.sequence} of {dot.origin.hex()} than this "
                "node: two nodes write under one origin, or one was altered. Compare the nodes with `shoal verify`.",
                reason="dot-taken",
            )

    async def _made(self, write: Write) -> None:
        """Make a write, and wait until it is durable."""
        await self._waited(write)
        await self._commit.wait_durable(self._commit.written)

    async def _waited(self, write: Write) -> None:
        """Make a write, once too many others no longer wait for the disk."""
        while True:
            try:
                self._write(write)
                return
            except Overloaded:
                await self._commit.wait_durable(self._commit.written)

    def _write(self, write: Write) -> None:
        if write.rows or write.ranges:
            with self._rests.work():
                self._rests.writes += 1
                self._commit.write(write.rows, write.ranges)

    def _fail(self, peer: bytes, number: int, error: ShoalError) -> None:
        """Try again later, maybe with another peer."""
        log(events.SNAPSHOT_REFUSED, partition=number, peer=self._others.named(peer), reason=error.message)
        self._staging.pop(number, None)
        self._snapshots.failed(number, self._environment.monotonic())
