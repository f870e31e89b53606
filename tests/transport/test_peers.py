"""Whole nodes' links over real sockets; the nodes themselves are dummies that note what happens."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import TypeVar

import aiohttp
import msgspec
import pytest
from aiohttp import web

from shoal.cluster import handshake
from shoal.cluster.handshake import Side
from shoal.cluster.peering import Identity, Outlet
from shoal.config import Config
from shoal.errors import InvalidValue, Overloaded, PeerRefused, ShoalError, Unavailable
from shoal.transport.peer import PEER_PATH
from shoal.transport.peer_dial import dial
from shoal.transport.peer_link import PeerLink
from shoal.transport.peers import Peers

CONFIG = Config(
    cluster_key="secret",
    reconnect_delay_s_max=0.02,
    connect_timeout_s=20.0,
    peer_connect_timeout_s=20.0,
    peer_message_bytes_max=1 << 20,
    peer_send_bytes_max=1 << 16,
)

ENGINE = version("pycrdt")

_Result = TypeVar("_Result")


async def soon(what: Awaitable[_Result]) -> _Result:
    """Whatever a test waits for happens in milliseconds, or it has failed."""
    return await asyncio.wait_for(what, 20)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


class DummyNode:
    """A `Peer` with a listener and links; it notes what it is told."""

    def __init__(self, node: bytes, config: Config) -> None:
        self.node = node.ljust(16, b".")
        self.config = config
        self.port = 0
        self.links: asyncio.Queue[tuple[Identity, Outlet]] = asyncio.Queue()
        self.losses: asyncio.Queue[Identity] = asyncio.Queue()
        self.inbox: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()  # Sender, message.
        self.refuse: ShoalError | None = None
        self.error: Exception | None = None  # Raised by what is received next.
        self.open = asyncio.Event()  # While it is not set, messages are being taken.
        self.open.set()
        self.taking = 0
        self.events: list[tuple[str, dict[str, object]]] = []
        self.on_report: Callable[[], None] = lambda: None
        self.itself: list[str] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None  # In the place of its door's.

    # ── a Peer ────────────────────────────────────────────────────────────────

    def identity(self) -> Identity:
        return Identity(self.node, self.address, "test")

    def admit(self, peer: Identity, /) -> None:
        if self.refuse is not None:
            raise self.refuse

    def linked(self, peer: Identity, outlet: Outlet, /) -> None:
        self.links.put_nowait((peer, outlet))

    def unlinked(self, peer: Identity, outlet: Outlet, /) -> None:
        self.losses.put_nowait(peer)

    async def received(self, peer: Identity, message: bytes, /) -> None:
        self.taking += 1
        assert self.taking == 1, "two messages at once"
        await self.open.wait()
        self.taking -= 1
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.inbox.put_nowait((peer.node.rstrip(b"."), message))

    # ── a process ─────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def listen(self) -> None:
        app = web.Application(middlewares=[_problems])
        app.router.add_get(PEER_PATH, self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    def start(self, *addresses: str) -> None:
        self.peers = Peers(
            self, addresses=addresses, config=self.config, entropy=os.urandom, report=self._note, on_self=self.itself.append
        )
        self.peers.start()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return await (self.answer or self.peers.serve)(request)

    def _note(self, event: str, /, **detail: object) -> None:
        self.on_report()
        self.events.append((event, detail))

    def reported(self, event: str) -> list[str]:
        return [str(detail.get("reason")) for name, detail in self.events if name == event]

    async def stop(self) -> None:
        await self.peers.stop()
        await self._runner.cleanup()

    # ── what a test does ──────────────────────────────────────────────────────

    async def outlet(self) -> PeerLink:
        _, outlet = await soon(self.links.get())
        assert isinstance(outlet, PeerLink)
        return outlet

    async def next(self) -> tuple[bytes, bytes]:
        return await soon(self.inbox.get())


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ShoalError as error:
        return web.Response(status=error.status)


Make = Callable[..., Awaitable[DummyNode]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Listening nodes, started unless `start` is False; other arguments are settings."""
    async with AsyncExitStack() as stack:

        async def node(name: bytes, *, start: bool = True, **settings: object) -> DummyNode:
            made = DummyNode(name, msgspec.structs.replace(CONFIG, **settings))
            await made.listen()
            stack.push_async_callback(made.stop)
            if start:
                made.start()
            return made

        yield node


def side(name: bytes = b"c", *, opening: bytes = b"o" * 16, engine: str = ENGINE) -> Side:
    return Side(Identity(name.ljust(16, b"."), f"{name.decode()}:1", "test"), opening, "shoal", b"secret", engine)


@asynccontextmanager
async def dialled(node: DummyNode, name: bytes = b"c") -> AsyncIterator[PeerLink]:
    """A link that the test itself dials, and may misuse."""
    link = await dial(node.address, side=side(name), nonce=os.urandom(32), config=CONFIG, admit=lambda peer, opening: None)
    assert link is not None
    yield link
    await link.close(1000, reason="")


def raw(link: PeerLink) -> asyncio.Transport:
    return link._socket.connection


# ── what works ────────────────────────────────────────────────────────────────


async def test_two_nodes_send_each_other_messages_whole_and_in_order(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b", start=False)
    a.start(b.address)
    b.start(a.address)
    to_b, to_a = await a.outlet(), await b.outlet()
    sent = [bytes([n % 256]) * n for n in range(300)]
    for message in sent:
        assert to_b.offer(message)
        assert to_a.offer(message)
    assert [await b.next() for _ in sent] == [(b"a", message) for message in sent]
    assert [await a.next() for _ in sent] == [(b"b", message) for message in sent]
    assert (to_b.address, to_b.peer.node) == (b.address, b.node)
    assert not a.peers.reasons


async def test_small_messages_do_not_wait_for_company(make: Make) -> None:
    async with dialled(await make(b"b")) as link:
        assert raw(link).get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_peer_that_dies_and_returns_is_linked_again(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    a.start(b.address)
    await a.outlet()
    await b.stop()
    assert (await soon(a.losses.get())).node == b.node
    await until(lambda: "cannot be reached" in a.peers.reasons.get(b.address, ""))
    await b.listen()
    b.start()
    (await a.outlet()).offer(b"again")
    assert await b.next() == (b"a", b"again")
    assert not a.peers.reasons


async def test_a_peer_that_is_not_there_yet_is_dialled_until_it_is(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    await b.stop()
    a.start(b.address)
    await until(lambda: a.reported("peer not linked"))
    await b.listen()
    b.start()
    assert (await a.outlet()).peer.node == b.node


async def test_the_same_reason_is_reported_once(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b", cluster="other")
    a.start(b.address)
    await until(lambda: len(b.reported("peer refused")) > 3)
    assert len(a.reported("peer not linked")) == 1


async def test_an_address_that_is_the_node_itself_is_told_and_left_alone(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    a.start(f"localhost:{a.port}", b.address)
    await a.outlet()
    await until(lambda: a.itself)
    assert a.itself == [f"localhost:{a.port}"]
    assert not a.peers.reasons
    assert not a.reported("peer refused")


async def test_a_peer_under_two_addresses_is_linked_once(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    a.start(b.address, f"localhost:{b.port}")
    link = await a.outlet()
    await until(lambda: any("Name it once" in reason for reason in a.peers.reasons.values()))
    await until(lambda: any("Name it once" in reason for reason in b.reported("peer refused")))
    link.offer(b"still here")
    assert await b.next() == (b"a", b"still here")
    assert a.links.empty()


# ── refusals: a reason on both sides, and nothing delivered ───────────────────


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"cluster": "other"}, "cluster"), ({"cluster_key": "wrong"}, "cluster_key"), ({"cluster_key": ""}, "cluster_key")],
)
async def test_who_does_not_belong_is_refused_on_both_sides(make: Make, settings: dict[str, str], reason: str) -> None:
    a, b = await make(b"a", start=False, **settings), await make(b"b")
    a.start(b.address)
    await until(lambda: reason in a.peers.reasons[b.address] and b.reported("peer refused"))
    assert a.peers.reasons[b.address] == b.reported("peer refused")[0]
    assert a.links.empty()
    assert not b.reported("peer accepted")


async def test_another_engine_is_refused_on_both_sides(make: Make) -> None:
    b = await make(b"b")
    other = side(engine="99.1.2")
    with pytest.raises(PeerRefused, match="pycrdt") as refused:
        await dial(b.address, side=other, nonce=b"n" * 32, config=CONFIG, admit=lambda peer, opening: None)
    assert refused.value.detail == {"reason": "engine"}
    assert b.reported("peer refused") == [refused.value.message]


async def test_a_copy_of_a_directory_is_refused_on_both_sides(make: Make) -> None:
    a, copy = await make(b"a", start=False), await make(b"a")
    a.start(copy.address)
    await until(lambda: a.reported("peer not linked") and copy.reported("peer refused"))
    assert a.reported("peer not linked") == copy.reported("peer refused")[:1]
    assert "copy" in a.peers.reasons[copy.address]
    assert not a.itself


async def test_whom_the_node_does_not_admit_is_told_why(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    b.refuse = PeerRefused("another directory has this id. Nothing was written.", reason="clone")
    a.start(b.address)
    await until(lambda: "another directory" in a.peers.reasons[b.address])
    b.refuse = None  # Who was refused is dialled again.
    assert (await a.outlet()).peer.node == b.node


async def test_a_refusal_that_claims_to_be_the_node_itself_is_not_believed(make: Make) -> None:
    async def forge(request: web.Request) -> web.StreamResponse:
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        await answer.receive_bytes()
        await answer.send_bytes(handshake.refusal(PeerRefused("it is you", reason="self")))
        return answer

    a, b = await make(b"a", start=False), await make(b"b")
    b.answer = forge
    a.start(b.address)
    await until(lambda: "it is you" in a.peers.reasons[b.address])
    assert not a.itself


@pytest.mark.parametrize(
    ("hello", "told"),
    [
        (b"\xc1 no msgpack", "hello"),
        (msgspec.msgpack.encode(("peer-hello", 9)), "version"),
        (b"x" * 5000, "5000 bytes"),
        (b"", "hello"),
        ("text", "text"),
    ],
)
async def test_a_first_message_that_is_no_hello_is_refused_with_a_reason(make: Make, hello: bytes | str, told: str) -> None:
    b = await make(b"b")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}") as stranger:
        await (stranger.send_str(hello) if isinstance(hello, str) else stranger.send_bytes(hello))
        answer = msgspec.msgpack.decode(await soon(stranger.receive_bytes()))
        end = await soon(stranger.receive())
    assert answer[0] == "peer-refused"
    assert told in answer[2]
    assert b.reported("peer refused") == [answer[2]]
    assert told in str(end.extra)


async def test_a_message_before_the_proof_is_refused_and_not_delivered(make: Make) -> None:
    b = await make(b"b")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}") as stranger:
        await stranger.send_bytes(handshake.Dialling(side(), nonce=b"n" * 32).hello)
        await stranger.send_bytes(b"let me in")
        await soon(stranger.receive_bytes())
        assert b"peer-refused" in await soon(stranger.receive_bytes())
    assert b.inbox.empty()


async def test_who_says_nothing_is_shown_out(make: Make) -> None:
    b = await make(b"b", connect_timeout_s=0.05)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}") as stranger:
        assert b"no handshake within" in await soon(stranger.receive_bytes())
    assert b.reported("peer refused")


async def test_a_listener_that_never_answers_is_given_up(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        a = await make(b"a", start=False, peer_connect_timeout_s=0.05)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        a.start(address)
        await until(lambda: "did not answer within" in a.peers.reasons[address])


async def test_links_past_the_bound_are_refused_until_there_is_room(make: Make) -> None:
    b = await make(b"b", peer_links_max=1)
    async with dialled(b):
        with pytest.raises(Overloaded):
            async with dialled(b, b"d"):
                pass
    await until(lambda: b.reported("peer left"))
    async with dialled(b, b"d") as link:
        assert link.peer.node == b.node


# ── what goes wrong on a link concerns that link alone ────────────────────────


async def run_with(link: PeerLink, misuse: Callable[[], object]) -> str:
    running = asyncio.create_task(link.run())
    await asyncio.sleep(0)
    misuse()
    return await soon(running)


def frame(opcode: int, payload: bytes, *, bytes_said: int | None = None) -> bytes:
    size = len(payload) if bytes_said is None else bytes_said
    return bytes([0x80 | opcode, 0x80 | 127]) + size.to_bytes(8, "big") + bytes(4) + payload


@pytest.mark.parametrize(
    ("sent", "told", "reported"),
    [
        (frame(1, b"text"), "text", "text"),
        (frame(2, b"x" * ((1 << 20) + 1)), "peer_message_bytes_max", "exceeds limit"),
        (frame(11, b"x"), "1002", "opcode"),
        (b"\xff" * 64, "1002", "reserved"),
        (b"GET / HTTP/1.1\r\n\r\n", "1002", ""),
    ],
)
async def test_bad_frames_close_their_link_with_a_reason_and_no_other(
    make: Make, sent: bytes, told: str, reported: str
) -> None:
    b = await make(b"b")
    async with dialled(b, b"good") as good, dialled(b, b"bad") as bad:
        running = asyncio.create_task(good.run())
        good.offer(b"before")
        assert await b.next() == (b"good", b"before")
        assert told in await run_with(bad, lambda: raw(bad).write(sent))
        await until(lambda: b.reported("peer left") + b.reported("peer cut off"))
        assert reported in (b.reported("peer left") + b.reported("peer cut off"))[0]
        good.offer(b"after")
        assert await b.next() == (b"good", b"after")
        assert not running.done()
        running.cancel()
    assert b.inbox.empty()


async def test_a_frame_cut_short_is_not_delivered(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        raw(link).write(frame(2, b"half of it", bytes_said=20))
        raw(link).close()
        await until(lambda: b.reported("peer left"))
    assert b.inbox.empty()


async def test_the_largest_message_allowed_is_delivered(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        running = asyncio.create_task(link.run())
        assert link.offer(b"x" * (1 << 20))
        assert len((await b.next())[1]) == 1 << 20
        running.cancel()


async def test_what_the_node_cannot_take_closes_the_link_with_its_reason(make: Make) -> None:
    b = await make(b"b")
    b.error = InvalidValue("it is no message: é" + "x" * 500)
    async with dialled(b) as link:
        reason = await run_with(link, lambda: link.offer(b"?"))
    assert "it is no message" in reason
    assert "1002" in reason
    assert b.reported("peer cut off")[0].startswith("it is no message")


async def test_a_bug_in_the_node_closes_one_link_and_is_reported_whole(make: Make) -> None:
    b = await make(b"b")
    bug = ZeroDivisionError("oops")
    b.error = bug
    async with dialled(b) as link:
        reason = await run_with(link, lambda: link.offer(b"?"))
    assert "1011" in reason
    assert "oops" not in reason
    assert [detail["exc_info"] for _, detail in b.events if "exc_info" in detail] == [bug]


async def test_a_link_that_misbehaves_is_dialled_again(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    a.start(b.address)
    b.error = InvalidValue("it is no message.")
    (await a.outlet()).offer(b"?")
    await soon(a.losses.get())
    assert "it is no message" in a.reported("peer not linked")[0]
    (await a.outlet()).offer(b"!")
    assert await b.next() == (b"a", b"!")


async def test_an_acceptor_that_speaks_is_not_listened_to(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        [accepted] = b.peers._door._links
        reason = await run_with(link, lambda: asyncio.ensure_future(accepted.socket.send_bytes(b"listen!")))
    assert "did not dial" in reason


# ── pace ──────────────────────────────────────────────────────────────────────


async def test_a_newer_link_takes_the_olders_place_once_its_last_message_was_taken(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as old, dialled(b, b"other"):
        b.open.clear()
        running = asyncio.create_task(old.run())
        old.offer(b"old")
        await until(lambda: b.taking)
        async with dialled(b) as new:
            newer = asyncio.create_task(new.run())
            new.offer(b"new")
            assert "a newer link" in await soon(running)
            b.open.set()
            assert [await b.next(), await b.next()] == [(b"c", b"old"), (b"c", b"new")]
            newer.cancel()


async def test_a_peer_that_takes_nothing_holds_no_more_than_its_bound_and_is_cut_off(make: Make) -> None:
    a, b = await make(b"a", start=False, peer_heartbeat_s=0.4), await make(b"b", peer_heartbeat_s=1.0)
    a.start(b.address)
    outlet = await a.outlet()
    b.open.clear()
    full = False
    while not full:
        full = not outlet.offer(b"x" * 1000)
        # As the garbage collector would count, not as the link does.
        assert sum(map(len, outlet._queue)) + raw(outlet).get_write_buffer_size() <= CONFIG.peer_send_bytes_max
        await asyncio.sleep(0)
    held_after: list[int] = []
    a.on_report = lambda: held_after.append(outlet.waiting_bytes + raw(outlet).get_write_buffer_size())
    await soon(a.losses.get())
    await until(lambda: held_after)
    assert "took nothing" in a.reported("peer not linked")[0]
    assert held_after[0] == 0
    b.open.set()
    again = await a.outlet()
    while await b.next() != (b"a", b"again"):
        again.offer(b"again")


async def test_one_message_alone_is_taken_whatever_its_size(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        assert link.offer(b"x" * (CONFIG.peer_send_bytes_max + 1))
        assert not link.offer(b"")
        assert link.waiting_bytes == CONFIG.peer_send_bytes_max + 1


async def test_a_node_that_takes_its_time_is_not_taken_for_a_dead_one(make: Make) -> None:
    a, b = await make(b"a", start=False, peer_heartbeat_s=0.4), await make(b"b", peer_heartbeat_s=0.4)
    a.start(b.address)
    b.open.clear()
    (await a.outlet()).offer(b"slow")
    await asyncio.sleep(1.0)  # More than two heartbeats and a pong's time.
    b.open.set()
    assert await b.next() == (b"a", b"slow")
    assert a.losses.empty()


async def test_a_peer_without_a_sign_of_life_is_given_up(make: Make) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        silent = web.WebSocketResponse(autoping=False)
        meeting = handshake.Accepting(side(b"s"), nonce=b"n" * 32)
        await silent.prepare(request)
        await silent.send_bytes(meeting.greeted(await silent.receive_bytes()))
        meeting.proven(await silent.receive_bytes())
        await silent.send_bytes(handshake.ACCEPTED)
        while (await silent.receive()).type is aiohttp.WSMsgType.PING:
            pass
        return silent

    a, b = await make(b"a", start=False, peer_heartbeat_s=0.1), await make(b"b")
    b.answer = serve
    a.start(b.address)
    await a.outlet()
    await soon(a.losses.get())
    assert "PONG" in a.reported("peer not linked")[0]


async def test_a_dialler_without_a_sign_of_life_is_shown_out(make: Make) -> None:
    b = await make(b"b", peer_heartbeat_s=0.05)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}", autoping=False) as silent:
        meeting = handshake.Dialling(side(), nonce=b"n" * 32)
        await silent.send_bytes(meeting.hello)
        await silent.send_bytes(meeting.welcomed(await soon(silent.receive_bytes())))
        await until(lambda: b.reported("peer left"))
    assert "PONG" in b.reported("peer left")[0]


async def test_where_sending_fails_the_peers_own_reason_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(message: bytes) -> None:
        failed.set()
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    b, failed = await make(b"b"), asyncio.Event()
    async with dialled(b) as link:
        monkeypatch.setattr(link._socket, "send_bytes", fail)
        running = asyncio.create_task(link.run())
        link.offer(b"?")
        await soon(failed.wait())
        await b.peers.stop()
        assert "the node is stopping" in await soon(running)


# ── the end ───────────────────────────────────────────────────────────────────


async def test_stopping_says_so_and_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    a, b = DummyNode(b"a", CONFIG), DummyNode(b"b", CONFIG)
    for node in (a, b):
        await node.listen()
    a.start(b.address, "127.0.0.1:1", f"localhost:{b.port}")
    b.start(a.address)
    await a.outlet()
    await b.outlet()
    await b.stop()
    await soon(a.losses.get())
    assert any("the node is stopping (1001)" in reason for reason in a.reported("peer not linked"))
    await a.stop()
    await a.stop()
    assert asyncio.all_tasks() == before


async def test_stopping_does_not_wait_for_a_message_that_is_being_taken(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        b.open.clear()
        running = asyncio.create_task(link.run())
        link.offer(b"slow")
        await until(lambda: b.taking)
        await soon(b.peers.stop())
        assert "stopping" in await soon(running)
        with pytest.raises(Unavailable):
            async with dialled(b):
                pass
        b.open.set()
