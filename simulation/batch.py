"""Run many plans, in processes of their own.

Laws:
- Results come in the order of the cases, whichever process was done first, so that
  a batch says the same with any number of processes.
- A case that is run twice runs the second time in a new process, with another
  PYTHONHASHSEED; it must leave the same trace.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice

from simulation.drawing import draw
from simulation.execution import Outcome, execute
from simulation.judging.violation import Violation
from simulation.plan import Plan, to_json

UNREPEATED = frozenset({"odd"})  # Profiles: Yjs's engine draws the order in which it writes the keys of a plain map.
TWICE_EVERY = 100
AHEAD = 8
"""So many cases wait for each process, at most: a batch that ends at its first failure has not much to throw away."""

CASES_MAX = 100
"""So many cases has a process in its life, on average: what runs leave behind in it, most of all in memory, is bounded."""

NOT_REPEATED = "not-repeated"
"""What is broken where two runs of one plan differ."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plan to run, and what a person calls it: a seed, or a saved plan's file."""

    name: str
    plan: Plan
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    outcome: Outcome


def cases_of(seeds: Iterable[int], *, profile: str) -> Iterator[Case]:
    """A case for each seed; the first of every hundred is run twice, if it can be repeated."""
    for nth, seed in enumerate(seeds):
        yield Case(str(seed), draw(seed, profile=profile), twice=nth % TWICE_EVERY == 0 and profile not in UNREPEATED)


def run_all(cases: Iterable[Case], *, jobs: int) -> Generator[Result, None, None]:
    """Run each case, `jobs` at a time; to close the generator is to run no more."""
    if jobs == 1:
        yield from map(run_case, cases)
        return
    coming = iter(cases)
    for first in coming:
        yield from _run_in(chain([first], islice(coming, jobs * CASES_MAX - 1)), jobs)


def _run_in(cases: Iterable[Case], jobs: int) -> Generator[Result, None, None]:
    """Run these in new processes, which end with them.

    A pool that replaces its processes by itself (`max_tasks_per_child`) can lose count of them, and wait for ever.
    """
    # A fork would take over whatever this process has under way; a process that is spawned has nothing but its imports.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        under_way: deque[Future[Result]] = deque()
        try:
            for case in cases:
                under_way.append(pool.submit(run_case, case))
                if len(under_way) >= jobs * AHEAD:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_case(case: Case) -> Result:
    outcome = execute(case.plan)
    if case.twice and (again := digest_elsewhere(case.plan)) != outcome.digest:
        told = f"the trace is {outcome.digest} here, and {again[:64]} in another process with another PYTHONHASHSEED"
        outcome = replace(outcome, violations=[*outcome.violations, Violation(NOT_REPEATED, told)])
    if not outcome.violations:
        outcome = replace(outcome, timeline=[], last=[])  # Nobody reads them, and they would travel.
    return Result(case, outcome)


def digest_elsewhere(plan: Plan) -> str:
    """The digest of the plan's trace in a new process with another PYTHONHASHSEED; the last it said, if it died."""
    command = [sys.executable, "-m", "simulation", "digest", "-"]
    here = os.environ.get("PYTHONHASHSEED", "random")
    environment = os.environ | {"PYTHONHASHSEED": "4711" if here != "4711" else "42"}
    ended = subprocess.run(command, input=to_json(plan), env=environment, capture_output=True, check=False)
    said = (ended.stdout if ended.returncode == 0 else ended.stderr).decode().split("\n")
    return next((line for line in reversed(said) if line), "")
