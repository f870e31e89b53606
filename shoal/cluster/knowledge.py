"""This replica's durable vectors, hashed for comparison, and the operations that each peer is known to hold.

Laws:
- Equal digests mean equal durable vectors in every partition.
- The knowledge of a peer only grows while it stays linked. A new link begins with
  nothing known, because a restored directory holds less than before.
- A peer cannot hold an operation of this replica's origin that was not issued here: such a claim is refused. It may hold
  one before it is durable here.
- A peer names at most `claims_max` logs that this replica has nothing of, over all links: one that names more is refused, so
  that what it invents takes no more memory, and no more of the disk, than that.
- An answer of a peer counts as an owner's only if the peer was asked after it had said that it
  is no learner: an earlier answer may lack operations that it has fetched since.
- An acknowledgement of this replica's own operation counts only once this replica holds
  every deletion that the peer held durably by then. So the peer wrote the acknowledged operation while it was
  alive, or this replica knows that it is dead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Protocol, cast

from shoal.cluster.messages import Held, batches
from shoal.crdt.dot import NOTHING_SEEN, OVER_MAX, Dot, Origin, VersionVector
from shoal.errors import BadOperation, InvalidValue

CLAIMS_MAX = 1 << 19
VECTOR_HEAD_BYTES = 9  # Of a packed vector in a message: an array, the partition, a length.
PART_BYTES = 8
_MODULUS = 1 << 8 * PART_BYTES
_END = 1 << 63  # No origin issues as many operations.


class Replica(Protocol):
    """The vectors of the node's own replica."""

    def applied(self, partition: int, /) -> VersionVector:
        """The operations that were applied, durable or not."""
        ...

    def durable(self, partition: int, /) -> VersionVector:
        """The applied operations that are synced to disk."""
        ...

    def endings(self, partition: int, /) -> VersionVector:
        """A vector that covers every deletion that was applied there."""
        ...

    def partitions(self) -> Iterable[int]:
        """The partitions that hold anything durable."""
        ...

    def retirements(self, partition: int, known: VersionVector, /) -> tuple[VersionVector, VersionVector]:
        """The retired origins, with their last sequences and with the times at which they were retired.

        None are needed for a peer that is `known` to hold all operations that retired something.
        """
        ...

    def own_origin(self) -> Origin | None:
        """The origin of this opening; None before its first write."""
        ...


class Parts:
    """Hashes of the durable vectors. Each is a sum over a vector's entries, so an update costs only what changed."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._made: dict[int, tuple[VersionVector, int]] = {}
        self._held: dict[int, VersionVector] = {}
        self._digest: tuple[Mapping[int, VersionVector], bytes] | None = None

    def held(self) -> Mapping[int, VersionVector]:
        """All durable vectors, by partition; the same object as long as none of them changes."""
        held = {partition: self._replica.durable(partition) for partition in self._replica.partitions()}
        if held == self._held:
            self._held.update(held)  # Equal ones that are other objects would be compared entry by entry each time.
        else:
            self._held = held
        return self._held

    def all(self) -> dict[int, bytes]:
        """The hash of each partition's vector, by partition."""
        return {partition: self._part(partition) for partition in sorted(self._replica.partitions())}

    def digest(self) -> bytes:
        """One hash over all of them."""
        held = self.held()
        if self._digest is None or self._digest[0] is not held:
            packed = b"".join([number.to_bytes(2, "big") + part for number, part in self.all().items()])
            self._digest = held, sha256(packed).digest()
        return self._digest[1]

    def _part(self, partition: int) -> bytes:
        vector = self._replica.durable(partition)
        before, total = self._made.get(partition, (NOTHING_SEEN, 0))
        if before.retired is not vector.retired:
            before, total = NOTHING_SEEN, 0
        if before is not vector:
            for origin, sequence in vector.since(before).items():
                total += _hashed(Dot(origin, sequence)) - (_hashed(Dot(origin, before[origin])) if origin in before else 0)
            self._made[partition] = vector, total
        return (total % _MODULUS).to_bytes(PART_BYTES, "big")


def _hashed(dot: Dot) -> int:
    return int.from_bytes(sha256(dot.pack()).digest()[:PART_BYTES], "big")


class Totals:
    """How many operations a node holds, over all partitions; updated as they change."""

    __slots__ = ("_names", "_origins", "operations")  # The names are sorted when they are asked for: a peer may name many.

    def __init__(self) -> None:
        self.operations = 0
        self._origins: dict[Origin, int] = {}
        self._names: list[Origin] | None = None  # Sorted; None: some came or went since.

    def __len__(self) -> int:
        """The number of origins."""
        return len(self._origins)

    def add(self, origin: Origin, operations: int) -> None:
        """Count operations of an origin; a negative number counts them no more."""
        before = self._origins.get(origin)
        if before is None:
            self._names = None
        self._origins[origin] = (before or 0) + operations
        self.operations += operations
        if not self._origins[origin]:
            del self._origins[origin]
            self._names = None

    def first(self, count: int) -> list[tuple[Origin, int]]:
        """The first `count` origins, in the order of their bytes, with the number of operations of each."""
        if self._names is None:
            self._names = sorted(self._origins)
        return [(origin, self._origins[origin]) for origin in self._names[:count]]


class Knowledge:
    """The operations that one peer is known to hold. `advanced` and `unmarked` collect the partitions in which that grew."""

    def __init__(
        self, replica: Replica, *, claims_max: int = CLAIMS_MAX, before: Mapping[int, VersionVector] | None = None
    ) -> None:
        self._replica = replica
        self._claims_max = claims_max
        self._before = (
            before or {}
        )  # What the peer claimed on older links, as far as it is remembered (`shoal.cluster.peer_state`).
        # Logs that the peer named while nothing of them was here; counted anew once they are too many.
        self._claims = sum(
            1 for number, vector in self._before.items() for origin in vector if not replica.applied(number)[origin]
        )
        self._vectors: dict[int, VersionVector] = {}
        self._fresh: dict[int, dict[Origin, int]] = {}  # Entries newer than those of the vector; at most `OVER_MAX` each.
        # By partition: two vectors, this replica's and the peer's, and how many operations they share.
        self._counted: dict[int, tuple[VersionVector, VersionVector, int]] = {}
        self.advanced: set[int] = set()
        self.unmarked: set[int] = set()
        self.totals = Totals()
        # The partitions whose vector the peer has yet to tell, of those that differed when all were compared; None: none were.
        self._untold: set[int] | None = None
        self._answered: dict[int, int] = {}  # By partition: the last question that was answered with a whole vector.
        self._counted_from = 0  # The first question that was asked after the peer said that it is no learner.
        self._whole: dict[int, VersionVector] = {}
        self._took: Mapping[int, VersionVector] | None = None  # This replica's vectors, when all of the peer's were equal last.
        self._equal: dict[int, VersionVector] = {}  # By partition: this replica's vector, when the peer's was equal last.
        # By partition: the last own operation that was acknowledged, and the deletions that must be here first.
        self._unproven: dict[int, tuple[int, VersionVector]] = {}
        self._aware: dict[int, VersionVector] = {}  # By partition: `endings` that the peer is known to hold.
        self._ended: dict[int, set[Origin]] = {}  # By partition: origins that the peer has retired, and this replica has not.

    @property
    def is_told(self) -> bool:
        """Whether the peer has told all that it held at some time in this link: until then it may hold any number more."""
        return self._untold is not None and not self._untold

    def differs(self, partitions: Collection[int]) -> None:
        """All partitions were compared with the peer's, and these differ: it will be told their vectors."""
        self._untold = set(partitions) if self._untold is None else self._untold.intersection(partitions)

    def begin_epoch(self) -> None:
        """The peer must say again what it holds exactly: it may have said it before it knew of this epoch."""
        self._whole.clear()
        self._equal.clear()
        self._took = None

    def answer(self, partition: int, question: int) -> None:
        """Note that the peer has answered this question about a partition."""
        self._answered[partition] = max(question, self._answered.get(partition, 0))

    def answered(self, partition: int, question: int) -> bool:
        """Whether the peer's whole vector is known, as of when it heard this question or a later one."""
        return self._answered.get(partition, 0) >= question

    def count_from(self, question: int) -> None:
        """The peer has just said that it is no learner; this is the next question."""
        self._counted_from = question

    def confirmed(self, partition: int, question: int) -> bool:
        """Whether the peer answered this question, or a later one, as an owner."""
        return self.answered(partition, max(question, self._counted_from))

    def take(self, held: Iterable[Held], *, proven: bool = False) -> None:
        """Note that the peer holds these. This replica's own operations count only if `proven`: the peer's deletions are here.

        Raises:
            BadOperation: the peer claims an operation that this replica has not issued.
            InvalidValue: it claims a sequence that no origin can reach.
        """
        own = self._replica.own_origin()
        for partition, origin, sequence in cast("Iterable[tuple[int, Origin, int]]", held):
            if not 0 <= sequence < _END or (origin == own and sequence > self._replica.applied(partition)[origin]):
                raise _refused(partition, origin, sequence)
            fresh, vector = self._fresh.get(partition), self._vectors.get(partition)
            before = (fresh.get(origin) if fresh else 0) or (0 if vector is None else vector[origin])
            if sequence > before and (proven or origin != own):
                if not before and is_retired(self._replica.applied(partition), origin, sequence):
                    continue
                if not before and not self._replica.applied(partition)[origin]:
                    self._claim(partition, origin)
                if fresh is None:
                    fresh = self._fresh[partition] = {}
                fresh[origin] = sequence
                if len(fresh) > OVER_MAX:
                    self.vector(partition)
                self.advanced.add(partition)
                self.unmarked.add(partition)
                self.totals.add(origin, sequence - before)

    def _claim(self, partition: int, origin: Origin) -> None:
        """The peer names a log of which nothing is here, for the first time.

        Raises:
            BadOperation: it names too many of them.
        """
        self._claims += 1
        if self._claims > self._claims_max:
            # Most of them may be here by now. The peer is refused at half of the bound, so that they are counted seldom.
            self._claims = sum(len(self.claimed(number)) for number in {*self._before, *self._vectors, *self._fresh})
            if self._claims > self._claims_max // 2:
                raise BadOperation(
                    f"a peer claims operations of more than {self._claims_max // 2:,} logs of which this node has nothing, "
                    f"{origin.hex()} in partition {partition} among them. Nothing was written; the link is closed. If the "
                    "cluster is that large, raise `peer_logs_max`; if not, this peer makes them up.",
                    reason="claims",
                )

    def claimed(self, partition: int) -> set[Origin]:
        """The origins of which the peer says, or has said, that it holds operations, and this replica has none."""
        applied = self._replica.applied(partition)
        named = {*self.vector(partition), *self._before.get(partition, ())}
        return {origin for origin in named if not applied[origin]}

    def check(self, partition: int, origin: bytes, sequence: int) -> None:
        """Check that the peer can hold this operation.

        Raises:
            BadOperation, InvalidValue: as `take`.
        """
        if not 0 <= sequence < _END or (
            origin == self._replica.own_origin() and sequence > self._replica.applied(partition)[Origin(origin)]
        ):
            raise _refused(partition, Origin(origin), sequence)

    def acknowledge(self, held: Iterable[Held], needs: Collection[tuple[int, bytes]]) -> list[int]:
        """Take a `Have`. Returns the partitions in which this replica lacks operations that `needs` names.

        Raises:
            InvalidValue, BadOperation: as `take`, and `take_vector`.
        """
        if not needs:
            self.take(held, proven=True)
            return []
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
        """Count the acknowledgements that waited for operations which this replica has now applied in these partitions."""
        for partition in partitions if self._unproven else ():
            sequence, needed = self._unproven.get(partition, (0, NOTHING_SEEN))
            own = self._replica.own_origin()
            if own is not None and sequence and self._replica.applied(partition).dominates(needed):
                del self._unproven[partition]
                self.take([(partition, own, sequence)], proven=True)

    def needs(self, partition: int) -> VersionVector | None:
        """The operations that the peer must hold before its own count as acknowledged; None if it is known to hold them.

        All are durable here. What is durable here was written before any deletion that is not.
        """
        endings = self._replica.endings(partition)
        if self._aware.get(partition) is endings:
            return None
        if not endings or self.holds(partition, endings):
            self._aware[partition] = endings
            return None
        durable = self._replica.durable(partition)
        if durable.dominates(endings):
            return endings
        needed = VersionVector((origin, min(sequence, durable[origin])) for origin, sequence in endings.items())
        return None if self.holds(partition, needed) else needed

    def take_vector(
        self,
        partition: int,
        packed: bytes,
        retired: tuple[VersionVector, VersionVector] | None = None,
        *,
        is_current: bool = True,
    ) -> VersionVector:
        """Take a whole vector, as the peer sent it, and return it, with the origins that only the peer has retired.

        `is_current`: it was sent in this node's epoch. Only then it counts as `whole`.

        Raises:
            InvalidValue: it is malformed.
            BadOperation: as `take`.
        """
        vector = vector_of(packed)
        if retired is not None:
            ends, times = retired
            here = self._replica.applied(partition).retired
            horizon = 0 if here is None else here.horizon  # What was retired by then is held here, even if it is forgotten.
            vector = vector.join(VersionVector((o, n) for o, n in ends.items() if times[o] > horizon))
        if self._untold is not None:
            self._untold.discard(partition)
        proven = self._replica.applied(partition).dominates(vector)
        self.take(((partition, origin, sequence) for origin, sequence in vector.items()), proven=proven)
        if retired is not None:  # This bounds them: only those that are known, and so are dropped with what is known.
            known = self.vector(partition)
            self._ended[partition] = self._ended.get(partition, set()) | (retired[0].keys() & known.keys())
        # Messages may overtake each other, and what a peer holds only grows while its link lasts.
        if is_current and vector.dominates(self._whole.get(partition, NOTHING_SEEN)):
            applied = self._replica.applied(partition)
            self._whole[partition] = vector.retire([o for o, n in vector.items() if is_retired(applied, o, n)], None)
        return vector

    def retire(self, partition: int, origins: Collection[Origin]) -> None:
        """This replica has retired these origins: what the peer holds of them is not worth remembering."""
        applied, known = self._replica.applied(partition), self.vector(partition)
        if partition in self._ended:
            self._ended[partition].difference_update(origins)
        gone = [origin for origin in origins if 0 < known[origin] <= applied[origin]]
        for origin in gone:
            self.totals.add(origin, -known[origin])
        self._vectors[partition] = known.retire(gone, None)
        if partition in self._whole:
            self._whole[partition] = self._whole[partition].retire(gone, None)
        for remembered in (self._equal, self._aware, self._counted):
            remembered.pop(partition, None)

    def take_all(self, held: Mapping[int, VersionVector], *, is_current: bool = True) -> None:
        """The peer holds the same as this replica: the digests are equal. `held` is `Parts.held`; see `take_vector`."""
        self.differs(())
        if self._took is not held:
            self._took = held if is_current else None
            for partition in held:
                self.take_equal(partition, is_current=is_current)

    def take_equal(self, partition: int, *, is_current: bool = True) -> None:
        """The peer's vector of this partition is equal to this replica's: their hashes are. See `take_vector`."""
        vector, before = self._replica.durable(partition), self._equal.get(partition, NOTHING_SEEN)
        if before is not vector:
            self.take(((partition, origin, sequence) for origin, sequence in vector.since(before).items()), proven=True)
            if is_current:
                self._equal[partition] = vector
                self._whole[partition] = vector
            if vector.dominates(self.vector(partition)):
                self._vectors[partition] = vector  # The two share their entries, so comparing them is cheap.

    def whole(self, partition: int) -> VersionVector | None:
        """The greatest whole vector that the peer has sent in this epoch; None if it has sent none."""
        return self._whole.get(partition)

    def vector(self, partition: int) -> VersionVector:
        """The operations that the peer is known to hold, at least."""
        vector = self._vectors.get(partition, NOTHING_SEEN)
        fresh = self._fresh.pop(partition, None)
        if fresh:
            vector = self._vectors[partition] = vector.join(VersionVector(fresh))
        return vector

    def named(self, partition: int) -> VersionVector:
        """Of the operations that the peer is known to hold, those of origins that it has not retired.

        A peer that is set back to before it retired an origin lacks the operation that did. So nothing is missed by looking at
        these alone. Once it has forgotten the others, it cannot tell them from operations that it never had.
        """
        vector, ended = self.vector(partition), self._ended.get(partition)
        return vector.retire(ended, None) if ended else vector

    def holds(self, partition: int, wanted: VersionVector) -> bool:
        """Whether the peer is known to hold all of `wanted`."""
        entries = wanted.items()
        if len(entries) > 1:  # Two of one origin may share their entries.
            return self.vector(partition).dominates(wanted)
        fresh, vector = self._fresh.get(partition), self._vectors.get(partition)
        for origin, sequence in entries:
            held = (fresh.get(origin) if fresh else 0) or (0 if vector is None else vector[origin])
            if held < sequence:
                return False
        return True

    def ahead_of(self, partition: int, vector: VersionVector) -> Iterable[tuple[Origin, range]]:
        """Per origin, the sequences that the peer holds and `vector` does not cover."""
        return sorted(self.vector(partition).missing(vector).items())

    @property
    def shared(self) -> int:
        """How many of the operations that it is known to hold are durable here too."""
        return sum(map(self.shared_in, self._replica.partitions()))

    def shared_in(self, partition: int) -> int:
        """How many operations of a partition are known to be held by the peer and are durable here.

        Counts anew only what has changed since it was asked last.
        """
        durable, known = self._replica.durable(partition), self.vector(partition)
        counted = self._counted.get(partition)
        if counted is None or counted[0] is not durable or counted[1] is not known:
            shared = sum(min(sequence, known[origin]) for origin, sequence in durable.items())
            counted = self._counted[partition] = durable, known, shared
        return counted[2]


def told_vectors(
    replica: Replica, known: Knowledge, partitions: Iterable[int], *, bytes_max: int
) -> Iterator[tuple[list[tuple[int, bytes]], list[tuple[int, bytes, bytes]]]]:
    """The durable vectors of some partitions for a peer, and what is retired there, in as many messages as their size takes."""

    def of(partition: int) -> tuple[int, bytes, bytes, bytes]:
        ends, times = replica.retirements(partition, known.vector(partition))
        return partition, replica.durable(partition).pack(), ends.pack(), times.pack()

    for batch in batches(map(of, partitions), lambda one: sum(map(len, one[1:])) + VECTOR_HEAD_BYTES, bytes_max=bytes_max):
        yield [one[:2] for one in batch], [(number, ends, times) for number, _, ends, times in batch if ends]


def is_retired(applied: VersionVector, origin: Origin, sequence: int) -> bool:
    """Whether an operation belongs to an origin that this replica has retired, and is among those that it held."""
    return origin not in applied and applied[origin] >= sequence


def _refused(partition: int, origin: Origin, sequence: int) -> InvalidValue | BadOperation:
    """The error about a claim that cannot be true."""
    if sequence >= _END:
        return InvalidValue(
            f"a peer claims operation {sequence} of origin {origin.hex()} in partition {partition}; no origin can have "
            "issued so many. Nothing was written; the link is closed."
        )
    return BadOperation(
        f"a peer claims operation {sequence} of origin {origin.hex()} in partition {partition}, which this node has "
        "not issued. Nothing was written; the link is closed. If this machine was set back to a snapshot while the "
        "node ran, restart it.",
        reason="claim",
    )


def vector_of(packed: bytes) -> VersionVector:
    """The vector in bytes that a peer sent.

    Raises:
        InvalidValue: they are malformed.
    """
    try:
        return VersionVector.unpack(packed)
    except ValueError:
        raise InvalidValue("a peer sent bytes that are no version vector. Nothing was written.") from None
