"""Lists that agents insert into, move in, remove from and delete.

Laws:
- What is shown was inserted (10), each value once, however often it was moved or its insert was sent (6).
- A value of an insert that was acknowledged is shown unless somebody may have removed it, or deleted the list (3).
- What its own session had inserted before it deleted the list is not shown (15).
- Two values of one insert that nobody moved are shown in the order of the insert (4).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from shoal import values
from shoal.errors import ShoalError
from shoal.kinds.list.requests import DeleteList, InsertElements, MoveElement, ReadList, RemoveElements
from shoal.protocol.requests import Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told, outlives
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE


@dataclass(slots=True)
class Inserted:
    """`told` is None, and the end never, where the outcome is not known."""

    session: str
    numbers: tuple[int, int]
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


@dataclass(slots=True)
class Deletion:
    """As `Inserted`."""

    session: str
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


class Lists:
    """Inserts by list; of each list the numbers that somebody moved, or tried to remove."""

    kinds: tuple[ActKind, ...] = ("insert-in-list", "move-in-list", "remove-from-list", "read-list", "delete-list")

    def __init__(self) -> None:
        self.deleted: defaultdict[str, list[Deletion]] = defaultdict(list)
        self.sessions = count(1)
        self.inserted: defaultdict[str, list[Inserted]] = defaultdict(list)
        self.moved: defaultdict[str, set[int]] = defaultdict(set)
        self.removed: defaultdict[str, set[int]] = defaultdict(set)
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "insert-in-list": agent.insert,
            "move-in-list": agent.move,
            "remove-from-list": agent.remove,
            "read-list": agent.read,
            "delete-list": agent.delete,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.inserted):
            shown = await _shown(session, name)
            found += [Violation(invariant, text) for invariant, text in self.wrong(name, shown)]
            for insert in self.inserted[name]:
                found += [
                    Violation("15", f"{number} was deleted with list {name}, and is there")
                    for number in insert.numbers
                    if number in shown and any(_is_over(insert, deletion, losses) for deletion in self.deleted[name])
                ]
                told = insert.told
                if told is None or not told.is_owed(losses):
                    continue
                if outlives(insert.session, insert.begun_s, told, self.deleted[name], losses):
                    found += [
                        Violation("3", f"{number} was inserted into list {name}, and is not there")
                        for number in insert.numbers
                        if number not in shown and number not in self.removed[name]
                    ]
        return found

    def wrong(self, name: str, shown: list[int]) -> list[tuple[str, str]]:
        """What no list may show, whatever was lost."""
        known = {number for insert in self.inserted[name] for number in insert.numbers}
        found = [("10", f"list {name} shows {number}, which nobody inserted") for number in shown if number not in known]
        found += [("6", f"list {name} shows {number} more than once") for number, times in Counter(shown).items() if times > 1]
        for first, second in (insert.numbers for insert in self.inserted[name]):
            is_kept = {first, second} <= set(shown) and not {first, second} & self.moved[name]
            if is_kept and shown.index(second) < shown.index(first):
                found.append(("4", f"list {name} shows {second} before {first}"))
        return found


def _is_over(insert: Inserted, deletion: Deletion, losses: Losses) -> bool:
    """Whether this deletion ended the lifetime that the insert belongs to."""
    is_sure = deletion.told is not None and deletion.told.is_owed(losses)
    return is_sure and insert.session == deletion.session and insert.ended_s <= deletion.begun_s


class _Agent:
    def __init__(self, lists: Lists, bench: Bench) -> None:
        self._lists = lists
        self._bench = bench
        self._handle = bench.space.list(bench.name)
        self._session = f"{bench.client.name}/{next(lists.sessions)}"  # Another one after it let go of what it had seen.

    async def insert(self, act: Act, random: Random) -> None:
        first = next(self._lists.numbers) * 2
        inserted = Inserted(self._session, (first, first + 1), _now())
        self._lists.inserted[self._bench.name].append(inserted)
        place = random.choice((0, 1, 3, -1, None))

        async def send() -> None:
            await self._handle.insert(*inserted.numbers, index=place, durability=act.durability)
            inserted.told = self._bench.told(act.durability)

        if await self._sent(act, random, send, InsertElements):
            inserted.ended_s = _now()
        self._bench.did(f"insert {inserted.numbers} at {place}")

    async def move(self, act: Act, random: Random) -> None:
        chosen = await self._chosen(random)
        if chosen is None:
            return
        id, number = chosen
        self._lists.moved[self._bench.name].add(number)
        place = random.choice((0, 2, -1))

        async def send() -> None:
            await self._handle.move(id, index=place, durability=act.durability)

        await self._sent(act, random, send, MoveElement)
        self._bench.did(f"move {number} to {place}")

    async def remove(self, act: Act, random: Random) -> None:
        chosen = await self._chosen(random)
        if chosen is None:
            return
        id, number = chosen
        self._lists.removed[self._bench.name].add(number)

        async def send() -> None:
            await self._handle.remove(id, durability=act.durability)

        await self._sent(act, random, send, RemoveElements)
        self._bench.did(f"remove {number}")

    async def delete(self, act: Act, random: Random) -> None:
        deletion = Deletion(self._session, _now())
        self._lists.deleted[self._bench.name].append(deletion)

        async def send() -> None:
            await self._handle.delete(durability=act.durability)
            deletion.told = self._bench.told(act.durability)

        if await self._sent(act, random, send, DeleteList):
            deletion.ended_s = _now()
        self._bench.did("delete")

    async def read(self, act: Act, random: Random) -> None:
        await self._chosen(random)

    async def _chosen(self, random: Random) -> tuple[str, int] | None:
        """An element that is shown, and its number."""
        try:
            items = await self._handle.slice()
        except ShoalError as error:
            self._bench.refused(error)
            raise
        for invariant, text in self._lists.wrong(self._bench.name, [item.value for item in items]):
            self._bench.violated(invariant, text)
        chosen = random.choice(items[:4]) if items else None  # Few, so that two nodes move the same one.
        return None if chosen is None else (chosen.id, chosen.value)

    async def _sent(self, act: Act, random: Random, send: Callable[[], Awaitable[None]], of: type[Write[Any]]) -> bool:
        """Send a write; whether it left once, so that it is over."""
        try:
            return await self._bench.send(act, random, send, of=of)
        except ShoalError as error:
            self._bench.refused(error)
            raise


async def _shown(session: Session, name: str) -> list[int]:
    shown: list[int] = []
    after, more = b"", True
    while more:
        page = await session.call(ReadList(SPACE, name, after=after))
        shown += [values.decode(element.value) for element in page.elements]
        after, more = page.cursor, page.more
    return shown


def _now() -> float:
    return asyncio.get_running_loop().time()
