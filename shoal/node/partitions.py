"""The operations that this replica has applied, per partition: the tip and the base of every origin's log.

Laws:
- A tip is read from storage once and updated with every write, so that `vector`
  always covers a contiguous prefix of every origin's operations.
- The log in storage holds exactly the operations that `vector` covers and `base` does not.
- An origin that was retired has no tip and no base, but `vector` covers it (`shoal.node.retired`).

Retire origins in a partition: what an operation that names some (`Body.retires`) does, issued here or received.

Laws:
- An operation retires an origin only after every owner holds all of the origin, and everything that any owner held by then
  (`shoal.node.collection.retiring`). It knows of all that itself, so it is applied after all that. Those of a member are
  retired by that member alone, until it is removed.
- The tip of the origin goes, and a row of table `R` comes, in the batch of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from shoal.cluster.knowledge import Totals
from shoal.cluster.operation import NO_TIP, Tip
from shoal.crdt.dot import HORIZON, NOTHING_SEEN, ORIGIN_BYTES, Dot, HybridClock, Origin, VersionVector, belongs
from shoal.crdt.rows import successor
from shoal.errors import BadOperation, CatchingUp
from shoal.node.retired import RetiredLogs, RetiredOrigins, Retirement
from shoal.node.transaction import Transaction
from shoal.storage import keys
from shoal.storage.interface import Storage


class Partition:
    """One partition of a node: the operations applied (`vector`, `tips`), durable (`durable`), and gone from the log (`base`).

    Mutable.
    """

    __slots__ = (
        "_leaving",
        "_on_retired",
        "base",
        "bases",
        "closed",
        "durable",
        "endings",
        "number",
        "operations",
        "retired",
        "tips",
        "totals",
        "vector",
        "written",
    )

    def __init__(
        self,
        number: int,
        tips: dict[Origin, Tip],
        totals: Totals | None = None,
        *,
        retired: RetiredOrigins,
        on_retired: Callable[[Collection[Origin]], None],
        bases: dict[Origin, Tip] | None = None,
    ) -> None:
        self.number = number
        self._on_retired = on_retired
        self.retired = retired
        self._leaving: list[tuple[Dot, Collection[Origin]]] = []  # Operations that are not durable yet, and what they retire.
        self.tips = tips
        self.closed = False  # Whether it is being replaced, or was: a snapshot of a peer takes its place.
        self.bases = {origin: base for origin, base in (bases or {}).items() if origin in tips}
        self.base = VersionVector((o, base.sequence) for o, base in self.bases.items()).retire((), RetiredLogs(retired))
        vector = VersionVector({origin: tip.sequence for origin, tip in tips.items()}).retire((), retired)
        self.vector = vector.with_frontier(origin for origin, tip in tips.items() if not tip.known)
        self.durable = self.vector  # The part that survives a crash, and so may be sent to peers.
        # It covers every applied deletion. After a start it is not known which operations were deletions.
        self.endings = self.vector.frontier
        self.operations = 0  # The number of durable ones.
        self.totals = Totals() if totals is None else totals
        for origin, sequence in vector.items():
            self._count(origin, sequence)
        self.written = 0  # Number of the last storage write that touched this partition.

    @property
    def shown(self) -> VersionVector:
        """The applied operations as clients and data types see them: with the time of the last retirement."""
        horizon = self.retired.summary.horizon
        return self.vector.showing(horizon) if horizon else self.vector

    def tip(self, origin: Origin) -> Tip:
        """The last applied operation of an origin; `NO_TIP` if there is none, or the origin was retired."""
        return self.tips.get(origin, NO_TIP)

    def adopt(self, vector: VersionVector, tips: dict[Origin, Tip], *, written: int) -> None:
        """Record a write's operations: the new vector, the tips that moved, and the write's number."""
        self.vector = vector
        self.tips.update(tips)
        self.written = written

    def tips_after(self, dot: Dot, tip: Tip, context: Sequence[tuple[Origin, int]]) -> dict[Origin, Tip]:
        """The tips that an operation issued here changes: its own, and those of `context`, its frontier."""
        changed = {origin: replace(self.tip(origin), known=True) for origin, _ in context} if context else {}
        changed[dot.origin] = tip
        return changed

    @property
    def log_bytes(self) -> int:
        """The bytes of its log."""
        return sum([tip.logged for tip in self.tips.values()]) - sum([base.logged for base in self.bases.values()])

    def truncate(self, bases: Mapping[Origin, Tip]) -> None:
        """Record that the operations of these origins up to these left the log."""
        self.bases.update(bases)
        self.base = self.base.join(VersionVector((origin, tip.sequence) for origin, tip in bases.items()))

    def retire(self, dot: Dot, origins: Collection[Origin], retired: RetiredOrigins) -> None:
        """Record that the applied operation `dot` retired these origins."""
        self.retired = retired
        self.vector = self.vector.retire(origins, retired)
        self.endings = self.endings.retire(origins, None)
        self.base = self.base.retire(origins, RetiredLogs(retired))
        for origin in origins:
            self.tips.pop(origin, None)
            self.bases.pop(origin, None)
        self._leaving.append((dot, origins))
        self._on_retired(origins)

    def forget(self, retired: RetiredOrigins) -> None:
        """Record that the oldest retired origins were forgotten."""
        self.retired = retired
        self.vector, self.durable = self.vector.retire((), retired), self.durable.retire((), retired)
        self.base = self.base.retire((), RetiredLogs(retired))

    def ends(self, dot: Dot) -> None:
        """Record an operation that deletes."""
        self.endings = self.endings.join(VersionVector.of(dot))

    def settle(self, dot: Dot, count: int = 1) -> None:
        """Record that applied operations of one origin became durable: `count` of them, the last of them `dot`."""
        if self.durable[dot.origin] >= dot.sequence:
            return  # It was written together with an operation that retired its origin.
        self.durable = self.durable.advance(dot) if count == 1 else self.durable.join(VersionVector.of(dot))
        self.operations += count
        self.totals.add(dot.origin, count)
        while self._leaving and self.durable.covers(self._leaving[0][0]):
            _, origins = self._leaving.pop(0)
            for origin in origins:
                self._count(origin, -self.durable[origin])
            self.durable = self.durable.retire(origins, self.retired)

    def check_open(self) -> None:
        """Check that it may be read and written.

        Raises:
            CatchingUp: it is being replaced.
        """
        if self.closed:
            raise CatchingUp(
                f"this node is replacing partition {self.number} by a peer's snapshot. Nothing was written. Try again in a "
                "moment, or ask another node."
            )

    def _count(self, origin: Origin, operations: int) -> None:
        self.operations += operations
        self.totals.add(origin, operations)


class Ahead:
    """A partition as it will be once a write is made. Nothing changes in the partition before `written`."""

    __slots__ = ("_retiring", "partition", "retired", "tips", "vector")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.vector = partition.vector
        self.retired = partition.retired
        self.tips: dict[Origin, Tip] = {}
        self._retiring: list[tuple[Dot, Collection[Origin]]] = []

    def tip(self, origin: Origin) -> Tip:
        """As `Partition.tip`, including the operations taken here."""
        if origin in self.retired.recent:
            return NO_TIP
        return self.tips.get(origin) or self.partition.tips.get(origin, NO_TIP)

    @property
    def shown(self) -> VersionVector:
        """As `Partition.shown`, including the operations taken here."""
        horizon = self.retired.summary.horizon
        return self.vector.showing(horizon) if horizon else self.vector

    def take(self, dot: Dot, tip: Tip, knowing: VersionVector) -> None:
        """Apply an operation from a peer, whose issuer had applied `knowing`. It may be the first to imply other tips."""
        if knowing is not NOTHING_SEEN:
            for origin, sequence in self.vector.frontier.items():
                if origin != dot.origin and knowing[origin] >= sequence:
                    self.tips[origin] = replace(self.tip(origin), known=True)
        self.vector = self.vector.advance(dot, knowing)
        self.tips[dot.origin] = tip

    def retire(self, dot: Dot, origins: Collection[Origin], retired: RetiredOrigins) -> None:
        """Retire origins by an operation that was taken; `retired` are all that the partition has retired then."""
        self._retiring.append((dot, origins))
        self.retired = retired
        self.vector = self.vector.retire(origins, retired)
        for origin in origins:
            self.tips.pop(origin, None)

    def written(self, number: int) -> None:
        """Update the partition: the write was made and has this number."""
        self.partition.adopt(self.vector, self.tips, written=number)
        for dot, origins in self._retiring:
            self.partition.retire(dot, origins, self.retired.written())


class _Loaded(dict[int, Partition]):
    """Partitions by their numbers; one that is missing is read."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[int], Partition]) -> None:
        self._read = read

    def __missing__(self, number: int) -> Partition:
        found = self[number] = self._read(number)
        return found


class Partitions:
    """All partitions, each loaded when first needed: at most `PARTITIONS`."""

    def __init__(self, storage: Storage, clock: HybridClock) -> None:
        self._storage = storage
        self._clock = clock
        self._retired: Callable[[int, Collection[Origin]], None] = lambda _number, _origins: None
        self._loaded = _Loaded(self._read)
        self.load = self._loaded.__getitem__
        """The partition of this number; the first call reads its tips and its base from storage.

        The lookup of a dict: each write asks dozens of times.
        """
        self.totals = Totals()
        """The durable operations of the loaded partitions."""
        self.closed: set[int] = set()
        """The partitions that are being replaced."""

    def replicate(self, retired: Callable[[int, Collection[Origin]], None]) -> None:
        """From now on `retired` is called with a partition's number and the origins that an applied operation retired there."""
        self._retired = retired

    def _read(self, number: int) -> Partition:
        retired = RetiredOrigins(self._storage, number)
        self._clock.observe(retired.summary.horizon)
        return Partition(
            number,
            self._tips(number),
            self.totals,
            bases=self._bases(number),
            retired=retired,
            on_retired=lambda origins: self._retired(number, origins),
        )

    def close(self, number: int) -> Partition:
        """Let nobody read or write a partition, because it is about to be replaced."""
        partition = self.load(number)
        partition.closed = True
        self.closed.add(number)
        return partition

    def reopen(self, number: int) -> None:
        """The partition was not replaced."""
        self.load(number).closed = False
        self.closed.discard(number)

    def replaced(self, number: int) -> Partition:
        """Load a partition anew: its rows were replaced, and are durable. Its old object stays closed."""
        before = self._loaded.pop(number)
        for origin, sequence in before.durable.items():
            self.totals.add(origin, -sequence)
        self.closed.discard(number)
        found = self.load(number)
        self._retired(number, [origin for origin in before.vector if origin not in found.vector])
        return found

    def load_all(self) -> None:
        """Load every partition that holds anything."""
        start: bytes | None = keys.VECTOR
        while start is not None:
            row = next(iter(self._storage.scan(start, successor(keys.VECTOR), limit=1)), None)
            if row is None:
                return
            number = int.from_bytes(row[0][1:3], "big")
            self.load(number)
            start = successor(keys.vector(number))

    def vectors(self) -> dict[int, VersionVector]:
        """The applied operations, durable or not, of the loaded partitions that hold any."""
        return {number: partition.vector for number, partition in self._loaded.items() if partition.vector}

    def holding(self) -> list[int]:
        """The numbers of the loaded partitions that hold durable operations."""
        return [number for number, partition in self._loaded.items() if partition.durable]

    def written(self, number: int) -> int:
        """The number of the write that a reader of this partition must wait for; 0 if there was none."""
        found = self._loaded.get(number)
        return 0 if found is None else found.written

    def _tips(self, number: int) -> dict[Origin, Tip]:
        prefix = keys.vector(number)
        tips = {Origin(key[len(prefix) :]): Tip.unpack(packed) for key, packed in self._storage.scan(prefix, successor(prefix))}
        for tip in tips.values():
            self._clock.observe(tip.hlc)
        return tips

    def _bases(self, number: int) -> dict[Origin, Tip]:
        prefix = keys.base(number)
        rows = self._storage.scan(prefix, successor(prefix))
        return {Origin(key[len(prefix) :]): Tip.unpack(packed) for key, packed in rows}


Retires = Sequence[tuple[bytes, int]]


def check(ahead: Ahead, dot: Dot, retires: Retires, *, own: Origin | None, members: Collection[bytes] = ()) -> None:
    """Check what an operation from a peer retires; `own` is the origin of this opening, `members` the directories of others.

    Raises:
        BadOperation: no node retires these, or this node holds more of one of them.
    """
    for packed, sequence in retires:
        origin = Origin(packed)
        if len(origin) != ORIGIN_BYTES or origin in (dot.origin, HORIZON) or sequence <= 0:
            raise BadOperation("it retires what cannot be retired", reason="content")
        if origin == own:
            raise BadOperation("it retires the origin under which this node writes", reason="retired")
        if any(belongs(origin, each) and not belongs(dot.origin, each) for each in members):
            raise BadOperation(f"it retires origin {origin.hex()} of another member, as only that one does", reason="retired")
        held = ahead.vector[origin]
        if held != sequence and not (held > sequence and ahead.tip(origin).sequence == 0):
            raise BadOperation(
                f"it retires origin {origin.hex()} at operation {sequence}, and this node holds {held} of it: two nodes have "
                "written under one origin",
                reason="retired",
            )


def apply(transaction: Transaction, ahead: Ahead, dot: Dot, *, hlc: int, wall_ms: int, retires: Retires) -> None:
    """Retire the origins that an operation names, which `ahead` has taken already."""
    number = ahead.partition.number
    rows: dict[Origin, Retirement] = {}
    for packed, _ in retires:
        origin = Origin(packed)
        tip = ahead.tip(origin)
        if not tip.sequence:
            continue  # Another operation has retired it as well.
        base = transaction.get(keys.base(number, origin))
        is_logged = base is None or Tip.unpack(base).sequence < tip.sequence
        rows[origin] = Retirement(tip, hlc, wall_ms, is_logged)
        transaction.put(keys.retired(number, origin), rows[origin].pack())
        transaction.delete(keys.vector(number, origin))
        if is_logged:
            transaction.put(keys.retired_log(number, hlc, origin), b"")
        else:
            transaction.delete(keys.base(number, origin))
    summary = ahead.retired.summary.retiring(dot, hlc, wall_ms, rows.keys())
    transaction.put(keys.retired(number, HORIZON), summary.pack())
    ahead.retire(dot, rows.keys(), ahead.retired.after(summary, rows))
