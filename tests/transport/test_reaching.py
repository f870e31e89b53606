"""A client's first contact: a wrong address is told with its reason, and a node that is about to come can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import WSCloseCode, web
from msgspec.structs import replace

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import (
    CatchingUp,
    ClockWrong,
    InvalidConfig,
    NotAMember,
    OutcomeUnknown,
    Overloaded,
    ReadOnly,
    SessionBehind,
    ShoalError,
    Unreachable,
    Unsupported,
)
from shoal.protocol.frames import Fault, Refused, encode_error, encode_hello, encode_reply
from shoal.protocol.requests import Added, CounterValue
from shoal.testing.machines import run
from shoal.transport.session import DELAY_S_FIRST, RemoteSession, SessionContext
from tests.transport.calls import CONFIG, READ, WRITE, added, counted, pass_time
from tests.transport.conftest import Connect, Peer

PATIENT = Config(request_timeout_s=1000.0, connect_timeout_s=1000.0, failover_timeout_s=1000.0, reach_timeout_s=1000.0)
HASTY = Config(request_timeout_s=1000.0, connect_timeout_s=1000.0, failover_timeout_s=1000.0, reach_timeout_s=0.2)

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Listen = Callable[[Server], Awaitable[str]]
Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    """Where a raw TCP server listens, "host:port"."""
    async with AsyncExitStack() as stack:

        async def at(server: Server) -> str:
            listening = await asyncio.start_server(server, "127.0.0.1", 0)
            stack.callback(listening.close)
            host, port = listening.sockets[0].getsockname()
            return f"{host}:{port}"

        yield at


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Where an HTTP server that is no node listens, "host:port"."""
    async with AsyncExitStack() as stack:

        async def at(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
            app = web.Application()
            app.router.add_get("/v1/session", handler)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return f"127.0.0.1:{runner.addresses[0][1]}"

        yield at


async def closed_port(listen: Listen) -> str:
    async with AsyncExitStack() as stack:
        listening = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
        stack.callback(listening.close)
        return f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1024):
        pass
    writer.close()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.close()


async def wants_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"\x15\x03\x01\x00\x02\x02\x46")  # An alert: "protocol version".
    writer.close()


async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
    await says_nothing(reader, writer)


async def told(address: str, *, config: Config = PATIENT) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        async with shoal.connect(address, config=config) as store:
            await store.status()
    assert caught.value.written == "no"
    assert "Nothing was sent" in caught.value.message
    return caught.value


async def test_a_port_where_nobody_listens(listen: Listen) -> None:
    error = await told("http://" + await closed_port(listen))
    assert isinstance(error, Unreachable)
    assert "connection refused" in error.message
    assert "`wait=30`" in error.message


async def test_a_host_that_is_not_there() -> None:
    error = await told("http://no-such-host.invalid:7400")
    assert isinstance(error, Unreachable)
    assert "http://no-such-host.invalid:7400" in error.message


@pytest.mark.parametrize(
    ("server", "said"),
    [(hangs_up, "it closed the connection|connection reset"), (wants_tls, "https://"), (greets, "does not speak HTTP")],
)
async def test_a_server_that_speaks_something_else(server: Server, said: str, listen: Listen) -> None:
    error = await told("http://" + await listen(server))
    assert isinstance(error, Unreachable)
    with pytest.raises(Unreachable, match=said):
        raise error


async def test_tls_where_there_is_none(listen: Listen, peer: Peer) -> None:
    error = await told(peer.url.replace("http://", "https://"))
    assert isinstance(error, Unreachable)
    assert "does not speak TLS" in error.message


@pytest.mark.answers("wrong-address-makes-the-client-hang")
async def test_a_server_that_says_nothing_is_given_up_in_time(listen: Listen) -> None:
    error = await told("http://" + await listen(says_nothing), config=HASTY)
    assert isinstance(error, Unreachable)
    assert "did not answer in time" in error.message
    assert Config().reach_timeout_s < 2.0


async def test_many_first_requests_share_the_time(listen: Listen) -> None:
    address = "http://" + await listen(says_nothing)
    session = RemoteSession(address, config=HASTY, context=SessionContext(lambda: 0, lambda size: b"\x01" * size))
    dialled = 0
    dial = session._dial_link

    async def counting(*args: object, **kwargs: object) -> object:
        nonlocal dialled
        dialled += 1
        return await dial(*args, **kwargs)  # type: ignore[arg-type]

    session._dial_link = counting  # type: ignore[assignment]
    failures = await asyncio.gather(*(session.call(READ) for _ in range(10)), return_exceptions=True)
    assert {type(failure) for failure in failures} == {Unreachable}
    assert dialled == 1
    await session.close()


@pytest.mark.parametrize("status", [200, 400, 401, 404])
async def test_another_http_server(status: int, serve: Serve) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.Response(status=status)

    error = await told("http://" + await serve(answers))
    assert isinstance(error, Unsupported)
    assert f"another server answered (status {status})" in error.message


async def test_a_websocket_that_is_not_shoals(serve: Serve) -> None:
    async def answers(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(b"hello")
        await socket.close(code=WSCloseCode.OK)
        return socket

    error = await told("http://" + await serve(answers))
    assert isinstance(error, Unsupported)
    assert "there is no Shoal node" in error.message


@pytest.mark.answers("wrong-address-makes-the-client-hang")
async def test_with_several_addresses_each_is_told_with_its_reason(listen: Listen, serve: Serve) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.Response(status=404)

    addresses = [
        f"http://{await closed_port(listen)}",
        f"http://{await listen(says_nothing)}",
        f"http://{await serve(answers)}",
    ]
    reasons = ["connection refused", "it did not answer in time", "status 404"]
    for reach_timeout_s in (0.2, 1.0, 5.0, 30.0):  # On a busy machine those that answer need longer, and one never does.
        error = await told(",".join(addresses), config=replace(HASTY, reach_timeout_s=reach_timeout_s))
        assert isinstance(error, Unreachable)
        assert all(f"{address}: " in error.message for address in addresses)
        if all(reason in error.message for reason in reasons):
            break
    assert all(reason in error.message for reason in reasons), error.message


async def test_one_node_among_wrong_addresses_is_enough(
    peer: Peer,
    listen: Listen,
    serve: Serve,
    connect: Connect,
) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.Response(status=404)

    peer.answer = counted
    wrong = [f"http://{await closed_port(listen)}", f"http://{await listen(says_nothing)}", f"http://{await serve(answers)}"]
    session = connect(",".join([*wrong, peer.url]), failover_timeout_s=0.1)
    assert await session.call(READ) == CounterValue(7)


async def test_a_stream_at_a_wrong_address_is_told_at_once_too(listen: Listen) -> None:
    async with shoal.connect(f"http://{await closed_port(listen)}", config=PATIENT) as store:
        with pytest.raises(Unreachable):
            await anext(store.space("s").watch())
        with pytest.raises(Unreachable):
            await store.space("s").document("d")


async def test_a_node_that_is_about_to_come_is_waited_for_if_asked(listen: Listen, peer: Peer) -> None:
    await peer.stop()
    port = int(peer.url.rpartition(":")[2])
    coming = Peer()
    pauses: list[float] = []

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 3:
            await coming.start(port)

    session = RemoteSession(
        peer.url, config=PATIENT, context=SessionContext(lambda: 0, lambda size: b"\x01" * size, sleep=sleep), wait_s=1000.0
    )
    coming.answer = counted
    assert await session.call(READ) == CounterValue(7)
    assert len(pauses) == 3
    await session.close()
    await coming.stop()


async def test_the_wait_has_an_end(listen: Listen) -> None:
    async def sleep(_: float) -> None:
        pass_time(20.0)

    session = RemoteSession(
        f"http://{await closed_port(listen)}",
        config=PATIENT,
        context=SessionContext(lambda: 0, lambda size: b"\x01" * size, sleep=sleep),
        wait_s=30.0,
    )
    with pytest.raises(Unreachable):
        await session.call(READ)


async def test_a_node_that_was_reached_once_is_waited_for(peer: Peer) -> None:
    peer.answer = counted
    pauses: list[float] = []
    port = int(peer.url.rpartition(":")[2])
    again = Peer()
    again.answer = counted

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 3:
            await again.start(port)

    session = RemoteSession(
        peer.url, config=PATIENT, context=SessionContext(lambda: 0, lambda size: b"\x01" * size, sleep=sleep)
    )
    await session.call(READ)
    await peer.stop()
    assert await session.call(READ) == CounterValue(7)
    assert len(pauses) == 3
    await session.close()
    await again.stop()


# ── nodes that refuse ─────────────────────────────────────────────────────────


def refusing(error: ShoalError) -> bytes:
    return encode_hello(Refused(Fault.of(error)))


async def test_when_all_nodes_refuse_the_error_says_what_each_said(peer: Peer, other_peer: Peer) -> None:
    peer.greeting = refusing(CatchingUp("the node fetches what it lacks. Nothing was written."))
    other_peer.greeting = refusing(Overloaded("the node is full. Nothing was written.", retry_after_s=1.0))

    async def sleep(_: float) -> None:
        pass_time(CONFIG.request_timeout_s)

    session = RemoteSession(
        f"{peer.url},{other_peer.url}",
        config=CONFIG,
        context=SessionContext(lambda: 0, lambda size: b"\x01" * size, sleep=sleep),
    )
    with pytest.raises(shoal.errors.Unavailable, match="no node takes this session") as caught:
        await session.call(READ)
    assert "the node fetches what it lacks" in caught.value.message
    assert "the node is full" in caught.value.message
    await session.close()


async def test_a_node_that_refuses_sessions_is_passed_over(peer: Peer, other_peer: Peer) -> None:
    peer.greeting = refusing(CatchingUp("the node fetches what it lacks. Nothing was written."))
    other_peer.answer = counted
    session = RemoteSession(
        f"{peer.url},{other_peer.url}",
        config=PATIENT,
        context=SessionContext(lambda: 0, lambda size: b"\x01" * size),
        in_order=True,
    )
    assert await session.call(READ) == CounterValue(7)
    await session.close()


@pytest.mark.answers("clients-connect-to-a-node-without-its-disk")
@pytest.mark.parametrize("why", [SessionBehind, CatchingUp, NotAMember, ReadOnly, ClockWrong])
async def test_a_node_that_cannot_serve_a_request_is_left_for_one_that_can(
    peer: Peer, other_peer: Peer, why: type[ShoalError]
) -> None:
    peer.answer = lambda frame: encode_error(frame.id, why("not here. Nothing was written."))
    other_peer.answer = lambda frame: encode_reply(frame.id, Added(1, True))
    session = RemoteSession(
        f"{peer.url},{other_peer.url}",
        config=PATIENT,
        context=SessionContext(lambda: 0, lambda size: b"\x01" * size),
        in_order=True,
    )
    assert await session.call(WRITE) == Added(1, True)
    first, second = await peer.next_call(), await other_peer.next_call()
    assert first.key == second.key
    await session.close()


async def test_when_all_nodes_are_behind_each_is_asked_once(peer: Peer, other_peer: Peer) -> None:
    for each in (peer, other_peer):
        each.answer = lambda frame: encode_error(frame.id, SessionBehind("behind"))
    session = RemoteSession(
        f"{peer.url},{other_peer.url}", config=PATIENT, context=SessionContext(lambda: 0, lambda size: b"\x01" * size)
    )
    with pytest.raises(SessionBehind):
        await session.call(WRITE)
    assert (peer.frames.qsize(), other_peer.frames.qsize()) == (1, 1)
    await session.close()


# ── what is no address ────────────────────────────────────────────────────────


async def opened(urls: object, **settings: object) -> Store:
    async with shoal.connect(urls, **settings) as store:  # type: ignore[arg-type]
        return store


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("localhost:7400", "Write http://localhost:7400"),
        ("localhost", "Write http://localhost"),
        ("http://n1:7400/v1/session", r"Write http://n1:7400\."),
        ("http://n1:7400?x=1", r"Write http://n1:7400\."),
        ("http://me:secret@n1:7400", r"Write http://n1:7400\."),
        ("http://n 1:7400", "is no URL"),
        ("http://n1:7400 http://n2:7400", "is no URL"),
        ("ws://n1:7400", "is no URL"),
        ("http://n1:99999", "is no URL"),
        ("", "no URL of a node was given"),
        ([], "no URL of a node was given"),
        (["http://n1:7400", 7400], "must be text or a list"),
        (7400, "must be text or a list"),
        (None, "must be text or a list"),
        (b"http://n1:7400", "must be text or a list"),
    ],
)
async def test_a_bad_address_is_refused_with_an_example(urls: object, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        await opened(urls)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("make", [list, tuple])
async def test_a_list_of_addresses_is_taken(make: Callable[[list[str]], object], peer: Peer, other_peer: Peer) -> None:
    peer.answer = other_peer.answer = added
    async with shoal.connect(make([peer.url + "/", f" {other_peer.url} ", peer.url])) as store:  # type: ignore[arg-type]
        await store.space("s").counter("c").add(1)


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "30", True])
async def test_a_wait_that_is_no_time_is_refused(wait: object) -> None:
    with pytest.raises(InvalidConfig, match="wait must be"):
        await opened("http://n1:7400", wait=wait)


def test_no_attempt_is_made_whose_answer_would_come_too_late() -> None:
    """Its outcome would be unknown, where each attempt before was refused with nothing written."""

    class Refilling:
        """A link to a node that is filled, and answers within 5 ms."""

        open = True

        async def call(self, _request: object, *, timeout_s: float, **_: object) -> object:
            if timeout_s < 0.005:
                raise OutcomeUnknown("the write may or may not be applied (the node did not answer in time).")
            raise CatchingUp("The node is filled. Nothing was written.", state="refilling")

        async def close(self) -> None:
            pass

    async def asked() -> None:
        first = DELAY_S_FIRST  # Attempts come after 0, 1, 3 and 7 of it, as nothing is drawn that is less.
        config = Config(request_timeout_s=7 * first + 0.002)
        session = RemoteSession("http://a:1", config=config, context=SessionContext(lambda: 0, lambda size: b"\xff" * size))
        session._link, session._reached = Refilling(), True  # type: ignore[assignment]
        with pytest.raises(CatchingUp):
            await session.call(WRITE)

    run(asked())
