"""A namespace for each call of a subgraph: no thread ends after some number of turns, and prunes free what is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from msgspec.structs import replace

import shoal
from shoal.client.store import Store
from shoal.integrations.langgraph import ShoalSaver
from shoal.integrations.langgraph.checkpoints import Checkpoints
from shoal.protocol import requests
from simulation.bounds import altered

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}
TURNS = 30
BRANCHES_MAX = 4


class State(TypedDict):
    n: int


def graph(saver: Any, *, asks: bool = False, inner: Any = None) -> Any:
    """Two nodes in sequence, each a subgraph; the inner one is called anew in each turn, unless it has a checkpointer."""

    def leaf(state: State) -> dict[str, Any]:
        return {"n": interrupt("more?") if asks else state["n"] + 1}

    deepest, middle, outer = StateGraph(State), StateGraph(State), StateGraph(State)
    deepest.add_node("leaf", leaf)
    deepest.add_edge(START, "leaf").add_edge("leaf", END)
    middle.add_node("inner", deepest.compile(checkpointer=inner))
    middle.add_edge(START, "inner").add_edge("inner", END)
    outer.add_node("sub", middle.compile())
    outer.add_edge(START, "sub").add_edge("sub", END)
    return outer.compile(checkpointer=saver)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with altered(branches_max=BRANCHES_MAX):
        async with shoal.open(tmp_path / "state") as opened:
            yield opened


async def branches(store: Store) -> dict[str, list[str]]:
    return await store.space("langgraph").thread("t").heads()


async def labels(store: Store) -> list[str]:
    return [label async for label, _ in store.space("langgraph").thread("t").labels()]


async def test_a_thread_outlives_any_number_of_calls(store: Store) -> None:
    memory = InMemorySaver()
    for turn in range(TURNS):
        found = await graph(ShoalSaver(store)).ainvoke({"n": turn}, CONFIG)
        assert found == await graph(memory).ainvoke({"n": turn}, CONFIG)
    assert list(await branches(store)) == ["main"]
    namespaces = {label.rpartition("/")[0] for label in await labels(store)}
    assert len(namespaces) == 1 + 2 * TURNS


async def test_a_prune_frees_calls_that_are_over(store: Store) -> None:
    saver = ShoalSaver(store)
    for turn in range(TURNS):
        await graph(saver).ainvoke({"n": turn}, CONFIG)
        await saver.aprune(["t"])
    assert len(await labels(store)) == 1
    assert len((await branches(store))["main"]) == 1
    left = [each async for each in store.space("langgraph").thread("t").history()]
    assert len(left) == 1, "their space is freed too"
    assert await graph(saver).ainvoke({"n": 9}, CONFIG) == {"n": 10}


async def test_a_prune_keeps_a_call_that_waits(store: Store) -> None:
    saver = ShoalSaver(store)
    waiting = graph(saver, asks=True)
    await waiting.ainvoke({"n": 1}, CONFIG)
    await saver.aprune(["t"])
    state = await waiting.aget_state(CONFIG, subgraphs=True)
    assert state.tasks[0].state.tasks[0].state.next == ("leaf",)
    assert await waiting.ainvoke(Command(resume=7), CONFIG) == {"n": 7}


async def test_a_prune_keeps_a_subgraph_with_a_memory(store: Store) -> None:
    saver, memory = ShoalSaver(store), InMemorySaver()
    for turn in range(3):
        found = await graph(saver, inner=True).ainvoke({"n": turn}, CONFIG)
        assert found == await graph(memory, inner=True).ainvoke({"n": turn}, CONFIG)
        await saver.aprune(["t"])


async def test_lines_that_were_left_go_with_a_prune(store: Store) -> None:
    saver = ShoalSaver(store)
    first = None
    for _ in range(10):
        await graph(saver).ainvoke({"n": 1}, CONFIG if first is None else first)
        first = first or [each.config async for each in graph(saver).aget_state_history(CONFIG)][-1]
    assert len((await branches(store))["main"]) == 10
    await saver.aprune(["t"])
    assert len((await branches(store))["main"]) == 1


async def test_branches_of_earlier_versions_go_with_a_prune(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def drafted(checkpoints: Checkpoints, *given: Any) -> Any:
        draft = new(checkpoints, *given)
        return draft._replace(request=replace(draft.request, headless=False))

    new = Checkpoints._draft
    saver = ShoalSaver(store)
    with monkeypatch.context() as earlier:
        earlier.setattr(Checkpoints, "_draft", drafted)
        await graph(saver).ainvoke({"n": 1}, CONFIG)
    thread = store.space("langgraph").thread("t")
    await thread.branch("what-if", at=(await thread.heads())["main"][0])
    assert len(await branches(store)) == BRANCHES_MAX
    await graph(saver).ainvoke({"n": 2}, CONFIG)  # It needs no room.
    await saver.aprune(["t"])
    assert list(await branches(store)) == ["main", "what-if"]


async def test_a_copy_has_one_branch(store: Store) -> None:
    saver = ShoalSaver(store)
    for turn in range(BRANCHES_MAX):
        await graph(saver).ainvoke({"n": turn}, CONFIG)
    await saver.acopy_thread("t", "copy")
    thread = store.space("langgraph").thread("copy")
    assert list(await thread.heads()) == ["main"]
    assert [label async for label, _ in thread.labels()] == await labels(store)


async def test_all_checkpoints_of_a_run_are_freed(store: Store) -> None:
    saver = ShoalSaver(store)
    run = CONFIG | {"metadata": {"run_id": "r"}}
    await graph(saver).ainvoke({"n": 1}, run)
    await saver.adelete_for_runs(["r"])
    assert await labels(store) == []
    assert await branches(store) == {}
    assert await graph(saver).ainvoke({"n": 5}, CONFIG) == {"n": 6}
    request = requests.ReadLabels("langgraph", "t")
    assert (await store.connection.read(request)).items
