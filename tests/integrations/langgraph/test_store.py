"""LangGraph's store on Shoal: what InMemoryStore answers, and what it cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
)
from langgraph.store.memory import InMemoryStore

import shoal
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, ItemChanged, ShoalError, TooLarge, Unavailable
from shoal.integrations.langgraph.store import ShoalStore, VersionedItem, VersionedSearchItem
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.cli.conftest import served
from tests.node.conftest import Bench
from tests.support.examples import examples


def bench_of(**settings: Any) -> Bench:
    return Bench(MemoryStorage(), SimulatedEnvironment(1), Config(**settings))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = bench_of()
    yield made
    await made.node.stop()


@pytest.fixture
async def store(bench: Bench) -> ShoalStore:
    return ShoalStore(bench.store)


# ── the same as InMemoryStore ─────────────────────────────────────────────────

LABELS = ["a", "b", "ab", "{t}", "é %/\n"]
namespaces = st.lists(st.sampled_from(LABELS), min_size=1, max_size=3).map(tuple)
names = st.sampled_from(["k", "kk", "", ".", "a/b\x00c", "%"])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0, 1.5]), st.sampled_from(["", "x"]))
contents = st.fixed_dictionaries(
    {"n": st.one_of(st.integers(-2, 2), st.sampled_from([0.5, 1.0]))},
    optional={
        "s": scalars,
        "d": st.dictionaries(st.sampled_from("xy"), scalars, max_size=2),
        "l": st.lists(scalars, max_size=2),
    },
)
orders = st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"]), st.integers(-2, 2), max_size=2)
equals = st.one_of(scalars, st.fixed_dictionaries({"$ne": scalars}), st.fixed_dictionaries({"$eq": scalars}))
filters = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "n": st.one_of(orders, scalars),
            "s": equals,
            "d": st.dictionaries(st.sampled_from("xy"), equals, max_size=2),
            "l": st.lists(equals, max_size=2),
        },
    ),
)
paths = st.lists(st.sampled_from([*LABELS, "*"]), max_size=3).map(tuple)
conditions = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), paths)
operations = st.one_of(
    st.builds(PutOp, namespaces, names, contents, st.none(), st.none()),
    st.builds(PutOp, namespaces, names, contents, st.none(), st.none()),
    st.builds(PutOp, namespaces, names, st.none(), st.none(), st.none()),
    st.builds(GetOp, namespaces, names),
    st.builds(SearchOp, st.one_of(st.just(()), namespaces), filters, st.just(10**6), st.just(0), st.sampled_from([None, "q"])),
    st.builds(
        ListNamespacesOp,
        st.one_of(st.none(), st.lists(conditions, max_size=2).map(tuple)),
        st.one_of(st.none(), st.integers(1, 3)),
        st.just(10**6),
        st.just(0),
    ),
)


def told(op: Op, result: Result) -> Any:
    """A result without its times; a search without the order, which is ours."""
    match op:
        case SearchOp():
            assert isinstance(result, list)
            found = [(item.namespace, item.key, item.value, item.score) for item in result]  # type: ignore[union-attr]
            return sorted(found, key=repr)
        case ListNamespacesOp():
            assert isinstance(result, list)
            return sorted(result)
    return (result.namespace, result.key, result.value) if isinstance(result, Item) else result


def answered(memory: InMemoryStore, op: Op) -> Result:
    """It would go on listing a namespace that was only asked for, or whose items are gone."""
    for namespace in [namespace for namespace, held in memory._data.items() if not held]:
        del memory._data[namespace]
    return memory.batch([op])[0]


@examples(150)
@given(st.lists(st.lists(operations, min_size=1, max_size=6), max_size=8))
def test_random_batches_have_the_results_of_the_store_in_memory(batches: list[list[Op]]) -> None:
    async def run() -> None:
        bench = bench_of(page_items_max=2)
        store, memory = ShoalStore(bench.store), InMemoryStore()
        for ops in batches:
            # One by one: it lists the namespaces that an earlier read of a batch has asked for.
            expected = [answered(memory, op) for op in ops if not isinstance(op, PutOp)]
            memory.batch([op for op in ops if isinstance(op, PutOp)])
            results = await store.abatch(ops)
            reads = [(op, result) for op, result in zip(ops, results, strict=True) if not isinstance(op, PutOp)]
            assert all(result is None for op, result in zip(ops, results, strict=True) if isinstance(op, PutOp))
            assert [told(op, result) for op, result in reads] == [
                told(op, result) for (op, _), result in zip(reads, expected, strict=True)
            ]
        await bench.node.stop()

    asyncio.run(run())


@examples(60)
@given(st.lists(st.tuples(namespaces, names, contents), max_size=12), filters, st.integers(0, 5), st.integers(0, 5))
def test_a_page_of_a_search_is_that_slice_of_the_whole(
    puts: list[tuple[tuple[str, ...], str, Any]], filter: Any, limit: int, offset: int
) -> None:
    async def run() -> None:
        bench = bench_of(page_items_max=2)
        store = ShoalStore(bench.store)
        await store.abatch([PutOp(*put) for put in puts])
        whole = await store.asearch((), filter=filter, limit=10**6)
        assert await store.asearch((), filter=filter, limit=limit, offset=offset) == whole[offset : offset + limit]
        every = await store.alist_namespaces(limit=10**6)
        assert await store.alist_namespaces(limit=limit, offset=offset) == every[offset : offset + limit]
        await bench.node.stop()

    asyncio.run(run())


async def test_reads_of_a_batch_see_what_was_there_before_it(store: ShoalStore) -> None:
    await store.aput(("a",), "k", {"n": 1})
    results = await store.abatch(
        [
            PutOp(("a",), "k", {"n": 2}),
            GetOp(("a",), "k"),
            PutOp(("a",), "k", {"n": 3}),
            PutOp(("b",), "k", {"n": 4}),
            SearchOp(("b",)),
            PutOp(("a",), "gone", {"n": 5}),
            PutOp(("a",), "gone", None),
        ]
    )
    before = results[1]
    assert isinstance(before, Item)
    assert (before.value, results[4]) == ({"n": 1}, [])
    assert [(item.namespace, item.value) for item in await store.asearch(())] == [(("a",), {"n": 3}), (("b",), {"n": 4})]


async def test_the_puts_below_one_label_are_one_operation(bench: Bench, store: ShoalStore) -> None:
    await store.abatch([PutOp(("a", f"u{n}"), "k", {"n": n}) for n in range(10)])
    assert (await bench.store.status()).operations == 1


async def test_more_puts_than_a_batch_may_hold_are_written_in_pieces() -> None:
    bench = bench_of(batch_writes_max=4, request_bytes_max=4000)
    store = ShoalStore(bench.store)
    await store.abatch([PutOp(("a",), f"k{n}", {"text": "x" * 500}) for n in range(10)])
    assert len(await store.asearch((), limit=100)) == 10
    assert (await bench.store.status()).operations == 4
    await bench.node.stop()


async def test_a_value_comes_back_anew_at_each_read(store: ShoalStore) -> None:
    await store.aput(("a",), "k", {"list": [1]})
    first = await store.aget(("a",), "k")
    assert first is not None
    first.value["list"].append(2)
    second = await store.aget(("a",), "k")
    assert second is not None
    assert second.value == {"list": [1]}


async def test_an_item_keeps_when_it_was_created(bench: Bench, store: ShoalStore) -> None:
    await store.aput(("a",), "k", {"n": 1})
    bench.simulated.now_ms += 5000
    await store.aput(("a",), "k", {"n": 2})
    item = await store.aget(("a",), "k")
    assert item is not None
    assert item.updated_at - item.created_at == timedelta(seconds=5)


# ── times to live ─────────────────────────────────────────────────────────────


async def test_an_item_expires_after_its_minutes(bench: Bench, store: ShoalStore) -> None:
    await store.aput(("a",), "k", {"n": 1}, ttl=1.5)
    bench.simulated.now_ms += 90_000
    assert await store.aget(("a",), "k") is None


@pytest.mark.parametrize(
    ("config", "refresh", "lives"),
    [
        (None, None, True),
        (None, False, False),
        ({"refresh_on_read": False}, None, False),
        ({"refresh_on_read": False}, True, True),
    ],
)
@pytest.mark.parametrize("by", ["get", "search"])
async def test_a_read_lets_the_time_to_live_begin_anew(
    bench: Bench, config: TTLConfig | None, refresh: bool | None, lives: bool, by: str
) -> None:
    store = ShoalStore(bench.store, ttl=config)
    await store.aput(("a", "b"), "k", {"n": 1}, ttl=1)
    bench.simulated.now_ms += 40_000
    if by == "get":
        await store.aget(("a", "b"), "k", refresh_ttl=refresh)
    else:
        await store.asearch(("a",), refresh_ttl=refresh)
    bench.simulated.now_ms += 40_000
    assert (await store.aget(("a", "b"), "k") is not None) is lives


async def test_a_default_time_to_live_counts_unless_a_put_says_otherwise(bench: Bench) -> None:
    store = ShoalStore(bench.store, ttl={"default_ttl": 1, "refresh_on_read": False})
    await store.aput(("a",), "default", {"n": 1})
    await store.aput(("a",), "long", {"n": 1}, ttl=10)
    await store.aput(("a",), "ever", {"n": 1}, ttl=None)
    bench.simulated.now_ms += 60_000
    assert [item.key for item in await store.asearch(("a",))] == ["ever", "long"]


async def test_a_node_that_cannot_write_answers_reads_of_items_that_expire(bench: Bench, store: ShoalStore) -> None:
    await store.aput(("a",), "k", {"n": 1}, ttl=10)
    bench.simulated.now_ms += 1000
    bench.node.service._stopping = True
    assert await store.aget(("a",), "k") is not None
    with pytest.raises(Unavailable):
        await store.aput(("a",), "k", {"n": 2})


# ── beyond it ─────────────────────────────────────────────────────────────────


async def test_compare_and_set_takes_the_version_that_was_read(store: ShoalStore) -> None:
    first = await store.acompare_and_set(("a",), "k", {"n": 1}, expect=None)
    item = await store.aget(("a",), "k")
    (found,) = await store.asearch(("a",))
    assert isinstance(item, VersionedItem)
    assert isinstance(found, VersionedSearchItem)
    assert first == item.version == found.version
    second = await store.acompare_and_set(("a",), "k", {"n": 2}, expect=first)
    for expect in (first, None):
        with pytest.raises(ItemChanged):
            await store.acompare_and_set(("a",), "k", {"n": 3}, expect=expect)
    assert await store.acompare_and_set(("a",), "k", None, expect=second) is None
    assert await store.aget(("a",), "k") is None


async def test_a_watch_tells_of_puts_and_deletes(store: ShoalStore) -> None:
    async with aclosing(store.watch(("a%",))) as changes:
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await store.aput(("b",), "k", {"n": 1})
        await store.aput(("a%", "u"), "k\n", {"n": 1})
        await store.adelete(("a%", "u"), "k\n")
        told = [await first, await anext(changes)]
    assert [(change.namespace, change.key, change.what) for change in told] == [
        (("a%", "u"), "k\n", "put-item"),
        (("a%", "u"), "k\n", "delete-item"),
    ]


# ── bad input ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("namespace", [(), ("",), ("a", ""), ("a.b",), ("a\x00",), ("langgraph", "x"), ("a", 1)], ids=repr)
async def test_an_illegal_namespace_is_refused_at_every_door(store: ShoalStore, namespace: Any) -> None:
    calls = [
        store.aput(namespace, "k", {"n": 1}),
        store.abatch([PutOp(namespace, "k", {"n": 1})]),
        store.abatch([PutOp(namespace, "k", None)]),
        store.acompare_and_set(namespace, "k", {"n": 1}, expect=None),
    ]
    for call in calls:
        with pytest.raises(InvalidNamespaceError):
            await call
    assert await store.asearch(()) == []


BAD: list[tuple[Op | Any, type[ShoalError]]] = [
    (PutOp(("a",), "k", {"x": object()}), InvalidValue),
    (PutOp(("a",), "k", ["no map"]), InvalidValue),  # type: ignore[arg-type]
    (PutOp(("a",), "k", {"x": bytes(20 * 1024 * 1024)}), TooLarge),
    (PutOp(("a",), "k" * 2000, {"x": 1}), InvalidInput),
    (PutOp(("a",), "k", {"x": 1}, ttl=0), InvalidInput),
    (PutOp(("a",), "k", {"x": 1}, ttl=float("nan")), InvalidInput),
    (PutOp(("a",), "k", {"x": 1}, ttl=float("inf")), InvalidInput),
    (SearchOp(("a",), {"x": {"$in": [1]}}), InvalidInput),
    (SearchOp(("a",), limit=-1), InvalidInput),
    (ListNamespacesOp(max_depth=0), InvalidInput),
    ("no operation", InvalidInput),
]


@pytest.mark.parametrize(("op", "error"), BAD, ids=lambda part: str(part)[:50])
async def test_a_batch_with_an_illegal_operation_writes_nothing(store: ShoalStore, op: Any, error: type[ShoalError]) -> None:
    await store.aput(("a",), "there", {"n": 1})
    with pytest.raises(error):
        await store.abatch([PutOp(("a",), "first", {"n": 1}), op])
    assert [item.key for item in await store.asearch(())] == ["there"]


async def test_a_blocking_call_on_the_stores_own_loop_is_refused(store: ShoalStore) -> None:
    with pytest.raises(InvalidInput, match="on the loop"):
        store.get(("a",), "k")


# ── in use ────────────────────────────────────────────────────────────────────


class State(TypedDict):
    user: str
    visits: int


def remember(state: State, runtime: Runtime[None]) -> dict[str, Any]:
    assert runtime.store is not None
    namespace = ("visits", state["user"])
    before = runtime.store.get(namespace, "count")
    visits = 1 if before is None else before.value["n"] + 1
    runtime.store.put(namespace, "count", {"n": visits})
    return {"visits": visits}


async def aremember(state: State, runtime: Runtime[None]) -> dict[str, Any]:
    assert runtime.store is not None
    namespace = ("visits", state["user"])
    before = await runtime.store.aget(namespace, "count")
    visits = 1 if before is None else before.value["n"] + 1
    await runtime.store.aput(namespace, "count", {"n": visits})
    return {"visits": visits}


def graph_of(store: ShoalStore, node: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("remember", node)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", END)
    return builder.compile(store=store)


def test_a_graph_remembers_across_openings_of_a_directory(tmp_path: Path) -> None:
    for visit in (1, 2):
        with ShoalStore.open(tmp_path / "state") as store:
            assert graph_of(store, remember).invoke({"user": "ann", "visits": 0})["visits"] == visit


async def test_an_asynchronous_graph_remembers_on_a_store_that_is_shared(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as opened:
        graph = graph_of(ShoalStore(opened), aremember)
        assert [(await graph.ainvoke({"user": "bob", "visits": 0}))["visits"] for _ in range(3)] == [1, 2, 3]
        items = opened.space("langgraph").items
        assert [item.namespace for item in await items.search()] == [("visits", "bob")]


@contextmanager
def node_at(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path / "served") as (_, url):
        yield url


def test_a_graph_remembers_on_a_node(tmp_path: Path) -> None:
    with node_at(tmp_path) as url:
        with ShoalStore.connect(url) as store:
            assert graph_of(store, remember).invoke({"user": "cy", "visits": 0})["visits"] == 1
        with ShoalStore.connect(url) as store:
            assert graph_of(store, remember).invoke({"user": "cy", "visits": 0})["visits"] == 2
            store.delete(("visits", "cy"), "count")
            assert store.list_namespaces() == []


def test_blocking_compare_and_set_and_what_an_item_tells(tmp_path: Path) -> None:
    with ShoalStore.open(tmp_path / "state") as store:
        version = store.compare_and_set(("a",), "k", {"n": 1}, expect=None, ttl=60)
        item, (found,) = store.get(("a",), "k"), store.search(("a",))
        assert isinstance(item, VersionedItem)
        assert isinstance(found, VersionedSearchItem)
        assert item.expires_at is not None
        assert found.expires_at is not None
        assert found.expires_at - found.updated_at >= timedelta(minutes=60)
        store.compare_and_set(("a",), "k", {"n": 2}, expect=version)
        with pytest.raises(ItemChanged):
            store.compare_and_set(("a",), "k", {"n": 3}, expect=version)
        assert store.get(("a",), "k").value == {"n": 2}  # type: ignore[union-attr]


def test_spaces_are_apart(tmp_path: Path) -> None:
    with ShoalStore.open(tmp_path / "state", space="one") as store:
        store.put(("a",), "k", {"n": 1})
    with ShoalStore.open(tmp_path / "state", space="two") as store:
        assert store.search(()) == []
