"""Memory items over a node: what is put is found, by name, by namespace and by filter, until it is deleted or expires."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from shoal import values
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, InvalidValue, ItemChanged, KeyReused, ShoalError, TooLarge
from shoal.kinds.items import state as rows_of_items
from shoal.kinds.items.handle.item import Item
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.storage import keys
from tests.node.conftest import Bench, Opener

USER = ("memory", "user-1")
MINUTE = timedelta(minutes=1)


def named(found: list[Item]) -> list[tuple[tuple[str, ...], str]]:
    return [(item.namespace, item.key) for item in found]


async def test_an_item_is_read_as_it_was_put(bench: Bench) -> None:
    value = {"likes": ["tea", ("a", 1)], "n": 1}
    version = await bench.space.items.put(USER, "likes", value)
    item = await bench.space.items.get(USER, "likes")
    assert item is not None
    assert (item.namespace, item.key, item.value, item.version) == (USER, "likes", value, version)
    assert (item.siblings, item.expires) == ([], None)
    assert item.created == item.updated


async def test_an_answer_of_many_items_may_be_a_part_of_them(open_bench: Opener) -> None:
    bench = open_bench(page_items_max=2)
    await bench.space.items.put(("memory",), "k", 1)
    found = await bench.node.session().call(requests.GetItems("crew", "memory", [([], "absent"), ([], "k"), ([], "k")]))
    assert isinstance(found, requests.ItemsFound)
    assert [item and item.key for item in found.items] == [None, "k"]
    many = await bench.space.items.get_many([(("memory",), "k")] * 5)
    assert [item and item.value for item in many] == [1] * 5


async def test_an_item_that_is_not_there_is_none(bench: Bench) -> None:
    assert await bench.space.items.get(USER, "likes") is None
    assert await bench.space.items.search(("memory",)) == []
    assert await bench.space.items.namespaces() == []


async def test_a_put_replaces_and_keeps_when_it_was_created(bench: Bench) -> None:
    await bench.space.items.put(USER, "k", 1)
    bench.simulated.now_ms += 5000
    await bench.space.items.put(USER, "k", 2)
    item = await bench.space.items.get(USER, "k")
    assert item is not None
    assert (item.value, item.siblings, item.updated - item.created) == (2, [], timedelta(seconds=5))


async def test_a_deleted_item_is_gone_and_begins_anew(bench: Bench) -> None:
    await bench.space.items.put(USER, "k", 1)
    bench.simulated.now_ms += 5000
    assert await bench.space.items.delete(USER, "k")
    assert not await bench.space.items.delete(USER, "k")
    assert await bench.space.items.get(USER, "k") is None
    await bench.space.items.put(USER, "k", 2)
    item = await bench.space.items.get(USER, "k")
    assert item is not None
    assert item.created == item.updated


async def test_nothing_is_left_of_deleted_items_but_their_log(bench: Bench) -> None:
    for n in range(10):
        await bench.space.items.put(USER, f"k{n}", n, ttl=MINUTE)
        await bench.space.items.delete(USER, f"k{n}")
    assert not list(bench.storage.scan(keys.OBJECT, keys.OBJECT + b"\xff"))


async def test_the_same_key_again_puts_once(bench: Bench) -> None:
    first = await bench.space.items.put(USER, "k", 1, idempotency_key="r")
    await bench.space.items.put(USER, "k", 2)
    assert await bench.space.items.put(USER, "k", 1, idempotency_key="r") == first
    item = await bench.space.items.get(USER, "k")
    assert item is not None
    assert item.value == 2
    with pytest.raises(KeyReused):
        await bench.space.items.put(USER, "k", 3, idempotency_key="r")


# ── compare and set ───────────────────────────────────────────────────────────


async def test_a_put_that_expects_nothing_writes_only_what_is_new(bench: Bench) -> None:
    version = await bench.space.items.put(USER, "k", 1, expect=NO_ITEM)
    with pytest.raises(ItemChanged) as refused:
        await bench.space.items.put(USER, "k", 2, expect=NO_ITEM)
    assert (refused.value.detail["version"], refused.value.written) == (version, "no")


async def test_a_put_that_expects_a_version_is_refused_once_it_moved(bench: Bench) -> None:
    items = bench.space.items
    first = await items.put(USER, "k", 1)
    second = await items.put(USER, "k", 2, expect=first)
    for write in (items.put(USER, "k", 3, expect=first), items.delete(USER, "k", expect=first)):
        with pytest.raises(ItemChanged, match="Read it again"):
            await write
    assert await items.delete(USER, "k", expect=second)
    with pytest.raises(ItemChanged, match="does not exist"):
        await items.delete(USER, "k", expect=second)


async def test_of_writers_in_a_race_one_wins(bench: Bench) -> None:
    version = await bench.space.items.put(USER, "k", 0)
    race = [bench.space.items.put(USER, "k", n, expect=version) for n in range(1, 9)]
    outcomes = await asyncio.gather(*race, return_exceptions=True)
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, ItemChanged) for outcome in outcomes) == 7


# ── expiry ────────────────────────────────────────────────────────────────────


async def test_an_item_is_not_shown_once_it_expired(bench: Bench) -> None:
    items = bench.space.items
    await items.put(USER, "k", 1, ttl=MINUTE)
    bench.simulated.now_ms += 59_999
    assert await items.get(USER, "k") is not None
    bench.simulated.now_ms += 1
    assert await items.get(USER, "k") is None
    assert await items.search(("memory",)) == []
    assert await items.namespaces() == []
    assert not await items.delete(USER, "k")
    await items.put(USER, "k", 2, expect=NO_ITEM)


async def test_a_put_sets_the_expiry_anew_or_takes_it_away(bench: Bench) -> None:
    items = bench.space.items
    await items.put(USER, "k", 1, ttl=MINUTE)
    await items.put(USER, "short", 1, ttl=2 * MINUTE)
    await items.put(USER, "k", 1)
    await items.put(USER, "short", 1, ttl=MINUTE)
    bench.simulated.now_ms += 60_000
    assert named(await items.search(("memory",))) == [(USER, "k")]


async def test_a_refresh_lets_the_time_to_live_begin_anew(bench: Bench) -> None:
    items = bench.space.items
    for key in ("a", "b", "never"):
        await items.put(USER, key, 1, ttl=None if key == "never" else MINUTE)
    bench.simulated.now_ms += 30_000
    assert await items.refresh(USER, ["a", "never", "absent"]) == 1
    bench.simulated.now_ms += 30_000
    assert named(await items.search(("memory",))) == [(USER, "a"), (USER, "never")]
    bench.simulated.now_ms += 30_000
    assert await items.refresh(USER, ["a"]) == 0
    assert await items.get(USER, "a") is None


def item_rows(bench: Bench) -> int:
    found = bench.storage.scan(keys.OBJECT, keys.OBJECT + b"\xff")
    return sum(keys.split_object(row)[4].startswith(rows_of_items.ITEM) for row, _ in found)


async def test_a_sweep_erases_what_expired_a_grace_ago_and_nothing_else(open_bench: Opener) -> None:
    bench = open_bench(items_expired_max=3, item_expiry_grace_s=60.0)
    items = bench.space.items
    for n in range(8):
        await items.put(USER, f"k{n}", n, ttl=MINUTE)
    await items.put(USER, "later", 1, ttl=10 * MINUTE)
    await items.put(USER, "never", 1)
    bench.simulated.now_ms += 120_000
    assert (await items.sweep("memory"), item_rows(bench)) == (0, 10)
    bench.simulated.now_ms += 1
    assert (await items.sweep("memory"), item_rows(bench)) == (8, 2)
    assert named(await items.search(("memory",))) == [(USER, "later"), (USER, "never")]


async def test_puts_sweep_by_and_by_in_operations_of_their_own(open_bench: Opener) -> None:
    bench = open_bench(items_expired_max=3, item_expiry_grace_s=60.0)
    for n in range(5):
        await bench.space.items.put(USER, f"k{n}", n, ttl=MINUTE)
    bench.simulated.now_ms += 120_001
    await bench.space.items.put(USER, "k0", "again")
    assert item_rows(bench) == 2
    await bench.space.items.put(USER, "k0", "again")
    assert item_rows(bench) == 1
    before = (await bench.store.status()).operations
    await bench.space.items.put(USER, "k0", "again")
    assert (await bench.store.status()).operations == before + 1
    assert verify(bench.storage, config=bench.config).problems == []


# ── batches and watches ───────────────────────────────────────────────────────


async def test_a_batch_of_items_and_a_counter_is_one_operation(bench: Bench) -> None:
    await bench.space.items.put(("{c}", "notes"), "old", 1)
    async with bench.space.batch() as batch:
        put = batch.items.put(("{c}", "notes"), "k", {"n": 1})
        deleted = batch.items.delete(("{c}", "notes"), "old")
        batch.counter("{c}/n").add(1)
        batch.items.put(("{c}", "notes"), "k", {"n": 2})
    item = await bench.space.items.get(("{c}", "notes"), "k")
    assert item is not None
    assert (item.value, item.siblings, deleted.reply.deleted) == ({"n": 2}, [], True)
    assert put.reply.version != item.version
    assert (await bench.store.status()).operations == 2


async def test_a_batch_whose_expectation_fails_writes_nothing(bench: Bench) -> None:
    with pytest.raises(ItemChanged):
        async with bench.space.batch() as batch:
            batch.items.put(("{c}",), "a", 1)
            batch.items.put(("{c}",), "b", 1, expect="0" * 32)
    assert await bench.space.items.search() == []


async def test_a_watch_tells_of_puts_and_deletes_below_a_namespace(bench: Bench) -> None:
    async with bench.node.session().subscribe(requests.Watch("crew", "items", "memory")) as raw:
        async with aclosing(bench.space.items.watch(USER)) as changes:
            first = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            await bench.space.items.put(("memory",), "above", 1)
            await bench.space.items.put(("memory", "user-10"), "beside", 1)
            await bench.space.items.put((*USER, "deep"), "k", 1)
            await bench.space.items.delete((*USER, "deep"), "k")
            told = [await first, await anext(changes)]
        assert [(change.namespace, change.key, change.what) for change in told] == [
            ((*USER, "deep"), "k", "put-item"),
            ((*USER, "deep"), "k", "delete-item"),
        ]
        assert isinstance(push := await anext(raw), requests.Change)
        assert (push.kind, push.name, push.id) == ("items", "memory", '["memory","above"]')


# ── bad input ─────────────────────────────────────────────────────────────────

BAD_NAMES: list[tuple[Any, Any]] = [
    ((), "k"),
    ("memory", "k"),
    (("",), "k"),
    (("a", ""), "k"),
    (("a.b",), "k"),
    (("a", "b\x00"), "k"),
    (("a", 1), "k"),
    (("a" * 1025,), "k"),
    (("a",), ""),
    (("a",), "k\n"),
    (("a",), 7),
    (("a",), "\ud800"),
    (tuple("a" * 33), "k"),
]


@pytest.mark.parametrize(("namespace", "key"), BAD_NAMES, ids=repr)
async def test_a_name_that_is_not_legal_is_refused(bench: Bench, namespace: Any, key: Any) -> None:
    items = bench.space.items
    for call in (items.put(namespace, key, 1), items.get(namespace, key), items.delete(namespace, key)):
        with pytest.raises(InvalidInput):
            await call
    assert [row for row, _ in bench.storage.scan(keys.LOG, keys.LOG + b"\xff")] == []


@pytest.mark.parametrize(
    "filter",
    [
        {"$eq": 1},
        {"a": {"$in": [1]}},
        {"a": {"$eq": 1, "b": 2}},
        {"a": {"b": {"$nor": 1}}},
        {1: 2},
        {"a": {1: 2}},
        {"a": [{"$x": 1}]},
        {f"f{n}": n for n in range(65)},
        {"a": [[[list(range(70))]]]},
    ],
    ids=str,
)
async def test_a_filter_that_is_none_is_refused(bench: Bench, filter: Any) -> None:
    await bench.space.items.put(USER, "k", {"a": 1})
    with pytest.raises(InvalidInput):
        await bench.space.items.search(("memory",), filter=filter)


@pytest.mark.parametrize(
    "request_",
    [
        requests.SearchItems("crew", "memory", [], b"\xc1"),
        requests.SearchItems("crew", "memory", [], values.encode([1])),
        requests.SearchItems("crew", "me.mory", []),
        requests.SearchItems("crew", "memory", ["a.b"]),
        requests.ListNamespaces("crew", "memory", depth_max=0),
        requests.ListNamespaces("crew", "memory", [("prefix", [""])]),
        requests.GetItems("crew", "memory", [(["a", ""], "k")]),
        requests.RefreshItems("crew", "memory", [([], "k")] * (Config().page_items_max + 1)),
        requests.PutItem("crew", "memory", [], "k", b"\xc1"),
        requests.PutItem("crew", "memory", [], "k", b"\x01", 0),
        requests.PutItem("crew", "memory", [], "k", b"\x01", 1 << 60),
        requests.RefreshItems("crew", "memory", [([], "")]),
        requests.SweepItems("crew", "a.b"),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_request_that_is_not_legal_is_refused(bench: Bench, request_: Any) -> None:
    await bench.space.items.put(("memory",), "k", 1)
    with pytest.raises(InvalidInput):
        await bench.node.session().call(request_)


async def test_impossible_arguments_for_items_say_why(bench: Bench) -> None:
    items = bench.space.items
    refused: list[tuple[Any, type[ShoalError]]] = [
        (items.search(USER, query="what does she like?"), InvalidInput),
        (items.put(USER, "k", object()), InvalidValue),
        (items.put(USER, "k", 1, ttl=timedelta(0)), InvalidInput),
        (items.put(USER, "k", 1, ttl=timedelta(days=500_000)), InvalidInput),
        (items.search(USER, limit=-1), InvalidInput),
        (items.namespaces(offset=-1), InvalidInput),
        (items.put(USER, "k", bytes(17 * 1024 * 1024)), TooLarge),
        (items.sweep("a.b"), InvalidName),
    ]
    for call, error in refused:
        with pytest.raises(error):
            await call


async def test_a_filter_sees_past_a_class_that_this_process_does_not_know(bench: Bench) -> None:
    # Extension type 99 is nobody's.
    packed = b"\x82\xa1n\x01\xa1x\xd4\x63\x00"
    await bench.node.session().call(requests.PutItem("crew", "memory", [], "k", packed))
    items = bench.space.items
    assert len(await items.search(("memory",), filter={"n": 1})) == 1
    assert len(await items.search(("memory",), filter={"x": {"$ne": 1}})) == 1
    assert await items.search(("memory",), filter={"x": 1}) == []
