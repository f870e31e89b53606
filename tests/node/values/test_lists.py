"""Lists through the whole node, and at nodes that cannot reach each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.client.store import Space
from shoal.errors import InvalidInput, InvalidValue, NotFound, TooLarge
from shoal.kinds.list.handle import SharedList
from shoal.kinds.list.requests import ListPage, ReadList
from simulation.bounds import altered
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener


async def shown(of: SharedList) -> list[Any]:
    return [item.value for item in await of.items()]


async def test_a_list_keeps_the_order_of_its_values(bench: Bench) -> None:
    todo = bench.space.list("todo")
    first, second = await todo.push("a", "b")
    await todo.insert("c", after=first)
    await todo.insert("d", before=first)
    await todo.insert("e", index=-1)
    assert await shown(todo) == ["d", "a", "c", "e", "b"]
    assert await todo.move(second, index=0)
    assert await todo.move(first)
    assert await shown(todo) == ["b", "d", "c", "e", "a"]
    assert await todo.remove(second, first, second) == ["b", "a"]
    assert await todo.remove(second) == []
    assert not await todo.move(second)
    assert await todo.len() == 3


async def test_any_sequence_of_changes_gives_what_a_python_list_gives(bench: Bench) -> None:
    choose = random.Random(3)
    mine, twin = bench.space.list("n"), list[tuple[str, int]]()
    for number in range(200):
        match choose.randrange(4) if twin else 0:
            case 0 | 1:
                index = choose.randrange(-len(twin) - 1, len(twin) + 2)
                ids = await mine.insert(number, -number, index=index)
                twin[index:index] = zip(ids, (number, -number), strict=True)
            case 2:
                element = twin.pop(choose.randrange(len(twin)))
                index = choose.randrange(-len(twin) - 2, len(twin) + 2)
                assert await mine.move(element[0], index=index)
                twin.insert(index if index >= 0 else max(0, len(twin) + 1 + index), element)
                assert -len(twin) > index or index >= len(twin) or twin[index] == element
            case _:
                id, value = twin.pop(choose.randrange(len(twin)))
                assert await mine.remove(id) == [value]
    assert [(item.id, item.value) for item in await mine.items()] == twin
    for start, stop in ((0, None), (3, 9), (-5, None), (-9, -2), (5, 2), (0, 10_000), (10_000, None)):
        assert [item.value for item in await mine.slice(start, stop)] == [value for _, value in twin[start:stop]]
    for index in (0, 7, -1, -len(twin)):
        assert await mine.get(index) == twin[index][1]
    assert await mine.get(len(twin)) is await mine.get(-len(twin) - 1) is None


async def test_moving_before_and_after_elements(bench: Bench) -> None:
    todo = bench.space.list("todo")
    a, b, c = await todo.push("a", "b", "c")
    for place in ({"after": a}, {"before": c}, {"index": 1}, {"before": b}):
        assert await todo.move(b, **place)
        assert await shown(todo) == ["a", "b", "c"]
    assert await todo.move(c, before=a)
    assert await todo.move(a, after=b)
    assert await shown(todo) == ["c", "b", "a"]


async def test_many_elements_come_page_by_page(open_bench: Opener) -> None:
    small = open_bench(page_items_max=7)
    numbers = small.space.list("n")
    for n in range(0, 30, 5):
        await numbers.push(*range(n, n + 5))
    assert await shown(numbers) == list(range(30))
    assert [item.value for item in await numbers.slice(4, 20)] == list(range(4, 20))
    page = await small.node.session().call(ReadList("crew", "n", -3))
    assert isinstance(page, ListPage)
    assert (len(page.elements), page.more, page.size) == (3, False, 30)


async def test_values_over_a_bound_write_nothing(open_bench: Opener) -> None:
    with altered(list_value_bytes_max=8, list_elements_max=2):
        small = open_bench(page_items_max=4)
        for wrong in (["x" * 20], [1, 2, 3], [1, 2, 3, 4, 5]):
            with pytest.raises(TooLarge, match="Nothing was written"):
                await small.space.list("n").push(*wrong)
        assert await small.space.list("n").len() == 0


async def test_a_wrong_place_writes_nothing(bench: Bench) -> None:
    todo = bench.space.list("todo")
    [id] = await todo.push("a")
    await todo.remove(id)
    with pytest.raises(NotFound, match="Nothing was written"):
        await todo.insert("b", after=id)
    for wrong in ({"after": "x"}, {"before": id, "index": 0}, {"before": id, "after": id}):
        with pytest.raises(InvalidInput, match="Nothing was written"):
            await todo.insert("b", **wrong)
    with pytest.raises(InvalidInput, match="at least one value"):
        await todo.push()
    with pytest.raises(InvalidValue):
        await todo.push(object())
    assert await todo.len() == 0


async def test_a_place_without_room_is_refused(bench: Bench) -> None:
    todo = bench.space.list("todo")
    low, high = await todo.push("low", "high")
    with pytest.raises(TooLarge, match="Nothing was written"):
        for nth in range(1000):
            [id] = await todo.insert(nth, after=low)
            low, high = (low, id) if nth % 2 else (id, high)
            await todo.insert("other", before=high)
    await todo.push("elsewhere")


async def test_one_request_that_comes_twice_is_applied_once(bench: Bench) -> None:
    todo = bench.space.list("todo")
    first = await todo.push("a", key="k")
    await todo.remove(*first)
    assert await todo.push("a", key="k") == first
    assert await shown(todo) == []


async def test_elements_survive_a_crash(bench: Bench) -> None:
    _, gone = await bench.space.list("todo").push("kept", "gone")
    await bench.space.list("todo").remove(gone)
    again = bench.crashed()
    assert await shown(again.space.list("todo")) == ["kept"]
    assert [name async for name in again.space.lists()] == ["todo"]
    assert await again.space.list("todo").delete()
    assert await again.space.list("todo").len() == 0
    await again.node.stop()


async def test_a_batch_changes_a_list_with_the_rest(bench: Bench) -> None:
    [old] = await bench.space.list("{x}/todo").push("old")
    async with bench.space.batch() as batch:
        added = batch.list("{x}/todo").insert("new", after=old)
        removed = batch.list("{x}/todo").remove(old)
        batch.list("{x}/todo").push("last")
        batch.counter("{x}/n").add(1)
    assert (len(added.reply.elements), removed.reply.size) == (1, 1)
    async with bench.space.read() as read:
        items, size = read.list("{x}/todo").items(), read.list("{x}/todo").size()
    assert ([item.value for item in items.value], size.value) == (["new", "last"], 2)


async def test_watchers_hear_which_element_changed(bench: Bench) -> None:
    watch = bench.space.watch(kinds=["list"])
    heard = aiter(watch)
    hearing = asyncio.ensure_future(anext(heard))
    await asyncio.sleep(1)
    [id] = await bench.space.list("todo").push("a")
    change = await hearing
    assert (getattr(change, "kind", ""), getattr(change, "name", ""), getattr(change, "id", "")) == ("list", "todo", id)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def space(fleet: Fleet, name: str) -> Space:
    return fleet[name].store().space("crew")


async def met(fleet: Fleet) -> list[Any]:
    fleet.link_all("c")
    await fleet.converged()
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    found = [await shown(space(fleet, name).list("l")) for name in "abc"]
    assert found[0] == found[1] == found[2]
    return found[0]


async def test_runs_inserted_at_one_place_stand_together(fleet: Fleet) -> None:
    first, _ = await space(fleet, "a").list("l").push("first", "last")
    await fleet.converged()
    await fleet.isolate("c")
    for name in "ac":
        last = first
        for nth in range(3):
            [last] = await space(fleet, name).list("l").insert(f"{name}{nth}", after=last)
    found = await met(fleet)
    assert found in (
        ["first", "a0", "a1", "a2", "c0", "c1", "c2", "last"],
        ["first", "c0", "c1", "c2", "a0", "a1", "a2", "last"],
    )


async def test_an_element_moved_at_two_nodes_is_there_once(fleet: Fleet) -> None:
    [id, *_] = await space(fleet, "a").list("l").push("x", "y", "z")
    await fleet.converged()
    await fleet.isolate("c")
    await space(fleet, "a").list("l").move(id, index=1)
    await space(fleet, "c").list("l").move(id, index=2)
    assert await met(fleet) in (["y", "x", "z"], ["y", "z", "x"])


async def test_a_removal_wins_over_a_move(fleet: Fleet) -> None:
    [id, *_] = await space(fleet, "a").list("l").push("x", "y")
    await fleet.converged()
    await fleet.isolate("c")
    await space(fleet, "a").list("l").move(id)
    await space(fleet, "c").list("l").remove(id)
    assert await met(fleet) == ["y"]


async def test_a_request_carried_out_at_two_nodes_counts_once(fleet: Fleet) -> None:
    await fleet.isolate("c")
    ids = [await space(fleet, name).list("l").push("x", "y", key="k") for name in "ac"]
    assert ids[0] == ids[1]
    assert await met(fleet) == ["x", "y"]
    await space(fleet, "b").list("l").remove(*ids[0])
    assert await met(fleet) == []


async def test_changes_made_apart_are_equal_once_they_meet(fleet: Fleet) -> None:
    choose = random.Random(5)

    async def agent(name: str) -> None:
        shared = space(fleet, name).list("l")
        for nth in range(12):
            there = await shared.items()
            match choose.randrange(4) if there else 0:
                case 0 | 1:
                    await shared.insert(f"{name}{nth}", index=choose.randrange(len(there) + 1))
                case 2:
                    await shared.move(choose.choice(there).id, index=choose.randrange(len(there)))
                case _:
                    await shared.remove(choose.choice(there).id)
            await asyncio.sleep(0)

    for apart in "abc":
        await fleet.isolate(apart)
        await asyncio.gather(*(agent(name) for name in "abc"))
        fleet.link_all(apart)
        await fleet.converged()
    assert len(await met(fleet)) == await space(fleet, "b").list("l").len()
