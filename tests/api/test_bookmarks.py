"""A client's bookmark at the two doors: an HTTP header, and frames of the session protocol."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import BookmarkLost, SessionBehind, ShoalError
from shoal.protocol.bookmark import Bookmark, Sight
from shoal.protocol.frames import (
    PROTOCOL,
    Hello,
    ReplyFrame,
    decode_node_frames,
    encode_call,
    encode_hello,
    encode_observe,
    encode_subscribe,
    messages,
)
from shoal.protocol.requests import ReadCounter, Watch

Served = Any  # Of conftest.py.

COUNTER = "/v1/spaces/s/counters/c"
A, B = Origin(b"a" * 16), Origin(b"b" * 16)
SEEN = VersionVector({A: 3})


def bookmark(*partitions: int) -> Bookmark:
    made = Bookmark()
    for partition in partitions:
        made.note(partition, SEEN)
    return made


# ── HTTP ──────────────────────────────────────────────────────────────────────


async def answer(http: aiohttp.ClientSession, url: str, *, method: str = "GET", **options: Any) -> Any:
    async with http.request(method, url, **options) as response:
        await response.read()
        return response


async def test_an_answer_names_what_the_request_named_and_was_shown(http: aiohttp.ClientSession, served: Served) -> None:
    served.session.shows = [(5, VersionVector({B: 1}))]
    named = {"Shoal-Bookmark": bookmark(5, 6).text()}
    for method, body in (("GET", None), ("POST", {"add": 1})):
        told = await answer(http, served.url + COUNTER, method=method, json=body, headers=named)
        found = Bookmark.parse(told.headers["Shoal-Bookmark"])
        assert dict(found) == {5: VersionVector({A: 3, B: 1}), 6: SEEN}
        assert "Shoal-Bookmark-Left-Out" not in told.headers


async def test_each_request_is_a_session_of_its_own(http: aiohttp.ClientSession, served: Served) -> None:
    served.session.shows = [(5, SEEN)]
    await answer(http, served.url + COUNTER)
    served.session.shows = []
    told = await answer(http, served.url + COUNTER)
    assert len(Bookmark.parse(told.headers["Shoal-Bookmark"])) == 0


async def test_several_headers_are_joined(http: aiohttp.ClientSession, served: Served) -> None:
    headers = [("Shoal-Bookmark", bookmark(5).text()), ("Shoal-Bookmark", bookmark(6).text())]
    told = await answer(http, served.url + COUNTER, headers=headers)
    assert Bookmark.parse(told.headers["Shoal-Bookmark"]) == bookmark(5, 6)


async def test_bookmarks_on_one_line_are_joined(http: aiohttp.ClientSession, served: Served) -> None:
    line = f"{bookmark(5).text()}, {bookmark(6).text()},{bookmark(7).text()}"
    told = await answer(http, served.url + COUNTER, headers={"Shoal-Bookmark": line})
    assert Bookmark.parse(told.headers["Shoal-Bookmark"]) == bookmark(5, 6, 7)


@pytest.mark.parametrize("text", ["garbage!", "é", "AAAA", "AQ, AAAA"])
async def test_a_header_that_is_no_bookmark_is_refused_before_anything_is_asked(
    http: aiohttp.ClientSession, served: Served, text: str
) -> None:
    told = await answer(http, served.url + COUNTER, method="POST", json={"add": 1}, headers={"Shoal-Bookmark": text})
    assert told.status == 400
    assert served.session.asked == []


@pytest.mark.parametrize("error", [SessionBehind("behind"), BookmarkLost("lost")])
async def test_a_refusal_gives_the_bookmark_back(http: aiohttp.ClientSession, served: Served, error: ShoalError) -> None:
    served.session.failure = error
    text = bookmark(5).text()
    told = await answer(http, served.url + COUNTER, headers={"Shoal-Bookmark": text})
    assert (told.status, told.headers["Shoal-Bookmark"]) == (error.status, text)


async def test_bookmarks_too_long_for_the_header_are_counted(http: aiohttp.ClientSession, serve: Any) -> None:
    served = await serve(bookmark_header_bytes_max=200)
    served.session.shows = [(99, SEEN)]
    named = bookmark(*range(100))
    told = await answer(http, served.url + COUNTER, headers={"Shoal-Bookmark": named.text()})
    found = Bookmark.parse(told.headers["Shoal-Bookmark"])
    assert found.vector(99) == SEEN
    assert len(told.headers["Shoal-Bookmark"]) <= 200
    assert int(told.headers["Shoal-Bookmark-Left-Out"]) == 100 - len(found)


@pytest.mark.parametrize(
    "path",
    [
        "counters/c",
        "registers/r",
        "documents/d",
        "threads/t/checkpoints",
        "threads/t/events",
        "threads/t/branches",
    ],
)
async def test_a_read_of_an_object_can_ask_for_what_is_there(http: aiohttp.ClientSession, served: Served, path: str) -> None:
    for query in ("", "?stale=true"):
        assert (await answer(http, f"{served.url}/v1/spaces/s/{path}{query}")).status == 200
    assert served.session.stale == [False, True]


async def test_a_load_can_ask_for_what_is_there(http: aiohttp.ClientSession, served: Served) -> None:
    await answer(http, served.url + "/v1/spaces/s/threads/t/checkpoints", method="POST", json={"state": {}})
    await answer(http, served.url + "/v1/spaces/s/threads/t/checkpoints/latest?stale=true")
    assert served.session.stale == [False, True]


async def test_a_watch_gives_the_bookmark_back(http: aiohttp.ClientSession, served: Served) -> None:
    text = bookmark(5).text()
    async with http.get(served.url + "/v1/spaces/s/watch", headers={"Shoal-Bookmark": text}) as response:
        assert response.headers["Shoal-Bookmark"] == text


async def test_how_a_node_is_has_no_bookmark(http: aiohttp.ClientSession, served: Served) -> None:
    told = await answer(http, served.url + "/readyz", headers={"Shoal-Bookmark": "garbage!"})
    assert told.status == 200
    assert "Shoal-Bookmark" not in told.headers


# ── sessions ──────────────────────────────────────────────────────────────────


class Wire:
    """A session WebSocket, frame by frame."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    @classmethod
    async def dialled(cls, http: aiohttp.ClientSession, served: Served) -> Wire:
        socket = await http.ws_connect(served.url + "/v1/session")
        await socket.send_bytes(encode_hello(Hello(PROTOCOL, "test")))
        await socket.receive_bytes()
        return cls(socket)

    async def seen(self, *frames: bytes) -> list[Sight]:
        """What the reply to the last of these frames tells of the bookmark."""
        for message in messages(frames, bytes_max=1 << 20):
            await self.socket.send_bytes(message)
        [reply] = decode_node_frames(await self.socket.receive_bytes())
        assert isinstance(reply, ReplyFrame)
        return reply.seen


@pytest.fixture
async def wire(http: aiohttp.ClientSession, served: Served) -> Wire:
    return await Wire.dialled(http, served)


def read(id: int, *, stale: bool = False) -> bytes:
    return encode_call(id, ReadCounter("s", "c"), stale=stale)


async def test_a_reply_tells_what_it_showed_and_the_next_only_what_is_new(wire: Wire, served: Served) -> None:
    served.session.shows = [(5, SEEN)]
    assert await wire.seen(read(1)) == [Sight(5, SEEN.pack())]
    assert await wire.seen(read(2)) == []
    served.session.shows = [(5, VersionVector({A: 3, B: 1}))]
    assert await wire.seen(read(3)) == [Sight(5, VersionVector({B: 1}).pack())]


async def test_news_that_an_error_held_back_comes_next(wire: Wire, served: Served) -> None:
    served.session.bookmark.note(5, SEEN)
    assert await wire.seen(read(1)) == [Sight(5, SEEN.pack())]


async def test_the_first_reply_of_a_subscription_tells_too(wire: Wire, served: Served) -> None:
    served.session.bookmark.note(5, SEEN)
    assert await wire.seen(encode_subscribe(1, Watch("s"))) == [Sight(5, SEEN.pack())]


async def test_a_session_knows_what_its_client_saw_elsewhere(wire: Wire, served: Served) -> None:
    assert await wire.seen(encode_observe(bookmark(5).pack()), read(1)) == []
    assert served.session.bookmark.vector(5) == SEEN


async def test_a_stale_call_asks_for_what_is_there(wire: Wire, served: Served) -> None:
    await wire.seen(read(1, stale=True))
    assert served.session.stale == [True]


async def test_each_socket_has_a_bookmark_of_its_own(wire: Wire, http: aiohttp.ClientSession, served: Served) -> None:
    served.session.bookmark.note(5, SEEN)
    other = await Wire.dialled(http, served)
    assert await other.seen(read(1)) == []
    assert await wire.seen(read(1)) == [Sight(5, SEEN.pack())]


async def test_a_bookmark_that_is_none_closes_the_session(wire: Wire) -> None:
    await wire.socket.send_bytes(next(messages([encode_observe(b"garbage")], bytes_max=100)))
    message = await wire.socket.receive()
    assert (message.type, message.data) == (WSMsgType.CLOSE, aiohttp.WSCloseCode.PROTOCOL_ERROR)
    assert "bookmark" in str(message.extra)
