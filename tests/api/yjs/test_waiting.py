"""WebSockets on which nobody has shown a token are bounded, so that they displace each other and nobody else."""

from __future__ import annotations

import asyncio

import aiohttp

from shoal.api.yjs.socket import Waiting
from tests.api.yjs.conftest import PATIENCE_S, Serve
from tests.api.yjs.test_hocuspocus import ACCEPTED, joined


def test_the_oldest_of_the_address_that_has_most_gives_way() -> None:
    waiting: Waiting[str] = Waiting(most=4)
    for socket, address in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.2"), ("d", "10.0.0.2")):
        assert waiting.add(socket, address) is None
    assert [waiting.add(socket, "10.0.0.2") for socket in "efg"] == ["b", "c", "d"]
    assert waiting.add("h", "10.0.0.3") == "e"
    waiting.discard("a", "10.0.0.1")
    waiting.discard("b", "10.0.0.2")  # It gave way before.
    assert len(waiting) == 3
    assert waiting.add("i", "10.0.0.4") is None
    assert waiting.add("j", "10.0.0.4") is not None


def test_the_addresses_of_one_network_count_as_one() -> None:
    waiting: Waiting[str] = Waiting(most=3)
    waiting.add("other", "10.0.0.1")
    for nth in (1, 2):
        waiting.add(f"flood-{nth}", f"2001:db8::{nth}")
    assert waiting.add("flood-3", "2001:db8::3") == "flood-1"


async def test_a_flood_of_websockets_without_a_document_leaves_those_with_one_and_room_for_others(serve: Serve) -> None:
    served = await serve(yjs_waiting_max=3, yjs_connections_max=8)
    working = await joined(served)
    await working.open(b"d")
    assert await working.hear(b"d", 2) == ACCEPTED
    flood = [await joined(served) for _ in range(20)]
    for displaced in flood[:-3]:
        assert (await displaced.socket.receive(timeout=PATIENCE_S)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    assert not any(provider.socket.closed for provider in flood[-3:])
    await flood[-3].open(b"e")
    assert await flood[-3].hear(b"e", 2) == ACCEPTED
    # Without its document it waits again.
    await working.say(b"d", b"\x07")
    async with asyncio.timeout(PATIENCE_S):
        while len(served.listener._yjs._waiting) < 3:
            await asyncio.sleep(0.01)
    await joined(served)
    assert (await flood[-2].socket.receive(timeout=PATIENCE_S)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    await working.open(b"d")
    assert await working.hear(b"d", 2) == ACCEPTED
