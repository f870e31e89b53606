"""The worker process, which is killed: all agents, on one embedded store.

It reads one `Plan` from its standard input, and reports its work on its
standard output. When its input ends, the supervisor has ended: the worker
then stops, and removes the store if it is temporary. It holds nothing that the
store does not, so the next life continues from the agents' checkpoints.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import uvloop

import shoal
from shoal.client.store import Space
from shoal.demo.agent import DOCUMENT, OPERATIONS_PER_MODULE, SPACE, Agent
from shoal.demo.messages import Failed, Finished, Message, Plan, Ready, Saved, Writing, read_plan, to_line
from shoal.demo.survey import Figures, figures_of, share
from shoal.errors import ShoalError

# An orphan that has not closed its store by then is ended by a signal.
ORPHAN_S_MAX = 20


def main() -> None:
    """Run one life: return when its work is done or the supervisor has ended."""
    line = sys.stdin.buffer.readline()
    if line:
        uvloop.run(_live(read_plan(line)))


async def _live(plan: Plan) -> None:
    task = asyncio.create_task(_Life(plan).run())
    orphaned = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Nothing follows the plan, so the pipe only becomes readable at its end.
    loop.add_reader(sys.stdin.fileno(), _abandon, task, orphaned)
    try:
        await task
    except ShoalError as error:
        _say(Failed(f"{type(error).__name__}: {error.message}"))
    except asyncio.CancelledError:
        if not orphaned.is_set():
            raise
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if orphaned.is_set() and plan.temporary:
        shutil.rmtree(plan.data, ignore_errors=True)


def _abandon(task: asyncio.Task[None], orphaned: asyncio.Event) -> None:
    if not orphaned.is_set():
        orphaned.set()
        signal.alarm(ORPHAN_S_MAX)
        task.cancel()


def _say(message: Message) -> None:
    # A broken pipe means that the supervisor has ended, which the end of our input says too.
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(to_line(message))
        sys.stdout.buffer.flush()


class _Life:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._left = 0
        # Parsing takes up to 0.2 s a module. On a thread of its own it delays
        # the loop by the interpreter's switch interval instead; one thread
        # is enough, since the interpreter lock lets no two of them parse.
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")

    async def run(self) -> None:
        with self._parser:
            async with shoal.open(self._plan.data) as store:
                await self._survey(store.space(SPACE))
        _say(Finished())

    async def _survey(self, space: Space) -> None:
        async with AsyncExitStack() as documents:
            agents = [await self._arrive(number, space, documents) for number in range(self._plan.agents)]
            positions = [agent.position for agent in agents]
            self._left = self._plan.modules_max - sum(positions)
            _say(Ready(positions))
            async with asyncio.TaskGroup() as tasks:
                for agent in agents:
                    tasks.create_task(self._work(agent))

    async def _arrive(self, number: int, space: Space, documents: AsyncExitStack) -> Agent:
        document = await documents.enter_async_context(await space.document(DOCUMENT))
        agent = Agent(
            number, space=space, document=document, modules=share(self._plan.modules, number, agents=self._plan.agents)
        )
        await agent.resume()
        return agent

    async def _work(self, agent: Agent) -> None:
        for module in agent.remaining:
            await self._permit()
            figures = await asyncio.get_running_loop().run_in_executor(self._parser, _count, Path(self._plan.root, module))
            _say(Writing(agent.number, module))
            await agent.record(module, figures)
            _say(Saved(agent.number, module, agent.position, agent.checkpoint, OPERATIONS_PER_MODULE))

    async def _permit(self) -> None:
        """Return if this life may begin one more module; else wait forever, to be killed."""
        self._left -= 1
        if self._left < 0:
            await asyncio.Event().wait()


def _count(source: Path) -> Figures:
    return figures_of(source.read_bytes())


if __name__ == "__main__":
    main()
