from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal.config import Config
from shoal.errors import (
    Disconnected,
    InvalidConfig,
    InvalidValue,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ShoalError,
    SlowConsumer,
    TooLarge,
    Unavailable,
    Unsupported,
)
from shoal.protocol.frames import (
    PROTOCOL,
    CancelFrame,
    SubscribeFrame,
    Welcome,
    decode_request,
    encode_end,
    encode_error,
    encode_push,
    encode_reply,
)
from shoal.protocol.requests import Add, Added, Change, CounterValue, Prune, ReadCounter, Reply, Trim, Watch
from shoal.transport.dialling import DialledSocket
from shoal.transport.link import Link

READ = ReadCounter("s", "c")
WRITE = Add("s", "c", 1)


class OfAnotherVersion(Reply, array_like=True, frozen=True, tag="of-another-version"):
    value: int


Dial = Callable[..., Awaitable[Link]]
Peer = Any  # Of conftest.py.


def change(name: str) -> Change:
    return Change("s", "thread", name, "save", "", 1, 2)


async def test_calls_are_answered_by_their_ids_in_any_order(peer: Peer, dial: Dial) -> None:
    link = await dial()
    first, second = asyncio.create_task(link.call(READ)), asyncio.create_task(link.call(READ))
    one, two = await peer.next_call(), await peer.next_call()
    await peer.send(encode_reply(two.id, CounterValue(2)), encode_reply(one.id, CounterValue(1)))
    assert [await first, await second] == [CounterValue(1), CounterValue(2)]


async def test_a_call_carries_request_key_and_durability(peer: Peer, dial: Dial) -> None:
    link = await dial()
    call = asyncio.create_task(link.call(WRITE, key="k", durability="quorum"))
    frame = await peer.next_call()
    assert (decode_request(frame.request), frame.key, frame.durability) == (WRITE, "k", "quorum")
    await peer.send(encode_reply(frame.id, Added(1, True)))
    assert await call == Added(1, True)


async def test_calls_of_one_turn_share_a_message_in_their_order(peer: Peer, dial: Dial) -> None:
    link = await dial()
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(frame.id))
    replies = await asyncio.gather(*(link.call(READ) for _ in range(50)))
    assert len(peer.messages) == 1
    assert replies == [CounterValue(id) for id in range(1, 51)]


async def test_the_nodes_error_is_raised_and_the_link_goes_on(peer: Peer, dial: Dial) -> None:
    link = await dial()
    call = asyncio.create_task(link.call(READ))
    frame = await peer.next_call()
    await peer.send(encode_error(frame.id, NotFound("no such thing", kind="counter")))
    with pytest.raises(NotFound, match="no such thing") as caught:
        await call
    assert caught.value.detail == {"kind": "counter"}
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7))
    assert await link.call(READ) == CounterValue(7)


async def test_a_cancelled_caller_disturbs_nobody_and_its_late_reply_is_dropped(peer: Peer, dial: Dial) -> None:
    link = await dial()
    cancelled, other = asyncio.create_task(link.call(READ)), asyncio.create_task(link.call(READ))
    one, two = await peer.next_call(), await peer.next_call()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await peer.send(encode_reply(one.id, CounterValue(1)), encode_reply(two.id, CounterValue(2)))
    assert await other == CounterValue(2)
    assert link.open


async def test_a_caller_cancelled_before_its_frame_left_takes_it_back(peer: Peer, dial: Dial) -> None:
    link = await dial()
    given_up = link.call(WRITE)
    given_up.send(None)  # Up to where it waits for its answer; the link has had no turn to send anything.
    given_up.close()
    other = asyncio.create_task(link.call(READ))
    frame = await peer.next_call()
    assert decode_request(frame.request) == READ
    await peer.send(encode_reply(frame.id, CounterValue(2)))
    await other


async def test_a_broken_link_leaves_the_outcome_of_a_write_unknown(peer: Peer, dial: Dial) -> None:
    link = await dial()
    call = asyncio.create_task(link.call(WRITE, key="k"))
    await peer.next_call()
    await peer.hang_up()
    with pytest.raises(OutcomeUnknown, match="same idempotency key") as caught:
        await call
    assert caught.value.written == "unknown"
    assert not link.open


async def test_a_broken_link_under_a_read_wrote_nothing(peer: Peer, dial: Dial) -> None:
    link = await dial()
    call = asyncio.create_task(link.call(READ))
    await peer.next_call()
    await peer.hang_up()
    with pytest.raises(Disconnected) as caught:
        await call
    assert caught.value.written == "no"


@pytest.mark.parametrize("request_", [Prune("s", "t"), Trim("s", "t")])
async def test_a_broken_link_under_what_may_write_piece_by_piece_leaves_it_unknown(
    peer: Peer, dial: Dial, request_: Prune | Trim
) -> None:
    link = await dial()
    call = asyncio.create_task(link.call(request_))
    await peer.next_call()
    await peer.hang_up()
    with pytest.raises(OutcomeUnknown):
        await call


async def test_a_write_on_a_lost_link_never_left(peer: Peer, dial: Dial) -> None:
    link = await dial()
    await link.close()
    with pytest.raises(Disconnected, match=r"closed here\. Nothing was written"):
        await link.call(WRITE)


async def test_closing_here_ends_what_is_under_way(peer: Peer, dial: Dial) -> None:
    link = await dial()
    read, write = asyncio.create_task(link.call(READ)), asyncio.create_task(link.call(WRITE))
    await peer.next_call()
    await peer.next_call()
    await link.close()
    failures = await asyncio.gather(read, write, return_exceptions=True)
    assert [type(failure) for failure in failures] == [Disconnected, OutcomeUnknown]


async def test_a_write_that_is_not_answered_in_time_has_an_unknown_outcome(peer: Peer, dial: Dial) -> None:
    link = await dial()
    with pytest.raises(OutcomeUnknown, match="in time"):
        await link.call(WRITE, timeout_s=0.02)
    assert link.open


async def test_a_read_that_is_not_answered_in_time_wrote_nothing(peer: Peer, dial: Dial) -> None:
    link = await dial()
    with pytest.raises(Unavailable, match="in time"):
        await link.call(READ, timeout_s=0.02)


@pytest.mark.answers("queues-are-bounded")
async def test_requests_under_way_are_bounded_by_what_the_node_allows(peer: Peer, dial: Dial) -> None:
    peer.welcome = Welcome(PROTOCOL, "0.1.0", "ab12", 1 << 20, 2, 10)
    link = await dial()
    calls = [asyncio.create_task(link.call(READ)) for _ in range(3)]
    one, two = await peer.next_call(), await peer.next_call()
    await asyncio.sleep(0)
    assert peer.frames.empty()
    await peer.send(encode_reply(one.id, CounterValue(1)))
    third = await peer.next_call()
    await peer.send(encode_reply(third.id, CounterValue(3)), encode_reply(two.id, CounterValue(2)))
    assert await asyncio.gather(*calls) == [CounterValue(1), CounterValue(2), CounterValue(3)]


async def test_waiting_for_room_ends_with_the_time_out_and_nothing_sent(peer: Peer, dial: Dial) -> None:
    link = await dial(client_requests_max=1)
    under_way = asyncio.create_task(link.call(READ))
    await peer.next_call()
    with pytest.raises(Unavailable, match="Nothing was sent"):
        await link.call(WRITE, timeout_s=0.02)
    assert peer.frames.empty()
    under_way.cancel()


async def test_a_request_over_the_nodes_bound_is_not_sent(peer: Peer, dial: Dial) -> None:
    peer.welcome = Welcome(PROTOCOL, "0.1.0", "ab12", 100, 10, 10)
    link = await dial()
    with pytest.raises(TooLarge, match="at most 100"):
        await link.call(ReadCounter("s", "c" * 100))
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7))
    assert await link.call(READ) == CounterValue(7)


async def test_a_node_that_talks_nonsense_is_hung_up_on(peer: Peer, dial: Dial) -> None:
    link = await dial()
    call = asyncio.create_task(link.call(READ))
    await peer.next_call()
    await peer.connections[-1].send_bytes(b"\xc1")
    with pytest.raises(Disconnected, match="not an array of frames"):
        await call


async def test_a_reply_of_a_newer_version_fails_its_own_call_only(peer: Peer, dial: Dial) -> None:
    link = await dial()
    peer.answer = lambda frame: msgspec.msgpack.encode([3, frame.id, ["newer", 1]])
    with pytest.raises(ShoalError, match="not understood"):
        await link.call(READ)
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7))
    assert await link.call(READ) == CounterValue(7)


# ── subscriptions ─────────────────────────────────────────────────────────────


async def begun(peer: Peer) -> int:
    """Accept the subscription that comes next."""
    frame = await peer.frames.get()
    assert isinstance(frame, SubscribeFrame)
    await peer.send(encode_reply(frame.id, None))
    return frame.id


async def test_a_subscription_delivers_in_order_and_is_cancelled_on_leaving(peer: Peer, dial: Dial) -> None:
    link = await dial()
    accepting = asyncio.create_task(begun(peer))
    async with link.subscribe(Watch("s")) as changes:
        id = await accepting
        await peer.send(encode_push(id, change("a")), encode_push(id, change("b")))
        assert [await anext(changes), await anext(changes)] == [change("a"), change("b")]
    assert await peer.frames.get() == CancelFrame(id)


async def test_a_refused_subscription_raises_on_entering(peer: Peer, dial: Dial) -> None:
    link = await dial()

    async def refuse() -> None:
        frame = await peer.frames.get()
        await peer.send(encode_error(frame.id, Overloaded("too many", retry_after_s=1.0)))

    refusing = asyncio.create_task(refuse())
    with pytest.raises(Overloaded, match="too many"):
        async with link.subscribe(Watch("s")):
            pass
    await refusing


async def test_a_subscription_ends_with_the_nodes_error_or_none(peer: Peer, dial: Dial) -> None:
    link = await dial()
    for error in (SlowConsumer("fell behind"), None):
        accepting = asyncio.create_task(begun(peer))
        async with link.subscribe(Watch("s")) as changes:
            await peer.send(encode_end(await accepting, error))
            with pytest.raises(SlowConsumer if error else StopAsyncIteration):
                await anext(changes)


async def test_a_subscription_ends_with_disconnected_when_the_link_breaks(peer: Peer, dial: Dial) -> None:
    link = await dial()
    accepting = asyncio.create_task(begun(peer))
    async with link.subscribe(Watch("s")) as changes:
        await peer.send(encode_push(await accepting, change("a")))
        assert await anext(changes) == change("a")
        await peer.hang_up()
        with pytest.raises(Disconnected):
            await anext(changes)


@pytest.mark.answers("slow-consumer-makes-memory-grow-without-bound")
async def test_a_consumer_that_falls_behind_loses_its_subscription_and_nothing_else(peer: Peer, dial: Dial) -> None:
    link = await dial(subscription_bytes_max=200)
    accepting = asyncio.create_task(begun(peer))
    async with link.subscribe(Watch("s")) as changes:
        id = await accepting
        await peer.send(*[encode_push(id, change("a" * 50)) for _ in range(10)])
        assert await peer.frames.get() == CancelFrame(id)
        with pytest.raises(SlowConsumer):
            async for _ in changes:
                pass
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7))
    assert await link.call(READ) == CounterValue(7)


# ── dialling ──────────────────────────────────────────────────────────────────


async def test_the_token_goes_into_the_authorization_header(peer: Peer) -> None:
    link = await Link.dial(peer.url, config=Config(), token="t0ken")
    await link.close()
    assert peer.headers == ["Bearer t0ken"]


async def test_a_token_goes_to_no_other_machine_in_the_clear() -> None:
    for url in ("http://n1.example:7400", "http://10.0.0.1:7400", "http://[2001:db8::1]:7400"):
        with pytest.raises(InvalidConfig, match=r"over plain HTTP.* Nothing was sent") as caught:
            await Link.dial(url, config=Config(), token="t0ken")
        assert "t0ken" not in caught.value.message


@pytest.mark.parametrize("named", ["*", "n1, localhost.localdomain"])
async def test_a_token_goes_where_something_else_encrypts(peer: Peer, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.transport.dialling._is_here", lambda host: False)
    with pytest.raises(InvalidConfig):
        await Link.dial(peer.url, config=Config(plain_tokens="n2"), token="t0ken")
    host = peer.url.split("/")[2].split(":")[0]
    link = await Link.dial(peer.url, config=Config(plain_tokens=named.replace("localhost.localdomain", host)), token="t0ken")
    await link.close()


@pytest.mark.parametrize("status", [404, 429, 500, 503])
async def test_an_error_says_that_the_token_was_sent(peer: Peer, dial: Dial, status: int) -> None:
    peer.refuse = web.Response(status=status)
    with pytest.raises(ShoalError, match=r"The token was sent, and nothing else\.") as caught:
        await Link.dial(peer.url, config=Config(), token="t0ken")
    assert ("revoke the token" in caught.value.message) == (status == 404)
    with pytest.raises(ShoalError, match=r"Nothing was sent\."):
        await dial()


@pytest.mark.parametrize(("status", "error"), [(429, Overloaded), (503, Unavailable), (404, Unsupported), (500, Disconnected)])
async def test_a_refusal_is_typed_by_its_status(peer: Peer, dial: Dial, status: int, error: type[ShoalError]) -> None:
    peer.refuse = web.Response(status=status, headers={"Retry-After": "3"})
    with pytest.raises(error) as caught:
        await dial()
    assert type(caught.value) is error
    if error is Overloaded:
        assert caught.value.detail == {"retry_after_s": 3.0}


async def test_a_port_where_nobody_listens_is_disconnected(peer: Peer) -> None:
    url = peer.url
    await peer.stop()
    with pytest.raises(Disconnected, match="cannot be reached: connection refused"):
        await Link.dial(url, config=Config())


@pytest.mark.answers("unknown-outcomes-are-told")
async def test_an_answer_that_is_not_understood_leaves_the_outcome_of_a_write_unknown(peer: Peer, dial: Dial) -> None:
    """A node of another version has carried it out, and says so in words that this client does not know."""
    link = await dial()
    peer.answer = lambda frame: encode_reply(frame.id, OfAnotherVersion(3))
    with pytest.raises(OutcomeUnknown, match="not understood") as caught:
        await link.call(WRITE, key="k")
    assert caught.value.written == "unknown"
    with pytest.raises(InvalidValue, match="not understood") as read:
        await link.call(READ)
    assert read.value.written == "no"
    assert link.open


async def test_a_link_whose_close_is_cancelled_gives_its_connection_back(
    peer: Peer, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise aiohttp holds it until the garbage collector comes by, and warns then."""
    link = await dial()
    response, begun = link._socket._response, asyncio.Event()

    async def never(*_: object, **__: object) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(DialledSocket, "close", never)
    closing = asyncio.create_task(link.close())
    await begun.wait()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert response.connection is None
    assert link._http.closed
