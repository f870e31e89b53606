"""All items of a namespace, or below a first label, are deleted at once."""

from __future__ import annotations

import asyncio

import pytest

from shoal.config import Config
from shoal.errors import InvalidInput
from shoal.kinds.items.handle.items import Items
from shoal.node.verification.verify import verify
from shoal.storage import keys
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.items.test_indexes import built, problems

USER = ("memory", "user-1")


async def names(items: Items) -> list[tuple[tuple[str, ...], str]]:
    return [(item.namespace, item.key) for item in await items.search()]


async def fill(items: Items) -> None:
    for namespace in (("memory",), USER, (*USER, "deep"), ("memory", "user-10"), ("other", "user-1")):
        for key in ("a", "b"):
            await items.put(namespace, key, {"n": 1, "vector": key}, vectors=[[1.0, 0.0]])


async def swept(bench: Bench) -> None:
    async with asyncio.timeout(30):
        while bench.node._database.garbage.count(1):
            await asyncio.sleep(0.01)


async def test_a_namespace_and_those_below_it_are_deleted_and_no_other(bench: Bench) -> None:
    items = bench.space.items
    await fill(items)
    assert await items.delete_all(USER) == 4
    assert {namespace for namespace, _ in await names(items)} == {("memory",), ("memory", "user-10"), ("other", "user-1")}
    assert await items.delete_all(USER) == 0
    assert problems(bench) == []


async def test_many_items_are_deleted_in_bounded_operations(open_bench: Opener) -> None:
    bench = open_bench(items_deleted_max=10)
    items = bench.space.items
    for n in range(35):
        await items.put(USER, f"{n:02}", n, durability="memory")
    before = bench.node._database.issuer.operations
    assert await items.delete_all(USER) == 35
    assert bench.node._database.issuer.operations == before + 4
    assert await names(items) == []


async def test_a_first_label_alone_ends_its_generation_with_its_indexes(bench: Bench) -> None:
    items = bench.space.items
    await fill(items)
    await items.index(("memory",), "n")
    await built(items, "memory")
    assert await items.delete_all(("memory",)) == 8
    assert {namespace for namespace, _ in await names(items)} == {("other", "user-1")}
    assert await items.indexes(("memory",)) == {}
    assert await items.search(("memory",), filter={"n": 1}) == []
    assert await items.search(("memory",), vector=[1.0, 0.0]) == []
    assert await items.delete_all(("memory",)) == 0
    await swept(bench)
    assert not list(bench.storage.scan(keys.INDEX, b"Y"))
    assert problems(bench) == []


@pytest.mark.answers("index-finds-items-of-ended-generations")
@pytest.mark.parametrize("is_swept", [False, True], ids=["at once", "after the sweep"])
async def test_items_of_a_new_generation_are_indexed_and_searched(bench: Bench, is_swept: bool) -> None:
    items = bench.space.items
    for _ in range(3):
        await fill(items)
        assert await items.index(("memory",), "n") == ["n"]
        await built(items, "memory")
        assert len(await items.search(("memory",), filter={"n": 1})) == 8
        assert (await items.explain(("memory",), filter={"n": 1})).how == "lookup"
        assert len(await items.search(USER, vector=[1.0, 0.0])) == 4
        assert problems(bench) == []
        assert await items.delete_all(("memory",)) == 8
        assert problems(bench) == []
        if is_swept:
            await swept(bench)
            assert problems(bench) == []


async def test_a_new_generation_is_found_after_a_crash(open_bench: Opener) -> None:
    bench = open_bench()
    items = bench.space.items
    await fill(items)
    await items.index(("memory",), "n")
    await items.delete_all(("memory",))
    await items.put(USER, "new", {"n": 2})
    await items.index(("memory",), "n")
    await built(items, "memory")
    after = open_bench(bench.storage.left_by_crash())
    found = await after.space.items.search(("memory",), filter={"n": 2})
    assert [item.key for item in found] == ["new"]
    assert problems(after) == []


async def test_an_empty_namespace_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="one or more labels"):
        await bench.space.items.delete_all(())


async def test_deletions_are_told_to_watchers(bench: Bench) -> None:
    items = bench.space.items
    await fill(items)
    watching = items.watch(("memory",))
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0.05)
    await items.delete_all((*USER, "deep"))
    await items.delete_all(("other",))
    await items.delete_all(("memory",))
    changes = [await first, await anext(watching), await anext(watching)]
    await watching.aclose()
    assert [(change.namespace, change.key, change.what) for change in changes] == [
        ((*USER, "deep"), "a", "delete-item"),
        ((*USER, "deep"), "b", "delete-item"),
        (("memory",), "", "delete"),
    ]


@pytest.mark.answers("index-finds-items-of-ended-generations")
async def test_concurrent_puts_stay_in_a_namespace_and_die_with_a_whole_label() -> None:
    async with Fleet("abc", seed=3) as fleet:
        here, there = (fleet[name].store().space("crew").items for name in "ab")
        for label in ("memory", "notes"):
            await here.put((label, "user-1"), "old", 1)
        await fleet.converged()
        await fleet.isolate("b")
        await here.delete_all(("memory", "user-1"))
        await here.delete_all(("notes",))
        for label in ("memory", "notes"):
            await there.put((label, "user-1"), "unseen", 2)
        fleet.link_all("b")
        await fleet.converged()
        for name in "abc":
            assert await names(fleet[name].store().space("crew").items) == [(USER, "unseen")]
            assert verify(fleet[name].storage, config=Config()).problems == []
