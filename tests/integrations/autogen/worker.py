"""A program that is killed: it runs turn after turn of a team, each time from the state that was stored last."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.replay import ReplayChatCompletionClient

import shoal
from shoal.errors import NotFound
from shoal.kinds.thread.handle.thread import Thread

SPACE, THREAD = "autogen", "trial"


def team(answers: Sequence[str]) -> Any:
    """A clerk whose model gives these answers."""
    client = ReplayChatCompletionClient(list(answers))
    return RoundRobinGroupChat([AssistantAgent("clerk", model_client=client)], max_turns=1)


def said(state: Any) -> list[str]:
    """What the clerk remembers: tasks and answers."""
    messages = state["team"]["agent_states"]["clerk"]["agent_state"]["llm_context"]["messages"]
    return [message["content"] for message in messages]


async def stored(thread: Thread) -> Any:
    """The state that was stored last; None at the beginning."""
    try:
        return (await thread.load()).state
    except NotFound:
        return None


async def turn_on(thread: Thread, turn: int) -> None:
    """One turn, as docs/integrations/autogen.md shows it."""
    crew, state = team([f"answer {turn}"]), await stored(thread)
    if state is not None:
        await crew.load_state(state["team"])
    await crew.run(task=f"turn {turn}")
    await thread.save({"team": await crew.save_state()}, durability="quorum")


async def main(urls: str, turns: int) -> None:
    async with shoal.connect(urls, wait=30) as store:
        thread = store.space(SPACE).thread(THREAD)
        state = await stored(thread)
        first = 0 if state is None else len(said(state)) // 2
        print("began", first, flush=True)  # noqa: T201
        for turn in range(first, turns):
            await turn_on(thread, turn)
            print("acknowledged", turn, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
