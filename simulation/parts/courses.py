"""Budgets whose courses agents read while others grant and spend.

Laws:
- The last point of a course is the budget as it is; before it nothing is told that nobody had begun by then, and nothing is
  missing that its node had acknowledged by then. What was granted and spent never falls.
- What a node has told of the past it tells again: a later course has no other points of that time, and the oldest one stays.
- Where no node ends, a change is noted by every node, whoever made it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.kinds.budget import course as _course  # noqa: F401  (loaded, so that a plan can alter its bounds)
from shoal.protocol import requests
from shoal.protocol.requests import BudgetPoint
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds
from simulation.parts.spending import Agent, Budgets, Paid
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE
from simulation.world.environment import START_MS

FAMILY = "courses"
TOLD = "43"

BOUNDS: dict[str, Any] = {"course_each_s": 0.3, "course_points_max": 6, "course_step": 1}
"""Of each plan: a course of some seconds has points, and is thinned."""

_NOTED_S = 2.0  # By then the last change of each budget is noted, one at a time.
_CLOCK_S = 0.001  # Points have whole milliseconds.


class Look(NamedTuple):
    """A course as a node told it, asked and answered at these times."""

    node: str
    begun_s: float
    ended_s: float
    points: list[BudgetPoint]


class Courses(Budgets):
    """All by budget; `looks` in the order of their answers."""

    kinds: tuple[ActKind, ...] = ("spend-told", "grant-told", "read-course")

    def __init__(self) -> None:
        super().__init__()
        self.looks: defaultdict[str, list[Look]] = defaultdict(list)

    def deeds(self, bench: Bench) -> Deeds:
        agent = Agent(self, bench)

        async def read(act: Act, random: Random) -> None:
            begun_s = asyncio.get_running_loop().time()
            try:
                points = await bench.space.budget(bench.name).course()
            except ShoalError as error:
                bench.refused(error)
                raise
            self.looks[bench.name].append(Look(bench.client.at, begun_s, asyncio.get_running_loop().time(), points))
            bench.did(f"saw {len(points)} points")

        return {"spend-told": agent.spend, "grant-told": agent.grant, "read-course": read}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found = await super().broken(session, losses)
        names = sorted(self.granted.keys() | self.spent.keys())
        await asyncio.sleep(_NOTED_S if names else 0)
        for name in names:
            shown = await session.call(requests.ReadBudget(SPACE, name))
            points = (await session.call(requests.ReadBudgetCourse(SPACE, name))).points
            wrong = [*self._wrong_now(shown, points, losses), *self._wrong_then(name, losses)]
            found += [Violation(TOLD, f"the course of budget {name}: {why}") for why in wrong]
        return found

    def _wrong_now(self, shown: requests.BudgetState, points: list[BudgetPoint], losses: Losses) -> Iterator[str]:
        """Healed, and nothing is written any more."""
        now = (shown.granted, shown.spent)
        if _amounts(points[-1]) != now:
            yield f"its last point is {points[-1]}, and the budget has {now}"
        if not losses.of_lives and any(now) and (len(points) < 2 or _amounts(points[-2]) != now):
            yield f"its last change is not noted: {points}"

    def _wrong_then(self, name: str, losses: Losses) -> Iterator[str]:
        """What agents saw."""
        for look in self.looks[name]:
            yield from self._wrong_look(name, look, losses)
        by_node: defaultdict[str, list[Look]] = defaultdict(list)
        for look in self.looks[name]:
            by_node[look.node].append(look)
        for node, looks in by_node.items():
            if losses.spare("memory", node, 0.0) and not losses.of_clocks:
                for before, after in pairwise(looks):
                    if before.ended_s < after.begun_s:
                        yield from _rewritten(before, after)

    def _wrong_look(self, name: str, look: Look, losses: Losses) -> Iterator[str]:
        if not losses.of_disks:
            for before, after in pairwise(look.points):
                if after.granted < before.granted or after.spent < before.spent:
                    yield f"{look.node} told {after} after {before}"
        if losses.of_clocks:
            return
        for nth, point in enumerate(look.points):
            is_last = nth == len(look.points) - 1
            at_s = (point.at_ms - START_MS) / 1000
            since_s, until_s = (look.begun_s, look.ended_s) if is_last else (at_s - _CLOCK_S, at_s + _CLOCK_S)
            for what, value, paid in (("granted", point.granted, self.granted[name]), ("spent", point.spent, self.spent[name])):
                owed = _owed(paid, look.node, since_s, losses)
                most = sum(each.amount for each in paid if each.begun_s <= until_s)
                if not owed <= value <= most:
                    yield f"{look.node} told {value} {what} at {at_s:g} s, and {owed} to {most} were"


def _amounts(point: BudgetPoint) -> tuple[int, int]:
    return point.granted, point.spent


def _owed(paid: list[Paid], node: str, by_s: float, losses: Losses) -> int:
    """What this node had acknowledged by then."""
    told = ((each.amount, each.told) for each in paid if each.told is not None)
    return sum(amount for amount, each in told if each.node == node and each.at_s < by_s and each.is_owed(losses))


def _rewritten(before: Look, after: Look) -> Iterator[str]:
    """The last point of each is of its own time, and noted nowhere."""
    noted, later = before.points[:-1], after.points[:-1]
    if not noted:
        return
    if not later or later[0] != noted[0]:
        yield f"{after.node} told {noted[0]} as its oldest point, and later {later[:1]}"
    if added := [point for point in later if point.at_ms <= noted[-1].at_ms and point not in noted]:
        yield f"{after.node} told {added} of a time of which it had told other points"
