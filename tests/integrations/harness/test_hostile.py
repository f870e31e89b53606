"""Another agent has overwritten what a reader reads: no hostile value makes a reader of the harness's stores run code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from pydantic_ai_harness.step_persistence import RunRecord, ToolEffectRecord

from shoal.client.store import Store
from shoal.integrations.harness import ShoalMemoryStore, ShoalPlanStore, ShoalSpendStore, ShoalStepStore
from tests.integrations.harness.test_plans import item
from tests.integrations.harness.test_spend import entry
from tests.integrations.harness.test_steps import AT, event, snapshot
from tests.support.hostile import lying, read_hostile

Reads = Mapping[str, Callable[[], Awaitable[Any]]]


async def memories(opened: Store, space: str) -> Reads:
    store = ShoalMemoryStore(opened, space=space)
    await store.write_with_metadata("a/b.md", "text", expected_version=None, metadata={"by": "ann"})
    return {
        "read": lambda: store.read("a/b.md", max_chars=100),
        "list": lambda: store.list_paths(limit=10),
    }


async def plans(opened: Store, space: str) -> Reads:
    store = ShoalPlanStore(opened, space=space)
    await store.set_items([item("b"), item("a", parent_id="b", depends_on=["b"])])
    return {"items": lambda: ShoalPlanStore(opened, space=space).get_items(), "item": lambda: store.get_item("a")}


async def spends(opened: Store, space: str) -> Reads:
    store = ShoalSpendStore(opened, space=space)
    await store.add_many([entry("a"), entry("b")])
    return {"many": lambda: ShoalSpendStore(opened, space=space).get_many(["a", "b"])}


async def steps(opened: Store, space: str) -> Reads:
    store = ShoalStepStore(opened, space=space)
    await store.register_run(RunRecord(run_id="r", started_at=AT))
    await store.append_event(event("tool_call_started", "k"))
    await store.save_snapshot(snapshot("hi"))
    await store.record_tool_effect(
        ToolEffectRecord(run_id="r", tool_call_id="c", tool_name="t", status="started", started_at=AT)
    )
    return {
        "run": lambda: store.get_run(run_id="r"),
        "runs": store.list_runs,
        "events": lambda: store.list_events(run_id="r"),
        "snapshot": lambda: store.latest_snapshot(run_id="r"),
        "snapshots": lambda: store.list_snapshots(run_id="r"),
        "effect": lambda: store.get_tool_effect(run_id="r", tool_call_id="c"),
        "effects": lambda: store.list_unresolved_tool_effects(run_id="r"),
    }


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@pytest.mark.parametrize("filled", [memories, plans, spends, steps])
async def test_hostile_values_run_nothing(opened: Store, space: str, filled: Callable[[Store, str], Awaitable[Reads]]) -> None:
    liar = lying(opened)
    for read in (await filled(opened, space)).values():
        await read_hostile(liar, read, rounds=60)
