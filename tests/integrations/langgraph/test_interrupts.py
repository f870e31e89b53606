"""A graph that stopped at `interrupt()` is listed as one that waits, and as long as LangGraph says that it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy, Command, Send, interrupt

import shoal
from shoal import Store, ThreadSummary
from shoal.integrations.langgraph import ShoalSaver

CONFIG: Any = {"configurable": {"thread_id": "support/7"}}


class State(TypedDict, total=False):
    answer: str
    more: str


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "state") as opened:
        yield opened


def graph_of(store: Store, *nodes: Callable[[Any], Any], **options: Any) -> Any:
    """One node after another."""
    builder: Any = StateGraph(State)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    builder.add_edge(before, END)
    return builder.compile(checkpointer=ShoalSaver(store), **options)


async def summaries(store: Store, **fields: Any) -> list[ThreadSummary]:
    return [each async for each in store.space("langgraph").summaries(**fields)]


async def waits(store: Store) -> list[tuple[str, list[str]]]:
    """The threads that wait, and what each asks."""
    return [(each.name, [one.says for one in each.questions]) for each in await summaries(store, state="waits")]


async def agrees(store: Store, graph: Any) -> list[str]:
    """What the thread asks, as Shoal and LangGraph both say."""
    state = await graph.aget_state(CONFIG)
    [summary] = await summaries(store)
    asked = [one.says for one in summary.questions]
    assert [one.value for one in state.interrupts] == asked
    assert [one.id for one in state.interrupts] == [one.id for one in summary.questions]
    assert [name for name, _ in await waits(store)] == [summary.name] * bool(asked)
    return asked


def ask(state: State) -> State:
    return {"answer": interrupt("refund of 120?")}


def ask_twice(state: State) -> State:
    return {"answer": interrupt("who?") + interrupt("how much?")}


async def test_a_graph_that_asks_waits_until_it_is_answered(store: Store) -> None:
    graph = graph_of(store, ask)
    await graph.ainvoke({}, CONFIG)
    assert await agrees(store, graph) == ["refund of 120?"]
    [summary] = await summaries(store, state="waits")
    assert (summary.state, summary.says, summary.asks) == ("waits", "It asks: refund of 120?", "refund of 120?")
    # By default the checkpoint is put beside the tasks: a question may be written before it.
    assert summary.since_ms == summary.questions[0].asked_ms > 0
    assert await graph.ainvoke(Command(resume="yes"), CONFIG) == {"answer": "yes"}
    assert await agrees(store, graph) == []


async def test_the_second_question_of_a_node_takes_the_place_of_the_first(store: Store) -> None:
    graph = graph_of(store, ask_twice)
    await graph.ainvoke({}, CONFIG)
    assert await agrees(store, graph) == ["who?"]
    await graph.ainvoke(Command(resume="Ada"), CONFIG)
    assert await agrees(store, graph) == ["how much?"]
    [summary] = await summaries(store)
    assert not summary.questions[0].answered
    await graph.ainvoke(Command(resume="120"), CONFIG)
    assert await agrees(store, graph) == []


def fan_out(store: Store, **policy: Any) -> Any:
    """Two tasks of one step that both ask."""
    builder = StateGraph(State)
    builder.add_node("left", lambda state: {"answer": interrupt("left?")}, **policy)
    builder.add_node("right", lambda state: {"more": interrupt("right?")}, **policy)
    for node in ("left", "right"):
        builder.add_edge(START, node)
        builder.add_edge(node, END)
    return builder.compile(checkpointer=ShoalSaver(store), cache=InMemoryCache() if policy else None)


async def test_of_two_questions_one_is_answered(store: Store) -> None:
    graph = fan_out(store)
    await graph.ainvoke({}, CONFIG)
    assert sorted(await agrees(store, graph)) == ["left?", "right?"]
    [summary] = await summaries(store)
    ids = {one.says: one.id for one in summary.questions}
    await graph.ainvoke(Command(resume={ids["left?"]: "yes"}), CONFIG)
    assert await agrees(store, graph) == ["right?"]
    await graph.ainvoke(Command(resume={ids["right?"]: "no"}), CONFIG)
    assert await agrees(store, graph) == []


async def test_a_question_within_a_subgraph_is_the_threads(store: Store) -> None:
    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    builder = StateGraph(State)
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=ShoalSaver(store))
    await graph.ainvoke({}, CONFIG)
    assert await agrees(store, graph) == ["refund of 120?"]
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert await agrees(store, graph) == []


async def test_a_task_from_the_cache_asks_nothing(store: Store) -> None:
    graph = fan_out(store, cache_policy=CachePolicy())
    other: Any = {"configurable": {"thread_id": "other"}}
    await graph.ainvoke({"answer": ""}, other)
    [summary] = await summaries(store, state="waits")
    answers = {one.id: one.says for one in summary.questions}
    await graph.ainvoke(Command(resume=answers), other)
    assert await graph.ainvoke({"answer": ""}, CONFIG) == {"answer": "left?", "more": "right?"}
    assert await waits(store) == []


async def test_an_answer_without_an_end_is_told(store: Store) -> None:
    calls: list[int] = []

    def die(state: State) -> State:
        answer = interrupt("refund of 120?")
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return {"answer": answer}

    graph = graph_of(store, die)
    await graph.ainvoke({}, CONFIG)
    config = (await graph.aget_state(CONFIG)).config
    # As a run that takes the answer, and whose program dies.
    await ShoalSaver(store).aput_writes(config, [("__resume__", "yes")], "00000000-0000-0000-0000-000000000000")
    assert await agrees(store, graph) == ["refund of 120?"]
    [summary] = await summaries(store, state="waits")
    assert summary.questions[0].answered
    assert summary.says == "It was answered, and the step that asked has not ended: refund of 120?"


async def test_one_that_goes_on_otherwise_asks_no_more(store: Store) -> None:
    graph = graph_of(store, ask)
    await graph.ainvoke({}, CONFIG)
    await graph.aupdate_state(CONFIG, {"answer": "by hand"}, as_node="ask")
    assert await agrees(store, graph) == []


async def test_a_run_that_is_undone_brings_a_question_back(store: Store) -> None:
    graph = graph_of(store, ask)
    thread = store.space("langgraph").thread("support/7")
    await graph.ainvoke({}, CONFIG)
    first = {label async for label, _ in thread.labels()}
    await graph.ainvoke({"more": "again"}, CONFIG)
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert await agrees(store, graph) == []
    await thread.unlabel(*({label async for label, _ in thread.labels()} - first))
    assert await agrees(store, graph) == ["refund of 120?"]


async def test_a_copy_of_a_thread_that_asks_asks_too(store: Store) -> None:
    graph = graph_of(store, ask)
    await graph.ainvoke({}, CONFIG)
    await ShoalSaver(store).acopy_thread("support/7", "copy")
    assert await waits(store) == [("copy", ["refund of 120?"]), ("support/7", ["refund of 120?"])]
    await ShoalSaver(store).adelete_thread("copy")
    assert await waits(store) == [("support/7", ["refund of 120?"])]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_it_waits_however_the_graph_is_durable(store: Store, durability: Any) -> None:
    graph = graph_of(store, ask)
    await graph.ainvoke({}, CONFIG, durability=durability)
    assert await agrees(store, graph) == ["refund of 120?"]
    await graph.ainvoke(Command(resume="yes"), CONFIG, durability=durability)
    assert await agrees(store, graph) == []


async def test_many_tasks_ask(store: Store) -> None:
    class Fan(TypedDict, total=False):
        n: int

    builder = StateGraph(Fan)
    builder.add_node("ask", lambda state: interrupt(f"{state['n']}?") and {})
    builder.add_conditional_edges(START, lambda _: [Send("ask", {"n": n}) for n in range(9)])
    graph = builder.compile(checkpointer=ShoalSaver(store))
    await graph.ainvoke({}, CONFIG)
    [summary] = await summaries(store, state="waits")
    assert len(summary.questions) == 4


HOSTILE = [
    *("<img src=x onerror=alert(1)>", "\u202eevil\u202c\u2028next", "x" * 1_000_000),
    *({"a": [1, {"b": None}], "c": "d"}, "", None, b"\xff", "\ud800"),
]


@pytest.mark.parametrize("value", HOSTILE, ids=["markup", "bidi", "large", "map", "empty", "none", "bytes", "half"])
async def test_any_value_is_told_as_text(store: Store, value: Any) -> None:
    def odd(state: State) -> State:
        return {"answer": interrupt(value)}

    graph = graph_of(store, odd)
    await graph.ainvoke({}, CONFIG)
    [summary] = await summaries(store, state="waits")
    [question] = summary.questions
    assert question.id == (await graph.aget_state(CONFIG)).interrupts[0].id
    assert len(question.says) <= 600
    assert len(summary.says) <= 330
    if isinstance(value, str) and value.isprintable():
        assert question.says[:599] == value[:599]


async def test_a_value_in_a_file_is_said_to_be_one(store: Store) -> None:
    def large(state: State) -> State:
        return {"answer": interrupt("x" * 2_000_000)}

    graph = graph_of(store, large)
    await graph.ainvoke({}, CONFIG)
    assert await waits(store) == [("support/7", ["a value above 1 MiB, which is not shown here"])]


async def test_it_waits_after_a_restart(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await graph_of(store, ask).ainvoke({}, CONFIG)
    async with shoal.open(tmp_path / "state") as store:
        assert await waits(store) == [("support/7", ["refund of 120?"])]
        await graph_of(store, ask).ainvoke(Command(resume="yes"), CONFIG)
    async with shoal.open(tmp_path / "state") as store:
        assert await waits(store) == []
