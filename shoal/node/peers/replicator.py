"""The node among its peers: carries out what the replication protocol decides.

Laws:
- An operation that was issued here is pushed once its group commit has begun, if all peers know that it may not be durable
  here (`EARLY_SINCE`) and the origin of this opening is; else once it is done. One that a peer sent is acknowledged once its
  group commit is done.
- Once a peer's directory was opened again, nothing is taken that an earlier opening of it pushed. When all of that which was
  taken before is durable, the peer is told so.
- Each kind of message has one handler, which the part that it belongs to provides (`handlers`).
  What has none is for the protocol.
- The next message of a link is read once this one is written, or waits for its turn as one of a bounded number
  (`shoal.node.peers.delivering`). All but acknowledgements and votes wait for what came before them.
- Nothing that a peer sends stops the node: it is rejected, and both sides get the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shoal.cluster import messages
from shoal.cluster.comparing import Clock, Roots, RootsRequest
from shoal.cluster.consensus.ballots import Motion, Rules
from shoal.cluster.delivery import Arrival, taken
from shoal.cluster.membership.notices import Founded, Founding, Inquiry, Membership, Report, Standing
from shoal.cluster.messages import (
    Digest,
    Have,
    Message,
    Objects,
    Parts,
    Present,
    Push,
    RepairReply,
    RepairRequest,
    RightsReply,
    RightsRequest,
    Rows,
    Shipment,
    SnapshotPiece,
    SnapshotRequest,
    Supply,
    Trouble,
    Vectors,
)
from shoal.cluster.peer_state import Apply, Read, Reset, Send, SetBack
from shoal.cluster.peering import Identity, Outlet
from shoal.cluster.replication import Replication
from shoal.errors import Overloaded, PeerRefused, ReadOnly, ShoalError
from shoal.kinds.budget.peers import RightsRequests
from shoal.kinds.presence.handler import Presences
from shoal.node.consensus.quorum_register import Links, QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.membership.changes import Sight
from shoal.node.membership.roster import Pins, Roster
from shoal.node.peers.admission import Admission, Marking, Resets
from shoal.node.peers.cluster_state import ClusterState
from shoal.node.peers.delivering import Deliveries, Operation
from shoal.node.peers.members import Members, addresses_of
from shoal.node.peers.memberships import Memberships
from shoal.node.peers.outgoing import Settling, busy
from shoal.node.peers.quorum import Quorum
from shoal.node.peers.read_repair import ReadRepairer
from shoal.node.peers.replica import ClockComparison, NodeReplica, Outlets, Pace, limits_of
from shoal.node.snapshots.exchange import SnapshotExchange
from shoal.node.snapshots.witnessing import Others, Owners
from shoal.node.verification.scrubbing import Scrubber
from shoal.node.writes.issuing import Logged, Outbound

EARLY_SINCE = 7  # Of the peer protocol: older peers take a push as proof that its sender holds the operation durably.

_OF_MEMBERS = (Digest, Motion)  # The messages by which a peer counts.
_BRING = (Push, Supply, SnapshotPiece)  # Those that bring operations.
_ABOUT_MEMBERS = (Membership, Standing, Inquiry, Report, Founding, Founded)
_OVERTAKE = (Push, Have, Motion)  # Those that do not wait for what came before: writes of other spaces wait for them.


class Replicator:
    """The replication of a node with peers. It is the `Peer` that links call; `quorum` is the `Replicas` of the service."""

    def __init__(self, context: NodeContext, database: Database, presences: Presences) -> None:
        config, incarnation, environment = context.config, context.incarnation, context.environment
        self._database = database
        self._commit = context.commit
        self._incarnation = incarnation
        self._environment = environment
        self._config = config
        self._settling = Settling(database.partitions)
        self._introduced = 0  # The write that holds the origin of this opening.
        self._fencing: dict[bytes, tuple[int, bytes]] = {}  # By node: the write to wait for, and the run that is to be told.
        self._ticking: asyncio.Task[None] | None = None
        self._pace = Pace(config)
        self._deliveries = Deliveries(context, self._take, database.exchange.incoming.drafting)
        database.partitions.load_all()
        self._presences = presences
        self._roster = Roster(
            context,
            configured=[config.advertise, *addresses_of(config)],
            is_empty=lambda: not database.partitions.vectors(),
        )
        members = Members(self._roster)
        self._pins = Pins(context.storage, context.commit)
        bytes_max = config.peer_send_bytes_max // 2
        self._outlets = Outlets(dropped=self._dropped, bytes_max=bytes_max, epoch=lambda: self._roster.epoch)
        self._clocks = ClockComparison(incarnation.node, members, self._outlets, environment=environment, config=config)
        self.register = QuorumRegister(context, self._links(members))
        self._marking = Marking(context.storage, context.commit, members=members, config=config, now=environment.monotonic())
        self._protocol = Replication(
            NodeReplica(database, incarnation),
            limits=limits_of(config),
            random=lambda: environment.entropy(1)[0] / 256,
            learner=incarnation.learner,
            owed=incarnation.owed,
            marks=self._marking.load(),
            is_majority=members.is_majority,
        )
        incarnation.when_begun(self._begin)
        self._protocol.digest()  # The first one hashes every vector, later ones only changes. Nothing is served yet.
        presences.replicate(lambda message: self._outlets.hint(list(self._outlets), message))
        database.partitions.replicate(self._protocol.retired)
        database.exchange.incoming.replicate(lambda: members.nodes)
        database.issuer.replicate(Outbound(self._logged, self._clocks.check, lambda: self._outlets.oldest))
        self._mender = ReadRepairer(
            context,
            database,
            members,
            holds=lambda node, partition, vector: self._protocol.known(node).holds(partition, vector),
            send=lambda node, lost: self._outlets.send((node,), lost),
        )
        self._seeker = RightsRequests(
            context,
            database,
            send=lambda node, seek: self._outlets.send((node,), seek),
            linked=lambda: (self.quorum.linked, len(self.quorum.linked) + 1 >= self.quorum.size),
        )
        self.scrubber = Scrubber(
            database,
            own=incarnation.node,
            send=lambda node, message: self._outlets.hint([node], message),
            linked=lambda: sorted(self.quorum.linked),
            named=members.address_of,
            owners=lambda: self.quorum.owners,
            config=config,
        )
        self._resets = Resets(vector_of=database.vector_of, named=members.name_of)
        state = ClusterState(
            context,
            self._protocol,
            database,
            members=members,
            scrubber=self.scrubber,
            clocks=self._clocks,
            resets=self._resets,
        )
        self.quorum = Quorum(
            context,
            self._protocol,
            state,
            database=database,
            hurry=self._hurry,
            mender=self._mender,
            seeker=self._seeker,
        )
        self._admission = Admission(context, self._protocol, members, forget_votes=self.register.forget)
        self.memberships = Memberships(
            context,
            members,
            self.register,
            protocol=self._protocol,
            outlets=self._outlets,
            sight=self._sight(members),
            entered=self._entered,
        )
        had_openings = incarnation.previous is not None and not incarnation.copied
        self._protocol.begin(self.memberships.run, had_openings=had_openings)
        others = Others(
            owners=self._other_owners,
            named=members.name_of,
            is_removed=lambda node: self._roster.removal_of(node) is not None,
            unsure=self.scrubber.dangling_in,
        )
        self._snapshots = SnapshotExchange(
            context, self._protocol, database, outlets=self._outlets, others=others, installed=self._installed
        )
        self.handlers: dict[type[Any], Callable[[bytes, Any], None]] = {
            Rows: self._compared,
            Objects: self._compared,
            **self.scrubber.majority.handlers,
            Trouble: members.note_trouble,
            RepairRequest: self._repair,
            RepairReply: self._mender.found,
            RightsRequest: lambda node, request: self._outlets.send((node,), self._seeker.answer(request)),
            RightsReply: self._seeker.given,
            Present: presences.heard,
            Clock: self._clocks.heard,
            RootsRequest: self._snapshots.witnesses.heard,
            Roots: self._snapshots.witnesses.heard,
        }

    def _links(self, members: Members) -> Links:
        return Links(
            self._roster.record.electorate,
            lambda: members.reached,
            lambda node, motion: self._outlets.send((node,), motion),
            Rules(self._roster.fits, members.objects),
        )

    def _sight(self, members: Members) -> Sight:
        return Sight(
            linked=lambda: members.reached,
            asked=lambda: members.asked,
            counts=self._protocol.is_member,
            directory_of=lambda address: members.node_at(address) or self._marking.node_at(address),
            lost=lambda: self._marking.lost,
            is_caught_up=lambda: self._admission.is_caught_up,
            disagreements=lambda: members.disagreements_among,
            view=self.quorum.view,
            send=lambda node, notice: self._outlets.send((node,), notice),
        )

    def start(self) -> None:
        """Begin to tick, on the running loop.

        Raises:
            StorageFull: the first write failed.
        """
        introduction = self._incarnation.introduction(has_others=bool(self.quorum.members.all))
        if introduction := introduction | self._roster.introduction():
            self._commit.write(introduction)
        self._admission.seek()  # A node without others has nothing to learn.
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Stop the ticks and what waits for peers. All links are closed before. Stopping twice is allowed."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self._ticking = None
        await self._deliveries.close()
        await self.memberships.changes.stop()
        await self.memberships.rebuilding.stop()
        await self._mender.stop()
        await self.scrubber.stop()
        await self._snapshots.stop()

    @property
    def early(self) -> int:
        """The number of received operations that wait for earlier ones."""
        return self._protocol.early

    # ── links ─────────────────────────────────────────────────────────────────

    def identity(self) -> Identity:
        """This node's own description, for the handshake (`Peer.identity`)."""
        return self.memberships.identity()

    def admit(self, peer: Identity, /) -> None:
        """Decide whether a link from this peer may begin (`Peer.admit`).

        Raises:
            PeerRefused: it is this node itself, not a member, or a copy of a node that is linked.
            ReadOnly: storage failed, so its operations could not be stored.
        """
        if peer.node == self._incarnation.node:
            raise PeerRefused("a node cannot link to itself. Nothing was written.", reason="self")
        self.memberships.check(peer)
        record = self._roster.record
        gone = {removal.address for removal in record.removed}.difference(record.everyone)
        self._pins.check(peer, gone, own=self._roster.own)
        if self._commit.failed is not None:
            why = self._commit.failed.rstrip(".")
            raise ReadOnly(f"the node cannot store operations from peers: {why}. Nothing was written.")
        self._pins.admitted(peer)
        if self.memberships.is_new_run(peer):
            self._deliveries.forget(peer.node)
            self._protocol.ended(peer.node)
        before = self.memberships.admitted(peer)
        if before:
            self._forget(before, peer.name)
        self._protocol.admitted(peer.node)
        self._fencing[peer.node] = self._commit.written, peer.opening
        self._fence()
        self._mender.admitted(peer.node)
        self._clocks.admitted(peer.node)
        self._carry_out()

    def linked(self, peer: Identity, outlet: Outlet, /) -> None:
        """A link to `peer` exists: messages may be offered to it (`Peer.linked`)."""
        self._outlets.linked(peer, outlet)
        replaced = self.quorum.members.linked(peer, outlet, now_ms=self._environment.now_ms())
        self.memberships.compare(peer)
        if replaced:
            self._forget(replaced, peer.name)
        self._protocol.linked(peer.node, fences=not 0 < peer.protocol < EARLY_SINCE)
        self._carry_out()
        for message in self._presences.own():
            self._outlets.hint((peer.node,), message)
        self.register.linked(peer.node)
        self._clocks.linked(peer.node)
        self.memberships.linked(peer)
        self._pace.stir()
        self.quorum.stir()

    def refused(self, address: str, error: PeerRefused, peer: Identity | None, /) -> None:
        """The node at this address does not take links of this node, and says why (`Peer.refused`)."""
        self.memberships.refused(address, error, peer)

    def _entered(self, gone: list[bytes]) -> None:
        """A new epoch of the members has begun; these nodes do not take part in it."""
        for node in gone:
            self.scrubber.forget(node)
            self._clocks.forget(node)
            self._snapshots.forget(node)
            self._outlets.forget(node)
        self._carry_out()
        self.quorum.recount()
        self._database.orphans.stir()

    def _forget(self, node: bytes, address: str) -> None:
        """Forget a node, because another directory is at its address now."""
        self._marking.lose(node, address)
        self._protocol.forget(node)
        self._fencing.pop(node, None)
        self.scrubber.forget(node)
        self._clocks.forget(node)
        self._resets.forget(node)

    def unlinked(self, peer: Identity, outlet: Outlet, /) -> None:
        """The link is gone (`Peer.unlinked`)."""
        if not self._outlets.unlinked(peer.node, outlet):
            return
        self._pace.stir()
        self.quorum.members.unlinked(outlet)
        self._protocol.unlinked(peer.node)
        self._mender.unlinked(peer.node)

    async def received(self, peer: Identity, message: bytes, /) -> None:
        """Take a message (`Peer.received`).

        Raises:
            InvalidValue, BadOperation: it is not a message, or makes an impossible claim.
            PeerRefused: another node is linked at its address by now.
            ReadOnly, StorageFull: storage failed before, or now.
        """
        epoch, packed = messages.unstamped(message)
        decoded = messages.decode(packed)
        self._pace.heard(decoded)
        if isinstance(decoded, _OVERTAKE):
            await self._taken(peer, epoch, decoded)
            return

        async def take() -> None:
            if self.memberships.is_running(peer):  # Else its sender has died since, and it may be no longer true.
                await self._taken(peer, epoch, decoded)

        await self._deliveries.in_order(peer.node, len(message), take, is_long=isinstance(decoded, _BRING))

    async def _taken(self, peer: Identity, epoch: int, decoded: Message) -> None:
        # A clone may have linked before the original did, and a node that was removed may go on talking.
        if self._roster.epoch or isinstance(decoded, _OF_MEMBERS):
            self.quorum.members.check(peer, own=self._config.advertise)
        is_heard = self.memberships.is_heard(peer, epoch)
        if isinstance(decoded, _ABOUT_MEMBERS):
            self.memberships.heard(peer, decoded)
            return
        if not is_heard or (isinstance(decoded, _BRING) and not self._roster.takes(epoch)):
            return
        self._mender.heard(peer.node)
        handler = self.handlers.get(type(decoded))
        if handler is not None:
            handler(peer.node, decoded)
        elif isinstance(decoded, Push):
            await self._deliveries.push(peer.node, decoded.operations, partial(self._brings, peer, epoch))
        elif isinstance(decoded, Supply):
            await self._supplied(peer.node, decoded)
        elif isinstance(decoded, SnapshotRequest | SnapshotPiece):
            await self._snapshots.heard(peer.node, decoded)
            self._carry_out()
        elif isinstance(decoded, Motion):
            if self.memberships.is_current(epoch):
                self.register.heard(peer.node, decoded)
        elif self.memberships.is_running(peer):
            is_current = self.memberships.is_current(epoch)
            self._protocol.receive(peer.node, decoded, self._environment.monotonic(), is_current=is_current)
            self._carry_out()
            if isinstance(decoded, Digest | Parts | Vectors):  # After one of these a peer can count.
                self.quorum.stir()
        self._admission.seek()
        self.quorum.settle(peer.node)

    def _installed(self, partition: int) -> None:
        """A peer's snapshot has replaced a partition, durably."""
        self._roster.durable(self._commit.durable)
        self.scrubber.forget_partition(partition)
        self._carry_out()
        self.quorum.applied([partition])
        self._admission.seek()

    def _other_owners(self) -> Owners:
        members = self.quorum.members
        nodes, needed, everyone = members.teachers
        nodes = nodes - {self._incarnation.node}
        learners = {node for node in nodes if not self._protocol.is_member(node)}
        return Owners(nodes, needed, everyone, learners, members.linked_nodes & nodes, self._protocol.learning is not None)

    def _compared(self, peer: bytes, message: Rows | Objects) -> None:
        self.scrubber.heard(peer, message, self._environment.monotonic())

    def _repair(self, peer: bytes, request: RepairRequest) -> None:
        if self._outlets.is_behind(peer):
            self._outlets.send((peer,), RepairReply(request.id, []))
        else:
            self._mender.answer_soon(request, lambda reply: self._outlets.send((peer,), reply))

    async def _supplied(self, peer: bytes, supply: Supply) -> None:
        if self.scrubber.expects(supply):
            self.scrubber.supplied(peer, supply)
            return
        self._protocol.supplied(peer, supply, self._environment.monotonic())
        self._carry_out()
        try:
            await self._deliveries.supply(peer, supply.operations)
        finally:
            self._protocol.delivered(peer)

    def _brings(self, peer: Identity, epoch: int) -> bool:
        """Whether what a peer pushed in this epoch is still taken: much may have happened while it waited."""
        return self.memberships.is_running(peer) and self._roster.takes(epoch)

    def _take(self, peer: bytes, operations: Sequence[Operation]) -> None:
        if self._roster.removal_of(peer) is not None:
            return  # It was removed while its operations were taken in steps.
        self._protocol.deliver(peer, operations, self._environment.monotonic())
        self._carry_out()
        self._admission.seek()
        self.quorum.settle(peer)

    # ── what the protocol decides ─────────────────────────────────────────────

    def _carry_out(self) -> None:
        while outbox := self._protocol.take_outbox():
            for effect in outbox:
                match effect:
                    case Send(peers, message):
                        self._outlets.send(peers, message)
                    case Apply(peer, ready, again):
                        self._apply(peer, ready, again)
                    case Read(peer, want):
                        for answer in self._database.exchange.outgoing.answers(want, is_behind=self._outlets.is_behind(peer)):
                            self._outlets.send((peer,), answer)
                    case SetBack(peer):
                        self._admission.fall_back(peer)
                    case Reset():
                        self._resets.note(effect)

    def _dropped(self, node: bytes, message: Message) -> None:
        """The queue of a node's link had no room. Neither side waits for an answer that will not come."""
        self.quorum.members.note_dropped(node)
        self._protocol.untaken(node, message, self._environment.monotonic())
        if isinstance(message, Supply):
            self._outlets.send((node,), busy(message.id))

    def _apply(self, peer: bytes, ready: list[Arrival], again: list[Arrival]) -> None:
        now = self._environment.monotonic()
        for arrival in again:
            if not self._database.exchange.incoming.same(arrival):
                self._protocol.refused(peer, arrival.shipment, taken(arrival.shipment), now)
        if closed := self._database.partitions.closed:  # They stay missing there, and are fetched again if they are needed.
            ready = [arrival for arrival in ready if arrival.shipment.partition not in closed]
        if not ready:
            return
        try:
            received = self._database.exchange.incoming.apply(ready)
        except Overloaded:
            return  # They stay missing, and are fetched again.
        for arrival, error in received.refused:  # One that waited may be another peer's.
            self._protocol.refused(arrival.sender or peer, arrival.shipment, error, now)
        for target in received.dangling:
            self.scrubber.dangles(target)
        partitions = self._settling.applied(peer, received.number, received.applied)
        self._protocol.applied(partitions)
        self.quorum.applied(partitions)

    # ── what the node did ─────────────────────────────────────────────────────

    def _logged(self, logged: Logged) -> None:
        self._pace.stir()
        self._settling.issued(logged)

    def _begin(self) -> None:
        """The first write of this opening was made."""
        self._introduced = self._commit.written

    def begun(self, number: int) -> None:
        """A sync of all writes up to this number is under way: push what was issued here. Must not raise."""
        # A crash must not take the origin away under which something was pushed: its directory has to know it as its own.
        if self._commit.durable >= self._introduced and self._outlets and self._outlets.oldest >= EARLY_SINCE:
            self._push(self._settling.begun(number))

    def _push(self, issued: Sequence[Shipment]) -> None:
        if issued and self._outlets:
            self._protocol.issued([messages.encode_shipment(shipment) for shipment in issued])
            self._carry_out()

    def durable(self, number: int) -> None:
        """A group commit made all writes up to this number durable: push and acknowledge them. Must not raise."""
        self._deliveries.durable(number)
        settled = self._settling.settle(number)
        self._push(settled.unsent)
        if settled.stored or settled.issued:
            self._protocol.stored(settled.stored, settled.issued)
        self._fence()
        if self._admission.durable(number):
            self.quorum.stir()
        self._carry_out()  # All that was said in the epoch before goes out in it.
        if not self._database.partitions.closed:  # Else one is being replaced by what a node that is removed now may have sent.
            self._roster.durable(number)

    def _fence(self) -> None:
        """Tell the runs of peers that all which earlier ones pushed, and which was taken, is durable here."""
        for node, (number, run) in list(self._fencing.items()):
            if number <= self._commit.durable:
                del self._fencing[node]
                self._protocol.fenced(node, run)

    def _hurry(self, partition: int) -> int:
        question = self._protocol.hurry(partition, self._environment.monotonic())
        self._carry_out()
        return question

    async def _tick(self) -> None:
        while True:
            ticks = await self._pace.next(due_s=self._protocol.next_due - self._environment.monotonic())
            now = self._environment.monotonic()
            try:
                self._protocol.tick(now)
                self._carry_out()
                self._admission.seek()
                if self._commit.failed is None:  # These records may be late.
                    self._admission.keep_record()
                    self._marking.record(self._protocol, now)
                self._snapshots.tick()
                self.scrubber.tick(now, pieces=ticks)
                self.register.tick(now)
                self._clocks.tick(now)
                self.memberships.tick(now)
            except ShoalError:
                continue  # Storage failed; writers get errors, and peers are not admitted.
