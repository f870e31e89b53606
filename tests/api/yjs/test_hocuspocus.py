"""The door for Hocuspocus's provider: several documents on one WebSocket, each opened, ended and acknowledged by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pycrdt
import pytest

from shoal.errors import ReadOnly
from shoal.protocol import requests, yjs
from tests.api.yjs.conftest import PATIENCE_S, Serve, Served, text_of
from tests.api.yjs.test_refusals import nested_document
from tests.support.yjs_client import closed

ACCEPTED = yjs.encode_accepted("read-write")
DURABLE = yjs.encode_status(durable=True)


class Provider:
    """Sends and receives what a provider would, by hand."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, address: bytes, message: bytes) -> None:
        await self.socket.send_bytes(yjs.prefix(address) + message)

    async def open(self, address: bytes, token: bytes = b"", version: bytes = b"\x054.8.0") -> None:
        await self.say(address, b"\x02\x00" + yjs.sized(token) + version)

    async def hear(self, address: bytes, *kinds: int) -> bytes:
        """The next message with an address and a kind."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                start = yjs.prefix(address)
                if message.data.startswith(start) and message.data[len(start)] in kinds:
                    return bytes(message.data[len(start) :])

    async def closed(self) -> tuple[int | None, str]:
        return await closed(self.socket)


async def joined(served: Served) -> Provider:
    return Provider(await served.connect("/v1/hocuspocus/crew"))


def update(text: str, root: str = "t") -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    doc.get(root, type=pycrdt.Text).insert(0, text)
    return yjs.encode_update(doc.get_update())


async def test_documents_share_a_websocket_and_meet_y_websocket_clients(served: Served) -> None:
    provider = await joined(served)
    for address in (b"d", b"e", b"d\x00other"):
        await provider.open(address)
        assert await provider.hear(address, 2) == ACCEPTED
        await provider.say(address, yjs.encode_step_1(b"\x00"))
    async with served.client("d") as one:
        await provider.say(b"d", update("from d"))
        await one.until(lambda: str(text_of(one)) == "from d")
        while b"from d" not in await provider.hear(b"d\x00other", 0):
            pass
        await provider.say(b"e", update("from e"))
    await provider.hear(b"e", 8)
    assert (await served.json("d"), await served.json("e")) == ({"t": "from d"}, {"t": "from e"})


async def test_an_update_is_synchronised_once_it_is_durable_and_an_answer_once_for_each_step_1(served: Served) -> None:
    provider = await joined(served)
    await provider.open(b"d")
    await provider.say(b"d", yjs.encode_step_1(b"\x00"))
    assert await provider.hear(b"d", 0, 8) == yjs.encode_step_2(b"\x00\x00")
    assert await provider.hear(b"d", 0, 8) == yjs.encode_step_1(b"\x00")
    await provider.say(b"d", yjs.encode_step_2(b"\x00\x00"))
    assert await provider.hear(b"d", 8) == DURABLE
    await provider.say(b"d", yjs.encode_step_2(b"\x00\x00"))  # Nobody counts it.
    await provider.say(b"d", update("x"))
    await provider.say(b"d", b"\x03")
    assert await provider.hear(b"d", 8) == DURABLE
    assert await served.json() == {"t": "x"}
    await provider.socket.close()


@pytest.mark.parametrize(
    ("address", "reason"), [(b"", "name"), (b"\xff", "UTF-8"), (b"x" * 1025, "1024"), (b"\x00provider", "name")]
)
async def test_a_document_that_cannot_be_opened_is_denied_and_others_go_on(served: Served, address: bytes, reason: str) -> None:
    provider = await joined(served)
    await provider.open(address)
    assert reason in (await provider.hear(address, 2)).decode(errors="replace")
    await provider.open(b"d")
    assert await provider.hear(b"d", 2) == ACCEPTED


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x00\x02\x05ab", "ends too early"),
        (yjs.encode_update(nested_document()), "sub-documents"),
        (b"\x01" + yjs.sized(b"\x01\x07\x01" + yjs.sized(b"{no json")), "JSON"),
    ],
)
async def test_a_fault_of_one_document_ends_it_alone(served: Served, message: bytes, reason: str) -> None:
    provider = await joined(served)
    for address in (b"d", b"e"):
        await provider.open(address)
        await provider.hear(address, 2)
    await provider.say(b"d", message)
    assert reason in (await provider.hear(b"d", 7)).decode()
    await provider.say(b"d", update("not open"))
    await provider.say(b"e", update("goes on"))
    assert await provider.hear(b"e", 8) == DURABLE
    # It can be opened again.
    await provider.open(b"d")
    assert await provider.hear(b"d", 2) == ACCEPTED
    await provider.say(b"d", update("again"))
    assert await provider.hear(b"d", 8) == DURABLE
    assert await served.json("d") == {"t": "again"}


async def test_a_provider_without_a_token_opens_by_its_step_1(served: Served) -> None:
    provider = await joined(served)
    await provider.say(b"d", yjs.encode_step_1(b"\x00"))
    assert await provider.hear(b"d", 2) == ACCEPTED
    assert await provider.hear(b"d", 0) == yjs.encode_step_2(b"\x00\x00")
    await provider.say(b"d", update("without"))
    assert await provider.hear(b"d", 8) == DURABLE
    assert await served.json("d") == {"t": "without"}


async def test_a_step_1_opens_nothing_that_was_refused(served: Served) -> None:
    provider = await joined(served)
    for token in (True, False):
        await (provider.open(b"\xff") if token else provider.say(b"\xfe", yjs.encode_step_1(b"\x00")))
        address = b"\xff" if token else b"\xfe"
        assert "UTF-8" in (await provider.hear(address, 2)).decode()
        await provider.say(address, yjs.encode_step_1(b"\x00"))
    await provider.open(b"d")
    heard = await provider.socket.receive_bytes(timeout=PATIENCE_S)
    assert heard == yjs.prefix(b"d") + ACCEPTED, "nothing was said before"


async def test_an_older_provider_is_told_of_the_end_as_it_understands(served: Served) -> None:
    provider = await joined(served)
    await provider.open(b"d", b"token", b"")
    await provider.hear(b"d", 2)
    await provider.say(b"d", b"\x00\x02\x05ab")
    denied = await provider.hear(b"d", 2, 7)
    assert denied.startswith(b"\x02\x01")
    assert b"ends too early" in denied


async def test_ended_claims_are_remembered_within_a_bound(served: Served) -> None:
    provider = await joined(served)
    for number in range(400):
        await provider.open(b"\xff%d" % number)
        await provider.hear(b"\xff%d" % number, 2)
    await provider.say(b"\xff0", yjs.encode_step_1(b"\x00"))  # Forgotten, so it is refused once more.
    assert "UTF-8" in (await provider.hear(b"\xff0", 2)).decode()


async def test_a_document_that_is_left_says_nothing_more_and_its_presence_ends(served: Served) -> None:
    provider = await joined(served)
    for address in (b"d", b"e"):
        await provider.open(address)
        await provider.hear(address, 2)
        await provider.say(address, yjs.encode_step_1(b"\x00"))
    await provider.say(b"d", yjs.encode_awareness([requests.Present(7, 1, b'{"user":"ada"}')]))
    async with served.client("d") as one:
        await one.until(lambda: any(isinstance(said, yjs.Awareness) and said.entries[0].client == 7 for said in one.heard))
        await provider.say(b"d", b"\x07")
        await one.until(lambda: any(isinstance(said, yjs.Awareness) and said.entries[0].state == b"null" for said in one.heard))
        text_of(one).insert(0, "unheard")
        await one.until(lambda: one.updates > 1)
    async with served.client("e") as other:
        text_of(other).insert(0, "heard")
        message = b""
        async with asyncio.timeout(PATIENCE_S):
            while b"heard" not in message:
                message = (await provider.socket.receive()).data
    assert message.startswith(yjs.prefix(b"e"))


@pytest.mark.parametrize(("message", "code"), [(b"\x04pla", 4400), ("hello", 1003)])
async def test_a_message_without_an_address_closes_the_websocket(served: Served, message: bytes | str, code: int) -> None:
    provider = await joined(served)
    await (provider.socket.send_str(message) if isinstance(message, str) else provider.socket.send_bytes(message))
    assert (await provider.closed())[0] == code


async def test_a_node_that_cannot_write_now_closes_the_websocket_so_that_the_provider_comes_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ReadOnly("Storage failed and refuses writes. Nothing was written.")

    provider = await joined(served)
    await provider.open(b"d")
    await provider.hear(b"d", 2)
    monkeypatch.setattr(served.bench.node.service._commit, "write", refuse)
    await provider.say(b"d", update("x"))
    code, reason = await provider.closed()
    assert code == 1013
    assert "refuses writes" in reason


async def test_a_stop_closes_websockets_with_and_without_documents(served: Served) -> None:
    providers = [await joined(served), await joined(served)]
    await providers[0].open(b"d")
    await providers[0].hear(b"d", 2)
    closed = await asyncio.gather(*(provider.closed() for provider in providers), served.listener.stop())
    assert closed[:2] == [(1001, "the node is stopping")] * 2


async def test_websockets_and_documents_count_against_the_bound(serve: Serve) -> None:
    served = await serve(yjs_connections_max=2)
    provider = await joined(served)
    await provider.open(b"d")
    assert await provider.hear(b"d", 2) == ACCEPTED
    await provider.open(b"e")
    assert b"maximum" in await provider.hear(b"e", 2)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await joined(served)
    assert refused.value.status == 429


async def test_a_websocket_without_a_document_is_closed_and_one_with_a_document_is_kept_awake(serve: Serve) -> None:
    served = await serve(heartbeat_s=0.2)
    provider = await joined(served)
    assert await provider.closed() == (4408, "no document is open")
    provider = await joined(served)
    await provider.open(b"d")
    for _ in range(3):
        assert await provider.hear(b"d", 1) == yjs.encode_awareness([])


@pytest.mark.parametrize("path", ["/v1/hocuspocus/%FF", "/v1/hocuspocus/x%00"])
async def test_a_space_that_has_no_name_is_refused_before_the_upgrade(served: Served, path: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await served.http.ws_connect(served.listener.url + path)
    assert refused.value.status == 400


async def heard_until_opened(provider: Provider, address: bytes) -> list[bytes]:
    """All that was said until another document is open."""
    await provider.open(address)
    heard: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while not (heard and heard[-1].startswith(yjs.prefix(address))):
            heard.append((await provider.socket.receive()).data)
    return heard[:-1]


async def test_nothing_is_said_of_an_update_once_its_document_was_left_and_opened_again(served: Served) -> None:
    provider = await joined(served)
    await provider.open(b"d")
    await provider.hear(b"d", 2)
    served.bench.simulated.hold_syncs()
    await provider.say(b"d", update("x"))
    while not served.bench.node.writes_pending:
        await asyncio.sleep(0)
    await provider.say(b"d", b"\x07")
    await provider.open(b"d")
    assert await provider.hear(b"d", 2) == ACCEPTED
    served.bench.simulated.release_syncs()
    async with asyncio.timeout(PATIENCE_S):
        while served.listener._yjs._rooms["crew", "d"].users > 1:  # It left once its update was written.
            await asyncio.sleep(0)
    assert await served.json() == {"t": "x"}
    # The provider would take it for its answer to the node's step 1.
    assert await heard_until_opened(provider, b"e") == []


async def test_after_a_step_1_only_the_answer_that_brings_everything_is_said_to_be_durable(served: Served) -> None:
    provider = await joined(served)
    await provider.open(b"d")
    await provider.hear(b"d", 2)
    [room] = served.listener._yjs._rooms.values()
    served.bench.simulated.hold_syncs()
    await provider.say(b"d", update("x"))
    while not served.bench.node.writes_pending:
        await asyncio.sleep(0)
    await provider.say(b"d", update("y"))
    while not room._received:
        await asyncio.sleep(0)
    # With it, the provider's count becomes one: two acknowledgements would say that all is durable too early.
    await provider.say(b"d", yjs.encode_step_1(b"\x00"))
    [connection] = served.listener._yjs._open
    while connection._work is None:
        await asyncio.sleep(0)
    served.bench.simulated.release_syncs()
    for expected in (1, 0):
        assert (await provider.hear(b"d", 0, 8))[:2] == bytes((0, expected))
    await provider.say(b"d", yjs.encode_step_2(b"\x00\x00"))
    told = await heard_until_opened(provider, b"e")
    assert told.count(yjs.prefix(b"d") + DURABLE) == 1
