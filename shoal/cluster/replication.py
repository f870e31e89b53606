"""Replication among peers, as a state machine: messages and time in, effects out.

    linked · unlinked · receive · deliver · issued · stored · refused · tick   →   take_outbox

Laws:
- The caller carries out the outbox, in order, before it calls again; `Apply` in it
  hands out operations that are causally ready.
- Own operations are pushed once they are `issued`, maybe before they are durable. So an operation that arrives proves
  nothing about its sender: operations count as held, and are acknowledged, once `stored` says that they are durable.
- Pushes and acknowledgements may be lost. Vectors are compared with some peer every
  interval, and missing operations are fetched (`shoal.cluster.fetching`).
- A peer counts as an owner once it said, on the current link, that it is no learner
  (`shoal.cluster.fetching`), and that it holds the most that it was ever known to hold
  (`shoal.cluster.peer_state`). If it holds less it is told, and becomes a learner.
  On a new link, a node says first whether it is a learner itself.
- An operation that cannot be applied is quarantined (`shoal.cluster.delivery`).
- One peer's word moves nothing that others hold: that operations have left a log counts only in answer to a question that is
  open, for operations that were asked for, of origins of which a majority of the other owners says that it holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from msgspec import Raw

from shoal.cluster import operation
from shoal.cluster.delivery import Arrival, Delivery, Quarantine, Refused, check_context, taken
from shoal.cluster.fetching import Ends, Fetching, Learning
from shoal.cluster.knowledge import Knowledge, Parts, Replica, told_vectors, vector_of
from shoal.cluster.messages import (
    Busy,
    Digest,
    Have,
    Message,
    Push,
    Shipment,
    SnapshotRequest,
    Supply,
    Trouble,
    Truncated,
    Vectors,
    Want,
    batches,
)
from shoal.cluster.messages import Parts as PartsMessage
from shoal.cluster.peer_state import Apply, Effect, Limits, Mark, PeerState, Read, Reset, Rounds, Send, SetBack, marked
from shoal.cluster.taking import Snapshots
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.errors import BadOperation, InvalidValue, ShoalError


class Replication:
    """`random` returns a float in [0, 1). A `learner` may have forgotten operations that others rely on; it once held `owed`.

    `marks` are the most that each peer was ever known to hold. `is_majority` tells whether these peers are enough to be
    believed: more than half of the other owners.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        limits: Limits,
        random: Callable[[], float],
        learner: bool = False,
        owed: Mapping[int, VersionVector] | None = None,
        marks: Mapping[bytes, Mapping[int, VersionVector]] | None = None,
        is_majority: Callable[[Collection[bytes]], bool] = bool,
    ) -> None:
        self.learning = Learning(replica.durable, owed) if learner else None
        """None once this node counts as an owner."""
        self.handover: Learning | None = None
        """The operations that this node must hold before the change of members that is under way is done; None if none is
        joint.
        """
        self.ends: Ends | None = None
        """None once this node knows where its directory's past origins end."""
        self._run = b""  # Names this start of the node; empty: peers do not know it.
        self._replica = replica
        self._limits = limits
        self._is_majority = is_majority
        self._parts = Parts(replica)
        self._delivery = Delivery(replica.applied, bytes_max=limits.early_bytes_max)
        self._peers: dict[bytes, PeerState] = {}
        for peer, noted in (marks or {}).items():
            mark = marked(noted, replica)
            self._peers[peer] = PeerState(self._nothing(mark), mark)
        self._is_current = True  # Whether the sender of the message that is being taken is in this node's epoch.
        self._outbox: list[Effect] = []
        self._quarantine = Quarantine(places_max=limits.quarantine_max, duration_s=limits.quarantine_s)
        self._fetching = Fetching(
            replica,
            self._delivery,
            self._quarantine,
            grace_s=limits.grace_s,
            answer_s=limits.answer_s,
            pause_s_max=limits.pause_s_max,
            replaced=lambda partition: self.snapshots.takes(partition),
        )
        self.snapshots = Snapshots(replica, limits.snapshots)
        """The partitions that are taken by snapshot."""
        self._rounds = Rounds(interval_s=limits.sync_interval_s, random=random)

    def begin(self, run: bytes, *, had_openings: bool) -> None:
        """Peers know this start of the node as `run`. `had_openings`: its directory wrote under other origins before."""
        self._run = run
        self.ends = Ends(self._replica.durable) if had_openings else None

    # ── links ─────────────────────────────────────────────────────────────────

    def admitted(self, peer: bytes) -> None:
        """A link from `peer` begins: what it said on an older one may not hold any more."""
        state = self._state(peer)
        self.mark(peer).begin()
        self._fetching.forget(peer)
        self.snapshots.admitted(peer)
        state.known, state.member, state.heard = self._nothing(state.mark), False, 0
        state.caught_up = None
        if state.linked:
            self._send_digest(peer)

    def linked(self, peer: bytes, *, fences: bool = True) -> None:
        """Messages can be sent to `peer` from now on. `fences`: it tells which run of this node it takes operations of."""
        state = self._state(peer)
        state.fences = fences
        state.linked = True
        state.unsaid.clear()
        self._fetching.linked(peer)
        # The other side sends one too, so a side that lacks operations finds out at once.
        self._send_digest(peer)

    def unlinked(self, peer: bytes) -> None:
        """No messages can be sent to `peer` any more."""
        state = self._state(peer)
        state.linked = False
        state.unsaid.clear()
        self._fetching.unlinked(peer)

    def forget(self, peer: bytes) -> None:
        """Forget a node that is gone for good: another one is at its address."""
        self._peers.pop(peer, None)
        self._fetching.forget(peer)
        self.snapshots.forget(peer)

    def ended(self, peer: bytes) -> None:
        """An opening of the peer's directory is over: what waits of it is not applied any more, unless it is fetched."""
        self._delivery.drop_of(peer)
        self._state(peer).fenced = b""

    def fenced(self, peer: bytes, run: bytes) -> None:
        """Nothing is taken of runs of the peer before this one, and all that was is durable."""
        state = self._state(peer)
        state.fenced = run
        if state.linked:
            self._send_digest(peer)

    def end(self) -> None:
        """This node holds all that the others have of its directory's past openings."""
        self.ends = None
        self._send_digests()

    def admit_itself(self) -> None:
        """This node holds all that it must, and has recorded that on disk: it counts as an owner from now on."""
        self.learning = None
        self._send_digests()

    @property
    def _taught(self) -> list[Learning]:
        """The operations that the message being taken teaches."""
        handover = self.handover if self._is_current else None
        return [one for one in (self.learning, self.ends, handover) if one is not None]

    def enter_epoch(self, *, is_joint: bool) -> None:
        """A new epoch of the members has begun.

        What waits to be applied is dropped, since a directory that was removed may have sent it. The others are asked again.
        """
        self.handover = Learning(self._replica.durable) if is_joint else None
        self._delivery.clear()
        for state in self._peers.values():
            state.known.begin_epoch()
        self._send_digests()

    # ── messages ──────────────────────────────────────────────────────────────

    def receive(self, peer: bytes, message: Message, now: float, *, is_current: bool = True) -> None:
        """Take any message except those that bring operations: `deliver` takes these, in slices.

        `is_current` tells whether its sender was in this node's epoch when it sent this.

        Raises:
            BadOperation: it claims an operation that this node has not issued.
            InvalidValue: it holds a malformed vector.
        """
        state = self._state(peer)
        self._is_current = is_current
        match message:
            case Have(held, needs):
                for partition in state.known.acknowledge(held, needs):
                    self._fetching.note(peer, partition, now)
            case Digest():
                if not message.learner and not state.member:
                    state.known.count_from(self._fetching.last_id + 1)
                    for learning in self._taught:
                        learning.forget(peer)
                state.member = not message.learner
                state.unended = message.unended
                if self.ends is not None and (not state.fences or (message.fenced and message.fenced == self._run)):
                    self.ends.fence(peer)
                self._settle(peer, state, message)
                self._hear(peer, state, message)
                self._compare(peer, state, message.digest)
            case PartsMessage(parts):
                self._compare_parts(peer, state, dict(parts))
            case Vectors():
                self._take_vectors(peer, state, message, now)
            case Want():
                self._outbox.append(Read(peer, message))
            case Truncated(partition, packed):
                base = self._believed(peer, partition, vector_of(packed))
                if base:
                    self._fetching.truncated(peer, partition)
                    self.snapshots.truncated(peer, partition, base)
                    self._outbox.append(Reset(peer, partition, base))
            case Busy(id, _, retry_after_ms):
                self._fetching.busy(peer, id, until=now + retry_after_ms / 1000)

    def _believed(self, peer: bytes, partition: int, base: VersionVector) -> VersionVector:
        """The part that counts of a peer's word that operations up to `base` have left its log.

        What a majority does not say (yet) that it holds is asked for again after the peer's next vectors.
        """
        counted: dict[Origin, int] = {}
        for origin, first in self._fetching.asked(peer, partition).items():
            # No further than a majority holds it: a base that nobody reaches would keep the partition waiting for ever.
            sequence = min(base[origin], self._held_by_majority(partition, origin))
            if sequence >= first > self._replica.applied(partition)[origin]:
                counted[origin] = sequence
        return VersionVector(counted)

    def _held_by_majority(self, partition: int, origin: Origin) -> int:
        """The last operation of an origin of which a majority of the other owners says that it holds it; 0: none."""
        held = {node: state.known.vector(partition)[origin] for node, state in self._peers.items()}
        reached = (last for last in held.values() if self._is_majority({node for node in held if held[node] >= last}))
        return max(reached, default=0)

    def _operations(self, known: Knowledge, partition: int) -> int:
        """How many operations a peer that is `known` to hold this can give, as far as a majority holds as many."""
        vector = known.vector(partition)
        return sum(min(sequence, self._held_by_majority(partition, origin)) for origin, sequence in vector.items())

    def deliver(self, peer: bytes, operations: Iterable[Shipment | Arrival | Refused], now: float) -> None:
        """Take some of the operations of a Push or Supply, decoded or not. It is not known whether its sender holds them
        durably.
        """
        known, own = self._state(peer).known, self._replica.own_origin()
        arrivals: list[Arrival] = []
        for each in operations:
            shipment = each if isinstance(each, Shipment) else each.shipment
            dot = shipment.dot
            if self._quarantine.found and self._quarantine.covers(shipment.partition, dot, now, sender=peer):
                continue
            if isinstance(each, Refused):
                self.refused(peer, shipment, each.error, now)
                continue
            try:
                arrival = each if isinstance(each, Arrival) else Arrival(each, operation.decode_sent(each.packed), dot)
                self._check(peer, known, own, arrival)
            except (InvalidValue, BadOperation) as error:
                self.refused(peer, shipment, error, now)
                continue
            arrivals.append(arrival)
        found = self._delivery.take(arrivals, now, sender=peer)
        for arrival in found.early:
            self._fetching.note(peer, arrival.shipment.partition, now)
        if found.ready or found.again:
            self._outbox.append(Apply(peer, found.ready, found.again))

    def supplied(self, peer: bytes, supply: Supply, now: float) -> None:
        """Take the answer to a Want before its operations are delivered: the peer prepares the next answer meanwhile."""
        if self._fetching.supplied(peer, supply):
            self._want(peer, self._state(peer), now)

    def delivered(self, peer: bytes) -> None:
        """All operations of the last Supply were delivered."""
        self._fetching.delivered(peer)

    def _check(self, peer: bytes, known: Knowledge, own: Origin | None, arrival: Arrival) -> None:
        shipment, body, dot, *_ = arrival
        if body.context:
            check_context(arrival)
            for origin, sequence in body.context:
                if origin == own:
                    known.check(shipment.partition, origin, sequence)
        if dot.origin == own:
            known.check(shipment.partition, *dot)
        waiting = self._delivery.waits(shipment.partition, dot)
        if waiting is not None and waiting.shipment.chain != shipment.chain:
            if not self._delivery.gives_way(arrival, peer):
                raise taken(shipment)
            self._delivery.withdraw(shipment.partition, dot)

    # ── comparing ─────────────────────────────────────────────────────────────

    def _send_digest(self, peer: bytes) -> None:
        state = self._state(peer)
        once = state.mark.telling()
        number = state.mark.number if once else 0
        is_learner, is_unended = self.learning is not None, self.ends is not None
        self._send(peer, Digest(self._parts.digest(), is_learner, once, number, state.heard, state.fenced, is_unended))

    def _send_digests(self) -> None:
        for peer, state in self._peers.items():
            if state.linked:
                self._send_digest(peer)

    def _is_whole(self, state: PeerState) -> bool:
        """Whether what a peer tells that it holds covers all that it has issued, in this epoch and in earlier openings."""
        return self._is_current and not state.unended

    def _compare(self, peer: bytes, state: PeerState, digest: bytes) -> None:
        if digest == self._parts.digest():
            state.known.take_all(self._parts.held(), is_current=self._is_whole(state))
            self._compare_mark(peer, state, {number: self._replica.durable(number) for number in state.mark.to_compare()})
            for learning in self._taught:
                learning.equal(peer)
        else:
            self._send(peer, PartsMessage(list(self._parts.all().items())))

    def _compare_parts(self, peer: bytes, state: PeerState, theirs: dict[int, bytes]) -> None:
        ours = self._parts.all()
        differing = [
            partition for partition in sorted(ours.keys() | theirs.keys()) if ours.get(partition) != theirs.get(partition)
        ]
        state.known.differs(differing)
        for partition in ours.keys() - set(differing):
            state.known.take_equal(partition, is_current=self._is_whole(state))
        told = {
            partition: self._replica.durable(partition) if partition in theirs else NOTHING_SEEN
            for partition in state.mark.to_compare()
            if theirs.get(partition) == ours.get(partition) or partition not in theirs
        }
        self._compare_mark(peer, state, told)
        for learning in self._taught:
            learning.differs(peer, differing)
        self._send_vectors(peer, differing, answer=True)

    def _take_vectors(self, peer: bytes, state: PeerState, message: Vectors, now: float) -> None:
        told: dict[int, VersionVector] = {}
        retired = {partition: (vector_of(ends), vector_of(times)) for partition, ends, times in message.retired}
        for partition, (ends, _) in retired.items():
            state.mark.retire(partition, ends)
        for partition, packed in message.vectors:
            theirs = told[partition] = state.known.take_vector(
                partition, packed, retired.get(partition), is_current=self._is_whole(state)
            )
            for learning in self._taught:
                learning.vector(peer, partition, theirs)
            if not self._replica.applied(partition).dominates(theirs):
                self._fetching.note(peer, partition, now)
            if not message.answer:
                state.known.answer(partition, message.question)
        self._compare_mark(peer, state, told)
        if message.answer:
            asked = [partition for partition, _ in message.vectors]
            # A node that was set back must be told before it can act on an answer, even if messages overtake each other.
            question = message.question if state.mark.is_held else 0
            self._send_vectors(peer, asked, answer=False, question=question)

    # ── directories that were set back ────────────────────────────────────────

    def _compare_mark(self, peer: bytes, state: PeerState, told: Mapping[int, VersionVector]) -> None:
        """`peer` holds exactly this: tell it if it once held more, or lower its mark if it has caught up."""
        is_told = state.mark.compare(told)
        if state.caught_up is not None:
            state.unheard.difference_update(told)
            if not state.unheard:
                # It may have acknowledged more of this replica's own operations than are proven, and so counted.
                held = {
                    number: state.known.vector(number).join(state.known.whole(number) or NOTHING_SEEN)
                    for number in state.caught_up
                }
                state.caught_up = None
                is_told |= state.mark.settle(held)
        if is_told and state.linked:
            self._send_digest(peer)

    def _hear(self, peer: bytes, state: PeerState, message: Digest) -> None:
        """Take the operations that this node once held, as `peer` says."""
        if not message.once:
            return
        once = {partition: vector_of(packed) for partition, packed in message.once}
        lacking = {partition: self._lacking(partition, vector, learner=message.learner) for partition, vector in once.items()}
        owed = {partition: vector for partition, vector in lacking.items() if vector is not None}
        is_over = self.learning is None and message.number == state.heard  # It has caught up, and is telling so.
        state.heard = message.number
        if owed and not is_over:
            began = self.learning is None
            self.learning = self.learning or Learning(self._replica.durable)
            before = self.learning.owed
            self.learning.owe(owed)
            if self.learning.owed != before:  # It is told again until it has caught up.
                self._outbox.append(SetBack(peer))
            if began:
                self._send_digests()
        self._send_vectors(peer, once, answer=False)

    def _lacking(self, partition: int, once: VersionVector, *, learner: bool) -> VersionVector | None:
        """The operations that this node must have held once, as a peer says, and does not hold; None: nothing.

        A learner may not know yet which origins were retired. Where some are forgotten here, those that only it knows may be
        these; it says what it means once it has learnt.
        """
        durable = self._replica.durable(partition)
        if learner and durable.retired is not None and durable.retired.forgotten:
            once = once.retire([origin for origin, _ in once.items() if origin not in durable], None)
        return None if durable.dominates(once) else once

    def _settle(self, peer: bytes, state: PeerState, message: Digest) -> None:
        """`peer` may say that it has caught up with the mark that it was told. It counts once it has sent its vectors."""
        if message.learner or not state.mark.told or message.heard != state.mark.number:
            return
        state.caught_up = set(state.mark.told)
        state.unheard = set(state.caught_up)
        self._send_vectors(peer, sorted(state.unheard), answer=True)

    def _send_vectors(self, peer: bytes, partitions: Iterable[int], *, answer: bool, question: int = 0) -> None:
        """In as many messages as their size takes."""
        known = self._state(peer).known
        for vectors, retired in told_vectors(self._replica, known, partitions, bytes_max=self._limits.vectors_bytes_max):
            self._send(peer, Vectors(vectors, answer, question, retired))

    def retired(self, partition: int, origins: Collection[Origin]) -> None:
        """This replica has retired these origins: it need not remember what its peers hold of them."""
        for state in self._peers.values():
            state.known.retire(partition, origins)
            state.mark.retire(partition, origins)

    def hurry(self, partition: int, now: float) -> int:
        """Somebody waits for missing operations of a partition: ask all peers for their vectors and for the operations now.

        Returns the question's number, for `Knowledge.answered`.
        """
        question = self._fetching.next_id()
        for peer, state in self._peers.items():
            if state.linked:
                self._send_vectors(peer, [partition], answer=True, question=question)
                self._fetching.hurry(peer, partition, now)
        return question

    def _want(self, peer: bytes, state: PeerState, now: float) -> None:
        want = self._fetching.want(peer, state.known, now) if state.linked else None
        if want is not None:
            self._send(peer, want)

    def untaken(self, peer: bytes, message: Message, now: float) -> None:
        """The queue of the link to `peer` had no room for a message of this replica: no answer will come."""
        if isinstance(message, Want):
            self._fetching.untaken(peer, message.id, now)
        elif isinstance(message, SnapshotRequest):
            self.snapshots.untaken(peer, message, now)

    # ── events in the node ────────────────────────────────────────────────────

    def issued(self, operations: Iterable[Raw]) -> None:
        """Own operations, encoded, are written, and maybe durable: push them to all peers."""
        peers = [peer for peer, state in self._peers.items() if state.linked]
        if not peers:
            return
        for batch in batches(operations, _operation_bytes, bytes_max=self._limits.push_bytes_max):
            self._outbox.append(Send(peers, Push(batch)))

    def stored(
        self, runs: Iterable[tuple[bytes, int, Dot, int]], issued: Mapping[tuple[int, Origin], int] | None = None
    ) -> None:
        """Operations became durable: acknowledge them to their sender now, to other peers with a tick.

        A run is the sender, the partition, the last of some operations of one origin, and their number. `issued` are the last
        of this node's own: peers are told that they are durable here.
        """
        said: dict[bytes, dict[tuple[int, Origin], int]] = {}
        linked = [(peer, state) for peer, state in self._peers.items() if state.linked]
        for source, partition, dot, count in runs:
            place, sequence = (partition, dot.origin), dot.sequence
            if self._quarantine.found:
                self._quarantine.stored(partition, dot, count)
            for peer, state in linked:
                told = said.setdefault(peer, {}) if peer == source else state.unsaid
                if sequence > told.get(place, 0):
                    told[place] = sequence
        for peer, state in linked if issued else ():
            told = said.get(peer, state.unsaid)
            for place, sequence in (issued or {}).items():
                if sequence > told.get(place, 0):
                    told[place] = sequence
        for peer, held in said.items():
            self._send(peer, self._state(peer).have(held))

    def applied(self, partitions: Collection[int]) -> None:
        """Operations of peers were applied in these partitions."""
        for state in self._peers.values():
            state.known.prove(partitions)

    def refused(self, peer: bytes, shipment: Shipment, error: ShoalError, now: float) -> None:
        """An operation could not be applied: tell its sender, and take it from nobody but others for a while."""
        self._quarantine.put(shipment.partition, shipment.dot, error.message, now, sender=peer)
        self._delivery.drop_log(shipment.partition, shipment.dot.origin, peer)
        self._send(peer, Trouble.about(shipment, error))

    def tick(self, now: float) -> None:
        """Do everything that is due: acknowledgements, comparisons, and requests for operations that are still missing."""
        for peer, state in self._peers.items():
            if not state.linked:
                continue
            if state.unsaid:
                unsaid, state.unsaid = state.unsaid, {}
                self._send(peer, state.have(unsaid))
            self._fetching.expire(peer, now)
            self.snapshots.look(peer, self._fetching.gaps(peer, now), partial(self._operations, state.known))
            self._want(peer, state, now)
        self.ask_for_snapshots(now)
        if now >= self._rounds.due:
            self._delivery.expire(now - self._limits.early_s)
            compared = self._rounds.next(sorted(peer for peer, state in self._peers.items() if state.linked), now)
            if compared is not None:
                self._send_digest(compared)

    @property
    def next_due(self) -> float:
        """When something is to be done at the latest, if nothing happens before."""
        return self._rounds.due if self.learning is None and not self.snapshots.is_busy else 0.0

    def ask_for_snapshots(self, now: float) -> None:
        """Ask for the pieces of snapshots that are next: with every tick, and after each piece."""
        linked = [peer for peer, state in self._peers.items() if state.linked]
        # No fewer than a majority can confirm a snapshot. Meanwhile the log is fetched.
        for peer, request in self.snapshots.next(linked if self._is_majority(linked) else (), now):
            self._send(peer, request)

    def replaced(self, partition: int, now: float) -> None:
        """A partition was replaced by a snapshot: tell all peers what is held now, and see what is still missing."""
        self._delivery.drop(partition)
        self._quarantine.replaced(partition, self._replica.durable(partition))
        self.applied([partition])
        applied = self._replica.applied(partition)
        for peer, state in self._peers.items():
            state.drop_retired(partition, applied)  # The snapshot may have brought origins as retired that were live here.
            state.unsaid = {place: sequence for place, sequence in state.unsaid.items() if place[0] != partition}
            if state.linked:
                self._send_vectors(peer, [partition], answer=False)
            self._fetching.note(peer, partition, now)  # It may hold more.

    def take_outbox(self) -> list[Effect]:
        """The effects to carry out, in order. The outbox is empty afterwards."""
        outbox, self._outbox = self._outbox, []
        return outbox

    # ── for the caller ────────────────────────────────────────────────────────

    def known(self, peer: bytes) -> Knowledge:
        """The operations that `peer` is known to hold."""
        return self._state(peer).known

    def is_member(self, peer: bytes) -> bool:
        """Whether `peer` counts as an owner."""
        state = self._peers.get(peer)
        return state is not None and state.member and state.mark.is_held

    def holds(self, peer: bytes, partition: int, wanted: VersionVector) -> bool:
        """Whether `peer` counts as an owner, and is known to hold all of `wanted`."""
        state = self._peers.get(peer)
        return state is not None and state.known.holds(partition, wanted) and self.is_member(peer)

    def mark(self, peer: bytes) -> Mark:
        """The most that `peer` was ever known to hold."""
        state = self._state(peer)
        for partition in state.known.unmarked:
            state.mark.note(partition, state.known.named(partition))
        state.known.unmarked.clear()
        return state.mark

    def digest(self) -> bytes:
        """A hash over this node's durable vectors."""
        return self._parts.digest()

    @property
    def early(self) -> int:
        """How many operations wait for others."""
        return len(self._delivery)

    def quarantined(self) -> list[str]:
        """The refused operations with the reasons, for people."""
        return self._quarantine.listed()

    def _state(self, peer: bytes) -> PeerState:
        state = self._peers.get(peer)
        if state is None:
            state = self._peers[peer] = PeerState(self._nothing(Mark()), Mark())
        return state

    def _nothing(self, mark: Mark) -> Knowledge:
        """The knowledge of a peer that has said nothing yet on this link."""
        return Knowledge(self._replica, claims_max=self._limits.claims_max, before=mark.vectors())

    def _send(self, peer: bytes, message: Message) -> None:
        self._outbox.append(Send((peer,), message))


def _operation_bytes(packed: Raw) -> int:
    return len(memoryview(packed))
