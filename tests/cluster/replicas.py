"""A toy cluster around the pure protocol: no clock, no loop, no storage, and every choice made by one generator.

Law: a machine's effects are carried out in order, at once; what is written becomes
durable later, when `sync` says so. A message is lost, repeated or overtaken as the
generator likes, until the faults end.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from msgspec import Raw

from shoal.cluster import messages, operation
from shoal.cluster.delivery import Arrival, taken
from shoal.cluster.messages import Message, Push, Shipment, Supply, Want, encode_shipment
from shoal.cluster.operation import Body, Readiness, readiness
from shoal.cluster.peer_state import Apply, Limits, Read, Send, SnapshotLimits
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Dot, HybridClock, Origin, VersionVector

LIMITS = Limits(
    sync_interval_s=0.5,
    grace_s=0.05,
    answer_s=1.0,
    pause_s_max=4.0,
    push_bytes_max=2000,
    vectors_bytes_max=200,
    early_bytes_max=20_000,
    quarantine_max=4,
    quarantine_s=5.0,
    snapshots=SnapshotLimits(operations_min=1 << 30),  # A toy replica fetches logs alone.
)
SUPPLY_OPERATIONS = 8


class ToyReplica:
    """One node: logs per partition, and which part of them is durable. It checks what it is given to apply."""

    def __init__(self, number: int, random: Random, *, limits: Limits = LIMITS) -> None:
        self.name = bytes([number]) * 16
        self.origin = Origin(bytes([100 + number]) * 16)
        self.limits = limits
        self.logs: dict[int, dict[Dot, Shipment]] = {}
        self.sent: list[tuple[bytes, Message]] = []
        self.machine = Replication(self, limits=limits, random=random.random)
        self._applied: dict[int, VersionVector] = {}
        self._durable: dict[int, VersionVector] = {}
        self.retired: dict[int, tuple[VersionVector, VersionVector]] = {}  # By partition: what `retirements` tells.
        self._unsynced: list[tuple[bytes, Shipment]] = []
        self._clock = HybridClock()

    # ── what the protocol asks ────────────────────────────────────────────────

    def applied(self, partition: int, /) -> VersionVector:
        return self._applied.get(partition, VersionVector())

    def durable(self, partition: int, /) -> VersionVector:
        return self._durable.get(partition, VersionVector())

    def endings(self, partition: int) -> VersionVector:
        return VersionVector()

    def partitions(self) -> Iterable[int]:
        return [partition for partition, vector in self._durable.items() if vector]

    def retirements(self, partition: int, known: VersionVector, /) -> tuple[VersionVector, VersionVector]:
        return self.retired.get(partition, (VersionVector(), VersionVector()))

    def own_origin(self) -> Origin | None:
        return self.origin

    # ── what the node does ────────────────────────────────────────────────────

    def write(self, partition: int) -> Shipment:
        vector = self.applied(partition)
        dot = Dot(self.origin, vector[self.origin] + 1)
        packed = operation.encode(Body(self._clock.issue(0), 0, vector.context_of(self.origin), None, b"x" * 40))
        shipment = Shipment(partition, *dot, operation.chain(b"", partition, dot, packed), packed, b"")
        self._store(b"", shipment)
        return shipment

    def sync(self) -> None:
        """All that was written becomes durable."""
        unsynced, self._unsynced = self._unsynced, []
        for _, shipment in unsynced:
            self._durable[shipment.partition] = self.durable(shipment.partition).advance(shipment.dot)
        own: list[Raw] = [encode_shipment(shipment) for peer, shipment in unsynced if not peer]
        self.machine.issued(own)
        self.machine.stored((peer, shipment.partition, shipment.dot, 1) for peer, shipment in unsynced if peer)

    def take(self, peer: bytes, message: Message, now: float) -> None:
        match message:
            case Push(operations):
                self._deliver(peer, operations, now)
            case Supply(_, operations):
                self.machine.supplied(peer, message, now)
                self.carry_out(now)
                self._deliver(peer, operations, now)
                self.carry_out(now)
                self.machine.delivered(peer)
            case _:
                self.machine.receive(peer, message, now)

    def _deliver(self, peer: bytes, operations: Iterable[Shipment | Raw], now: float) -> None:
        self.machine.deliver(peer, [shipment for shipment in operations if isinstance(shipment, Shipment)], now)

    def carry_out(self, now: float) -> None:
        while outbox := self.machine.take_outbox():
            for effect in outbox:
                match effect:
                    case Send(peers, message):
                        self.sent += [(peer, message) for peer in peers]
                    case Apply(peer, ready, again):
                        self._apply(peer, ready, again, now)
                    case Read(peer, want):
                        self.sent.append((peer, Supply(want.id, self._supply(want))))

    def _apply(self, peer: bytes, ready: list[Arrival], again: list[Arrival], now: float) -> None:
        for arrival in again:
            stored = self.logs.get(arrival.shipment.partition, {}).get(arrival.dot)
            if stored is not None and stored.chain != arrival.shipment.chain:
                self.machine.refused(peer, arrival.shipment, taken(arrival.shipment), now)
        for arrival in ready:
            state = readiness(self.applied(arrival.shipment.partition), arrival.dot, arrival.body.context)
            assert state is Readiness.READY, "what is handed out is causally ready"
            self._clock.observe(arrival.body.hlc)
            self._store(peer, arrival.shipment)

    def _store(self, peer: bytes, shipment: Shipment) -> None:
        self.logs.setdefault(shipment.partition, {})[shipment.dot] = shipment
        self._applied[shipment.partition] = self.applied(shipment.partition).advance(
            shipment.dot, operation.decode(shipment.packed).knowing()
        )
        self._unsynced.append((peer, shipment))

    def _supply(self, want: Want) -> list[Raw]:
        found: list[Shipment] = []
        for partition, origin, first, last in want.ranges:
            end = min(last, self.durable(partition)[Origin(origin)])
            found += [self.logs[partition][Dot(Origin(origin), sequence)] for sequence in range(first, end + 1)]
        found.sort(key=lambda shipment: (shipment.partition, operation.decode(shipment.packed).hlc, shipment.dot))
        return [encode_shipment(shipment) for shipment in found[:SUPPLY_OPERATIONS]]


class ToyCluster:
    """Machines and what is under way between them."""

    def __init__(self, size: int, random: Random, *, limits: Limits = LIMITS) -> None:
        self.replicas = [ToyReplica(number, random, limits=limits) for number in range(size)]
        self.by_name = {replica.name: replica for replica in self.replicas}
        self.now = 0.0
        self.carried = 0
        self.faulty = 0.0  # How likely a message is lost, repeated or overtaken.
        self._random = random
        self._under_way: list[tuple[bytes, bytes, bytes]] = []  # From, to, message.
        self._down: set[tuple[bytes, bytes]] = set()
        for replica in self.replicas:
            for other in self.replicas:
                if replica is not other:
                    replica.machine.linked(other.name)

    def step(self) -> None:
        """A random replica writes, syncs, ticks or hears something; or a link breaks or comes back."""
        replica = self._random.choice(self.replicas)
        match self._random.randrange(8):
            case 0 | 1:
                replica.write(self._random.randrange(4))
            case 2:
                replica.sync()
            case 3:
                self.now += 0.1
                replica.machine.tick(self.now)
            case 4 if self._random.random() < self.faulty:
                self._toggle(replica, self._random.choice(self.replicas))
            case _:
                self._carry()
        self._collect()

    def _toggle(self, source: ToyReplica, target: ToyReplica) -> None:
        link = source.name, target.name
        if source is target:
            return
        if link in self._down:
            self._down.discard(link)
            target.machine.admitted(source.name)
            source.machine.linked(target.name)
        else:
            self._down.add(link)
            source.machine.unlinked(target.name)
            self._under_way = [entry for entry in self._under_way if entry[:2] != link]

    def heal(self) -> None:
        """No faults from now on; every link anew, as after any of them."""
        self.faulty = 0.0
        for replica in self.replicas:
            for other in self.replicas:
                if replica is not other and (replica.name, other.name) in self._down:
                    self._toggle(replica, other)

    def settle(self, rounds: int = 400) -> int:
        """Sync, carry all that is under way, and tick, until all hold the same; return the rounds it took."""
        for done in range(rounds):
            if self.is_equal():
                return done
            self.round()
        raise AssertionError(f"not equal after {rounds} rounds")

    def round(self) -> None:
        """Sync and tick once, and carry all that comes of it."""
        for replica in self.replicas:
            replica.sync()
            replica.machine.tick(self.now)
        self._collect()
        while self._under_way:
            self._carry()
            self._collect()
        self.now += 0.1

    def is_equal(self) -> bool:
        return len({replica.machine.digest() for replica in self.replicas}) == 1 and not self._under_way

    def _carry(self) -> None:
        if not self._under_way:
            return
        faulty = self._random.random() < self.faulty
        source, target, packed = self._under_way.pop(self._random.randrange(len(self._under_way)) if faulty else 0)
        if faulty and self._random.random() < 0.3:
            return
        if faulty and self._random.random() < 0.3:
            self._under_way.append((source, target, packed))
        self.carried += 1
        self.by_name[target].take(source, messages.decode(packed), self.now)

    def _collect(self) -> None:
        for replica in self.replicas:
            replica.carry_out(self.now)
            sent, replica.sent = replica.sent, []
            for peer, message in sent:
                if (replica.name, peer) not in self._down:
                    self._under_way.append((replica.name, peer, messages.encode(message)))
