"""A thread's status, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.client.connection import StoreConnection
from shoal.config import Config
from shoal.errors import InvalidInput
from shoal.kinds.step.handle.resume import Standing
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.node import Node
from shoal.protocol.requests import NodeStatus, Status
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    one = Node(MemoryStorage(), config=Config(), environment=SimulatedEnvironment(1).environment)
    yield one
    await one.stop()


@pytest.fixture
def thread(node: Node) -> Thread:
    environment = SimulatedEnvironment(9).environment
    return Thread(StoreConnection(node.session(), Config(), "local", environment.entropy), "crew", "t")


async def somebody_watches(node: Node) -> None:
    while True:
        status = await node.session().call(Status())
        assert isinstance(status, NodeStatus)
        if status.connections:
            return
        await asyncio.sleep(0)


async def test_a_thread_is_running_until_somebody_says_otherwise(thread: Thread) -> None:
    assert await thread.status() == Standing("running", "", "", None)


async def test_every_move_is_the_status_and_in_the_journal(thread: Thread) -> None:
    moves = [
        await thread.pause("too dear", by="ana"),
        await thread.request_approval("is this right?", by="agent"),
        await thread.approve(by="ana"),
        await thread.fail(ValueError("no"), by="agent"),
        await thread.finish(),
    ]
    assert [(move.status, move.reason, move.by) for move in moves] == [
        ("paused", "too dear", "ana"),
        ("waiting", "is this right?", "agent"),
        ("running", "", "ana"),
        ("failed", "ValueError: no", "agent"),
        ("done", "", ""),
    ]
    assert await thread.status() == moves[-1]
    assert [event.event async for event in thread.journal.read()] == [
        {"kind": "status", "status": move.status, "by": move.by, "reason": move.reason} for move in moves
    ]


async def test_waiting_for_a_status_ends_when_it_comes(thread: Thread, node: Node) -> None:
    waiting = asyncio.create_task(thread.wait_for(("done", "failed")))
    await somebody_watches(node)
    await thread.pause()
    await thread.save({"n": 1})
    await thread.finish(by="ana")
    assert (await waiting).by == "ana"
    assert (await thread.wait_for("done")).status == "done"


async def test_ready_waits_for_approval_and_saving_does_not(thread: Thread, node: Node) -> None:
    await thread.ready()
    await thread.request_approval("is this right?")
    waiting = asyncio.create_task(thread.ready())
    await somebody_watches(node)
    await thread.save({"n": 1})
    assert not waiting.done()
    await thread.approve(by="ana")
    await waiting


async def test_a_paused_thread_is_saved_and_not_ready(thread: Thread) -> None:
    await thread.pause()
    await thread.save({"n": 1})
    with pytest.raises(TimeoutError):
        await thread.ready(timeout=0.01)


@pytest.mark.parametrize("status", ["asleep", (), ("done", "asleep")])
async def test_a_status_that_does_not_exist_is_refused(thread: Thread, status: object) -> None:
    with pytest.raises(InvalidInput, match="a status must be one of"):
        await thread.wait_for(status)  # type: ignore[arg-type]
