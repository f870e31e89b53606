"""Writes that a session begins without a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from shoal.errors import InvalidInput, NotFound, Overloaded, ShuttingDown
from shoal.protocol.frames import ReplyFrame, encode_call, encode_cancel, encode_subscribe
from shoal.protocol.requests import Add, Added, ReadCounter, Watch
from tests.api.wire import dialled

READ = ReadCounter("s", "c")
WRITE = Add("s", "c", 1)

Http = aiohttp.ClientSession
Serve = Callable[..., Awaitable[Any]]


async def begun(session: Any, count: int) -> None:
    async with asyncio.timeout(20):
        while len(session.begun) < count:
            await asyncio.sleep(0)


async def test_a_write_that_was_begun_is_answered_when_it_is_told(serve: Serve, prompt_session: Any, http: Http) -> None:
    wire = await dialled(http, await serve(prompt_session))
    await wire.send(*(encode_call(id, Add("s", "c", id), key=f"k{id}") for id in (1, 2)))
    await begun(prompt_session, 2)
    (first, told_first), (second, told_second) = prompt_session.begun
    assert [first, second] == [Add("s", "c", 1), Add("s", "c", 2)]
    told_second(Added(2, True))
    answer = await wire.frame()
    assert isinstance(answer, ReplyFrame)
    assert answer.id == 2
    told_first(NotFound("It is not there."))
    assert isinstance(await wire.error(), NotFound)


async def test_a_write_behind_a_request_that_waits_to_begin_is_not_begun_before_it(
    serve: Serve, prompt_session: Any, http: Http
) -> None:
    wire = await dialled(http, await serve(prompt_session))
    await wire.send(encode_call(1, READ), encode_call(2, WRITE))
    assert {(await wire.frame()).id for _ in range(2)} == {1, 2}
    assert [request for request, _, _ in prompt_session.asked] == [READ, WRITE]
    assert prompt_session.begun == []


async def test_a_write_behind_a_subscription_is_not_begun_before_it(serve: Serve, prompt_session: Any, http: Http) -> None:
    wire = await dialled(http, await serve(prompt_session))
    await wire.send(encode_subscribe(1, Watch("s")), encode_call(2, WRITE))
    assert {(await wire.frame()).id for _ in range(2)} == {1, 2}
    assert prompt_session.begun == []
    await wire.send(encode_call(3, WRITE))
    await begun(prompt_session, 1)


async def test_a_subscription_that_was_cancelled_before_it_began_holds_nothing_up(
    serve: Serve, prompt_session: Any, http: Http
) -> None:
    wire = await dialled(http, await serve(prompt_session))
    await wire.send(encode_subscribe(1, Watch("s")), encode_cancel(1), encode_call(2, READ))
    assert (await wire.frame()).id == 2
    await wire.send(encode_call(3, WRITE))
    await begun(prompt_session, 1)


async def test_a_write_that_cannot_be_begun_is_answered_with_its_error(serve: Serve, prompt_session: Any, http: Http) -> None:
    wire = await dialled(http, await serve(prompt_session))
    prompt_session.failure = InvalidInput("It is wrong.")
    await wire.send(encode_call(1, WRITE))
    assert isinstance(await wire.error(), InvalidInput)
    prompt_session.failure = RuntimeError("a secret")
    await wire.send(encode_call(2, WRITE))
    error = await wire.error()
    assert error.code == "error"
    assert "secret" not in str(error)


async def test_writes_that_were_begun_count_as_under_way(serve: Serve, prompt_session: Any, http: Http) -> None:
    served = await serve(prompt_session, session_requests_max=2)
    wire = await dialled(http, served)
    await wire.send(*(encode_call(id, WRITE) for id in range(3)))
    await begun(prompt_session, 2)
    other = await served.link()
    for _ in range(3):  # Each round trip gives the node time enough to begin what it must not begin.
        await other.call(READ)
    assert len(prompt_session.begun) == 2
    prompt_session.begun[0][1](Added(1, True))
    await begun(prompt_session, 3)


async def test_a_stop_waits_for_what_was_begun(serve: Serve, prompt_session: Any, http: Http) -> None:
    served = await serve(prompt_session)
    wire = await dialled(http, served)
    await wire.send(encode_call(1, WRITE))
    await begun(prompt_session, 1)
    stopping = asyncio.create_task(served.listener.stop())
    while not all(socket._stopping for socket in served.listener._sessions._open):
        await asyncio.sleep(0)
    await wire.send(encode_call(2, WRITE))
    assert isinstance(await wire.error(), ShuttingDown)
    prompt_session.begun[0][1](Added(1, True))
    answer = await wire.frame()
    assert isinstance(answer, ReplyFrame)
    await wire.closed()
    await stopping


async def test_a_broken_session_keeps_its_place_until_what_was_begun_is_told(
    serve: Serve, prompt_session: Any, http: Http
) -> None:
    served = await serve(prompt_session, sessions_max=1)
    wire = await dialled(http, served)
    await wire.send(encode_call(1, WRITE))
    await begun(prompt_session, 1)
    await wire.socket.close()
    with pytest.raises(Overloaded):
        await served.link()
    prompt_session.begun[0][1](Added(1, True))
    while served.listener._sessions._open:
        await asyncio.sleep(0)
    await served.link()
