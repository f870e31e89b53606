"""Whole nodes' links over real sockets: who is linked, and who is refused."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import WSCloseCode, web
from aiohttp.test_utils import TestServer

from shoal.cluster import handshake
from shoal.cluster.handshake import HANDSHAKE_BYTES_MAX
from shoal.config import Config
from shoal.errors import Overloaded, PeerRefused
from shoal.testing.machines import run
from shoal.transport import peer_dialler
from shoal.transport.dialling import DialledSocket
from shoal.transport.keyring import Keyring
from shoal.transport.peer_dialler import PeerDialler, dial
from shoal.transport.peer_link import PEER_PATH, LinkContext
from tests.transport.dummy_node import CONFIG, Make, dialled, raw, side, soon, until

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
    await until(lambda: a.reported("peer-not-linked", "peer-refuses"))
    await b.listen()
    b.start()
    assert (await a.outlet()).peer.node == b.node


@pytest.mark.answers("returned-node-waits-to-be-dialled")
async def test_a_peer_that_returns_is_dialled_at_once_when_it_has_made_a_link_itself(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_dialler, "DELAY_S_FIRST", 3600.0)
    a, b = await make(b"a", start=False, reconnect_delay_s_max=3600.0), await make(b"b")
    await b.stop()
    a.start(b.address)
    await until(lambda: a.reported("peer-not-linked", "peer-refuses"))
    await b.listen()
    b.start(a.address)
    assert (await a.outlet()).peer.node == b.node


def test_a_peer_whose_links_do_not_last_is_not_dialled_at_once_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def once(dialler: PeerDialler, address: str, *, failures: int) -> int:
        nonlocal attempts
        attempts += 1
        asyncio.get_running_loop().call_later(0.01, dialler.hurry, address)  # The other side links, and is cut as well.
        return failures + 1

    async def kept_apart() -> None:
        silent = cast(Any, lambda *_, **__: None)
        config = Config(reconnect_delay_s_max=1.0)
        context = LinkContext(
            silent, config, entropy=lambda count: b"\xff" * count, report=silent, warn=silent, keys=lambda: Keyring("")
        )
        dialler = PeerDialler(context, ["b:1"])
        dialler.start()
        await asyncio.sleep(100)
        await dialler.stop()

    monkeypatch.setattr(PeerDialler, "_once", once)
    run(kept_apart())
    assert attempts < 250  # 10,000 if each link of the other side were answered by another.


async def test_the_same_reason_is_reported_once(make: Make) -> None:
    hellos = 0

    async def counted(request: web.Request) -> web.StreamResponse:
        nonlocal hellos
        hellos += 1
        return await b.peers.serve(request)

    a, b = await make(b"a", start=False), await make(b"b", cluster="other")
    b.answer = counted
    a.start(b.address)
    await until(lambda: hellos > 4)
    assert len(a.reported("peer-not-linked", "peer-refuses")) == len(b.reported("peer-refused")) == 1
    assert (a.warned, b.warned) == (["peer-refuses"], ["peer-refused"])


async def test_a_peer_that_is_not_there_is_no_warning(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    await b.stop()
    a.start(b.address)
    await until(lambda: a.reported("peer-not-linked", "peer-refuses"))
    await b.listen()
    assert a.warned == []


@pytest.mark.answers("address-that-leads-back-to-the-node-itself")
async def test_an_address_that_leads_to_the_node_itself_is_told_and_dialled_again(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    address = f"localhost:{a.port}"
    a.start(address, b.address)
    await a.outlet()
    await until(lambda: "leads to this node" in a.peers.reasons.get(address, ""))
    assert f"SHOAL_ADVERTISE={address}" in a.peers.reasons[address]
    assert any("leads to this node" in reason for reason in a.reported("peer-not-linked", "peer-refuses"))
    a.peers.reasons.clear()  # type: ignore[attr-defined]
    await until(lambda: "leads to this node" in a.peers.reasons.get(address, ""))


async def test_a_peer_under_two_addresses_is_linked_once(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    a.start(b.address, f"localhost:{b.port}")
    link = await a.outlet()
    await until(lambda: any("Name it once" in reason for reason in a.peers.reasons.values()))
    await until(lambda: any("Name it once" in reason for reason in b.reported("peer-refused")))
    link.offer(b"still here")
    assert await b.next() == (b"a", b"still here")
    assert a.links.empty()


# ── refusals: a reason on both sides, and nothing delivered ───────────────────


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cluster": "other"}, "cluster"),
        ({"cluster_key": "a secret of other nodes"}, "cluster_key"),
        ({"cluster_key": ""}, "cluster_key"),
    ],
)
async def test_strangers_are_refused_on_both_sides(make: Make, settings: dict[str, str], reason: str) -> None:
    a, b = await make(b"a", start=False, **settings), await make(b"b")
    a.start(b.address)
    await until(lambda: reason in a.peers.reasons[b.address] and b.reported("peer-refused"))
    assert a.peers.reasons[b.address] == b.reported("peer-refused")[0]
    assert a.links.empty()
    assert not b.reported("peer-accepted")


async def test_another_engine_is_refused_on_both_sides(make: Make) -> None:
    b = await make(b"b")
    other = side(engine="99.1.2")
    with pytest.raises(PeerRefused, match="pycrdt") as refused:
        await dial(b.address, side=other, nonce=b"n" * 32, config=CONFIG, admit=lambda peer: None)
    assert refused.value.detail == {"reason": "engine"}
    assert b.reported("peer-refused") == [refused.value.message]


async def test_a_copy_of_a_directory_is_refused_on_both_sides(make: Make) -> None:
    a, copy = await make(b"a", start=False), await make(b"a")
    a.start(copy.address)
    await until(lambda: a.reported("peer-not-linked", "peer-refuses") and copy.reported("peer-refused"))
    assert a.reported("peer-not-linked", "peer-refuses") == copy.reported("peer-refused")[:1]
    assert "copy" in a.peers.reasons[copy.address]


async def test_a_client_not_admitted_is_told_why(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    b.refuse = PeerRefused("another directory has this id. Nothing was written.", reason="clone")
    a.start(b.address)
    await until(lambda: "another directory" in a.peers.reasons[b.address])
    b.refuse = None  # Who was refused is dialled again.
    assert (await a.outlet()).peer.node == b.node


@pytest.mark.answers("only-configured-member-leaves")
async def test_a_node_that_is_refused_is_told_who_refused_it(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    b.refuse = PeerRefused("a is no member. Nothing was written.", reason="member")
    a.start(b.address)
    await until(lambda: a.refusals)
    address, peer = a.refusals[0]
    assert address == b.address
    assert peer is not None
    assert peer.node == b.node


async def test_a_refusal_that_is_not_proven_is_told_and_no_more(make: Make) -> None:
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
    b.answer = None
    assert (await a.outlet()).peer.node == b.node


@pytest.mark.parametrize(
    ("hello", "told"),
    [
        (b"\xc1 no msgpack", "hello"),
        (msgspec.msgpack.encode(("peer-hello", 9)), "version"),
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
    assert b.reported("peer-refused") == [answer[2]]
    assert told in str(end.extra)


async def test_a_message_before_the_proof_is_refused_and_not_delivered(make: Make) -> None:
    b = await make(b"b")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}") as stranger:
        await stranger.send_bytes(handshake.Dialling(side(), nonce=b"n" * 32).hello)
        await stranger.send_bytes(b"let me in")
        await soon(stranger.receive_bytes())
        assert b"peer-refused" in await soon(stranger.receive_bytes())
    assert b.inbox.empty()


async def test_a_silent_connection_is_closed(make: Make) -> None:
    b = await make(b"b", connect_timeout_s=0.05)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}") as stranger:
        assert b"no handshake within" in await soon(stranger.receive_bytes())
    assert b.reported("peer-refused")


@pytest.mark.answers("stranger-occupies-a-node")
async def test_silent_sockets_keep_no_peer_out(make: Make) -> None:
    b = await make(b"b", peer_handshakes_max=2, peer_connect_timeout_s=1000.0, connect_timeout_s=1000.0)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        silent = [await stack.enter_async_context(http.ws_connect(f"http://{b.address}{PEER_PATH}")) for _ in range(6)]
        async with dialled(b) as link:
            assert link.peer.node == b.node
        assert b"others needed its place" in await soon(silent[0].receive_bytes())


@pytest.mark.answers("stranger-occupies-a-node")
async def test_before_the_handshake_a_large_message_is_not_held(make: Make) -> None:
    b = await make(b"b")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}") as stranger:
        await stranger.send_bytes(bytes(HANDSHAKE_BYTES_MAX + 2))
        message = await soon(stranger.receive())
        assert (message.data, message.extra) == (WSCloseCode.MESSAGE_TOO_BIG, "the message is over a handshake's bound")


async def test_a_cut_connection_is_not_taken_for_tls(make: Make) -> None:
    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    a = await make(b"a", start=False)
    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        a.start(address)
        await until(lambda: "the network between the two may be cut" in a.peers.reasons.get(address, ""))
        assert "TLS" not in a.peers.reasons[address]


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
    await until(lambda: b.reported("peer-left"))
    async with dialled(b, b"d") as link:
        assert link.peer.node == b.node


async def test_a_dial_that_is_given_up_within_the_handshake_cuts_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise aiohttp holds it until the loop's next turn, and warns if there is none."""
    heard, cuts, cut = asyncio.Event(), [0], DialledSocket.cut

    def counted(socket: DialledSocket) -> None:
        cuts[0] += 1
        cut(socket)

    monkeypatch.setattr(DialledSocket, "cut", counted)

    async def silent(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        heard.set()
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get(PEER_PATH, silent)
    async with TestServer(app) as server:
        address = f"{server.host}:{server.port}"
        dialling = asyncio.create_task(dial(address, side=side(), nonce=bytes(32), config=CONFIG, admit=lambda peer: None))
        await soon(heard.wait())
        dialling.cancel()
        await asyncio.wait([dialling])
    assert cuts == [1]


# ── laws of the dialler ───────────────────────────────────────────────────────


async def test_addresses_change_while_it_runs(make: Make) -> None:
    a, b, c = await make(b"a", start=False), await make(b"b"), await make(b"c")
    a.start(b.address)
    assert (await a.outlet()).peer.node == b.node
    a.peers.dial([c.address])
    assert (await a.outlet()).peer.node == c.node
    assert (await soon(a.losses.get())).node == b.node
    assert list(a.peers._dialler._tasks) == [c.address]


def test_delays_between_attempts_double_up_to_their_bound() -> None:
    silent = cast(Any, lambda *_, **__: None)
    config = Config(reconnect_delay_s_max=2.0)
    context = LinkContext(silent, config, entropy=lambda count: b"\xff" * count, report=silent, warn=silent, keys=silent)
    dialler = PeerDialler(context, [])
    first = peer_dialler.DELAY_S_FIRST
    assert [dialler._delay_s(failures) for failures in (1, 2, 3, 40)] == [first, 2 * first, 4 * first, 2.0]
    dialler._entropy = bytes
    assert dialler._delay_s(40) == 0.0


async def test_closing_a_link_cuts_its_connection(make: Make) -> None:
    async with dialled(await make(b"b")) as link:
        await link.close(1000, reason="done")
        assert link._socket.connection.is_closing()
        assert link._http.closed
