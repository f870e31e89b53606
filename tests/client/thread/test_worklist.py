"""Worklists over an embedded node: each key once, whatever is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.errors import InvalidName, KeyReused, NotFound, TooLarge
from shoal.kinds.worklist.handle.worklist import Worklist, WorklistProgress
from simulation.bounds import altered
from tests.client.test_store import subscribers


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with altered(worklists_max=2):
        async with shoal.open(tmp_path / "state") as opened:
            yield opened


@pytest.fixture
def space(store: Store) -> Space:
    return store.space("crew")


@pytest.fixture
def work(space: Space) -> Worklist:
    return space.thread("t").worklist("files")


async def keys(work: Worklist) -> list[str]:
    return [item.key async for item in work.pending()]


async def test_each_key_is_added_once_and_done_once(work: Worklist) -> None:
    assert await work.add(["b", "a"]) == 2
    assert await work.add(["a", "c"]) == 1
    assert await keys(work) == ["b", "a", "c"]
    assert (await work.done("a", result=1, by="ann")).first
    again = await work.done("a", result=2, by="bob")
    assert (again.first, again.result, again.by) == (False, 1, "ann")
    assert await work.add(["a"]) == 0
    assert await keys(work) == ["b", "c"]
    assert await work.progress() == WorklistProgress(pending=2, done=1)


async def test_more_keys_than_fit_a_request_are_all_added(work: Worklist) -> None:
    names = [f"file-{number:05}" for number in range(1201)]
    assert await work.add(names) == 1201
    assert await keys(work) == names


async def test_items_may_have_values(work: Worklist) -> None:
    await work.add({"a": {"size": 5}, "b": None})
    assert [(item.key, item.value) async for item in work.pending()] == [("a", {"size": 5}), ("b", None)]
    with pytest.raises(KeyReused):
        await work.add({"a": {"size": 6}})


async def test_finished_items_show_their_results_in_order(work: Worklist) -> None:
    await work.add(["a", "b"])
    for key in ("b", "a"):
        await work.done(key, result=key.upper())
    assert [(item.key, item.done[0].result) async for item in work.finished()] == [("b", "B"), ("a", "A")]
    found = await work.find("a")
    assert found is not None
    assert found.done[0].result == "A"
    assert await work.find("absent") is None
    assert (await work.progress()).is_complete


async def test_an_item_never_added_cannot_be_done(work: Worklist) -> None:
    with pytest.raises(NotFound, match="no entry"):
        await work.done("absent")


async def test_an_item_and_the_checkpoint_are_one(space: Space, work: Worklist) -> None:
    await work.add(["a"])
    with pytest.raises(NotFound):
        async with space.batch() as batch:
            batch.thread("t").save({"moved": 1})
            batch.thread("t").done("files", "absent")
    assert await space.thread("t").heads() == {}
    async with space.batch() as batch:
        batch.thread("t").save({"moved": 1})
        batch.thread("t").done("files", "a", result="ok")
    assert (await space.thread("t").load()).state == {"moved": 1}
    assert await keys(work) == []


async def test_pending_follows_what_is_added(store: Store, work: Worklist) -> None:
    await work.add(["a"])
    async with aclosing(work.pending(follow=True)) as items:
        assert (await anext(items)).key == "a"
        coming = asyncio.ensure_future(anext(items))
        await subscribers(store, 1)
        await work.add(["b"])
        assert (await coming).key == "b"


async def test_a_forgotten_node_may_be_added_again(work: Worklist) -> None:
    await work.add(["a"])
    await work.done("a")
    [item] = [item async for item in work.finished()]
    assert await work.forget(before=item.done[0].time + timedelta(milliseconds=1)) == 1
    assert await work.add(["a"]) == 1


async def test_worklists_do_not_share_their_keys_and_are_so_many(space: Space, work: Worklist) -> None:
    thread = space.thread("t")
    await work.add(["a"])
    assert await thread.worklist("file").add(["a"]) == 1
    with pytest.raises(TooLarge, match="2 worklists"):
        await thread.worklist("third").add(["a"])
    assert await work.add(["b"]) == 1


async def test_a_worklist_has_a_name(space: Space) -> None:
    with pytest.raises(InvalidName):
        space.thread("t").worklist("")
