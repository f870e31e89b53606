"""The process of a crew: agents on one embedded store, or at one node of a cluster with a connection each.

When its input ends, the supervisor has ended, and so does the crew. It holds nothing that the store does not: after a `kill -9`
the next process continues from the agents' checkpoints.

If a node dies, the client continues with another one by itself. The agent notices the other node, and continues from its
thread's last checkpoint there. If a call raises because the client gave up, it does the same and records the module again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Literal

import msgspec
import uvloop

import shoal
from shoal.client.store import Store
from shoal.demo.agent import DOCUMENT, SPACE, Agent, Figures, Rewound, figures_of, library, list_modules, share
from shoal.demo.course import Message, Plan
from shoal.demo.nodes import become_removal
from shoal.errors import Retryable, ShoalError

ATTEMPTS_MAX = 20
ATTEMPT_DELAY_S = 0.25


def main() -> None:
    """Return when the work is done or the supervisor has ended; an agent that cannot continue is exit code 1."""
    # Unbuffered, because a buffer would take what follows the plan, which `_hear` waits for.
    with open(0, "rb", buffering=0, closefd=False) as orders:
        line = orders.readline()
    if line:
        uvloop.run(_main(msgspec.json.decode(line, type=Plan)))


async def _main(plan: Plan) -> None:
    crew = Crew(plan)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _hear, crew)
    try:
        await crew.run()
    except ShoalError as error:
        _give_up([error])


def _hear(crew: Crew) -> None:
    if os.read(sys.stdin.fileno(), 1):
        crew.gate.set()
    elif crew.plan.temporary:
        become_removal(crew.plan.directory)
    else:
        os._exit(1)


def _give_up(errors: Sequence[BaseException]) -> None:
    sys.stderr.write("; ".join(f"{type(error).__name__}: {error}" for error in errors) + "\n")
    sys.stderr.flush()
    os._exit(1)  # At once: closing the documents may wait for a node for as long as a client does.


def _say(message: Message) -> None:
    # A broken pipe means that the supervisor has ended, which the end of our input says too.
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()


class Crew:
    """The agents of one plan: await `run()`, and set `gate` to let them begin more modules than `plan.gate`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gate = asyncio.Event()
        self._begun = 0
        self._modules = list_modules(library(), limit=plan.limit)

    async def run(self) -> None:
        """Open the store or connect all agents, and let them work to their end. If one cannot continue, the process ends.

        Raises:
            ShoalError: the store could not be opened.
        """
        async with AsyncExitStack() as stores:
            here = [await stores.enter_async_context(shoal.open(self.plan.directory))] if self.plan.directory else []
            members = [await self._arrive(number, here, stores) for number in self.plan.members]
            self._begun = sum(member.agent.position for member in members)
            try:
                async with asyncio.TaskGroup() as tasks:
                    for member in members:
                        tasks.create_task(self._work(member))
            except* (ShoalError, Rewound) as group:
                _give_up(group.exceptions)

    async def _arrive(self, number: int, here: Sequence[Store], stores: AsyncExitStack) -> Member:
        # An agent at a node has a connection of its own, as agents on several machines have.
        opening = shoal.connect(self.plan.urls, durability="quorum", in_order=True, wait=30, **self.plan.access.arguments)
        store = here[0] if here else await stores.enter_async_context(opening)
        space = store.space(SPACE)
        document = await stores.enter_async_context(await space.document(DOCUMENT))
        modules = share(self._modules, number, agents=self.plan.agents)
        member = Member(Agent(number, space=space, document=document, modules=modules), store)
        await member.resume(reason="start")
        return member

    async def _work(self, member: Member) -> None:
        while member.agent.remaining:
            self._begun += 1
            if self.plan.gate is not None and self._begun > self.plan.gate:
                await self.gate.wait()
            module = member.agent.remaining[0]
            # Parsing takes up to 0.2 s. On a thread it delays the loop by the interpreter's switch interval instead.
            await member.record(module, await asyncio.to_thread(figures_of, library() / module))


class Member:
    """An agent and its connection."""

    def __init__(self, agent: Agent, store: Store) -> None:
        self.agent = agent
        self._store = store
        self._node = ""  # The id of the node that answered last.

    async def record(self, module: str, figures: Figures) -> None:
        """Record one module, with retries after failures. If another node answered, resume there.

        Raises:
            ShoalError: it failed ATTEMPTS_MAX times, or with an error that is not retryable.
            Rewound: another node showed an older checkpoint than the agent had seen.
        """
        self._say("writing", module=module)
        position = self.agent.position
        for _ in range(ATTEMPTS_MAX):
            try:
                if self.agent.position == position:
                    await self.agent.record(module, figures)
                if (await self._store.status()).node != self._node:
                    await self.resume(reason="")
                self._say("saved")
                return
            except Retryable as error:
                failure = error
            await asyncio.sleep(ATTEMPT_DELAY_S)
            with suppress(Retryable):
                await self.resume(reason=type(failure).__name__)
        raise failure

    async def resume(self, *, reason: str) -> None:
        """Load the agent's last checkpoint, and say so; raises as `Agent.resume` does."""
        await self.agent.resume()
        self._node = (await self._store.status()).node
        self._say("resumed", reason=reason)

    def _say(self, what: Literal["resumed", "writing", "saved"], **more: str) -> None:
        _say(Message(what, self.agent.number, self.agent.position, self.agent.checkpoint, self._node, **more))


if __name__ == "__main__":
    main()
