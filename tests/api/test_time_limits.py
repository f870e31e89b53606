"""What a session does when time is up: of a request, of the handshake, of a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from shoal.errors import Disconnected, OutcomeUnknown, Unavailable
from shoal.protocol.frames import ReplyFrame, encode_call
from shoal.protocol.requests import Add, ReadCounter
from tests.api.wire import Served, Wire, dialled

READ = ReadCounter("s", "c")
WRITE = Add("s", "c", 1)

Serve = Callable[..., Awaitable[Any]]


@pytest.fixture
async def wire(served: Served, http: aiohttp.ClientSession) -> Wire:
    return await dialled(http, served)


@pytest.mark.answers("deletion-takes-effect-late")
async def test_a_request_whose_caller_has_given_up_is_not_begun(served: Served, wire: Wire) -> None:
    await asyncio.sleep(0.01)
    await wire.send(encode_call(1, WRITE, key="late", until_ms=5), encode_call(2, WRITE, key="k", until_ms=60_000))
    late = await wire.error()
    assert isinstance(late, Unavailable)
    assert late.written == "no"
    assert isinstance(await wire.frame(), ReplyFrame)
    assert served.session.asked == [(WRITE, "k", "local")]


async def test_a_request_that_waits_is_not_begun_once_its_caller_has_given_up(served: Served, wire: Wire) -> None:
    served.session.gate = asyncio.Event()
    for until_ms in (200, 2_000, 20_000):
        await wire.send(encode_call(1, READ, until_ms=until_ms))
        error = await wire.error()
        if served.session.asked:
            break
        assert isinstance(error, Unavailable), "a slow machine had no time to begin it"
    assert isinstance(error, OutcomeUnknown)


async def test_a_silent_client_is_let_go(serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(connect_timeout_s=0.02)
    socket = await http.ws_connect(served.url + "/v1/session")
    assert (await Wire(socket).closed())[1] == "no hello came in time"


async def test_a_stop_does_not_wait_for_ever(serve: Serve) -> None:
    served = await serve(stop_timeout_s=0.05)
    served.session.gate = asyncio.Event()
    link = await served.link()
    stuck = asyncio.create_task(link.call(READ))
    while not served.session.asked:
        await asyncio.sleep(0)
    await served.listener.stop()
    with pytest.raises(Disconnected):
        await stuck
