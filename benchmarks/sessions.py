"""What a turn costs in the stores of agent SDKs: Shoal's beside the SDK's own, in one run, embedded.

    .venv/integrations/openai/bin/python -m benchmarks.sessions
    .venv/integrations/claude/bin/python -m benchmarks.sessions
    .venv/integrations/adk/bin/python -m benchmarks.sessions
    .venv/integrations/microsoft/bin/python -m benchmarks.sessions
    .venv/integrations/pydantic-ai/bin/python -m benchmarks.sessions
    .venv/integrations/pydantic-harness/bin/python -m benchmarks.sessions
    .venv/integrations/crewai/bin/python -W ignore -m benchmarks.sessions

A turn is a run of the SDK with a scripted model: a message, the call of a tool, its result, an answer. The stores take
turns, so that a busy moment of the machine slows all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TURNS = 200
FILLED = 400  # Items.
Turn = Callable[[int], Awaitable[Any]]


async def openai(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """A run of the OpenAI Agents SDK on each session."""
    import agents
    from agents.testing import ScriptedModel, assistant_message, function_call

    from shoal.integrations.openai import ShoalSession

    agents.set_tracing_disabled(True)

    @agents.function_tool
    def note(text: str) -> str:
        """Note something."""
        return f"noted {text}"

    async def run(session: Any, turn: int) -> None:
        call = function_call("note", {"text": "x" * 200}, call_id=f"call-{turn}")
        model = ScriptedModel([[call], [assistant_message("done " * 40)]])
        await agents.Runner.run(agents.Agent(name="a", model=model, tools=[note]), f"turn {turn}", session=session)

    shoal = await stack.enter_async_context(ShoalSession.open(directory / "state", "plain"))
    atomic = await stack.enter_async_context(ShoalSession.open(directory / "turns", "turns"))
    sqlite = agents.SQLiteSession("s", directory / "sqlite.db")
    stack.callback(sqlite.close)

    async def in_turn(turn: int) -> None:
        async with atomic.turn(f"{turn}") as session:
            await run(session, turn)

    filled = {
        "ShoalSession": await stack.enter_async_context(ShoalSession.open(directory / "filled", "filled")),
        "SQLiteSession": agents.SQLiteSession("filled", directory / "sqlite.db"),
    }
    stack.callback(filled["SQLiteSession"].close)
    item: Any = {"role": "user", "content": "x" * 200}
    for session in filled.values():
        for _ in range(FILLED // 4):
            await session.add_items([item] * 4)

    return {
        "a run, no session": lambda turn: run(None, turn),
        "a run, SQLiteSession, a file": lambda turn: run(sqlite, turn),
        "a run, ShoalSession": lambda turn: run(shoal, turn),
        "a run, ShoalSession, `turn`": in_turn,
        **{
            f"`get_items` of {FILLED}, {name}": lambda _, session=session: session.get_items()
            for name, session in filled.items()
        },
        **{
            f"`add_items` of 1, {name}": lambda _, session=session: session.add_items([item])
            for name, session in filled.items()
        },
    }


async def claude(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """An append of a turn's four entries to each store."""
    from shoal.integrations.claude import ShoalSessionStore

    shoal = await stack.enter_async_context(ShoalSessionStore.open(directory / "state"))
    key: Any = {"project_key": "p", "session_id": "s"}

    def entries(turn: int) -> list[Any]:
        return [{"type": "user", "uuid": f"{turn}-{n}", "message": {"content": "x" * 300}} for n in range(4)]

    async def to_file(turn: int, *, synced: bool) -> None:
        with (directory / f"transcript-{synced}.jsonl").open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries(turn))
            file.flush()
            if synced:
                await asyncio.to_thread(os.fsync, file.fileno())

    return {
        "JSON lines in a file, as Claude Code writes them (no fsync)": lambda turn: to_file(turn, synced=False),
        "JSON lines in a file, with an fsync": lambda turn: to_file(turn, synced=True),
        "ShoalSessionStore": lambda turn: shoal.append(key, entries(turn)),
    }


async def adk(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """A run of Google's ADK on each service: a message, the call of a tool, its result, an answer."""
    import logging

    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.adk.sessions.in_memory_session_service import InMemorySessionService
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    from shoal.integrations.adk import ShoalServices
    from tests.integrations.adk import worker

    logging.disable(logging.WARNING)
    shoal = await stack.enter_async_context(ShoalServices.open(directory / "state"))
    services = {
        "no disk, InMemorySessionService": InMemorySessionService(),
        "SqliteSessionService, a file": SqliteSessionService(str(directory / "sqlite.db")),
        "ShoalSessionService": shoal.sessions,
    }

    async def read(service: Any, config: GetSessionConfig | None = None) -> None:
        assert await service.get_session(**worker.SESSION, config=config) is not None

    recent = GetSessionConfig(num_recent_events=10)

    turns: dict[str, Turn] = {}
    for name, service in services.items():
        await service.create_session(**worker.SESSION)
        run = worker.runner(service)
        turns[f"a run, {name}"] = lambda turn, run=run: worker.turn_on(run, turn)
        turns[f"`get_session`, {name}"] = lambda _, service=service: read(service)
        turns[f"`get_session` of the last 10 events, {name}"] = lambda _, service=service: read(service, recent)
    return turns


async def microsoft(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """A run of an agent of the Microsoft Agent Framework on each history, and a workflow of two steps on each storage."""
    import logging
    import warnings
    from contextlib import redirect_stdout
    from io import StringIO

    from agent_framework import FileCheckpointStorage, FileHistoryProvider

    from shoal.integrations.microsoft import ShoalState
    from tests.integrations.microsoft import worker

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    shoal = await stack.enter_async_context(ShoalState.open(directory / "state"))
    histories = {"FileHistoryProvider (no fsync)": FileHistoryProvider(directory / "history"), "ShoalState": shoal.history}
    storages = {"FileCheckpointStorage (no fsync)": FileCheckpointStorage(directory / "flows"), "ShoalState": shoal.checkpoints}

    async def flow(storage: Any) -> None:
        with redirect_stdout(StringIO()):
            await worker.workflow(storage, 1).run(0)

    async def said(history: Any, turn: int) -> None:
        clerk = worker.agent(history)
        await clerk.run(f"turn {turn}", session=clerk.create_session(session_id="s"))

    return {
        **{f"a run of an agent, {name}": lambda turn, each=each: said(each, turn) for name, each in histories.items()},
        **{f"a workflow (3 checkpoints), {name}": lambda _, each=each: flow(each) for name, each in storages.items()},
        **{
            f"`get_latest`, {name}": lambda _, each=each: each.get_latest(workflow_name=worker.WORKFLOW)
            for name, each in storages.items()
        },
    }


async def pydantic(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """A run of Pydantic AI, plain and durable, and a save of a turn to each store."""
    from pydantic_ai import Agent
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import InMemoryConversationStore
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
    from pydantic_ai.models.test import TestModel

    import shoal
    from shoal.integrations.pydantic import ShoalConversationStore, ShoalDurability, durable

    agent = Agent(TestModel(), name="clerk", capabilities=[ShoalDurability()])

    @agent.tool_plain
    def note(text: str) -> str:
        return f"noted {text}"

    opened = await stack.enter_async_context(shoal.open(directory / "state"))

    async def in_steps(turn: int) -> None:
        with durable(opened.space("s").thread("t"), key=f"{turn}"):
            await agent.run(f"turn {turn}")

    async def on_disk(turn: int) -> None:
        file = directory / "messages.jsonl"
        with file.open("ab") as out:
            out.write((await agent.run(f"turn {turn}")).new_messages_json())
            out.flush()
            await asyncio.to_thread(os.fsync, out.fileno())

    def said(turn: int) -> list[ModelMessage]:
        return [ModelRequest([UserPromptPart(f"turn {turn}, {'x' * 200}")]), ModelResponse([TextPart("done " * 40)])]

    kept = {"InMemoryConversationStore": InMemoryConversationStore(), "ShoalConversationStore": ShoalConversationStore(opened)}
    for store in kept.values():
        filled = [message for turn in range(FILLED // 2) for message in said(turn)]
        await store.save(Conversation(conversation_id="filled", messages=filled))
        await store.save(Conversation(conversation_id="grows"))

    async def save(store: Any, turn: int) -> None:
        conversation = await store.load("grows", limit=2)
        conversation.messages.extend(said(turn))
        await store.save(conversation)

    return {
        "a run, not durable": lambda turn: agent.run(f"turn {turn}"),
        "a run, its messages added to a file at the end, with an fsync": on_disk,
        "a run, ShoalDurability (three steps)": in_steps,
        **{f"`load(limit=2)` and `save` of a turn, {name}": partial(save, store) for name, store in kept.items()},
        **{f"`load` of {FILLED} messages, {name}": lambda _, store=store: store.load("filled") for name, store in kept.items()},
    }


async def harness(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """A run of Pydantic AI with each of the harness's step stores, and a write to each of its other stores."""
    from decimal import Decimal

    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel
    from pydantic_ai_harness.memory import SqliteMemoryStore
    from pydantic_ai_harness.planning import PlanItem, SqlitePlanStore
    from pydantic_ai_harness.spend import InMemorySpendStore, SpendEntry
    from pydantic_ai_harness.step_persistence import SqliteStepStore, StepPersistence

    import shoal
    from shoal.integrations import harness

    opened = await stack.enter_async_context(shoal.open(directory / "state"))
    database = directory / "sqlite.db"

    def agent_with(*capabilities: Any) -> Any:
        agent = Agent(TestModel(), name="clerk", capabilities=capabilities)
        agent.tool_plain(note)
        return agent

    def note(text: str) -> str:
        return f"noted {text}"

    async def write(store: Any, turn: int) -> None:
        await store.write(f"f{turn}", "x" * 200, expected_version=None)

    async def spend(store: Any, turn: int) -> None:
        await store.add_many([SpendEntry(key="day", usd=Decimal("0.1"), requests=1, token=f"{turn}")])

    async def plan(store: Any, turn: int) -> None:
        await store.set_items([PlanItem(id=f"{nth}", content=f"turn {turn}") for nth in range(10)])

    def on(store: Any) -> Any:
        return agent_with(StepPersistence(store=store))

    agents = {
        "no store": agent_with(),
        "SqliteStepStore": on(SqliteStepStore(database=directory / "steps.db")),
        "ShoalStepStore": on(harness.ShoalStepStore(opened)),
    }
    others: dict[str, tuple[Callable[[Any, int], Awaitable[None]], Any]] = {
        "a file, SqliteMemoryStore": (write, SqliteMemoryStore(database=database)),
        "a file, ShoalMemoryStore": (write, harness.ShoalMemoryStore(opened)),
        "a spending, InMemorySpendStore": (spend, InMemorySpendStore()),
        "a spending, ShoalSpendStore": (spend, harness.ShoalSpendStore(opened)),
        "a plan of ten, SqlitePlanStore": (plan, SqlitePlanStore(str(directory / "plan.db"))),
        "a plan of ten, ShoalPlanStore": (plan, harness.ShoalPlanStore(opened)),
    }
    return {
        **{f"a run, {name}": lambda turn, agent=agent: agent.run(f"turn {turn}") for name, agent in agents.items()},
        **{name: partial(call, store) for name, (call, store) in others.items()},
    }


async def crewai(directory: Path, stack: AsyncExitStack) -> dict[str, Turn]:
    """A flow of two steps, and one state saved, on each persistence of CrewAI."""
    os.environ |= {"CREWAI_TRACING_ENABLED": "false", "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    from crewai.flow.persistence import SQLiteFlowPersistence

    from shoal.integrations.crewai import ShoalFlowPersistence
    from tests.integrations.crewai import worker

    persistences: dict[str, Any] = {
        "SQLiteFlowPersistence": SQLiteFlowPersistence(str(directory / "sqlite.db")),
        "ShoalFlowPersistence": stack.enter_context(ShoalFlowPersistence.open(directory / "state")),
    }
    state = {"id": "s", "text": "x" * 2000}

    async def save(each: Any, turn: int) -> None:
        each.save_state("s", "step", {**state, "n": turn})

    return {
        **{
            f"a flow of two steps, {name}": lambda _, each=each: asyncio.to_thread(worker.turn_on, each)
            for name, each in persistences.items()
        },
        **{f"`save_state`, {name}": lambda turn, each=each: save(each, turn) for name, each in persistences.items()},
    }


KINDS = {
    "crewai": crewai,
    "agents": openai,
    "claude_agent_sdk": claude,
    "google": adk,
    "agent_framework": microsoft,
    "pydantic_ai_harness": harness,
    "pydantic_ai": pydantic,
}  # The package of an SDK → its stores.


async def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as place:
        async with AsyncExitStack() as stack:
            made = next(kind for package, kind in KINDS.items() if find_spec(package) is not None)
            stores = await made(Path(place), stack)
            took: dict[str, list[float]] = {name: [] for name in stores}
            for turn in range(TURNS):
                for name, run in stores.items():
                    began = time.perf_counter()
                    await run(turn)
                    took[name].append(time.perf_counter() - began)
    print(f"| a turn, of {TURNS} of one conversation | median ms | of the last 20, ms |\n|---|---|---|")
    for name, each in took.items():
        print(f"| {name} | {statistics.median(each) * 1000:.2f} | {statistics.median(each[-20:]) * 1000:.2f} |")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
