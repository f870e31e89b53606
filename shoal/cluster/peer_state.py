"""The state that the replication protocol keeps of each peer; the effects that it asks its caller for, in order; its bounds.

The mark of a peer is the most that it was ever known to hold durably. A node cannot notice if its directory was set back
together with the whole block device or machine. Its peers can: on a new link it tells less than its mark.

Laws:
- A mark holds only operations that its peer claimed to hold durably. It grows. It is lowered only when
  the peer, after it was told of the mark, says that it has caught up; then it becomes what the peer holds.
- A mark names no origin that its peer has retired: a peer that holds the retirement holds all of that origin, and may have
  forgotten it.
- A link is compared with the mark as it was when the link began, because messages on a link
  may overtake each other.
- A peer counts as an owner only if every partition of its mark was compared on the current link,
  and none is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.cluster.delivery import Arrival
from shoal.cluster.knowledge import CLAIMS_MAX, Knowledge, Replica, is_retired
from shoal.cluster.messages import Have, Message, Want
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector
from shoal.records import NamedTuple

TOLD_DOTS_MAX = 16_384  # In one message; about 400 KiB.


class Mark:
    """The mark of one peer. `unwritten` has the entries that differ from those on disk; None: the entry is to be deleted."""

    def __init__(self, vectors: Mapping[int, VersionVector] | None = None) -> None:
        self.number = 0
        """The version of `telling`: it changes with the operations that the peer must be told of."""
        self.unwritten: dict[tuple[int, Origin], int | None] = {}
        self._vectors = dict(vectors or {})
        self._compared_with: dict[int, VersionVector] = {}
        self._uncompared: set[int] = set()
        self._behind: dict[int, VersionVector] = {}
        self._told: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A link begins: compare everything again."""
        self._compared_with = dict(self._vectors)
        self._uncompared = set(self._vectors)
        self._behind = {}

    @property
    def is_held(self) -> bool:
        """Whether the peer has said, on this link, that it holds the whole mark."""
        return not self._uncompared and not self._behind

    @property
    def is_behind(self) -> bool:
        """Whether the peer has said, on this link, that it holds less than the mark."""
        return bool(self._behind)

    def note(self, partition: int, vector: VersionVector) -> None:
        """The peer holds this, at least."""
        before = self._vectors.get(partition, NOTHING_SEEN)
        grown = before.join(vector)
        if grown == before:
            return
        self._vectors[partition] = grown
        self.unwritten.update({(partition, origin): sequence for origin, sequence in grown.since(before).items()})

    def vectors(self) -> Mapping[int, VersionVector]:
        """The whole mark, as it is now, by partition."""
        return dict(self._vectors)

    def vector(self, partition: int) -> VersionVector:
        """The operations of a partition that the peer was known to hold."""
        return self._vectors.get(partition, NOTHING_SEEN)

    def retire(self, partition: int, origins: Collection[Origin]) -> None:
        """Forget these origins: this replica or the peer has retired them, so it was known that the peer held all of them."""
        for vectors in (self._vectors, self._compared_with, self._behind):
            before = vectors.get(partition)
            if before is None:
                continue
            if vectors is self._vectors:
                self.unwritten.update({(partition, origin): None for origin in origins if origin in before})
            vectors[partition] = before.retire(origins, None)
            if vectors is self._behind and not vectors[partition]:
                del vectors[partition]

    def compare(self, told: Mapping[int, VersionVector]) -> bool:
        """Compare with the peer's exact vectors of these partitions. Returns whether there is more to tell it."""
        number = self.number
        for partition, whole in told.items():
            self._compare(partition, whole)
        return self.number > number

    def _compare(self, partition: int, whole: VersionVector) -> None:
        before = self._behind.pop(partition, None)
        self._uncompared.discard(partition)
        once = self._compared_with.get(partition, NOTHING_SEEN)
        if not whole.dominates(once):
            self._behind[partition] = VersionVector({origin: once[origin] for origin in once.missing(whole)})
        behind = self._behind.get(partition, NOTHING_SEEN)
        if not (before or NOTHING_SEEN).dominates(behind):
            self.number += 1

    def to_compare(self) -> list[int]:
        """The partitions in which the peer has not said yet that it holds its mark."""
        return sorted(self._uncompared | self._behind.keys())

    def telling(self) -> list[tuple[int, bytes]]:
        """The operations that the peer once held and lacks now, as many as fit: partitions and packed vectors."""
        self._told, size = [], 0
        for partition in sorted(self._behind):
            size += len(self._behind[partition])
            if self._told and size > TOLD_DOTS_MAX:
                break
            self._told.append(partition)
        return [(partition, self._behind[partition].pack()) for partition in self._told]

    def settle(self, held: Mapping[int, VersionVector]) -> bool:
        """The peer, once told, has caught up as far as anybody holds the operations. Returns whether there is more to tell.

        `held` are the operations that it has claimed to hold since then, by partition (`told`).
        """
        for partition, vector in held.items():
            self._behind.pop(partition, None)
            self._lower(partition, vector)
        self._told = []
        self.number += 1
        return bool(self._behind)

    @property
    def told(self) -> Iterable[int]:
        """The partitions of the last `telling`, until they are settled."""
        return tuple(self._told)

    def _lower(self, partition: int, held: VersionVector) -> None:
        for origin in self._vectors.get(partition, NOTHING_SEEN).missing(held):
            self.unwritten[partition, origin] = held[origin] or None
        self._vectors[partition] = self._compared_with[partition] = held


class Send(NamedTuple):
    """Send a message to these peers."""

    peers: Sequence[bytes]
    message: Message


class Apply(NamedTuple):
    """Store `ready`, in this order; compare `again` with the operations stored under the same dots."""

    peer: bytes
    ready: list[Arrival]
    again: list[Arrival]


class Read(NamedTuple):
    """Answer a peer's Want from the log."""

    peer: bytes
    want: Want


class SetBack(NamedTuple):
    """Record that this node's directory was set back, as `peer` says, so that it is a learner: `Replication.learning`."""

    peer: bytes


class Reset(NamedTuple):
    """Take a snapshot of a partition from this peer, whose log no longer has what this node lacks."""

    peer: bytes
    partition: int
    base: VersionVector  # What has left its log.


Effect = Send | Apply | Read | SetBack | Reset


class SnapshotLimits(NamedTuple):
    """The same, for snapshots (`shoal.cluster.taking`)."""

    operations_min: int = 64  # If fewer are missing in a partition, its log is fetched.
    open_max: int = 8  # Snapshots at once.
    ahead: int = 2  # Pieces of one snapshot that were asked for.
    answer_s: float = 5.0  # How long one waits for its answer.
    idle_s: float = 30.0  # How long a snapshot does not move until it is given up.
    pause_s: float = 0.5  # How long a peer that failed is left alone, the first time.
    pause_s_max: float = 10.0


class Limits(NamedTuple):
    """The bounds of `Config` that matter here. Times are in seconds."""

    sync_interval_s: float
    grace_s: float  # How long an operation may be missing before it is asked for. Usually it is on its way.
    answer_s: float  # How long a Want waits for its answer.
    pause_s_max: float  # How long at most a peer that does not answer is left alone.
    push_bytes_max: int
    vectors_bytes_max: int
    early_bytes_max: int
    quarantine_max: int
    quarantine_s: float
    early_s: float = 60.0
    claims_max: int = CLAIMS_MAX  # Logs that a peer may name of which nothing is here.
    snapshots: SnapshotLimits = SnapshotLimits()


NEEDS_BYTES_MAX = 64 * 1024  # Of vectors in one Have, unless a single one is longer.


@dataclass(slots=True)
class PeerState:
    """A peer, linked or not. Mutable."""

    known: Knowledge
    mark: Mark
    linked: bool = False
    fenced: bytes = b""  # The run of it of which alone anything is taken; empty: not told yet.
    unended: bool = False  # Whether it said that it does not know where its past origins end.
    fences: bool = True  # Whether it knows of `fenced`.
    heard: int = 0  # The number of the last `Digest.once` from it.
    member: bool = False  # Whether it said, on the current link from it, that it is no learner.
    caught_up: set[int] | None = None  # The partitions of its mark in which it says that it has caught up.
    unheard: set[int] = field(default_factory=set)  # Those of them of which it has not sent its vector since.
    unsaid: dict[tuple[int, Origin], int] = field(default_factory=dict)  # Operations that we hold and have not told it of.

    def have(self, said: dict[tuple[int, Origin], int]) -> Have:
        """The message about these operations, which are held. Those beyond its bound are left in `unsaid`."""
        needs: list[tuple[int, bytes]] = []
        size = 0
        for partition in dict.fromkeys([partition for partition, _ in said]):
            needed = self.known.needs(partition)
            if needed is None:
                continue
            packed = needed.pack()
            if needs and size + len(packed) > NEEDS_BYTES_MAX:
                for place in [place for place in said if place[0] == partition]:
                    self.unsaid[place] = max(said.pop(place), self.unsaid.get(place, 0))
                continue
            needs.append((partition, packed))
            size += len(packed)
        return Have([(partition, origin, sequence) for (partition, origin), sequence in said.items()], needs)

    def drop_retired(self, partition: int, applied: VersionVector) -> None:
        """Forget the origins that this replica, which has applied so much of a partition, has retired there."""
        retired = _retired(self.known.vector(partition).join(self.mark.vector(partition)), applied)
        self.known.retire(partition, retired)
        self.mark.retire(partition, retired)


def marked(vectors: Mapping[int, VersionVector], replica: Replica) -> Mark:
    """The mark of a peer as it was stored, without the origins that this replica has retired since."""
    mark = Mark(vectors)
    for number, vector in vectors.items():
        mark.retire(number, _retired(vector, replica.applied(number)))
    return mark


def _retired(vector: VersionVector, applied: VersionVector) -> list[Origin]:
    """The origins in `vector` that a replica which has applied so much has retired."""
    return [origin for origin, sequence in vector.items() if is_retired(applied, origin, sequence)]


class Rounds:
    """Whom a node compares its operations with next, and when. `random` returns a number in [0, 1).

    In a round each linked peer has its turn, in random order: what hangs on the comparison with one peer, as sweeping
    does, waits for one round at most. The times are random, so that nodes which started together do not stay together.
    """

    def __init__(self, *, interval_s: float, random: Callable[[], float]) -> None:
        self.due = 0.0
        """When the next comparison is to be made."""
        self._interval_s = interval_s
        self._random = random
        self._compared: set[bytes] = set()  # In this round.

    def next(self, linked: Sequence[bytes], now: float) -> bytes | None:
        """The peer to compare with now, of these; None if there is none."""
        self.due = now + self._interval_s * (0.5 + self._random())
        if not linked:
            return None
        left = [peer for peer in linked if peer not in self._compared]
        if not left:
            self._compared.clear()
        peer = (left or linked)[int(self._random() * len(left or linked))]
        self._compared.add(peer)
        return peer
