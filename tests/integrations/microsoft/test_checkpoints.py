"""Checkpoints: what the framework's own storages keep, and what is ours."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agent_framework import FileCheckpointStorage, InMemoryCheckpointStorage, WorkflowCheckpoint
from agent_framework.exceptions import WorkflowCheckpointException

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import Disconnected, InvalidInput, InvalidName, SchemaTooNew, TooLarge
from shoal.integrations.microsoft import ShoalCheckpointStorage, ShoalHistoryProvider, ShoalState
from tests.cli.conftest import served
from tests.integrations.microsoft import worker

FLOW = "refund"


@dataclasses.dataclass
class Order:
    number: int


ORDER = f"{Order.__module__}:{Order.__qualname__}"


def checkpoint(nth: int, flow: str = FLOW, **more: Any) -> WorkflowCheckpoint:
    at = f"2026-01-01T00:00:{nth:02}+00:00"
    given: dict[str, Any] = {"checkpoint_id": f"c{nth}", "timestamp": at, "iteration_count": nth, "state": {"n": nth}}
    return WorkflowCheckpoint(workflow_name=flow, graph_signature_hash="h", **(given | more))


@pytest.fixture(params=["embedded", "served", "theirs in memory", "theirs in files"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path, space: str) -> AsyncIterator[Any]:
    if request.param == "theirs in memory":
        yield InMemoryCheckpointStorage()
    elif request.param == "theirs in files":
        yield FileCheckpointStorage(tmp_path / "files", allowed_checkpoint_types=[ORDER])
    else:
        where = tmp_path / "state"
        store = shoal.open(where) if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
        async with store as opened:
            yield ShoalCheckpointStorage(opened, space=space, allowed_checkpoint_types=[ORDER])


@pytest.fixture
async def ours(opened: Store, space: str) -> ShoalCheckpointStorage:
    return ShoalCheckpointStorage(opened, space=space)


# ── laws of the framework ─────────────────────────────────────────────────────


async def test_a_checkpoint_comes_back_as_a_copy(storage: Any) -> None:
    state = {"order": Order(17), "when": datetime(2026, 1, 1, tzinfo=UTC), "pair": (1, "größe\x9b"), "set": {1}, "none": None}
    given = checkpoint(1, state=state, metadata={"by": "ana"}, previous_checkpoint_id="c0")
    assert await storage.save(given) == "c1"
    given.state["order"].number = 18
    loaded = await storage.load("c1")
    assert loaded.state == state | {"order": Order(17)}
    assert (loaded.previous_checkpoint_id, loaded.metadata, loaded.iteration_count) == ("c0", {"by": "ana"}, 1)
    assert loaded.version == given.version


async def test_the_unknown(storage: Any) -> None:
    with pytest.raises(WorkflowCheckpointException, match="No checkpoint found with ID c9"):
        await storage.load("c9")
    assert await storage.delete("c9") is False
    assert await storage.get_latest(workflow_name=FLOW) is None
    assert await storage.list_checkpoints(workflow_name=FLOW) == []
    assert await storage.list_checkpoint_ids(workflow_name=FLOW) == []


async def test_checkpoints_are_of_one_workflow(storage: Any) -> None:
    for nth in (1, 3, 2):
        await storage.save(checkpoint(nth))
    await storage.save(checkpoint(9, "other"))
    assert sorted(await storage.list_checkpoint_ids(workflow_name=FLOW)) == ["c1", "c2", "c3"]
    assert sorted(each.iteration_count for each in await storage.list_checkpoints(workflow_name=FLOW)) == [1, 2, 3]
    latest = await storage.get_latest(workflow_name=FLOW)
    assert latest.checkpoint_id == "c3"
    assert await storage.delete("c3") is True
    assert (await storage.get_latest(workflow_name=FLOW)).checkpoint_id == "c2"
    with pytest.raises(WorkflowCheckpointException):
        await storage.load("c3")


async def test_the_same_id_replaces(storage: Any) -> None:
    await storage.save(checkpoint(1))
    await storage.save(checkpoint(1, "other", state={"n": "new"}))
    assert (await storage.load("c1")).state == {"n": "new"}
    assert await storage.list_checkpoint_ids(workflow_name=FLOW) == []
    assert await storage.list_checkpoint_ids(workflow_name="other") == ["c1"]


async def test_a_workflow_goes_on_from_each_of_its_checkpoints(storage: Any) -> None:
    result = await worker.workflow(storage, 4).run(0)
    assert result.get_outputs() == [[0, 1, 2, 3, 4]]
    for each in await storage.list_checkpoints(workflow_name=worker.WORKFLOW):
        outputs = (await worker.workflow(storage, 4).run(checkpoint_id=each.checkpoint_id)).get_outputs()
        assert outputs in ([[0, 1, 2, 3, 4]], [])


# ── ours ──────────────────────────────────────────────────────────────────────


@pytest.mark.answers("pickle-in-a-checkpoint-of-a-workflow-runs")
async def test_a_type_that_is_not_allowed_is_refused_on_both_ways(opened: Store, space: str) -> None:
    strict = ShoalCheckpointStorage(opened, space=space)
    with pytest.raises(WorkflowCheckpointException, match=r"Order.*Nothing was written"):
        await strict.save(checkpoint(1, state={"order": Order(17)}))
    assert await strict.list_checkpoint_ids(workflow_name=FLOW) == []
    await ShoalCheckpointStorage(opened, space=space, allowed_checkpoint_types=[ORDER]).save(
        checkpoint(2, state={"order": Order(17)})
    )
    await strict.save(checkpoint(1))
    with pytest.raises(WorkflowCheckpointException, match="Order"):
        await strict.get_latest(workflow_name=FLOW)  # Never an older one instead.
    with pytest.raises(WorkflowCheckpointException, match="Order"):
        await strict.list_checkpoints(workflow_name=FLOW)


async def test_unencodable_arguments_are_refused(ours: ShoalCheckpointStorage) -> None:
    with pytest.raises(WorkflowCheckpointException, match="Nothing was written"):
        await ours.save(checkpoint(1, state={"f": lambda: 0}))
    assert await ours.list_checkpoint_ids(workflow_name=FLOW) == []


async def test_a_checkpoint_of_a_newer_framework_is_refused(opened: Store, space: str) -> None:
    ours = ShoalCheckpointStorage(opened, space=space)
    await ours.save(checkpoint(1))
    where = ("{checkpoints}", "contents")
    items = opened.space(space).items
    item = await items.get(where, "c1")
    assert item is not None
    await items.put(where, "c1", {**item.value, "checkpoint": {**item.value["checkpoint"], "unheard_of": 1}})
    with pytest.raises(WorkflowCheckpointException, match="unheard_of"):
        await ours.load("c1")
    await items.put(where, "c1", {"microsoft": 2})
    with pytest.raises(SchemaTooNew, match="Update Shoal here"):
        await ours.load("c1")


@pytest.mark.parametrize("id", ["a/b", "..", "%2f", "größe\x00", "{tag}", ""])
async def test_ids_are_arbitrary_text(ours: ShoalCheckpointStorage, id: str) -> None:
    await ours.save(checkpoint(1, id, checkpoint_id=id))
    assert await ours.list_checkpoint_ids(workflow_name=id) == [id]
    assert (await ours.load(id)).checkpoint_id == id
    assert await ours.delete(id)


async def test_names_and_values_too_large_are_refused(tmp_path: Path) -> None:
    async with ShoalState.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as state:
        with pytest.raises(InvalidName, match="at most 1024 bytes"):
            await state.checkpoints.save(checkpoint(1, checkpoint_id="c" * 2048))
        with pytest.raises(TooLarge):
            await state.checkpoints.save(checkpoint(1, state={"n": "x" * 70_000}))
        assert await state.checkpoints.list_checkpoint_ids(workflow_name=FLOW) == []


async def test_many_writers_at_once(ours: ShoalCheckpointStorage) -> None:
    await asyncio.gather(*(ours.save(checkpoint(nth)) for nth in range(20)))
    assert await ours.list_checkpoint_ids(workflow_name=FLOW) == [f"c{nth}" for nth in range(20)]


async def test_a_node_that_is_gone_in_the_middle(tmp_path: Path) -> None:
    quick = Config(request_timeout_s=0.2, failover_timeout_s=0.1)
    with served(tmp_path / "state") as (process, url):
        async with ShoalState.connect(url, config=quick) as state:
            await state.checkpoints.save(checkpoint(1))
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.wait)
            with pytest.raises(Disconnected):
                await state.checkpoints.save(checkpoint(2))
    async with ShoalState.open(tmp_path / "state") as state:
        assert await state.checkpoints.list_checkpoint_ids(workflow_name=FLOW) == ["c1"]


def test_a_blocking_program(tmp_path: Path) -> None:
    with ShoalState.open(tmp_path / "state") as state:
        asyncio.run(state.checkpoints.save(checkpoint(1)))
    with ShoalState.open(tmp_path / "state") as state:
        assert asyncio.run(state.checkpoints.load("c1")).state == {"n": 1}


@pytest.mark.parametrize("given", ["./x", Path("x"), "http://n1:7400", None])
@pytest.mark.parametrize("kind", [ShoalState, ShoalCheckpointStorage, ShoalHistoryProvider])
def test_anything_but_an_open_store_is_refused_with_advice(kind: Any, given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"ShoalState needs an open store"):
        kind(given)
