"""The session WebSocket, over real sockets: each bad input fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.errors import (
    InvalidInput,
    InvalidName,
    NotFound,
    Overloaded,
    ShoalError,
    ShuttingDown,
    SlowConsumer,
    Unsupported,
)
from shoal.protocol import requests
from shoal.protocol.frames import (
    PROTOCOL,
    PROTOCOL_OLDEST,
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Hello,
    ReplyFrame,
    decode_welcome,
    encode_call,
    encode_cancel,
    encode_hello,
    encode_subscribe,
)
from shoal.protocol.requests import Add, Added, Change, CounterValue, ReadCounter, Watch
from shoal.transport.link import Link
from tests.api.wire import Served, Wire, dialled

READ = ReadCounter("s", "c")
WRITE = Add("s", "c", 1)
pack = msgspec.msgpack.encode

Serve = Callable[..., Awaitable[Any]]


@pytest.fixture
async def wire(served: Served, http: aiohttp.ClientSession) -> Wire:
    return await dialled(http, served)


@pytest.fixture
async def bystander(served: Served) -> AsyncIterator[Link]:
    """Another session, with a request under way and a subscription, that nothing may disturb."""
    link: Link = await served.link()
    gate = served.session.gate = asyncio.Event()
    under_way = asyncio.create_task(link.call(READ))
    async with link.subscribe(Watch("s")) as changes:
        yield link
        change = Change("s", "thread", "t", "save", "", 1, 2)
        served.session.publish(change)
        assert await anext(changes) == change
        gate.set()
        assert isinstance(await under_way, CounterValue)


# ── what works ────────────────────────────────────────────────────────────────


async def test_the_welcome_tells_node_and_limits(serve: Serve) -> None:
    served = await serve(session_requests_max=12, subscriptions_max=3)
    welcome = (await served.link()).welcome
    assert (welcome.node, welcome.software, welcome.protocol) == ("ab12", "0.1.0", PROTOCOL)
    assert (welcome.request_bytes_max, welcome.session_requests_max, welcome.subscriptions_max) == (1 << 20, 12, 3)


async def test_a_call_reaches_the_session_with_key_and_durability(served: Served) -> None:
    link = await served.link()
    assert await link.call(WRITE, key="k", durability="all") == Added(1, True)
    assert served.session.asked == [(WRITE, "k", "all")]


async def test_requests_start_in_the_order_of_arrival(served: Served) -> None:
    link = await served.link()
    sent = [Add("s", "c", n) for n in range(200)]
    await asyncio.gather(*(link.call(write) for write in sent))
    assert [request for request, _, _ in served.session.asked] == sent


async def test_a_slow_request_does_not_hold_up_the_next(served: Served) -> None:
    link = await served.link()
    served.session.gate = asyncio.Event()
    slow = asyncio.create_task(link.call(READ))
    assert await link.call(WRITE) == Added(1, True)
    assert not slow.done()
    served.session.gate.set()
    assert await slow == CounterValue(1)


async def test_a_subscription_begins_before_the_next_request_of_its_session(served: Served, wire: Wire) -> None:
    await wire.send(encode_subscribe(1, Watch("s")), encode_call(2, WRITE))
    first, second = await wire.frame(), await wire.frame()
    assert isinstance(first, ReplyFrame)
    assert isinstance(second, ReplyFrame)
    assert {first.id, second.id} == {1, 2}
    assert len(served.session.watchers) == 1


async def test_a_cancelled_subscription_ends_without_a_fault(served: Served, wire: Wire) -> None:
    await wire.send(encode_subscribe(1, Watch("s")))
    await wire.frame()
    await wire.send(encode_cancel(1), encode_cancel(99))
    assert await wire.frame() == EndFrame(1, None)
    assert served.session.watchers == []
    assert CancelFrame(1).id == 1


async def test_a_subscription_that_fails_ends_with_its_error(served: Served) -> None:
    link = await served.link()
    async with link.subscribe(Watch("s")) as changes:
        served.session.publish(SlowConsumer("fell behind"))
        with pytest.raises(SlowConsumer, match="fell behind"):
            await anext(changes)
    assert await link.call(WRITE) == Added(1, True)


# ── what fails, fails alone ───────────────────────────────────────────────────

BAD_REQUESTS = [
    pytest.param(pack([0, 7, None, "local", ["levitate"]]), Unsupported, id="unknown request"),
    pytest.param(pack([0, 7, None, "local", ["add", "s", "c", "one"]]), InvalidInput, id="wrong field type"),
    pytest.param(pack([0, 7, None, "local", ["add", "s"]]), InvalidInput, id="missing field"),
    pytest.param(pack([0, 7, None, "local", 3]), InvalidInput, id="no array"),
    pytest.param(pack([0, 7, None, "forever", ["add", "s", "c", 1]]), InvalidInput, id="unknown durability"),
    pytest.param(pack([0, 7, "", "local", ["add", "s", "c", 1]]), InvalidName, id="empty key"),
    pytest.param(pack([0, 7, "k" * 256, "local", ["add", "s", "c", 1]]), InvalidName, id="long key"),
    pytest.param(pack([0, 7, None, "local", ["add", "s", "", 1]]), InvalidName, id="empty name"),
    pytest.param(pack([0, 7, None, "local", ["add", "s", "n" * 1025, 1]]), InvalidName, id="long name"),
    pytest.param(pack([0, 7, None, "local", ["add", "s", "a\nb", 1]]), InvalidName, id="control character"),
    pytest.param(b"\x95\x00\x07\xc0\xa5local\x94\xa3add\xa1s\xa1\xff\x01", ShoalError, id="invalid UTF-8"),
    pytest.param(pack([1, 7, ["watch", ""]]), InvalidName, id="subscription of a bad name"),
    pytest.param(pack([1, 7, ["levitate"]]), Unsupported, id="unknown subscription"),
]


@pytest.mark.parametrize(("frame", "error"), BAD_REQUESTS)
async def test_a_bad_request_is_answered_and_its_neighbours_are_served(
    wire: Wire, bystander: Link, frame: bytes, error: type[ShoalError]
) -> None:
    await wire.send(frame, encode_call(8, WRITE))
    answers = {answer.id: answer for answer in (await wire.frame(), await wire.frame())}
    assert isinstance(answers[7], ErrorFrame)
    assert isinstance(answers[7].fault.error(), error)
    assert isinstance(answers[8], ReplyFrame)
    assert await bystander.call(WRITE) == Added(2, True)


async def test_a_slash_in_a_name_is_legal(served: Served) -> None:
    assert await (await served.link()).call(Add("s", "{crew-7}/tokens", 1)) == Added(1, True)


async def test_an_error_of_the_session_crosses_the_wire_whole(served: Served) -> None:
    link = await served.link()
    with pytest.raises(NotFound, match="no checkpoint"):
        await link.call(requests.Load("s", "t"))


async def test_a_bug_in_a_request_is_an_error_without_internals(served: Served, bystander: Link) -> None:
    link = await served.link()
    served.session.failure = KeyError("secret")
    with pytest.raises(ShoalError) as caught:
        await link.call(WRITE)
    assert "secret" not in str(caught.value)
    assert (caught.value.code, caught.value.written) == ("error", "unknown")
    assert await link.call(WRITE) == Added(1, True)


async def test_a_bug_in_a_subscription_ends_it_alone(served: Served) -> None:
    async def broken() -> AsyncIterator[Change]:
        yield Change("s", "thread", "t", "save", "", 1, 2)
        raise KeyError("secret")

    link = await served.link()
    served.session.pushes = broken()
    async with link.subscribe(Watch("s")) as changes:
        await anext(changes)
        with pytest.raises(ShoalError) as caught:
            await anext(changes)
    assert "secret" not in str(caught.value)
    assert await link.call(WRITE) == Added(1, True)


# ── what closes the socket ────────────────────────────────────────────────────


@pytest.mark.parametrize("message", [b"\xc1", b"", pack({}), pack([[99, 1]]), b"\x91" * 10_000], ids=repr)
async def test_a_message_that_is_no_array_of_frames_closes_its_socket_only(wire: Wire, bystander: Link, message: bytes) -> None:
    await wire.socket.send_bytes(message)
    code, reason = await wire.closed()
    assert code == aiohttp.WSCloseCode.PROTOCOL_ERROR
    assert "not an array of frames" in reason
    assert await bystander.call(WRITE) == Added(1, True)


async def test_text_closes_its_socket_only(wire: Wire, bystander: Link) -> None:
    await wire.socket.send_str("hello?")
    assert (await wire.closed())[0] == aiohttp.WSCloseCode.UNSUPPORTED_DATA
    assert await bystander.call(WRITE) == Added(1, True)


async def test_a_message_over_the_bound_closes_its_socket_only(wire: Wire, bystander: Link) -> None:
    await wire.socket.send_bytes(b"\x90" + b"x" * (1 << 20))
    assert (await wire.closed())[0] == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
    assert await bystander.call(WRITE) == Added(1, True)


@pytest.mark.parametrize("first", [b"\xc1", pack(["hello", "one", "x"]), pack(["hullo", 1, "x"])], ids=repr)
async def test_a_first_message_that_is_no_hello_is_refused_in_words(
    served: Served, http: aiohttp.ClientSession, bystander: Link, first: bytes
) -> None:
    socket = await http.ws_connect(served.url + "/v1/session")
    await socket.send_bytes(first)
    with pytest.raises(InvalidInput, match="not a hello"):
        decode_welcome(await socket.receive_bytes())
    assert (await Wire(socket).closed())[0] == aiohttp.WSCloseCode.PROTOCOL_ERROR


async def test_an_older_version_is_refused_before_its_first_request(served: Served, http: aiohttp.ClientSession) -> None:
    socket = await http.ws_connect(served.url + "/v1/session")
    await socket.send_bytes(encode_hello(Hello(PROTOCOL_OLDEST - 1, "older")))
    with pytest.raises(Unsupported, match=f"version {PROTOCOL}"):
        decode_welcome(await socket.receive_bytes())


async def test_with_a_newer_client_a_node_speaks_its_own_version(served: Served, http: aiohttp.ClientSession) -> None:
    socket = await http.ws_connect(served.url + "/v1/session")
    await socket.send_bytes(encode_hello(Hello(PROTOCOL + 1, "newer")))
    assert decode_welcome(await socket.receive_bytes()).protocol == PROTOCOL


# ── bounds ────────────────────────────────────────────────────────────────────


@pytest.mark.answers("all-clients-reconnect-at-once")
async def test_past_its_bound_of_sessions_a_node_refuses_with_a_delay_and_takes_the_next_once_one_left(serve: Serve) -> None:
    served = await serve(sessions_max=1)
    first = await served.link()
    with pytest.raises(Overloaded) as caught:
        await served.link()
    assert caught.value.detail == {"retry_after_s": 1.0}
    assert await first.call(WRITE) == Added(1, True)
    await first.close()
    while True:
        try:
            second = await served.link()
            break
        except Overloaded:
            await asyncio.sleep(0)
    assert await second.call(WRITE) == Added(2, True)


@pytest.mark.answers("queues-are-bounded")
async def test_past_its_bound_of_requests_a_session_is_not_read_until_one_is_done(
    serve: Serve, http: aiohttp.ClientSession
) -> None:
    served = await serve(session_requests_max=2)
    wire = await dialled(http, served)
    gate = served.session.gate = asyncio.Event()
    await wire.send(*[encode_call(id, READ) for id in range(5)])
    other = await served.link()
    for _ in range(3):  # Each round trip gives the node time enough to start what it must not start.
        await other.call(WRITE)
    assert sum(request == READ for request, _, _ in served.session.asked) == 2
    gate.set()
    assert {(await wire.frame()).id for _ in range(5)} == set(range(5))


async def test_subscriptions_of_a_session_are_bounded(serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(subscriptions_max=1)
    wire = await dialled(http, served)
    await wire.send(encode_subscribe(1, Watch("s")), encode_subscribe(2, Watch("s")))
    answers = {answer.id: answer for answer in (await wire.frame(), await wire.frame())}
    assert isinstance(answers[1], ReplyFrame)
    assert isinstance(answers[2], ErrorFrame)
    assert isinstance(answers[2].fault.error(), Overloaded)


async def test_the_id_of_a_subscription_under_way_is_refused(wire: Wire) -> None:
    await wire.send(encode_subscribe(1, Watch("s")))
    await wire.frame()
    await wire.send(encode_subscribe(1, Watch("s")))
    assert isinstance(await wire.error(), InvalidInput)


async def test_more_replies_than_may_wait_reach_a_peer_that_reads(serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(session_send_bytes_max=1 << 16)
    wire = await dialled(http, served)
    await served.session.call(requests.Save("s", "t", {"a": pack("x" * (1 << 15))}))
    await wire.send(*[encode_call(id, requests.Load("s", "t")) for id in range(50)])
    assert [(await wire.frame()).id for _ in range(50)] == list(range(50))


@pytest.mark.answers("slow-consumer-makes-memory-grow-without-bound")
async def test_a_client_that_takes_no_replies_is_cut_off(serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(session_send_bytes_max=1 << 16, heartbeat_s=0.3)
    other = await served.link()
    await other.call(requests.Save("s", "t", {"a": pack("x" * (1 << 19))}))
    deaf = await dialled(http, served)
    connection = deaf.socket._conn
    assert connection is not None
    assert connection.protocol is not None
    connection.protocol.pause_reading()
    await deaf.send(*[encode_call(id, requests.Load("s", "t")) for id in range(100)])
    async with asyncio.timeout(20):
        while len(served.listener._sessions._open) > 1:
            assert await other.call(WRITE)
    assert sum(isinstance(request, requests.Load) for request, _, _ in served.session.asked) < 100


async def test_a_watcher_that_is_not_read_holds_its_pushes_back_and_the_session_lives(
    serve: Serve, http: aiohttp.ClientSession
) -> None:
    served = await serve(subscription_bytes_max=1 << 16, session_send_bytes_max=1 << 20)
    taken = 0

    async def endless() -> AsyncIterator[Change]:
        nonlocal taken
        while True:
            taken += 1
            yield Change("s", "thread", "x" * 1000, "save", "", 1, 2)
            if taken % 50 == 0:
                await asyncio.sleep(0)

    served.session.pushes = endless()
    deaf = await dialled(http, served)
    assert deaf.socket._conn is not None
    assert deaf.socket._conn.protocol is not None
    deaf.socket._conn.protocol.pause_reading()
    await deaf.send(encode_subscribe(1, Watch("s")))
    other = await served.link()
    before = -1
    while taken != before:  # Until the pump stands still.
        before = taken
        for _ in range(20):
            await other.call(WRITE)
    assert taken > 10
    assert len(served.listener._sessions._open) == 2


# ── stopping ──────────────────────────────────────────────────────────────────


async def test_a_stop_lets_what_is_under_way_finish_and_closes_with_going_away(
    served: Served, wire: Wire, http: aiohttp.ClientSession
) -> None:
    gate = served.session.gate = asyncio.Event()
    await wire.send(encode_subscribe(1, Watch("s")), encode_call(2, READ))
    await wire.frame()
    stopping = asyncio.create_task(served.listener.stop())
    ended = await wire.frame()
    assert isinstance(ended, EndFrame)
    assert ended.fault is not None
    assert isinstance(ended.fault.error(), ShuttingDown)
    await wire.send(encode_call(3, WRITE))
    assert isinstance(await wire.error(), ShuttingDown)
    gate.set()
    answer = await wire.frame()
    assert isinstance(answer, ReplyFrame)
    assert answer.id == 2
    code, _ = await wire.closed()
    assert code == aiohttp.WSCloseCode.GOING_AWAY
    await stopping
    with pytest.raises(aiohttp.ClientError):
        await http.get(served.url + "/healthz")


async def test_a_broken_session_keeps_its_place_until_its_last_request_is_done(serve: Serve) -> None:
    served = await serve(sessions_max=1)
    gate = served.session.gate = asyncio.Event()
    link = await served.link()
    stuck = asyncio.create_task(link.call(READ))
    while not served.session.asked:
        await asyncio.sleep(0)
    await link.close()
    await asyncio.gather(stuck, return_exceptions=True)
    with pytest.raises(Overloaded):
        await served.link()
    gate.set()
