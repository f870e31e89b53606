"""Look for the plan that finds a planted bug.

Laws:
- A bug is found by a plan which breaks an invariant that the mutant names, and which
  the sound program passes: the check is neither blind nor raising false alarms.
- Plans are drawn from seeds and run in the order of these, but for one thing: if a mutant
  names composites, the plans that have one of them are run first.
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

SHRINKING_RUNS_MAX = 300

EVENTS_MAX = 10
"""A shrunken plan of more is hard to understand."""

MORE_SEEDS = 40
"""So many are tried for one that shrinks better."""


class Found(NamedTuple):
    seed: int  # The first of those run that found it.
    broken: frozenset[str]  # The invariants, by any number.
    plan: Plan  # As small as it could be made, from that seed or one of the next.

    @property
    def events(self) -> int:
        return len(in_order(self.plan))


class Hunt(NamedTuple):
    """What came of looking for one mutant."""

    mutant: Mutant
    found: Found | None
    seeds: int  # That were run.
    hunting_s: float  # Real time until it was found.
    otherwise: frozenset[str]  # What was broken on the way that the mutant does not name.


def hunt(mutant: Mutant, seeds: Sequence[int]) -> Hunt:
    """Draw a plan from each seed until one finds the mutant; if it stays large, look for one that shrinks better."""
    order = in_turn(mutant, seeds)
    hunted = _hunt(mutant, order)
    return hunted if hunted.found is None or hunted.found.events <= EVENTS_MAX else _made_smaller(hunted, order)


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


def _hunt(mutant: Mutant, seeds: Iterator[int]) -> Hunt:
    began_s = time.perf_counter()
    otherwise: set[str] = set()
    count = 0
    for count, seed in enumerate(seeds, 1):
        plan = draw(seed, profile=mutant.profile)
        broken = execute(plan, patches=(mutant.planted,)).broken
        otherwise |= broken - set(mutant.invariants)
        if broken & set(mutant.invariants) and not execute(plan).broken:
            hunting_s = time.perf_counter() - began_s
            return Hunt(mutant, Found(seed, broken, _smallest(mutant, plan)), count, hunting_s, frozenset(otherwise))
    return Hunt(mutant, None, count, time.perf_counter() - began_s, frozenset(otherwise))


def _made_smaller(hunted: Hunt, seeds: Iterator[int]) -> Hunt:
    mutant, best = hunted.mutant, hunted.found
    assert best is not None
    for seed in islice(seeds, MORE_SEEDS):
        if best.events <= EVENTS_MAX:
            break
        if finds(mutant, plan := draw(seed, profile=mutant.profile)):
            best = min(best, best._replace(plan=_smallest(mutant, plan)), key=lambda found: found.events)
    return hunted._replace(found=best)


def _smallest(mutant: Mutant, plan: Plan) -> Plan:
    return shrink(plan, lambda smaller: finds(mutant, smaller), runs_max=SHRINKING_RUNS_MAX)


def finds(mutant: Mutant, plan: Plan) -> bool:
    """Whether a plan breaks what the mutant names, and nothing without it."""
    broken = execute(plan, patches=(mutant.planted,)).broken
    return not broken.isdisjoint(mutant.invariants) and not execute(plan).broken
