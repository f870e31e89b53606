"""Plans near a saved one: the same events a little earlier or later, by other agents, with another seed.

Laws:
- A plan and a number give one neighbour; number 0 is the plan itself.
- A neighbour has no more events than its plan, so what is understood stays understood.

A change of the program moves what chance decides. A bug that the saved plan does not find any more is mostly found by one of
some hundred neighbours, where drawing anew would take thousands of seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from simulation.plan import Act, Event, Plan

MOVED_S_MAX = 0.5
"""An event moves by so much at most: what follows it mostly still follows it."""

SEEDS = 3000
"""A neighbour's seed is one of so many."""

OneEvent = TypeVar("OneEvent", bound=Event)


def neighbours(plan: Plan, count: int) -> Iterator[Plan]:
    return (near(plan, number) for number in range(count))


def near(plan: Plan, number: int) -> Plan:
    if number == 0:
        return plan
    random = Random(number)
    seed = random.choice((plan.seed, random.randrange(SEEDS)))
    faults = sorted((_moved(fault, random) for fault in plan.faults), key=lambda event: event.at)
    acts = sorted((_by_another(_moved(act, random), plan.agents, random) for act in plan.acts), key=lambda event: event.at)
    return replace(plan, seed=seed, faults=faults, acts=acts)


def _moved(event: OneEvent, random: Random) -> OneEvent:
    if random.random() < 1 / 3:
        return event
    return replace(event, at=round(max(0.0, event.at + random.uniform(-MOVED_S_MAX, MOVED_S_MAX)), 3))


def _by_another(act: Act, agents: int, random: Random) -> Act:
    if random.random() < 1 / 4:
        act = replace(act, agent=random.randrange(agents))
    return replace(act, repeat=True) if random.random() < 1 / 8 else act
