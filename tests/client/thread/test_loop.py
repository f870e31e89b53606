"""Loops that keep their place: what is finished does not come again, and nothing is skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.client.store import Store
from shoal.errors import InvalidInput, TooLarge
from shoal.kinds.thread.handle.thread import Thread
from simulation.bounds import altered


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    with altered(loops_max=2):
        async with shoal.open(tmp_path / "state") as opened:
            yield opened


@pytest.fixture
def thread(store: Store) -> Thread:
    return store.space("crew").thread("t")


async def later(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def generated(count: int) -> Iterator[int]:
    yield from range(count)


KINDS: list[Callable[[int], Any]] = [lambda count: list(range(count)), generated, later]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_loop_that_ended_gives_nothing_more_until_there_is_more(thread: Thread, kind: Callable[[int], Any]) -> None:
    assert [row async for row in thread.iterate(kind(5), key="k", every=2)] == [0, 1, 2, 3, 4]
    assert [row async for row in thread.iterate(kind(5), key="k", every=2)] == []
    assert [row async for row in thread.iterate(kind(7), key="k", every=2)] == [5, 6]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_row_that_fails_comes_again_and_those_before_it_do_not(thread: Thread, kind: Callable[[int], Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        async with aclosing(thread.iterate(kind(6), key="k", every=100)) as rows:
            async for row in rows:
                1 // (row - 3)
    assert [row async for row in thread.iterate(kind(6), key="k")] == [3, 4, 5]


async def test_leaving_a_loop_early_resumes_there(thread: Thread) -> None:
    async with aclosing(thread.iterate(range(6), key="k")) as rows:
        async for row in rows:
            if row == 2:
                break
    assert [row async for row in thread.iterate(range(6), key="k")] == [2, 3, 4, 5]


async def test_a_crash_repeats_no_more_than_was_not_kept(thread: Thread) -> None:
    left = thread.iterate(range(10), key="k", every=3)
    got = [await anext(left) for _ in range(8)]
    # Nothing closes it: this is what a killed process leaves.
    assert [row async for row in thread.iterate(range(10), key="k", every=3)] == [*got[6:], 8, 9]
    await left.aclose()


async def test_keys_and_threads_have_places_of_their_own(store: Store, thread: Thread) -> None:
    assert [row async for row in thread.iterate(range(2), key="a")] == [0, 1]
    assert [row async for row in thread.iterate(range(2), key="b")] == [0, 1]
    assert [row async for row in store.space("crew").thread("other").iterate(range(2), key="a")] == [0, 1]
    with pytest.raises(TooLarge, match="2 loops"):
        assert [row async for row in thread.iterate(range(2), key="c")]


async def test_a_restart_begins_again(thread: Thread) -> None:
    assert [row async for row in thread.iterate(range(3), key="k")] == [0, 1, 2]
    assert [row async for row in thread.iterate(range(3), key="k", restart=True)] == [0, 1, 2]
    assert [row async for row in thread.iterate(range(3), key="k")] == []


async def test_the_place_is_kept_every_so_many_rows_from_one(thread: Thread) -> None:
    with pytest.raises(InvalidInput):
        await anext(thread.iterate(range(3), key="k", every=0))
