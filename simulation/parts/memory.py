"""Memory items that agents put, delete and look up, some of them with a time to live.

Laws:
- A value that was put after every other write of its item had ended is shown, or the
  latest of those put at once beside it (3). What is shown was put there (10).

"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any, NamedTuple

from shoal import values
from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import DeleteItem, PutItem, Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_KEYS = 4
_TTL_S = (1, 5)


class Place(NamedTuple):
    items: str
    key: str


@dataclass(slots=True)
class Written:
    """`number` is 0 for a deletion; `told` is None, and the end never, where the outcome is not known."""

    number: int
    expires: bool
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


class Items:
    kinds: tuple[ActKind, ...] = ("put-item", "get-item", "delete-item")

    def __init__(self) -> None:
        self.written: defaultdict[Place, list[Written]] = defaultdict(list)
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"put-item": agent.put, "get-item": agent.get, "delete-item": agent.delete}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for place in sorted(self.written):
            reply = await session.call(requests.GetItems(SPACE, place.items, [([], place.key)]))
            item = reply.items[0]
            packed = [] if item is None else [item.value, *(sibling.value for sibling in item.siblings)]
            numbers = [values.decode(each) for each in packed]
            if not self.known(place).issuperset(numbers):
                found.append(Violation("10", f"item {place.key} of {place.items} shows what nobody put: {numbers}"))
            last = self.last(place)
            if last is not None and last.told is not None and last.told.is_owed(losses) and last.number not in numbers:
                found.append(Violation("3", f"item {place.key} of {place.items} was {last.number}, and shows {numbers}"))
        return found

    def known(self, place: Place) -> set[int]:
        return {written.number for written in self.written[place] if written.number}

    def last(self, place: Place) -> Written | None:
        """The put that nothing can have replaced, if there is one."""
        last = max(self.written[place], key=lambda each: each.begun_s, default=None)
        others = [each for each in self.written[place] if each is not last]
        if last is None or not last.number or last.expires or any(each.ended_s >= last.begun_s for each in others):
            return None
        return last


class _Agent:
    def __init__(self, items: Items, bench: Bench) -> None:
        self._items = items
        self._bench = bench
        self._handle = bench.space.items

    async def put(self, act: Act, random: Random) -> None:
        place, number = self._place(random), next(self._items.numbers)
        ttl = timedelta(seconds=random.choice(_TTL_S)) if random.random() < 0.3 else None

        async def send() -> None:
            await self._handle.put((place.items,), place.key, number, ttl=ttl, durability=act.durability)

        await self._write(act, random, place, Written(number, ttl is not None, _now()), send, PutItem)

    async def delete(self, act: Act, random: Random) -> None:
        place = self._place(random)

        async def send() -> None:
            await self._handle.delete((place.items,), place.key, durability=act.durability)

        await self._write(act, random, place, Written(0, False, _now()), send, DeleteItem)

    async def get(self, act: Act, random: Random) -> None:
        place = self._place(random)
        try:
            item = await self._handle.get((place.items,), place.key)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        numbers = [] if item is None else [item.value, *item.siblings]
        if not self._items.known(place).issuperset(numbers):
            self._bench.violated("10", f"item {place.key} shows what nobody put: {numbers}")

    async def _write(
        self,
        act: Act,
        random: Random,
        place: Place,
        written: Written,
        send: Callable[[], Awaitable[None]],
        of: type[Write[Any]],
    ) -> None:
        self._items.written[place].append(written)

        async def sent() -> None:
            await send()
            written.told = self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, sent, of=of)
        except ShoalError as error:
            if error.written == "no" and not act.repeat:
                self._items.written[place].remove(written)
            self._bench.refused(error)
            raise
        written.ended_s = float("inf") if act.repeat else _now()
        self._bench.did(f"{of.__name__} {written.number} as {place.key}")

    def _place(self, random: Random) -> Place:
        return Place(self._bench.name, f"item-{random.randrange(_KEYS)}")


def _now() -> float:
    return asyncio.get_running_loop().time()
