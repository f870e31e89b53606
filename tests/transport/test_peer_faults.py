"""What goes wrong on a link between nodes concerns that link alone; its pace, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web

from shoal.cluster import handshake
from shoal.errors import InvalidValue, Unavailable
from shoal.transport.peer_link import PEER_PATH, PeerLink
from shoal.transport.peers import IN_A_ROW_MAX
from tests.transport.dummy_node import CONFIG, DummyNode, Make, dialled, raw, side, soon, until

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
        await until(lambda: b.reported("peer-left") + b.reported("peer-cut-off"))
        assert reported in (b.reported("peer-left") + b.reported("peer-cut-off"))[0]
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
        await until(lambda: b.reported("peer-left"))
    assert b.inbox.empty()


async def test_the_largest_message_allowed_is_delivered(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        running = asyncio.create_task(link.run())
        assert link.offer(b"x" * (1 << 20))
        assert len((await b.next())[1]) == 1 << 20
        running.cancel()


async def test_an_impossible_message_closes_its_link_with_a_reason(make: Make) -> None:
    b = await make(b"b")
    b.error = InvalidValue("it is no message: é" + "x" * 500)
    async with dialled(b) as link:
        reason = await run_with(link, lambda: link.offer(b"?"))
    assert "it is no message" in reason
    assert "1002" in reason
    assert b.reported("peer-cut-off")[0].startswith("it is no message")


async def test_a_bug_in_the_node_closes_one_link_and_is_reported_whole(make: Make) -> None:
    b = await make(b"b")
    bug = ZeroDivisionError("oops")
    b.error = bug
    async with dialled(b) as link:
        reason = await run_with(link, lambda: link.offer(b"?"))
    assert "1011" in reason
    assert "oops" not in reason
    assert [detail["bug"] for _, detail in b.events if detail.get("bug")] == [bug]


async def test_a_link_that_misbehaves_is_dialled_again(make: Make) -> None:
    a, b = await make(b"a", start=False), await make(b"b")
    a.start(b.address)
    b.error = InvalidValue("it is no message.")
    (await a.outlet()).offer(b"?")
    await soon(a.losses.get())
    assert "it is no message" in await a.reason("peer-not-linked", "peer-refuses")
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
    assert "took nothing" in await a.reason("peer-not-linked", "peer-refuses")
    assert held_after[0] == 0
    b.open.set()
    again = await a.outlet()
    while await b.next() != (b"a", b"again"):
        again.offer(b"again")


async def test_the_heads_of_frames_count_too(make: Make) -> None:
    b = await make(b"b")
    async with dialled(b) as link:
        assert link.offer(b"x" * 1000)
        assert not link.offer(b"x" * (CONFIG.peer_send_bytes_max - link.waiting_bytes))


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
    assert "PONG" in await a.reason("peer-not-linked", "peer-refuses")


async def test_a_dialler_without_a_sign_of_life_is_shown_out(make: Make) -> None:
    b = await make(b"b", peer_heartbeat_s=0.3)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{b.address}{PEER_PATH}", autoping=False) as silent:
        meeting = handshake.Dialling(side(), nonce=b"n" * 32)
        await silent.send_bytes(meeting.hello)
        await silent.send_bytes(meeting.welcomed(await soon(silent.receive_bytes())))
        await until(lambda: b.reported("peer-left"))
    assert "PONG" in b.reported("peer-left")[0]


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
    await until(
        lambda: any("the node is stopping (1001)" in reason for reason in a.reported("peer-not-linked", "peer-refuses"))
    )
    await a.stop()
    await a.stop()
    assert asyncio.all_tasks() == before


async def test_the_next_message_is_read_once_the_last_was_taken(make: Make) -> None:
    b, sent = await make(b"b"), [b"one", b"two", b"three"]
    async with dialled(b) as link:
        b.open.clear()
        running = asyncio.create_task(link.run())
        for message in sent:
            link.offer(message)
        await until(lambda: b.taking and not link.waiting_bytes)
        for _ in range(100):  # Turns, in which another one could be read.
            await asyncio.sleep(0)
        b.open.set()
        assert [await b.next() for _ in sent] == [(b"c", message) for message in sent]
        running.cancel()


async def test_a_flood_of_small_messages_leaves_others_their_turns(make: Make) -> None:
    """Thousands of them come in one piece from the socket, and reading the next one is no pause."""
    b, sent = await make(b"b"), 4000
    async with dialled(b) as link:
        running = asyncio.create_task(link.run())
        await asyncio.sleep(0)
        raw(link).write((b"\x82\x81" + bytes(4) + b"x") * sent)
        taken = most = 0
        async with asyncio.timeout(20):
            while taken < sent:
                await asyncio.sleep(0)
                most, taken = max(most, b.inbox.qsize() - taken), b.inbox.qsize()
        assert most <= IN_A_ROW_MAX
        running.cancel()


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
