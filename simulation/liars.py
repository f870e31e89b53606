"""Plans in which one member lies: it has valid credentials, and says anything that the protocol can say, at any time.

Laws:
- A plan is drawn from its seed, and a seed and a program give one run.
- There are two or four honest members beside the liar. At most one of the honest ones lacks its disk at a time.
- Plans of seeds from `HARDER_FROM` on have more: a directory is set back to a copy, also while another member is away; an
  operator begins a change and takes it back, so that most tell a later epoch; and of five members two may lie, as one.
- The liar's messages are drawn from the protocol's own types, with what it has heard in their fields; or they are what an
  honest node would send, altered. Its snapshots are altered consistently.
- What every honest member held at some time, it holds for ever (`changed`), and none holds what only the liar wrote
  (`invented`). No message stops a node (`stopped`), and queues stay within their bounds (`grew`).
- The list of members stays as it is (`members`), whatever record the liar tells, votes for, proposes or founds.
- The liar issues no operations of its own, and none that are next in another's name: it may do the first, and the second is
  known as a fork later (docs/decisions/0116-peers-that-lie.md). Nor does it change the members
  as an operator may who asks it while another one is away (docs/decisions/0129-told-by-most.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from hashlib import sha256
from random import Random
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from shoal.cluster import messages, operation
from shoal.cluster.comparing import RootsRequest
from shoal.cluster.consensus.ballots import ID_BYTES, NO_TERM, Accept, Answer, AnyMotion, Ask, Ballot, Term, Value, Vote
from shoal.cluster.consensus.recovery import Foundation
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Founding, Inquiry, Membership, Notice, RebuildNotice, Standing
from shoal.cluster.messages import (
    Digest,
    Message,
    ObjectRows,
    Objects,
    Push,
    RepairReply,
    Shipment,
    SnapshotPiece,
    Supply,
    Truncated,
    Vectors,
    encode_shipment,
)
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.node.peers.replica import QUARANTINE_MAX
from shoal.node.snapshots import switching
from shoal.node.snapshots.checking import vector_root
from shoal.node.snapshots.switching import Row
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation import lies
from simulation.judging.violation import Violation
from simulation.lies import LIAR, LIE, SPACE, THREADS, TOKEN
from simulation.world.fleet import Fleet, Member

STEPS = 40
_HEARD_MAX = 256
_BALLOT = Ballot(1 << 50, b"L" * ID_BYTES)
_HOUR_MS = 3_600_000
_WAIT_S = 2.0
_SETTINGS: dict[str, Any] = {
    "snapshot_operations_min": 1,
    "snapshot_idle_s": 0.3,
    "scrub_interval_s": 0.1,
    "quarantine_max": 4,
    "early_bytes_max": 64 * 1024,
    "snapshots_open_max": 2,
    "mark_interval_s": 0.5,
    "quorum_register_found_s": 0.05,
    "members_tell_s": 0.1,
}
KINDS = (
    *(*("say",) * 5, *("write",) * 8, "claim", "claim", "truncated", "truncated", "ask", *("refill",) * 5, "return", "cut"),
    *("record",) * 6,
    "read",
)
HARDER_FROM = 1000
HARDER_KINDS = (*KINDS, *("copy", "set back", "operate") * 3)
_ADDED = "x:1"  # A node that never comes.


class Step(NamedTuple):
    """Something that happens `after_s` the step before it. What does not fit the moment is left out."""

    kind: str
    after_s: float
    draw: int  # Decides what it is about.


def drawn(seed: int) -> list[Step]:
    """The steps of a plan."""
    random, kinds = Random(f"liars/{seed}"), KINDS if seed < HARDER_FROM else HARDER_KINDS
    return [Step(random.choice(kinds), random.expovariate(20), random.getrandbits(32)) for _ in range(STEPS)]


def run_plan(seed: int) -> list[Violation]:
    """Run the plan of a seed; returns what was broken."""
    return run(_Run(seed).to_its_end(), steps_max=20_000_000)


def _kinds(message: Any) -> list[type[Struct]]:
    return [kind for part in get_args(message) for kind in (_kinds(part) or [part])]


_OF_MEMBERS = {*_kinds(Notice), *_kinds(RebuildNotice), *_kinds(AnyMotion)}
_SAID = [kind for kind in _kinds(Message) if kind not in (Push, Supply)]
"""What is made up. Operations are altered ones of others."""


class Mouth:
    """Makes messages up, from what was heard."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers: deque[int] = deque([0, 1, 2, 7, 1 << 40, (1 << 63) - 1], _HEARD_MAX)
        self._bytes: deque[bytes] = deque([b"", b"x", bytes(16), bytes(32)], _HEARD_MAX)
        self._texts: deque[str] = deque(["", SPACE, *THREADS], _HEARD_MAX)
        self.origins: deque[bytes] = deque([bytes(15) + b"\x01"], 16)

    def hear(self, value: Any) -> None:
        """Remember what is in a message."""
        if isinstance(value, Struct):
            for name in value.__struct_fields__:
                self.hear(getattr(value, name))
        elif isinstance(value, list | tuple):
            for each in value[:4]:
                self.hear(each)
        elif isinstance(value, bool | Raw):
            return
        elif isinstance(value, int):
            self._numbers.append(value)
        elif isinstance(value, bytes):
            (self.origins if len(value) == 16 else self._bytes).append(value[:4096])
        elif isinstance(value, str):
            self._texts.append(value)

    def message(self) -> Message:
        """A message of any kind."""
        kind = self._random.choice(_SAID)
        if kind in _OF_MEMBERS and self._random.random() < 0.7:
            kind = self._random.choice(_SAID)
        made = self.any_of(kind)
        if isinstance(made, Digest):  # A directory that was set back is known to one peer alone: it must be heeded.
            return msgspec.structs.replace(made, once=[])
        return made  # type: ignore[no-any-return]

    def any_of(self, kind: Any) -> Any:
        """A value of this type."""
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Annotated or hasattr(kind, "__supertype__"):
            return self.any_of(parts[0] if parts else kind.__supertype__)
        if origin in (Union, UnionType):
            return self.any_of(self._random.choice(parts))
        if origin is tuple:
            return tuple(self.any_of(part) for part in parts if part is not ...)
        if (origin is not None and origin in (dict,)) or kind is dict:
            return {self.any_of(parts[0]): self.any_of(parts[1]) for _ in range(self._random.randrange(3))}
        if origin is not None:
            return [self.any_of(parts[0]) for _ in range(self._random.randrange(4))]
        if isinstance(kind, type) and issubclass(kind, Struct):
            hints = get_type_hints(kind)
            return kind(**{name: self.any_of(hints[name]) for name in kind.__struct_fields__})
        if isinstance(kind, type) and issubclass(kind, tuple):
            return kind(*(self.any_of(each) for each in get_type_hints(kind).values()))
        return self._plain(kind)

    def _plain(self, kind: Any) -> Any:
        random = self._random
        if kind is bool:
            return random.random() < 0.5
        if kind is int:
            return random.choice(
                (random.choice(self._numbers), random.randrange(1024), *map(partition_of, [SPACE] * 3, THREADS))
            )
        if kind is float:
            return random.random()
        if kind is str:
            return random.choice(self._texts)
        if kind is bytes:
            made = (random.choice(self._bytes), random.choice(self.origins), random.randbytes(16), self.vector().pack())
            return random.choice(made)
        return None

    def vector(self) -> VersionVector:
        """A vector of some origins, known and invented."""
        random = self._random
        names = random.sample(list(self.origins), min(len(self.origins), random.randrange(4)))
        invented = [random.randbytes(16)] if random.random() < 0.5 else []
        return VersionVector((Origin(name), random.choice((1, 2, 40, 1 << 40))) for name in (*names, *invented))

    def altered(self, shipment: Shipment) -> Shipment:
        """Another operation under the same dot, with a chain hash that is right, or another one."""
        packed = shipment.packed.replace(TOKEN, LIE)
        chain = operation.chain(self._random.choice(self._bytes), shipment.partition, shipment.dot, packed)
        if len(chain) != operation.CHAIN_BYTES:
            chain = shipment.chain
        return msgspec.structs.replace(shipment, packed=packed, chain=chain, attached=shipment.attached.replace(TOKEN, LIE))


class _Run:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"liars/run/{seed}")
        self._mouth = Mouth(self._random)
        self._names = "abz" if seed % 3 else "abcdz"
        self._liars = "dz" if seed >= HARDER_FROM and len(self._names) == 5 and seed % 2 else LIAR
        self._honest = [name for name in self._names if name not in self._liars]
        self._numbers = 0
        self._owed: set[bytes] = set()
        self._refilling = ""  # The honest member whose disk was lost last.
        self._away = ""
        self._copies: dict[str, MemoryStorage] = {}
        self._set_back = ""  # The honest member whose directory was set back, until it holds what it held.
        self._is_calm = self._random.random() < 0.3  # Whether nobody is ever away, so that most others can be asked.
        self._lies = True
        self._bends = self._random.choice((0.1, 0.4, 0.8))  # How much of what the liar's program sends is altered.
        self._snapshots = self._random.choice(list(lies.SNAPSHOTS))
        self._base = Record(1, (f"{LIAR}:1",))  # The record of which the liar's votes tell.
        self._found: dict[str, Violation] = {}

    async def to_its_end(self) -> list[Violation]:
        try:
            async with Fleet(self._names, seed=self._seed, **_SETTINGS) as fleet:
                fleet.spoil = self._passes
                for step in drawn(self._seed):
                    await asyncio.sleep(step.after_s)
                    await self._take(fleet, step)
                    await fleet.dial()
                    self._judge(fleet)
                self._lies = False
                if self._away:
                    fleet.link_all(self._away)
                with suppress(TimeoutError):  # What the liar has said may hold a node up: that is no change of what is held.
                    await fleet.until(lambda: self._is_refilled(fleet), 30.0)
                await asyncio.sleep(2 * fleet[self._honest[0]].config.mark_interval_s)
                self._judge(fleet, is_settled=True)
        except Exception as error:
            self._violated("stopped", f"a message stopped a node: {error!r}")
        return list(self._found.values())

    def _violated(self, invariant: str, text: str) -> None:
        self._found.setdefault(invariant, Violation(invariant, text))

    # ── the plan ──────────────────────────────────────────────────────────────

    async def _take(self, fleet: Fleet, step: Step) -> None:
        random = Random(step.draw)
        target = random.choice(self._honest)
        if step.kind == "write":
            await self._write(fleet, target, random.choice(THREADS))
        elif step.kind == "say":
            for _ in range(8):
                await self._say(fleet, target, self._mouth.message())
        elif step.kind == "record":
            await self._tell(fleet, target, random)
        elif step.kind == "read":
            with suppress(ShoalError):
                await fleet[target].replicator.register.read(epochs.KEY)
        elif step.kind == "claim":
            await self._say(fleet, target, self._claim(fleet, target, random))
        elif step.kind == "truncated":
            number = partition_of(SPACE, random.choice(THREADS))
            await self._say(fleet, target, Truncated(number, self._mouth.vector().pack()))
        elif step.kind == "ask":
            for request in self._requests(fleet[target]):
                await self._say(fleet, target, request)
        elif step.kind == "operate":
            await self._operate(fleet[target])
        elif self._is_calm and step.kind in ("refill", "cut", "copy", "set back"):
            return
        elif step.kind == "copy":
            self._copies.setdefault(target, fleet[target].storage.left_by_crash(None))
        elif step.kind == "set back" and target in self._copies and self._may_set_back(target):
            self._set_back = target
            await fleet.set_back(target, self._copies.pop(target))
        elif step.kind == "refill" and not self._refilling and not self._away and not self._set_back:
            for name in self._names:
                await self._truncate(fleet[name])
            self._refilling = target
            await fleet.crash(target)
            fleet.start(target, MemoryStorage())
        elif step.kind == "cut" and not self._refilling and not self._away and (not self._set_back or self._is_wide):
            self._away = target
            fleet.apart.update((target, other) for other in self._names)
            fleet.apart.update((other, target) for other in self._names)
            await fleet.isolate(target)
        elif step.kind == "return" and self._away:
            self._away = ""
            fleet.apart.clear()

    @property
    def _is_wide(self) -> bool:
        """Whether more than half of the others are honest and there, though one is set back, and one away."""
        return len(self._honest) == 4

    def _may_set_back(self, target: str) -> bool:
        return not self._refilling and not self._set_back and (not self._away or (self._is_wide and self._away != target))

    async def _operate(self, member: Member) -> None:
        """Begin a change of the members that never ends, or take it back."""
        changes = member.replicator.memberships.changes
        with suppress(ShoalError):
            if member.replicator.memberships._roster.record.change is None:
                await changes.change("add", joins=_ADDED)
            else:
                await changes.cancel()

    async def _tell(self, fleet: Fleet, target: str, random: Random) -> None:
        """Say that the members are others."""
        record, directory = fleet[target].replicator.memberships._roster.record, fleet[target].identity().node
        made = lies.records(record, f"{target}:1", directory, random)
        # If one may be away, none that can follow: the others would believe it (docs/decisions/0129-told-by-most.md).
        told = random.choice(made if self._is_calm else [each for each in made if not epochs.follows(record, each)])
        number, id = random.randrange(1, 1 << 20), random.randbytes(ID_BYTES)
        number = (1 << 62) - number if number % 4 == 0 else number  # As far as numbers go.
        self._base = told
        match random.choice(("standing", "accept", "founding")):
            case "standing":
                for name in self._honest:
                    await self._say(fleet, name, Standing(record.epoch, True, True, voted=told))
            case "accept":
                for name in self._honest:
                    ballots = Ballot(number, id), Ballot(number + 1, id)
                    await self._say(fleet, name, Accept(epochs.KEY, ballots[0], self._value(told), {}, ballots[1]))
            case "founding":
                terms = {address: Term(number, id, 0) for address in told.members}
                slots = [(epochs.KEY, _BALLOT, _BALLOT, self._value(told))]
                await self._say(fleet, target, Ask(NO_TERM, {}))  # The liar does not vote, as it says.
                await self._say(fleet, target, Inquiry(id, told.epoch))
                await asyncio.sleep(0.01)
                await self._say(fleet, target, Founding(id, told, Foundation(id, terms, slots)))
        await self._say(fleet, target, Membership(told))

    def _value(self, record: Record) -> Value:
        return Value(record.epoch, epochs.encode(record), ())

    def _requests(self, member: Member) -> list[Message]:
        """More questions than a witness answers at once."""
        partitions = member.node._database.partitions
        numbers = [partition_of(SPACE, thread) for thread in THREADS] * 3
        return [RootsRequest(n, n, vector_root(partitions.load(n).tips), b"", 0) for n in numbers]

    def _claim(self, fleet: Fleet, target: str, random: Random) -> Message:
        """Say that the liar holds what the other does, and more."""
        number = partition_of(SPACE, random.choice(THREADS))
        held = fleet[target].node._database.vector_of(number)
        return Vectors([(number, held.join(self._mouth.vector()).pack())], random.random() < 0.5)

    async def _say(self, fleet: Fleet, target: str, message: Message) -> None:
        if target in fleet.members:
            liar = fleet[self._random.choice(self._liars) if len(self._liars) > 1 else LIAR].identity()
            with suppress(ShoalError):
                await fleet[target].replicator.received(liar, messages.stamped(messages.encode(message), liar.epoch))

    async def _write(self, fleet: Fleet, name: str, thread: str) -> None:
        self._numbers += 1
        token = TOKEN + b"%05d" % self._numbers
        try:
            await fleet[name].store().space(SPACE).thread(thread).journal.append({"said": token.decode()})
            await fleet[name].store().space(SPACE).register(f"r{thread}").set(token.decode())
        except ShoalError:
            return
        holders = [other for other in self._honest if other not in (self._away, self._refilling, self._set_back)]
        with suppress(TimeoutError):
            await fleet.until(lambda: all(token in _rows(fleet[other]) for other in holders), 0.2)
            if len(holders) == len(self._honest):
                self._owed.add(token)

    async def _truncate(self, member: Member) -> None:
        member.simulated.now_ms += 2 * _HOUR_MS
        truncator = member.node._database.truncator
        with suppress(ShoalError):
            await truncator.look(truncator.due())

    # ── what the liar's program sends ─────────────────────────────────────────

    def _passes(self, source: str, target: str, message: bytes) -> bytes | None:
        epoch, packed = messages.unstamped(message)
        found = messages.decode(packed)
        self._mouth.hear(found)
        if source not in self._liars or not self._lies or self._random.random() > self._bends:
            return message
        bent = self._bent(found)
        return None if bent is None else messages.stamped(messages.encode(bent), epoch)

    def _bent(self, found: Message) -> Message | None:
        match found:
            case SnapshotPiece() if found.rows and not found.piece and found.digest:
                rows = msgspec.msgpack.decode(found.rows, type=list[Row])
                packed = switching.pack(lies.SNAPSHOTS[self._snapshots](rows) if rows else rows)
                return msgspec.structs.replace(found, rows=packed, digest=sha256(packed).digest())
            case Push(operations):
                return Push(self._bent_operations(operations))
            case Supply(id, operations):
                return Supply(id, self._bent_operations(operations))
            case ObjectRows(id, rows):
                return ObjectRows(id, [(key, value.replace(TOKEN, LIE)) for key, value in rows])
            case RepairReply(id, rows):
                return RepairReply(id, [(key, value.replace(TOKEN, LIE)) for key, value in rows])
            case Objects():
                objects = [(name, self._random.choice((digest, bytes(16), b""))) for name, digest in found.objects]
                return msgspec.structs.replace(found, objects=objects, proved=[name for name, _ in objects])
            case Vote(key=epochs.KEY):
                return msgspec.structs.replace(found, refusal="", accepted=_BALLOT, value=self._value(self._base))
            case Answer() if found.grants:
                return msgspec.structs.replace(found, slots=[(epochs.KEY, _BALLOT, _BALLOT, self._value(self._base))])
            case Digest() | Vectors():
                return found if self._random.random() < 0.9 else None
        return self._random.choice((None, found, self._mouth.message()))

    def _bent_operations(self, operations: Any) -> list[Shipment | Raw]:
        return [
            encode_shipment(self._mouth.altered(each)) if isinstance(each, Shipment) and self._random.random() < 0.7 else each
            for each in operations
        ]

    # ── judging ───────────────────────────────────────────────────────────────

    def _is_refilled(self, fleet: Fleet) -> bool:
        return all(self._owed <= set(_tokens(fleet[name])) for name in self._honest)

    def _judge(self, fleet: Fleet, *, is_settled: bool = False) -> None:
        for name in self._honest:
            member = fleet[name]
            rows = _rows(member)
            record = member.replicator.memberships._roster.record
            is_begun = record.change is not None and record.change.told == f"add {_ADDED}" and self._seed >= HARDER_FROM
            is_changed = record.members != tuple(f"{each}:1" for each in self._names) or record.removed
            if is_changed or (record.change is not None and not is_begun):
                self._violated("members", f"{name} is in {record}, which only the liar has told")
            if name in (self._refilling, self._set_back):
                if member.replicator.quorum.is_learner:
                    continue  # It shows nothing.
                if self._refilling == name:
                    self._refilling = ""
                elif self._owed <= set(_tokens(member)):
                    self._set_back = ""
            if LIE in rows:
                self._violated("invented", f"{name} holds what only the liar wrote")
            lost = {token for token in self._owed if token not in rows} if name != self._set_back else set()
            if lost:
                self._violated("changed", f"{name} held {min(lost)!r}, and does not any more")
            self._judge_bounds(member, is_settled=is_settled)

    def _judge_bounds(self, member: Member, *, is_settled: bool) -> None:
        # A directory that was set back has notes of those that others have replaced since, until it writes its notes again.
        peers_max = len(self._names) + 1 if is_settled else 2 * (len(self._names) - 1)
        replicator, config = member.replicator, member.config
        protocol, exchange = replicator._protocol, replicator._snapshots
        counts = {
            "early bytes": (protocol._delivery.waiting_bytes, config.early_bytes_max),
            "quarantined": (len(protocol.quarantined()), QUARANTINE_MAX),
            "staged snapshots": (len(exchange._receiver._staging), config.snapshots_open_max),
            "questions": (len(exchange.witnesses._questions), config.snapshots_open_max),
            "answers": (exchange.witnesses._answers, config.snapshots_open_max),
            "snapshots kept": (len(exchange._sender._kept), config.snapshots_open_max),
            "peers": (len(protocol._peers), peers_max),
        }
        for what, (count, most) in counts.items():
            if count > most:
                self._violated("grew", f"{member.name} has {count} {what}, and {most} is the bound")


def _rows(member: Member) -> bytes:
    """The values of all rows of objects, together."""
    return b"".join(value for _, value in member.storage.scan(keys.OBJECT, successor(keys.OBJECT)))


def _tokens(member: Member) -> list[bytes]:
    parts = _rows(member).split(TOKEN)[1:]
    return [TOKEN + part[:5] for part in parts]
