"""What is found damaged here, fetched again from a peer that has it whole.

Laws:
- A row is given to a peer, and taken from one, only if it is what it must be: a chunk, or a node
  over chunks, what its digest names; a checkpoint's record what the log here says was saved, and when.
- A row is written back only if a read that has failed since it was fetched needs it: what was
  erased meanwhile is not brought back.
- A peer that did not give what was asked of it is not asked again for that read, and the error
  names it. Those who read the same share one question.
- What nobody has stays an error: nothing damaged is ever shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

from shoal.cluster import operation
from shoal.cluster.messages import LOST_MAX, RepairReply, RepairRequest
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.crdt.thread import dag
from shoal.errors import ShoalError, StoreCorrupt
from shoal.names import check_name
from shoal.node.appliers import mutation
from shoal.node.collection.generations import rows_of
from shoal.node.database import Database
from shoal.node.peers.members import Members, MemberState
from shoal.node.replicas import Repairs, mendable, named, unmended
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.keys import Kind

_log = logging.getLogger("shoal.node")


class DamagedObject(NamedTuple):
    """One generation of an object."""

    target: Target
    generation: int


class Verdict(Enum):
    WHOLE = "whole"
    FALSE = "false"  # It is not what it says.
    UNKNOWN = "unknown"  # This replica cannot tell.


class Brought(NamedTuple):
    rows: dict[bytes, bytes]
    failed: dict[str, str]  # Who did not give what it was asked for, and why.


class _Question(NamedTuple):
    node: bytes
    lost: RepairRequest
    answer: asyncio.Future[RepairReply | None]


class ReadRepairer:
    """`holds` says whether a peer is known to hold what a vector names of a partition; `send` is told a node and a message."""

    def __init__(
        self,
        database: Database,
        commit: GroupCommit,
        *,
        members: Members,
        holds: Callable[[bytes, int, VersionVector], bool],
        send: Callable[[bytes, RepairRequest], None],
        config: Config,
    ) -> None:
        self.mended = Repairs()
        self.database = database
        self.commit = commit
        self.config = config
        self._members = members
        self._holds = holds
        self._send = send
        self._last_id = 0
        self._questions: dict[int, _Question] = {}
        self._admitted: set[bytes] = set()  # Of whose last link nothing has come; bounded by the links.
        self._under_way: dict[tuple[DamagedObject, tuple[bytes, ...]], asyncio.Task[Brought]] = {}
        self._stopped = False

    async def stop(self) -> None:
        """Who waits is told that nothing came."""
        self._stopped = True
        for question in self._questions.values():
            _settle(question.answer, None)
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    # ── giving ────────────────────────────────────────────────────────────────

    def answer(self, lost: RepairRequest) -> RepairReply:
        """Those of the rows that are whole here, as many as fit `supply_bytes_max`.

        Raises:
            InvalidName: it names what cannot be.
        """
        if lost.kind != Kind.THREAD:
            return RepairReply(lost.id, [])
        target = Target(Kind.THREAD, check_name("space", lost.space), check_name("thread", lost.name))
        transaction = self.database.document(target).transaction
        place, rows, size = DamagedObject(target, lost.generation), list[tuple[bytes, bytes]](), 0
        for row, value in _stored(transaction, place, lost.rows):
            if judge(transaction, place, row, value) is not Verdict.WHOLE:
                continue
            size += len(value)
            if rows and size > self.config.supply_bytes_max:
                break
            rows.append((row, value))
        return RepairReply(lost.id, rows)

    # ── asking ────────────────────────────────────────────────────────────────

    def found(self, peer: bytes, found: RepairReply) -> None:
        """A peer has answered."""
        question = self._questions.get(found.id)
        if question is not None and question.node == peer:
            _settle(question.answer, found)

    def admitted(self, peer: bytes) -> None:
        """It has linked to this node."""
        self._admitted.add(peer)

    def heard(self, peer: bytes) -> None:
        """A message came. The first of a link shows that its answers have a way to come: before that they were lost."""
        if peer not in self._admitted:
            return
        self._admitted.discard(peer)
        for question in self._questions.values():
            if question.node == peer and not question.answer.done():
                self._send(peer, question.lost)

    def unlinked(self, peer: bytes) -> None:
        """Its answer will not come."""
        for question in self._questions.values():
            if question.node == peer:
                _settle(question.answer, None)

    async def fetch(self, place: DamagedObject, rows: tuple[bytes, ...], skipped: Iterable[str]) -> Brought:
        """What some peer has of these rows, whole and other than what is here; `skipped` are not asked."""
        task = self._under_way.get((place, rows))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(place, rows, frozenset(skipped)))
            self._under_way[place, rows] = task
            task.add_done_callback(lambda _: self._under_way.pop((place, rows), None))
        return await asyncio.shield(task)  # Others may wait for it still.

    async def _fetch(self, place: DamagedObject, rows: tuple[bytes, ...], skipped: frozenset[str]) -> Brought:
        failed: dict[str, str] = {}
        for member in self._candidates(place.target.partition):
            if member.address in skipped or self._stopped:
                continue
            if member.outlet is None:
                failed[member.address] = "cannot be reached"
                continue
            answer = await self._ask(member.node, place, rows)
            if answer is None:
                failed[member.address] = f"did not answer within {self.config.repair_wait_s:g} s"
                continue
            taken = self._take(place, rows, answer)
            if taken:
                return Brought(taken, failed)
            failed[member.address] = "does not have it" if taken is not None else "sent what is not what was asked for"
            if taken is None:
                _log.warning("%s was asked for damaged rows of %s, and sent others", member.address, named(place.target))
        return Brought({}, failed)

    def _candidates(self, partition: int) -> list[MemberState]:
        """Those first that are known to hold all that is here."""
        vector = self.database.vector_of(partition)
        return sorted(self._members.all, key=lambda member: not self._holds(member.node, partition, vector))

    async def _ask(self, node: bytes, place: DamagedObject, rows: tuple[bytes, ...]) -> RepairReply | None:
        self._last_id += 1
        id = self._last_id
        answer: asyncio.Future[RepairReply | None] = asyncio.get_running_loop().create_future()
        kind, space, name = place.target
        lost = RepairRequest(id, kind, space, name, place.generation, list(rows))
        self._questions[id] = _Question(node, lost, answer)
        self._send(node, lost)
        try:
            async with asyncio.timeout(self.config.repair_wait_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[id]

    def _take(self, place: DamagedObject, asked: tuple[bytes, ...], found: RepairReply) -> dict[bytes, bytes] | None:
        """The rows of an answer that help; None if some are not what they say."""
        taken: dict[bytes, bytes] = {}
        transaction = self.database.document(place.target).transaction
        here = dict(_stored(transaction, place, asked))
        for row, value in found.rows:
            verdict = judge(transaction, place, row, value) if row in asked else Verdict.FALSE
            if verdict is Verdict.FALSE:
                return None
            if verdict is Verdict.WHOLE and here.get(row) != value:
                taken[row] = value
        return taken


class ObjectRepair:
    """For one read of an object: see `Replicas.read_repair`."""

    def __init__(self, mender: ReadRepairer, target: Target) -> None:
        self._mender = mender
        self._target = target
        self._place: DamagedObject | None = None
        self._found: dict[bytes, bytes] = {}
        self._written: set[bytes] = set()
        self._failed: dict[str, str] = {}

    async def repair(self, error: StoreCorrupt, /) -> None:
        """See `replicas.ReadRepair.repair`. The first failure makes it fetch, the next one shows that it is still needed."""
        lost = tuple([row for row in error.lost if mendable(row) and row not in self._written])
        generation = self._mender.database.generations.current(
            self._mender.database.document(self._target).transaction, self._target
        )
        place = DamagedObject(self._target, generation.number)
        if place != self._place:
            self._place, self._found = place, {}
        if not lost or len(self._written) >= self._mender.config.repair_rows_max:
            raise self._failure(error)
        useful = {row: self._found.pop(row) for row in lost if row in self._found}
        if useful:
            await self._write({generation.rows.key(row): value for row, value in useful.items()}, error)
            self._written |= useful.keys()
            return
        brought = await self._mender.fetch(place, lost[:LOST_MAX], self._failed)
        self._failed |= brought.failed
        if not brought.rows:
            raise self._failure(error)
        self._found = dict(brought.rows)

    async def _write(self, rows: dict[bytes, bytes], error: StoreCorrupt) -> None:
        try:
            await self._mender.commit.wait_durable(self._mender.commit.write(rows))
        except ShoalError as refusal:
            raise self._failure(error, f" A peer has it, and it could not be written here: {refusal.message}") from refusal
        self._mender.mended.rows += len(rows)
        _log.warning("%d damaged rows of %s were fetched again from a peer", len(rows), named(self._target))

    def _failure(self, error: StoreCorrupt, why: str = "") -> StoreCorrupt:
        self._mender.mended.failed += 1
        _log.error("%s is damaged here, and no peer mended it: %s", named(self._target), error.message)
        if not any(map(mendable, error.lost)):
            why = " Peers are not asked for rows of this kind."
        elif not why:
            told = "; ".join(f"{address} {how}" for address, how in self._failed.items())
            why = f" Peers were asked for it: {told or 'what they have does not help'}."
        return unmended(self._target, error, why, list(self._failed))


def judge(transaction: Transaction, place: DamagedObject, row: bytes, value: bytes) -> Verdict:
    """Whether `value` is what must be under `row`."""
    if row.startswith(dag.CHUNK):
        return Verdict.WHOLE if sha256(value).digest() == row[1:] else Verdict.FALSE
    try:
        found = dag.unpack(row[1:], value)
    except StoreCorrupt:
        return Verdict.FALSE
    saved = _saved(transaction, place, found)
    if saved is None:
        return Verdict.UNKNOWN
    change, body = saved
    if (found.hlc, found.wall_ms) != (body.hlc, body.wall_ms) or dag.identify(found.record) != found.id:
        return Verdict.FALSE
    rows = rows_of(transaction, *place)
    packed = dag.record_of(value)
    if sha256(packed).digest() != change.record:
        return Verdict.FALSE
    # Of two operations that saved one checkpoint this row names the one that counts.
    when = dag.when_row(found.record.branch, found.wall_ms, found.id)
    return Verdict.UNKNOWN if rows.get(when) is None else Verdict.WHOLE


def _saved(transaction: Transaction, place: DamagedObject, found: dag.Checkpoint) -> tuple[dag.Save, operation.Body] | None:
    """The save in the log here that a stored checkpoint says it is of."""
    with suppress(ShoalError):  # The log is damaged there too.
        stored = transaction.get(keys.log(place.target.partition, found.dot))
        if stored is None:
            return None
        body = operation.decode(operation.LogEntry.unpack(stored).packed)
        for change in mutation.decode(body.payload):
            here = DamagedObject(Target(Kind(change.kind), change.space, change.name), change.generation)
            if here == place and isinstance(change.change, dag.Save) and change.change.id == found.id:
                return change.change, body
    return None


def _stored(transaction: Transaction, place: DamagedObject, rows: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Those of the rows that can be read here, whole or not."""
    own = rows_of(transaction, *place)
    for row in rows:
        with suppress(StoreCorrupt):
            if mendable(row) and (value := own.get(row)) is not None:
                yield row, value


def _settle(answer: asyncio.Future[RepairReply | None], found: RepairReply | None) -> None:
    if not answer.done():
        answer.set_result(found)
