from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from aiohttp import web

from shoal.config import Config
from shoal.errors import (
    BookmarkLost,
    Disconnected,
    HeadMoved,
    InvalidConfig,
    KeyReused,
    NoQuorum,
    OutcomeUnknown,
    Overloaded,
    SessionBehind,
    ShoalError,
    ShuttingDown,
    StorageFull,
    StoreClosed,
    StoreCorrupt,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from shoal.protocol.frames import encode_error, encode_push, encode_reply
from shoal.protocol.requests import Added, Change, CounterValue, Prune, Watch
from shoal.protocol.session import is_made_before
from shoal.transport.dialling import split_urls
from shoal.transport.keyring import Credentials
from shoal.transport.link import Link
from shoal.transport.session import RemoteSession, SessionContext
from tests.transport.calls import CONFIG, READ, WRITE, added, counted, pass_time
from tests.transport.conftest import Connect, Peer


async def _never(delay_s: float) -> None:
    raise AssertionError(f"a pause of {delay_s} s")


async def test_it_connects_at_the_first_request_and_keeps_the_connection(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    peer.answer = counted
    assert peer.connections == []
    assert await asyncio.gather(*(session.call(READ) for _ in range(10))) == [CounterValue(7)] * 10
    assert len(peer.connections) == 1


async def test_a_write_without_a_key_is_given_one_that_tells_its_time(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    peer.answer = added
    await asyncio.gather(session.call(WRITE), session.call(WRITE))
    keys = {(await peer.next_call()).key, (await peer.next_call()).key}
    assert len(keys) == 2
    for key in keys:
        assert key is not None
        assert not is_made_before(key, 1_700_000_000_000)
        assert is_made_before(key, 1_700_000_000_001)


async def test_a_callers_own_key_is_kept_and_a_read_has_none(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    peer.answer = added
    await session.call(WRITE, key="mine")
    peer.answer = counted
    await session.call(READ)
    assert [(await peer.next_call()).key, (await peer.next_call()).key] == ["mine", None]


async def test_a_write_cut_off_in_flight_is_sent_again_with_the_same_key(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    call = asyncio.create_task(session.call(WRITE, durability="memory"))
    first = await peer.next_call()
    peer.answer = added
    await peer.hang_up()
    assert await call == Added(1, True)
    again = await peer.next_call()
    assert again.key == first.key
    assert again.durability == "memory"


async def test_a_read_cut_off_is_asked_again(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    call = asyncio.create_task(session.call(READ))
    await peer.next_call()
    peer.answer = counted
    await peer.hang_up()
    assert await call == CounterValue(7)


@pytest.mark.answers("one-dead-node-stops-the-spending-of-a-budget")
async def test_each_client_has_its_own_order_of_the_addresses_so_that_they_spread_over_the_nodes() -> None:
    firsts: Counter[str] = Counter()

    async def unreachable(url: str, **_: object) -> Link:
        dialled.append(url)
        raise Disconnected(f"{url} is not there. Nothing was sent.")

    async def pause(_: float) -> None:
        if len(dialled) >= 9:
            raise Unavailable("enough was seen")

    for seed in range(300):
        dialled: list[str] = []
        session = RemoteSession(
            "http://n1:1,http://n2:1,http://n3:1",
            config=CONFIG,
            context=SessionContext(lambda: 0, Random(seed).randbytes, sleep=pause, dial=unreachable),
            wait_s=1000.0,
        )
        with pytest.raises(Unavailable):
            await session.call(READ)
        assert sorted(dialled[:3]) == ["http://n1:1", "http://n2:1", "http://n3:1"]
        assert dialled == dialled[:3] * 3  # It keeps its order.
        firsts[dialled[0]] += 1
    assert all(70 < count < 130 for count in firsts.values())
    assert len(firsts) == 3


@pytest.mark.parametrize(
    ("refusals", "rounds"),
    [
        ([Unauthenticated("the token has expired.", reason="expired")], 1),
        ([Unauthenticated("its key is not known.", reason="key", retry_after_s=1.0)], 3),
        ([Unauthenticated("the token has expired.", reason="expired"), Disconnected("it is not there. Nothing was sent.")], 3),
    ],
)
async def test_a_token_that_is_refused_for_good_is_not_waited_for(refusals: list[ShoalError], rounds: int) -> None:
    dialled: list[str] = []

    async def refused(url: str, **_: object) -> Link:
        dialled.append(url)
        raise refusals[len(dialled) % len(refusals)]

    async def pause(_: float) -> None:
        if len(dialled) >= 6:
            raise Unavailable("enough was seen")

    session = RemoteSession(
        "http://n1:1,http://n2:1",
        config=CONFIG,
        context=SessionContext(lambda: 0, Random(1).randbytes, sleep=pause, dial=refused),
        wait_s=1000.0,
    )
    with pytest.raises(Unauthenticated if rounds == 1 else Unavailable):
        await session.call(READ)
    assert len(dialled) == 2 * rounds


@pytest.mark.parametrize("seed", range(6))
async def test_a_client_that_asks_for_it_keeps_the_order_that_it_was_given(seed: int, peer: Peer, other_peer: Peer) -> None:
    peer.answer = other_peer.answer = counted
    session = RemoteSession(
        f"{peer.url},{other_peer.url}", config=CONFIG, context=SessionContext(lambda: 0, Random(seed).randbytes), in_order=True
    )
    await session.call(READ)
    assert (len(peer.connections), len(other_peer.connections)) == (1, 0)
    await session.close()


async def test_a_node_that_is_gone_is_replaced_by_the_next(peer: Peer, other_peer: Peer, connect: Connect) -> None:
    session = connect(f"{peer.url},{other_peer.url}")
    call = asyncio.create_task(session.call(WRITE))
    first = await peer.next_call()
    other_peer.answer = added
    await peer.stop()
    assert await call == Added(1, True)
    assert (await other_peer.next_call()).key == first.key


async def test_a_node_that_is_stopping_is_asked_again(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    call = asyncio.create_task(session.call(WRITE))
    frame = await peer.next_call()
    peer.answer = added
    await peer.send(encode_error(frame.id, ShuttingDown("stopping")))
    assert await call == Added(1, True)


async def test_with_another_address_a_node_that_is_stopping_is_left_at_once(
    peer: Peer, other_peer: Peer, connect: Connect
) -> None:
    session = connect(f"{peer.url},{other_peer.url}")
    session._sleep = _never
    peer.answer = lambda frame: encode_error(frame.id, ShuttingDown("stopping"))
    other_peer.answer = added
    assert await session.call(WRITE) == Added(1, True)
    assert await session.call(WRITE) == Added(1, True)
    assert (await other_peer.next_call()).key == (await peer.next_call()).key
    assert peer.frames.empty()


async def test_a_subscription_leaves_a_node_that_is_stopping_too(peer: Peer, other_peer: Peer, connect: Connect) -> None:
    session = connect(f"{peer.url},{other_peer.url}")

    async def answer(by: Peer, with_: Callable[[int], bytes]) -> None:
        await by.send(with_(await by.next_id()))

    refusing = asyncio.create_task(answer(peer, lambda id: encode_error(id, ShuttingDown("stopping"))))
    accepting = asyncio.create_task(answer(other_peer, lambda id: encode_reply(id, None)))
    async with session.subscribe(Watch("s")):
        await asyncio.gather(refusing, accepting)


async def test_after_a_broken_link_each_address_is_tried_once_without_a_pause(
    peer: Peer, other_peer: Peer, connect: Connect
) -> None:
    session = connect(f"{peer.url},{other_peer.url}")
    session._sleep = _never
    call = asyncio.create_task(session.call(WRITE))
    first = await peer.next_call()
    await peer.hang_up()
    async with asyncio.timeout(20):
        second = await other_peer.next_call()
    peer.answer = added
    await other_peer.hang_up()
    assert await call == Added(1, True)
    assert first.key == second.key == (await peer.next_call()).key


async def test_an_address_that_accepts_and_says_nothing_does_not_eat_the_budget(peer: Peer, connect: Connect) -> None:
    peer.answer = counted
    with socket.create_server(("127.0.0.1", 0)) as paused:  # The kernel accepts, as it does for a stopped process.
        port = paused.getsockname()[1]
        session = connect(f"http://127.0.0.1:{port},{peer.url}", failover_timeout_s=0.05)
        assert await session.call(READ) == CounterValue(7)


async def test_a_node_that_stops_answering_is_left_for_another(peer: Peer, other_peer: Peer, connect: Connect) -> None:
    session = connect(f"{peer.url},{other_peer.url}", failover_timeout_s=0.05)
    other_peer.answer = counted
    peer.paused = True
    assert await session.call(READ) == CounterValue(7)


async def test_a_refused_token_is_replaced_once_if_it_may_be(peer: Peer, connect: Connect) -> None:
    peer.answer = lambda frame: encode_error(frame.id, Unauthenticated("the token has ended"))
    for credential, shown in (
        (lambda: f"token-{len(peer.headers)}", ["Bearer token-0", "Bearer token-1"]),
        ("fixed", ["Bearer fixed"]),
    ):
        session = connect(peer.url)
        session._credentials = Credentials(credential)
        with pytest.raises(Unauthenticated):
            await session.call(READ)
        assert peer.headers == shown
        peer.headers.clear()


async def test_any_error_of_unknown_outcome_names_the_key_to_send_it_again_with(peer: Peer, connect: Connect) -> None:
    peer.answer = lambda frame: encode_error(frame.id, StorageFull("the disk is full"))
    with pytest.raises(StorageFull) as caught:
        await connect(peer.url).call(WRITE)
    assert caught.value.detail["key"] == (await peer.next_call()).key


async def test_an_unknown_outcome_that_the_node_answers_is_raised_with_what_it_knows(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    session._sleep = _never
    peer.answer = lambda frame: encode_error(frame.id, OutcomeUnknown("written here", acknowledged=["n1:7400"], needed=2))
    with pytest.raises(OutcomeUnknown, match="written here") as caught:
        await session.call(WRITE, key="mine")
    assert caught.value.detail == {"acknowledged": ["n1:7400"], "needed": 2, "key": "mine"}
    await peer.next_call()
    assert peer.frames.empty()


async def test_an_answer_is_not_asked_for_again(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    for error in (
        HeadMoved("moved", heads=["a"]),
        Overloaded("full", retry_after_s=1.0),
        SessionBehind("behind"),
        BookmarkLost("lost"),
        NoQuorum("few", reachable=1, needed=2),
    ):
        call = asyncio.create_task(session.call(WRITE))
        frame = await peer.next_call()
        await peer.send(encode_error(frame.id, error))
        with pytest.raises(type(error)):
            await call
        assert peer.frames.empty()


@pytest.mark.answers("seed-464")
@pytest.mark.parametrize(
    "refusal",
    [
        BookmarkLost("refused"),
        SessionBehind("refused"),
        NoQuorum("refused"),
        StoreCorrupt("refused"),
        HeadMoved("refused"),
        KeyReused("refused"),
    ],
)
async def test_a_refusal_after_an_attempt_that_may_have_left_says_unknown(
    peer: Peer, connect: Connect, refusal: ShoalError
) -> None:
    session = connect(peer.url)
    call = asyncio.create_task(session.call(WRITE))
    await peer.next_call()
    peer.answer = lambda frame: encode_error(frame.id, refusal)
    await peer.hang_up()
    with pytest.raises(OutcomeUnknown, match="refused"):
        await call


async def test_a_write_never_answered_ends_with_its_key_to_send_it_again(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    call = asyncio.create_task(session.call(WRITE))
    key = (await peer.next_call()).key
    pass_time(CONFIG.request_timeout_s)
    with pytest.raises(OutcomeUnknown, match="applied once") as caught:
        await call
    assert caught.value.detail["key"] == key


@pytest.mark.answers("unknown-outcomes-are-told")
async def test_an_attempt_that_may_have_left_outweighs_a_later_refusal(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    call = asyncio.create_task(session.call(WRITE))
    await peer.next_call()
    peer.answer = lambda frame: encode_error(frame.id, Overloaded("full", retry_after_s=1.0))
    await peer.hang_up()
    with pytest.raises(OutcomeUnknown, match="full") as caught:
        await call
    assert caught.value.written == "unknown"


async def test_a_keyless_request_that_may_have_left_stays(peer: Peer, other_peer: Peer, connect: Connect) -> None:
    """A prune that was half done would tell of its second half alone."""
    session = connect(f"{peer.url},{other_peer.url}")
    call = asyncio.create_task(session.call(Prune("s", "t")))
    await peer.next_call()
    await peer.hang_up()
    with pytest.raises(OutcomeUnknown, match="Ask for it again"):
        await call


async def test_with_no_node_to_reach_the_reason_is_raised_and_nothing_was_written(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url, request_timeout_s=0.1)
    peer.answer = counted
    while True:  # However slow this machine is, it is reached once.
        with suppress(Unavailable, Disconnected):
            await session.call(READ)
            break
    await peer.stop()
    with pytest.raises(Disconnected, match="cannot be reached") as caught:
        await session.call(WRITE)
    assert caught.value.written == "no"


async def test_a_silent_address_is_named_when_time_is_over(connect: Connect) -> None:
    """Before any address has refused."""

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        session = connect(f"http://127.0.0.1:{port}", request_timeout_s=0.05)
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port} cannot be reached: it did not answer in time") as caught:
            await session.call(WRITE)
        assert caught.value.written == "no"


async def test_a_node_without_room_is_tried_again(peer: Peer, connect: Connect) -> None:
    slept: list[float] = []
    session = connect(peer.url)

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        peer.refuse = None

    session._sleep = sleep
    peer.refuse, peer.answer = web.Response(status=429, headers={"Retry-After": "3"}), counted
    assert await session.call(READ) == CounterValue(7)
    assert slept == [3.0]


@pytest.mark.answers("all-clients-reconnect-at-once")
async def test_delays_grow_and_stay_within_their_bound(peer: Peer, connect: Connect) -> None:
    session = RemoteSession(peer.url, config=CONFIG, context=SessionContext(lambda: 0, lambda size: b"\xff" * size))
    session._config = Config(reconnect_delay_s_max=2.0)
    assert [session._delay_s(attempt) for attempt in (0, 1, 2, 10, 10_000)] == [0.05, 0.1, 0.2, 2.0, 2.0]
    session._entropy = bytes
    assert session._delay_s(3) == 0.0


async def test_a_subscription_ends_when_the_connection_does_and_can_be_made_anew(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    change = Change("s", "thread", "a", "save", "", 1, 2)
    for _ in range(2):

        async def accept() -> None:
            id = await peer.next_id()
            await peer.send(encode_reply(id, None), encode_push(id, change))

        accepting = asyncio.create_task(accept())
        async with session.subscribe(Watch("s")) as changes:
            await accepting
            assert await anext(changes) == change
            await peer.hang_up()
            with pytest.raises(Disconnected):
                await anext(changes)


async def test_a_closed_session_refuses_and_ends_what_is_under_way(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    write, read = asyncio.create_task(session.call(WRITE)), asyncio.create_task(session.call(READ))
    await peer.next_call()
    await peer.next_call()
    await session.close()
    failures = await asyncio.gather(write, read, return_exceptions=True)
    assert [type(failure) for failure in failures] == [OutcomeUnknown, StoreClosed]
    with pytest.raises(StoreClosed, match="closed"):
        await session.call(READ)
    await session.close()


@pytest.mark.parametrize("urls", ["", " , ", "n1:7400", "ftp://n1", "http://", "http://n1?x=1", "http://[::1"])
def test_urls_that_name_no_node_are_refused(urls: str) -> None:
    with pytest.raises(InvalidConfig, match="http://"):
        split_urls(urls)


def test_several_urls_are_split() -> None:
    assert split_urls("http://n1:7400/, https://n2 ,") == ["http://n1:7400", "https://n2"]
