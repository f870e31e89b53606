"""What the saver's writes ask of the node, and what becomes of the others if one is rejected."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import OwnerSuperseded, StorageFull
from shoal.integrations.langgraph import ShoalSaver
from shoal.node.node import Node
from shoal.node.writes.issuing import Issuer
from shoal.protocol.requests import Batch, Durability
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment

STEPS = 5


def config(id: str | None = None, thread_id: str = "t") -> RunnableConfig:
    there = {} if id is None else {"checkpoint_id": id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", **there}}


def checkpoint(id: str, values: dict[str, Any]) -> Checkpoint:
    return {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": dict.fromkeys(values, id)}


async def put(saver: ShoalSaver, id: str, parent: str | None = None) -> None:
    await saver.aput(config(parent), checkpoint(id, {"a": id}), {}, {"a": id})


async def stored(saver: ShoalSaver, id: str) -> Any:
    """The values and the pending writes of a checkpoint."""
    found = await saver.aget_tuple(config(id))
    assert found is not None
    return found.checkpoint["channel_values"], found.pending_writes


def shape(request: Any) -> Any:
    return [shape(each) for each in request.writes] if isinstance(request, Batch) else type(request).__name__


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that a node of this test decided, by name; a batch is a list."""
    requests: list[Any] = []
    issue = Issuer.issue

    def noted(self: Issuer, located: Any, key: str | None) -> Any:
        requests.append(shape(located.request))
        return issue(self, located, key)

    monkeypatch.setattr(Issuer, "issue", noted)
    return requests


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def opened(storage: MemoryStorage, durability: Durability) -> Store:
    settings, environment = Config(batch_writes_max=4), SimulatedEnvironment(1).environment
    node = Node(storage, config=settings, environment=environment)
    return Store(StoreConnection(node.session(), settings, durability, environment.entropy), close=node.stop)


@pytest.fixture(params=["local", "memory"])
async def store(storage: MemoryStorage, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A store whose session begins writes at once (`local`), or whose writes have to be awaited."""
    store = opened(storage, request.param)
    yield store
    await store.close()


@pytest.fixture
async def saver(store: Store) -> ShoalSaver:
    return ShoalSaver(store)


@pytest.mark.answers("writes-stored-before-or-after-their-checkpoint")
async def test_the_last_writes_of_a_step_and_the_next_put_are_one_request(saver: ShoalSaver, decided: list[Any]) -> None:
    await put(saver, "1")
    await asyncio.gather(saver.aput_writes(config("1"), [("a", 5)], "task"), put(saver, "2", "1"))
    assert decided == ["Save", ["Annotate", "Save"]]
    assert await stored(saver, "1") == ({"a": "1"}, [("task", "a", 5)])
    assert await stored(saver, "2") == ({"a": "2"}, [])


async def test_a_put_does_not_wait_for_writes_that_follow(saver: ShoalSaver, decided: list[Any]) -> None:
    await asyncio.gather(put(saver, "1"), saver.aput_writes(config("1"), [("a", 5)], "task"))
    assert decided == ["Save", "Annotate"]
    assert await stored(saver, "1") == ({"a": "1"}, [("task", "a", 5)])


async def test_writes_of_one_turn_are_one_request_for_each_thread(saver: ShoalSaver, decided: list[Any]) -> None:
    await asyncio.gather(
        *(saver.aput_writes(config("1"), [("a", task)], task) for task in "xyz"),
        saver.aput_writes(config("1", "other"), [("a", 0)], "x"),
    )
    assert sorted(decided, key=len) == [["Annotate"] * 3, "Annotate"]


async def test_a_request_holds_no_more_writes_than_a_batch_may(saver: ShoalSaver, decided: list[Any]) -> None:
    await put(saver, "1")
    tasks = [f"task-{number}" for number in range(10)]
    await asyncio.gather(*(saver.aput_writes(config("1"), [("a", 0)], task) for task in tasks))
    assert [len(each) for each in decided[1:]] == [4, 4, 2]
    _, pending = await stored(saver, "1")
    assert [write[0] for write in pending] == tasks


@pytest.mark.answers("writes-stored-before-or-after-their-checkpoint")
async def test_writes_are_kept_if_the_put_beside_them_is_rejected(store: Store, saver: ShoalSaver, decided: list[Any]) -> None:
    await put(saver, "1")
    await ShoalSaver(store).adelete_thread("t")  # As another process would: this saver still knows "1".
    decided.clear()
    await asyncio.gather(saver.aput_writes(config("2"), [("a", 5)], "task"), put(saver, "2", "1"))
    assert decided == [["Annotate", "Save"], "Annotate", "Save", "Save"]
    assert await stored(saver, "2") == ({"a": "2"}, [("task", "a", 5)])


async def test_each_of_several_writes_is_told_that_it_was_rejected(saver: ShoalSaver) -> None:
    stale = await saver.aclaim_write_ownership("t")
    await saver.aclaim_write_ownership("t")
    told = await asyncio.gather(
        stale.aput_writes(config("1"), [("a", 5)], "task"), put(stale, "2"), put(saver, "3"), return_exceptions=True
    )
    assert [type(each) for each in told] == [OwnerSuperseded, OwnerSuperseded, type(None)]
    assert await saver.aget_tuple(config("2")) is None


async def test_writes_that_may_be_made_are_not_sent_again(
    storage: MemoryStorage, saver: ShoalSaver, decided: list[Any]
) -> None:
    await put(saver, "1")
    storage.fail_next("write")
    told = await asyncio.gather(
        saver.aput_writes(config("1"), [("a", 5)], "task"), put(saver, "2", "1"), return_exceptions=True
    )
    assert [type(each) for each in told] == [StorageFull, StorageFull]
    assert decided == ["Save", ["Annotate", "Save"]]


async def test_answered_writes_outlive_a_power_cut() -> None:
    storage = MemoryStorage()
    store = opened(storage, "local")
    saver = ShoalSaver(store)
    await put(saver, "1")
    for number in range(2, 20):
        before, after = str(number - 1), str(number)
        writes = asyncio.create_task(saver.aput_writes(config(before), [("a", number)], "task"))
        await asyncio.sleep(0)
        await put(saver, after, before)
        left = opened(storage.left_by_crash(), "local")
        await writes
        assert await stored(ShoalSaver(left), before) == ({"a": before}, [("task", "a", number)])
        assert await stored(ShoalSaver(left), after) == ({"a": after}, [])
        await left.close()
    await store.close()


async def test_a_step_of_a_graph_is_one_request(saver: ShoalSaver, decided: list[Any]) -> None:
    class State(TypedDict, total=False):
        done: Annotated[list[int], operator.add]

    async def work(state: State) -> State:
        return {"done": [len(state["done"])]}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if len(state["done"]) < STEPS else "__end__")
    compiled = graph.compile(checkpointer=saver)
    final = await compiled.ainvoke({"done": []}, config(), durability="sync")
    assert final == {"done": list(range(STEPS))}
    assert sorted(decided[:3]) == ["Annotate", "Save", "Save"]  # The input, and what it triggers.
    assert decided[3:] == [["Annotate", "Save"]] * STEPS


# ── from other threads ────────────────────────────────────────────────────────


def test_a_blocking_put_is_packed_on_its_own_thread(tmp_path: Path) -> None:
    class Noting(JsonPlusSerializer):
        threads: set[str] = set()  # noqa: RUF012

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            self.threads.add(threading.current_thread().name)
            return super().dumps_typed(obj)

    with ShoalSaver.open(tmp_path / "state", serde=Noting()) as saver:
        first = saver.put(config(), checkpoint("1", {"a": 1}), {}, {"a": "1"})
        saver.put_writes(first, [("a", 2)], "task")
        saver.put(first, checkpoint("2", {"a": 2}), {}, {"a": "2"})
        assert Noting.threads == {threading.current_thread().name}


async def test_writes_of_several_threads_wake_the_loop_once(saver: ShoalSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[Any] = []
    posted = threading.Barrier(5)
    monkeypatch.setattr(saver._bridge, "soon", woken.append)
    wait = saver._bridge.waited

    def waited(future: Any) -> Any:
        posted.wait(30)
        return wait(future)

    monkeypatch.setattr(saver._bridge, "waited", waited)
    puts = [
        asyncio.create_task(asyncio.to_thread(saver.put, config(thread_id=f"t-{number}"), checkpoint("1", {}), {}, {}))
        for number in range(4)
    ]
    await asyncio.to_thread(posted.wait, 30)
    [send] = woken
    send()
    assert len(await asyncio.gather(*puts)) == 4


async def test_a_write_of_an_interrupted_thread_is_not_sent(
    saver: ShoalSaver, decided: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(future: Any) -> Any:
        future.cancel()
        raise KeyboardInterrupt

    monkeypatch.setattr(saver._bridge, "waited", interrupted)
    send: list[Any] = []
    monkeypatch.setattr(saver._bridge, "soon", send.append)

    def blocked() -> bool:
        with pytest.raises(KeyboardInterrupt):
            saver.put(config(), checkpoint("1", {}), {}, {})
        return True

    assert await asyncio.to_thread(blocked)
    send[0]()
    assert decided == []


async def test_a_copy_builds_on_the_copy_of_its_parent(store: Store, saver: ShoalSaver) -> None:
    await put(saver, "1")
    await put(saver, "2", "1")
    await saver.acopy_thread("t", "copy")
    heads = await store.space("langgraph").thread("copy").heads()
    assert [len(ids) for ids in heads.values()] == [1]


@pytest.mark.parametrize("store", ["local"], indirect=True)
async def test_a_write_is_begun_without_a_task(saver: ShoalSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreConnection, "write", lambda *_, **__: pytest.fail("a task was made"))
    await put(saver, "1")
    await saver.aput_writes(config("1"), [("a", 1)], "task")
