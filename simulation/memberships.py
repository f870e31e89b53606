"""Plans that change the members of a cluster of real nodes, while clients write and faults happen, in virtual time.

Laws:
- A plan is drawn from its seed, and a seed and a program give one run.
- One disk is lost at most, wiped or forgotten; the others are owed everything that they acknowledged. A wiped directory
  is forgotten by its id; it, or a copy of it, may return for a moment before or after.
- What a quorum acknowledged is on every set of nodes that could decide, at any time (3): those that lack it must not decide.
- Of each epoch there is one record (8). What only a removed node, or one that joined with data of its own, wrote
  comes to no member (16). Healed, the change that is under way ends, and the members hold the same (9, 4); then they retire
  the origins of all removed directories (9).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from shoal.cluster import messages
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Membership
from shoal.crdt.dot import belongs
from shoal.errors import ShoalError
from shoal.node.membership.roster import Roster
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.judging.violation import Violation
from simulation.world.fleet import Fleet

STEPS = 26
HEALED_S_MAX = 24.0
_PAUSE_S = 0.02
_TOKEN = re.compile(rb"w\d{5}\w")
_SETTINGS: dict[str, Any] = {
    "tick_s": 0.05,
    "sync_interval_s": 0.1,
    "quorum_register_retry_s": 0.05,
    "quorum_register_found_s": 0.1,
    "quorum_register_hello_s": 0.5,
    "members_tell_s": 0.2,
    "quorum_timeout_s": 0.6,
    "mark_interval_s": 1.0,
}


class Step(NamedTuple):
    """Something that happens `after_s` the step before it. What does not fit the moment is left out."""

    kind: str
    after_s: float
    draw: int  # Decides which nodes it is about.


KINDS = (
    *("change",) * 6,
    *("split-entering",) * 4,
    *("deaf",) * 2,
    *("split", "split", "crash", "crash-entering", "crash-entering", "cut", "weather", "wipe", "calm"),
)


def drawn(seed: int) -> list[Step]:
    """The steps of a plan."""
    random = Random(f"memberships/{seed}")
    gap_s = random.choice((0.1, 0.3, 0.8))
    return [Step(random.choice(KINDS), random.expovariate(1 / gap_s), random.getrandbits(32)) for _ in range(STEPS)]


def run_plan(seed: int) -> list[Violation]:
    """Run the plan of a seed; returns what was broken."""
    return run(_Run(seed).to_its_end(), steps_max=20_000_000)


class _Run:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"memberships/run/{seed}")
        self._names = "abc" if seed % 3 else "abcde"
        self._spares = list("uvwxyz")
        self._down: dict[str, MemoryStorage] = {}  # With their disks.
        self._gone: set[str] = set()  # Nodes that were removed, or that came with data of their own.
        self._lost = ""  # The node whose disk is lost.
        self._wiped: dict[bytes, str] = {}  # Directories whose place another one took, with their nodes.
        self._ghost = ""  # The node at whose address a directory runs that the members have forgotten.
        self._haunting: list[asyncio.Task[None]] = []
        self._numbers = 0
        self._crashing = asyncio.Lock()
        self._looked = 0  # The newest epoch when it was looked last.
        self._owed: set[bytes] = set()  # Acknowledged by a quorum.
        self._local: dict[bytes, str] = {}  # Acknowledged by one node alone.
        self._unwanted: set[bytes] = set()
        self._entering = ""  # What happens to the next node that comes into such an epoch: it crashes, or the cluster splits.
        self._phase = ""  # Of the change, in that epoch.
        self._sides: dict[str, int] = {}  # Nodes on different sides do not hear each other; empty: there is one side.
        self._deaf: set[str] = set()  # Nodes that get no record of the members, and everything else.
        self._tethers: dict[str, str] = {}  # The only other node that a node hears, and that hears it.
        self._loss = 0.0  # The share of messages that is lost.
        self._records: dict[int, bytes] = {}
        self._told: list[Record] = []  # The records that operators were told their changes begin with.
        self._drained: set[str] = set()
        self._newest = epochs.founded([f"{name}:1" for name in self._names])
        self._found: dict[str, Violation] = {}

    async def to_its_end(self) -> list[Violation]:
        sound = Roster.durable
        crashing: list[str] = []

        def durable(roster: Roster, number: int) -> None:
            before = roster.epoch
            sound(roster, number)
            if roster.epoch > before:
                self._enters(roster.record)
                change = roster.record.change
                if self._entering and self._phase == ("done" if change is None else "joint" if change.is_joint else "prepared"):
                    entering, self._entering = self._entering, ""
                    if entering == "crash":
                        crashing.append(roster.own.partition(":")[0])
                    else:
                        self._split(roster.own.partition(":")[0])

        Roster.durable = durable  # type: ignore[method-assign,assignment]
        try:
            async with Fleet(self._names, seed=self._seed, **_SETTINGS) as fleet:
                fleet.spoil = self._passes
                await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in self._names))
                writers = [asyncio.create_task(self._write(fleet, number)) for number in range(3)]
                for step in drawn(self._seed):
                    await self._pass(fleet, step.after_s, crashing)
                    await self._take(fleet, step)
                await self._heal(fleet)
                for writer in writers:
                    writer.cancel()
                await asyncio.gather(*writers, return_exceptions=True)
                await self._judge(fleet)
        finally:
            Roster.durable = sound  # type: ignore[method-assign]
        return list(self._found.values())

    def _violated(self, invariant: str, text: str) -> None:
        self._found.setdefault(invariant, Violation(invariant, text))

    def _enters(self, record: Record) -> None:
        packed = epochs.encode(record)
        if self._records.setdefault(record.epoch, packed) != packed:
            self._violated("8", f"epoch {record.epoch} has two records: {self._records[record.epoch]!r} and {packed!r}")
        if record.change is not None and record.change.kind == "drain":
            self._drained.add(record.change.leaves)
        if record.epoch > self._newest.epoch:
            self._newest = record
            left = {removal.address for removal in record.removed} - set(record.everyone)
            self._gone |= {address.partition(":")[0] for address in left}

    # ── clients ───────────────────────────────────────────────────────────────

    async def _write(self, fleet: Fleet, number: int) -> None:
        """Write to any node that is up, with `quorum` or `local`."""
        random = Random(f"memberships/{self._seed}/writer/{number}")
        while True:
            await asyncio.sleep(random.expovariate(8))
            name = random.choice(sorted(fleet.members))
            is_local = random.random() < 0.4
            self._numbers += 1
            token = b"w%05d%s" % (self._numbers, name.encode())
            if (name in self._gone or self._is_removed(fleet, name)) and self._all_know(fleet):
                self._unwanted.add(token)
            storage = fleet.members[name].storage
            try:
                store = fleet.members[name].store()
                await store.space("crew").set("seen").add(token.decode(), durability="local" if is_local else "quorum")
            except ShoalError:
                continue
            if not is_local:
                self._owed.add(token)
            elif self._keeps(fleet, name, storage):
                self._local[token] = name

    def _keeps(self, fleet: Fleet, name: str, storage: MemoryStorage) -> bool:
        """Whether what a node acknowledged alone is owed: it is a member, on a disk that is kept."""
        is_here = name in fleet.members and fleet.members[name].storage is storage and name != self._lost
        return is_here and f"{name}:1" in self._newest.members

    def _is_removed(self, fleet: Fleet, name: str) -> bool:
        identity = fleet.members[name].identity()
        return self._newest.removal_of(identity.node, identity.originals) is not None

    def _all_know(self, fleet: Fleet) -> bool:
        """Whether every member is up and in the newest epoch: until then one may still take what a removed node wrote."""
        names = {address.partition(":")[0] for address in self._newest.members} - {self._ghost}
        if not names <= fleet.members.keys():
            return False
        return all(fleet[name].replicator.quorum.members.roster.epoch == self._newest.epoch for name in names)

    def _passes(self, source: str, target: str, message: bytes) -> bytes | None:
        if target in self._deaf and isinstance(messages.decode(messages.unstamped(message)[1]), Membership):
            return None
        is_apart = bool(self._sides) and self._sides.get(source, 0) != self._sides.get(target, 0)
        is_apart |= self._tethers.get(source, target) != target or self._tethers.get(target, source) != source
        return None if is_apart or self._random.random() < self._loss else message

    def _split(self, name: str) -> None:
        """Let two sides not hear each other, this node on one of them; or let one node hear this one alone, and no record."""
        takes_part = [address.partition(":")[0] for address in self._newest.everyone]
        far = self._random.choice(takes_part)
        if self._random.random() < 0.4 and far != name:
            self._tethers = {far: name}
            self._deaf.add(far)
            return
        self._sides = {other: int(other == name or self._random.random() < 0.4) for other in takes_part}

    def _calm(self, loss: float = 0.0) -> None:
        self._sides, self._tethers, self._deaf, self._loss = {}, {}, set(), loss

    # ── steps ─────────────────────────────────────────────────────────────────

    async def _pass(self, fleet: Fleet, seconds: float, crashing: list[str]) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while loop.time() < ends_at:
            await fleet.dial()
            while crashing:
                await self._crash(fleet, crashing.pop())
            if self._newest.epoch > self._looked or self._random.random() < 0.1:
                self._looked = self._newest.epoch
                self._look(fleet)
            await asyncio.sleep(_PAUSE_S)

    async def _take(self, fleet: Fleet, step: Step) -> None:
        random = Random(step.draw)
        up = sorted(fleet.members)
        match step.kind:
            case "change":
                asyncio.create_task(self._change(fleet, random))  # noqa: RUF006
            case "crash" if len(up) > 1:
                await self._crash(fleet, random.choice(up), keep=random.choice((0, None)))
            case "crash-entering" | "split-entering":
                self._entering = step.kind.partition("-")[0]
                self._phase = random.choice(("prepared", "joint", "joint", "joint", "done"))
            case "split":
                self._split(random.choice(up))
            case "deaf":
                self._deaf.add(random.choice(up))
            case "calm":
                self._calm()
                fleet.jumble = None
            case "cut" if len(up) > 1:
                pair = random.sample(up, 2)
                fleet.apart.add((pair[0], pair[1]))
                await fleet.cut(pair[0], pair[1])
            case "weather":
                self._loss = random.choice((0.0, 0.1, 0.3))
                dice = Random(step.draw + 1)
                fleet.jumble = (lambda queue: queue.rotate(dice.randrange(3))) if random.random() < 0.5 else None
            case "wipe" if not self._lost and len(up) > 2:
                await self._wipe(fleet, random.choice(up))
        if random.random() < 0.4:
            fleet.apart.clear()
        if random.random() < 0.2:
            self._calm(self._loss)
        if random.random() < 0.5:
            for name in sorted(self._down):
                self._start(fleet, name)

    async def _crash(self, fleet: Fleet, name: str, keep: int | None = 0) -> None:
        async with self._crashing:
            if name in fleet.members and len(fleet.members) > 1 and name != self._ghost:
                self._down[name] = await fleet.crash(name, keep)

    async def _wipe(self, fleet: Fleet, name: str) -> None:
        if f"{name}:1" in self._newest.members and self._newest.change is None:
            directory = fleet.members[name].identity().node
            await self._crash(fleet, name)
            old = self._down.get(name)
            self._lose(name)
            self._down[name] = MemoryStorage()
            if old is not None:
                self._wiped[directory] = name
                self._haunting.append(asyncio.create_task(self._haunt(fleet, name, directory, old)))

    async def _haunt(self, fleet: Fleet, name: str, directory: bytes, old: MemoryStorage) -> None:
        """A directory was lost: an operator has it forgotten, and it returns, or a copy of it, before that or after."""
        random = Random(f"memberships/{self._seed}/haunt")
        await asyncio.sleep(random.uniform(0, 4))
        if random.random() < 0.3:
            await self._put_in(fleet, name, _copied(old), random.uniform(0.2, 2))
        while not self._is_forgotten(directory):
            await self._disown(fleet, directory, random)
            await asyncio.sleep(random.uniform(0.1, 1))
        if random.random() < 0.7:
            await self._put_in(fleet, name, old if random.random() < 0.5 else _copied(old), random.uniform(0.2, 3))

    async def _put_in(self, fleet: Fleet, name: str, storage: MemoryStorage, seconds: float) -> None:
        """Run a node with another disk for a while."""
        await self._crash(fleet, name)
        kept = self._down.pop(name, None)
        if kept is None:
            return
        try:
            self._ghost = name
            fleet.start(name, storage, linked=False, join=",".join(self._newest.members))
            await asyncio.sleep(seconds)
        finally:
            async with self._crashing:
                if name in fleet.members:
                    await fleet.crash(name)
                self._down[name], self._ghost = kept, ""

    async def _disown(self, fleet: Fleet, directory: bytes, random: Random) -> None:
        names = [address.partition(":")[0] for address in self._newest.members]
        asked = [name for name in names if name in fleet.members and name not in (self._ghost, self._wiped[directory])]
        if asked:
            with suppress(ShoalError):
                changes = fleet.members[random.choice(asked)].replicator.memberships.changes
                await changes.change("forget", leaves=directory.hex())

    def _is_forgotten(self, directory: bytes) -> bool:
        return self._newest.removal_of(directory) is not None

    def _lose(self, name: str) -> None:
        self._lost = name
        self._local = {token: node for token, node in self._local.items() if node != name}

    def _start(self, fleet: Fleet, name: str) -> None:
        fleet.start(name, self._down.pop(name), linked=False, join=",".join(self._newest.members))

    async def _change(self, fleet: Fleet, random: Random) -> None:
        """Ask a member for a change; a node that joins is started first, one that is forgotten is crashed."""
        members = [address.partition(":")[0] for address in self._newest.members]
        asked = [name for name in members if name in fleet.members]
        kind = random.choice(("add", "drain", "replace", "replace", "forget"))
        if not asked or (kind in ("drain", "forget") and len(members) < 3) or (kind == "add" and len(members) > 5):
            return
        joins = leaves = ""
        if kind in ("drain", "replace", "forget"):
            leaves = random.choice(members)
        if kind == "forget" or (kind == "replace" and leaves in self._down):
            if self._lost not in ("", leaves):
                return
            self._lose(leaves)
            await self._crash(fleet, leaves)
        if kind in ("add", "replace"):
            if not self._spares:
                return
            joins = self._spares.pop()
            member = random.choice(asked)
            storage = await self._spoilt(fleet, joins) if random.random() < 0.15 else MemoryStorage()
            fleet.start(joins, storage, linked=False, join=f"{member}:1")
        given = {"joins": joins and f"{joins}:1", "leaves": leaves and f"{leaves}:1"}
        asked = [name for name in asked if name in fleet.members] or sorted(fleet.members)
        changes = fleet.members[random.choice(asked)].replicator.memberships.changes
        with suppress(ShoalError):
            if random.random() < 0.1:
                await changes.cancel()
            else:
                self._told.append(await changes.change(kind, **given))  # type: ignore[arg-type]

    async def _spoilt(self, fleet: Fleet, name: str) -> MemoryStorage:
        """The disk of a node that is to join, and has data of its own, from when it ran alone."""
        self._numbers += 1
        token = b"w%05d%s" % (self._numbers, name.encode())
        self._unwanted.add(token)
        fleet.start(name, MemoryStorage(), linked=False, join=f"{name}:1")
        with suppress(ShoalError):
            await fleet.members[name].store().space("crew").set("seen").add(token.decode())
        return await fleet.crash(name)

    # ── judging ───────────────────────────────────────────────────────────────

    def _held(self, fleet: Fleet, name: str) -> set[bytes]:
        storage = fleet.members[name].storage if name in fleet.members else self._down.get(name)
        return set() if storage is None else {token for _, row in storage.scan(b"L", b"M") for token in _TOKEN.findall(row)}

    def _look(self, fleet: Fleet) -> None:
        """No set of nodes that lacks something acknowledged could decide."""
        record = self._newest
        names = [address.partition(":")[0] for address in record.everyone]
        held = {name: self._held(fleet, name) for name in names}
        counting = [name for name in names if name not in fleet.members or not fleet.members[name].replicator.quorum.is_learner]
        for token in self._owed:
            # While a change is joint, a node that is still in the epoch before counts over the old list alone.
            lacking = [name for name in counting if token not in held[name] and name != self._lost]
            if len({f"{name}:1" for name in lacking}.intersection(record.members)) > len(record.members) // 2:
                self._violated("3", f"{token!r} was acknowledged, and {lacking} could decide without it in {record}")
        for token in self._unwanted:
            if any(token in held[name] for name in names if name.encode() != token[-1:]):
                self._violated("16", f"{token!r} was written by a node that is no member, and came to one")

    async def _heal(self, fleet: Fleet) -> None:
        self._calm()
        self._entering, fleet.jumble = "", None
        fleet.apart.clear()
        for task in self._haunting:
            task.cancel()
        await asyncio.gather(*self._haunting, return_exceptions=True)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + HEALED_S_MAX
        while loop.time() < ends_at:
            for name in sorted(self._down):
                if f"{name}:1" in self._newest.everyone:
                    self._start(fleet, name)
            await self._invite(fleet)
            for directory in self._wiped:
                if not self._is_forgotten(directory) and self._newest.change is None:
                    await self._disown(fleet, directory, self._random)
            await self._pass(fleet, 0.5, [])
            if self._newest.change is None and self._is_calm(fleet):
                return
            if self._newest.change is not None and loop.time() > ends_at - HEALED_S_MAX / 3:
                await self._cancel(fleet)
        self._violated("9", f"healed, the members do not come to agree: {self._newest}")

    async def _invite(self, fleet: Fleet) -> None:
        """A node that joins, and that was started with a member that has left since, is started again with the others."""
        joins = "" if self._newest.change is None else self._newest.change.joins.partition(":")[0]
        if joins in fleet.members:
            known = fleet[joins].replicator.memberships.addresses
            if not set(known).intersection(self._newest.members):
                await self._crash(fleet, joins)
                self._start(fleet, joins)

    async def _cancel(self, fleet: Fleet) -> None:
        """A change that waits for a node that can never join is taken back; any other one ends by itself."""
        change = self._newest.change
        assert change is not None
        joins = change.joins.partition(":")[0]
        is_refused = joins in fleet.members and bool(fleet.members[joins].replicator.quorum.members.roster.problem)
        if not is_refused and (not joins or joins in fleet.members):
            self._violated("9", f"healed, a change does not end: {self._newest}")
        for name in sorted(fleet.members):
            with suppress(ShoalError):
                await fleet.members[name].replicator.memberships.changes.cancel()
                return

    def _is_calm(self, fleet: Fleet) -> bool:
        names = [address.partition(":")[0] for address in self._newest.members]
        if not all(name in fleet.members for name in names):
            return False
        quorums = [fleet.members[name].replicator.quorum for name in names]
        agree = all(quorum.members.roster.epoch == self._newest.epoch for quorum in quorums)
        return agree and not any(quorum.is_learner for quorum in quorums)

    async def _judge(self, fleet: Fleet) -> None:
        """Healed, and at rest: every member holds all that is owed."""
        names = [address.partition(":")[0] for address in self._newest.members]
        patience_s = HEALED_S_MAX
        with suppress(TimeoutError):
            await fleet.until(lambda: len({fleet.members[name].digest() for name in names}) == 1, patience_s, look_s=_PAUSE_S)
        if len({fleet.members[name].digest() for name in names}) > 1:
            self._violated("4", "healed, the members do not hold the same")
            patience_s = 0.0  # Nor will they soon do what is next.
        for record in self._told:
            if self._records.get(record.epoch) != epochs.encode(record):
                self._violated("8", f"an operator was told that {record.change} begins epoch {record.epoch}, and it does not")
        lost = [each for each in self._newest.removed if not each.handed_over and each.address not in self._drained]
        removed = {removal.address.partition(":")[0] for removal in lost}
        owed = self._owed | {token for token, node in self._local.items() if node not in removed}
        for name in names:
            missing = owed - self._held(fleet, name)
            if missing:
                self._violated("3", f"{name} lacks {sorted(missing)[:5]}, which were acknowledged, in {self._newest}")
        with suppress(TimeoutError):
            await fleet.until(lambda: not self._named(fleet, names), patience_s, look_s=_PAUSE_S)
        if named := self._named(fleet, names):
            self._violated("9", f"healed, the members do not retire the origins of removed directories: {named}")

    def _named(self, fleet: Fleet, names: Iterable[str]) -> set[str]:
        """The origins of removed directories that a member's vectors still name."""
        gone = [removal.directory for removal in self._newest.removed]
        return {
            f"{origin.hex()} in partition {number} of {name}"
            for name in names
            for number, vector in fleet.members[name].node._database.partitions.vectors().items()
            for origin in vector
            if any(belongs(origin, directory) for directory in gone)
        }


def hunt(seeds: Iterable[int], invariants: tuple[str, ...]) -> int | None:
    """The first of these seeds whose plan breaks one of these; None if none does."""
    return next((seed for seed in seeds if any(found.invariant in invariants for found in run_plan(seed))), None)


def _copied(storage: MemoryStorage) -> MemoryStorage:
    """A copy of a disk, as a file system tells it from the original."""
    return MemoryStorage(dict(storage.scan(b"", None)), identity=b"a copy")
