"""A program that is killed: a conversation of scripted turns, every other of which waits for a person in the middle."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from agents import Agent, Runner, RunState, Session, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from shoal.integrations.openai import ShoalSession, Turn

SESSION = "trial"


@function_tool
def note(text: str) -> str:
    """Note something."""
    return f"noted {text}"


@function_tool(needs_approval=True)
def pay(text: str) -> str:
    """Pay something."""
    return f"paid {text}"


def agent_of(turn: int, *, called: bool) -> Agent[Any]:
    """The agent of a turn, whose model has yet to call the tool or has done so."""
    name = "pay" if turn % 2 else "note"
    calls = [] if called else [[function_call(name, {"text": f"{turn}"}, call_id=f"call-{turn}")]]
    model = ScriptedModel([*calls, [assistant_message(f"turn {turn} is done")]])
    return Agent(name="clerk", model=model, tools=[note, pay])


async def approved(state: RunState[Any]) -> RunState[Any]:
    """The state, with everything that waits approved."""
    for item in state.get_interruptions():
        state.approve(item)
    return state


class Turns(Protocol):
    """Makes the turn of a key."""

    def __call__(self, key: str) -> AbstractAsyncContextManager[Turn]: ...


async def turn_on_shoal(turns: Turns, turn: int) -> None:
    """One turn, or what is left of it."""
    async with turns(f"{turn}") as first:
        if not first.done:
            result = await Runner.run(agent_of(turn, called=False), f"turn {turn}", session=first)
            if result.interruptions:
                first.suspend(result.to_state())
    if turn % 2:
        async with turns(f"{turn}/approved") as second:
            if not second.done:
                agent = agent_of(turn, called=True)
                state = await second.suspended(agent)
                assert state is not None
                await Runner.run(agent, await approved(state), session=second)


async def turn_on(session: Session, turn: int) -> None:
    """The same on a session of the SDK."""
    result = await Runner.run(agent_of(turn, called=False), f"turn {turn}", session=session)
    if result.interruptions:
        agent = agent_of(turn, called=True)
        state = await RunState.from_json(agent, result.to_state().to_json())
        await Runner.run(agent, await approved(state), session=session)


async def main(urls: str, turns: int) -> None:
    set_tracing_disabled(True)
    async with ShoalSession.connect(urls, SESSION, durability="quorum", wait=30) as session:
        first = max(0, len(await session.get_conversation_turns()) - 1)
        print("began", first, flush=True)  # noqa: T201
        for turn in range(first, turns):
            await turn_on_shoal(cast("Turns", session.turn), turn)
            print("acknowledged", turn, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
