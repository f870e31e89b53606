"""Carry out a plan, and say what came of it.

Laws:
- An outcome depends on the plan, the program and the patches, and on nothing else:
  neither on PYTHONHASHSEED, nor on the time that it takes, nor on what ran before.
- What production code raised and nobody handled is a violation, as is a run that
  waits for what cannot come, or does not end.
"""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from shoal.logs import events
from shoal.logs.event import Line
from shoal.logs.lines import captured
from shoal.testing.machines import Stalled, TooLong, quiet, run
from simulation.judging.judge import judge, lost_with_a_minority
from simulation.judging.violation import Violation
from simulation.plan import Act, Fault, Plan
from simulation.workload.agents import Agents
from simulation.world.cluster import SimulatedCluster
from simulation.world.trace import Trace

Patch = Callable[[], AbstractContextManager[Any]]
"""Plants a bug in the program while its context is open."""

BUG, STALLED, TOO_LONG = "bug", "stalled", "too-long"
"""What is broken where no numbered invariant is."""

LATE = "39"
"""No call of a client takes longer than its deadline."""

LAST = 200
"""So many of the last things that happened are kept, marked or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to. `fired` counts, by class, the faults and crash points that took place."""

    plan: Plan
    violations: list[Violation]
    digest: str
    virtual_s: float
    real_s: float  # Of one core.
    fired: Counter[str]
    events: int
    timeline: list[str]
    last: list[str]

    @property
    def broken(self) -> frozenset[str]:
        """The invariants that were violated."""
        return frozenset(violation.invariant for violation in self.violations)


def execute(plan: Plan, *, patches: Sequence[Patch] = ()) -> Outcome:
    """Run a plan to its end, healed and judged. Whatever happens in it is told in the outcome, not raised."""
    began_s = time.process_time()
    done = _Run(plan)
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        logged = stack.enter_context(captured())
        stack.enter_context(quiet())
        stack.enter_context(_collecting_only_afterwards())
        done.to_its_end()
    done.judge_logs(logged)
    return Outcome(
        plan=plan,
        violations=done.violations,
        digest=done.trace.digest(),
        virtual_s=done.now(),
        real_s=time.process_time() - began_s,
        fired=Counter(done.fired),
        events=done.trace.events,
        timeline=list(done.trace.timeline()),
        last=done.trace.last(LAST),
    )


def in_order(plan: Plan) -> list[Fault | Act]:
    """Its faults and acts in order of time; of two at one time the fault comes first."""
    return sorted([*plan.faults, *plan.acts], key=lambda event: event.at)


class _Run:
    """What is known of a run, at whatever point it ends."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._now = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.trace = Trace(self.now)
        self.violations: list[Violation] = []
        self.fired: Counter[str] = Counter()
        self._problems: list[str] = []
        self._late: list[str] = []

    def now(self) -> float:
        if self._loop is not None:
            self._now = self._loop.time()
        return self._now

    def to_its_end(self) -> None:
        try:
            run(self._main())
        except Stalled as error:
            self._violated(STALLED, str(error))
        except TooLong as error:
            self._violated(TOO_LONG, str(error))
        except Exception as error:
            self._violated(BUG, _told(error))
        gc.collect()  # Tasks that failed unseen say so now.
        for problem in self._problems:
            self._violated(BUG, problem)
        for told in self._late:
            self._violated(LATE, told)

    def judge_logs(self, logged: Sequence[Line]) -> None:
        """A node logs what it did not expect of itself."""
        for line in logged:
            if line.event in (events.BUG, events.AGENT_BUG, events.TASK_ENDED):
                told = "" if line.bug is None else _told(line.bug)
                self._violated(BUG, f"logged: {line.text}: {told}")

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unhandled)
        async with SimulatedCluster(self._plan, trace=self.trace) as cluster:
            self.fired, self._problems, self._late = cluster.fired, cluster.problems, cluster.late
            agents = Agents(cluster, self._plan, trace=self.trace)
            under_way = await self._begin_all(cluster, agents)
            lost_with_a_minority(cluster, agents)
            self.trace.mark("-", "everything is healed")
            await cluster.heal()
            for ended in await asyncio.gather(*under_way, return_exceptions=True):
                if isinstance(ended, Exception):
                    self._violated(BUG, _told(ended))
            for violation in await judge(cluster, agents):
                self._violated(violation.invariant, violation.text)

    async def _begin_all(self, cluster: SimulatedCluster, agents: Agents) -> list[asyncio.Task[None]]:
        """Begin each event at its time; return at the end of the plan, whatever is still under way."""
        loop = asyncio.get_running_loop()
        begun = []
        for event in in_order(self._plan):
            await asyncio.sleep(event.at - loop.time())
            begun.append(loop.create_task(agents.act(event) if isinstance(event, Act) else cluster.carry_out(event)))
        await asyncio.sleep(self._plan.duration_s - loop.time())
        return begun

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._violated(BUG, f"{context['message']}: {_told(error) if isinstance(error, BaseException) else context}")

    def _violated(self, invariant: str, text: str) -> None:
        self.violations.append(Violation(invariant, text))
        self.trace.mark("-", f"violated {invariant}:", text.splitlines()[-1])


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


@contextmanager
def _collecting_only_afterwards() -> Iterator[None]:
    """When the collector runs hangs on what ran before, and what it closes could be seen in the run."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # Then it looks at what the run left, and not at all modules.
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
