"""The node among its peers: carries out what the replication protocol decides.

Laws:
- An operation is given to the protocol once its group commit is done: pushed if it
  was issued here, acknowledged if a peer sent it.
- A learner becomes an owner once it holds all that it must and its admission is
  durable; only then does it say so. If a peer reports that an owner's directory was
  set back, the owner is a learner at once.
- A peer's operations are applied in steps, one write each, and other tasks get their turns
  between them: longer ones while a request waits for the disk. The next message of a link is
  read once this one is written, which waits while too many writes wait for the disk.
- Nothing that a peer sends stops the node: it is rejected, and both sides get the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec import Raw

from shoal.cluster import messages
from shoal.cluster.consensus.motions import Motion
from shoal.cluster.delivery import Arrival
from shoal.cluster.effects import Apply, Read, Send, SetBack
from shoal.cluster.handshake import OPENING_BYTES
from shoal.cluster.messages import (
    Busy,
    Digest,
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
    Supply,
    Trouble,
    Vectors,
)
from shoal.cluster.peering import Identity, Outlet
from shoal.cluster.quarantine import taken
from shoal.cluster.replication import Replication
from shoal.config import Config
from shoal.crdt.dot import Dot, Origin
from shoal.errors import Overloaded, PeerRefused, ReadOnly, ShoalError, StorageError
from shoal.node.consensus.quorum_register import Links, QuorumRegister
from shoal.node.database import Database
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.partitions import Partition
from shoal.node.peers import vetting
from shoal.node.peers.marking import Marking
from shoal.node.peers.members import Members, addresses_of
from shoal.node.peers.quorum import Quorum
from shoal.node.peers.read_repair import ReadRepairer
from shoal.node.peers.replica import NodeReplica, limits_of
from shoal.node.peers.rights_requests import RightsRequests
from shoal.node.turns import document_pace, in_turns
from shoal.node.verification.scrubbing import Scrubber
from shoal.node.watching.awareness import Presences
from shoal.node.writes.issuing import Logged
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

_log = logging.getLogger("shoal.node")

_BUSY_MS = 100
_OF_MEMBERS = (Digest, Motion)  # The messages by which a peer counts.


class _Unsettled(NamedTuple):
    """Operations of one origin that are written but not durable yet."""

    number: int  # Of the storage write.
    partition: Partition
    last: Dot
    operations: int
    shipment: Shipment | None  # If it is one that was issued here;
    peer: bytes  # else the peer that sent them.


class Replicator:
    """The replication of a node with peers. It is the `Peer` that links call; `quorum` is the `Replicas` of the service."""

    def __init__(
        self,
        database: Database,
        commit: GroupCommit,
        *,
        storage: Storage,
        presences: Presences,
        incarnation: Incarnation,
        environment: Environment,
        config: Config,
        software: str,
    ) -> None:
        self._database = database
        self._commit = commit
        self._incarnation = incarnation
        self._environment = environment
        self._config = config
        self._software = software
        self._outlets: dict[bytes, Outlet] = {}
        self._heard: dict[str, bytes] = {}  # Member → the node that was last admitted under this address.
        self._runs: dict[bytes, bytes] = {}  # Node → the start of it that was last admitted.
        self._run = environment.entropy(OPENING_BYTES)
        self._unsettled: deque[_Unsettled] = deque()  # Bounded by `writes_pending_max` writes.
        self._ticking: asyncio.Task[None] | None = None
        self._pace = document_pace(config)
        self._stepping = asyncio.Lock()  # However many peers send long messages, other tasks get a turn after each step.
        self._admission: int | None = None  # The write that makes this learner an owner.
        database.partitions.load_all()
        database.issuer.on_logged = self._logged
        self._presences = presences
        presences.share = lambda message: self._hint(self._outlets, message)
        members = Members(addresses_of(config))
        self.register = QuorumRegister(
            storage,
            commit,
            incarnation=incarnation,
            environment=environment,
            config=config,
            links=Links(members.addresses, lambda: members.reached, lambda node, motion: self._send((node,), motion)),
        )
        self._marking = Marking(storage, commit, members=members, config=config, now=environment.monotonic())
        self._set_back_by: bytes | None = None  # The peer that reported a set-back, until that is recorded.
        self._protocol = Replication(
            NodeReplica(database, incarnation),
            limits=limits_of(config),
            random=lambda: environment.entropy(1)[0] / 256,
            learner=incarnation.learner,
            owed=incarnation.owed,
            marks=self._marking.load(),
        )
        self._protocol.digest()  # The first one hashes every vector, later ones only changes. Nothing is served yet.
        self._mender = ReadRepairer(
            database,
            commit,
            members=members,
            holds=lambda node, partition, vector: self._protocol.known(node).holds(partition, vector),
            send=lambda node, lost: self._send((node,), lost),
            config=config,
        )
        self._seeker = RightsRequests(
            database,
            incarnation=incarnation,
            send=lambda node, seek: self._send((node,), seek),
            linked=lambda: (self.quorum.linked, len(self.quorum.linked) + 1 >= self.quorum.size),
            config=config,
        )
        self.scrubber = Scrubber(
            database,
            own=incarnation.node,
            send=lambda node, message: self._send([] if self._is_behind(node) else [node], message),
            linked=lambda: sorted(self.quorum.linked),
            named=members.address_of,
            config=config,
        )
        self.quorum = Quorum(
            self._protocol,
            database,
            members=members,
            incarnation=incarnation,
            config=config,
            environment=environment,
            hurry=self._hurry,
            mender=self._mender,
            seeker=self._seeker,
            scrubber=self.scrubber,
        )

    def start(self) -> None:
        """Begin to tick, on the running loop.

        Raises:
            StorageFull: the first write failed.
        """
        if introduction := self._incarnation.introduction():
            self._commit.write(introduction)
        self._seek_admission()  # A node without others has nothing to learn.
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Stop the ticks and what waits for peers. All links are closed before. Stopping twice is allowed."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self._ticking = None
        await self._mender.stop()
        await self.scrubber.stop()

    @property
    def early(self) -> int:
        """The number of received operations that wait for earlier ones."""
        return self._protocol.early

    # ── links ─────────────────────────────────────────────────────────────────

    def identity(self) -> Identity:
        """See `Peer.identity`."""
        advertise = self._config.advertise
        members = {advertise, *(member.address for member in self.quorum.members.all)}
        return Identity(self._incarnation.node, advertise, self._software, tuple(sorted(members)), self._run)

    def admit(self, peer: Identity, /) -> None:
        """See `Peer.admit`.

        Raises:
            PeerRefused: it is this node itself, not a member, or a copy of a node that is linked.
            ReadOnly: storage failed, so its operations could not be stored.
        """
        if peer.node == self._incarnation.node:
            raise PeerRefused("a node cannot link to itself. Nothing was written.", reason="self")
        self._compare(peer)
        self.quorum.members.check(peer, own=self._config.advertise)
        if self._commit.failed is not None:
            raise ReadOnly(f"the node cannot store operations from peers: {self._commit.failed}. Nothing was written.")
        before = self._heard.get(peer.name, peer.node)
        if before not in (peer.node, *self.quorum.members.nodes):
            self._forget(before)
        self._heard[peer.name], self._runs[peer.node] = peer.node, peer.opening
        self._protocol.admitted(peer.node)
        self._mender.admitted(peer.node)
        self._carry_out()

    def linked(self, peer: Identity, outlet: Outlet, /) -> None:
        """See `Peer.linked`."""
        self._outlets[peer.node] = outlet
        replaced = self.quorum.members.linked(peer, outlet, now_ms=self._environment.now_ms())
        self._compare(peer)
        if replaced:
            self._forget(replaced)
        self._protocol.linked(peer.node)
        self._carry_out()
        for message in self._presences.own():
            self._hint((peer.node,), message)
        self.register.linked(peer.node)
        self.quorum.stir()

    def _forget(self, node: bytes) -> None:
        """Forget a node, because another directory is at its address now."""
        self._protocol.forget(node)
        self.scrubber.forget(node)
        self._runs.pop(node, None)

    def _compare(self, peer: Identity) -> None:
        """Log once if a peer's list of members differs; `GET /v1/cluster` shows that as long as it does."""
        found = self.quorum.members.compare(peer, own=self.identity())
        if found:
            _log.warning("members differ: %s", found)
        elif found is not None:
            _log.info("members agree again with those of %s", peer.name)

    def unlinked(self, peer: Identity, outlet: Outlet, /) -> None:
        """See `Peer.unlinked`."""
        if self._outlets.get(peer.node) is not outlet:
            return
        del self._outlets[peer.node]
        self.quorum.members.unlinked(outlet)
        self._protocol.unlinked(peer.node)
        self._mender.unlinked(peer.node)

    async def received(self, peer: Identity, message: bytes, /) -> None:
        """See `Peer.received`.

        Raises:
            InvalidValue, BadOperation: it is not a message, or makes an impossible claim.
            PeerRefused: another node is linked at its address by now.
            ReadOnly, StorageFull: storage failed before, or now.
        """
        decoded = messages.decode(message)
        if isinstance(decoded, _OF_MEMBERS):  # A clone may have linked before the original did.
            self.quorum.members.check(peer, own=self._config.advertise)
        self._mender.heard(peer.node)
        match decoded:
            case Push(operations):
                await self._deliver(peer.node, operations)
            case Supply() if self.scrubber.expects(decoded):
                self.scrubber.supplied(peer.node, decoded)
            case Rows() | Objects():
                self.scrubber.heard(peer.node, decoded, self._environment.monotonic())
            case Supply(_, operations):
                self._protocol.supplied(peer.node, decoded, self._environment.monotonic())
                self._carry_out()
                try:
                    await self._deliver(peer.node, operations)
                finally:
                    self._protocol.delivered(peer.node)
            case Trouble():
                self.quorum.members.note_trouble(peer.node, decoded)
            case RepairRequest():
                self._send(
                    (peer.node,), RepairReply(decoded.id, []) if self._is_behind(peer.node) else self._mender.answer(decoded)
                )
            case RepairReply():
                self._mender.found(peer.node, decoded)
            case RightsRequest():
                self._send((peer.node,), self._seeker.answer(decoded))
            case RightsReply():
                self._seeker.given(peer.node, decoded)
            case Motion():
                self.register.heard(peer.node, decoded)
            case Present():
                self._presences.heard(peer.node, decoded)
            case _ if peer.opening != self._runs.get(peer.node, peer.opening):
                pass  # It was on its way when its sender died, so it may no longer be true.
            case _:
                self._protocol.receive(peer.node, decoded, self._environment.monotonic())
                self._carry_out()
                if isinstance(decoded, Digest | Parts | Vectors):  # After one of these a peer can count.
                    self.quorum.stir()
        self._seek_admission()
        self.quorum.settle(peer.node)

    async def _deliver(self, peer: bytes, operations: Iterable[Shipment | Raw]) -> None:
        shipments = [shipment for shipment in operations if isinstance(shipment, Shipment)]
        step = self._config.peer_step_operations_max
        for some in messages.slices(shipments, step):
            for shipment in some:
                if vetting.is_large(shipment, self._pace):
                    await in_turns(vetting.vet(shipment, self._pace), self._environment.pause)
            while self._commit.written - self._commit.durable > self._config.writes_pending_max // 2:
                await self._commit.wait_durable(self._commit.written)
            if len(shipments) <= step:
                self._take(peer, some)
                continue
            async with self._stepping:
                self._take(peer, some)
                # A request that waits for the disk needs several turns, and the thread that syncs needs them too.
                await (self._environment.pause() if self._commit.is_awaited else asyncio.sleep(0))

    def _take(self, peer: bytes, shipments: Sequence[Shipment]) -> None:
        self._protocol.deliver(peer, shipments, self._environment.monotonic())
        self._carry_out()

    # ── what the protocol decides ─────────────────────────────────────────────

    def _carry_out(self) -> None:
        while outbox := self._protocol.take_outbox():
            for effect in outbox:
                match effect:
                    case Send(peers, message):
                        self._send(peers, message)
                    case Apply(peer, ready, again):
                        self._apply(peer, ready, again)
                    case Read(peer, want):
                        self._send((peer,), self._answer(peer, want))
                    case SetBack(peer):
                        self._fall_back(peer)

    def _send(self, peers: Iterable[bytes], message: Message) -> None:
        packed = messages.encode(message)
        for peer in peers:
            outlet = self._outlets.get(peer)
            if outlet is not None and not outlet.offer(packed):
                self.quorum.members.note_dropped(peer)

    def _hint(self, peers: Iterable[bytes], message: Present) -> None:
        """Send a message that may be lost, to the peers that have little waiting."""
        self._send([peer for peer in peers if not self._is_behind(peer)], message)

    def _apply(self, peer: bytes, ready: list[Arrival], again: list[Arrival]) -> None:
        now = self._environment.monotonic()
        for arrival in again:
            if not self._database.incoming.same(arrival):
                self._protocol.refused(peer, arrival.shipment, taken(arrival.shipment), now)
        if not ready:
            return
        try:
            received = self._database.incoming.apply(ready)
        except Overloaded:
            return  # They stay missing, and are fetched again.
        for arrival, error in received.refused:
            self._protocol.refused(peer, arrival.shipment, error, now)
        runs: dict[tuple[int, Origin], list[int]] = {}
        for arrival in received.applied:
            runs.setdefault((arrival.shipment.partition, arrival.dot.origin), []).append(arrival.dot.sequence)
        for (number, origin), sequences in runs.items():
            partition, last = self._database.partitions.load(number), Dot(origin, sequences[-1])
            self._unsettled.append(_Unsettled(received.number, partition, last, len(sequences), None, peer))
        partitions = {number for number, _ in runs}
        self._protocol.applied(partitions)
        self.quorum.applied(partitions)

    def _answer(self, peer: bytes, want: messages.Want) -> Supply | Busy:
        if self._is_behind(peer):
            return Busy(want.id, "too many bytes wait to be sent to you", _BUSY_MS)
        try:
            bytes_max, most = self._config.supply_bytes_max, self._config.supply_operations_max
            return Supply(want.id, self._database.outgoing.shipments(want.ranges, bytes_max=bytes_max, operations_max=most))
        except StorageError as error:
            return Busy(want.id, error.message[:1000], int(self._config.quarantine_s * 1000))

    def _is_behind(self, peer: bytes) -> bool:
        """Whether too many bytes wait to be sent to a peer."""
        outlet = self._outlets.get(peer)
        return outlet is not None and outlet.waiting_bytes > self._config.peer_send_bytes_max // 2

    # ── what the node did ─────────────────────────────────────────────────────

    def _logged(self, logged: Logged) -> None:
        shipment = logged.shipment
        self._unsettled.append(_Unsettled(logged.number, logged.partition, shipment.dot, 1, shipment, b""))

    def durable(self, number: int) -> None:
        """A group commit made all writes up to this number durable: push and acknowledge them. Must not raise."""
        issued: list[Raw] = []
        stored: list[tuple[bytes, int, Dot, int]] = []
        while self._unsettled and self._unsettled[0].number <= number:
            settled = self._unsettled.popleft()
            settled.partition.settle(settled.last, settled.operations)
            if settled.shipment is None:
                stored.append((settled.peer, settled.partition.number, settled.last, settled.operations))
            elif self._outlets:
                issued.append(messages.encode_shipment(settled.shipment))
        if issued:
            self._protocol.issued(issued)
        if stored:
            self._protocol.stored(stored)
        if self._admission is not None and self._admission <= number:
            self._admission = None
            self._incarnation.admitted()
            self._protocol.admit_itself()
            self.quorum.stir()
        self._carry_out()

    def _seek_admission(self) -> None:
        """Write the admission, if this is a learner that holds all that it must."""
        learning = self._protocol.learning
        if learning is None or self._admission is not None or self._commit.failed is not None:
            return
        members = self.quorum.members
        others = members.nodes - {self._incarnation.node}
        learners = {node for node in others if not self._protocol.is_member(node)}
        if learning.is_done(others, needed=members.others_needed, everyone=members.size - 1, learners=learners):
            with suppress(ShoalError):  # A later tick tries again.
                self._admission = self._commit.write(*self._incarnation.admission())
                self._set_back_by = None  # A crash before it is durable does no harm: peers report the set-back again.

    def _fall_back(self, peer: bytes) -> None:
        """Become a learner, because a peer knows that this directory was set back."""
        learning = self._protocol.learning
        assert learning is not None, "the protocol has made it a learner"
        if not self._incarnation.fence:
            _log.warning(
                "this node's directory was set back: %s knows that it once held more", self.quorum.members.name_of(peer)
            )
        self._admission, self._set_back_by = None, peer
        rows = self._incarnation.set_back(self.quorum.members.name_of(peer), learning.owed)
        with suppress(ShoalError):  # A later tick tries again; after a restart peers report it again.
            self._commit.write(rows | self.register.forget())
            self._set_back_by = None

    def _keep_records(self) -> None:
        """Write the node's own records, which may be late."""
        if self._commit.failed is not None:
            return
        if self._set_back_by is not None:
            self._fall_back(self._set_back_by)
        self._marking.record(self._protocol, self._environment.monotonic())

    def _hurry(self, partition: int) -> int:
        question = self._protocol.hurry(partition, self._environment.monotonic())
        self._carry_out()
        return question

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick_s)
            try:
                self._protocol.tick(self._environment.monotonic())
                self._carry_out()
                self._seek_admission()
                self._keep_records()
                self.scrubber.tick(self._environment.monotonic())
                self.register.tick(self._environment.monotonic())
            except ShoalError:
                continue  # Storage failed; writers get errors, and peers are not admitted.
