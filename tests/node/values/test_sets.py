"""Sets through the whole node."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from shoal.errors import InvalidName, InvalidValue, TooLarge
from shoal.protocol import requests
from tests.node.conftest import Bench, Opener


async def test_a_set_holds_each_element_once(bench: Bench) -> None:
    urls = bench.space.set("urls")
    assert await urls.add("a", "b", "a") == 2
    assert await urls.add("b", "c") == 1
    assert sorted(await urls.members()) == ["a", "b", "c"]
    assert await urls.len() == 3
    assert await urls.contains("a")
    assert await urls.remove("a", "never there") == 1
    assert not await urls.contains("a")
    assert await urls.remove("a") == 0


async def test_elements_are_told_apart_by_type_and_not_by_how_they_were_packed(bench: Bench) -> None:
    elements = bench.space.set("s")
    assert await elements.add(1, 1.0, True, "1", (1,), {"a": 1, "b": 2}) == 6
    assert await elements.add({"b": 2, "a": 1}) == 0
    assert await bench.node.session().call(requests.AlterSet("crew", "s", [b"\xcd\x00\x01"])) == requests.SetAltered(0, 0, 6)


async def test_any_sequence_of_changes_gives_what_a_python_set_gives(bench: Bench) -> None:
    choose = random.Random(3)
    mine, twin = bench.space.set("s"), set[int]()
    for _ in range(150):
        add, remove = ([choose.randrange(12) for _ in range(choose.randrange(4))] for _ in range(2))
        reply = await mine.alter(add=add, remove=remove)
        assert reply.removed == len(twin & set(remove))
        assert reply.added == len(set(add) - twin)
        twin = (twin - set(remove)) | set(add)
        assert reply.size == len(twin)
    assert set(await mine.members()) == twin


async def test_many_members_come_page_by_page(open_bench: Opener) -> None:
    small = open_bench(page_items_max=7)
    numbers = small.space.set("n")
    for n in range(30):
        await numbers.add(n)
    assert sorted([n async for n in numbers.members()]) == list(range(30))
    assert [n async for n in numbers.members()] == await numbers.members()


async def test_a_page_ends_at_its_bytes(open_bench: Opener) -> None:
    small = open_bench(page_bytes_max=100)
    words = small.space.set("w")
    await words.add(*(f"{n:060}" for n in range(6)))
    page = await small.node.session().call(requests.ReadSet("crew", "w"))
    assert isinstance(page, requests.SetMembers)
    assert (len(page.members), page.more, page.size) == (2, True, 6)
    assert len(await words.members()) == 6


async def test_concurrent_adds_all_count(bench: Bench) -> None:
    urls = bench.space.set("urls")
    await asyncio.gather(*(urls.add(n % 50) for n in range(200)))
    assert await urls.len() == 50


@pytest.mark.parametrize(
    ("settings", "elements"),
    [({"set_element_bytes_max": 8}, ["x" * 20]), ({"set_members_max": 2}, [1, 2, 3]), ({"page_items_max": 2}, [1, 2, 3])],
)
async def test_values_over_a_bound_write_nothing(open_bench: Opener, settings: dict[str, Any], elements: list[Any]) -> None:
    small = open_bench(**settings)
    with pytest.raises(TooLarge, match="Nothing was written"):
        await small.space.set("s").add(*elements)
    assert await small.space.set("s").len() == 0


async def test_a_full_set_still_takes_what_is_a_member(open_bench: Opener) -> None:
    small = open_bench(set_members_max=2)
    full = small.space.set("s")
    await full.add(1, 2)
    assert await full.add(2) == 0
    assert await full.remove(1) == 1
    assert await full.add(3) == 1


async def test_an_element_must_be_a_value(bench: Bench) -> None:
    with pytest.raises(InvalidValue):
        await bench.node.session().call(requests.AlterSet("crew", "s", [b"\xc1"]))
    with pytest.raises(InvalidValue):
        await bench.space.set("s").add(object())


async def test_one_request_that_comes_twice_is_applied_once(bench: Bench) -> None:
    session = bench.node.session()
    add = requests.AlterSet("crew", "s", [b"\x01"])
    first = await session.call(add, key="k")
    await bench.space.set("s").remove(1)
    assert await session.call(add, key="k") == first
    assert await bench.space.set("s").members() == []


async def test_members_survive_a_crash(bench: Bench) -> None:
    await bench.space.set("s").add("kept", "gone")
    await bench.space.set("s").remove("gone")
    again = bench.crashed()
    assert await again.space.set("s").members() == ["kept"]
    assert [name async for name in again.space.sets()] == ["s"]
    await again.node.stop()


async def test_a_batch_changes_sets_with_the_rest(bench: Bench) -> None:
    async with bench.space.batch() as batch:
        added = batch.set("{x}/s").add(1, 2)
        removed = batch.set("{x}/s").remove(2)
        batch.counter("{x}/n").add(1)
    assert (added.reply.added, removed.reply.removed) == (2, 1)
    assert await bench.space.set("{x}/s").members() == [1]


async def test_a_set_is_cleared_in_as_many_operations_as_that_takes(open_bench: Opener) -> None:
    small = open_bench(page_items_max=7)
    numbers = small.space.set("n")
    assert await numbers.clear() == 0
    await numbers.add(*range(7))
    await numbers.add(*range(7, 10))
    session = small.node.session()
    assert await session.call(requests.ClearSet("crew", "n")) == requests.SetCleared(7, more=True)
    assert await numbers.len() == 3
    await numbers.add("more")
    assert await numbers.clear() == 4
    assert await numbers.members() == []
    with pytest.raises(InvalidName):
        await session.call(requests.ClearSet("crew", ""))


async def test_pop_removes_and_returns_the_least_members(bench: Bench) -> None:
    numbers = bench.space.set("n")
    assert await numbers.pop() == []
    await numbers.add(3, 1, 2, 5, 4)
    assert await numbers.pop() == [1]
    assert await numbers.pop(3) == [2, 3, 4]
    assert await numbers.pop(3) == [5]
    assert await numbers.len() == 0


async def test_two_pops_never_return_one_member(bench: Bench) -> None:
    numbers = bench.space.set("n")
    await numbers.add(*range(20))
    popped = await asyncio.gather(*(numbers.pop(3) for _ in range(10)))
    assert sorted(number for some in popped for number in some) == list(range(20))


async def test_a_repeated_pop_returns_the_same_members(bench: Bench) -> None:
    numbers = bench.space.set("n")
    await numbers.add(1, 2)
    assert await numbers.pop(key="k") == await numbers.pop(key="k") == [1]
    assert await numbers.members() == [2]
    empty = bench.space.set("empty")
    assert await empty.pop(key="e") == []
    await empty.add(1)
    assert await empty.pop(key="e") == []


async def test_a_pop_returns_what_one_answer_holds(open_bench: Opener) -> None:
    small = open_bench(page_items_max=3, page_bytes_max=100)
    words = small.space.set("w")
    await words.add(*(f"{n:060}" for n in range(3)))
    assert len(await words.pop(1000)) == 2
    numbers = small.space.set("n")
    await numbers.add(1, 2, 3)
    await numbers.add(4)
    assert await numbers.pop(1000) == [1, 2, 3]


async def test_a_popped_member_stays_gone_after_a_crash(bench: Bench) -> None:
    await bench.space.set("s").add("kept", "a gone one")
    await bench.space.set("s").pop()
    again = bench.crashed()
    assert len(await again.space.set("s").members()) == 1
    await again.node.stop()


async def test_a_batch_pops_with_its_other_writes(bench: Bench) -> None:
    await bench.space.set("{x}/open").add(1, 2)
    async with bench.space.batch() as batch:
        popped = batch.set("{x}/open").pop()
        batch.counter("{x}/taken").add(1)
    assert popped.reply == requests.SetPopped([b"\x01"], 1)
    assert await bench.space.counter("{x}/taken").value() == 1
