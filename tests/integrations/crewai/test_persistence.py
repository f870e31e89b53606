"""What CrewAI's own tests leave open: people, bad input, two writers, threads and loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.factory import default_flow_persistence, set_flow_persistence_factory

import shoal
from shoal.config import Config
from shoal.errors import Disconnected, InvalidInput, InvalidName, InvalidValue, SchemaTooNew, StoreClosed, TooLarge
from shoal.integrations.crewai import ShoalFlowPersistence
from tests.cli.conftest import served
from tests.integrations.crewai import worker


def waiting(flow: str = "f") -> PendingFeedbackContext:
    return PendingFeedbackContext(
        flow_id=flow, flow_class="Refund", method_name="ask", method_output={"sum": 5}, message="sure?", emit=["yes", "no"]
    )


def test_the_newest_state_comes_back(persistence: ShoalFlowPersistence) -> None:
    assert persistence.load_state("f") is None
    states: list[dict[str, Any]] = [{"n": 1, "big": 2**70}, {"half": "\ud83d", "nested": [None, True, 1.5]}, {}]
    for state in states:
        persistence.save_state("f", "step", state)
        assert persistence.load_state("f") == state
    assert persistence.load_state("g") is None


def test_a_uuid_is_the_id_of_a_flow(persistence: ShoalFlowPersistence) -> None:
    flow: Any = UUID(int=5)
    persistence.save_state(flow, "step", {"n": 1})
    assert persistence.load_state(flow) == persistence.load_state(str(flow)) == {"n": 1}
    for id in (None, True, b"f"):
        with pytest.raises(InvalidName, match="must be text, an int or a UUID"):
            persistence.save_state(id, "step", {})  # type: ignore[arg-type]


def test_a_flow_goes_on_from_its_state(persistence: ShoalFlowPersistence) -> None:
    for _ in range(3):
        worker.turn_on(persistence)
    assert persistence.load_state(worker.FLOW) == {"id": worker.FLOW, "counted": [0, 1, 2], "begun": 3}


def test_a_flow_that_waits_for_a_person(persistence: ShoalFlowPersistence) -> None:
    assert persistence.load_pending_feedback("f") is None
    persistence.clear_pending_feedback("f")
    context = waiting()
    persistence.save_pending_feedback("f", context, {"n": 1})
    persistence.save_state("f", "other", {"n": 2})
    found = persistence.load_pending_feedback("f")
    assert found is not None
    assert found[0] == {"n": 1}
    assert found[1].to_dict() == context.to_dict()
    persistence.clear_pending_feedback("f")
    assert persistence.load_pending_feedback("f") is None
    assert persistence.load_state("f") == {"n": 2}


def test_a_flow_has_a_history(tmp_path: Path) -> None:
    with ShoalFlowPersistence.open(tmp_path / "state") as persistence:
        for step in ("one", "two"):
            persistence.save_state("f", step, {"at": step})
    with shoal.sync.open(tmp_path / "state") as store:
        history = list(store.space("crewai").thread("f").history())
        assert [each.metadata["method"] for each in history] == ["two", "one"]


def test_writers_at_once_leave_one_of_their_states(persistence: ShoalFlowPersistence) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda nth: persistence.save_state("f", "step", {"n": nth, "same": nth}), range(20)))
    found = persistence.load_state("f")
    assert found is not None
    assert found["n"] == found["same"]


async def test_an_asynchronous_program(persistence: ShoalFlowPersistence) -> None:
    await worker.flow_on(persistence).kickoff_async(inputs={"id": worker.FLOW})
    found = persistence.load_state(worker.FLOW)
    assert found is not None
    assert found["counted"] == [0]


async def test_on_the_loop_of_the_store_it_refuses_to_wait_for_itself(tmp_path: Path) -> None:
    async with ShoalFlowPersistence.open(tmp_path / "state") as persistence:
        with pytest.raises(InvalidInput, match="Nothing was written"):
            persistence.save_state("f", "step", {})
        await asyncio.to_thread(persistence.save_state, "f", "step", {"n": 1})


def test_it_is_the_default_of_all_flows(persistence: ShoalFlowPersistence) -> None:
    set_flow_persistence_factory(lambda: persistence)
    try:
        assert default_flow_persistence() is persistence
    finally:
        set_flow_persistence_factory(None)


def circle() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["it"] = made
    return made


@pytest.mark.parametrize("bad", [{("a",): 1}, circle(), "text", None])
def test_values_without_json_are_refused_whole(persistence: ShoalFlowPersistence, bad: Any) -> None:
    saves: list[Callable[[], object]] = [
        lambda: persistence.save_state("f", "step", bad),
        lambda: persistence.save_pending_feedback("f", waiting(), bad),
    ]
    for save in saves:
        with pytest.raises(InvalidValue, match="Nothing was written"):
            save()
    assert persistence.load_state("f") is None


@pytest.mark.parametrize("id", ["a/b", "..", "%2f", "größe\x00", "{tag}", ""])
def test_ids_are_arbitrary_text(persistence: ShoalFlowPersistence, id: str) -> None:
    persistence.save_state(id, "step", {"id": id})
    assert persistence.load_state(id) == {"id": id}


def test_names_and_values_too_large_are_refused(tmp_path: Path) -> None:
    with ShoalFlowPersistence.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as persistence:
        with pytest.raises(InvalidName, match="at most 1024 bytes"):
            persistence.save_state("f" * 2048, "step", {})
        with pytest.raises(TooLarge):
            persistence.save_state("f", "step", {"n": "x" * 70_000})
        assert persistence.load_state("f") is None


def test_a_newer_form_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        store.space("crewai").thread("f").save({"other": 1}, metadata={"crewai": 2})
    with ShoalFlowPersistence.open(tmp_path / "state") as persistence:
        calls: list[Callable[[], object]] = [
            lambda: persistence.load_state("f"),
            lambda: persistence.save_state("f", "step", {}),
            lambda: persistence.save_pending_feedback("f", waiting(), {}),
            lambda: persistence.clear_pending_feedback("f"),
        ]
        for call in calls:
            with pytest.raises(SchemaTooNew, match="Update Shoal here"):
                call()
    with shoal.sync.open(tmp_path / "state") as store:
        assert store.space("crewai").thread("f").load().state == {"other": 1}


def test_a_node_that_is_gone_in_the_middle(tmp_path: Path) -> None:
    quick = Config(request_timeout_s=0.2, failover_timeout_s=0.1)
    with served(tmp_path / "state") as (process, url), ShoalFlowPersistence.connect(url, config=quick) as persistence:
        persistence.save_state("f", "one", {"n": 1})
        process.kill()
        process.wait()
        with pytest.raises(Disconnected):
            persistence.save_pending_feedback("f", waiting(), {"n": 2})
    with ShoalFlowPersistence.open(tmp_path / "state") as persistence:
        assert persistence.load_state("f") == {"n": 1}
        assert persistence.load_pending_feedback("f") is None
    with pytest.raises(StoreClosed):
        persistence.load_state("f")


@pytest.mark.parametrize("given", ["./x", Path("x"), "http://n1:7400", None])
def test_anything_but_an_open_store_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(InvalidInput, match="ShoalFlowPersistence needs an open store"):
        ShoalFlowPersistence(given)
