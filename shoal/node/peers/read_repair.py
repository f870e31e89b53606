"""Read repair: a damaged row is fetched again from a peer that has it intact.

Laws:
- A row is given to a peer, and taken from one, only if it is right: a chunk, of a file too, or a tree node
  over chunks, matches its digest; a checkpoint's record matches the save in the log here, and its time.
- A row is written back only if a read that failed after the row was fetched needs it, so that
  erased rows are not restored.
- A peer that did not give a row is not asked again for that read, and the error names it.
  Concurrent reads of the same rows share one question.
- A row that no peer has stays an error: nothing damaged is ever shown. If a peer was not heard, as just after a start, it may
  have the row: the read can be tried again, here and at other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from hashlib import sha256

from shoal.cluster import operation
from shoal.cluster.messages import LOST_MAX, RepairReply, RepairRequest
from shoal.cluster.operation import Tip, partition_of
from shoal.crdt.dot import NOTHING_SEEN, Dot, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import ShoalError, StoreCorrupt, Unavailable
from shoal.kinds.thread.state import dag
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import check_name
from shoal.node import mutation
from shoal.node.collection.entries import rows_of
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Target
from shoal.node.peers.members import Members, MemberState
from shoal.node.peers.outgoing import SUPPLY_BYTES_MAX
from shoal.node.replicas import Repairs, mendable, named, unmended
from shoal.node.transaction import Transaction
from shoal.node.verification.evidence import REPAIR_WAIT_S
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.cold import FILE_CHUNKS
from shoal.storage.keys import Kind

REPAIR_ROWS_MAX = 4096  # Repaired for one read; other damaged rows wait for the next.


class DamagedObject(NamedTuple):
    """The object whose rows are damaged, and its generation."""

    target: Target
    generation: int


class Verdict(Enum):
    """Whether a row's value is right, judged by digests and the log here."""

    WHOLE = "whole"
    FALSE = "false"  # It does not match.
    UNKNOWN = "unknown"  # This replica cannot tell.


class Brought(NamedTuple):
    """The outcome of fetching rows from peers."""

    rows: dict[bytes, bytes]
    failed: dict[str, str]  # The addresses of peers that gave nothing, and why.
    unheard: list[str]  # Those among them that have not said what they have.


class _Question(NamedTuple):
    node: bytes
    lost: RepairRequest
    answer: asyncio.Future[RepairReply | None]


class ReadRepairer:
    """Both sides of read repair.

    `holds` says whether a node is known to hold what a vector covers of a partition; `send` sends a question to a node.
    """

    def __init__(
        self,
        context: NodeContext,
        database: Database,
        members: Members,
        *,
        holds: Callable[[bytes, int, VersionVector], bool],
        send: Callable[[bytes, RepairRequest], None],
    ) -> None:
        self.mended = Repairs()
        self.database = database
        self.commit, self.config = context.commit, context.config
        self._members = members
        self._holds = holds
        self._send = send
        self._last_id = 0
        self._questions: dict[int, _Question] = {}
        self._admitted: set[bytes] = set()  # Nodes whose last link has brought no message yet; bounded by the links.
        self._under_way: dict[tuple[DamagedObject, tuple[bytes, ...]], asyncio.Task[Brought]] = {}
        self._stopped = False

    async def stop(self) -> None:
        """End all questions without an answer, and wait for the reads that asked them."""
        self._stopped = True
        for question in self._questions.values():
            _settle(question.answer, None)
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    # ── giving ────────────────────────────────────────────────────────────────

    def answer(self, lost: RepairRequest) -> RepairReply:
        """Answer a question: the rows that are intact here, as many as fit `SUPPLY_BYTES_MAX`.

        Raises:
            InvalidName: the space or the thread has an illegal name.
        """
        if lost.kind != Kind.THREAD:
            return RepairReply(lost.id, [])
        closed = self.database.partitions.closed
        if closed and partition_of(lost.space, lost.name) in closed:
            return RepairReply(lost.id, [])
        target = Target(Kind.THREAD, check_name("space", lost.space), check_name("thread", lost.name))
        transaction = self.database.document(target).transaction
        place, rows, size = DamagedObject(target, lost.generation), list[tuple[bytes, bytes]](), 0
        for row, value in _stored(transaction, place, lost.rows):
            if judge(transaction, place, row, value) is not Verdict.WHOLE:
                continue
            size += len(value)
            if rows and size > SUPPLY_BYTES_MAX:
                break
            rows.append((row, value))
        return RepairReply(lost.id, rows)

    def answer_soon(self, lost: RepairRequest, send: Callable[[RepairReply], None]) -> None:
        """As `answer`; what is away here is fetched before.

        Raises:
            InvalidName: as `answer`.
        """
        target = Target(Kind.THREAD, check_name("space", lost.space), check_name("thread", lost.name))
        if not self.database.chunks.soon(target, tuple(lost.rows), lambda: send(self.answer(lost))):
            send(self.answer(lost))

    # ── asking ────────────────────────────────────────────────────────────────

    def found(self, peer: bytes, found: RepairReply) -> None:
        """Take a peer's answer; one to an unknown question is ignored."""
        question = self._questions.get(found.id)
        if question is not None and question.node == peer:
            _settle(question.answer, found)

    def admitted(self, peer: bytes) -> None:
        """Note that a peer has linked to this node."""
        self._admitted.add(peer)

    def heard(self, peer: bytes) -> None:
        """Ask open questions again at the first message of a peer's link; until then its answers were lost."""
        if peer not in self._admitted:
            return
        self._admitted.discard(peer)
        for question in self._questions.values():
            if question.node == peer and not question.answer.done():
                self._send(peer, question.lost)

    def unlinked(self, peer: bytes) -> None:
        """End the questions to a peer, because no answer can arrive."""
        for question in self._questions.values():
            if question.node == peer:
                _settle(question.answer, None)

    async def fetch(self, place: DamagedObject, rows: tuple[bytes, ...], skipped: Iterable[str]) -> Brought:
        """Fetch rows from the first peer that has any of them intact and different from here; `skipped` are not asked."""
        task = self._under_way.get((place, rows))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(place, rows, frozenset(skipped)))
            self._under_way[place, rows] = task
            task.add_done_callback(lambda _: self._under_way.pop((place, rows), None))
        return await asyncio.shield(task)  # Others may still wait for it.

    async def _fetch(self, place: DamagedObject, rows: tuple[bytes, ...], skipped: frozenset[str]) -> Brought:
        failed: dict[str, str] = {}
        unheard: list[str] = []
        for member in self._candidates(place.target.partition):
            if member.address in skipped or self._stopped:
                continue
            if member.outlet is None:
                failed[member.address] = "cannot be reached"
                unheard.append(member.address)
                continue
            answer = await self._ask(member.node, place, rows)
            if answer is None:
                failed[member.address] = f"did not answer within {REPAIR_WAIT_S:g} s"
                unheard.append(member.address)
                continue
            taken = self._take(place, rows, answer)
            if taken:
                return Brought(taken, failed, unheard)
            failed[member.address] = "does not have it" if taken is not None else "sent other rows than those asked for"
            if taken is None:
                log(events.ROWS_OTHERS, peer=member.address, object=named(place.target))
        return Brought({}, failed, unheard)

    def _candidates(self, partition: int) -> list[MemberState]:
        """The members, with those first that are known to hold everything that this node holds."""
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
            async with asyncio.timeout(REPAIR_WAIT_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[id]

    def _take(self, place: DamagedObject, asked: tuple[bytes, ...], found: RepairReply) -> dict[bytes, bytes] | None:
        """The rows of an answer that help; None if some are wrong or were not asked for."""
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
    """The repair for one request about an object; see `Replicas.read_repair`."""

    def __init__(self, mender: ReadRepairer, target: Target) -> None:
        self._mender = mender
        self._target = target
        self._partition = mender.database.partitions.load(target.partition)
        self._place: DamagedObject | None = None
        self._found: dict[bytes, bytes] = {}
        self._written: set[bytes] = set()
        self._failed: dict[str, str] = {}
        self._unheard: list[str] = []

    async def repair(self, error: StoreCorrupt, /) -> None:
        """Fetch the rows that `error` lost from peers; return when the request can be tried again (`ReadRepair.repair`). A
        first failure fetches the rows; the second shows that they are needed and writes them.
        """
        self._partition.check_open()
        lost = tuple([row for row in error.lost if mendable(row) and row not in self._written])
        generation = self._mender.database.generations.current(
            self._mender.database.document(self._target).transaction, self._target
        )
        place = DamagedObject(self._target, generation.number)
        if place != self._place:
            self._place, self._found = place, {}
        if not lost or len(self._written) >= REPAIR_ROWS_MAX:
            raise self._failure(error)
        useful = {row: self._found.pop(row) for row in lost if row in self._found}
        if useful:
            self._partition.check_open()
            await self._write({generation.rows.key(row): value for row, value in useful.items()}, error)
            self._written |= useful.keys()
            return
        brought = await self._mender.fetch(place, lost[:LOST_MAX], self._failed)
        self._failed |= brought.failed
        self._unheard += brought.unheard
        if not brought.rows:
            raise self._failure(error)
        self._found = dict(brought.rows)

    async def _write(self, rows: dict[bytes, bytes], error: StoreCorrupt) -> None:
        try:
            await self._mender.commit.wait_durable(self._mender.commit.write(rows))
        except ShoalError as refusal:
            raise self._failure(error, f" A peer has it, but it could not be written here: {refusal.message}") from refusal
        self._mender.mended.rows += len(rows)
        log(events.ROWS_FETCHED, count=len(rows), object=named(self._target))

    def _failure(self, error: StoreCorrupt, why: str = "") -> StoreCorrupt | Unavailable:
        self._mender.mended.failed += 1
        log(events.ROWS_LOST, object=named(self._target), reason=error.message)
        if not any(map(mendable, error.lost)):
            why = " Peers are not asked for rows of this kind."
        elif not why:
            told = "; ".join(f"{address} {how}" for address, how in self._failed.items())
            why = f" Peers were asked for it: {told or 'their rows do not help'}."
            if self._unheard:
                return Unavailable(
                    f"{named(self._target)} is damaged here, and could not be fetched again yet: {error.message}{why} Try "
                    "again, or at another node.",
                    asked=list(self._failed),
                )
        return unmended(self._target, error, why, list(self._failed))


def judge(transaction: Transaction, place: DamagedObject, row: bytes, value: bytes) -> Verdict:
    """Whether `value` is the right content of `row`, a row that `mendable` accepts."""
    if row.startswith((dag.CHUNK, FILE_CHUNKS)):
        return Verdict.WHOLE if sha256(value).digest() == row[-dag.ID_BYTES :] else Verdict.FALSE
    try:
        found = dag.unpack(row[1:], value)
    except StoreCorrupt:
        return Verdict.FALSE
    if dag.identify(found.record) != found.id:
        return Verdict.FALSE
    if not _has_left(transaction, place, found.dot):
        saved = _saved(transaction, place, found)
        if saved is None:
            return Verdict.UNKNOWN
        change, stamp = saved
        if (found.hlc, found.wall_ms) != (stamp.hlc, stamp.wall_ms) or sha256(dag.record_of(value)).digest() != change.record:
            return Verdict.FALSE
    rows = rows_of(transaction, *place)
    # If two operations saved the checkpoint, this row names the one that counts.
    when = dag.when_row(found.record.branch, found.wall_ms, found.id)
    return Verdict.UNKNOWN if rows.get(when) is None else Verdict.WHOLE


def _has_left(transaction: Transaction, place: DamagedObject, dot: Dot) -> bool:
    """Whether an operation has left the log here."""
    base = transaction.get(keys.base(place.target.partition, dot.origin))
    return base is not None and Tip.unpack(base).sequence >= dot.sequence


def _saved(transaction: Transaction, place: DamagedObject, found: dag.Checkpoint) -> tuple[dag.Save, Stamp] | None:
    """The save in the log here that a stored checkpoint claims to come from; None if there is none."""
    with suppress(ShoalError):  # The log may be damaged there too.
        stored = transaction.get(keys.log(place.target.partition, found.dot))
        if stored is None:
            return None
        body = operation.decode(operation.LogEntry.unpack(stored).packed)
        for nth, change in enumerate(mutation.decode(body.payload)):
            here = DamagedObject(Target(Kind(change.kind), change.space, change.name), change.generation)
            if here == place and isinstance(change.change, dag.Save) and change.change.id == found.id:
                return change.change, change.stamp(found.dot, body, NOTHING_SEEN, nth)
    return None


def _stored(transaction: Transaction, place: DamagedObject, rows: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Those of the rows that can be read here, intact or not."""
    own = rows_of(transaction, *place)
    for row in rows:
        with suppress(StoreCorrupt):
            if mendable(row) and (value := own.get(row)) is not None:
                yield row, value


def _settle(answer: asyncio.Future[RepairReply | None], found: RepairReply | None) -> None:
    if not answer.done():
        answer.set_result(found)
