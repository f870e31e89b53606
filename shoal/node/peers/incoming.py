"""Operations of other nodes, checked and applied: the receiving half of replication.

Laws:
- An operation is applied whole or not at all, and only after everything that its
  origin issued before it: its chain hash must follow from the stored one.
- The blobs that it names by hash must be there and match. Otherwise it is rejected
  and leaves no trace, and so are the operations that follow it.
- A call makes one storage write.
- An operation of many changes, or of one with many elements, is drafted in steps, and what was drafted counts if nothing that
  it follows from has changed since; else all is done at once. So it is applied as any other.

The checks of large operations, in steps, before they are applied.

Law: vetting decides nothing. It does beforehand what takes long in the check of an operation, which then finds it done;
an operation that is not vetted, or whose vetting fails, is checked whole when it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial

from shoal.cluster import operation
from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import NO_TIP, Readiness, Tip, readiness
from shoal.crdt.applier import Applier, Blobs, is_gone
from shoal.crdt.dot import END_HLC, END_MS, Dot, is_plausible
from shoal.crdt.rows import Stamp
from shoal.errors import BadOperation, ShoalError
from shoal.kinds.document.changes import SHORT_BYTES as SHORT_BYTES
from shoal.kinds.document.state.document import Pace
from shoal.kinds.thread.state import dag
from shoal.names import MEMOIZED_MAX, check_key, check_name
from shoal.node import mutation
from shoal.node import partitions as retirement
from shoal.node.collection import answers
from shoal.node.context import NodeContext
from shoal.node.handler import Applied, Memories, Place, Target
from shoal.node.mutation import Change, Mutation
from shoal.node.partitions import Ahead, Partition
from shoal.node.transaction import Nested, Transaction, unpacking_sent
from shoal.node.turns import Steps, at_once
from shoal.node.watching.changelog import change_of
from shoal.node.watching.feed import Staged
from shoal.node.writes.erasing import Eraser
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.commit import Watch
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

CHANGES_STEP_MAX = 128  # Of one operation, applied in one step of its draft,
_ELEMENTS_PER_CHANGE = 4  # where so many elements count as one more,
_BYTES_PER_CHANGE = 1024  # and so many bytes;
_BLOB_BYTES_PER_CHANGE = 32 * 1024  # of what is beside it, so many;
_VETTED_BYTES_PER_CHANGE = 64  # of what must be looked through, so many.


class Received(NamedTuple):
    """The outcome of applying operations."""

    number: int  # The storage write to wait for; 0 if nothing was applied.
    applied: list[Arrival]
    refused: list[tuple[Arrival, ShoalError]]
    dangling: list[Target]  # Threads with a save that builds on a pruned checkpoint.


class _Ahead(Ahead):
    __slots__ = ("latest",)

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        self.latest = 0  # The greatest time among what was applied.

    def follows(self, arrival: Arrival) -> bool:
        return readiness(self.vector, arrival.dot, arrival.body.context) is Readiness.READY


class _Object:
    """An object that operations of one write change: its names were checked, and its current generation was looked up."""

    __slots__ = ("generation", "place", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.generation = -1
        self.place: Place | None = None  # The rows of that generation; None: look it up.


class _Batch:
    """One write in the making. `own` holds the rows of one operation, until they are taken over or dropped."""

    def __init__(self, storage: Storage, *, lasts: bool = False) -> None:
        self.transaction = Transaction(storage, lasts=lasts)
        self.own = Nested(self.transaction, lasts=lasts)
        self.ahead: dict[int, _Ahead] = {}
        self.objects: dict[tuple[int, int, str, str], _Object] = {}  # By partition, kind, space and name.
        self.staged: list[Staged] = []
        self.received = Received(0, [], [], [])

    def take_over(self) -> None:
        """Keep what `own` holds."""
        self.transaction.absorb(self.own)
        self.own.clear()

    def drop(self) -> None:
        """Undo what `own` holds, and forget what may have been looked up in it."""
        self.own.abandoned()
        self.own.clear()
        self.objects.clear()


class _Draft:
    """An operation as it would be applied now, or what is wrong with it."""

    __slots__ = ("batch", "error", "is_done", "is_used", "tip", "watched")

    def __init__(self, batch: _Batch) -> None:
        self.batch = batch
        self.tip = NO_TIP
        self.error: Exception | None = None
        self.is_done = self.is_used = False
        self.watched: tuple[object, ...] = ()  # What it follows from, beside rows of its partition.


class Incoming:
    """Applies operations of other nodes. `keyed` is called with the partition of each that has a key."""

    def __init__(self, context: NodeContext, *, memories: Memories, eraser: Eraser, keyed: Callable[[int], None]) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._partitions = context.partitions
        self._clock = context.clock
        self._incarnation = context.incarnation
        self._memories = memories
        self._eraser = eraser
        self._feed = context.feed
        self._window_ms = int(context.config.key_window_s * 1000)
        self._keyed = keyed
        self._members: Callable[[], Collection[bytes]] = tuple
        self._drafts: dict[int, tuple[_Draft, Watch]] = {}  # By the identity of the shipment, which whoever drafts holds.

    def replicate(self, members: Callable[[], Collection[bytes]]) -> None:
        """From now on these directories are the other members': each retires its own origins, until it is removed."""
        self._members = members

    def apply(self, arrivals: Sequence[Arrival]) -> Received:
        """Apply operations that are causally ready, in this order. Rejected ones are listed, not raised.

        Raises:
            ReadOnly, StorageFull: storage failed before, or now; nothing was applied.
            Overloaded: too many writes wait for the disk; nothing was applied. Try again.
        """
        batch = _Batch(self._storage)
        try:
            for arrival in arrivals:
                self._try(batch, arrival)
            return self._write(batch) if batch.received.applied else batch.received
        except BaseException:
            batch.transaction.abandoned()
            raise

    def same(self, arrival: Arrival) -> bool:
        """Whether this node holds no different operation under this dot, as far as its log or its base tell."""
        number, dot = arrival.shipment.partition, arrival.dot
        base = self._partitions.load(number).bases.get(dot.origin)
        if base is not None and base.sequence == dot.sequence:
            return base.chain == arrival.shipment.chain
        stored = self._storage.get(keys.log(number, dot))
        return stored is None or operation.LogEntry.unpack(stored).chain == arrival.shipment.chain

    def logged(self, shipment: Shipment) -> bool:
        """Whether the log holds this operation, byte for byte."""
        stored = self._storage.get(keys.log(shipment.partition, shipment.dot))
        return stored is not None and operation.LogEntry.unpack(stored) == operation.LogEntry(shipment.chain, shipment.packed)

    def _try(self, batch: _Batch, arrival: Arrival) -> None:
        number = arrival.shipment.partition
        place = batch.ahead.get(number)
        if place is None:
            place = batch.ahead[number] = _Ahead(self._partitions.load(number))
        if batch.received.refused and not place.follows(arrival):
            return  # An operation before it was rejected.
        staged = len(batch.staged)
        try:
            drafted = self._drafted(batch, place, arrival) if self._drafts else None
            tip = drafted or self._apply(batch, place, arrival)
        except Exception as error:  # No content of an operation may stop the node.
            batch.drop()
            del batch.staged[staged:]
            batch.received.refused.append((arrival, refusal(arrival.shipment, error)))
            return
        batch.take_over()
        place.latest = max(place.latest, tip.hlc)
        body = arrival.body
        place.take(arrival.dot, tip, body.knowing())
        if body.retires:
            retirement.apply(batch.transaction, place, arrival.dot, hlc=body.hlc, wall_ms=body.wall_ms, retires=body.retires)
        batch.received.applied.append(arrival)

    def _apply(self, batch: _Batch, place: _Ahead, arrival: Arrival) -> Tip:
        return at_once(self._applying(batch, place, arrival))

    def _applying(self, batch: _Batch, place: _Ahead, arrival: Arrival) -> Steps[Tip]:
        """Apply an operation, some of its changes at a time."""
        shipment, body, dot, mutations, _ = arrival
        own, number, before = batch.own, shipment.partition, place.tip(dot.origin)
        if not before.sequence:
            _check_retired(arrival, place)
        row = keys.log(number, dot)
        if operation.chain_at(before.chain, row[1:], shipment.packed) != shipment.chain:
            raise _bad(arrival, "its chain hash does not follow from its origin's operation before it", "chain")
        _check_body(arrival, before)
        if body.retires:
            retirement.check(place, dot, body.retires, own=self._incarnation.current, members=self._members())
        if body.hlc >= END_HLC and not is_plausible(body.hlc, seen=max(self._clock.last, place.latest)):
            raise _bad(arrival, "its time is beyond all clocks", "content")
        mutations = (yield from mutation.decoding_sent(body.payload)) if mutations is None else mutations
        besides = yield from unpacking_sent(shipment.attached)
        if len(mutations) != len(besides):
            raise _bad(arrival, "the number of its blobs differs from that of its changes", "content")
        fresh: str | None = None
        if body.key is not None:
            if self._claim(own, number, body.key, dot, body.wall_ms):
                fresh = body.key
            self._keyed(number)
        weight = 0
        for nth, (change, beside) in enumerate(zip(mutations, besides, strict=True)):
            if weight >= CHANGES_STEP_MAX:
                yield
                weight = 0
            weight += _weight(change, len(beside.content))
            stamp = change.stamp(dot, body, place.shown, nth)
            yield from self._change(batch, number, stamp, change, beside, fresh)
        own.changed()
        own.rows[row] = shipment.chain + shipment.packed
        return before.after(arrival.dot.sequence, arrival.body.hlc, shipment.chain, shipment.packed)

    # ── many changes ──────────────────────────────────────────────────────────

    @contextmanager
    def drafting(self, arrival: Arrival) -> Iterator[Steps[None]]:
        """The steps that draft an operation. It is applied within, after the last of them."""
        draft = _Draft(_Batch(self._storage, lasts=True))
        with self._commit.watching(arrival.shipment.partition) as watch:
            self._drafts[id(arrival.shipment)] = draft, watch
            try:
                yield self._draft(draft, arrival)
            finally:
                del self._drafts[id(arrival.shipment)]
                if not draft.is_used:
                    draft.batch.own.abandoned()

    def _draft(self, draft: _Draft, arrival: Arrival) -> Steps[None]:
        partition = self._partitions.load(arrival.shipment.partition)
        place = _Ahead(partition)
        # What a change does in memory at once cannot be taken back.
        if arrival.changes is None or not all(self._memories.are_within(Kind(each.kind)) for each in arrival.changes):
            return
        if partition.closed or not place.follows(arrival):
            return
        draft.watched = self._around(arrival)
        try:
            draft.tip = yield from self._applying(draft.batch, place, arrival)
        except Exception as error:  # It is refused with that when it is taken.
            draft.error = error
        draft.is_done = True

    def _around(self, arrival: Arrival) -> tuple[object, ...]:
        partition = self._partitions.load(arrival.shipment.partition)
        spaces = tuple(self._feed.wanted(space) for space in sorted({each.space for each in arrival.changes}))
        return partition, partition.vector, partition.closed, self._eraser.due, spaces

    def _drafted(self, batch: _Batch, place: _Ahead, arrival: Arrival) -> Tip | None:
        """Take over what was drafted, if it is still what would be made; None: it is not."""
        draft, watch = self._drafts.get(id(arrival.shipment), (None, None))
        if draft is None or watch is None or not draft.is_done or batch.transaction.rows or batch.received.applied:
            return None
        # The vector is another object after each operation.
        around = zip(draft.watched, self._around(arrival), strict=True)
        if watch.crossed or not all(was is now or (isinstance(was, tuple) and was == now) for was, now in around):
            return None
        if draft.error is not None:
            raise draft.error
        draft.is_used = True
        batch.own.absorb(draft.batch.own)
        batch.staged += draft.batch.staged
        batch.received.dangling.extend(draft.batch.received.dangling)
        return draft.tip

    def _claim(self, own: Transaction, number: int, key: str, dot: Dot, wall_ms: int) -> bool:
        """Let a key name the operation that it stands for. Returns whether no operation had it before."""
        row = keys.request_key(number, key)
        claimed = own.get(row)
        if claimed is not None:
            named = answers.unpack_answer(claimed)
            named_ms = named.wall_ms if named.wall_ms is not None else self._issued_ms(own, number, named.dot) or wall_ms
            if not answers.counts(dot, wall_ms, named.dot, named_ms, window_ms=self._window_ms):
                return False
        own.put(row, dot.pack())
        return claimed is None

    def _issued_ms(self, own: Transaction, number: int, dot: Dot) -> int | None:
        """When an operation in the log was issued; None if it is missing there."""
        stored = own.get(keys.log(number, dot))
        return None if stored is None else operation.decode(operation.LogEntry.unpack(stored).packed).wall_ms

    def _change(
        self, batch: _Batch, number: int, stamp: Stamp, change: Mutation, beside: Blobs, fresh: str | None
    ) -> Steps[None]:
        own, made, name = batch.own, change.change, (number, change.kind, change.space, change.name)
        found = batch.objects.get(name)
        if found is None:
            found = batch.objects[name] = _Object(_target(*name))
        target, applier = found.target, mutation.applier_of(made)
        if target.kind is not applier.kind and not applier.takes(target.kind):
            raise BadOperation(f"a {target.kind.label} takes no change of another kind of object", reason="content")
        place = found.place
        if place is None or change.generation != found.generation:
            current = self._eraser.belongs(own, target, change)
            place = None if current is None else Place(own, current.rows, target)
            found.place, found.generation = place, change.generation
        applied: Applied | None = None
        if applier.effects.ends:
            self._eraser.check(change)
            found.place = None
        elif place is None:
            self._eraser.bury(own, target, stamp, change, beside)
            return
        else:
            applied = yield from self._receive(batch, place, applier, Applied(stamp, made, beside, None, fresh))
        known = beside if applied is None else applied.attached  # Decoded by the check.
        self._eraser.follow(own, target, stamp, change, known, None if place is None else place.rows)
        if self._feed.wanted(target.space):
            edit = None if place is None or applied is None else self._told(place, applied)
            began = change.generation + 1 if applier.effects.ends and place is not None else 0
            batch.staged.append(Staged(number, change_of(target, stamp, made), stamp, edit, began))

    def _receive(self, batch: _Batch, place: Place, applier: Applier, sent: Applied) -> Steps[Applied | None]:
        """Check and apply a change; None: its content was erased, maybe by an operation that has not arrived yet."""
        stamp, change, beside, fresh = sent.stamp, sent.change, sent.attached, sent.fresh
        record = applier.effects.record
        if record is not None and self._dangles(place, beside, record):
            batch.own.when_written(partial(batch.received.dangling.append, place.target))
        checked, outcome = beside, None
        for nth, part in enumerate(_parts(applier, change)):
            if nth:
                yield
            try:
                checked = applier.check(place.rows, stamp, part, beside)
            except BadOperation:
                if not is_gone(beside):
                    raise
                return None
            outcome = applier.apply(place.rows, stamp, part, checked)
        applied = Applied(stamp, change, checked, outcome, fresh)
        for memory in self._memories.concerned[place.target.kind]:
            memory.applied(place, applied)
        return applied

    def _told(self, place: Place, applied: Applied) -> requests.Edit | None:
        told = (memory.told(place, applied) for memory in self._memories.of(place.target.kind))
        return next((edit for edit in told if edit is not None), None)

    def _dangles(self, place: Place, beside: Blobs, record_of: Callable[[Blobs], dag.Record]) -> bool:
        """Whether a checkpoint builds on a pruned one, whose chunks may be swept here."""
        if not self._eraser.may_have_pruned(place.rows, place.target) or is_gone(beside):
            return False
        bases = {recipe.base for recipe in record_of(beside).channels.values() if recipe.base}
        return any(dag.shown(place.rows, base) is None for base in bases)

    def _write(self, batch: _Batch) -> Received:
        transaction, ahead = batch.transaction, batch.ahead
        self._incarnation.settle(transaction)
        for partition, place in ahead.items():
            for origin, tip in place.tips.items():
                transaction.rows[keys.vector(partition, origin)] = tip.pack()
        number = self._commit.write(transaction.rows)
        for place in ahead.values():
            place.written(number)
        self._clock.observe(max([place.latest for place in ahead.values()]))
        transaction.written()
        if batch.staged:
            self._feed.stage(number, batch.staged, {partition: place.vector for partition, place in ahead.items()})
        return batch.received._replace(number=number)


@lru_cache(maxsize=MEMOIZED_MAX)  # Only those that are legal are kept.
def _target(number: int, kind: int, space: str, name: str) -> Target:
    """The object of these names in this partition.

    Raises:
        BadOperation, InvalidName: no node issues such a change in this partition.
    """
    target = Target(keys.kind_of(kind), check_name("space", space), check_name("object", name))
    if target.partition != number:
        raise BadOperation("its object belongs to another partition", reason="content")
    return target


def _check_body(arrival: Arrival, before: Tip) -> None:
    """Check an operation's times and key. Its mutations are checked where they are applied.

    Raises:
        BadOperation, InvalidName: no node issues such an operation.
    """
    body = arrival.body
    if not before.hlc < body.hlc:
        raise _bad(arrival, "its time is not after the one before it", "content")
    if not 0 <= body.wall_ms < END_MS:
        raise _bad(arrival, "its wall time is beyond all clocks", "content")
    if body.key is not None:
        check_key("idempotency key", body.key)


def _check_retired(arrival: Arrival, place: Ahead) -> None:
    """Check an operation of an origin that has no tip here.

    Raises:
        BadOperation: the origin was retired, or may have been and is forgotten.
    """
    found = place.retired.find(arrival.dot.origin)
    if found is not None:
        raise _bad(
            arrival,
            f"its origin was retired after operation {found.sequence}: a copy of the directory still writes under it, or an "
            "old directory was put back",
            "retired",
        )
    if 0 < arrival.body.hlc <= place.retired.summary.forgotten_hlc:
        raise _bad(arrival, "its origin was retired, so long ago that this node has forgotten it", "retired")


def _bad(arrival: Arrival, why: str, reason: str) -> BadOperation:
    return _not_applied(arrival.shipment, why, reason)


def _not_applied(shipment: Shipment, why: str, reason: str) -> BadOperation:
    return BadOperation(
        f"operation {shipment.sequence} of origin {shipment.origin.hex()} in partition {shipment.partition} was not applied: "
        f"{why}. Nothing of it was written.",
        reason=reason,
    )


def refusal(shipment: Shipment, error: Exception) -> ShoalError:
    """The error that its sender is told: which operation was not applied, and why."""
    if isinstance(error, BadOperation) and error.message.startswith("operation "):
        return error
    why = error.message.rstrip(".") if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    return _not_applied(shipment, why, "content")


def is_large(shipment: Shipment, changes: Sequence[Mutation] | None) -> bool:
    """Whether a look at what is beside these changes takes more than one step."""
    if changes is None or len(shipment.attached) <= SHORT_BYTES:
        return False
    return any(mutation.applier_of(each.change).vet is not None for each in changes)


def is_long(shipment: Shipment, changes: Sequence[Mutation] | None) -> bool:
    """Whether to apply these changes takes more than one step."""
    if not changes:
        return False
    is_vetted = any(mutation.applier_of(each.change).vet is not None for each in changes)
    if len(changes) == 1 and (is_vetted or len(shipment.packed) <= CHANGES_STEP_MAX * _ELEMENTS_PER_CHANGE):
        # One update of a document is looked at before, and a live document takes it. Elements have a byte each, at least.
        return not is_vetted and len(shipment.attached) > CHANGES_STEP_MAX * _BLOB_BYTES_PER_CHANGE
    beside = len(shipment.attached) // (_VETTED_BYTES_PER_CHANGE if is_vetted else _BLOB_BYTES_PER_CHANGE)
    return sum(_weight(each, 0) for each in changes) + beside > CHANGES_STEP_MAX


def _parts(applier: Applier, change: Change) -> Iterable[Change]:
    most = CHANGES_STEP_MAX * _ELEMENTS_PER_CHANGE
    return (change,) if applier.parts is None or mutation.elements(change) <= most else applier.parts(change, most)


def _weight(change: Mutation, beside: int) -> int:
    """The cost of applying a change, as so many small ones."""
    made = change.change
    per_change = _BYTES_PER_CHANGE if mutation.applier_of(made).vet is None else _VETTED_BYTES_PER_CHANGE
    fields = (getattr(made, name) for name in made.__struct_fields__)
    size = beside + sum(len(field) for field in fields if isinstance(field, bytes))
    return 1 + mutation.elements(made) // _ELEMENTS_PER_CHANGE + size // per_change


def vet(shipment: Shipment, pace: Pace) -> Steps[None]:
    """Look at what is beside the changes of an operation, some of it at a time."""
    with suppress(Exception):  # No content of an operation may stop the node: its check says what is wrong.
        body = yield from operation.decoding_sent(shipment.packed)
        changes = yield from mutation.decoding_sent(body.payload)
        besides = yield from unpacking_sent(shipment.attached)
        looked_at = 0
        for change, beside in zip(changes, besides, strict=False):
            if looked_at >= CHANGES_STEP_MAX:
                yield
                looked_at = 0
            looked_at += _weight(change, len(beside.content))
            if not is_gone(beside) and (steps := mutation.vetting(change.change, beside, pace)) is not None:
                yield from steps
