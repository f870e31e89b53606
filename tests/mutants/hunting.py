"""Look for the plan that finds a planted bug.

Laws:
- A bug is found by a plan which breaks an invariant that the mutant names, and which
  the sound program passes: the check is neither blind nor raising false alarms.
- Plans are drawn from seeds and run in the order of these, but for one thing: if a mutant
  names composites, the plans that have one of them are run first.
- `hunt_near` draws none: it runs the neighbours of a plan that found the bug before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from simulation.drawing import composites_of, draw
from simulation.execution import execute, in_order
from simulation.plan import Plan
from simulation.shrinking import shrink
from tests.mutants.mutant import Mutant
from tests.mutants.neighbours import neighbours

SHRINKING_RUNS_MAX = 300

EVENTS_MAX = 10
"""A shrunken plan of more is hard to understand."""

MORE_SEEDS = 40
"""So many are tried for one that shrinks better."""


class Found(NamedTuple):
    by: str  # The first plan that found it, as "seed 7" or "neighbour 7".
    broken: frozenset[str]  # The invariants, by any number.
    plan: Plan  # From a seed: as small as it, or one of the next, could be made.

    @property
    def events(self) -> int:
        return len(in_order(self.plan))


class Hunt(NamedTuple):
    """What came of looking for one mutant."""

    mutant: Mutant
    found: Found | None
    plans: int  # That were run.
    hunting_s: float  # Real time until it was found.
    otherwise: frozenset[str]  # What was broken on the way that the mutant does not name.


def hunt(mutant: Mutant, seeds: Sequence[int]) -> Hunt:
    """Draw a plan from each seed until one finds the mutant; if it stays large, look for one that shrinks better."""
    order = in_turn(mutant, seeds)
    hunted = _hunt(mutant, ((f"seed {seed}", draw(seed, profile=mutant.profile)) for seed in order))
    if (found := hunted.found) is None:
        return hunted
    found = found._replace(plan=_smallest(mutant, found.plan))
    return hunted._replace(found=found if found.events <= EVENTS_MAX else _made_smaller(mutant, found, order))


def hunt_near(mutant: Mutant, plan: Plan, count: int) -> Hunt:
    """Run neighbours of a plan, itself first, until one finds the mutant."""
    return _hunt(mutant, ((f"neighbour {number}", near) for number, near in enumerate(neighbours(plan, count))))


def in_turn(mutant: Mutant, seeds: Sequence[int]) -> Iterator[int]:
    """The seeds, and before them those whose plans have one of the mutant's composites."""
    chosen: set[int] = set()
    if mutant.composites:
        for seed in seeds:
            has_one = composites_of(seed, profile=mutant.profile) & mutant.composites
            if has_one and draw(seed, profile=mutant.profile).nodes >= mutant.nodes_min:
                chosen.add(seed)
                yield seed
    yield from (seed for seed in seeds if seed not in chosen)


def _hunt(mutant: Mutant, plans: Iterator[tuple[str, Plan]]) -> Hunt:
    began_s = time.perf_counter()
    otherwise: set[str] = set()
    count = 0
    for count, (name, plan) in enumerate(plans, 1):
        broken = execute(plan, patches=(mutant.planted,)).broken
        otherwise |= broken - set(mutant.invariants)
        if broken & set(mutant.invariants) and not execute(plan).broken:
            hunting_s = time.perf_counter() - began_s
            return Hunt(mutant, Found(name, broken, plan), count, hunting_s, frozenset(otherwise))
    return Hunt(mutant, None, count, time.perf_counter() - began_s, frozenset(otherwise))


def _made_smaller(mutant: Mutant, best: Found, seeds: Iterator[int]) -> Found:
    for seed in islice(seeds, MORE_SEEDS):
        if best.events <= EVENTS_MAX:
            break
        if finds(mutant, plan := draw(seed, profile=mutant.profile)):
            best = min(best, best._replace(plan=_smallest(mutant, plan)), key=lambda found: found.events)
    return best


def _smallest(mutant: Mutant, plan: Plan) -> Plan:
    return shrink(plan, lambda smaller: finds(mutant, smaller), runs_max=SHRINKING_RUNS_MAX)


def finds(mutant: Mutant, plan: Plan) -> bool:
    """Whether a plan breaks what the mutant names, and nothing without it."""
    broken = execute(plan, patches=(mutant.planted,)).broken
    return not broken.isdisjoint(mutant.invariants) and not execute(plan).broken
