"""Start the worker, kill it twice while it writes, and start it again on the same directory.

The kill is SIGKILL, at a random moment: some modules are then written in part.
Whatever ends the supervisor ends the worker, too: on every way out it is
killed and waited for, and if the supervisor itself is killed, the end of the
worker's input tells it.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from shoal.demo.messages import Failed, Finished, Message, Plan, read_message, to_line
from shoal.demo.progress import Kill, Progress
from shoal.demo.survey import share

KILLS = 2
# A module's writes take a few milliseconds: the kill falls somewhere among them.
KILL_DELAY_S_MAX = 0.008
MODULES_MIN = KILLS + 1  # One to die on for each kill, and one for the last life.
WORKER = (sys.executable, "-m", "shoal.demo.worker")
_LINE_BYTES_MAX = 1 << 20
_STDERR_LINES = 20


class WorkerFailed(Exception):
    """The worker ended before its work was done, and nobody had killed it."""


class Audience(Protocol):
    """Whoever wants to see it. Called on the supervisor's loop; must not block."""

    def saw(self, message: Message) -> None: ...

    def saw_kill(self, kill: Kill) -> None: ...


class KillPlan(NamedTuple):
    after: int  # Kill once so many modules are done in all, and writes are under way.
    modules_max: int  # The most that may be done in all by then.


def plan_kills(total: int, *, agents: int, random: Random) -> list[KillPlan]:
    """When to kill, near each third of `total` (at least MODULES_MIN).

    Each kill has a module of its own to fall on: 0 ≤ after < modules_max, and
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
    """Run the survey to its end, through all kills; `plan` is that of the last life.

    Raises:
        WorkerFailed: saying what the worker had said last.
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
        """One life of the worker: to its kill, or to its end."""
        async with _worker(self._command, plan) as (process, said):
            killed = finished = False
            async for message in _messages(process):
                self._progress.note(message, now_s=self._now_s())
                self._audience.saw(message)
                if isinstance(message, Failed):
                    raise WorkerFailed(message.reason)
                finished = finished or isinstance(message, Finished)
                if not killed and self._is_due(kill_after):
                    await self._kill(process)
                    killed = True
        if not (killed or finished):
            raise WorkerFailed(
                f"the worker ended by itself ({_manner(process)}). It said last: {' / '.join(said) or 'nothing'}"
            )

    def _is_due(self, kill_after: int | None) -> bool:
        return kill_after is not None and self._progress.done >= kill_after and bool(self._progress.in_the_air)

    async def _kill(self, process: Process) -> None:
        await asyncio.sleep(self._random.uniform(0, KILL_DELAY_S_MAX))
        process.kill()
        self._progress.note_kill(now_s=self._now_s())
        self._audience.saw_kill(self._progress.kills[-1])


@asynccontextmanager
async def _worker(command: Sequence[str], plan: Plan) -> AsyncIterator[tuple[Process, deque[str]]]:
    """A running worker and the last lines of its standard error. It is dead when the context is left."""
    # A session of its own: the terminal's Ctrl-C is for the supervisor, which then sees to the worker.
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, limit=_LINE_BYTES_MAX
    )
    said: deque[str] = deque(maxlen=_STDERR_LINES)
    listening = asyncio.create_task(_listen(process, said))
    try:
        assert process.stdin is not None
        # A worker that died at once is reported by the end of its messages.
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(to_line(plan))
            await process.stdin.drain()
        yield process, said
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await listening


async def _listen(process: Process, said: deque[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line.decode(errors="replace").rstrip())


async def _messages(process: Process) -> AsyncIterator[Message]:
    assert process.stdout is not None
    async for line in process.stdout:
        # A kill may cut the last line short.
        if line.endswith(b"\n"):
            yield read_message(line)


def _manner(process: Process) -> str:
    code = process.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
