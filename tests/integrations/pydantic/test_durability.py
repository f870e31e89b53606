"""Runs of agents that are killed, repeated, changed and damaged: nothing is done twice, and what is unknown is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, CancellationToken, RunContext
from pydantic_ai.capabilities import ModelFallback
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

import shoal
from shoal.client.store import Store
from shoal.errors import (
    InvalidInput,
    InvalidName,
    KeyReused,
    ResultNotKept,
    SchemaTooNew,
    ShoalError,
    StepFailed,
    StepUnresolved,
)
from shoal.integrations.pydantic import ShoalDurability, durable
from shoal.kinds.thread.handle.thread import Thread
from shoal.testing import Report, crash_everywhere
from tests.integrations.pydantic import scripted


class Outside:
    """What is outside of the agent, and counts what is done to it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.fails: dict[str, BaseException] = {}

    async def ask(self, turn: int) -> None:
        await self.do(f"ask {turn}")

    async def do(self, what: str) -> None:
        if what in self.fails:
            raise self.fails.pop(what)
        self.done[what] += 1

    async def happened(self, what: str) -> bool:
        return bool(self.done[what])


ALL = {"ask 0", "look-0", "look-1", "ask 1", "ask 2", "pay", "ask 3"}


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def thread(opened: Store, space: str) -> Thread:
    return opened.space(space).thread("ticket-7")


def agent_on(outside: Outside, **options: Any) -> Agent[None, str]:
    return scripted.agent_of(outside.ask, outside.do, outside.do, **options)


# ── killed ────────────────────────────────────────────────────────────────────


def world() -> dict[str, Any]:
    outside = Outside()

    async def ask(turn: int) -> None:
        await outside.ask(turn)

    async def look(id: str) -> None:
        await outside.do(id)

    async def pay(id: str) -> None:
        await outside.do(id)

    return {"ask": ask, "look": look, "pay": pay, "happened": outside.happened}


async def clerk(store: Store, ask: Any, look: Any, pay: Any, happened: Any) -> None:
    thread = store.space("crew").thread("ticket-7")
    output = await scripted.run_once(thread, scripted.agent_of(ask, look, pay), happened)
    await thread.update({"output": output}, key="output")


def without_journals(name: str, content: Any) -> Any:
    """A person's decisions about steps are in the journal, and there are none without a crash."""
    return [] if name.startswith("journal") else content


@pytest.mark.answers("killed-run-asks-a-model-twice")
@pytest.mark.parametrize("nodes", [1, 3])
def test_an_agent_that_is_killed_anywhere_asks_no_model_and_calls_no_tool_twice(nodes: int) -> None:
    report: Report = crash_everywhere(
        clerk, tools=world, reads=["happened"], normalise=without_journals, nodes=nodes, durability="quorum"
    )
    report.raise_if_bad()
    assert len(report.trials) > 50


# ── repeated ──────────────────────────────────────────────────────────────────


async def test_outside_of_a_durable_block_the_agent_runs_as_without_it(outside: Outside, thread: Thread) -> None:
    for nth in range(1, 3):
        assert (await agent_on(outside).run(scripted.PROMPT)).output == "it is paid"
        assert outside.done == Counter(dict.fromkeys(ALL, nth))
    assert [step async for step in thread.steps()] == []


async def test_a_run_that_is_repeated_is_read_from_its_steps(outside: Outside, thread: Thread) -> None:
    results = []
    for _ in range(3):
        with durable(thread, key="order-17"):
            results.append(await agent_on(outside).run(scripted.PROMPT))
    assert set(outside.done) == ALL
    assert set(outside.done.values()) == {1}
    assert {result.output for result in results} == {"it is paid"}
    assert len({result.run_id for result in results}) == 1
    assert len({result.conversation_id for result in results}) == 1
    assert (
        len({str([each.parts for each in result.all_messages() if isinstance(each, ModelResponse)]) for result in results}) == 1
    )
    assert {result.usage.requests for result in results} == {4}


async def test_another_key_is_another_run(outside: Outside, thread: Thread) -> None:
    for key in ("order-17", "order-18"):
        await scripted.run_once(thread, agent_on(outside), outside.happened, key=key)
    assert set(outside.done.values()) == {2}


async def test_two_runs_in_one_block_are_two_runs(outside: Outside, thread: Thread) -> None:
    for _ in range(2):
        with durable(thread, key="order-17"):
            await agent_on(outside).run(scripted.PROMPT)
            await agent_on(outside).run(scripted.PROMPT)
    assert set(outside.done.values()) == {2}


async def test_another_prompt_under_the_same_key_is_refused(outside: Outside, thread: Thread) -> None:
    await scripted.run_once(thread, agent_on(outside), outside.happened)
    with pytest.raises(KeyReused), durable(thread, key="order-17"):
        await agent_on(outside).run("refund order 18")
    assert set(outside.done.values()) == {1}


async def test_a_step_that_failed_is_tried_again_when_the_run_is(outside: Outside, thread: Thread) -> None:
    outside.fails = {"ask 2": ModelHTTPError(503, "m"), "pay": ConnectionError("no line")}
    for _ in range(2):
        with pytest.raises((ModelHTTPError, ConnectionError)):
            await scripted.run_once(thread, agent_on(outside), outside.happened)
    assert await scripted.run_once(thread, agent_on(outside), outside.happened) == "it is paid"
    assert set(outside.done.values()) == {1}


async def test_attempts_are_bounded(thread: Thread, outside: Outside) -> None:
    for error in (ConnectionError, ConnectionError, StepFailed):
        outside.fails = {"pay": ConnectionError("no line")}
        with pytest.raises(error):
            await scripted.run_once(thread, agent_on(outside, tools={"attempts": 2}), outside.happened)


@pytest.mark.answers("killed-run-asks-a-model-twice")
async def test_a_run_that_went_on_after_a_failure_goes_the_same_way_again(thread: Thread) -> None:
    asked: Counter[str] = Counter()

    def model_of(name: str, *, fails: bool) -> FunctionModel:
        def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            asked[name] += 1
            if fails:
                raise ModelHTTPError(503, name)
            return ModelResponse(parts=[TextPart(name)])

        return FunctionModel(script, model_name=name)

    for first_fails in (True, False):
        first, second = model_of("first", fails=first_fails), model_of("second", fails=False)
        durability = ShoalDurability(models={"second": second})
        agent = Agent(first, name="clerk", capabilities=[durability, ModelFallback("second")])
        with durable(thread, key="k"):
            assert (await agent.run("hello")).output == "second"
    assert asked == {"first": 1, "second": 1}


async def test_a_run_that_is_streamed_is_repeated_too(thread: Thread) -> None:
    asked: list[str] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        asked.append("model")
        yield "it is "
        yield "paid"

    for _ in range(2):
        agent = Agent(FunctionModel(stream_function=stream), name="clerk", capabilities=[ShoalDurability()])
        with durable(thread, key="k"):
            async with agent.run_stream("go") as result:
                assert await result.get_output() == "it is paid"
    assert asked == ["model"]


async def test_a_token_that_cancels_a_run_is_refused(thread: Thread, outside: Outside) -> None:
    with pytest.raises(UserError, match="cancellation_token"), durable(thread, key="k"):
        await agent_on(outside).run(scripted.PROMPT, cancellation_token=CancellationToken())
    assert not outside.done


# ── interrupted ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["ask 0", "ask 2", "look-1", "pay"])
async def test_a_step_that_was_interrupted_is_not_called_until_somebody_resolves_it(
    what: str, outside: Outside, thread: Thread
) -> None:
    outside.fails = {what: asyncio.CancelledError()}
    with pytest.raises(asyncio.CancelledError), durable(thread, key="order-17"):
        await agent_on(outside).run(scripted.PROMPT)
    with pytest.raises(StepUnresolved), durable(thread, key="order-17"):
        await agent_on(outside).run(scripted.PROMPT)
    assert not await outside.happened(what)
    assert await scripted.run_once(thread, agent_on(outside), outside.happened) == "it is paid"
    assert set(outside.done.values()) == {1}


async def test_idempotent_steps_are_repeated(outside: Outside, thread: Thread) -> None:
    for what in ("ask 1", "pay"):
        outside.fails = {what: asyncio.CancelledError()}
        with pytest.raises(asyncio.CancelledError), durable(thread, key="order-17"):
            await agent_on(outside, model={"idempotent": True}, tools={"idempotent": True}).run(scripted.PROMPT)
    with durable(thread, key="order-17"):
        result = await agent_on(outside, model={"idempotent": True}, tools={"idempotent": True}).run(scripted.PROMPT)
    assert result.output == "it is paid"
    assert set(outside.done.values()) == {1}


async def test_a_person_may_answer_for_a_model_and_for_a_tool(thread: Thread) -> None:
    def agent() -> Agent[None, str]:
        def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if len(messages) == 1:
                return ModelResponse(parts=[ToolCallPart("pay", {}, tool_call_id="c")])
            raise asyncio.CancelledError

        made = Agent(FunctionModel(script), name="clerk", capabilities=[ShoalDurability()])

        @made.tool_plain
        def pay() -> dict[str, int]:
            raise asyncio.CancelledError

        return made

    for value in ({"receipt": 8}, "it is paid, says Ana"):
        with pytest.raises(asyncio.CancelledError), durable(thread, key="k"):
            await agent().run("pay")
        [step] = await thread.unresolved()
        await thread.resolve(step, "result", value=value, by="ana", reason="it is in the bank's list")
    with durable(thread, key="k"):
        result = await agent().run("pay")
    assert result.output == "it is paid, says Ana"
    assert "{'receipt': 8}" in str(result.all_messages())


async def test_a_paused_thread_holds_the_run(outside: Outside, thread: Thread) -> None:
    await thread.pause("wait", by="ana")
    with durable(thread, key="order-17"):
        running = asyncio.create_task(agent_on(outside).run(scripted.PROMPT))
    await asyncio.sleep(0.05)
    assert not outside.done
    await thread.approve(by="ana")
    assert (await running).output == "it is paid"


# ── within one another ────────────────────────────────────────────────────────


async def test_a_tool_that_runs_another_agent_repeats_only_what_is_not_done(thread: Thread) -> None:
    asked: list[str] = []
    fails = [asyncio.CancelledError()]

    def inner_script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(f"inner {len(messages)}")
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("note", {}, tool_call_id="n")])
        if fails:
            raise fails.pop()
        return ModelResponse(parts=[TextPart("noted")])

    inner = Agent(FunctionModel(inner_script), name="writer", capabilities=[ShoalDurability(model={"idempotent": True})])

    @inner.tool_plain
    def note() -> str:
        asked.append("note")
        return "ok"

    outer = Agent(TestModel(), name="clerk", capabilities=[ShoalDurability(tools={"idempotent": True})])

    @outer.tool
    async def delegate(ctx: RunContext[None]) -> str:
        written: str = (await inner.run("write it down", usage=ctx.usage)).output
        return written

    with pytest.raises(asyncio.CancelledError), durable(thread, key="k"):
        await outer.run("go")
    with durable(thread, key="k"):
        assert "noted" in (await outer.run("go")).output
    assert asked == ["inner 1", "note", "inner 3", "inner 3"]


async def test_events_are_handled_once(thread: Thread) -> None:
    handled: list[str] = []

    async def handler(ctx: RunContext[None], stream: Any) -> None:
        handled.extend([event.event_kind async for event in stream])

    first: list[str] = []
    for _ in range(2):
        agent = Agent(TestModel(), name="clerk", capabilities=[ShoalDurability(event_stream_handler=handler)])

        @agent.tool_plain
        def look() -> str:
            return "rain"

        with durable(thread, key="k"):
            await agent.run("go")
        first = first or list(handled)
    assert handled == first
    assert "function_tool_result" in handled


# ── mistakes ──────────────────────────────────────────────────────────────────


async def test_a_tool_may_be_no_step(thread: Thread) -> None:
    called: list[str] = []
    agent = Agent(TestModel(), name="clerk", capabilities=[ShoalDurability()])

    @agent.tool_plain(metadata={"shoal": False})
    async def look() -> str:
        called.append("look")
        return "rain"

    for _ in range(2):
        with durable(thread, key="k"):
            await agent.run("go")
    assert called == ["look", "look"]


@pytest.mark.parametrize("bad", [True, {"retries": 3}, "idempotent"])
async def test_unknown_options_of_a_tool_are_refused(bad: Any, thread: Thread) -> None:
    agent = Agent(TestModel(), name="clerk", capabilities=[ShoalDurability()])

    @agent.tool_plain(metadata={"shoal": bad})
    async def look() -> str:
        raise AssertionError

    with pytest.raises(UserError, match="idempotent"), durable(thread, key="k"):
        await agent.run("go")


@pytest.mark.answers("killed-run-asks-a-model-twice")
@pytest.mark.parametrize("result", ["x" * 2**26, object()], ids=["too large", "no JSON"])
async def test_a_result_that_cannot_be_stored_is_told_and_not_called_again(
    result: object, thread: Thread, outside: Outside
) -> None:
    agent = Agent(TestModel(), name="clerk", capabilities=[ShoalDurability()])

    @agent.tool_plain
    async def look() -> Any:
        await outside.do("look")
        return result

    for _ in range(2):
        with pytest.raises(ResultNotKept), durable(thread, key="k"):
            await agent.run("go")
    assert outside.done["look"] == 1


async def test_a_result_of_a_newer_form_is_refused(thread: Thread, outside: Outside) -> None:
    outside.fails = {"ask 0": asyncio.CancelledError()}
    with pytest.raises(asyncio.CancelledError), durable(thread, key="k"):
        await agent_on(outside).run(scripted.PROMPT)
    [step] = await thread.unresolved()
    await thread.resolve(step, "result", value={"pydantic": 99, "returned": {}})
    with pytest.raises(SchemaTooNew), durable(thread, key="k"):
        await agent_on(outside).run(scripted.PROMPT)
    assert not outside.done


async def test_a_toolset_that_comes_with_a_run_is_refused(thread: Thread, outside: Outside) -> None:
    toolset: FunctionToolset[None] = FunctionToolset(id="late")
    toolset.add_function(outside.ask, name="ask")
    with pytest.raises(UserError, match="Shoal"), durable(thread, key="k"):
        await agent_on(outside).run(scripted.PROMPT, toolsets=[toolset])
    assert not outside.done


def test_an_agent_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="unique `name`"):
        Agent(TestModel(), capabilities=[ShoalDurability()])


@pytest.mark.parametrize("key", ["", "x" * 2048, "a\nb", None])
async def test_a_key_that_is_none_is_refused(key: Any, thread: Thread) -> None:
    with pytest.raises(InvalidName), durable(thread, key=key):
        raise AssertionError


async def test_a_place_that_is_no_thread_is_refused(opened: Store) -> None:
    bad: Any = opened.space("s")
    with pytest.raises(InvalidInput, match="thread"), durable(bad, key="k"):
        raise AssertionError


async def test_long_names_and_ids_of_calls_are_no_obstacle(thread: Thread) -> None:
    ids = ["x" * 2048, "a/b\nc\ud800"]

    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id=id) for id in ids])
        return ModelResponse(parts=[TextPart("done")])

    called = []
    for _ in range(2):
        agent = Agent(FunctionModel(script), name="clerk", capabilities=[ShoalDurability()])

        @agent.tool_plain
        def look() -> str:
            called.append("look")
            return "rain"

        with durable(thread, key="k" * 255):
            assert (await agent.run("go")).output == "done"
    assert called == ["look", "look"]


async def test_a_node_that_is_gone_in_the_middle_is_told(tmp_path: Path, outside: Outside) -> None:
    async with shoal.open(tmp_path / "s") as store:
        thread = store.space("s").thread("t")

        async def closes(what: str) -> None:
            await store.close()

        agent = scripted.agent_of(outside.ask, outside.do, closes)
        with pytest.raises(ShoalError), durable(thread, key="order-17"):
            await agent.run(scripted.PROMPT)
    async with shoal.open(tmp_path / "s") as store:
        thread = store.space("s").thread("t")
        assert [step.key for step in await thread.unresolved()] == ["order-17/clerk/pay"]
