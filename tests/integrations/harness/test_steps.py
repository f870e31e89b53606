"""The laws of a step store: each holds for the harness's own stores, and for ours."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    InMemoryStepStore,
    RunRecord,
    SqliteStepStore,
    StepEvent,
    StepPersistence,
    StepStore,
    ToolEffectRecord,
    continue_run,
)

import shoal
from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidName, InvalidValue, SchemaTooNew
from shoal.integrations.harness import ShoalStepStore

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite", "embedded", "served"])
async def made(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function of `max_snapshots_per_run` that makes a store on one place."""
    if request.param == "memory":
        yield lambda **options: InMemoryStepStore(**options)
    elif request.param == "sqlite":
        yield lambda **options: SqliteStepStore(database=tmp_path / "steps.db", **options)
    else:
        there = shoal.open(tmp_path / "s") if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
        async with there as opened:
            yield lambda **options: ShoalStepStore(opened, space=str(request.node.name)[:200], **options)


@pytest.fixture
async def store(made: Any) -> Any:
    return made()


def event(kind: Any, key: str | None = None, **more: Any) -> StepEvent:
    return StepEvent(run_id="r", kind=kind, step_index=0, timestamp=AT, idempotency_key=key, **more)


def snapshot(text: str, key: str | None = None, state: Any = "complete") -> ContinuableSnapshot:
    messages: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart(text, timestamp=AT)]),
        ModelResponse(parts=[TextPart("ok")], timestamp=AT),
    ]
    return ContinuableSnapshot(
        run_id="r", step_index=1, messages=messages, timestamp=AT, state=state, idempotency_key=key, conversation_id="c"
    )


def said(found: ContinuableSnapshot | None) -> Any:
    return None if found is None else found.messages[0].parts[0].content


# ── runs ──────────────────────────────────────────────────────────────────────


async def test_a_run_comes_back(store: StepStore) -> None:
    record = RunRecord(
        run_id="r",
        conversation_id="c",
        parent_run_id="p",
        agent_name="a",
        metadata={"k": "é"},
        started_at=AT,
        registration_id="x",
    )
    await store.register_run(record)
    assert await store.get_run(run_id="r") == record
    assert await store.get_run(run_id="other") is None


async def test_runs_are_listed_by_parent_and_conversation_in_the_order_of_their_beginnings(store: StepStore) -> None:
    for nth, (parent, conversation) in enumerate([("p", "c"), (None, "c"), ("p", None), ("q", "c")]):
        started = AT - timedelta(seconds=nth)
        await store.register_run(
            RunRecord(run_id=f"r{nth}", parent_run_id=parent, conversation_id=conversation, started_at=started)
        )

    async def ids(**filter: Any) -> list[str]:
        return [record.run_id for record in await store.list_runs(**filter)]

    assert await ids() == ["r3", "r2", "r1", "r0"]
    assert await ids(parent_run_id="p") == ["r2", "r0"]
    assert await ids(conversation_id="c") == ["r3", "r1", "r0"]
    assert await ids(parent_run_id="p", conversation_id="c") == ["r0"]


async def test_a_run_id_is_used_once(store: StepStore) -> None:
    record = RunRecord(run_id="r", registration_id="x", started_at=AT)
    await store.register_run(record)
    if isinstance(store, InMemoryStepStore):
        return  # Its capability looks before it registers.
    with pytest.raises((ValueError, sqlite3.IntegrityError)):
        await store.register_run(replace(record, registration_id="y"))
    assert await store.get_run(run_id="r") == record


# ── events ────────────────────────────────────────────────────────────────────


async def test_events_come_back_in_order(store: StepStore) -> None:
    events = [
        event("run_started", metadata={"a": "b"}),
        event("tool_call_failed", tool_call_id="c", tool_name="t", error="\n" * 3, agent_name="n", parent_run_id="p"),
        event("run_failed"),
        event("run_failed"),
    ]
    for each in events:
        await store.append_event(each)
    assert await store.list_events(run_id="r") == events
    assert await store.list_events(run_id="other") == []


async def test_an_event_of_a_known_key_is_there_once(store: StepStore) -> None:
    first = event("run_started", "k")
    for each in (first, first, replace(first, timestamp=AT + timedelta(seconds=1)), event("run_completed", "k" * 300)):
        await store.append_event(each)
    assert [each.kind for each in await store.list_events(run_id="r")] == ["run_started", "run_completed"]


# ── snapshots ─────────────────────────────────────────────────────────────────


async def test_the_newest_snapshot_comes_back(store: StepStore) -> None:
    assert await store.latest_snapshot(run_id="r") is None
    assert await store.latest_snapshot(run_id="r", include_interrupted=True) is None
    await store.save_snapshot(snapshot("a"))
    await store.save_snapshot(snapshot("b", state="interrupted"))
    assert await store.latest_snapshot(run_id="r") == snapshot("a")
    assert await store.latest_snapshot(run_id="r", include_interrupted=True) == snapshot("b", state="interrupted")


@pytest.mark.parametrize("made", ["memory", "embedded", "served"], indirect=True)  # The one in SQLite keeps every sequence.
async def test_a_snapshot_of_a_known_key_or_a_lower_sequence_is_not_saved(made: Any) -> None:
    store = made()
    for each in [
        snapshot("a", "1:x"),
        snapshot("again", "1:x"),
        snapshot("beside", "1:y"),
        snapshot("b", "3:x"),
        snapshot("late", "2:x"),
        snapshot("late", "1:y"),
        snapshot("plain", "no number"),
        snapshot("plain again", "no number"),
        snapshot("c", None),
    ]:
        await store.save_snapshot(each)
    found = [said(each) for each in await store.list_snapshots(run_id="r")]
    assert found == ["a", "beside", "b", "plain", "c"]


async def test_old_snapshots_are_pruned_but_for_the_newest_complete_one(made: Any) -> None:
    store = made(max_snapshots_per_run=2)
    await store.save_snapshot(snapshot("complete", "1:x"))
    for nth in range(2, 7):
        await store.save_snapshot(snapshot(f"{nth}", f"{nth}:x", state="interrupted"))
    assert said(await store.latest_snapshot(run_id="r")) == "complete"
    assert said(await store.latest_snapshot(run_id="r", include_interrupted=True)) == "6"
    found = [said(each) for each in await store.list_snapshots(run_id="r", include_interrupted=True)]
    assert found == ["complete", "5", "6"]
    await store.save_snapshot(snapshot("late", "4:x"))
    assert said(await store.latest_snapshot(run_id="r")) == "complete"


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2"])
async def test_a_bound_that_is_none_is_refused(bad: Any, made: Any) -> None:
    with pytest.raises(ValueError, match="max_snapshots_per_run"):
        made(max_snapshots_per_run=bad)


# ── effects ───────────────────────────────────────────────────────────────────


async def test_effects_are_replaced_and_those_that_have_not_ended_are_listed(store: StepStore) -> None:
    records = [
        ToolEffectRecord(tool_call_id=id, tool_name="pay", run_id="r", status="started", started_at=AT + timedelta(seconds=nth))
        for nth, id in enumerate(("z", "a/b", "c"))
    ]
    for record in records:
        await store.record_tool_effect(record)
    ended = replace(records[0], status="completed", ended_at=AT, idempotency_key="k", effect_summary="paid")
    await store.record_tool_effect(ended)
    assert await store.get_tool_effect(run_id="r", tool_call_id="z") == ended
    assert await store.get_tool_effect(run_id="r", tool_call_id="other") is None
    assert await store.get_tool_effect(run_id="other", tool_call_id="z") is None
    assert await store.list_unresolved_tool_effects(run_id="r") == records[1:]


async def test_an_agent_that_persists_its_steps_is_continued(store: StepStore) -> None:
    agent = Agent(TestModel(), name="clerk", capabilities=[StepPersistence(store=store)])

    @agent.tool_plain
    def look() -> str:
        return "rain"

    result = await agent.run("what is the weather?")
    history = await continue_run(store, run_id=result.run_id)
    assert history == result.all_messages()
    kinds = [each.kind for each in await store.list_events(run_id=result.run_id)]
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_completed"
    assert await store.list_unresolved_tool_effects(run_id=result.run_id) == []


# ── ours alone ────────────────────────────────────────────────────────────────


async def test_ids_are_arbitrary_text_and_too_long_ones_are_refused(opened: Store, space: str) -> None:
    ours = ShoalStepStore(opened, space=space)
    for id in ("{x}", "a/b.c", "..", "\ud800"):
        await ours.register_run(RunRecord(run_id=id, started_at=AT))
        await ours.append_event(replace(event("run_started"), run_id=id))
        await ours.save_snapshot(replace(snapshot(id.encode("utf-8", "replace").decode()), run_id=id))
        await ours.record_tool_effect(ToolEffectRecord(tool_call_id=id, tool_name="t", run_id=id, status="started"))
        assert len(await ours.list_events(run_id=id)) == len(await ours.list_snapshots(run_id=id)) == 1
        assert len(await ours.list_unresolved_tool_effects(run_id=id)) == 1
    with pytest.raises(InvalidName):
        await ours.append_event(replace(event("run_started"), run_id="x" * 2048))
    with pytest.raises(InvalidName):
        await ours.register_run(RunRecord(run_id="x" * 2048))
    with pytest.raises(InvalidInput, match="empty"):
        await ours.append_event(event("run_started", ""))


async def test_values_without_a_json_form_are_refused(opened: Store, space: str) -> None:
    ours = ShoalStepStore(opened, space=space)
    bad = replace(snapshot("a"), messages=[ModelRequest(parts=[ToolReturnPart("t", object(), tool_call_id="c")])])
    with pytest.raises(InvalidValue):
        await ours.save_snapshot(bad)
    assert await ours.list_snapshots(run_id="r") == []


async def test_data_of_a_newer_version_is_refused(opened: Store, space: str) -> None:
    ours, there = ShoalStepStore(opened, space=space), opened.space(space)
    await there.thread("{r}/run").journal.append({"harness": 99, "value": {}})
    with pytest.raises(SchemaTooNew):
        await ours.list_events(run_id="r")
    await there.thread("{s}/run").save({"state": "half"}, metadata={"harness": 1}, label="complete")
    with pytest.raises(SchemaTooNew):
        await ours.latest_snapshot(run_id="s")
    await there.items.put(("runs",), "t", {"harness": 1, "value": {"run_id": 7}})
    with pytest.raises(SchemaTooNew):
        await ours.get_run(run_id="t")


async def test_snapshots_that_are_saved_at_once_are_all_there(opened: Store, space: str) -> None:
    stores = [ShoalStepStore(opened, space=space) for _ in range(4)]
    await asyncio.gather(*(each.save_snapshot(snapshot(f"{nth}", f"1:{nth}")) for nth, each in enumerate(stores)))
    assert {said(each) for each in await stores[0].list_snapshots(run_id="r")} == {"0", "1", "2", "3"}
