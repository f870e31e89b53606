"""A program that is killed: a workflow of many steps, and an agent whose runs are a conversation."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    CheckpointStorage,
    Executor,
    HistoryProvider,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

from shoal.integrations.microsoft import ShoalState

WORKFLOW = "count"
SESSION = "trial"


class Counting(Executor):
    """Adds its number to a list in the workflow's state, and calls the other one, until the last number."""

    def __init__(self, id: str, last: int) -> None:
        super().__init__(id=id)
        self._last = last

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
        if number:
            print("acknowledged", number - 1, flush=True)  # noqa: T201 - its checkpoint was saved before this step.
        counted = [*(ctx.get_state("counted") or []), number]
        ctx.set_state("counted", counted)
        if number < self._last:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(counted)


def workflow(storage: CheckpointStorage, last: int) -> Workflow:
    ping, pong = Counting("ping", last), Counting("pong", last)
    builder = WorkflowBuilder(name=WORKFLOW, start_executor=ping, checkpoint_storage=storage, max_iterations=last + 2)
    return builder.add_edge(ping, pong).add_edge(pong, ping).build()


class Polite(BaseChatClient):
    """It answers with what it was asked last."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[ChatResponse]:
        async def answer() -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [f"done: {messages[-1].text}"])])

        return answer()


def agent(history: HistoryProvider) -> Agent:
    return Agent(client=Polite(), name="clerk", context_providers=[history])


async def counting(state: ShoalState, last: int) -> None:
    checkpoint = await state.checkpoints.get_latest(workflow_name=WORKFLOW)
    print("began", 0, flush=True)  # noqa: T201
    flow = workflow(state.checkpoints, last)
    result = await (flow.run(0) if checkpoint is None else flow.run(checkpoint_id=checkpoint.checkpoint_id))
    assert result.get_outputs() in ([], [list(range(last + 1))])


async def talking(state: ShoalState, turns: int) -> None:
    first = len(await state.history.get_messages(SESSION)) // 2
    print("began", first, flush=True)  # noqa: T201
    clerk = agent(state.history)
    for turn in range(first, turns):
        await clerk.run(f"turn {turn}", session=clerk.create_session(session_id=SESSION))
        print("acknowledged", turn, flush=True)  # noqa: T201


async def main(urls: str, what: str, upto: int) -> None:
    warnings.simplefilter("ignore")
    async with ShoalState.connect(urls, durability="quorum", wait=30) as state:
        await (counting if what == "workflow" else talking)(state, upto)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
