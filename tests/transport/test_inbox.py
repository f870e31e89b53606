from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec import Raw

from shoal.errors import Disconnected, SlowConsumer
from shoal.protocol.requests import Change
from shoal.transport.link import Inbox


def change(name: str) -> Change:
    return Change("s", "thread", name, "save", "", 1, 2)


def raw(name: str) -> Raw:
    return Raw(msgspec.msgpack.encode(change(name)))


SIZE = len(memoryview(raw("a")))


async def test_pushes_come_out_in_order() -> None:
    inbox = Inbox(bytes_max=1000)
    inbox.put(raw("a"))
    inbox.put(raw("b"))
    inbox.end()
    assert [push async for push in inbox] == [change("a"), change("b")]


async def test_a_consumer_that_waits_is_woken() -> None:
    inbox = Inbox(bytes_max=1000)
    waiting = asyncio.create_task(inbox.__anext__())
    await asyncio.sleep(0)
    inbox.put(raw("a"))
    assert await waiting == change("a")


async def test_an_overflow_shows_what_came_before_it_and_nothing_after() -> None:
    inbox = Inbox(bytes_max=2 * SIZE)
    for name in "abc":
        inbox.put(raw(name))
    assert inbox.ended
    inbox.put(raw("d"))
    assert await anext(inbox) == change("a")
    inbox.put(raw("e"))  # For which there is room now.
    assert await anext(inbox) == change("b")
    with pytest.raises(SlowConsumer, match="Subscribe again"):
        await anext(inbox)


async def test_taking_makes_room() -> None:
    inbox = Inbox(bytes_max=SIZE)
    for name in "abc":
        inbox.put(raw(name))
        assert await anext(inbox) == change(name)
    assert not inbox.ended


async def test_one_push_that_is_larger_than_the_bound_is_taken() -> None:
    inbox = Inbox(bytes_max=1)
    inbox.put(raw("a"))
    assert await anext(inbox) == change("a")


async def test_the_first_end_counts() -> None:
    inbox = Inbox(bytes_max=1000)
    inbox.end(Disconnected("gone"))
    inbox.end(SlowConsumer("slow"))
    for _ in range(2):
        with pytest.raises(Disconnected):
            await anext(inbox)
