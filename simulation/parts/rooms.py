"""Spaces of their own that agents fill, and delete as a whole or in part: all items below a label or a namespace, a budget.

Laws:
- What is shown was put there (10). What was put is shown, unless a deletion may have ended the lifetime that it was put
  into, or may have seen it (3).
- What its own session had put before it deleted is not shown (15).
- A budget is granted 1 at a time: it shows as many grants as these laws allow.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random

from shoal import values
from shoal.client.store import Space
from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told, outlives
from simulation.plan import Act, ActKind

_LABEL, _BELOW, _BESIDE = "memory", "user-1", "user-10"
_BUDGET = "budget"
_SLOTS = ("set", "map", _BELOW, _BESIDE, _BUDGET)


@dataclass(slots=True)
class Put:
    """`told` is None where the outcome is not known; the end is never if the request may have left more than once."""

    slot: str
    session: str
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


@dataclass(slots=True)
class Deletion:
    """As `Put`, of all these slots."""

    slots: Collection[str]
    session: str
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


class Rooms:
    """What was put, by room and number, and deletions by room."""

    kinds: tuple[ActKind, ...] = ("put-in-room", "look-at-room", "delete-room", "delete-label", "delete-below", "delete-budget")

    def __init__(self) -> None:
        self.puts: defaultdict[str, dict[int, Put]] = defaultdict(dict)
        self.deleted: defaultdict[str, list[Deletion]] = defaultdict(list)
        self.numbers = count(1)
        self.sessions = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "put-in-room": agent.put,
            "look-at-room": agent.look,
            "delete-room": agent.delete_room,
            "delete-label": agent.delete_label,
            "delete-below": agent.delete_below,
            "delete-budget": agent.delete_budget,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.puts):
            shown = await _shown(session, name)
            for slot in _SLOTS:
                found += [Violation(law, f"room {name}, {slot}: {why}") for law, why in self._wrong(name, slot, shown, losses)]
        return found

    def _wrong(self, name: str, slot: str, shown: Mapping[str, set[int]], losses: Losses) -> list[tuple[str, str]]:
        puts = {number: put for number, put in self.puts[name].items() if put.slot == slot}
        deletions = [deletion for deletion in self.deleted[name] if slot in deletion.slots]
        gone = {number for number, put in puts.items() if any(_ends(each, put, losses) for each in deletions)}
        kept = {
            number
            for number, put in puts.items()
            if put.told is not None
            and put.told.is_owed(losses)
            and outlives(put.session, put.begun_s, put.told, deletions, losses)
        }
        if slot == _BUDGET:
            granted = len(shown[slot])
            least, most = len(kept), len(puts.keys() - gone)
            wrong = [("15", f"{granted} are granted, {most} at most since it was deleted")] if granted > most else []
            return wrong + ([("3", f"{granted} are granted, and {least} at least were")] if granted < least else [])
        invented, back, lost = shown[slot] - puts.keys(), shown[slot] & gone, kept - shown[slot]
        laws = (("10", "nobody put", invented), ("15", "were deleted, and are shown:", back), ("3", "are not shown:", lost))
        return [(law, f"{what} {sorted(numbers)}") for law, what, numbers in laws if numbers]


def _ends(deletion: Deletion, put: Put, losses: Losses) -> bool:
    """Whether a deletion knew of what was put."""
    is_sure = deletion.told is not None and deletion.told.is_owed(losses)
    return is_sure and put.session == deletion.session and put.ended_s <= deletion.begun_s


class _Agent:
    def __init__(self, rooms: Rooms, bench: Bench) -> None:
        self._rooms = rooms
        self._bench = bench
        self._space = Space(bench.space._connection, bench.name)
        self._session = f"{bench.client.name}/{next(rooms.sessions)}"  # Another one after it let go of what it had seen.

    async def put(self, act: Act, random: Random) -> None:
        slot, number = random.choice(_SLOTS), next(self._rooms.numbers)
        put = self._rooms.puts[self._bench.name][number] = Put(slot, self._session, _now())
        try:
            await self._send(put, act.durability, lambda: self._write(slot, number, act.durability))
        except ShoalError as error:
            if error.written == "no":
                del self._rooms.puts[self._bench.name][number]
            raise
        self._bench.did(f"put {number} into the {slot}")

    async def look(self, act: Act, random: Random) -> None:
        try:
            shown = await _shown(self._bench.space._connection.session, self._bench.name)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        puts = self._rooms.puts[self._bench.name]
        for slot in _SLOTS:
            numbers = {number for number, put in puts.items() if put.slot == slot}
            if len(shown[slot]) > len(numbers) or (slot != _BUDGET and not shown[slot] <= numbers):
                self._bench.violated("10", f"the {slot} shows what nobody put: {sorted(shown[slot])}")

    async def delete_room(self, act: Act, random: Random) -> None:
        await self._delete(act, _SLOTS, lambda: self._space.delete(durability=act.durability))

    async def delete_label(self, act: Act, random: Random) -> None:
        await self._delete(act, (_BELOW, _BESIDE), lambda: self._space.items.delete_all((_LABEL,), durability=act.durability))

    async def delete_below(self, act: Act, random: Random) -> None:
        await self._delete(act, (_BELOW,), lambda: self._space.items.delete_all((_LABEL, _BELOW), durability=act.durability))

    async def delete_budget(self, act: Act, random: Random) -> None:
        await self._delete(act, (_BUDGET,), lambda: self._space.budget(_BUDGET).delete(durability=act.durability))

    async def _delete(self, act: Act, slots: Collection[str], request: Callable[[], Awaitable[object]]) -> None:
        deletion = Deletion(slots, self._session, _now())
        self._rooms.deleted[self._bench.name].append(deletion)
        await self._send(deletion, act.durability, request)
        self._bench.did(f"delete {', '.join(slots)}")

    async def _send(self, made: Put | Deletion, durability: Durability, request: Callable[[], Awaitable[object]]) -> None:
        client = self._bench.client
        before = client.dialled - client.has_link
        try:
            await request()
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if client.dialled - before <= 1:
            made.told, made.ended_s = self._bench.told(durability), _now()

    async def _write(self, slot: str, number: int, durability: Durability) -> None:
        match slot:
            case "set":
                await self._space.set("s").add(number, durability=durability)
            case "map":
                await self._space.map("m").set(str(number), number, durability=durability)
            case "budget":
                await self._space.budget(_BUDGET).grant(1, durability=durability)
            case _:
                await self._space.items.put((_LABEL, slot), str(number), number, durability=durability)


async def _shown(session: Session, space: str) -> dict[str, set[int]]:
    """The numbers that a node shows, by slot; of a budget as many as were granted."""
    budget = await session.call(requests.ReadBudget(space, _BUDGET))
    return {
        "set": await _members(session, space),
        "map": await _entries(session, space),
        _BELOW: await _items(session, space, _BELOW),
        _BESIDE: await _items(session, space, _BESIDE),
        _BUDGET: set(range(budget.granted)),
    }


async def _members(session: Session, space: str) -> set[int]:
    found: set[int] = set()
    page = await session.call(requests.ReadSet(space, "s"))
    while True:
        found |= {values.decode(member) for member in page.members}
        if not page.more:
            return found
        page = await session.call(requests.ReadSet(space, "s", page.members[-1]))


async def _entries(session: Session, space: str) -> set[int]:
    found: set[int] = set()
    page = await session.call(requests.ReadMap(space, "m"))
    while True:
        found |= {int(entry.key) for entry in page.entries}
        if not page.more:
            return found
        page = await session.call(requests.ReadMap(space, "m", after=page.entries[-1].key))


async def _items(session: Session, space: str, label: str) -> set[int]:
    found: set[int] = set()
    page = await session.call(requests.SearchItems(space, _LABEL, [label]))
    while True:
        found |= {values.decode(item.value) for item in page.items}
        if not page.more:
            return found
        page = await session.call(requests.SearchItems(space, _LABEL, [label], after=page.cursor))


def _now() -> float:
    return asyncio.get_running_loop().time()
