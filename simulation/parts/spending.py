"""Budgets that agents have granted, and spend.

Laws (invariant 17: a budget is never overspent):
- What was spent, as far as the losses spare it, is at most what was granted.
- Each node shows what was granted and spent, each once; what is left is what nobody has drawn, and what the accounts have
  rights to. Unless disks may be lost none of these is ever below 0.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from shoal.errors import BudgetExhausted, NoQuorum, RightsElsewhere, ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import Grant, Spend, Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

OVERSPENT = "17"


@dataclass(slots=True)
class Paid:
    """A grant or a spend; `told` is None where the outcome is not known."""

    amount: int
    told: Told | None = None
    begun_s: float = 0.0


class Budgets:
    """All by budget."""

    kinds: tuple[ActKind, ...] = ("spend", "grant", "draw-rights", "release-rights")

    def __init__(self) -> None:
        self.granted: defaultdict[str, list[Paid]] = defaultdict(list)
        self.spent: defaultdict[str, list[Paid]] = defaultdict(list)
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = Agent(self, bench)
        return {
            "spend": agent.spend,
            "grant": agent.grant,
            "draw-rights": agent.draw,
            "release-rights": agent.release,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.granted.keys() | self.spent.keys()):
            shown = await session.call(requests.ReadBudget(SPACE, name))
            found += [Violation(OVERSPENT, f"budget {name}: {why}") for why in self._wrong(name, shown, losses)]
        return found

    def _wrong(self, name: str, shown: requests.BudgetState, losses: Losses) -> list[str]:
        granted, spent = self.granted[name], self.spent[name]
        rights = [holder.rights for holder in shown.holders]
        wrong: list[str] = []
        if _owed(spent, losses) > _all(granted):
            wrong.append(f"{_owed(spent, losses)} were spent of {_all(granted)}")
        for what, value, paid in (("granted", shown.granted, granted), ("spent", shown.spent, spent)):
            if not _owed(paid, losses) <= value <= _all(paid):
                wrong.append(f"{value} are shown as {what}, and {_owed(paid, losses)} to {_all(paid)} were")
        if shown.pool + sum(rights) != shown.remaining or shown.granted - shown.spent != shown.remaining:
            wrong.append(f"its accounts do not add up: {shown}")
        if not losses.of_disks and min([shown.remaining, shown.pool, *rights]) < 0:
            wrong.append(f"an account is below 0: {shown}")
        return wrong


class Agent:
    def __init__(self, budgets: Budgets, bench: Bench) -> None:
        self._budgets = budgets
        self._bench = bench
        self._handle = bench.space.budget(bench.name)

    async def grant(self, act: Act, random: Random) -> None:
        amount, key = random.randint(5, 30), self._key(random)

        async def send() -> None:
            await self._handle.grant(amount, key=key, durability=act.durability)

        await self._pay(act, random, self._budgets.granted[self._bench.name], Paid(amount), send, Grant)

    async def spend(self, act: Act, random: Random) -> None:
        if not self._budgets.granted[self._bench.name]:
            await self.grant(act, random)
        amount, key = random.randint(1, 12), self._key(random)

        async def send() -> None:
            await self._handle.spend(amount, key=key, durability=act.durability)

        await self._pay(act, random, self._budgets.spent[self._bench.name], Paid(amount), send, Spend)

    async def draw(self, act: Act, random: Random) -> None:
        await self._move(lambda: self._handle.draw(random.randint(1, 20)))

    async def release(self, act: Act, random: Random) -> None:
        await self._move(lambda: self._handle.release(random.randint(1, 20), durability=act.durability))

    async def _move(self, move: Callable[[], Awaitable[int]]) -> None:
        try:
            await move()
        except NoQuorum:
            return
        except ShoalError as error:
            self._bench.refused(error)
            raise

    async def _pay(
        self, act: Act, random: Random, paid: list[Paid], mine: Paid, send: Callable[[], Awaitable[None]], of: type[Write[Any]]
    ) -> None:
        mine.begun_s = asyncio.get_running_loop().time()
        paid.append(mine)

        async def sent() -> None:
            await send()
            mine.told = self._bench.told("local" if of is Spend and act.durability == "memory" else act.durability)

        try:
            await self._bench.send(act, random, sent, of=of)
        except ShoalError as error:
            if error.written == "no" and not act.repeat:
                paid.remove(mine)
            if isinstance(error, BudgetExhausted | RightsElsewhere):
                return
            self._bench.refused(error)
            raise
        self._bench.did(f"{of.__name__} {mine.amount}")

    def _key(self, random: Random) -> str | None:
        return f"pay-{next(self._budgets.numbers)}" if random.random() < 0.4 else None


def _owed(paid: list[Paid], losses: Losses) -> int:
    return sum(each.amount for each in paid if each.told is not None and each.told.is_owed(losses))


def _all(paid: list[Paid]) -> int:
    return sum(each.amount for each in paid)
