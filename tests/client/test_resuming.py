"""The one mechanism by which the client's streams outlive a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import shoal
from shoal.client.connection import StreamTimer, resumed
from shoal.config import Config
from shoal.errors import Disconnected, NotFound, Overloaded, ShoalError, ShuttingDown, StoreClosed

FAILOVER_S = 2.0
CONFIG = Config(request_timeout_s=30.0, reconnect_delay_s_max=0.001, failover_timeout_s=FAILOVER_S)


class Node:
    """Serves a stream of numbers, and goes away as it is told: each part is one attempt's numbers, and how it ends."""

    def __init__(self, *parts: tuple[list[int], ShoalError | None]) -> None:
        self._parts = iter(parts)
        self.passed_s = 0.0  # While the stream was served and silent.
        self.attempts = 0

    async def __call__(self, timer: StreamTimer) -> AsyncGenerator[int, None]:
        self.attempts += 1
        numbers, error = next(self._parts, ([], None))
        timer.served()
        for number in numbers:
            yield number
        if error is None:
            await asyncio.Event().wait()
        else:
            pass_time(self.passed_s)
            raise error


def pass_time(seconds: float) -> None:
    """The running loop's timers are due so much earlier."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


def gone() -> Disconnected:
    return Disconnected("gone")


class _broken:
    def __aiter__(self) -> _broken:
        return self

    async def __anext__(self) -> int:
        raise gone()


async def taken(source: AsyncGenerator[int, None], count: int) -> list[int]:
    found = [await anext(source) for _ in range(count)]
    await source.aclose()
    return found


async def test_the_next_attempt_begins_where_a_node_went_away() -> None:
    node = Node(([1, 2], gone()), ([], ShuttingDown("stopping")), ([3], Overloaded("full")), ([4], None))
    assert await taken(resumed(CONFIG, node), 4) == [1, 2, 3, 4]


@pytest.mark.answers("waiting-call-ends-when-its-node-dies")
async def test_patience_is_counted_anew_for_each_node_that_goes_away() -> None:
    node = Node(*[([], gone())] * 5, ([1], None))
    node.passed_s = 1000.0
    assert await taken(resumed(CONFIG, node), 1) == [1]


async def test_it_gives_up_when_no_node_serves_it_for_the_time_of_a_request() -> None:
    async def unserved(_: StreamTimer) -> AsyncGenerator[int, None]:
        pass_time(10.0)
        async for number in _broken():
            yield number

    with pytest.raises(Disconnected, match="gone"):
        await anext(resumed(CONFIG, unserved))


async def test_an_answer_that_another_node_would_give_too_is_raised() -> None:
    node = Node(([1], NotFound("no such thread")))
    source = resumed(CONFIG, node)
    assert await anext(source) == 1
    with pytest.raises(NotFound):
        await anext(source)
    assert node.attempts == 1


async def test_once_closed_no_other_node_is_asked() -> None:
    node = Node(([1], gone()))
    source = resumed(CONFIG, node, closed=lambda: True)
    assert await anext(source) == 1
    with pytest.raises(StoreClosed):
        await anext(source)
    assert node.attempts == 1


async def test_the_time_that_the_caller_takes_is_none_without_items() -> None:
    node = Node(([1, 2], None))
    source = resumed(CONFIG, node, timeout=5.0)
    assert await anext(source) == 1
    pass_time(1000.0)
    assert await anext(source) == 2
    await source.aclose()


async def test_attempts_that_bring_nothing_do_not_begin_the_timeout_anew() -> None:
    async def empty(timer: StreamTimer) -> AsyncGenerator[int, None]:
        timer.served()
        pass_time(1.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for number in range(0):
            yield number

    assert [number async for number in resumed(CONFIG, empty, timeout=5.0)] == []


@pytest.mark.virtual_time
async def test_a_timeout_begins_anew_with_each_item() -> None:
    async def slow(timer: StreamTimer) -> AsyncGenerator[int, None]:
        timer.served()
        for number in range(3):
            await asyncio.sleep(0.8)
            yield number
        await asyncio.Event().wait()

    assert [number async for number in resumed(CONFIG, slow, timeout=1.0)] == [0, 1, 2]


@pytest.mark.virtual_time
async def test_a_timeout_leaves_time_to_find_another_node() -> None:
    lost = 0

    async def served_again(timer: StreamTimer) -> AsyncGenerator[int, None]:
        nonlocal lost
        if lost == 0:
            timer.served()
            await asyncio.sleep(0.9)
            lost += 1
            raise gone()
        await asyncio.sleep(FAILOVER_S / 2)  # The next node is dialled.
        yield 1

    assert await taken(resumed(CONFIG, served_again, timeout=1.0), 1) == [1]


@pytest.mark.virtual_time
async def test_a_timeout_that_no_node_served_is_an_error() -> None:
    async def unserved(_: StreamTimer) -> AsyncGenerator[int, None]:
        await asyncio.Event().wait()
        yield 1

    with pytest.raises(Disconnected, match="no node answered"):
        await anext(resumed(CONFIG, unserved, timeout=1.0))


def test_every_subscription_of_the_client_is_made_by_what_is_resumed() -> None:
    root = Path(shoal.__file__).parent
    handles = [*root.glob("client/*.py"), *root.glob("kinds/*/handle.py"), *root.glob("kinds/*/handle/*.py")]
    found = {path.relative_to(root).as_posix() for path in handles if ".subscribe(" in path.read_text()}
    # `home` hands on the subscriptions of the others.
    of_kinds = {"kinds/presence/handle.py", "kinds/document/handle/mirror.py"}
    assert found == {"client/connection.py", "client/watching.py", "client/home.py", *of_kinds}
