"""Sets that agents add to, remove and pop from, read, and delete.

Laws:
- What is a member was added (10). An element whose last write, begun after every other of it had
  ended, was an add is a member, unless a deletion may have ended the lifetime that it was added to (3).
- What its own session alone had added before it deleted the set is no member (15).
- What its own session alone had added before it popped it is not popped by that session again (7). Removed or not, what is
  popped was added (10).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count, permutations
from random import Random

from shoal import values
from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import AlterSet, DeleteSet, PopSet
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told, outlives
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_ELEMENTS = 5


@dataclass(slots=True)
class Touched:
    """`told` is None, and the end never, where the outcome is not known."""

    session: str
    adds: bool
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


@dataclass(slots=True)
class Deletion:
    """As `Touched`."""

    session: str
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


class Sets:
    """Writes by set and element, deletions by set."""

    kinds: tuple[ActKind, ...] = ("add-to-set", "remove-from-set", "read-set", "delete-set", "pop-from-set")

    def __init__(self) -> None:
        self.touched: defaultdict[tuple[str, int], list[Touched]] = defaultdict(list)
        self.deleted: defaultdict[str, list[Deletion]] = defaultdict(list)
        self.popped: defaultdict[tuple[str, int], list[Touched]] = defaultdict(list)  # As often as it was returned.
        self.sessions = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "add-to-set": agent.add,
            "remove-from-set": agent.remove,
            "read-set": agent.read,
            "delete-set": agent.delete,
            "pop-from-set": agent.pop,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted({name for name, _ in self.touched}):
            members = await _members(session, name)
            if invented := members - self.added(name):
                found.append(Violation("10", f"set {name} holds what nobody added: {sorted(invented)}"))
            for element in sorted(self.added(name) - members):
                last = self.last(name, element)
                if last is None or last.told is None or not last.told.is_owed(losses):
                    continue
                if outlives(last.session, last.begun_s, last.told, self.deleted[name], losses):
                    found.append(Violation("3", f"{element} was added to set {name} after all else, and is no member"))
            found += [
                Violation("15", f"{element} was deleted with set {name}, and is a member")
                for element in sorted(members)
                if any(self._is_over(name, element, deletion, losses) for deletion in self.deleted[name])
            ]
        for (name, element), pops in self.popped.items():
            if any(self._is_again(name, element, first, second, losses) for first, second in permutations(pops, 2)):
                found.append(Violation("7", f"{element} of set {name} was popped twice by one session"))
        return found

    def _is_again(self, name: str, element: int, first: Touched, second: Touched, losses: Losses) -> bool:
        """Whether the second pop should not have found what the first removed."""
        adds = [each for each in self.touched[name, element] if each.adds]
        return (
            first.session == second.session
            and first.ended_s <= second.begun_s
            and first.told is not None
            and first.told.is_owed(losses)
            and all(each.session == first.session and each.ended_s <= first.begun_s for each in adds)
        )

    def _is_over(self, name: str, element: int, deletion: Deletion, losses: Losses) -> bool:
        """Whether this deletion ended the lifetime of each add of an element."""
        adds = [each for each in self.touched[name, element] if each.adds]
        return (
            deletion.told is not None
            and deletion.told.is_owed(losses)
            and all(each.session == deletion.session and each.ended_s <= deletion.begun_s for each in adds)
        )

    def added(self, name: str) -> set[int]:
        return {element for (of, element), writes in self.touched.items() if of == name and any(each.adds for each in writes)}

    def last(self, name: str, element: int) -> Touched | None:
        """The add that no removal can have seen, if there is one."""
        writes = self.touched[name, element]
        last = max(writes, key=lambda each: each.begun_s, default=None)
        others = [each for each in writes if each is not last]
        if last is None or not last.adds or any(each.ended_s >= last.begun_s for each in others):
            return None
        return last


class _Agent:
    def __init__(self, sets: Sets, bench: Bench) -> None:
        self._sets = sets
        self._bench = bench
        self._handle = bench.space.set(bench.name)
        self._session = f"{bench.client.name}/{next(sets.sessions)}"  # Another one after it let go of what it had seen.

    async def add(self, act: Act, random: Random) -> None:
        await self._alter(act, random, adds=True)

    async def remove(self, act: Act, random: Random) -> None:
        await self._alter(act, random, adds=False)

    async def read(self, act: Act, random: Random) -> None:
        try:
            members = set(await self._handle.members())
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if not members <= self._sets.added(self._bench.name):
            self._bench.violated("10", f"the set shows what nobody added: {sorted(members)}")

    async def pop(self, act: Act, random: Random) -> None:
        touched = Touched(self._session, False, _now())
        writes = [self._sets.touched[self._bench.name, element] for element in range(_ELEMENTS)]  # It may remove any of them.
        for each in writes:
            each.append(touched)
        popped: list[int] = []

        async def send() -> None:
            popped[:] = await self._handle.pop(random.choice((1, 2)), durability=act.durability)
            touched.told = self._bench.told(act.durability)

        try:
            left_once = await self._bench.send(act, random, send, of=PopSet)
        except ShoalError as error:
            if error.written == "no" and not act.repeat:
                for each in writes:
                    each.remove(touched)
            self._bench.refused(error)
            raise
        if left_once:
            touched.ended_s = _now()
            for element, each in enumerate(writes):
                if element not in popped:
                    each.remove(touched)
        for element in popped:
            if element not in self._sets.added(self._bench.name):
                self._bench.violated("10", f"{element} was popped, and never added")
            self._sets.popped[self._bench.name, element].append(touched)
        self._bench.did(f"pop {popped}")

    async def delete(self, act: Act, random: Random) -> None:
        deletion = Deletion(self._session, _now())
        self._sets.deleted[self._bench.name].append(deletion)

        async def send() -> None:
            await self._handle.delete(durability=act.durability)
            deletion.told = self._bench.told(act.durability)

        try:
            left_once = await self._bench.send(act, random, send, of=DeleteSet)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        deletion.ended_s = _now() if left_once else float("inf")
        self._bench.did("delete")

    async def _alter(self, act: Act, random: Random, *, adds: bool) -> None:
        element = random.randrange(_ELEMENTS)
        touched = Touched(self._session, adds, _now())
        writes = self._sets.touched[self._bench.name, element]
        writes.append(touched)

        async def send() -> None:
            await (self._handle.add if adds else self._handle.remove)(element, durability=act.durability)
            touched.told = self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, send, of=AlterSet)
        except ShoalError as error:
            if error.written == "no" and not act.repeat:
                writes.remove(touched)
            self._bench.refused(error)
            raise
        touched.ended_s = float("inf") if act.repeat else _now()
        self._bench.did(f"{'add' if adds else 'remove'} {element}")


async def _members(session: Session, name: str) -> set[int]:
    members: set[int] = set()
    after, more = b"", True
    while more:
        page = await session.call(requests.ReadSet(SPACE, name, after))
        members |= {values.decode(member) for member in page.members}
        after, more = (page.members or [after])[-1], page.more
    return members


def _now() -> float:
    return asyncio.get_running_loop().time()
