"""Memory items on several nodes: concurrent puts, deletes and sweeps leave the same on all."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

from simulation.world.fleet import Fleet

USER = ("memory", "user-1")
MINUTE = timedelta(minutes=1)


async def test_concurrent_puts_leave_the_latest_and_its_siblings_until_one_sees_both() -> None:
    async with Fleet("ab") as fleet:
        a, b = (fleet[name].store().space("crew").items for name in "ab")
        await a.put(USER, "k", "first")
        await fleet.converged()
        await fleet.isolate("b")
        fleet["b"].simulated.now_ms += 1000
        await a.put(USER, "k", "of a", ttl=MINUTE)
        await b.put(USER, "k", "of b")
        fleet.link_all("b")
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b")
        for items in (a, b):
            item = await items.get(USER, "k")
            assert item is not None
            assert (item.value, item.siblings, item.expires) == ("of b", ["of a"], None)
        there = await b.get(USER, "k")
        assert there is not None
        await a.put(USER, "k", "both seen", expect=there.version)
        await fleet.converged()
        item = await b.get(USER, "k")
        assert item is not None
        assert (item.value, item.siblings) == ("both seen", [])
        assert fleet.rows("a") == fleet.rows("b")


async def test_a_put_that_a_delete_elsewhere_has_not_seen_stays() -> None:
    async with Fleet("ab") as fleet:
        a, b = (fleet[name].store().space("crew").items for name in "ab")
        await a.put(USER, "k", 1)
        await a.put(USER, "gone", 1)
        await fleet.converged()
        await fleet.isolate("b")
        await a.delete(USER, "k")
        await a.delete(USER, "gone")
        await b.put(USER, "k", 2)
        fleet.link_all("b")
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b")
        assert [(item.key, item.value) for item in await a.search(USER)] == [("k", 2)]


async def test_a_request_that_went_to_two_nodes_is_one_value() -> None:
    async with Fleet("ab") as fleet:
        a, b = (fleet[name].store().space("crew").items for name in "ab")
        await fleet.isolate("b")
        await a.put(USER, "k", "v", idempotency_key="r")
        await b.put(USER, "k", "v", idempotency_key="r")
        fleet.link_all("b")
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b")
        item = await b.get(USER, "k")
        assert item is not None
        assert (item.value, item.siblings) == ("v", [])


async def test_nodes_that_sweep_the_same_items_converge() -> None:
    async with Fleet("ab", item_expiry_grace_s=1.0) as fleet:
        a, b = (fleet[name].store().space("crew").items for name in "ab")
        for n in range(5):
            await a.put(USER, f"k{n}", n, ttl=MINUTE)
        await fleet.converged()
        await fleet.isolate("b")
        for name in "ab":
            fleet[name].simulated.now_ms += 120_000
        assert (await a.sweep("memory"), await b.sweep("memory")) == (5, 5)
        await b.put(USER, "k0", "new")
        fleet.link_all("b")
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b")
        assert [item.value for item in await a.search(USER)] == ["new"]


async def test_watchers_on_another_node_are_told_of_items() -> None:
    async with Fleet("ab") as fleet, aclosing(fleet["b"].store().space("crew").items.watch(USER)) as changes:
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await fleet["a"].store().space("crew").items.put(USER, "k", 1)
        assert (await first).key == "k"
