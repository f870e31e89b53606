"""The laws of a spend store: each holds for the harness's own store in memory, and for ours."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.spend import (
    BatchSpendStore,
    Budget,
    InMemorySpendStore,
    SpendEntry,
    SpendLimitExceeded,
    SpendLimits,
    Spent,
)

from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidName, SchemaTooNew
from shoal.integrations.harness import ShoalSpendStore


@pytest.fixture(params=["memory", "embedded", "served"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield InMemorySpendStore()
    elif request.param == "embedded":
        async with ShoalSpendStore.open(tmp_path / "s") as each:
            yield each
    else:
        async with ShoalSpendStore.connect(request.getfixturevalue("url"), space=str(request.node.name)[:200]) as each:
            yield each


def entry(key: str, usd: str = "0.1", **more: Any) -> SpendEntry:
    return SpendEntry(key=key, usd=Decimal(usd), tokens=10, requests=1, **more)


def spent(usd: str, times: int = 1) -> Spent:
    return Spent(usd=Decimal(usd), tokens=10 * times, requests=times)


async def test_a_key_that_was_never_added_to_is_zero(store: BatchSpendStore) -> None:
    assert dict(await store.get_many(["a", "b.c/d"])) == {"a": Spent(), "b.c/d": Spent()}
    assert dict(await store.get_many([])) == {}
    assert dict(await store.add_many([])) == {}


async def test_adds_are_summed_exactly(store: BatchSpendStore) -> None:
    with localcontext() as context:
        context.prec = 3
        totals = await store.add_many([entry("a", "0.000000000001"), entry("b"), entry("a", "123456789.1")])
    assert totals["a"] == spent("123456789.100000000001", 2)
    assert totals["b"] == spent("0.1")
    totals = await store.add_many([SpendEntry(key="a", usd=Decimal("-123456789.1"), unpriced=1)])
    assert totals["a"].usd == Decimal("0.000000000001")
    assert totals["a"].unpriced_requests == 1
    assert dict(await store.get_many(["a"])) == {"a": totals["a"]}


async def test_a_token_counts_once_for_each_key(store: BatchSpendStore) -> None:
    for _ in range(3):
        totals = await store.add_many(
            [entry("a", token="t"), entry("b", token="t"), entry("a", token="t"), entry("a", token="u")]
        )
    assert totals["a"] == spent("0.2", 2)
    assert totals["b"] == spent("0.1")
    assert (await store.add_many([entry("c", token="t")]))["c"] == spent("0.1")
    assert (await store.add_many([entry("a"), entry("a")]))["a"] == spent("0.4", 4)


async def test_additions_at_once_are_all_counted(store: BatchSpendStore) -> None:
    await asyncio.gather(*(store.add_many([entry("a"), entry(f"own-{nth}")]) for nth in range(8)))
    assert (await store.get_many(["a"]))["a"] == spent("0.8", 8)


async def test_a_budget_stops_an_agent(store: BatchSpendStore) -> None:
    agent = Agent(TestModel(), capabilities=[SpendLimits(budgets=[Budget(window="day", tokens=1)], store=store)])
    await agent.run("hello")
    with pytest.raises(SpendLimitExceeded):
        await agent.run("again")


# ── ours alone ────────────────────────────────────────────────────────────────


@pytest.mark.answers("workers-on-several-nodes-overspend-a-budget")
async def test_adds_of_several_workers_are_one_sum(opened: Store, space: str) -> None:
    workers = [ShoalSpendStore(opened, space=space) for _ in range(3)]
    await asyncio.gather(*(worker.add_many([entry("a", token=f"{nth}")]) for nth, worker in enumerate(workers)))
    again = await asyncio.gather(*(worker.add_many([entry("a", token="0")]) for worker in workers))
    assert [each["a"] for each in again] == [spent("0.3", 3)] * 3


async def test_a_window_ends_with_its_time_to_live(opened: Store, space: str) -> None:
    ours = ShoalSpendStore(opened, space=space)
    await ours.add_many([entry("a", ttl=timedelta(milliseconds=1), token="t"), entry("b", ttl=timedelta(days=1))])
    while (await ours.get_many(["a"]))["a"] != Spent():
        await asyncio.sleep(0.001)
    assert (await ours.get_many(["b"]))["b"] == spent("0.1")
    assert (await ours.add_many([entry("a", token="t")]))["a"] == spent("0.1")


@pytest.mark.parametrize("bad", ["NaN", "Infinity"])
async def test_amounts_that_are_none_are_refused_whole(bad: str, opened: Store, space: str) -> None:
    ours = ShoalSpendStore(opened, space=space)
    with pytest.raises(InvalidInput):
        await ours.add_many([entry("a"), entry("b", bad)])
    with pytest.raises(InvalidName):
        await ours.add_many([entry("a"), entry("x" * 2048)])
    with pytest.raises(InvalidInput):
        await ours.add_many([entry(f"{nth}") for nth in range(5000)])
    assert (await ours.get_many(["a"]))["a"] == Spent()


async def test_data_of_a_newer_version_is_refused(opened: Store, space: str) -> None:
    ours = ShoalSpendStore(opened, space=space)
    await opened.space(space).items.put(("{spend}", "shares", "a"), "w", {"harness": 99})
    with pytest.raises(SchemaTooNew):
        await ours.get_many(["a"])
