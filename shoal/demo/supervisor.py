"""Start the worker, kill it twice while it writes, and start it again on the same directory.

The kill is SIGKILL, at a random moment, so that some modules are partly written.
When the supervisor ends, for any reason, the worker ends too: the supervisor
kills it and waits for it; if the supervisor itself is killed, the worker sees the
end of its input.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import msgspec

from shoal.demo.messages import Failed, Finished, Message, Plan
from shoal.demo.progress import Kill, Progress
from shoal.demo.survey import share
from shoal.demo.workers import WorkerFailed, early_end, messages, worker
from shoal.records import NamedTuple

KILLS = 2
# A module's writes take a few milliseconds, so the kill comes among them.
KILL_DELAY_S_MAX = 0.008
MODULES_MIN = KILLS + 1  # One to die on for each kill, and one for the last life.
WORKER = (sys.executable, "-m", "shoal.demo.worker")


class Audience(Protocol):
    """The display of a run. Its methods are called on the supervisor's loop and must not block."""

    def saw(self, message: Message) -> None:
        """A message of the worker arrived; the progress has it already."""

    def saw_kill(self, kill: Kill) -> None:
        """The worker was killed."""


class KillPlan(NamedTuple):
    """When to kill the worker in one of its lives."""

    after: int  # Kill after so many modules are done in all, while writes are under way.
    modules_max: int  # The maximum number that may be done in all by then.


def plan_kills(total: int, *, agents: int, random: Random) -> list[KillPlan]:
    """Draw the kills, near each third of `total` (at least MODULES_MIN).

    Each kill has a module of its own to interrupt: 0 ≤ after < modules_max, and
    modules_max rises from kill to kill and stays below `total`.
    """
    plans: list[KillPlan] = []
    for nth in range(1, KILLS + 1):
        near = total * nth // (KILLS + 1) + random.randint(0, agents)
        modules_max = min(near + 2 * agents, total - (KILLS + 1 - nth))
        plans.append(KillPlan(min(near, modules_max - 1), modules_max))
    return plans


async def supervise(
    plan: Plan,
    *,
    progress: Progress,
    audience: Audience,
    random: Random,
    now_s: Callable[[], float],
    command: Sequence[str] = WORKER,
) -> None:
    """Run the survey to its end, including all kills; `plan` is the plan of the last life.

    Raises:
        WorkerFailed: the worker ended by itself; the error has its last output.
    """
    supervisor = _Supervisor(progress, audience, random, now_s, command)
    for kill in plan_kills(len(plan.modules), agents=plan.agents, random=random):
        await supervisor.live(msgspec.structs.replace(plan, modules_max=kill.modules_max), kill_after=kill.after)
    await supervisor.live(plan, kill_after=None)


def totals(plan: Plan) -> list[int]:
    """How many modules each agent has."""
    return [len(share(plan.modules, agent, agents=plan.agents)) for agent in range(plan.agents)]


class _Supervisor:
    def __init__(
        self, progress: Progress, audience: Audience, random: Random, now_s: Callable[[], float], command: Sequence[str]
    ) -> None:
        self._progress = progress
        self._audience = audience
        self._random = random
        self._now_s = now_s
        self._command = command

    async def live(self, plan: Plan, *, kill_after: int | None) -> None:
        """Run one life of the worker, to its kill or its end."""
        async with worker(self._command, plan) as (process, said):
            killed = finished = False
            async for message in messages(process):
                self._progress.note(message, now_s=self._now_s())
                self._audience.saw(message)
                if isinstance(message, Failed):
                    raise WorkerFailed(message.reason)
                finished = finished or isinstance(message, Finished)
                if not killed and self._is_due(kill_after):
                    await self._kill(process)
                    killed = True
        if not (killed or finished):
            raise early_end(process, said)

    def _is_due(self, kill_after: int | None) -> bool:
        return kill_after is not None and self._progress.done >= kill_after and bool(self._progress.in_the_air)

    async def _kill(self, process: Process) -> None:
        await asyncio.sleep(self._random.uniform(0, KILL_DELAY_S_MAX))
        process.kill()
        self._progress.note_kill(now_s=self._now_s())
        self._audience.saw_kill(self._progress.kills[-1])
