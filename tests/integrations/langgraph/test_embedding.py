"""LangGraph's `index`: a query ranks items as InMemoryStore ranks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import IndexConfig, Op, PutOp, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from shoal.config import Config
from shoal.errors import InvalidInput
from shoal.integrations.langgraph.store import Embedding, ShoalStore
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench
from tests.support.examples import examples

LETTERS = "abcde"


def embed(texts: list[str]) -> list[list[float]]:
    """How often each letter is there, and a bit of the text's own, so that few are equally near."""
    return [[text.count(letter) + (hash_of(text) >> 4 * n) % 16 / 100 for n, letter in enumerate(LETTERS)] for text in texts]


def hash_of(text: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(text))


def index(**more: Any) -> IndexConfig:
    return {"dims": len(LETTERS), "embed": embed, **more}  # type: ignore[typeddict-item]


def ranked(found: Any) -> list[tuple[Any, ...]]:
    return [(item.namespace, item.key, item.value) for item in found if item.score is not None]


def scores(found: Any) -> list[float]:
    return [item.score for item in found if item.score is not None]


def unranked(found: Any) -> list[tuple[Any, ...]]:
    return sorted((item.namespace, item.key) for item in found if item.score is None)


texts = st.text("abc", min_size=1, max_size=6)
bodies = st.text("de", min_size=1, max_size=6)  # InMemoryStore cannot embed a text that is twice in a batch.
values = st.fixed_dictionaries(
    {"title": texts},
    optional={"more": st.fixed_dictionaries({"body": bodies}), "tags": st.lists(texts, max_size=2, unique=True)},
)
places = st.tuples(st.sampled_from([("a",), ("a", "b"), ("c",)]), st.sampled_from("klm"))
fields = st.sampled_from([None, ["title"], ["title", "more.body"], ["tags[*]"], ["$"]])


@examples(60)
@given(
    puts=st.dictionaries(places, values, max_size=8),
    fields=fields,
    queries=st.lists(
        st.tuples(st.sampled_from([(), ("a",), ("a", "b")]), texts, st.integers(1, 6), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
    deleted=st.lists(places, max_size=2),
)
def test_a_query_ranks_as_the_store_in_memory_does(puts: Any, fields: Any, queries: Any, deleted: Any) -> None:
    async def run() -> None:
        bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config())
        config = index() if fields is None else index(fields=fields)
        ours, theirs = ShoalStore(bench.store, index=config), InMemoryStore(index=config)
        ops: list[Op] = [PutOp(namespace, key, value) for (namespace, key), value in puts.items()]
        ops += [PutOp(namespace, key, None) for namespace, key in deleted]
        for op in ops:
            await ours.abatch([op])
            await theirs.abatch([op])
        for prefix, query, limit, offset in queries:
            search = SearchOp(prefix, None, limit, offset, query)
            (found,), (expected,) = await ours.abatch([search]), await theirs.abatch([search])
            assert scores(found) == pytest.approx(scores(expected), abs=1e-5)
            if len({round(score, 4) for score in scores(expected)}) == len(scores(expected)):
                inner = slice(1 if offset else 0, -1)  # The first and the last may be as near as one that is left out.
                assert ranked(found)[inner] == ranked(expected)[inner]
            assert len(found) == len(expected) or offset  # type: ignore[arg-type]
            if not offset and len(expected) < limit:  # type: ignore[arg-type]
                assert unranked(found) == unranked(expected)
        await bench.node.stop()

    asyncio.run(run())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config())
    yield bench
    await bench.node.stop()


async def test_a_put_says_what_of_it_is_embedded(bench: Bench) -> None:
    store = ShoalStore(bench.store, index=index(fields=["title"]))
    await store.aput(("n",), "title", {"title": "aaa", "body": "bbb"})
    await store.aput(("n",), "body", {"title": "aaa", "body": "bbbb"}, index=["body"])
    await store.aput(("n",), "none", {"title": "bbb"}, index=False)
    found = await store.asearch(("n",), query="bbbbbb")
    assert [(item.key, item.score is None) for item in found] == [("body", False), ("title", False), ("none", True)]
    await store.aput(("n",), "body", {"title": "aaa"}, index=False)
    assert [item.key for item in await store.asearch(("n",), query="bbb") if item.score is not None] == ["title"]
    assert [item.key for item in await store.asearch(("n",), query="bbb", filter={"body": "bbb"})] == ["title"]
    await bench.node.stop()


async def test_without_an_index_a_query_ranks_nothing(bench: Bench) -> None:
    await ShoalStore(bench.store, index=index()).aput(("n",), "k", {"title": "a"})
    (found,) = await ShoalStore(bench.store).asearch(("n",), query="a")
    assert isinstance(found, SearchItem)
    assert found.score is None
    await bench.node.stop()


async def test_an_index_that_is_none_is_refused(bench: Bench) -> None:
    for wrong in ({"dims": 3}, {"embed": embed}, {"dims": 0, "embed": embed}):
        with pytest.raises(InvalidInput):
            ShoalStore(bench.store, index=wrong)  # type: ignore[arg-type]
    store = ShoalStore(bench.store, index=index(dims=3))
    with pytest.raises(InvalidInput, match="`dims` is 3"):
        await store.aput(("n",), "k", {"title": "a"})
    assert await store.aget(("n",), "k") is None
    await bench.node.stop()


def test_a_blocking_store_searches_by_meaning(tmp_path: Path) -> None:
    async def aembed(texts: list[str]) -> list[list[float]]:
        return embed(texts)

    with ShoalStore.open(tmp_path / "state", index=index(embed=aembed)) as store:
        store.put(("n",), "1", {"title": "aaaa"})
        store.put(("n",), "2", {"title": "eeee"})
        found = store.search(("n",), query="ee")
        assert [item.key for item in found] == ["2", "1"]
        assert found[0].score is not None


async def test_a_put_has_one_vector_for_each_text() -> None:
    embedding = Embedding(index(fields=["title", "more.body"]))
    [vectors] = await embedding.of_puts([PutOp(("a",), "k", {"title": "ab", "more": {"body": "de"}})])
    assert [list(vector) for vector in vectors] == embed(["ab", "de"])
