"""Changes as server-sent events, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from shoal.api.watching import _merged
from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import SlowConsumer
from shoal.protocol.position import Position
from shoal.protocol.requests import Change, Push, Reset, Watching
from tests.api.conftest import Rest

Served = Any  # Of conftest.py.
Serve = Callable[..., Awaitable[Any]]

SPACE = "/v1/spaces/crew"


async def line(response: aiohttp.ClientResponse, beginning: bytes) -> bytes:
    """The next line that begins so."""
    while not (read := await response.content.readline()).startswith(beginning):
        assert read, "the stream has ended"
    return read.removeprefix(beginning).strip()


CHANGE = Change("crew", "thread", "t", "save", "id", 1, 2)


async def test_changes_are_streamed_as_they_come(rest: Rest) -> None:
    async with rest.request("GET", f"{SPACE}/watch?kind=thread&prefix=t") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        await line(response, b":")
        for name in ("a", "b"):
            rest.served.session.publish(msgspec.structs.replace(CHANGE, name=name))
            assert await line(response, b"event: ") == b"change"
            assert msgspec.json.decode(await line(response, b"data: "))["name"] == name


async def test_a_quiet_stream_sends_heartbeats_and_loses_no_change(serve: Serve, http: aiohttp.ClientSession) -> None:
    rest = Rest(http, await serve(heartbeat_s=0.02))
    async with rest.request("GET", f"{SPACE}/watch") as response:
        for _ in range(3):
            assert await line(response, b": heart") == b"beat"
        rest.served.session.publish(CHANGE)
        assert msgspec.json.decode(await line(response, b"data: "))["name"] == "t"


async def test_a_watcher_that_fell_behind_is_told_and_cut_off(rest: Rest) -> None:
    async with rest.request("GET", f"{SPACE}/watch") as response:
        await line(response, b":")
        rest.served.session.publish(SlowConsumer("fell behind"))
        assert await line(response, b"event: ") == b"error"
        assert msgspec.json.decode(await line(response, b"data: "))["code"] == "slow-consumer"
        assert (await response.content.read()).strip() == b""
    assert (await rest("GET", f"{SPACE}/counters/c"))[0] == 200


async def test_a_reset_takes_the_place_of_what_was_left_out(rest: Rest) -> None:
    reached = Position({0: VersionVector({Origin(b"o" * 16): 7})})
    async with rest.request("GET", f"{SPACE}/watch") as response:
        await line(response, b":")
        rest.served.session.publish(Reset(reached.pack(), "too slow"))
        assert await line(response, b"event: ") == b"reset"
        assert await line(response, b"id: ") == reached.text().encode()
        assert msgspec.json.decode(await line(response, b"data: ")) == {"reason": "too slow"}


async def test_an_event_continues_after_itself(rest: Rest) -> None:
    async with rest.request("GET", f"{SPACE}/watch") as response:
        await line(response, b":")
        rest.served.session.publish(Watching(Position().pack()))
        began = await line(response, b"id: ")
        seen = VersionVector({Origin(b"o" * 16): 7})
        rest.served.session.publish(msgspec.structs.replace(CHANGE, partition=0, seen=seen.pack()))
        assert await line(response, b"id: ") == Position({0: seen}).text().encode() != began


async def test_a_stream_ends_when_the_node_stops(rest: Rest) -> None:
    async with rest.request("GET", f"{SPACE}/watch") as response:
        await line(response, b":")
        stopping = asyncio.create_task(rest.served.listener.stop())
        assert await line(response, b"event: ") == b"error"
        told = msgspec.json.decode(await line(response, b"data: "))
        assert (told["code"], told["written"], told["retryable"]) == ("shutting-down", "no", True)
        await stopping


async def test_a_watcher_that_leaves_is_forgotten(serve: Serve, http: aiohttp.ClientSession) -> None:
    rest = Rest(http, await serve(heartbeat_s=0.02))
    async with rest.request("GET", f"{SPACE}/watch") as response:
        await line(response, b":")
        assert len(rest.served.session.watchers) == 1
        response.close()
    async with asyncio.timeout(20):
        while rest.served.session.watchers:
            await asyncio.sleep(0.01)


async def test_one_stream_has_the_changes_of_several_spaces(rest: Rest) -> None:
    async with rest.request("GET", "/v1/watch?spaces=crew,other%252Fspace&kinds=thread") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert await line(response, b"event: ") == b"began"
        assert len(rest.served.session.watchers) == 2
        for name in ("a", "b"):
            rest.served.session.publish(msgspec.structs.replace(CHANGE, name=name))
            for _ in range(2):
                assert await line(response, b"event: ") == b"change"
                assert msgspec.json.decode(await line(response, b"data: "))["name"] == name


async def test_a_merged_stream_ends_with_any_of_its_sources() -> None:
    async def endless() -> AsyncIterator[Push]:
        yield CHANGE
        await asyncio.Event().wait()

    async def ends() -> AsyncIterator[Push]:
        yield CHANGE

    async with asyncio.timeout(10):
        assert [push async for push in _merged([endless(), ends()])] == [CHANGE, CHANGE]


async def test_a_stream_of_several_spaces_names_some(rest: Rest) -> None:
    for spaces in ("", ",".join(f"s{number}" for number in range(65))):
        status, problem = await rest("GET", f"/v1/watch?spaces={spaces}")
        assert (status, problem["code"]) == (400, "invalid-input")
