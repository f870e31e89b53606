"""Searches by vectors: exact, whatever was put, deleted or has expired since the vectors were last looked at."""

from __future__ import annotations

import asyncio
import warnings
from datetime import timedelta
from math import sqrt
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, TooLarge, Unsupported
from shoal.kinds.items.handle.items import Items
from shoal.kinds.items.serving.matrix import Matrix, nearest, ranked, units
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.values.forms import pack
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.support.examples import examples
from tests.support.turns import Turns

NOTES = ("notes",)
Model = dict[tuple[tuple[str, ...], str], tuple[Any, list[list[float]]]]


def cosine(one: list[float], other: list[float]) -> float:
    a, b = (np.array(vector, np.float32).astype(float) for vector in (one, other))
    norms = sqrt(a @ a) * sqrt(b @ b)
    return float(a @ b / norms) if norms else 0.0


def expected(model: Model, rest: tuple[str, ...], query: list[float], colour: str | None = None) -> list[float]:
    """The scores of what matches, the nearest first."""
    scores = [
        max(cosine(query, vector) for vector in vectors if len(vector) == len(query))
        for (namespace, _), (value, vectors) in model.items()
        if namespace[: len(rest)] == rest
        and colour in (None, value["colour"])
        and any(len(vector) == len(query) for vector in vectors)
    ]
    return sorted(scores, reverse=True)


async def check(items: Items, model: Model, rest: tuple[str, ...], query: list[float], **wanted: Any) -> None:
    colour, limit = wanted.get("colour"), wanted.get("limit", 5)
    found = await items.search(rest, vector=query, limit=limit, filter={"colour": colour} if colour else None)
    assert [item.score for item in found] == pytest.approx(expected(model, rest, query, colour)[:limit], abs=1e-5)
    for item in found:
        value, vectors = model[item.namespace, item.key]
        assert item.value == value
        assert item.score == pytest.approx(
            max(cosine(query, vector) for vector in vectors if len(vector) == len(query)), abs=1e-5
        )


async def test_the_nearest_come_first_with_their_scores(bench: Bench) -> None:
    items = bench.space.items
    await items.put(NOTES, "east", 1, vectors=[[1, 0]])
    await items.put(NOTES, "north", 2, vectors=[[0, 5]])
    await items.put(NOTES, "between", 3, vectors=[[0, 1], [1, 1]])
    await items.put(NOTES, "nowhere", 4, vectors=[[0, 0]])
    await items.put(NOTES, "without", 5)
    await items.put(NOTES, "deeper", 6, vectors=[[1, 0, 0]])
    found = await items.search(NOTES, vector=[2, 0])
    assert [(item.key, round(item.score or 0, 3)) for item in found] == [
        ("east", 1),
        ("between", 0.707),
        ("north", 0),
        ("nowhere", 0),
    ]
    assert [item.key for item in await items.search((), vector=[2, 0], limit=2, offset=1)] == ["between", "north"]
    assert [item.key for item in await items.search(NOTES, vector=[0, 0, 1])] == ["deeper"]
    assert (await items.search(NOTES))[0].score is None


async def test_a_query_is_embedded_as_the_values_were(bench: Bench) -> None:
    asked: list[list[str]] = []

    async def embed(texts: list[str]) -> list[list[float]]:
        asked.append(texts)
        return [[text.count("a") + 0.1, text.count("b") + 0.1] for text in texts]

    items = bench.space.items.embedded(embed, fields=["title", "more.body"])
    await items.put(NOTES, "1", {"title": "aaaa", "more": {"body": "bbbb"}})
    await items.put(NOTES, "2", {"title": "aabb"})
    await items.put(NOTES, "3", {"other": "bbbb"})
    assert asked == [["aaaa", "bbbb"], ["aabb"]]
    assert [item.key for item in await items.search(NOTES, query="bbbbbbbb")] == ["1", "2"]
    whole = bench.space.items.embedded(embed)
    await whole.put(("whole",), "k", {"b": "b", "a": 1})
    assert asked[-1] == ['{"a": 1, "b": "b"}']


async def test_written_items_are_found_at_once(bench: Bench) -> None:
    items = bench.space.items
    for n in range(20):
        await items.put(NOTES, f"{n:02}", n, vectors=[[1, n]])
    assert [item.value for item in await items.search(NOTES, vector=[0, 1], limit=2)] == [19, 18]
    await items.delete(NOTES, "19")
    await items.put(NOTES, "18", "another", vectors=[[1, 0]])
    await items.put(NOTES, "new", "new", vectors=[[0, 1]])
    await items.put(NOTES, "17", "none")
    await items.put(NOTES, "16", "short-lived", ttl=timedelta(seconds=1), vectors=[[0, 1]])
    assert [item.value for item in await items.search(NOTES, vector=[0, 1], limit=3)] == ["short-lived", "new", 15]
    bench.simulated.now_ms += 1000
    assert [item.value for item in await items.search(NOTES, vector=[0, 1], limit=2)] == ["new", 15]
    assert [item.value for item in await items.search(NOTES, vector=[1, 0], limit=2)] == [0, "another"]


async def test_nothing_is_left_of_vectors_that_were_replaced_or_deleted(bench: Bench) -> None:
    items = bench.space.items
    for n in range(5):
        await items.put(NOTES, "k", n, vectors=[[n, 1], [1, n]])
    await items.put(NOTES, "k", 5)
    async with bench.space.batch() as batch:
        batch.items.put(NOTES, "k", 6, vectors=[[1, 1]])
        batch.items.put(NOTES, "k", 7, vectors=[[1, 2]])
    stored = [key for key, _ in bench.storage.scan(keys.OBJECT, keys.OBJECT + b"\xff")]
    assert len(stored) == 2  # The item, and its vectors.
    await items.delete(NOTES, "k")
    assert not list(bench.storage.scan(keys.OBJECT, keys.OBJECT + b"\xff"))
    assert verify(bench.storage, config=bench.config).problems == []


async def test_of_concurrent_values_the_one_that_is_shown_is_compared() -> None:
    async with Fleet("abc") as fleet:
        one, other = (fleet[name].store().space("crew").items for name in "ab")
        await fleet.isolate("a")
        await one.put(NOTES, "k", "one", vectors=[[1, 0]])
        await other.put(NOTES, "k", "other", vectors=[[0, 1]])
        fleet.link_all("a")
        await fleet.converged()
        for name in "abc":
            (found,) = await fleet[name].store().space("crew").items.search(NOTES, vector=[0, 1])
            assert (found.value, round(found.score or 0)) in (("one", 0), ("other", 1))
            assert verify(fleet[name].storage, config=Config()).problems == []


async def test_a_searching_node_compares_writes_of_its_peers() -> None:
    async with Fleet("abc") as fleet:
        items = {name: fleet[name].store().space("crew").items for name in "abc"}
        for n in range(10):
            await items["a"].put(NOTES, str(n), n, vectors=[[1, n]])
        await fleet.converged()
        for name in "abc":
            assert [item.value for item in await items[name].search(NOTES, vector=[0, 1], limit=2)] == [9, 8]
        await items["b"].delete(NOTES, "9")
        await items["b"].put(NOTES, "0", "moved", vectors=[[0, 1]])
        await items["c"].put(NOTES, "new", "new", vectors=[[0.001, 1]])
        await fleet.converged()
        for name in "abc":
            assert [item.value for item in await items[name].search(NOTES, vector=[0, 1], limit=3)] == ["moved", "new", 8]


# ── whatever happened ─────────────────────────────────────────────────────────

NAMESPACES = [("m",), ("m", "u"), ("m", "uu"), ("m", "u", "v")]
NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0])
VECTORS = st.lists(st.one_of(st.lists(NUMBERS, min_size=2, max_size=2), st.lists(NUMBERS, min_size=3, max_size=3)), max_size=3)
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "search", "search", "crash", "index"]),
        st.integers(0, 3),
        st.integers(0, 5),
        VECTORS,
    ),
    max_size=30,
)


@pytest.mark.answers("deleted-memory-stays-in-the-search-index")
@examples(60)
@given(deeds=DEEDS, small=st.booleans())
def test_a_search_finds_what_a_twin_finds_that_compares_everything(deeds: list[Any], small: bool) -> None:
    bounds: dict[str, Any] = {
        "item_scan_rows_max": 2,
        "vector_page_rows_max": 2,
        "vector_moves_max": 2,
        "index_build_rows_max": 2,
    }

    async def run() -> None:
        bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config())
        model: Model = {}
        for what, place, key, vectors in deeds:
            items, namespace, colour = bench.space.items, NAMESPACES[place], ["red", "blue"][key % 2]
            match what:
                case "put":
                    await items.put(namespace, f"k{key}", {"colour": colour}, vectors=vectors)
                    model[namespace, f"k{key}"] = ({"colour": colour}, vectors)
                case "delete":
                    await items.delete(namespace, f"k{key}")
                    model.pop((namespace, f"k{key}"), None)
                case "index":
                    await items.index(("m",), "colour")
                case "crash":
                    after = bench.crashed(None)
                    await bench.node.stop()
                    bench = after
                case _:
                    await check(items, model, namespace, [1.0, 0.5], limit=1 + key, colour=[None, "red"][key % 2])
        for namespace in NAMESPACES:
            for query in ([1.0, 2.0], [1.0, 0.0, -1.0]):
                await check(bench.space.items, model, namespace, query, limit=100)
                await check(bench.space.items, model, namespace, query, colour="blue")
        assert verify(bench.storage, config=Config()).problems == []
        await bench.node.stop()

    with altered(**(bounds if small else {})):
        asyncio.run(run())


async def test_vectors_without_room_are_read_from_the_store(open_bench: Opener) -> None:
    for cache_bytes in (1, 20_000, 1 << 20):
        bench = open_bench(vector_cache_bytes=cache_bytes, item_scan_rows_max=50, vector_page_rows_max=40)
        random, model = Random(3), Model()
        for n in range(300):
            vector = [random.gauss(0, 1) for _ in range(16)]
            await bench.space.items.put(
                ("notes", f"user-{n % 3}"), str(n), {"colour": "red"}, vectors=[vector], durability="memory"
            )
            model[("notes", f"user-{n % 3}"), str(n)] = ({"colour": "red"}, [vector])
        for _ in range(2):
            for rest in (NOTES, ("notes", "user-0"), ("notes", "user-1")):
                await check(bench.space.items, model, rest, [random.gauss(0, 1) for _ in range(16)])
        held = sum(matrix.size_bytes for matrix in bench.node.service._database._kinds.rankings._matrices.values())
        assert held <= cache_bytes + 16 * 4 * 50 * 3 + 50 * 200 + 4096  # What one step brought may be over it.


async def test_searches_and_writes_at_once_do_not_disturb_each_other(open_bench: Opener) -> None:
    bench = open_bench(item_scan_rows_max=7, vector_page_rows_max=7)
    items = bench.space.items
    for n in range(60):
        await items.put(NOTES, f"{n:02}", {"n": n}, vectors=[[1, n]])

    async def write() -> None:
        for n in range(60):
            await items.put(NOTES, f"{n:02}", {"n": -n}, vectors=[[1, -n]])

    async def search() -> None:
        for _ in range(20):
            for item in await items.search(NOTES, vector=[0, 1], limit=3):
                assert item.score == pytest.approx(cosine([0, 1], [1, item.value["n"]]), abs=1e-5)

    await asyncio.gather(write(), search(), search())
    assert [item.value["n"] for item in await items.search(NOTES, vector=[0, -1], limit=2)] == [-59, -58]


def test_a_matrix_uses_rows_again() -> None:
    matrix = Matrix(2)
    for turn in range(50):
        for n in range(40):
            matrix.replace(str(n).encode(), units([pack([turn, n])] * 2, 2))
    assert len(matrix._data) <= 144
    matrix.replace(b"1", units([], 2))
    count, last, found = matrix.nearest(np.array([1, 0], np.float32), b"0", 1)
    assert (count, last, [path for path, _ in found]) == (2, b"10", [b"10", b"10"])


# ── bad input ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vector", [[], [float("nan")], [float("inf")], [1e60], ["x"], [None], 5], ids=repr)
async def test_a_malformed_vector_writes_nothing(bench: Bench, vector: Any) -> None:
    with pytest.raises(InvalidValue):
        await bench.space.items.put(NOTES, "k", 1, vectors=[vector])
    with pytest.raises(InvalidValue):
        await bench.space.items.search(NOTES, vector=vector)
    assert await bench.space.items.get(NOTES, "k") is None


async def test_bounds_of_vectors_are_kept(open_bench: Opener) -> None:
    items = open_bench(vectors_max=2, vector_dims_max=3, item_ranks_max=10).space.items
    for vectors in ([[1.0]] * 3, [[1.0] * 4]):
        with pytest.raises(TooLarge, match="Nothing was written"):
            await items.put(NOTES, "k", 1, vectors=vectors)
    for bad in (items.search(NOTES, vector=[1.0] * 4), items.search(NOTES, vector=[1.0], offset=5, limit=6)):
        with pytest.raises(InvalidInput):
            await bad
    with pytest.raises(InvalidInput, match="needs an embedding"):
        await items.search(NOTES, query="text")
    with pytest.raises(InvalidInput, match="1 vectors for 2 texts"):
        await items.embedded(lambda texts: [[1.0]], fields=["a", "b"]).put(NOTES, "k", {"a": "1", "b": "2"})


async def test_vectors_that_are_no_floats_are_refused_at_the_edge(bench: Bench) -> None:
    request = requests.PutItem("crew", "notes", [], "k", b"\x01", vectors=[b"abc"])
    with pytest.raises(InvalidValue):
        await bench.node.session().call(request)


async def test_a_node_without_numpy_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.space.items.put(NOTES, "k", 1, vectors=[[1.0]])
    monkeypatch.setitem(__import__("sys").modules, "shoal.kinds.items.serving.matrix", None)
    with pytest.raises(Unsupported, match=r"\.\[vectors\]"):
        await bench.space.items.search(NOTES, vector=[1.0])


def test_floating_point_flags_of_products_are_no_warning() -> None:
    """With some libraries it reports lanes beyond the data too. Here there is a reason for it."""
    overflowing = np.array([[np.inf, 1.0]], np.float32)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        overflowing @ np.zeros(2, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nearest(overflowing, np.zeros(2, np.float32))
        list(ranked([b"x"], overflowing, np.zeros(2, np.float32)))


async def test_others_have_a_turn_between_two_pieces_of_a_comparison(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = open_bench(vector_page_rows_max=4).space.items
    for n in range(20):
        await items.put(NOTES, f"k{n:02}", n, vectors=[[1.0, n]])
    await items.search(NOTES, vector=[1.0, 2.0])  # Now the vectors are in memory.
    pieces = Turns(monkeypatch, Matrix, "nearest", lambda *_: 1)
    await items.search(NOTES, vector=[1.0, 2.0])
    assert (pieces.most, pieces.all >= 5) == (1, True)
