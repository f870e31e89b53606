"""A request becomes one operation.

Laws:
- One write batch holds the log entry, the objects' rows and the partition's
  vector; they are on disk together or not at all.
- Nothing in memory changes before the write is made: a request that is rejected, or
  whose write fails, leaves no trace.
- All objects that a request writes are in one partition.
- One write under no lease goes a short way. It writes what the generic way would, byte for byte.
- A heavy request is decided in steps, between which others get a turn.
- It is written only if no row of its partition was written since it began to be decided, and no schema was; else it is decided
  again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from shoal.cluster import operation
from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import Tip
from shoal.crdt import deletion
from shoal.crdt.applier import Blobs
from shoal.crdt.dot import END_MS, Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import ShoalError, SpansPartitions, TooLarge, Unavailable, Unsupported
from shoal.kinds.file.serving.files import Referring, check_references
from shoal.kinds.thread.serving.ownership import DRIVING
from shoal.names import check_name
from shoal.node import mutation
from shoal.node import partitions as retirement
from shoal.node.collection.answers import Changed
from shoal.node.collection.entries import Generation, Generations
from shoal.node.context import NodeContext
from shoal.node.environment import turn
from shoal.node.handler import Handler, Made, Target, WriteContext, target_of
from shoal.node.mutation import IMPORTS_SINCE, FencedMutation, ImportedMutation, Mutation
from shoal.node.partitions import Ahead, Partition
from shoal.node.transaction import Transaction, pack_blobs
from shoal.node.watching.changelog import change_of
from shoal.node.watching.feed import Staged
from shoal.node.writes import idempotency
from shoal.node.writes.erasing import Eraser
from shoal.node.writes.idempotency import IdempotencyTable
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.requests import ObjectWrite, Reply
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.keys import Kind

_DURABLE_FIRST = frozenset({Kind.BUDGET, Kind.MAP})
"""Kinds of which an opening takes over what past ones left, as far as it knows: nothing of theirs may come back later."""

_kind = attrgetter("kind")

HEAVY_BYTES = 1024 * 1024  # A write that weighs more is decided in steps (`Declaration.weighs`).
HEAVY_STEP_BYTES = 512 * 1024  # Of the writes of a batch that are decided in one step; the first may exceed it.
HEAVY_WRITE_BYTES = 8 * 1024  # What each write of a batch weighs besides: to decide many small ones takes long, too.
HEAVY_ATTEMPTS_MAX = 4  # To decide it in steps, while peers and upkeep write its partition. Then it is decided in one.


class Located(Struct, frozen=True):
    """A request, and the objects that its writes are about."""

    request: requests.AnyWrite
    writes: Sequence[ObjectWrite[Any]]
    targets: Sequence[Target]  # One for each write.
    partition: int  # Of all targets.
    fences: Mapping[Target, int] = {}  # The fencing numbers of the leases under which it is made.
    ended: Mapping[Target, int] = {}  # Of threads whose lease is known to be over: its fencing number.
    unclaimed: frozenset[bytes] = frozenset()  # The ids of entries of which it is known that nobody has claimed them.
    referring: Referring = {}  # Rows that refer to files which were dropped.
    token: str = ""  # The id of the token under which it is made; empty: nobody asked for one.
    redacted: Sequence[requests.Replaced] = ()  # What was replaced in it before, by rules of its space.
    asked: Any = None  # The request before that; None: nothing was.


class Logged(Struct, frozen=True):
    """An operation that was issued here and written, and is not durable yet."""

    number: int  # Of the storage write.
    partition: Partition
    shipment: Shipment
    space: str = ""  # Of its first object; empty: it changes none.
    may_precede: bool = True  # Whether it may go to peers before it is durable here.


class Issued(Struct, frozen=True):
    """The outcome of a write request: its reply, and what must be durable before it is answered."""

    reply: requests.AnyReply
    number: int  # The storage write to wait for.
    vector: VersionVector  # Of the partition: what the reply shows.
    endings: VersionVector  # Of the partition: the deletions that were known when it was decided.
    dot: Dot | None = None  # Of the operation; None if nothing had to change.
    again: bool = False  # Whether its key was used before, maybe on another node;
    changed: Sequence[Changed] = ()  # then the objects that its operation changed,
    mutations: Sequence[Mutation] = ()  # else its mutations.

    @property
    def copied(self) -> VersionVector:
        """The operations that another owner must hold to count as having a copy of the write."""
        return self.vector.frontier if self.dot is None else VersionVector.of(self.dot)


class Outbound(NamedTuple):
    """The replication, as it is told of the operations that are issued here, and asked about them."""

    logged: Callable[[Logged], None]  # Called with each that was written.
    check_time: Callable[[int], None]  # Called before each, with the time that it will carry; it may raise.
    spoken: Callable[[], int]  # The oldest version of the peer protocol that a peer speaks.


class _Writing(Struct, frozen=True):
    """A request that is becoming an operation."""

    located: Located
    transaction: Transaction
    partition: Partition
    key: str | None  # The request's idempotency key.


class _Decision(Struct, frozen=True):
    """The effect of a request, as far as it is decided. Nothing is written yet."""

    stamp: Stamp
    endings: VersionVector
    replies: list[Reply]
    mutations: list[Mutation]
    attached: list[Blobs]  # One for each mutation,
    made: list[tuple[Target, Made]]  # and so is this.


class _Sealed(Struct, frozen=True):
    """A decision as the log stores it. Its rows are in the transaction."""

    reply: requests.AnyReply
    dot: Dot
    chain: bytes  # The chain hash after it,
    body: bytes  # and its encoded body.
    tips: dict[Origin, Tip]


class Issuer:
    """Makes operations of requests; `operations` counts them. `keyed` is called with the partition of each that has a key.
    `elsewhere` counts the changes of what a decision follows, and what is no row of its partition: the schemas of its space.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        handlers: Sequence[Handler],
        generations: Generations,
        eraser: Eraser,
        keyed: Callable[[int], None],
        elsewhere: Callable[[], int],
    ) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._checks = {request: check for handler in handlers for request, check in handler.checks.items()}
        self._writers = {request: writer for handler in handlers for request, writer in handler.writers.items()}
        self._partitions = context.partitions
        self._clock = context.clock
        self._generations = generations
        self._eraser = eraser
        self._incarnation = context.incarnation
        self._now_ms = context.environment.now_ms
        self._batch_writes_max = context.config.batch_writes_max
        self._feed = context.feed
        self._receipts = IdempotencyTable(context.storage, context.environment.now_ms, context.config)
        self._keyed = keyed
        self._elsewhere = elsewhere
        self._outbound: Outbound | None = None
        self._spoken: Callable[[], int] = lambda: PEER_PROTOCOL
        self._weights = {request: declaration_of(request).weighs for request in self._writers}
        self._heavy: dict[int, asyncio.Event] = {}  # By the partition that a heavy request holds: set once it is over.
        self.operations = 0

    def replicate(self, outbound: Outbound) -> None:
        """The node has peers: its operations are theirs, too."""
        self._outbound, self._spoken = outbound, outbound.spoken

    @property
    def spoken(self) -> int:
        """The newest version of the protocol among nodes that this node and all that it was linked with speak."""
        return self._spoken()

    def check(self, request: requests.AnyWrite | requests.Maintenance[Any]) -> None:
        """Check a request before anything else is done for it.

        Raises:
            InvalidInput: a name, key, value or amount is not legal.
            TooLarge: a part of it exceeds its bound.
            Unsupported: no handler knows the request.
        """
        if type(request) is requests.Batch or type(request) is requests.Import:
            for write in writes_of(request):
                self.check(write)
            return
        check_name("space", request.space)
        check = self._checks.get(type(request))
        if check is None:
            raise Unsupported(f"this node does not know {type(request).__name__}. Nothing was written.")
        check(request)

    def locate(self, request: requests.AnyWrite, token: str = "") -> Located:
        """Find the objects and the partition of a checked request, which is made under the token of this id.

        Raises:
            SpansPartitions: a batch is empty, or its objects are in several partitions.
            TooLarge: a batch holds more than `batch_writes_max` writes.
        """
        if type(request) is requests.Batch or type(request) is requests.Import:
            writes = writes_of(request)
            targets = [target_of(write) for write in writes]
            return Located(request, writes, targets, self._partition_of(targets), token=token)
        target = target_of(request)
        return Located(request, (request,), (target,), target.partition, token=token)

    def issue(self, located: Located, key: str | None) -> Issued:
        """Decide, apply and write a request as one operation, not yet durable. A repeated key gets its stored reply.

        Raises:
            ClockWrong: this node's clock is wrong. Nothing was written.
            TooLarge: its changes hold more than `operation.PARTS_MAX` values, or are too many. Nothing was written.
            ShoalError: as the data types say. Nothing was written.
            UnderLease: it has no lease of a thread that may be under one. Nothing was written.
            Unavailable: a peer runs an older version, which cannot apply it. Nothing was written.
            UnderClaim: it finishes an entry that may be claimed. Nothing was written.
        Unsure: it refers to files that were dropped. Nothing was written.
        """
        partition = self._opened(located)
        if key is not None and (before := self._before(partition, located, key)) is not None:
            return before
        writing = _Writing(located, Transaction(self._storage), partition, key)
        try:
            if located.writes[0] is located.request and not located.fences:
                return self._issue_alone(writing)
            return self._issue_each(writing)
        except BaseException:
            writing.transaction.abandoned()
            raise

    def _issue_each(self, writing: _Writing) -> Issued:
        """The generic way: the writes of a request one after another, each with all that it may need."""
        stamp = self._stamp(writing.transaction, writing.partition)
        decision = _Decision(stamp, writing.partition.endings, [], [], [], [])
        for place in range(len(writing.located.writes)):
            self._decide(writing, decision, place)
        return self._concluded(writing, decision)

    def _issue_alone(self, writing: _Writing) -> Issued:
        """The short way of one write under no lease, as most requests are. Its rows are those of `_issue_each`, byte for byte.

        One that makes no change, or several, or a large one, goes on the generic way from there.
        """
        located, transaction, partition = writing.located, writing.transaction, writing.partition
        target, write = located.targets[0], located.writes[0]
        stamp, generation = self._stamp(transaction, partition), self._generations.current(transaction, target)
        rows, kind = generation.rows, type(write)
        context = WriteContext(target, rows, stamp, writing.key, 0, located.unclaimed, self._spoken)
        if kind in DRIVING:
            self._eraser.check_free(target, rows, located.ended.get(target, 0) if located.ended else 0)
        if target.kind is Kind.THREAD:
            check_references(rows, target, write, located.referring)
        reply = self._writers[kind](context, write)
        if len(context.made) != 1:
            decision = _Decision(stamp, partition.endings, [reply], [], [], [])
            self._follow(transaction, decision, target, context, generation)
            return self._concluded(writing, decision)
        made = context.made[0]
        change = Mutation(target.kind, target.space, target.name, made.change, generation.number)
        self._eraser.follow(transaction, target, made.stamp, change, made.attached, rows)
        transaction.changed()
        decision = _Decision(stamp, partition.endings, [reply], [change], [made.attached], [(target, made)])
        payload = mutation.encode(decision.mutations)
        if len(payload) > mutation.ELEMENTS_MAX or operation.is_beyond(payload):
            return self._concluded(writing, decision)
        if self._outbound is not None and (spoken := self._spoken()) < PEER_PROTOCOL:
            _check_spoken(decision.mutations, spoken)
        sealed = self._logged(writing, stamp, reply, payload)
        return self._written(writing, decision, sealed, self._commit.write(transaction.rows))

    def _concluded(self, writing: _Writing, decision: _Decision) -> Issued:
        """The end of a request that is decided."""
        sealed = self._seal(writing, decision)
        if isinstance(sealed, Issued):
            return sealed
        return self._written(writing, decision, sealed, self._commit.write(writing.transaction.rows))

    # ── heavy requests ────────────────────────────────────────────────────────

    def is_late(self, located: Located) -> bool:
        """Whether a request is heavy, or waits for a heavy one: `issue_late` issues it."""
        if located.partition in self._heavy:
            return True
        return self._weights[type(located.writes[0])] is not None and self._is_heavy(located)

    async def issue_late(self, located: Located, key: str | None, check: Callable[[], None]) -> Issued:
        """As `issue`, but once no heavy request holds the partition, and in steps if this one is heavy. `check` is called after
        each turn of others, and raises if the node stops.
        """
        while (before := self._heavy.get(located.partition)) is not None:
            await before.wait()
            check()
        if not self._is_heavy(located):
            return self.issue(located, key)
        with self._holding(located.partition):
            for _ in range(HEAVY_ATTEMPTS_MAX):
                await turn()  # The first because its check was a step.
                check()
                if self._incarnation.current is None:
                    break  # Its first write takes an origin, which no other one may do meanwhile.
                if (issued := await self._attempted(located, key, check)) is not None:
                    return issued
            return self.issue(located, key)

    def _is_heavy(self, located: Located) -> bool:
        weight = HEAVY_WRITE_BYTES * (len(located.writes) - 1)
        for write in located.writes:
            weighs = self._weights[type(write)]
            if weighs is None:
                return False
            weight += weighs(write)
        return weight > HEAVY_BYTES

    async def _decide_in_turns(self, writing: _Writing, decision: _Decision, check: Callable[[], None]) -> None:
        weight = 0
        for place, write in enumerate(writing.located.writes):
            self._decide(writing, decision, place)
            weighs = self._weights[type(write)]
            assert weighs is not None
            weight += weighs(write) + HEAVY_WRITE_BYTES
            if weight > HEAVY_STEP_BYTES:
                weight = 0
                await turn()
                check()

    @contextmanager
    def _holding(self, partition: int) -> Iterator[None]:
        over = self._heavy[partition] = asyncio.Event()
        try:
            yield
        finally:
            del self._heavy[partition]
            over.set()

    async def _attempted(self, located: Located, key: str | None, check: Callable[[], None]) -> Issued | None:
        """Issue a request in steps; None if rows of its partition were written meanwhile. Raises as `issue`."""
        partition = self._opened(located)
        if key is not None and (before := self._before(partition, located, key)) is not None:
            return before
        writing = _Writing(located, Transaction(self._storage, lasts=True), partition, key)
        vector, due, elsewhere = partition.vector, self._eraser.due, self._elsewhere()
        with self._commit.watching(partition.number) as watch:

            def is_crossed() -> bool:
                moved = partition.vector is not vector or self._partitions.load(partition.number) is not partition
                # What is due to be erased is of the whole node: if a pass ended, what this frees would be in none.
                around = self._eraser.due is not due or self._elsewhere() != elsewhere
                return watch.crossed or moved or partition.closed or around

            try:
                decision = _Decision(self._stamp(writing.transaction, partition), partition.endings, [], [], [], [])
                await self._decide_in_turns(writing, decision, check)
                sealed = self._seal(writing, decision)
                if isinstance(sealed, _Sealed):
                    await turn()
                    check()
                    write = self._commit.begin_write(writing.transaction.rows)
                    await turn()
                    check()
                if is_crossed():
                    writing.transaction.abandoned()
                    return None
                if isinstance(sealed, Issued):
                    return sealed
                # It may have been told meanwhile to write no more, or that a peer knows no such change.
                self._incarnation.origin(writing.transaction)
                self._check_known(decision)
                return self._written(writing, decision, sealed, write())
            except BaseException as error:
                writing.transaction.abandoned()
                if isinstance(error, ShoalError) and is_crossed():
                    return None  # It is about two states at once.
                raise

    # ── one request ───────────────────────────────────────────────────────────

    def _opened(self, located: Located) -> Partition:
        partition = self._partitions.load(located.partition)
        if partition.closed:
            partition.check_open()
        return partition

    def _before(self, partition: Partition, located: Located, key: str) -> Issued | None:
        """The answer to a request of the same key, if there was one."""
        if (known := self._receipts.find(partition.number, key, located.request, located.asked)) is None:
            return None
        return Issued(known.reply, partition.written, partition.vector, partition.endings, known.dot, True, known.changed)

    def knows(self, located: Located, key: str | None) -> bool:
        """Whether a request of this key was written here."""
        if key is None:
            return False
        return self._receipts.find(located.partition, key, located.request, located.asked) is not None

    def introduce(self) -> int:
        """Take an origin, with a write of its own if this incarnation has none. Returns the number of the write to wait for."""
        if self._incarnation.current is None:
            transaction = Transaction(self._storage)
            self._incarnation.origin(transaction)
            number = self._commit.write(transaction.rows)
            transaction.written()
            return number
        return self._commit.written

    def retire(self, number: int, origins: Iterable[Origin]) -> None:
        """Retire these origins in a partition, by an operation that changes nothing else. The caller has checked that it may.

        Raises:
            ShoalError: the operation cannot be written now; nothing was.
        """
        partition, transaction = self._partitions.load(number), Transaction(self._storage)
        stamp = self._stamp(transaction, partition)
        dot, before = stamp.dot, partition.tip(stamp.dot.origin)
        retires: list[tuple[bytes, int]] = [(origin, partition.tip(origin).sequence) for origin in sorted(origins)]
        context = partition.vector.context_of(dot.origin)
        body = operation.encode(operation.Body(stamp.hlc, stamp.wall_ms, context, None, mutation.encode([]), retires=retires))
        chain = operation.chain(before.chain, number, dot, body)
        transaction.put(keys.log(number, dot), operation.LogEntry(chain, body).pack())
        ahead = Ahead(partition)
        ahead.take(dot, before.after(dot.sequence, stamp.hlc, chain, body), partition.vector)
        retirement.apply(transaction, ahead, dot, hlc=stamp.hlc, wall_ms=stamp.wall_ms, retires=retires)
        for origin, moved in ahead.tips.items():
            transaction.put(keys.vector(number, origin), moved.pack())
        ahead.written(self._commit.write(transaction.rows))
        self.operations += 1
        transaction.written()
        if self._outbound is not None:
            shipped = Shipment(number, *dot, chain, body, pack_blobs([]))
            self._outbound.logged(Logged(partition.written, partition, shipped, may_precede=False))

    def _decide(self, writing: _Writing, decision: _Decision, place: int) -> None:
        """Decide one write of the request, in the transaction."""
        located, transaction = writing.located, writing.transaction
        target, write = located.targets[place], located.writes[place]
        here = decision.stamp.at(len(decision.mutations))
        generation = self._generations.current(transaction, target)
        context = WriteContext(target, generation.rows, here, writing.key, place, located.unclaimed, self._spoken)
        imported = located.request.writes[place] if type(located.request) is requests.Import else None
        if imported is not None:
            context = _importing(context, imported)
        fence = located.fences.get(target, 0) if located.fences else 0
        if not fence and type(write) in DRIVING:
            self._eraser.check_free(target, generation.rows, located.ended.get(target, 0))
        if target.kind is Kind.THREAD:
            check_references(generation.rows, target, write, located.referring)
        decision.replies.append(self._writers[type(write)](context, write))
        self._follow(transaction, decision, target, context, generation, fence)

    def _follow(
        self,
        transaction: Transaction,
        decision: _Decision,
        target: Target,
        context: WriteContext,
        generation: Generation,
        fence: int = 0,
    ) -> None:
        """Take over the changes of a write that is decided, and do what follows from them."""
        for made in context.made:
            at = Mutation(target.kind, target.space, target.name, made.change, generation.number)
            if fence:
                at = FencedMutation(at.kind, at.space, at.name, at.change, at.generation, fence)
            if context.imported is not None:
                at = ImportedMutation(at.kind, at.space, at.name, at.change, at.generation, fence, made.stamp.wall_ms)
            decision.mutations.append(at)
            decision.attached.append(made.attached)
            decision.made.append((target, made))
            self._eraser.follow(transaction, target, made.stamp, at, made.attached, generation.rows)
        transaction.changed()

    def _check_known(self, decision: _Decision) -> None:
        if (spoken := self._spoken()) < PEER_PROTOCOL:
            _check_spoken(decision.mutations, spoken)

    def _stamp(self, transaction: Transaction, partition: Partition) -> Stamp:
        now_ms = self._now_ms()
        if self._outbound is not None:
            self._outbound.check_time(now_ms)
        origin = self._incarnation.origin(transaction)
        wall_ms = max(0, min(now_ms, END_MS - 1))  # Peers reject times outside this range.
        dot = Dot(origin, partition.tip(origin).sequence + 1)
        return Stamp(dot, self._clock.issue(wall_ms), wall_ms, partition.shown)

    def _seal(self, writing: _Writing, decision: _Decision) -> _Sealed | Issued:
        """Make the operation and put its rows into the transaction, or answer if nothing is written. Raises as `issue`."""
        located, partition, key = writing.located, writing.partition, writing.key
        replies = decision.replies
        reply: requests.AnyReply = replies[0]
        if located.writes[0] is not located.request:
            reply = requests.ImportReply(replies) if type(located.request) is requests.Import else requests.BatchReply(replies)
        if not decision.mutations and (key is None or not any(map(_is_remembered, located.writes))):
            return Issued(reply, partition.written, partition.vector, decision.endings)
        if self._outbound is not None:
            self._check_known(decision)
        payload = mutation.encode(decision.mutations)
        if operation.is_beyond(payload):
            raise TooLarge(
                f"this would be an operation of more than {operation.PARTS_MAX} values, with all that it replaces. "
                "Nothing was written. Write it in parts."
            )
        if mutation.are_beyond(decision.mutations, payload):
            raise TooLarge(
                f"this would be an operation of more than {mutation.CHANGES_MAX} changes, or {mutation.ELEMENTS_MAX} elements. "
                "Nothing was written. Write it in parts."
            )
        return self._logged(writing, decision.stamp, reply, payload)

    def _logged(self, writing: _Writing, stamp: Stamp, reply: requests.AnyReply, payload: bytes) -> _Sealed:
        """Make the operation, and put it, its tips and its key into the transaction."""
        located, transaction, partition, key = writing.located, writing.transaction, writing.partition, writing.key
        dot, number = stamp.dot, partition.number
        context = partition.vector.context_of(dot.origin)
        receipt = b"" if key is None else idempotency.pack(located.request, reply, is_redacted=bool(located.redacted))
        if located.redacted:
            redacted = [(each.path, each.rule, each.count) for each in located.redacted]
            parts = stamp.hlc, stamp.wall_ms, context, key, payload, receipt
            told: operation.Body = operation.RedactedBody(*parts, token=located.token, redacted=redacted)
        elif token := located.token:
            told = operation.TokenBody(stamp.hlc, stamp.wall_ms, context, key, payload, receipt, token=token)
        else:
            told = operation.Body(stamp.hlc, stamp.wall_ms, context, key, payload, receipt)
        body = operation.encode(told)
        before, row = partition.tip(dot.origin), keys.log(number, dot)
        chain = operation.chain_at(before.chain, row[1:], body)
        transaction.put(row, chain + body)
        tips = partition.tips_after(dot, before.after(dot.sequence, stamp.hlc, chain, body), context)
        for origin, moved in tips.items():
            transaction.put(keys.vector(partition.number, origin), moved.pack())
        if key is not None:
            transaction.put(keys.request_key(number, key), dot.pack())
            self._keyed(number)
        return _Sealed(reply, dot, chain, body, tips)

    def _written(self, writing: _Writing, decision: _Decision, sealed: _Sealed, number: int) -> Issued:
        """The transaction's rows were written, by the write of this number: update memory, and tell peers and watchers."""
        partition, dot = writing.partition, sealed.dot
        partition.adopt(partition.vector.issue(dot), sealed.tips, written=number)
        self.operations += 1
        writing.transaction.written()
        if self._outbound is not None:
            shipped = Shipment(partition.number, *dot, sealed.chain, sealed.body, pack_blobs(decision.attached))
            targets = writing.located.targets
            may_precede = _DURABLE_FIRST.isdisjoint(map(_kind, targets))
            self._outbound.logged(Logged(number, partition, shipped, targets[0].space, may_precede))
        if staged := [_staged(target, made) for target, made in decision.made if self._feed.wanted(target.space)]:
            self._feed.stage(number, staged, {partition.number: partition.vector})
        return Issued(sealed.reply, number, partition.vector, decision.endings, dot, mutations=decision.mutations)

    def _partition_of(self, targets: Sequence[Target]) -> int:
        if not targets:
            raise SpansPartitions("a batch must contain at least one write. Nothing was written.")
        if len(targets) > self._batch_writes_max:
            raise TooLarge(
                f"a batch holds at most {self._batch_writes_max} writes; this one has {len(targets)}. Nothing was written."
            )
        first = targets[0]
        partition = first.partition
        for other in targets[1:]:
            if other.partition != partition:
                raise SpansPartitions(
                    f"a batch must stay in one partition: {first.kind.label} {first.name!r} and {other.kind.label} "
                    f"{other.name!r} do not. Nothing was written. Give their names a common tag, such as "
                    "'{crew-7}/planner' and '{crew-7}/tokens', and use one space; or put a small crew into a colocated space, "
                    "such as '{crew}' or space('crew', colocated=True), where all objects share one partition."
                )
        return partition


def writes_of(request: requests.Batch | requests.Import) -> list[ObjectWrite[Any]]:
    """The writes that a request holds."""
    return request.writes if type(request) is requests.Batch else [each.write for each in request.writes]


def _importing(context: WriteContext, imported: requests.Imported) -> WriteContext:
    """The context of a write that was made elsewhere before, at a time that is not to come."""
    first = context.stamp
    if 0 < imported.time_ms < first.wall_ms:
        first = replace(first, wall_ms=imported.time_ms)
    return context.importing(first, imported)


def _is_remembered(write: ObjectWrite[Any]) -> bool:
    """Whether the key of a request is kept although nothing changed."""
    removes = requests.declaration_of(type(write)).removes
    return removes is not None and removes(write)


def _check_spoken(mutations: Iterable[Mutation], spoken: int) -> None:
    for each in mutations:
        if mutation.since(each.change) > spoken or (type(each) is ImportedMutation and spoken < IMPORTS_SINCE):
            raise Unavailable(
                f"a node of this cluster runs an older version, which speaks version {spoken} of the peer protocol and cannot "
                f"apply this change to {each.name!r}. Nothing was written. Try again once all nodes are upgraded."
            )


def _staged(target: Target, made: Made) -> Staged:
    stamp = made.stamp
    change = change_of(target, stamp, made.change)
    began = cast(deletion.Delete, made.change).generation + 1 if mutation.ends(made.change) else 0
    return Staged(target.partition, change, stamp, made.edit or mutation.edit_of(made.change, made.attached), began)
