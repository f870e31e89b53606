"""A run of an agent of a crew is one span, with all that it calls and stores within."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

import shoal
from simulation.world.fleet import Fleet
from tests.crew.machines import PACE
from tests.traces.recording import attributes, recording
from tests.traces.test_three_nodes import store_of

pytestmark = pytest.mark.virtual_time

PACED: dict[str, Any] = {**PACE}


def crew_on(fleet: Fleet) -> shoal.Crew:
    return shoal.Crew(store_of(fleet["a"]), "crew")


async def run(crew: shoal.Crew) -> None:
    async with asyncio.timeout(60):
        await crew.run(name="host", signals=False, until_finished=True)


async def test_all_that_an_agent_does_is_within_its_run() -> None:
    async with Fleet(**PACED) as fleet:
        crew = crew_on(fleet)

        @crew.agent("researcher")
        async def research(ctx: shoal.CrewContext) -> None:
            found = await ctx.thread.step("search", call=lambda: 7)
            await ctx.thread.save({"found": found})

        with recording(names="all") as recorded:
            await run(crew)
    agent = recorded.one("invoke_agent researcher")
    assert attributes(agent) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "researcher",
        "gen_ai.agent.id": "researcher-1",
        "gen_ai.conversation.id": "researcher-1",
    }
    assert agent.parent is None
    within = [span for span in recorded.spans if span.parent is not None and span.parent.span_id == agent.context.span_id]
    assert [span.name for span in within if not span.name.startswith("shoal ")] == ["execute_tool search"]
    assert "shoal fenced" in [span.name for span in within], "the save, which its lease fences"
    assert recorded.one("execute_tool search").context.trace_id == agent.context.trace_id


async def test_two_agents_have_a_trace_each() -> None:
    async with Fleet(**PACED) as fleet:
        crew = crew_on(fleet)

        @crew.agent("worker", count=2)
        async def work(ctx: shoal.CrewContext) -> None:
            await asyncio.sleep(1)
            await ctx.thread.save({"by": ctx.name})

        with recording(names="all") as recorded:
            await run(crew)
    runs = {span.context.trace_id: attributes(span)["gen_ai.agent.id"] for span in recorded.named("invoke_agent worker")}
    assert sorted(map(str, runs.values())) == ["worker-1", "worker-2"]
    assert runs.keys() < {span.context.trace_id for span in recorded.named("shoal fenced")}, "the crew's own writes are beside"


async def test_a_run_that_raises_is_an_error_without_what_it_says() -> None:
    async with Fleet(**PACED) as fleet:
        crew, tries = crew_on(fleet), 0

        @crew.agent("flaky")
        async def fail(_: shoal.CrewContext) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise RuntimeError("CANARY")

        with recording() as recorded:
            await run(crew)
    failed, ended = recorded.named("invoke_agent flaky")
    assert (failed.status.status_code, attributes(failed)["error.type"]) == (StatusCode.ERROR, "RuntimeError")
    assert "CANARY" not in f"{failed.to_json()}"
    assert "error.type" not in attributes(ended)
    assert "gen_ai.agent.id" not in attributes(ended), "a name that an operator has not asked for"


async def test_without_a_provider_an_agent_runs_as_it_does() -> None:
    ran: list[Any] = []
    async with Fleet(**PACED) as fleet:
        crew = crew_on(fleet)

        @crew.agent("plain")
        async def work(ctx: shoal.CrewContext) -> None:
            ran.append(ctx.name)

        await run(crew)
    assert ran == ["plain-1"]
