"""Objects that are written once and never read: what a disk alters of them (`AlterRow`) only a scrub can notice.

Law: nothing builds on them, so that an altered row makes nothing else wrong. That it is noticed and mended
is judged with the rows of all nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from itertools import count
from random import Random
from typing import Any

from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, name_of
from simulation.plan import Act, ActKind

FAMILY = "evidence"


class Evidence:
    kinds: tuple[ActKind, ...] = ("write-evidence",)

    def __init__(self) -> None:
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        return {"write-evidence": _Agent(self, bench).write}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        return []


class _Agent:
    def __init__(self, evidence: Evidence, bench: Bench) -> None:
        self._evidence = evidence
        self._bench = bench

    async def write(self, act: Act, random: Random) -> None:
        name = name_of(FAMILY, f"{self._bench.name}-{next(self._evidence.numbers)}")
        space, durability = self._bench.space, act.durability
        lines = [f"line {number} of {name} " * 8 for number in range(random.choice((1, 200)))]

        async def save() -> None:
            await space.thread(name).save({"lines": lines, "number": 1}, durability=durability)

        async def append() -> None:
            await space.thread(name).journal.append({"lines": lines}, durability=durability)

        async def add() -> None:
            await space.counter(name).add(1, durability=durability)

        async def assign() -> None:
            await space.register(name).set(lines, durability=durability)

        async def include() -> None:
            await space.set(name).add(lines[0], durability=durability)

        writes: list[tuple[Callable[[], Awaitable[None]], type[Write[Any]]]] = [
            (save, requests.Save),
            (append, requests.Append),
            (add, requests.Add),
            (assign, requests.Assign),
            (include, requests.AlterSet),
        ]
        write, of = random.choice(writes)
        try:
            await self._bench.send(act, random, write, of=of)
        except ShoalError as error:
            self._bench.refused(error)
            raise
