"""The laws of a plan store: each holds for the harness's own stores, and for ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.planning import InMemoryPlanStore, PlanItem, Planning, PlanStore, SqlitePlanStore, TaskStatus

from shoal.client.store import Store
from shoal.errors import InvalidName, SchemaTooNew
from shoal.integrations.harness import ShoalPlanStore


@pytest.fixture(params=["memory", "sqlite", "embedded", "served"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield InMemoryPlanStore()
    elif request.param == "sqlite":
        yield SqlitePlanStore(str(tmp_path / "plan.db"))
    elif request.param == "embedded":
        async with ShoalPlanStore.open(tmp_path / "s") as each:
            yield each
    else:
        async with ShoalPlanStore.connect(request.getfixturevalue("url"), space=str(request.node.name)[:200]) as each:
            yield each


def item(id: str, **more: Any) -> PlanItem:
    return PlanItem(id=id, content=f"do {id}", **more)


async def test_a_plan_comes_back_in_order(store: PlanStore) -> None:
    assert await store.get_items() == []
    items = [item("b", status=TaskStatus.in_progress, active_form="doing"), item("a", parent_id="b", depends_on=["b", "c"])]
    await store.set_items(items)
    await store.add_item(item("c"))
    assert await store.get_items() == [*items, item("c")]
    assert await store.get_item("a") == items[1]
    assert await store.get_item("z") is None
    await store.set_items([])
    assert await store.get_items() == []


async def test_a_step_is_updated_in_the_fields_that_are_given(store: PlanStore) -> None:
    await store.set_items([item("a", active_form="doing"), item("b")])
    updated = await store.update_item("a", status=TaskStatus.completed, depends_on=["b"])
    assert updated == item("a", active_form="doing", status=TaskStatus.completed, depends_on=["b"])
    assert await store.get_items() == [updated, item("b")]
    assert await store.update_item("z", content="no") is None


async def test_a_step_is_removed_once(store: PlanStore) -> None:
    await store.set_items([item("a"), item("b")])
    assert await store.remove_item("a") is True
    assert await store.remove_item("a") is False
    assert await store.get_items() == [item("b")]


async def test_values_that_were_read_are_detached(store: PlanStore) -> None:
    await store.set_items([item("a", depends_on=["b"])])
    (found,) = await store.get_items()
    found.depends_on.append("c")
    found.content = "changed"
    assert await store.get_items() == [item("a", depends_on=["b"])]


async def test_an_agent_plans(store: PlanStore) -> None:
    agent = Agent(TestModel(call_tools=["write_plan"]), capabilities=[Planning(store=store)])
    await agent.run("plan it")
    assert len(await store.get_items()) == 1


# ── ours alone ────────────────────────────────────────────────────────────────


async def test_an_id_that_is_there_is_refused(opened: Store, space: str) -> None:
    ours = ShoalPlanStore(opened, space=space)
    await ours.add_item(item("a"))
    with pytest.raises(ValueError, match="already"):
        await ours.add_item(item("a"))
    assert await ours.get_items() == [item("a")]


async def test_two_that_change_a_plan_at_once_lose_nothing(opened: Store, space: str) -> None:
    stores = [ShoalPlanStore(opened, space=space) for _ in range(4)]
    await asyncio.gather(*(each.add_item(item(f"{nth}")) for nth, each in enumerate(stores)))
    assert {each.id for each in await stores[0].get_items()} == {"0", "1", "2", "3"}


async def test_plans_of_other_sessions_are_others(opened: Store, space: str) -> None:
    for session in ("default", "a/b", "..", ""):
        await ShoalPlanStore(opened, space=space, session=session).add_item(item("a"))
    with pytest.raises(InvalidName):
        ShoalPlanStore(opened, space=space, session="x" * 2048)


async def test_data_of_a_newer_version_is_refused(opened: Store, space: str) -> None:
    ours = ShoalPlanStore(opened, space=space)
    for bad in ({"harness": 99}, {"harness": 1, "value": {"status": "postponed"}}):
        await opened.space(space).thread("plan/default").save({"items": [bad]}, overwrite=True)
        with pytest.raises(SchemaTooNew):
            await ours.get_items()
        with pytest.raises(SchemaTooNew):
            await ours.add_item(item("a"))
