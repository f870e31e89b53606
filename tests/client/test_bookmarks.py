"""Bookmarks at the handles: what one store has seen, another shows too, or says that it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from shoal.config import Config
from shoal.errors import BookmarkLost, InvalidValue
from shoal.kinds.document.handle.document import Document
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    DocumentJson,
    Durability,
    Push,
    ReadDocumentJson,
    Request,
    Subscription,
)
from shoal.protocol.session import Session
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench

Benches = Callable[[MemoryStorage], Bench]


@pytest.fixture
async def benches() -> AsyncIterator[Benches]:
    """Nodes over memory storage, which know nothing of each other."""
    async with AsyncExitStack() as stack:
        made: list[Bench] = []

        def make(storage: MemoryStorage) -> Bench:
            made.append(Bench(storage, SimulatedEnvironment(len(made)), Config()))
            stack.push_async_callback(made[-1].node.stop)
            return made[-1]

        yield make


async def test_a_text_that_is_no_bookmark_is_refused(benches: Benches) -> None:
    with pytest.raises(InvalidValue):
        benches(MemoryStorage()).store.observe("garbage")


async def test_a_store_that_observes_a_bookmark_shows_no_less_or_says_so(benches: Benches) -> None:
    """The other is an older copy of this one, and has no peers to fetch from."""
    bench = benches(MemoryStorage())
    counter, register, thread = bench.space.counter("{a}c"), bench.space.register("{a}r"), bench.space.thread("{a}t")
    await counter.add(1)
    await register.set("old")
    old = await thread.save({"n": 0})
    await thread.journal.append("old")
    older = benches(bench.storage.left_by_crash(0))
    await counter.add(1)
    await thread.save({"n": 1})
    older.store.observe(bench.store.bookmark)
    handle = older.space.thread("{a}t")
    reads = (
        older.space.counter("{a}c").value,
        older.space.register("{a}r").get,
        handle.heads,
        handle.load,
        lambda **given: collected(handle.history(**given)),
        lambda **given: collected(handle.journal.read(**given)),
    )
    for read in reads:
        with pytest.raises(BookmarkLost):
            await read()
    assert [await read(stale=True) for read in reads[:3]] == [1, "old", {"main": [old.id]}]
    assert (await handle.load(stale=True)).id == old.id
    assert [found.id for found in await collected(handle.history(stale=True))] == [old.id]
    assert [found.event for found in await collected(handle.journal.read(stale=True))] == ["old"]


async def test_after_a_stale_load_a_save_builds_on_what_was_loaded(benches: Benches) -> None:
    bench = benches(MemoryStorage())
    old = await bench.space.thread("t").save({"n": 0})
    older = benches(bench.storage.left_by_crash(0))
    await bench.space.thread("t").save({"n": 1}, expect_head=old.id)
    older.store.observe(bench.store.bookmark)
    handle = older.space.thread("t")
    await handle.load(stale=True)
    assert (await handle.save({"n": 2})).parents == (old.id,)


async def test_a_mirror_goes_on_at_a_node_that_lacks_what_it_has_shown(benches: Benches) -> None:
    bench = benches(MemoryStorage())
    async with await bench.space.document("d") as first:
        first.text("t").insert(0, "old ")
        await first.flush()
        older = benches(bench.storage.left_by_crash(0))
        first.text("t").insert(4, "seen ")
        await first.flush()
    session = Movable(bench.node.session())
    mirror = await Document.open(session, "crew", "d", client_id=7, config=Config(reconnect_delay_s_max=0.001))
    await session.call(ReadDocumentJson("crew", "d"))  # So that the bookmark names it.
    session.stands_on = older.node.session(session.bookmark)
    mirror.text("t").insert(9, "new")
    await mirror.close()
    found = await older.node.session().call(ReadDocumentJson("crew", "d"))
    assert isinstance(found, DocumentJson)
    assert found.json == b'{"t":"old seen new"}'


class Movable:
    """A session that fails over from one node to another."""

    def __init__(self, session: Session) -> None:
        self.stands_on = session

    @property
    def bookmark(self) -> Bookmark:
        return self.stands_on.bookmark

    @property
    def connections(self) -> int:
        return self.stands_on.connections

    async def call(
        self, request: Request[Any], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Any:
        return await self.stands_on.call(request, key=key, durability=durability, stale=stale)

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        return self.stands_on.subscribe(subscription)

    async def close(self) -> None:
        await self.stands_on.close()


async def collected(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]
