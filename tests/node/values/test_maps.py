"""Maps through the whole node, alone and among peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from shoal.errors import InvalidName, RegisterChanged, TooLarge
from shoal.kinds.map.handle import SharedMap
from shoal.protocol import requests
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def test_a_key_holds_a_value_a_count_or_members(bench: Bench) -> None:
    plan = bench.space.map("plan")
    version = await plan.set("goal", {"reach": "Mars"})
    await plan.add("calls", 5)
    await plan.add("calls", -2)
    assert await plan.include("tags", "a", "b", "a") == 2
    assert await plan.exclude("tags", "a", "never") == 1
    assert [(entry.key, entry.value) for entry in await plan.entries()] == [
        ("calls", 3),
        ("goal", {"reach": "Mars"}),
        ("tags", ["b"]),
    ]
    assert (await plan.get("goal"), await plan.get("never", 7), await plan.len()) == ({"reach": "Mars"}, 7, 3)
    entry = await plan.entry("goal")
    assert entry is not None
    assert (entry.version, entry.count, entry.members) == (version, None, ())
    assert [name async for name in bench.space.maps()] == ["plan"]


async def test_a_removed_key_is_gone_with_all_its_parts(bench: Bench) -> None:
    plan = bench.space.map("plan")
    await plan.set("k", 1)
    await plan.add("k", 2)
    await plan.include("k", 3)
    assert await plan.remove("k")
    assert not await plan.remove("k")
    assert (await plan.entry("k"), await plan.len(), await plan.entries()) == (None, 0, [])


async def test_a_set_that_expects_what_was_read_is_refused_once_it_is_not_so(bench: Bench) -> None:
    plan = bench.space.map("plan")
    await plan.set("k", 1, expect="")
    seen = await plan.entry("k")
    await plan.set("k", 2, expect=seen)
    with pytest.raises(RegisterChanged, match="Nothing was written"):
        await plan.set("k", 3, expect=seen)
    assert await plan.get("k") == 2


async def test_many_keys_come_page_by_page(open_bench: Opener) -> None:
    small = open_bench(page_items_max=4)
    plan = small.space.map("plan")
    for n in range(15):
        await plan.set(f"k{n:02}", n)
    assert [entry.value async for entry in plan.entries()] == list(range(15))
    assert [entry.value for entry in await plan.entries("k1")] == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("settings", [{"map_keys_max": 2}, {"page_items_max": 2, "map_keys_max": 100}])
async def test_values_over_a_bound_are_refused(open_bench: Opener, settings: dict[str, Any]) -> None:
    small = open_bench(**settings)
    plan = small.space.map("plan")
    with pytest.raises(TooLarge, match="Nothing was written"):
        for n in range(3):
            await (plan.set(f"k{n}", n) if "page_items_max" not in settings else plan.include("k", n))
    await plan.set("k0" if "page_items_max" not in settings else "k", 5)


async def test_a_key_is_a_name(bench: Bench) -> None:
    with pytest.raises(InvalidName):
        await bench.space.map("plan").set("a\x00b", 1)


async def test_a_request_that_comes_twice_counts_once(bench: Bench) -> None:
    session, request = bench.node.session(), requests.AddEntry("crew", "plan", "n", 5)
    for key in ("k1", "k1", "k2"):
        await session.call(request, key=key)
    assert await bench.space.map("plan").get("n") == 10


async def test_a_batch_changes_maps_with_the_rest(bench: Bench) -> None:
    async with bench.space.batch() as batch:
        batch.map("{x}/m").set("a", 1)
        batch.map("{x}/m").add("n", 2)
        batch.map("{x}/m").add("n", 3)
        batch.map("{x}/m").include("s", 4)
        batch.counter("{x}/c").add(1)
    entries = await bench.space.map("{x}/m").entries()
    assert [(entry.key, entry.value) for entry in entries] == [("a", 1), ("n", 5), ("s", [4])]


async def test_entries_survive_a_crash(bench: Bench) -> None:
    await bench.space.map("m").set("k", 1)
    await bench.space.map("m").add("n", 2)
    again = bench.crashed()
    await again.space.map("m").add("n", 3)
    assert [entry.value for entry in await again.space.map("m").entries()] == [1, 5]
    await again.node.stop()


async def test_watchers_are_told_the_key(bench: Bench) -> None:
    async with bench.node.session().subscribe(requests.Watch("crew", "map")) as changes:
        await bench.space.map("m").set("k", 1)
        change = await anext(changes)
    assert isinstance(change, requests.Change)
    assert (change.kind, change.name, change.what, change.id) == ("map", "m", "put-entry", "k")


async def test_changes_made_apart_are_equal_once_they_meet(fleet: Fleet) -> None:
    random = Random(11)

    def of(name: str) -> SharedMap:
        return fleet[name].store().space("crew").map("m")

    async def agent(name: str) -> None:
        shared = of(name)
        for _ in range(12):
            key = random.choice("xyz")
            match random.randrange(5):
                case 0:
                    await shared.set(key, random.randrange(9))
                case 1:
                    await shared.add(key, random.randrange(9))
                case 2:
                    await shared.include(key, random.randrange(4))
                case 3:
                    await shared.exclude(key, random.randrange(4))
                case _:
                    await shared.remove(key)
            await asyncio.sleep(0)

    for apart in "abc":
        await fleet.isolate(apart)
        await asyncio.gather(*(agent(name) for name in "abc"))
        fleet.link_all(apart)
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    shown = [await of(name).entries() for name in "abc"]
    assert shown[0] == shown[1] == shown[2]


async def test_an_update_at_one_node_wins_over_a_removal_at_another(fleet: Fleet) -> None:
    def of(name: str) -> SharedMap:
        return fleet[name].store().space("crew").map("m")

    await of("a").set("k", "old")
    await fleet.converged()
    await fleet.isolate("c")
    await of("c").add("k", 5)
    await of("a").remove("k")
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert await of(name).get("k") == 5
