"""Look for the plan that finds a planted bug.

Law: a bug is found by a plan which breaks an invariant that the mutant names, and which
the sound program passes: the check is neither blind nor raising false alarms.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from shoal.testing.simulation.drawing import draw
from shoal.testing.simulation.execution import execute, in_order
from shoal.testing.simulation.plan import Plan
from shoal.testing.simulation.shrinking import shrink
from tests.mutants.mutant import Mutant

SHRINKING_RUNS_MAX = 250


class Found(NamedTuple):
    seed: int
    broken: frozenset[str]  # The invariants, by any number.
    plan: Plan  # As small as it could be made.

    @property
    def events(self) -> int:
        return len(in_order(self.plan))


class Hunt(NamedTuple):
    """What came of looking for one mutant."""

    mutant: Mutant
    found: Found | None
    seeds: int  # That were run.
    hunting_s: float  # Real time until it was found, and no longer.
    shrinking_s: float
    otherwise: frozenset[str]  # What was broken on the way that the mutant does not name.


def hunt(mutant: Mutant, seeds: Iterable[int]) -> Hunt:
    """Draw a plan from each seed until one finds the mutant."""
    began_s = time.perf_counter()
    otherwise: set[str] = set()
    count = 0
    for count, seed in enumerate(seeds, 1):
        plan = draw(seed)
        broken = execute(plan, patches=(mutant.planted,)).broken
        otherwise |= broken - set(mutant.invariants)
        if broken & set(mutant.invariants) and not execute(plan).broken:
            hunting_s = time.perf_counter() - began_s
            smallest = shrink(plan, lambda plan: finds(mutant, plan), runs_max=SHRINKING_RUNS_MAX)
            shrinking_s = time.perf_counter() - began_s - hunting_s
            return Hunt(mutant, Found(seed, broken, smallest), count, hunting_s, shrinking_s, frozenset(otherwise))
    return Hunt(mutant, None, count, time.perf_counter() - began_s, 0.0, frozenset(otherwise))


def finds(mutant: Mutant, plan: Plan) -> bool:
    """Whether a plan breaks what the mutant names, and nothing without it."""
    broken = execute(plan, patches=(mutant.planted,)).broken
    return not broken.isdisjoint(mutant.invariants) and not execute(plan).broken
