"""Decide which operations to fetch, from which peer, and which a node must hold before it counts as an owner.

A node whose directory is new, wiped, restored or copied may have forgotten operations that it
acknowledged, and cannot know which. Until it holds everything that a
majority of the other owners hold it is a *learner*: it counts in no quorum.

Why a majority of the others: a write that a quorum acknowledged, of n owners and with
this node among them, is on at least a majority less one of the n - 1 others. Every
majority of the others meets that set, and so names the write. Another learner may have
forgotten the write as well, so it is not counted unless all the others were heard.

While a change of the members is joint, the same tells whether a node holds everything that the old list holds
(`shoal.cluster.membership.epochs`).

A peer may tell a node that its directory was set back (`shoal.cluster.peer_state`). Then the node must also
hold what it once held, as far as any owner still holds it.

The ends of the origins under which a directory wrote before.

An opening pushes operations while it syncs them, so a crash may take some that others have, or still have to apply. Where
the past origins end is known once each of the other members has said that it takes nothing more of an earlier opening
(`Digest.fenced`), and this node holds all that it held then. Until that day what this node holds tells nobody what its
directory has issued: it has no *whole* vector (`shoal.cluster.truncation`), and nothing becomes stable.
Copies and fresh directories have no past origins.

Laws:
- A gap is a partition in which a peer holds operations that this replica lacks. Usually they are
  on their way, so nothing is asked for until the gap is `grace_s` old.
- Each peer has at most one unanswered `Want`, and a partition is fetched from one peer at a time.
- A peer that does not answer within `answer_s` is left alone, each time for twice as long, up to
  `pause_s_max`, so that the other peers are asked. One that was never asked, because the queue of its link had no room, is
  asked again soon: nothing is held against it.
- Operations that already wait for others, from this peer or their origin's directory, or that are quarantined with it, are
  not asked for; nor are those that a peer has sent and that are still to be applied.
- For each owner, the vectors count that it sent after this node became a learner: first a hash for each
  partition, then its whole vector of each that differs.
- Connections do not matter here: the vectors that an owner sent stay a lower bound.
- Of the vectors of a peer those count for the ends of past origins that it sent after it had said so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from shoal.cluster.delivery import Delivery, Quarantine
from shoal.cluster.knowledge import Knowledge, Replica
from shoal.cluster.messages import RANGES_MAX, Range, Shipment, Supply, Want
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector

PARTITIONS_WANTED_MAX = 64  # In one Want.
OPERATIONS_WANTED = 1024  # A Want ends with the partition that brings it to so many: an answer holds fewer.
_DOUBLINGS_MAX = 16  # Of a pause; far beyond any bound on it.
_NO_ROOM_S = 0.1  # Until a Want is tried again that a link's queue did not take.


@dataclass(frozen=True, slots=True)
class _Pending:
    """A Want without an answer yet."""

    id: int
    since: float
    first: dict[int, dict[Origin, int]]  # By partition and origin: the first operation that was asked for.


@dataclass(slots=True)
class _Source:
    """A peer that can be asked."""

    gaps: dict[int, float] = field(default_factory=dict)  # Partitions in which it is ahead, and since when.
    pending: _Pending | None = None
    pause_until: float = 0.0
    unanswered: int = 0  # Wants in a row.
    arriving: dict[int, VersionVector] = field(default_factory=dict)  # By partition: of its last answer, until it is delivered.


class Fetching:
    """The gaps, and the peers that can fill them. Times are seconds on the caller's clock.

    `replaced` says whether a snapshot brings a partition, so that its log need not be fetched.
    """

    def __init__(
        self,
        replica: Replica,
        delivery: Delivery,
        quarantine: Quarantine,
        *,
        grace_s: float,
        answer_s: float,
        pause_s_max: float,
        replaced: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._replica = replica
        self._delivery = delivery
        self._quarantine = quarantine
        self._grace_s = grace_s
        self._answer_s = answer_s
        self._pause_s_max = pause_s_max
        self._replaced = replaced
        self._sources: dict[bytes, _Source] = {}
        self.last_id = 0  # Of the Wants and questions so far.

    def next_id(self) -> int:
        """A number that no Want had yet. Questions for vectors take their numbers from the same series."""
        self.last_id += 1
        return self.last_id

    # ── links ─────────────────────────────────────────────────────────────────

    def forget(self, peer: bytes) -> None:
        """Forget everything that `peer` said: it does not hold any more."""
        self._sources.pop(peer, None)

    def linked(self, peer: bytes) -> None:
        """A link to `peer` begins: it may be asked at once."""
        source = self._source(peer)
        source.pending, source.pause_until, source.unanswered = None, 0.0, 0

    def unlinked(self, peer: bytes) -> None:
        """The link to `peer` ended: its answer will not come."""
        self._source(peer).pending = None

    # ── gaps ──────────────────────────────────────────────────────────────────

    def note(self, peer: bytes, partition: int, now: float) -> None:
        """`peer` holds operations of this partition that this replica lacks."""
        self._source(peer).gaps.setdefault(partition, now)

    def hurry(self, peer: bytes, partition: int, now: float) -> None:
        """`peer` may be ahead in this partition, and somebody waits: skip the grace period."""
        self._source(peer).gaps[partition] = now - self._grace_s

    def gaps(self, peer: bytes, now: float) -> list[int]:
        """The partitions in which `peer` has been ahead for some time."""
        return [partition for partition, since in self._source(peer).gaps.items() if now - since >= self._grace_s]

    # ── requests and answers ──────────────────────────────────────────────────

    def want(self, peer: bytes, known: Knowledge, now: float) -> Want | None:
        """The next Want for `peer`, which is `known` to hold this; None if there is nothing to ask."""
        source = self._source(peer)
        if source.pending is not None or now < source.pause_until or not source.gaps:
            return None
        fetched = {partition for other in self._sources.values() if other.pending for partition in other.pending.first}
        ranges: list[Range] = []
        operations = 0
        for partition, since in list(source.gaps.items()):
            if now - since < self._grace_s or partition in fetched or self._replaced(partition):
                continue
            vector = self._replica.applied(partition)
            arriving = [other.arriving[partition] for other in self._sources.values() if partition in other.arriving]
            for brought in arriving:
                vector = vector.join(brought)
            lacking = self._lacking(peer, known, partition, vector, now)
            if lacking:
                ranges += lacking
                operations += sum(last - first + 1 for _, _, first, last in lacking)
            elif not arriving and not self._delivery.is_waiting(partition):  # Else the peer will tell soon what it holds.
                del source.gaps[partition]
            enough = operations >= OPERATIONS_WANTED or len(ranges) >= RANGES_MAX // 2
            if enough or len({place[0] for place in ranges}) >= PARTITIONS_WANTED_MAX:
                break
        if not ranges:
            return None
        first: dict[int, dict[Origin, int]] = {}
        for partition, name, sequence, _ in ranges[:RANGES_MAX]:
            first.setdefault(partition, {})[Origin(name)] = sequence
        source.pending = _Pending(self.next_id(), now, first)
        return Want(source.pending.id, ranges[:RANGES_MAX])

    def asked(self, peer: bytes, partition: int) -> Mapping[Origin, int]:
        """The first operations that `peer` is asked for now, by origin; none if it owes no answer."""
        pending = self._source(peer).pending
        return {} if pending is None else pending.first.get(partition, {})

    def supplied(self, peer: bytes, supply: Supply) -> bool:
        """Take the answer to a Want, until `delivered`. Returns False if it answers another Want."""
        source = self._source(peer)
        if source.pending is None or source.pending.id != supply.id:
            return False
        fetched, source.pending, source.unanswered = source.pending.first, None, 0
        brought: dict[int, dict[Origin, int]] = {}
        for shipment in supply.operations:
            if isinstance(shipment, Shipment):
                vector = brought.setdefault(shipment.partition, {})
                vector[Origin(shipment.origin)] = max(shipment.sequence, vector.get(Origin(shipment.origin), 0))
        if not brought:
            # The peer sent nothing although it is ahead there: wait for its next vectors.
            for partition in fetched:
                source.gaps.pop(partition, None)
        source.arriving = {partition: VersionVector(vector) for partition, vector in brought.items()}
        return True

    def truncated(self, peer: bytes, partition: int) -> None:
        """`peer` no longer has what is lacking there: ask it again only after its next vectors."""
        self._source(peer).gaps.pop(partition, None)

    def delivered(self, peer: bytes) -> None:
        """The operations of the peer's last answer were applied, or wait for others, or were refused."""
        self._source(peer).arriving = {}

    def busy(self, peer: bytes, id: int, *, until: float) -> None:
        """`peer` does not answer that Want, and asks to be left alone until then."""
        source = self._source(peer)
        if source.pending is not None and source.pending.id == id:
            source.pending, source.pause_until = None, until

    def untaken(self, peer: bytes, id: int, now: float) -> None:
        """The queue of the link to `peer` did not take that Want."""
        self.busy(peer, id, until=now + _NO_ROOM_S)

    def expire(self, peer: bytes, now: float) -> None:
        """Leave `peer` alone for a while if its answer is overdue."""
        source = self._source(peer)
        if source.pending is not None and now - source.pending.since > self._answer_s:
            pause_s = self._answer_s * 2.0 ** min(source.unanswered, _DOUBLINGS_MAX)
            source.pending, source.pause_until = None, now + min(pause_s, self._pause_s_max)
            source.unanswered += 1

    def _lacking(self, peer: bytes, known: Knowledge, partition: int, vector: VersionVector, now: float) -> list[Range]:
        lacking: list[Range] = []
        for origin, missing in known.ahead_of(partition, vector):
            first, last = missing.start, missing.stop - 1
            while first <= last and self._delivery.need_not_come(partition, Dot(origin, first), peer):
                first += 1
            last = self._quarantine.sound_until(partition, origin, last, now, sender=peer)
            if last >= first:
                lacking.append((partition, origin, first, last))
        return lacking

    def _source(self, peer: bytes) -> _Source:
        source = self._sources.get(peer)
        if source is None:
            source = self._sources[peer] = _Source()
        return source


class Learning:
    """`durable` returns this node's own vector of a partition; `owed` is what its directory is known to have held once."""

    def __init__(self, durable: Callable[[int], VersionVector], owed: Mapping[int, VersionVector] | None = None) -> None:
        self._durable = durable
        self._owed = dict(owed or {})
        self._told: dict[bytes, dict[int, VersionVector | None]] = {}  # Per peer: what is still to be held; None: not told yet.

    def equal(self, peer: bytes) -> None:
        """The peer holds the same as this node."""
        self._told[peer] = {}

    def differs(self, peer: bytes, partitions: Iterable[int]) -> None:
        """The peer's vectors of these partitions differ from this node's, and will follow.

        Only the first set of differing partitions counts, although the peer may hold more later: a learner
        acknowledges nothing, so it owes nothing that the peer gets after this.
        """
        differing = set(partitions)
        before = self._told.get(peer)
        if before is None:
            self._told[peer] = dict.fromkeys(differing)
            return
        for partition in [one for one, vector in before.items() if vector is None and one not in differing]:
            del before[partition]  # The two are equal there by now.

    def vector(self, peer: bytes, partition: int, vector: VersionVector) -> None:
        """Take a vector that the peer sent. It matters only for partitions in which the peer differs."""
        told = self._told.get(peer, {})
        if partition in told:
            told[partition] = vector

    def forget(self, peer: bytes) -> None:
        """Forget a peer that was a learner until now: its vectors may lack operations that it once acknowledged."""
        self._told.pop(peer, None)

    def owe(self, owed: Mapping[int, VersionVector]) -> None:
        """Add operations that this node's directory once held, as a peer says."""
        for partition, vector in owed.items():
            self._owed[partition] = self._owed.get(partition, NOTHING_SEEN).join(vector)

    @property
    def owed(self) -> dict[int, VersionVector]:
        """By partition, the operations that this node's directory once held and does not hold now."""
        for partition, vector in list(self._owed.items()):
            if self._durable(partition).dominates(vector):
                del self._owed[partition]
        return dict(self._owed)

    def lacks(self, peers: Collection[bytes]) -> bool:
        """Whether one of these peers told of operations that this node does not hold."""
        return any(peer in self._told and not self._is_held(peer) for peer in peers)

    def is_done(
        self, others: Collection[bytes], *, needed: int, everyone: int, learners: Collection[bytes] = frozenset()
    ) -> bool:
        """Whether this node holds all that it once held and all that `needed` other owners hold; `learners` do not count.

        If it holds everything that `everyone` of them holds, it is done too: nobody has the rest, so it is lost.
        """
        held = {peer for peer in others if self._is_held(peer)}
        return len(held) >= everyone or (len(held.difference(learners)) >= needed and not self.owed)

    def holds(self, peer: bytes) -> bool:
        """Whether this node holds everything that this owner told."""
        return self._is_held(peer)

    def heard(self, peer: bytes) -> bool:
        """Whether that owner has told all that it holds."""
        return None not in self._told.get(peer, {0: None}).values()

    @property
    def lacking(self) -> int:
        """How many operations this node's directory once held and does not hold now."""
        return sum(
            len(missing)
            for partition, vector in self._owed.items()
            for missing in vector.missing(self._durable(partition)).values()
        )

    def _is_held(self, peer: bytes) -> bool:
        told = self._told.get(peer)
        if told is None:
            return False
        while told:  # Up to the first that is not held: this is asked after every message.
            partition, vector = next(iter(told.items()))
            if vector is None or not self._durable(partition).dominates(vector):
                return False
            del told[partition]
        return True


class Ends(Learning):
    """Whether this node knows where its directory's past origins end."""

    def __init__(self, durable: Callable[[int], VersionVector]) -> None:
        super().__init__(durable)
        self._fenced: set[bytes] = set()

    def fence(self, peer: bytes) -> None:
        """The peer takes nothing more of earlier openings of this directory. It will tell what it holds."""
        if peer not in self._fenced:
            self._fenced.add(peer)
            self.forget(peer)

    def known_by(self, peer: bytes) -> bool:
        """Whether this node holds all that the peer held once it took nothing more."""
        return peer in self._fenced and self.holds(peer)
