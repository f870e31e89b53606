"""The agents at one node: a process of its own, with a connection for each agent.

It reads a `CrewPlan` from its standard input, then messages about open gates,
and reports its work on its standard output. When its input ends, the supervisor
has ended, and so does the crew, which holds nothing that the nodes do not.

An agent's node may die at any moment. The client then continues with another
node by itself. The agent notices the other node, loads its thread's last
checkpoint there, and continues from it. If a call raises because the client gave
up, the agent does the same and records the current module again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import uvloop

import shoal
from shoal.client.store import Store
from shoal.demo.agent import DOCUMENT, OPERATIONS_PER_MODULE, SPACE, Agent, Rewound
from shoal.demo.messages import CrewPlan, Failed, Finished, Message, Ready, Resumed, Saved, Writing, read_order, to_line
from shoal.demo.survey import Figures, figures_of, share
from shoal.errors import Retryable, ShoalError

ATTEMPTS_MAX = 20
ATTEMPT_DELAY_S = 0.25


def main() -> None:
    """Return when the work is done or the supervisor has ended."""
    uvloop.run(_main())


async def _main() -> None:
    orders = _orders()
    plan = await anext(orders, None)
    if not isinstance(plan, CrewPlan):
        return
    crew = Crew(plan)
    listening = asyncio.create_task(_listen(orders, crew))
    try:
        await crew.run()
    except (ShoalError, Rewound) as error:
        _say(Failed(f"{type(error).__name__}: {error}"))
    except ExceptionGroup:
        return  # It was reported already.
    finally:
        listening.cancel()


async def _orders() -> AsyncIterator[object]:
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    while line := await reader.readline():
        yield read_order(line)


async def _listen(orders: AsyncIterator[object], crew: Crew) -> None:
    async for _ in orders:
        crew.open_gate()
    # Exit at once: the nodes are ending too, and closing a document would wait for one.
    os._exit(1)


def _say(message: Message) -> None:
    # A broken pipe means that the supervisor has ended, which the end of our input says too.
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(to_line(message))
        sys.stdout.buffer.flush()


class Crew:
    """The agents of one plan. Await `run()`; call `open_gate` when the supervisor opens one."""

    def __init__(self, plan: CrewPlan) -> None:
        self._plan = plan
        self._gates = [asyncio.Event() for _ in plan.gates]
        # One thread, since the interpreter lock lets no two of them parse.
        self._parser = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")

    def open_gate(self) -> None:
        """Open the next gate."""
        next(gate for gate in self._gates if not gate.is_set()).set()

    async def run(self) -> None:
        """Connect all agents, let them work, and report the end.

        Raises:
            ShoalError, Rewound, ExceptionGroup: an agent cannot continue.
        """
        with self._parser:
            async with AsyncExitStack() as open_stores:
                members = [await self._arrive(number, open_stores) for number in self._plan.members]
                _say(Ready([member.agent.position for member in members]))
                await self._work_together(members)
        _say(Finished())

    async def _arrive(self, number: int, open_stores: AsyncExitStack) -> Member:
        store = await open_stores.enter_async_context(
            shoal.connect(self._plan.urls, durability="quorum", in_order=True, wait=30)
        )
        space = store.space(SPACE)
        document = await open_stores.enter_async_context(await space.document(DOCUMENT))
        modules = share(self._plan.modules, number, agents=self._plan.agents)
        agent = Agent(number, space=space, document=document, modules=modules)
        await agent.resume()
        return Member(agent, store, (await store.status()).node)

    async def _work_together(self, members: list[Member]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for nth, member in enumerate(members):
                    tasks.create_task(self._work(member, nth))
        except ExceptionGroup as group:
            # Report it here: closing the documents may wait for a node for as long as a client does.
            _say(Failed("; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)))
            raise

    async def _work(self, member: Member, nth: int) -> None:
        agent = member.agent
        loop = asyncio.get_running_loop()
        while agent.remaining:
            for gate, positions in zip(self._gates, self._plan.gates, strict=True):
                if agent.position >= positions[nth]:
                    await gate.wait()
            module = agent.remaining[0]
            figures = await loop.run_in_executor(self._parser, _count, Path(self._plan.root, module))
            _say(Writing(agent.number, module))
            await member.record(module, figures)


class Member:
    """An agent and its connection."""

    def __init__(self, agent: Agent, store: Store, node: str) -> None:
        self.agent = agent
        self._store = store
        self._node = node  # The id of the node that answered last.

    async def record(self, module: str, figures: Figures) -> None:
        """Record one module, with retries after failures.

        Raises:
            ShoalError: it failed ATTEMPTS_MAX times, or with an error that is not retryable.
            Rewound: another node showed an older checkpoint than the agent had seen.
        """
        position = self.agent.position
        for _ in range(ATTEMPTS_MAX):
            try:
                if self.agent.position == position:
                    await self.agent.record(module, figures)
                await self._close(module)
                return
            except Retryable as error:
                failure = error
            await asyncio.sleep(ATTEMPT_DELAY_S)
            with suppress(Retryable):
                await self._resume(reason=type(failure).__name__)
        raise failure

    async def _close(self, module: str) -> None:
        """Report a recorded module. If another node answered, resume there first."""
        agent, node = self.agent, (await self._store.status()).node
        if node != self._node:
            await self._resume(reason="")
        _say(Saved(agent.number, module, agent.position, agent.checkpoint, OPERATIONS_PER_MODULE, node))

    async def _resume(self, *, reason: str) -> None:
        await self.agent.resume()
        self._node = (await self._store.status()).node
        _say(Resumed(self.agent.number, self.agent.position, self.agent.checkpoint, self._node, reason))


def _count(source: Path) -> Figures:
    return figures_of(source.read_bytes())


if __name__ == "__main__":
    main()
