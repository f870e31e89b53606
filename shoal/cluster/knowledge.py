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

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Protocol

from shoal.cluster.messages import Held
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector
from shoal.errors import BadOperation, InvalidValue

PART_BYTES = 8


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
    """Hashes of the durable vectors, each made anew only when its vector changed."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._made: dict[int, tuple[VersionVector, bytes]] = {}

    def all(self) -> dict[int, bytes]:
        return {partition: self._part(partition) for partition in sorted(self._replica.partitions())}

    def digest(self) -> bytes:
        return sha256(b"".join([number.to_bytes(2, "big") + part for number, part in self.all().items()])).digest()

    def _part(self, partition: int) -> bytes:
        vector = self._replica.durable(partition)
        made = self._made.get(partition)
        if made is None or made[0] is not vector:
            made = self._made[partition] = vector, sha256(vector.pack()).digest()[:PART_BYTES]
        return made[1]


class Knowledge:
    """What one peer is known to hold. `advanced` and `unmarked` collect the partitions in which that grew."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._vectors: dict[int, dict[Origin, int]] = {}
        self.advanced: set[int] = set()
        self.unmarked: set[int] = set()
        self._answered: dict[int, int] = {}  # By partition: the last question that was answered with a whole vector.
        self._whole: dict[int, VersionVector] = {}
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
            vector = self._vectors.setdefault(partition, {})
            if sequence > vector.get(origin, 0) and origin != own:
                vector[origin] = sequence
                self.advanced.add(partition)
                self.unmarked.add(partition)

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
        vector = self._replica.durable(partition)
        if self._whole.get(partition) is not vector:
            self.take(((partition, origin, sequence) for origin, sequence in vector.items()), proven=True)
            self._whole[partition] = vector

    def whole(self, partition: int) -> VersionVector | None:
        """The peer's vector as it told it last, with nothing left out; None: it has not."""
        return self._whole.get(partition)

    def vector(self, partition: int) -> VersionVector:
        return VersionVector(self._vectors.get(partition, {}))

    def holds(self, partition: int, wanted: VersionVector) -> bool:
        vector = self._vectors.get(partition, {})
        return all(vector.get(origin, 0) >= sequence for origin, sequence in wanted.items())

    def ahead_of(self, partition: int, vector: VersionVector) -> Iterator[tuple[Origin, range]]:
        """Per origin, the sequences that the peer holds and `vector` does not cover."""
        for origin, sequence in sorted(self._vectors.get(partition, {}).items()):
            if sequence > vector[origin]:
                yield origin, range(vector[origin] + 1, sequence + 1)

    def partitions(self) -> Iterable[int]:
        return self._vectors

    def origins(self) -> dict[Origin, int]:
        """How many operations of each origin it is known to hold, over all partitions."""
        total: dict[Origin, int] = {}
        for vector in self._vectors.values():
            for origin, sequence in vector.items():
                total[origin] = total.get(origin, 0) + sequence
        return total

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
