"""Plans in which a cluster loses its majority, or all its directories but copies, and goes on; in virtual time.

Laws:
- A plan is drawn from its seed, and a seed and a program give one run.
- Those that are given up are stopped when an operator agrees, and return one after the other, each once the last one was
  refused: that is what the operator promises. Copies are made of directories that are stopped, unless the plan leaves an
  original alive: then the copies are older, and only an operator may go on.
- The register stays linearizable, but for what only lost members had decided: an operation that begins after somebody was told
  a version is told that one or a later one, a version has one content, and each change is made once (8).
- A lease has one holder at any time, and fencing numbers rise with time, whatever was lost (23).
- Healed, each member answers, and a lease can be had (9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from shoal.cluster.consensus.recovery import COUNTS_AHEAD
from shoal.errors import NoQuorum, RegisterChanged, ShoalError
from shoal.node.node import Node
from shoal.protocol.requests import AcquireLease, Rebuild, ReleaseLease
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.judging.linearity import Operation
from simulation.judging.violation import Violation
from simulation.world.fleet import Fleet

HEALED_S_MAX = 30.0
_KEY = "decree"
_TTL_S_MAX = 3.0
_SETTINGS: dict[str, Any] = {
    "tick_s": 0.05,
    "sync_interval_s": 0.1,
    "quorum_register_retry_s": 0.05,
    "quorum_register_found_s": 0.2,
    "quorum_register_hello_s": 0.3,
    "members_tell_s": 0.2,
    "quorum_timeout_s": 0.6,
    "lease_ttl_s_max": _TTL_S_MAX,
    "lease_shards": 1,
    "stream_ttl_s": 2.0,
}


class Held(NamedTuple):
    """A lease as its holder knows it: from when it was told, until it stops to count on it."""

    fence: int
    told_s: float
    until_s: float


def run_plan(seed: int) -> list[Violation]:
    """Run the plan of a seed; returns what was broken."""
    return run(_Run(seed).to_its_end(), steps_max=20_000_000)


def hunt(seeds: Iterable[int], invariants: tuple[str, ...]) -> int | None:
    """The first of these seeds whose plan breaks one of these; None if none does."""
    return next((seed for seed in seeds if any(found.invariant in invariants for found in run_plan(seed))), None)


class _Run:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"rebuilds/{seed}")
        self._names = "abcde" if seed % 5 == 4 else "abc"
        self._operations: list[Operation] = []
        self._held: list[Held] = []
        self._numbers = 0
        self._sides: dict[str, int] = {}  # Nodes on different sides do not hear each other.
        self._found: dict[str, Violation] = {}
        self._fleet: Fleet

    async def to_its_end(self) -> list[Violation]:
        async with Fleet(self._names, seed=self._seed, **_SETTINGS) as fleet:
            self._fleet = fleet
            fleet.spoil = lambda source, target, message: self._passes(source, target, message)
            await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in self._names))
            clients = [asyncio.create_task(self._client(number)) for number in range(4)]
            await self._disturb(self._random.uniform(1, 4))
            await self._random.choice((self._rebuild, self._rebuild, self._copy_all, self._copy_some))()
            await self._disturb(self._random.uniform(1, 3))
            await self._heal()
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        self._judge()
        return list(self._found.values())

    def _violated(self, invariant: str, text: str) -> None:
        self._found.setdefault(invariant, Violation(invariant, text))

    def _passes(self, source: str, target: str, message: bytes) -> bytes | None:
        return message if self._sides.get(source, 0) == self._sides.get(target, 0) else None

    # ── clients ───────────────────────────────────────────────────────────────

    async def _client(self, number: int) -> None:
        random = Random(f"rebuilds/{self._seed}/client/{number}")
        while True:
            await asyncio.sleep(random.expovariate(4))
            node = self._fleet.members[random.choice(sorted(self._fleet.members))].node
            with suppress(ShoalError):
                await (self._decree if random.random() < 0.5 else self._lease)(node, random)

    async def _decree(self, node: Node, random: Random) -> None:
        """Read a key, and maybe change it."""
        read = self._begun(0, -1)
        found = await node.register.read(_KEY)
        read.outcome, read.version, read.content, read.ended_s = "shown", found.version, int(found.content or b"0"), _now()
        if random.random() < 0.6:
            self._numbers += 1
            change = self._begun(self._numbers, found.version)
            try:
                made = await node.register.change(_KEY, found.version, b"%d" % change.number)
            except (RegisterChanged, NoQuorum):
                change.outcome = "denied"
                raise
            change.outcome, change.version, change.content, change.ended_s = "made", made.version, change.number, _now()

    def _begun(self, number: int, expected: int) -> Operation:
        self._operations.append(operation := Operation(number, expected, _now()))
        return operation

    async def _lease(self, node: Node, random: Random) -> None:
        """Take the lease; give it back after a while, or die with it."""
        sent_s, ttl_s = _now(), random.choice((1.0, 2.0, _TTL_S_MAX))
        granted = await node.leases.acquire(AcquireLease("s", "only", round(ttl_s * 1000), "client"))
        if not granted.granted:
            return
        until_s = sent_s + ttl_s * (1 - node.leases._config.lease_drift_max)
        gives_back = random.random() < 0.6
        works_s = random.uniform(0, ttl_s * 0.8)
        self._held.append(Held(granted.fence, _now(), min(until_s, _now() + works_s) if gives_back else until_s))
        if gives_back:
            await asyncio.sleep(works_s)
            await node.leases.release(ReleaseLease("s", "only", granted.fence, granted.token))

    # ── what happens ──────────────────────────────────────────────────────────

    async def _pass(self, seconds: float) -> None:
        ends_at = _now() + seconds
        while _now() < ends_at:
            await self._fleet.dial()
            await asyncio.sleep(0.02)

    async def _disturb(self, seconds: float) -> None:
        """Nodes crash and return, and do not hear each other, but one is up at any time."""
        ends_at = _now() + seconds
        while _now() < ends_at:
            await self._pass(self._random.uniform(0.1, 0.6))
            up = sorted(self._fleet.members)
            if self._random.random() < 0.3 and len(up) > 1:
                name = self._random.choice(up)
                left = await self._fleet.crash(name, self._random.choice((0, None)))
                await self._pass(self._random.uniform(0.05, 0.5))
                self._fleet.start(name, left, linked=False)
            self._sides = {name: int(self._random.random() < 0.3) for name in up} if self._random.random() < 0.5 else {}
        self._sides = {}

    async def _rebuild(self) -> None:
        """So many nodes die, or lose their disks, that the others are no majority. They go on, and the dead return."""
        lost = self._random.sample(self._names, len(self._names) // 2 + 1)
        survivors = [name for name in self._names if name not in lost]
        # The survivors may have missed what the others decided last.
        self._sides = {name: int(name in lost) for name in self._names} if self._random.random() < 0.7 else {}
        await self._pass(self._random.uniform(0.2, 1.5))
        dead = {name: await self._fleet.crash(name) for name in lost}
        self._sides = {}
        for name in lost[:-1]:
            if self._random.random() < 0.4:  # Its disk is lost for good, and it is there with an empty one.
                del dead[name]
                self._fleet.start(name, MemoryStorage(identity=b"new"), linked=False)
                survivors.append(name)
        await self._operate(survivors)
        await self._pass(self._random.uniform(0.1, 2))
        for name, left in dead.items():
            await self._return(name, left)

    async def _operate(self, survivors: list[str]) -> None:
        """An operator sees the survivors linked, and lets them go on."""
        ends_at = _now() + HEALED_S_MAX
        while _now() < ends_at:
            await self._pass(0.3)
            name = self._random.choice(survivors)
            rebuild = self._fleet[name].replicator.memberships.rebuild
            with suppress(ShoalError):
                view = await self._dialling(lambda rebuild=rebuild: rebuild(Rebuild()))  # type: ignore[misc]
                if not view.plan and view.reason:
                    return
                if [each.name for each in view.survivors] == sorted(f"{other}:1" for other in survivors):
                    await self._dialling(lambda rebuild=rebuild, plan=view.plan: rebuild(Rebuild(plan)))  # type: ignore[misc]
                    return
        self._violated("9", f"{survivors} cannot be rebuilt")

    async def _dialling(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        task = asyncio.ensure_future(ask())
        while not task.done():
            await self._pass(0.02)
        return await task

    async def _return(self, name: str, left: MemoryStorage) -> None:
        """A node that was given up returns with its disk, and stays until it was refused."""
        if name in self._fleet.members:
            return
        member = self._fleet.start(name, left, linked=False)
        ends_at = _now() + 3.0
        while _now() < ends_at and not member.node.register._acceptor.is_halted:
            await self._pass(0.1)

    async def _copy_all(self) -> None:
        """All directories were moved while their nodes were stopped. They go on by themselves, and the old ones return."""
        left = {name: await self._fleet.crash(name, None) for name in self._names}
        for name, storage in left.items():
            self._fleet.start(name, copied(storage), linked=False)
        await self._pass(self._random.uniform(1, 4))
        name = self._random.choice(self._names)
        if self._fleet[name].node.register.is_voting and self._random.random() < 0.5:
            kept = await self._fleet.crash(name)
            await self._return(name, left[name])
            await self._fleet.crash(name)
            self._fleet.start(name, kept, linked=False)

    async def _copy_some(self) -> None:
        """One original lives on, which may have missed what the others decided; these are older copies. An operator decides."""
        original = self._random.choice(self._names)
        others = [name for name in self._names if name != original]
        olds = {name: copied(self._fleet[name].storage.left_by_crash(0)) for name in others}
        self._sides = {name: int(name == original) for name in self._names}
        await self._pass(self._random.uniform(0.5, 2))
        for name in others:
            await self._fleet.crash(name)
        self._sides = {}
        for name in others:
            self._fleet.start(name, olds[name], linked=False)
        await self._pass(self._random.uniform(1, 3))
        await self._operate(list(self._names))

    # ── the end ───────────────────────────────────────────────────────────────

    async def _heal(self) -> None:
        """Healed, each member answers, and grants the lease within bounded time."""
        ends_at = _now() + HEALED_S_MAX
        record = max(
            (member.replicator.quorum.members.roster.record for member in self._fleet.members.values()),
            key=lambda each: each.epoch,
        )
        for name in sorted(address.partition(":")[0] for address in record.members):
            told = "it is not up"
            while name in self._fleet.members:
                node = self._fleet[name].node
                try:
                    await self._dialling(lambda node=node: self._decree(node, Random(0)))  # type: ignore[misc]
                    await self._dialling(lambda node=node: self._lease(node, Random(1)))  # type: ignore[misc]
                    told = ""
                    break
                except ShoalError as error:
                    told = error.message
                if _now() > ends_at:
                    break
                await self._pass(0.1)
            if told:
                self._violated("9", f"healed, {name} does not serve: {told}")

    def _judge(self) -> None:
        told = sorted((each for each in self._operations if each.version >= 0), key=lambda each: each.ended_s)
        changes = {each.number: each for each in self._operations if each.number}
        contents: dict[int, int] = {0: 0}
        for each in told:
            if contents.setdefault(each.version, each.content) != each.content:
                self._violated("8", f"{each} shows change {each.content}, and that version is change {contents[each.version]}")
            made = changes.get(each.content)
            if each.content and (
                made is None or made.outcome == "denied" or (each.version - made.expected) % COUNTS_AHEAD != 1
            ):
                self._violated("8", f"{each} shows what {made} did not make")
            before = max((other.version for other in told if other.ended_s < each.begun_s), default=0)
            if each.version < before or (each.outcome == "made" and each.version <= before):
                self._violated("8", f"{each} began after version {before} was told")
        held = sorted(self._held, key=lambda lease: lease.told_s)
        for nth, earlier in enumerate(held):
            for later in held[nth + 1 :]:
                if later.told_s < earlier.until_s:
                    self._violated("23", f"{earlier} and {later} hold one lease")
                if later.fence <= earlier.fence:
                    self._violated("23", f"the fencing number of {later} comes after that of {earlier}")


def copied(storage: MemoryStorage) -> MemoryStorage:
    """A copy of a disk, as a file system tells it from the original."""
    return MemoryStorage(dict(storage.scan(b"", None)), identity=b"a copy of " + storage.identity)


def _now() -> float:
    return asyncio.get_running_loop().time()
