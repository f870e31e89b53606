"""Searches of memory items: by namespace, by filter, page by page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal import values
from shoal.kinds.items.handle.item import Item
from shoal.protocol import requests
from tests.node.conftest import Bench, Opener


def named(found: list[Item]) -> list[tuple[tuple[str, ...], str]]:
    return [(item.namespace, item.key) for item in found]


async def fill(bench: Bench) -> None:
    for user in ("u1", "u2"):
        for n in range(4):
            value = {"n": n, "user": {"name": user, "age": 20 + n}, "tags": ["t", n], "text": f"t{n}"}
            await bench.space.items.put(("memory", user), f"k{n}", value)
    await bench.space.items.put(("memory",), "plain", "no map")
    await bench.space.items.put(("memory", "u1", "deep"), "k9", {"n": 9, None: 1})
    await bench.space.items.put(("other",), "k", {"n": 1})


async def test_a_search_finds_a_namespace_and_those_below_it_in_order(bench: Bench) -> None:
    await fill(bench)
    u1 = [(("memory", "u1"), f"k{n}") for n in range(4)]
    deep = [(("memory", "u1", "deep"), "k9")]
    u2 = [(("memory", "u2"), f"k{n}") for n in range(4)]
    items = bench.space.items
    assert named(await items.search(("memory", "u1"))) == u1 + deep
    assert named(await items.search(("memory",))) == [(("memory",), "plain"), *u1, *deep, *u2]
    assert named(await items.search()) == [(("memory",), "plain"), *u1, *deep, *u2, (("other",), "k")]
    assert named(await items.search(("memory", "u"))) == []
    assert named(await items.search(("memory",), limit=3, offset=2)) == u1[1:4]
    assert named([item async for item in items.scan(("memory", "u2"))]) == u2
    assert await items.search(("memory",), limit=0) == []


FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "equal": ({"n": 1}, ["u1/k1", "u2/k1", "/k"]),
    "equal to a float": ({"n": 1.0}, ["u1/k1", "u2/k1", "/k"]),
    "an operator": ({"n": {"$eq": 9}}, ["u1.deep/k9"]),
    "unequal": ({"n": {"$ne": 1}, "user": {"name": "u2"}}, ["u2/k0", "u2/k2", "u2/k3"]),
    "a range": ({"n": {"$gt": 0, "$lte": 2}, "user.name": "u1"}, ["u1/k1", "u1/k2"]),
    "a path": ({"user.age": {"$gte": 23}}, ["u1/k3", "u2/k3"]),
    "a field of a field": ({"user": {"age": {"$lt": 21}}}, ["u1/k0", "u2/k0"]),
    "a list": ({"tags": ["t", {"$gt": 2}]}, ["u1/k3", "u2/k3"]),
    "a list of another length": ({"tags": ["t"]}, []),
    "text": ({"text": {"$gt": "t2"}}, ["u1/k3", "u2/k3"]),
    "no order": ({"text": {"$gt": 2}}, []),
    "missing": ({"user": None, "n": {"$ne": None}}, ["/k", "u1.deep/k9"]),
    "missing has no order": ({"absent": {"$lt": 1}}, []),
    "nothing": ({}, ["all"]),
}


@pytest.mark.parametrize("name", FILTERS)
async def test_a_filter_finds_what_matches(bench: Bench, name: str) -> None:
    await fill(bench)
    filter, expected = FILTERS[name]
    found = await bench.space.items.search(filter=filter)
    if expected == ["all"]:
        assert len(found) == 11
    else:
        assert {f"{'.'.join(item.namespace[1:])}/{item.key}" for item in found} == set(expected)


@pytest.mark.parametrize("settings", [{"item_scan_rows_max": 2}, {"page_items_max": 2}, {"page_bytes_max": 1}])
async def test_a_search_of_many_pages_finds_the_same(open_bench: Opener, settings: dict[str, int]) -> None:
    bench = open_bench(**settings)
    await fill(bench)
    items = bench.space.items
    for filter in (None, {"n": {"$gt": 1}}):
        everything = [item async for item in items.scan(filter=filter)]
        assert len(everything) == (11 if filter is None else 5)
        assert await items.search(filter=filter) == everything
        for offset in range(4):
            assert await items.search(filter=filter, limit=3, offset=offset) == everything[offset : offset + 3]
    assert len(await items.namespaces()) == 5
    got = await items.get_many([(("memory", "u1"), f"k{n}") for n in range(4)])
    assert got == await items.search(("memory", "u1"), limit=4)


async def test_a_page_looks_at_no_more_rows_than_it_may(open_bench: Opener) -> None:
    bench = open_bench(item_scan_rows_max=3)
    await fill(bench)
    page = await bench.node.session().call(requests.SearchItems("crew", "memory", [], values.encode({"n": 9}), 10))
    assert isinstance(page, requests.ItemsPage)
    assert (page.items, page.more) == ([], True)


async def test_namespaces_are_listed_matched_and_cut(bench: Bench) -> None:
    await fill(bench)
    await bench.space.items.put(("memory", "u3", "deep"), "k", 1)
    list_of = bench.space.items.namespaces
    memory = [("memory",), ("memory", "u1"), ("memory", "u1", "deep"), ("memory", "u2"), ("memory", "u3", "deep")]
    assert await list_of() == [*memory, ("other",)]
    assert await list_of(prefix=("memory", "u1")) == memory[1:3]
    assert await list_of(prefix=("*", "*", "deep")) == [memory[2], memory[4]]
    assert await list_of(suffix=("deep",)) == [memory[2], memory[4]]
    assert await list_of(suffix=("u2",)) == [memory[3]]
    assert await list_of(prefix=("memory", "*"), suffix=("deep",), max_depth=2) == [("memory", "u1"), ("memory", "u3")]
    assert await list_of(max_depth=1) == [("memory",), ("other",)]
    assert await list_of(max_depth=2) == [("memory",), ("memory", "u1"), ("memory", "u2"), ("memory", "u3"), ("other",)]
    assert await list_of(limit=2, offset=1) == memory[1:3]
    assert await list_of(prefix=("absent",)) == []


async def test_first_labels_are_listed_as_objects(bench: Bench) -> None:
    await fill(bench)
    names = await bench.node.session().call(requests.ListObjects("crew", "items"))
    assert isinstance(names, requests.Names)
    assert names.names == ["memory", "other"]


async def test_any_cursor_is_harmless(bench: Bench) -> None:
    await fill(bench)
    for cursor in (b"\x00", b"\xff" * 9, b"u1", b"u1\x00\x00k1"):
        page = await bench.node.session().call(requests.SearchItems("crew", "memory", ["u1"], after=cursor))
        assert isinstance(page, requests.ItemsPage)
        assert all(item.namespace[:2] == ["memory", "u1"] for item in page.items)
        await bench.node.session().call(requests.ListNamespaces("crew", "memory", after=cursor))


@pytest.mark.parametrize("step", [{"read_step_rows_max": 1}, {"read_step_bytes_max": 1}])
async def test_a_search_leaves_turns_to_others(open_bench: Opener, step: dict[str, int]) -> None:
    bench = open_bench(**step)
    await fill(bench)
    search = asyncio.create_task(bench.space.items.search(("memory",)))
    turns = 0
    while not search.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(await search) == 10


async def test_steps_of_a_search_lose_and_repeat_nothing(open_bench: Opener) -> None:
    bench = open_bench(read_step_rows_max=2)
    await fill(bench)
    items, filters = bench.space.items, list[dict[str, Any]]([{"user.name": "u1"}, {"text": {"$gt": "t2"}}])
    scanned = [await items.search(("memory",), filter=filter) for filter in filters]
    await items.index(("memory",), "user.name", "text")
    for filter, found in zip(filters, scanned, strict=True):
        assert await items.search(("memory",), filter=filter) == found
        assert await items.search(("memory",), filter=filter, limit=1, offset=1) == found[1:2]


async def test_an_index_dropped_during_a_search_hides_nothing(open_bench: Opener) -> None:
    bench = open_bench(read_step_rows_max=1, item_probe_rows_max=1)
    await fill(bench)
    items = bench.space.items
    everything = await items.search(("memory",), filter={"user.name": "u1"})
    await items.index(("memory",), "user.name")
    while not all((await items.indexes(("memory",))).values()):
        await asyncio.sleep(0)
    search = asyncio.create_task(items.search(("memory",), filter={"user.name": "u1"}))
    await asyncio.sleep(0)
    await items.unindex(("memory",), "user.name")
    assert await search == everything


async def test_a_page_of_namespaces_looks_at_no_more_rows_than_it_may(open_bench: Opener) -> None:
    bench = open_bench(item_scan_rows_max=3)
    for n in range(10):
        await bench.space.items.put(("memory", f"u{n}"), "k", n)
    page = await bench.node.session().call(requests.ListNamespaces("crew", "memory"))
    assert isinstance(page, requests.Namespaces)
    assert (len(page.namespaces), page.more) == (3, True)
    assert len(await bench.space.items.namespaces(prefix=("memory",))) == 10
