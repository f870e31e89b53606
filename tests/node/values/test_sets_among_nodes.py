"""Sets and registers at nodes that cannot reach each other: what meets afterwards is the same everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from shoal.client.store import Space
from simulation.world.fleet import Fleet


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def space(fleet: Fleet, name: str) -> Space:
    return fleet[name].store().space("crew")


async def test_an_add_at_one_node_wins_over_a_removal_at_another(fleet: Fleet) -> None:
    await space(fleet, "a").set("s").add("x", "y")
    await fleet.converged()
    await fleet.isolate("c")
    await space(fleet, "c").set("s").add("x")
    await space(fleet, "a").set("s").remove("x", "y")
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert await space(fleet, name).set("s").members() == ["x"]
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_members_added_unseen_survive_a_clear(fleet: Fleet) -> None:
    await space(fleet, "a").set("s").add("x", "y")
    await fleet.converged()
    await fleet.isolate("c")
    await space(fleet, "c").set("s").add("x", "z")
    assert await space(fleet, "a").set("s").clear() == 2
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert sorted(await space(fleet, name).set("s").members()) == ["x", "z"]
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_nodes_apart_may_pop_one_member(fleet: Fleet) -> None:
    await space(fleet, "a").set("s").add("x", "y")
    await fleet.converged()
    await fleet.isolate("c")
    assert await space(fleet, "c").set("s").pop() == await space(fleet, "a").set("s").pop() == ["x"]
    await space(fleet, "a").set("s").add("x")
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert await space(fleet, name).set("s").members() == ["x", "y"]


async def test_a_pop_repeated_at_another_node_returns_the_same(fleet: Fleet) -> None:
    await space(fleet, "a").set("s").add("x", "y")
    popped = await space(fleet, "a").set("s").pop(key="k")
    await fleet.converged()
    assert await space(fleet, "b").set("s").pop(key="k") == popped == ["x"]
    assert await space(fleet, "b").set("s").members() == ["y"]


async def test_a_history_has_what_was_set_apart(fleet: Fleet) -> None:
    await space(fleet, "a").register("r").set("first", by="ada")
    await fleet.converged()
    await fleet.isolate("c")
    await space(fleet, "c").register("r").set("there", by="cy")
    await space(fleet, "a").register("r").set("here", by="ada")
    fleet.link_all("c")
    await fleet.converged()
    histories = [await space(fleet, name).register("r").history() for name in "abc"]
    assert histories[0] == histories[1] == histories[2]
    assert {past.value for past in histories[0]} == {"first", "there", "here"}
    assert histories[0][-1].by == "ada"


async def test_changes_made_apart_are_equal_once_they_meet(fleet: Fleet) -> None:
    random = Random(5)

    async def agent(name: str) -> None:
        shared = space(fleet, name).set("s")
        for _ in range(15):
            add, remove = ([random.randrange(6) for _ in range(random.randrange(3))] for _ in range(2))
            await shared.alter(add=add, remove=remove)
            await asyncio.sleep(0)

    for apart in "abc":
        await fleet.isolate(apart)
        await asyncio.gather(*(agent(name) for name in "abc"))
        fleet.link_all(apart)
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    members = [await space(fleet, name).set("s").members() for name in "abc"]
    assert members[0] == members[1] == members[2]
    assert len(members[0]) == await space(fleet, "b").set("s").len()


async def test_an_expectation_that_passes_on_both_sides_leaves_siblings(fleet: Fleet) -> None:
    await space(fleet, "a").register("r").set(0)
    await fleet.converged()
    await fleet.isolate("c")
    for name in "ac":
        register = space(fleet, name).register("r")
        await register.set(name, expect=await register.read())
    fleet.link_all("c")
    await fleet.converged()
    assert sorted(await space(fleet, "b").register("r").siblings()) == ["a", "c"]
