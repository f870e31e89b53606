"""What this replica holds durably, hashed for comparison; and what each peer is known to hold.

Laws:
- Equal digests mean equal durable vectors in every partition.
- What a peer is known to hold only grows while it stays linked; a link that begins
  begins with nothing known, for a restored directory holds less than it did.
- A peer cannot hold what this replica has not made durable under its own origin:
  such a claim is refused.
- An operation of this replica's own is acknowledged by a peer only once this replica holds
  every deletion that the peer held by then. So what it acknowledges is not dead there, or this
  replica knows that it is.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from hashlib import sha256
from typing import Protocol

from shoal.cluster.messages import Held
from shoal.crdt.dot import NOTHING_SEEN, OVER_MAX, Dot, Origin, VersionVector
from shoal.errors import BadOperation, InvalidValue

PART_BYTES = 8
_MODULUS = 1 << 8 * PART_BYTES


class Replica(Protocol):
    """The vectors of the node's own replica."""

    def applied(self, partition: int, /) -> VersionVector: ...

    def durable(self, partition: int, /) -> VersionVector: ...

    def endings(self, partition: int, /) -> VersionVector:
        """Covers every deletion that was applied there."""
        ...

    def partitions(self) -> Iterable[int]:
        """Those that hold anything durable."""
        ...

    def own_origin(self) -> Origin | None:
        """Of this opening; None before its first write."""
        ...


class Parts:
    """Hashes of the durable vectors. Each is a sum over the vector's entries, so that one that grew costs by what changed."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._made: dict[int, tuple[VersionVector, int]] = {}

    def all(self) -> dict[int, bytes]:
        return {partition: self._part(partition) for partition in sorted(self._replica.partitions())}

    def digest(self) -> bytes:
        return sha256(b"".join([number.to_bytes(2, "big") + part for number, part in self.all().items()])).digest()

    def _part(self, partition: int) -> bytes:
        vector = self._replica.durable(partition)
        before, total = self._made.get(partition, (NOTHING_SEEN, 0))
        if before is not vector:
            for origin, sequence in vector.since(before).items():
                total += _hashed(Dot(origin, sequence)) - (_hashed(Dot(origin, before[origin])) if origin in before else 0)
            self._made[partition] = vector, total
        return (total % _MODULUS).to_bytes(PART_BYTES, "big")


def _hashed(dot: Dot) -> int:
    return int.from_bytes(sha256(dot.pack()).digest()[:PART_BYTES], "big")


class Totals:
    """How many operations a node holds, over all partitions; kept as they change."""

    __slots__ = ("_names", "_origins", "operations")

    def __init__(self) -> None:
        self.operations = 0
        self._origins: dict[Origin, int] = {}
        self._names: list[Origin] = []  # Sorted.

    def __len__(self) -> int:
        """Of how many origins."""
        return len(self._origins)

    def add(self, origin: Origin, operations: int) -> None:
        before = self._origins.get(origin)
        if before is None:
            insort(self._names, origin)
        self._origins[origin] = (before or 0) + operations
        self.operations += operations

    def first(self, count: int) -> list[tuple[Origin, int]]:
        """The first origins by name, and how many operations of each."""
        return [(origin, self._origins[origin]) for origin in self._names[:count]]


class Knowledge:
    """What one peer is known to hold. `advanced` and `unmarked` collect the partitions in which that grew.

    Its counts are kept as they change, so `settled` must be told of each operation that becomes durable here.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._vectors: dict[int, VersionVector] = {}
        self._fresh: dict[int, dict[Origin, int]] = {}  # What was taken since the vector was made; at most `OVER_MAX` each.
        self._shared: dict[int, int] = {}
        self.advanced: set[int] = set()
        self.unmarked: set[int] = set()
        self.totals = Totals()
        self.shared = 0
        """How many of all operations that it is known to hold are durable here too."""
        self._answered: dict[int, int] = {}  # By partition: the last question that was answered with a whole vector.
        self._whole: dict[int, VersionVector] = {}
        self._equal: dict[int, VersionVector] = {}  # By partition: this replica's vector, when the peer's was equal last.
        self._unproven: dict[int, tuple[int, VersionVector]] = {}  # By partition: own operations, and what they wait for.
        self._aware: dict[int, VersionVector] = {}  # By partition: `endings` that the peer is known to hold.

    def answer(self, partition: int, question: int) -> None:
        self._answered[partition] = max(question, self._answered.get(partition, 0))

    def answered(self, partition: int, question: int) -> bool:
        """Whether the peer's whole vector is known as it was when it heard this question, or a later one."""
        return self._answered.get(partition, 0) >= question

    def take(self, held: Iterable[Held], *, proven: bool = False) -> None:
        """What the peer holds; of this replica's own operations only if it is `proven` that the peer's deletions are here.

        Raises:
            BadOperation: the peer claims what this replica has not issued.
            InvalidValue: it claims what no origin can have issued.
        """
        own = None if proven else self._replica.own_origin()
        for partition, raw, sequence in held:
            origin = Origin(raw)
            self._check_claim(partition, origin, sequence)
            before = self._at(partition, origin)
            if sequence > before and origin != own:
                self._raise(partition, origin, before, sequence)

    def acknowledge(self, held: Iterable[Held], needs: Iterable[tuple[int, bytes]]) -> list[int]:
        """Take a `Have`. Returns the partitions in which this replica lacks what it needs.

        Raises:
            InvalidValue, BadOperation: as `take`, and `take_vector`.
        """
        needed = {partition: vector_of(packed) for partition, packed in needs}
        lacking = {p: vector for p, vector in needed.items() if not self._replica.applied(p).dominates(vector)}
        for partition, vector in lacking.items():
            self.take((partition, origin, sequence) for origin, sequence in vector.items())
        if not lacking:
            self.take(held, proven=True)
            return []
        own = self._replica.own_origin()
        for partition, origin, sequence in held:
            self.take([(partition, origin, sequence)], proven=partition not in lacking)
            if partition in lacking and origin == own:
                before, waited = self._unproven.get(partition, (0, NOTHING_SEEN))
                self._unproven[partition] = max(before, sequence), waited.join(lacking[partition])
        return list(lacking)

    def prove(self, partitions: Iterable[int]) -> None:
        """This replica has applied more there: what was acknowledged may be proven by now."""
        for partition in partitions if self._unproven else ():
            sequence, needed = self._unproven.get(partition, (0, NOTHING_SEEN))
            own = self._replica.own_origin()
            if own is not None and sequence and self._replica.applied(partition).dominates(needed):
                del self._unproven[partition]
                self.take([(partition, own, sequence)], proven=True)

    def needs(self, partition: int) -> VersionVector | None:
        """What the peer must hold before an acknowledgement of its own operations counts; None: it is known to."""
        endings = self._replica.endings(partition)
        if not endings or self._aware.get(partition) is endings:
            return None
        if self.holds(partition, endings):
            self._aware[partition] = endings
            return None
        return endings

    def take_vector(self, partition: int, packed: bytes) -> VersionVector:
        """A whole vector, as the peer sent it.

        Raises:
            InvalidValue: it is none.
            BadOperation: as `take`.
        """
        vector = vector_of(packed)
        proven = self._replica.applied(partition).dominates(vector)
        self.take(((partition, origin, sequence) for origin, sequence in vector.items()), proven=proven)
        self._whole[partition] = vector
        return vector

    def take_all(self) -> None:
        """The peer holds what this replica holds: the digests are equal."""
        for partition in self._replica.partitions():
            self.take_equal(partition)

    def take_equal(self, partition: int) -> None:
        """The peer's vector there is this replica's: their hashes are equal."""
        vector, before = self._replica.durable(partition), self._equal.get(partition, NOTHING_SEEN)
        if before is not vector:
            self.take(((partition, origin, sequence) for origin, sequence in vector.since(before).items()), proven=True)
            self._equal[partition] = vector
            self._whole[partition] = vector
            if vector.dominates(self.vector(partition)):
                self._vectors[partition] = vector  # It shares its entries with ours: the two are compared by what changed.

    def settled(self, partition: int, dot: Dot) -> None:
        """An operation became durable here."""
        if self._at(partition, dot.origin) >= dot.sequence:
            self.shared += 1
            self._shared[partition] = self._shared.get(partition, 0) + 1

    def whole(self, partition: int) -> VersionVector | None:
        """The peer's vector as it told it last, with nothing left out; None: it has not."""
        return self._whole.get(partition)

    def vector(self, partition: int) -> VersionVector:
        vector = self._vectors.get(partition, NOTHING_SEEN)
        fresh = self._fresh.pop(partition, None)
        if fresh:
            vector = self._vectors[partition] = vector.join(VersionVector(fresh))
        return vector

    def holds(self, partition: int, wanted: VersionVector) -> bool:
        return self.vector(partition).dominates(wanted)

    def ahead_of(self, partition: int, vector: VersionVector) -> Iterable[tuple[Origin, range]]:
        """Per origin, the sequences that the peer holds and `vector` does not cover."""
        return sorted(self.vector(partition).missing(vector).items())

    def shared_in(self, partition: int) -> int:
        """How many operations of a partition it is known to hold that are durable here too."""
        return self._shared.get(partition, 0)

    def _at(self, partition: int, origin: Origin) -> int:
        fresh = self._fresh.get(partition)
        found = fresh.get(origin) if fresh else None
        if found is not None:
            return found
        vector = self._vectors.get(partition)
        return 0 if vector is None else vector[origin]

    def _raise(self, partition: int, origin: Origin, before: int, sequence: int) -> None:
        fresh = self._fresh.setdefault(partition, {})
        fresh[origin] = sequence
        if len(fresh) > OVER_MAX:
            self.vector(partition)
        self.advanced.add(partition)
        self.unmarked.add(partition)
        durable = self._replica.durable(partition)[origin]
        shared = min(durable, sequence) - min(durable, before)
        if shared:
            self.shared += shared
            self._shared[partition] = self._shared.get(partition, 0) + shared
        self.totals.add(origin, sequence - before)

    def _check_claim(self, partition: int, origin: Origin, sequence: int) -> None:
        if sequence >= 1 << 63:
            raise InvalidValue(
                f"a peer claims operation {sequence} of origin {origin.hex()} in partition {partition}; no origin gets that "
                "far. Nothing was written; the link is closed."
            )
        if sequence < 0 or (origin == self._replica.own_origin() and sequence > self._replica.durable(partition)[origin]):
            raise BadOperation(
                f"a peer claims operation {sequence} of origin {origin.hex()} in partition {partition}, which this node has "
                "not issued. Nothing was written; the link is closed. If this machine was set back to a snapshot while the "
                "node ran, restart it.",
                reason="claim",
            )


def vector_of(packed: bytes) -> VersionVector:
    """
    Raises:
        InvalidValue: it is none.
    """
    try:
        return VersionVector.unpack(packed)
    except ValueError:
        raise InvalidValue("a peer sent bytes that are no version vector. Nothing was written.") from None
