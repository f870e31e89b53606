"""Indexes of items: they change how much a search reads, and never what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, StoreCorrupt, TooLarge
from shoal.kinds.items.handle.items import Items
from shoal.kinds.items.serving import indexes as indexing
from shoal.kinds.items.serving.searches import Span, span_of
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.values.filtering import Filter
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.support.examples import examples
from tests.support.pacing import LOOK_S, reached

NOTES = ("notes",)


class CountingStorage(MemoryStorage):
    """Counts the rows that are read of it."""

    reads = 0

    def get(self, key: bytes, /) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(start, stop, reverse=reverse, limit=limit):
            self.reads += 1
            yield row


async def built(items: Items, label: str = "notes") -> None:
    """Wait until all that is declared is built."""
    async with asyncio.timeout(20):
        while not all((await items.indexes((label,))).values()):
            await asyncio.sleep(LOOK_S)


def index_rows(bench: Bench) -> list[bytes]:
    return [key for key, _ in bench.storage.scan(keys.INDEX, keys.INDEX + b"\xff")]


def problems(bench: Bench) -> list[str]:
    return verify(bench.storage, config=Config()).problems


async def fill(items: Items, count: int) -> None:
    """`count` notes under ten users; of a hundred one is rare, and its number is `n`."""
    for n in range(count):
        value = {"n": n, "kind": "rare" if n % 100 == 0 else "usual", "at": {"day": n % 30}}
        await items.put(("notes", f"user-{n % 10}"), f"{n:05}", value, durability="memory")


# ── what is read ──────────────────────────────────────────────────────────────


async def test_a_search_reads_what_its_index_lists(open_bench: Opener) -> None:
    storage = CountingStorage()
    items = open_bench(storage).space.items
    await fill(items, 3000)
    await items.index(NOTES, "kind", "n", "at.day")
    await built(items)
    filters: list[tuple[dict[str, Any], int]] = [
        ({"kind": "rare"}, 30),
        ({"n": 1234}, 1),
        ({"n": {"$gte": 100, "$lt": 110}}, 10),
        ({"at.day": {"$lte": 1}}, 200),
        ({"kind": "usual", "n": {"$lt": 20}}, 19),
    ]
    for filter, count in filters:
        explained = await items.explain(NOTES, filter=filter, limit=1000)
        storage.reads = 0
        found = await items.search(NOTES, filter=filter, limit=1000)
        assert len(found) == count
        assert explained.how == "lookup"
        assert explained.item_rows <= count + 2  # A bound that is excluded is looked at.
        assert explained.index_rows <= 256 + count + 2
        assert storage.reads <= explained.index_rows + explained.item_rows + 20, filter


async def test_a_value_of_many_items_is_read_in_order_page_by_page(open_bench: Opener) -> None:
    storage = CountingStorage()
    items = open_bench(storage, item_scan_rows_max=500).space.items
    await fill(items, 3000)
    await items.index(NOTES, "kind")
    await built(items)
    storage.reads = 0
    found = await items.search(NOTES, filter={"kind": "usual"}, limit=10)
    assert [item.value["n"] for item in found] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 110]
    assert storage.reads < 256 + 40
    explained = await items.explain(NOTES, filter={"kind": "usual"}, limit=10)
    assert (explained.how, explained.field, explained.item_rows) == ("stream", "kind", 11)
    assert len([item async for item in items.scan(NOTES, filter={"kind": "usual"})]) == 2970


async def test_filters_without_an_index_scan(bench: Bench) -> None:
    items = bench.space.items
    await fill(items, 100)
    await items.index(NOTES, "kind")
    await built(items)
    for filter in ({"kind": {"$ne": "usual"}}, {"kind": None}, {"n": 3}, {"kind": ["rare"]}, {"kind": {"of": 1}}):
        explained = await items.explain(NOTES, filter=filter)
        assert (explained.how, explained.field, explained.index_rows, explained.item_rows) == ("scan", None, 0, 100), filter


async def test_a_range_of_too_many_items_is_scanned(open_bench: Opener) -> None:
    items = open_bench(item_probe_rows_max=10, item_scan_rows_max=50).space.items
    await fill(items, 200)
    await items.index(NOTES, "n")
    await built(items)
    wide = await items.explain(NOTES, filter={"n": {"$gte": 100}}, limit=1000)
    assert (wide.how, wide.field) == ("scan", None)
    narrow = await items.explain(NOTES, filter={"n": {"$gte": 170}}, limit=1000)
    assert (narrow.how, narrow.field, narrow.item_rows) == ("lookup", "n", 30)


async def test_an_index_finds_within_a_namespace(bench: Bench) -> None:
    items = bench.space.items
    await fill(items, 1000)
    await items.index(NOTES, "kind", "n")
    await built(items)
    for filter, expected in (({"kind": "rare"}, 10), ({"n": {"$lt": 50}}, 5)):
        found = await items.search(("notes", "user-0"), filter=filter)
        assert len(found) == expected
        assert {item.namespace for item in found} == {("notes", "user-0")}
        assert (await items.explain(("notes", "user-0"), filter=filter)).how == "lookup"


async def test_a_search_picks_namespaces_by_their_beginning_and_end(bench: Bench) -> None:
    items = bench.space.items
    for namespace in (("m", "u1", "notes"), ("m", "u2", "notes"), ("m", "u2", "plans"), ("m",), ("other", "u1", "notes")):
        await items.put(namespace, "k", {"n": len(namespace)}, vectors=[[1.0, len(namespace)]])
    await items.index(("m",), "n")
    await built(items, "m")

    async def found(**wanted: Any) -> list[tuple[str, ...]]:
        by_order = [item.namespace for item in await items.search(**wanted)]
        assert sorted(by_order) == sorted(item.namespace for item in await items.search(vector=[1.0, 0.0], **wanted))
        return by_order

    assert await found(prefix=("m", "*", "notes")) == [("m", "u1", "notes"), ("m", "u2", "notes")]
    assert await found(suffix=("u2", "*")) == [("m", "u2", "notes"), ("m", "u2", "plans")]
    assert await found(namespace=("m",), suffix=("notes",), filter={"n": 3}) == [("m", "u1", "notes"), ("m", "u2", "notes")]
    assert await found(namespace=("m",), suffix=("notes",), limit=1, offset=1) == [("m", "u2", "notes")]
    assert await found(prefix=("*", "u1"), suffix=("notes",)) == [("m", "u1", "notes"), ("other", "u1", "notes")]
    with pytest.raises(InvalidInput, match="tuple of labels"):
        await items.search(suffix="notes")
    with pytest.raises(InvalidName):
        await items.search(("m",), suffix=("a.b",))


# ── which values an index can bound ───────────────────────────────────────────


@pytest.mark.parametrize("condition", [None, {"$ne": 1}, {"a": 1}, [1], {"$eq": None}, {"$gt": b"x"}, float("nan")], ids=repr)
def test_a_condition_that_no_index_holds_bounds_nothing(condition: Any) -> None:
    assert span_of(condition) is None


def test_of_several_operators_those_that_bound_count() -> None:
    both = span_of({"$gte": 1, "$lt": 5, "$ne": 3, "$eq": None})
    assert both is not None
    assert both == Span(span_of({"$gte": 1}).low, span_of({"$lt": 5}).high)  # type: ignore[union-attr]


# ── the same answers ──────────────────────────────────────────────────────────

FIELD_VALUES: list[Any] = [None, 0, 1, 1.5, True, -3, 2**60, "", "a", "a\x00b", "b" * 200, "b" * 201, [1], {"x": 1}, b"a", (1,)]
OPERANDS: list[Any] = [*FIELD_VALUES, float("nan"), float("inf")]
CONDITIONS = st.one_of(
    st.sampled_from(OPERANDS),
    st.dictionaries(
        st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]), st.sampled_from(OPERANDS), min_size=1, max_size=2
    ),
)
FILTERS = st.dictionaries(st.sampled_from(["a", "b", "a.x", "c"]), CONDITIONS, min_size=1, max_size=2)
VALUES = st.one_of(
    st.dictionaries(st.sampled_from(["a", "b", "a.x"]), st.sampled_from(FIELD_VALUES), max_size=3), st.just("text")
)
NAMESPACES = [("m",), ("m", "u"), ("m", "uu"), ("m", "u", "v")]
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "expire", "index", "unindex", "crash", "batch"]),
        st.integers(0, 3),
        st.integers(0, 3),
        VALUES,
    ),
    max_size=25,
)


async def act(bench: Bench, deed: tuple[str, int, int, Any]) -> Bench:
    what, place, key, value = deed
    items, field = bench.space.items, ["a", "b", "a.x", "c"][key]
    match what:
        case "put":
            await items.put(NAMESPACES[place], f"k{key}", value)
        case "expire":
            await items.put(NAMESPACES[place], f"k{key}", value, ttl=timedelta(seconds=place + 1))
            bench.simulated.now_ms += 2000
            await items.sweep("m")
        case "delete":
            await items.delete(NAMESPACES[place], f"k{key}")
        case "index":
            await items.index(("m",), field)
        case "unindex":
            await items.unindex(("m",), field)
        case "batch":
            async with bench.space.batch() as batch:
                batch.items.put(NAMESPACES[place], f"k{key}", "gone")
                batch.items.put(NAMESPACES[place], f"k{key}", value)
                batch.items.delete(NAMESPACES[key], f"k{place}")
        case "crash":
            after = bench.crashed(None)
            await bench.node.stop()
            after.simulated.now_ms = bench.simulated.now_ms
            return after
    return bench


def expected(found: list[Any], filter: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    matching = Filter(values.encode(dict(filter)), terms_max=100)
    return [(item.namespace, item.key) for item in found if matching.matches(values.encode(item.value))]


@pytest.mark.answers("deleted-memory-stays-in-the-search-index")
@examples(60)
@given(deeds=DEEDS, filters=st.lists(FILTERS, min_size=1, max_size=4), small=st.booleans())
def test_an_index_changes_no_answer_whatever_happened(deeds: list[Any], filters: list[dict[str, Any]], small: bool) -> None:
    async def run() -> None:
        bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config(item_expiry_grace_s=0.001))
        for deed in deeds:
            bench = await act(bench, deed)
            assert problems(bench) == []
        await built(bench.space.items, "m")
        assert problems(bench) == []
        for namespace in NAMESPACES:
            everything = [item async for item in bench.space.items.scan(namespace)]
            for filter in filters:
                found = [item async for item in bench.space.items.scan(namespace, filter=filter)]
                assert [(item.namespace, item.key) for item in found] == expected(everything, filter)
        await bench.node.stop()

    bounds = {"index_build_rows_max": 2, "item_probe_rows_max": 2, "item_scan_rows_max": 3} if small else {}
    with altered(**bounds):
        asyncio.run(run())


# ── building ──────────────────────────────────────────────────────────────────


async def test_an_index_is_built_in_pieces_and_what_changes_meanwhile_is_in_it(open_bench: Opener) -> None:
    bench = open_bench(index_build_rows_max=7)
    items = bench.space.items
    await fill(items, 100)
    await items.index(NOTES, "n")
    assert (await items.explain(NOTES, filter={"n": 50})).how == "scan"
    await items.delete(("notes", "user-0"), "00000")
    await items.delete(("notes", "user-9"), "00099")
    await items.put(("notes", "user-0"), "00010", {"n": 1000})
    await items.put(("notes", "zzz"), "new", {"n": 2000})
    assert problems(bench) == []
    await built(items)
    assert problems(bench) == []
    assert [item.key for item in await items.search(NOTES, filter={"n": {"$gte": 99}})] == ["00010", "new"]
    assert len([row for row in index_rows(bench) if b"V\x00\x01n" in row]) == 99


async def test_a_crash_in_the_building_goes_on_where_it_was(open_bench: Opener) -> None:
    bench = open_bench(index_build_rows_max=5)
    await fill(bench.space.items, 60)
    await bench.space.items.index(NOTES, "n")
    await reached(lambda: len(index_rows(bench)) >= 20)
    after = bench.crashed(None)
    assert 20 <= len(index_rows(after)) < 60
    assert problems(after) == []
    assert [item.value["n"] for item in await after.space.items.search(NOTES, filter={"n": 33})] == [33]
    await built(after.space.items)
    assert (await after.space.items.explain(NOTES, filter={"n": 33})).how == "lookup"
    assert problems(after) == []
    await after.node.stop()


async def test_an_index_that_is_dropped_leaves_nothing_and_can_be_made_again(bench: Bench) -> None:
    items = bench.space.items
    await fill(items, 50)
    assert await items.index(NOTES, "n", "kind") == ["n", "kind"]
    assert await items.index(NOTES, "n") == []
    await built(items)
    assert await items.unindex(NOTES, "n", "absent") == ["n"]
    assert await items.indexes(NOTES) == {"kind": True}
    async with asyncio.timeout(30):
        while any(b"V\x00\x01n" in row for row in index_rows(bench)):
            await asyncio.sleep(LOOK_S)
    assert (await items.explain(NOTES, filter={"n": 3})).how == "scan"
    await items.unindex(NOTES, "kind")
    async with asyncio.timeout(30):
        while index_rows(bench):
            await asyncio.sleep(LOOK_S)
    await items.index(NOTES, "n")
    await built(items)
    assert (await items.explain(NOTES, filter={"n": 3})).how == "lookup"


async def test_rows_of_an_older_form_are_built_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(bench.space.items, 10)
    await bench.space.items.index(NOTES, "n")
    await built(bench.space.items)
    monkeypatch.setattr("shoal.kinds.items.serving.indexes.FORM", 2)
    monkeypatch.setattr("shoal.kinds.items.serving.indexes.FORM", 2)
    after = bench.crashed(None)
    await after.space.items.search(NOTES, filter={"n": 3})
    async with asyncio.timeout(30):
        while (await after.space.items.explain(NOTES, filter={"n": 3})).how == "scan":
            await asyncio.sleep(LOOK_S)
    assert problems(after) == []
    await after.node.stop()


# ── bad input ─────────────────────────────────────────────────────────────────


async def test_bad_declarations_write_nothing(open_bench: Opener) -> None:
    bench = open_bench(item_indexes_max=2)
    items = bench.space.items
    for declared, error in (
        (items.index(("notes", "deep"), "n"), InvalidInput),
        (items.index(NOTES), InvalidInput),
        (items.index(NOTES, "a", "b", "c"), InvalidInput),
        (items.index(NOTES, ""), InvalidName),
        (items.index(NOTES, "a\n"), InvalidName),
        (items.index(("",), "a"), InvalidName),
    ):
        with pytest.raises(error):
            await declared
    await items.index(NOTES, "a", "b")
    operations = (await bench.node.session().call(requests.Status())).operations
    with pytest.raises(TooLarge, match="Drop an index"):
        await items.index(NOTES, "c")
    assert (await bench.node.session().call(requests.Status())).operations == operations


async def test_explaining_asks_for_one_item_at_least(bench: Bench) -> None:
    with pytest.raises(InvalidInput):
        await bench.space.items.explain(NOTES, limit=0)


# ── among nodes ───────────────────────────────────────────────────────────────


async def test_an_index_declared_on_one_node_is_built_everywhere() -> None:
    async with Fleet("abc") as fleet:
        items = {name: fleet[name].store().space("crew").items for name in "abc"}
        await fill(items["a"], 40)
        await items["b"].index(NOTES, "n")
        await fleet.converged()
        await items["c"].put(("notes", "user-0"), "00000", {"n": 500})
        await fleet.converged()
        for name in "abc":
            await built(items[name])
            assert (await items[name].explain(NOTES, filter={"n": 500})).how == "lookup"
            assert [item.key for item in await items[name].search(NOTES, filter={"n": {"$gt": 38}})] == ["00000", "00039"]
            assert verify(fleet[name].storage, config=Config()).problems == []
        await items["a"].unindex(NOTES, "n")
        await fleet.converged()
        for name in "abc":
            assert await items[name].indexes(NOTES) == {}


async def test_an_index_in_a_batch_is_refused_and_nothing_is_written(bench: Bench) -> None:
    space = bench.store.space("crew")
    with pytest.raises(InvalidInput, match=r"Await space\.items\.index\(…\) beside the batch"):
        async with space.batch() as batch:
            batch.items.put(NOTES, "k", {"n": 1})
            batch.items.index(NOTES, "n")
    assert await space.items.get(NOTES, "k") is None


async def test_an_index_that_found_no_room_in_the_queue_is_built_when_its_items_are_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "_DUE_MAX", 1)
    items = bench.space.items
    for label in ("notes", "others"):
        await items.put((label,), "k", {"n": 1})
    await asyncio.gather(items.index(("notes",), "n"), items.index(("others",), "n"))
    for label in ("notes", "others"):
        await built(items, label)
        assert (await items.explain((label,), filter={"n": 1})).how == "lookup"


async def test_an_index_that_storage_did_not_let_be_built_is_built_when_its_items_are_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = bench.space.items
    await items.put(NOTES, "k", {"n": 1})
    build = indexing.Indexer._build

    def fails(*_: object) -> int:
        monkeypatch.setattr(indexing.Indexer, "_build", build)
        raise StoreCorrupt("a block cannot be read.")

    monkeypatch.setattr(indexing.Indexer, "_build", fails)
    await items.index(NOTES, "n")
    await built(items)
    assert (await items.explain(NOTES, filter={"n": 1})).how == "lookup"
