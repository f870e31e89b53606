"""A store and its event loop: other loops are refused at once, and one that ended takes nothing along."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import InvalidInput, StoreLocked, WrongLoop


async def test_awaiting_an_opening_gives_the_store(tmp_path: Path) -> None:
    store = await shoal.open(tmp_path / "state")
    assert await store.space("s").counter("n").add(1) == 1
    await store.close()
    await store.close()
    again = await shoal.open(tmp_path / "state")
    assert await again.space("s").counter("n").value() == 1
    await again.close()


async def test_awaiting_a_connection_gives_the_store(url: str) -> None:
    store = await shoal.connect(url)
    assert await store.space("s").counter("n").add(1) == 1
    await store.close()


async def test_an_opening_opens_once(tmp_path: Path) -> None:
    opening = shoal.open(tmp_path / "state")
    async with opening:
        with pytest.raises(InvalidInput, match="has opened its store already"):
            await opening


def test_a_blocking_store_works_without_a_block(tmp_path: Path) -> None:
    store = shoal.sync.open(tmp_path / "state")
    assert store.space("s").counter("n").add(1) == 1
    store.close()
    store.close()
    with shoal.sync.open(tmp_path / "state") as again:
        assert again.space("s").counter("n").value() == 1


def elsewhere(use: Callable[[], Coroutine[Any, Any, Any]]) -> BaseException | None:
    """What a use raises on the loop of another thread."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(use())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_another_loop_is_refused_at_once(where: str) -> None:
    async def main() -> None:
        async with shoal.connect(where) if where.startswith("http") else shoal.open(where) as store:
            space = store.space("s")
            await space.counter("n").add(1)
            document = await space.document("d")

            async def add() -> None:
                await space.counter("n").add(1)

            async def watch() -> None:
                async for _ in space.watch():
                    return

            for use in (add, watch, document.flush, store.close):
                found = await asyncio.to_thread(elsewhere, use)
                assert isinstance(found, WrongLoop), (use, found)
                assert use == document.flush or f"opened at {__file__}:" in found.message
                assert not found.retryable
            assert await space.counter("n").value() == 1
            await document.close()

    asyncio.run(main())


def test_a_store_of_an_ended_loop_says_so(where: str) -> None:
    with warnings.catch_warnings():
        # The connection's parts are left to the collector, which warns of each. A warning that is recorded holds its part, so
        # that it would be told again beside another test.
        warnings.simplefilter("ignore", ResourceWarning)
        leave_and_return(where)
        gc.collect()


def leave_and_return(where: str) -> None:
    async def begin() -> shoal.Store:
        store = await (shoal.connect(where) if where.startswith("http") else shoal.open(where))
        await store.space("s").counter("n").add(1)
        return store

    store = asyncio.run(begin())

    async def go_on() -> None:
        with pytest.raises(WrongLoop, match="an event loop that has ended"):
            await store.space("s").counter("n").add(1)
        await store.close()

    asyncio.run(go_on())
    after = asyncio.run(begin())  # The directory is free again.
    asyncio.run(after.close())


def test_running_again_takes_over_what_nobody_can_close(tmp_path: Path) -> None:
    kept = []

    async def main() -> int:
        store = await shoal.open(tmp_path / "state")
        kept.append(store)  # As in a global variable.
        return await store.space("s").counter("n").add(1)

    assert asyncio.run(main()) == 1
    with pytest.warns(ResourceWarning, match=rf"opened at {__file__}:\d+ was never closed"):
        assert asyncio.run(main()) == 2
    asyncio.run(kept[1].close())


async def test_a_second_opening_names_the_line_of_the_first(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state"):
        with pytest.raises(StoreLocked, match=rf"this very process, which opened it at {__file__}:\d+"):
            await shoal.open(tmp_path / "state")


def test_a_loop_that_pauses_between_cells_keeps_its_store(where: str) -> None:
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(_opened(where))
    for cell in range(3):
        assert loop.run_until_complete(store.space("s").counter("n").add(1)) == cell + 1
    loop.run_until_complete(store.close())
    loop.close()


async def _opened(where: str) -> shoal.Store:
    return await (shoal.connect(where) if where.startswith("http") else shoal.open(where))


def test_iterators_left_open_end_quietly_with_their_loop(tmp_path: Path) -> None:
    problems: list[object] = []

    async def work() -> list[object]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        store = await shoal.open(tmp_path / "state")
        space = store.space("s")
        left: list[object] = []
        for _ in range(40):
            changes = space.watch()
            first = asyncio.ensure_future(anext(changes))
            while not first.done():
                await space.counter("n").add(1)
                await asyncio.sleep(0)
            left.append(changes)
        await store.close()
        return left

    assert len(asyncio.run(work())) == 40
    assert [str(each) for each in problems] == []
