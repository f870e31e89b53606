"""Maps whose keys agents set, add to and remove.

Laws:
- What a key's register shows was set (10). A value that was set after every other write of its key had
  ended is shown (3).
- A key's counter counts each add at most once (6), and each that was acknowledged if nobody removes the key (3). Each add adds
  another power of four, as `simulation.judging.amounts` says.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from shoal import values
from shoal.errors import ShoalError, TooLarge
from shoal.protocol import requests
from shoal.protocol.requests import AddEntry, AlterEntry, PutEntry, RemoveEntry, Write
from shoal.protocol.session import Session
from simulation.judging.amounts import ADDS_MAX, counted, nth_amount
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_KEYS = "xyz"


@dataclass(slots=True)
class Written:
    """`number` is 0 for what sets no register; `told` is None, and the end never, where the outcome is not known."""

    number: int
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None
    amount: int = 0
    removes: bool = False


class Maps:
    """All by map and key."""

    kinds: tuple[ActKind, ...] = ("put-entry", "add-entry", "alter-entry", "remove-entry", "read-map")

    def __init__(self) -> None:
        self.written: defaultdict[tuple[str, str], list[Written]] = defaultdict(list)
        self.numbers = count(1)
        self.adds: Counter[tuple[str, str]] = Counter()

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "put-entry": agent.put,
            "add-entry": agent.add,
            "alter-entry": agent.alter,
            "remove-entry": agent.remove,
            "read-map": agent.read,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name, key in sorted(self.written):
            reply = await session.call(requests.ReadMap(SPACE, name, [key]))
            numbers = [values.decode(sibling.value) for entry in reply.entries for sibling in entry.siblings]
            if not self.known(name, key).issuperset(numbers):
                found.append(Violation("10", f"key {key} of map {name} shows what nobody set: {numbers}"))
            last = self.last(name, key)
            if last is not None and last.told is not None and last.told.is_owed(losses) and last.number not in numbers:
                found.append(Violation("3", f"key {key} of map {name} was {last.number}, and shows {numbers}"))
            counts = {amount: times for entry in reply.entries for amount, times in counted(entry.count or 0)}
            found += self.miscounted(name, key, counts)
            if not any(written.removes for written in self.written[name, key]):
                owed = {each.amount for each in self.written[name, key] if each.told and each.told.is_owed(losses)} - {0}
                found += [
                    Violation("3", f"key {key} of map {name} does not count {amount}")
                    for amount in sorted(owed - counts.keys())
                ]
        return found

    def next_amount(self, name: str, key: str) -> int:
        """What the next add to a key adds; 0 if it would not fit."""
        nth = self.adds[name, key]
        self.adds[name, key] += 1
        return nth_amount(nth) if nth < ADDS_MAX else 0

    def miscounted(self, name: str, key: str, counts: Mapping[int, int]) -> list[Violation]:
        """What a key's counter counts too often, or was never added."""
        added = {written.amount for written in self.written[name, key]}
        return [
            Violation("6", f"key {key} of map {name} counts {amount} {times} times")
            for amount, times in counts.items()
            if times > 1 or amount not in added
        ]

    def known(self, name: str, key: str) -> set[int]:
        return {written.number for written in self.written[name, key] if written.number}

    def last(self, name: str, key: str) -> Written | None:
        """The value that nothing can have replaced, if there is one."""
        last = max(self.written[name, key], key=lambda each: each.begun_s, default=None)
        others = [each for each in self.written[name, key] if each is not last]
        if last is None or not last.number or any(each.ended_s >= last.begun_s for each in others):
            return None
        return last


class _Agent:
    def __init__(self, maps: Maps, bench: Bench) -> None:
        self._maps = maps
        self._bench = bench
        self._handle = bench.space.map(bench.name)

    async def put(self, act: Act, random: Random) -> None:
        key, number = random.choice(_KEYS), next(self._maps.numbers)

        async def send() -> None:
            await self._handle.set(key, number, durability=act.durability)

        await self._write(act, random, key, Written(number, _now()), send, PutEntry)

    async def add(self, act: Act, random: Random) -> None:
        key = random.choice(_KEYS)
        amount = self._maps.next_amount(self._bench.name, key)

        async def send() -> None:
            await self._handle.add(key, amount, durability=act.durability)

        await self._write(act, random, key, Written(0, _now(), amount=amount), send, AddEntry)

    async def alter(self, act: Act, random: Random) -> None:
        key, element, includes = random.choice(_KEYS), random.randrange(3), random.random() < 0.6

        async def send() -> None:
            await (self._handle.include if includes else self._handle.exclude)(key, element, durability=act.durability)

        try:
            await self._write(act, random, key, Written(0, _now()), send, AlterEntry)
        except TooLarge:
            self._bench.did(f"find the set of {key} full,")

    async def remove(self, act: Act, random: Random) -> None:
        key = random.choice(_KEYS)

        async def send() -> None:
            await self._handle.remove(key, durability=act.durability)

        await self._write(act, random, key, Written(0, _now(), removes=True), send, RemoveEntry)

    async def read(self, act: Act, random: Random) -> None:
        try:
            entries = await self._handle.entries()
        except ShoalError as error:
            self._bench.refused(error)
            raise
        for entry in entries:
            if not self._maps.known(self._bench.name, entry.key).issuperset(entry.siblings):
                self._bench.violated("10", f"key {entry.key} shows what nobody set: {entry.siblings}")

    async def _write(
        self,
        act: Act,
        random: Random,
        key: str,
        written: Written,
        send: Callable[[], Awaitable[None]],
        of: type[Write[Any]],
    ) -> None:
        writes = self._maps.written[self._bench.name, key]
        writes.append(written)

        async def sent() -> None:
            await send()
            written.told = self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, sent, of=of)
        except ShoalError as error:
            if error.written == "no" and not act.repeat:
                writes.remove(written)
            if not isinstance(error, TooLarge):
                self._bench.refused(error)
            raise
        written.ended_s = float("inf") if act.repeat else _now()
        self._bench.did(f"{of.__name__} {key}")


def _now() -> float:
    return asyncio.get_running_loop().time()
