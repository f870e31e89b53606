"""A program that is killed: it drives a scripted agent to its last turn, and takes up a turn that was interrupted."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from shoal.integrations.adk import ShoalServices
from tests.integrations.adk.events import WHO

SESSION: dict[str, Any] = {**WHO, "session_id": "trial"}


class ScriptedModel(BaseLlm):
    """It calls a tool for each message of the user, and answers when the tool has."""

    model: str = "scripted"

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is not None:
            part = types.Part(text=f"{last.function_response.response['result']} is done")
        else:
            part = types.Part(function_call=types.FunctionCall(name="note", args={"text": last.text}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def note(text: str, tool_context: ToolContext) -> str:
    """Note something."""
    tool_context.state[text] = True
    tool_context.state["user:last"] = text
    return f"noted {text}"


def runner(sessions: BaseSessionService) -> Runner:
    agent = LlmAgent(name="clerk", model=ScriptedModel(), tools=[note])
    app = App(name="desk", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    return Runner(app=app, session_service=sessions)


async def turn_on(run: Runner, turn: int) -> None:
    message = types.Content(role="user", parts=[types.Part(text=f"turn {turn}")])
    async for _ in run.run_async(user_id=SESSION["user_id"], session_id=SESSION["session_id"], new_message=message):
        pass


async def resumed(run: Runner, events: list[Event]) -> None:
    """Take up the turn that was interrupted, if one was."""
    if not events or has_answer(events[-1]) or events[-1].actions.end_of_agent:
        return
    async for _ in run.run_async(
        user_id=SESSION["user_id"], session_id=SESSION["session_id"], invocation_id=events[-1].invocation_id
    ):
        pass


def has_answer(event: Event) -> bool:
    return bool(event.author == "clerk" and event.content and event.content.parts[0].text)


def turns_begun(events: list[Event]) -> int:
    return sum(event.author == "user" and event.content is not None for event in events)


def shown(events: list[Event]) -> list[str]:
    """What was said, without ids and times."""
    parts = [part for event in events if event.content for part in event.content.parts]
    return [
        part.text or (f"call {part.function_call.args}" if part.function_call else f"result {part.function_response.response}")
        for part in parts
    ]


async def main(urls: str, turns: int) -> None:
    warnings.simplefilter("ignore")
    async with ShoalServices.connect(urls, durability="quorum", wait=30) as services:
        sessions = services.sessions
        session = await sessions.get_session(**SESSION) or await sessions.create_session(**SESSION)
        first = turns_begun(session.events)
        print("began", first, flush=True)  # noqa: T201
        run = runner(sessions)
        await resumed(run, session.events)
        for turn in range(first, turns):
            await turn_on(run, turn)
            print("acknowledged", turn, flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
