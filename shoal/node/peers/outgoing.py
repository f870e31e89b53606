"""Operations from the log for a peer: the sending half of replication.

Laws:
- Only durable operations are shipped. A range that begins at or below the base is left out: `truncated` names it.
- Within a partition they are in HLC order, which is a causal order, so that the
  receiver can apply them as they arrive.

Operations that are written and not durable yet, in the order of their writes.

Laws:
- Those that were issued here go to the peers one of each space in turn, and in the order of their writes within a partition.
- They go once a sync that covers them has begun. One that may not precede it, and those after it in its partition, go once it
  is over.

The parts of a database that exchange operations with peers, and compare rows with them.

Law: a store without peers does not import it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from msgspec import Raw, Struct

from shoal.cluster import operation
from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Busy, Range, Shipment, Supply, Truncated, Want, encode_shipment
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector, wall_ms_of
from shoal.errors import InvalidValue, StorageError, StoreCorrupt
from shoal.node import mutation, transaction
from shoal.node.collection.entries import Generation, Generations
from shoal.node.collection.garbage import Collector
from shoal.node.context import NodeContext
from shoal.node.handler import Memories, Target
from shoal.node.mutation import ImportedMutation
from shoal.node.partitions import Partition, Partitions
from shoal.node.peers.incoming import Incoming
from shoal.node.tiering.chunks import Chunks
from shoal.node.transaction import Transaction
from shoal.node.verification.evidence import Evidence
from shoal.node.verification.rebuilding import Forget, Rebuilder
from shoal.node.writes.erasing import Eraser
from shoal.node.writes.issuing import Logged
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

SUPPLY_BYTES_MAX = 256 * 1024  # Operations in one answer to a peer that asked for them; the first one may exceed it.
SUPPLY_OPERATIONS_MAX = 512  # In one such answer: small ones take long to read before they fill it.

_BUSY_MS = 100

T = TypeVar("T")


def busy(id: int) -> Busy:
    """The answer to a Want while too many bytes wait to be sent to the peer."""
    return Busy(id, "too many bytes wait to be sent to you", _BUSY_MS)


class _Logged(NamedTuple):
    hlc: int
    dot: Dot
    entry: operation.LogEntry
    body: operation.Body


class _Objects:
    """The objects of one answer's operations: the current generation of each is looked up once."""

    def __init__(self, storage: Storage, generations: Generations, chunks: Chunks) -> None:
        self._transaction = Transaction(storage)
        self._generations = generations
        self._chunks = chunks
        self._found: dict[tuple[int, str, str], tuple[Target, Generation]] = {}

    def attached(self, logged: _Logged, nth: int, change: ImportedMutation) -> Blobs:
        """The blobs of an operation's change.

        Raises:
            StoreCorrupt: as `Generations.attached_of`.
        """
        if not mutation.names_content(change.change):
            return NOTHING
        name = change.kind, change.space, change.name
        found = self._found.get(name)
        if found is None:
            target = Target(Kind(change.kind), change.space, change.name)
            found = self._found[name] = target, self._generations.current(self._transaction, target)
        target, current = found
        stamp = change.stamp(logged.dot, logged.body, NOTHING_SEEN, nth)
        if change.generation == current.number:
            try:
                return mutation.attached_of(current.rows, stamp, change.change)
            except StoreCorrupt as error:
                self._chunks.soon(target, error.lost)  # What is away is here when the peer asks again.
                raise
        return self._generations.attached_of(self._transaction, target, stamp, change)


class Outgoing:
    """Reads operations and their blobs from storage."""

    def __init__(self, context: NodeContext, generations: Generations, chunks: Chunks) -> None:
        self._storage = context.storage
        self._partitions = context.partitions
        self._generations = generations
        self._chunks = chunks
        self._config = context.config

    def answers(self, want: Want, *, is_behind: bool) -> list[Truncated | Supply | Busy]:
        """The answers to a peer that wants operations. `is_behind` says that too many bytes wait to be sent to it already."""
        if is_behind:
            return [busy(want.id)]
        truncated = [Truncated(number, base.pack()) for number, base in self.truncated(want.ranges)]
        try:
            bytes_max, most = SUPPLY_BYTES_MAX, SUPPLY_OPERATIONS_MAX
            return [*truncated, Supply(want.id, self.shipments(want.ranges, bytes_max=bytes_max, operations_max=most))]
        except StorageError as error:
            wait_ms = _BUSY_MS if self._chunks.is_fetching else int(self._config.quarantine_s * 1000)
            return [*truncated, Busy(want.id, error.message[:1000], wait_ms)]

    def shipments(self, ranges: Iterable[Range], *, bytes_max: int, operations_max: int) -> list[Raw]:
        """Encoded operations of these ranges, as far as they are durable, until they reach one of the bounds.

        Damage in one partition only ends the operations of that partition.

        Raises:
            StoreCorrupt: damage left no operation at all.
        """
        durable = [(number, o, first, min(last, self._durable(number, o))) for number, o, first, last in ranges]
        found = self.read(durable, lambda raw: len(memoryview(raw)), encode_shipment, bytes_max=bytes_max, most=operations_max)
        return [encoded for _, encoded in found]

    def read(
        self,
        ranges: Iterable[Range],
        size_of: Callable[[T], int],
        encode: Callable[[Shipment], T],
        *,
        bytes_max: int,
        most: int,
    ) -> list[tuple[int, T]]:
        """As `shipments`, of ranges that are durable: the time of each operation, and what `encode` makes of it."""
        found: list[tuple[int, T]] = []
        objects = _Objects(self._storage, self._generations, self._chunks)
        size = 0
        damage: StoreCorrupt | None = None
        for number, group in groupby(ranges, key=lambda wanted: wanted[0]):
            try:
                for logged in self._logged(number, list(group)):
                    if size >= bytes_max or len(found) >= most:
                        return found
                    found.append((logged.hlc, encode(self._shipped(number, logged, objects))))
                    size += size_of(found[-1][1])
            except StoreCorrupt as error:  # The peer still gets those of other partitions.
                damage = error
        if damage is not None and not found:
            raise damage
        return found

    def truncated(self, ranges: Iterable[Range]) -> list[tuple[int, VersionVector]]:
        """The partitions, with their bases, of which a range begins with operations that have left the log."""
        found: dict[int, dict[Origin, int]] = {}
        for number, origin, first, _ in ranges:
            base = self._partitions.load(number).base
            if base[Origin(origin)] >= first:
                found.setdefault(number, dict(base))[Origin(origin)] = base[Origin(origin)]  # It may be a retired one.
        return [(number, VersionVector(base)) for number, base in found.items()]

    def oldest_wall_ms(self, places: Iterable[tuple[int, Dot]]) -> int | None:
        """The time at which the oldest of these operations was issued, by its issuer's clock; None if it is not known.

        Of an operation that has left the log, it is that of the last one of its origin that has.
        """
        times: list[int] = []
        for number, dot in places:
            base = self._partitions.load(number).bases.get(dot.origin)
            if base is not None and base.sequence >= dot.sequence:
                times.append(wall_ms_of(base.hlc))
            elif (stored := self._storage.get(keys.log(number, dot))) is not None:
                times.append(operation.decode(operation.LogEntry.unpack(stored).packed).wall_ms)
        return min(times, default=None)

    def _durable(self, number: int, origin: bytes) -> int:
        return self._partitions.load(number).durable[Origin(origin)]

    def _logged(self, number: int, ranges: list[Range]) -> Iterator[_Logged]:
        partition = self._partitions.load(number)
        if partition.closed:
            return iter(())
        runs = [
            self._run(number, Origin(origin), first, last)
            for _, origin, first, last in ranges
            if first > partition.base[Origin(origin)]
        ]
        return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=lambda logged: (logged.hlc, logged.dot))

    def _run(self, number: int, origin: Origin, first: int, last: int) -> Iterator[_Logged]:
        if last < first:
            return
        for key, stored in self._storage.scan(keys.log(number, Dot(origin, first)), keys.log(number, Dot(origin, last + 1))):
            entry = operation.LogEntry.unpack(stored)
            body = _body(number, entry)
            yield _Logged(body.hlc, keys.split_log(key)[1], entry, body)

    def _shipped(self, number: int, logged: _Logged, objects: _Objects) -> Shipment:
        mutations = mutation.decode(logged.body.payload)
        besides = [objects.attached(logged, nth, change) for nth, change in enumerate(mutations)]
        dot, entry = logged.dot, logged.entry
        return Shipment(number, dot.origin, dot.sequence, entry.chain, entry.packed, transaction.pack_blobs(besides))


def _body(number: int, entry: operation.LogEntry) -> operation.Body:
    try:
        return operation.decode(entry.packed)
    except InvalidValue as error:
        raise StoreCorrupt(f"an operation in the log of partition {number}: {error.message} Run `shoal verify`.") from None


Run = tuple[bytes, int, Dot, int]
"""The peer that sent operations of one origin, their partition, the last of them, and their number."""


class _Unsettled(Struct, frozen=True):
    """Operations of one origin."""

    number: int  # Of the storage write.
    partition: Partition
    last: Dot
    operations: int
    shipment: Shipment | None  # If it is one that was issued here;
    peer: bytes  # else the peer that sent them.
    space: str = ""
    may_precede: bool = False


class Settled(NamedTuple):
    """The operations that a group commit made durable."""

    unsent: list[Shipment]  # Of the operations that were issued here, those that did not go to the peers before.
    issued: dict[tuple[int, Origin], int]  # The last of them all, by partition and origin.
    stored: list[Run]  # Operations of peers.


class Settling:
    """The queue of these operations; bounded by `writes_pending_max` writes."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._unsettled: deque[_Unsettled] = deque()
        self._unsent: deque[_Unsettled] = deque()  # Those of them that were issued here and did not go to the peers.

    def issued(self, logged: Logged) -> None:
        """An operation of this node was written."""
        shipment = logged.shipment
        dot, space = shipment.dot, logged.space
        mine = _Unsettled(logged.number, logged.partition, dot, 1, shipment, b"", space, logged.may_precede)
        self._unsettled.append(mine)
        self._unsent.append(mine)

    def begun(self, number: int) -> list[Shipment]:
        """A sync of all writes up to this number is under way. Returns the operations that go to the peers beside it."""
        sent: list[_Unsettled] = []
        kept: deque[_Unsettled] = deque()
        held: set[int] = set()
        for each in self._unsent:
            place = each.partition.number
            if each.number > number or not each.may_precede or place in held:
                held.add(place)
                kept.append(each)
            else:
                sent.append(each)
        self._unsent = kept
        return _in_turns(sent)

    def applied(self, peer: bytes, number: int, arrivals: Iterable[Arrival]) -> set[int]:
        """Operations of a peer were written, with this number. Returns their partitions."""
        runs: dict[tuple[int, Origin], list[int]] = {}
        for arrival in arrivals:
            runs.setdefault((arrival.shipment.partition, arrival.dot.origin), []).append(arrival.dot.sequence)
        for (partition, origin), sequences in runs.items():
            last = Dot(origin, sequences[-1])
            self._unsettled.append(_Unsettled(number, self._partitions.load(partition), last, len(sequences), None, peer))
        return {partition for partition, _ in runs}

    def settle(self, number: int) -> Settled:
        """All writes up to this number are durable."""
        unsent: list[_Unsettled] = []
        issued: dict[tuple[int, Origin], int] = {}
        stored: list[Run] = []
        while self._unsettled and self._unsettled[0].number <= number:
            settled = self._unsettled.popleft()
            settled.partition.settle(settled.last, settled.operations)
            if settled.shipment is None:
                stored.append((settled.peer, settled.partition.number, settled.last, settled.operations))
            else:
                issued[settled.partition.number, settled.last.origin] = settled.last.sequence
        while self._unsent and self._unsent[0].number <= number:
            unsent.append(self._unsent.popleft())
        return Settled(_in_turns(unsent), issued, stored)


def _in_turns(issued: Sequence[_Unsettled]) -> list[Shipment]:
    """One of each space in turn, but none before an older one of its partition."""
    shipments = [each.shipment for each in issued if each.shipment is not None]
    if len({each.space for each in issued}) < 2:
        return shipments
    rounds: dict[str, int] = {}
    reached: dict[int, int] = {}  # By partition.
    ranks: list[int] = []
    for each in issued:
        number = each.partition.number
        nth = rounds[each.space] = rounds.get(each.space, 0) + 1
        reached[number] = max(nth, reached.get(number, 0))
        ranks.append(reached[number])
    return [shipment for _, shipment in sorted(zip(ranks, shipments, strict=True), key=itemgetter(0))]


class Exchange:
    """The parts of a database that only peers need. Each is the only one of its database."""

    def __init__(
        self,
        context: NodeContext,
        *,
        chunks: Chunks,
        memories: Memories,
        eraser: Eraser,
        garbage: Collector,
        forget: Forget,
        keyed: Callable[[int], None],
    ) -> None:
        self.incoming = Incoming(context, memories=memories, eraser=eraser, keyed=keyed)
        self.outgoing = Outgoing(context, chunks.generations, chunks)
        self.evidence = Evidence(context.storage, context.partitions)
        self.rebuilder = Rebuilder(context, generations=chunks.generations, garbage=garbage, forget=forget)
