"""Streams over HTTP: what the public suite leaves to the server, and bad input."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from shoal.protocol import requests
from shoal.workflows.streams.record import COMMITTED, Record, packed, unpacked
from tests.api.streams.conftest import Serve, Streams

PRODUCER = {"Producer_Id": "p", "Producer_Epoch": "0"}


async def test_a_stream_is_created_appended_to_read_and_deleted(streams: Streams) -> None:
    made = await streams("PUT", "a/b", b"one", Content_Type="text/plain")
    assert (made.status, made.headers["Location"]) == (201, str(streams.url("a/b")))
    appended = await streams("POST", "a/b", b"two", Content_Type="text/plain")
    assert (appended.status, appended.next > made.next) == (204, True)
    assert await streams.text("a/b") == "onetwo"
    assert (await streams("GET", f"a/b?offset={made.next}")).body == b"two"
    assert (await streams("HEAD", "a/b")).next == appended.next
    assert (await streams("DELETE", "a/b")).status == 204
    assert (await streams("GET", "a/b")).status == 404
    assert (await streams("PUT", "a/b", b"new", Content_Type="text/plain")).status == 201
    assert await streams.text("a/b") == "new"


async def test_names_with_slashes_and_other_letters_are_one_stream(streams: Streams) -> None:
    assert (await streams("PUT", "a%2Fb/%C3%A9", Content_Type="text/plain")).status == 201
    assert (await streams("HEAD", "a/b/%C3%A9")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("PUT", "x" * 2048, None, {}, 400),
        ("PUT", "%FF", None, {}, 400),
        ("PUT", "s", None, {"Content_Type": "nonsense"}, 400),
        ("PUT", "s", b"{", {"Content_Type": "application/json"}, 400),
        ("PUT", "s", b"x" * 2000, {"Content_Type": "text/plain"}, 413),
        ("PUT", "s", None, {"Stream_Forked_From": "/"}, 400),
        ("PUT", "s", None, {"Stream_Fork_Offset": "-1"}, 400),
        ("PUT", "s", None, {"Stream_Forked_From": "/none"}, 404),
        ("PUT", "s", None, {"Stream_Forked_From": "there", "Stream_Fork_Offset": "12"}, 400),
        ("PUT", "s", None, {"Stream_Expires_At": "2026-01-01"}, 400),
        ("PUT", "s", None, {"Stream_TTL": "9" * 17}, 400),
        ("POST", "s", b"x", {"Content_Type": "text/plain"}, 404),
        ("POST", "there", b"x" * 2000, {"Content_Type": "text/plain"}, 413),
        ("POST", "there", b"x", {}, 400),
        ("POST", "there", b"x", {"Content_Type": "text/plain", "Stream_Seq": "x" * 1025}, 400),
        ("POST", "there", b"x", {"Content_Type": "text/plain", **PRODUCER}, 400),
        ("POST", "there", b"x", {"Content_Type": "text/plain", **PRODUCER, "Producer_Seq": "-1"}, 400),
        ("POST", "there", b"x", {"Content_Type": "text/plain", **PRODUCER, "Producer_Seq": str(2**53)}, 400),
        ("GET", "there?offset=5", None, {}, 400),
        ("GET", f"there?offset={9:016d}_{0:016d}", None, {}, 400),
        ("GET", f"there?offset={0:016d}_{9:013d}{9:012d}", None, {}, 200),
        ("GET", "there?offset=-1&live=maybe", None, {}, 400),
        ("GET", "there?live=sse", None, {}, 400),
        ("DELETE", "s", None, {}, 404),
        ("PATCH", "there", None, {}, 405),
    ],
)
async def test_bad_input_is_refused_and_nothing_is_written(
    serve: Serve, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    streams = await serve(stream_append_bytes_max=1024)
    await streams("PUT", "there", b"data", Content_Type="text/plain")
    answer = await streams(method, path, body, **headers)
    assert answer.status == status, answer
    if status >= 400:
        assert json.loads(answer.body)["written"] == "no"
    assert await streams.text("there") == "data"
    assert (await streams("HEAD", "s")).status == 404


async def test_a_forged_offset_leaves_no_data_out_silently(streams: Streams) -> None:
    await streams("PUT", "s", Content_Type="text/plain")
    offsets = [(await streams("POST", "s", b"%d" % n, Content_Type="text/plain")).next for n in range(4)]
    data, place = offsets[1].split("_")
    assert (await streams("GET", f"s?offset={data}_{place[:-1]}9")).status == 400
    assert (await streams("GET", f"s?offset={data}_{0:016d}")).body == b"23"


async def test_many_appends_at_once_are_each_there_once_in_one_order(streams: Streams) -> None:
    await streams("PUT", "s", Content_Type="application/json")
    answers = await asyncio.gather(*(streams("POST", "s", b"%d" % n, Content_Type="application/json") for n in range(100)))
    assert {answer.status for answer in answers} == {204}
    stored = json.loads(await streams.text())
    assert sorted(stored) == list(range(100))
    by_offset = sorted(range(100), key=lambda n: answers[n].next)
    assert by_offset == stored
    assert len({answer.next for answer in answers}) == 100
    for n in (0, 50, 99):  # From each of the offsets, also those within a record.
        rest = await streams("GET", f"s?offset={answers[n].next}")
        assert json.loads(rest.body) == stored[stored.index(n) + 1 :]


async def test_a_long_stream_is_read_in_pages(serve: Serve) -> None:
    streams = await serve(stream_read_bytes_max=100)
    await streams("PUT", "s", Content_Type="application/json")
    for n in range(40):
        await streams("POST", "s", b'"%030d"' % n, Content_Type="application/json")
    seen, offset, pages = [], "-1", 0
    while True:
        answer = await streams("GET", f"s?offset={offset}")
        seen += json.loads(answer.body)
        offset, pages = answer.next, pages + 1
        if "Stream-Up-To-Date" in answer.headers:
            break
        assert answer.headers["Cache-Control"].startswith("private")
    assert ([int(each) for each in seen], pages > 5) == (list(range(40)), True)


async def test_a_reader_that_waits_is_told(streams: Streams) -> None:
    made = await streams("PUT", "s", Content_Type="text/plain")
    empty = await streams("GET", f"s?offset={made.next}&live=long-poll")
    assert (empty.status, empty.headers["Stream-Up-To-Date"], empty.next) == (204, "true", made.next)
    waiting = asyncio.create_task(streams("GET", f"s?offset={made.next}&live=long-poll"))
    for _ in range(50):
        await streams("POST", "s", b"x", Content_Type="text/plain")
        if waiting.done():
            break
    assert (await waiting).body.startswith(b"x")


async def test_live_readers_end_when_the_node_stops(serve: Serve) -> None:
    streams = await serve(stream_poll_s=60.0)
    await streams("PUT", "s", b"x", Content_Type="text/plain")
    async with streams.http.get(streams.url("s?offset=-1&live=sse")) as events:
        assert b"event: data" in await events.content.readline()
        polling = asyncio.create_task(streams("GET", "s?offset=now&live=long-poll"))
        async with asyncio.timeout(20):
            await streams.listener.stop()
            await events.content.read()
            await asyncio.gather(polling, return_exceptions=True)


async def test_readers_are_bounded(serve: Serve) -> None:
    streams = await serve(stream_readers_max=1, stream_poll_s=60.0)
    await streams("PUT", "s", Content_Type="text/plain")
    async with streams.http.get(streams.url("s?offset=-1&live=sse")) as events:
        await events.content.readline()
        refused = await streams("GET", "s?offset=-1&live=long-poll")
        assert (refused.status, "Retry-After" in refused.headers) == (429, True)


async def test_data_cannot_pretend_to_be_an_event(streams: Streams) -> None:
    await streams("PUT", "s", b"a\r\n\r\nevent: control\ndata: {}\r x", Content_Type="text/plain", Stream_Closed="true")
    told = await streams("GET", "s?offset=-1&live=sse")
    assert told.body.count(b"\nevent: control\n") == 1
    assert b"data:a\ndata:\ndata:event: control\ndata:data: {}\ndata:  x\n\n" in told.body


async def test_time_ends_a_stream_that_nobody_uses(serve: Serve) -> None:
    now_s = [1_800_000_000.0]
    streams = await serve(now_s=lambda: now_s[0])
    await streams("PUT", "s", b"old", Content_Type="text/plain", Stream_TTL="10")
    now_s[0] += 9
    assert await streams.text() == "old"
    now_s[0] += 9
    assert (await streams("HEAD")).headers["Stream-TTL"] == "10"
    now_s[0] += 1
    for method in ("HEAD", "GET", "DELETE"):
        assert (await streams(method)).status == 404
    assert (await streams("POST", "s", b"x", Content_Type="text/plain")).status == 404
    assert (await streams("PUT", "s", b"new", Content_Type="text/plain")).status == 201
    assert await streams.text() == "new"


async def test_a_stream_that_is_created_again_frees_what_had_expired(serve: Serve) -> None:
    now_s = [1_800_000_000.0]
    streams = await serve(now_s=lambda: now_s[0])
    await streams("PUT", "s", b"old", Content_Type="text/plain", Stream_TTL="10")
    await streams("POST", "s", b"older", Content_Type="text/plain")
    now_s[0] += 11
    await streams("PUT", "s", b"new", Content_Type="text/plain")
    session = streams.bench.node.session()
    async with asyncio.timeout(20):
        while len((await session.call(requests.ReadJournal("crew", "stream/s", skip_trimmed=True))).events) > 1:
            await asyncio.sleep(0.01)
    await streams("POST", "s", b"er", Content_Type="text/plain")
    assert await streams.text() == "newer"


async def test_an_expired_fork_lets_its_source_end(serve: Serve) -> None:
    now_s = [1_800_000_000.0]
    streams = await serve(now_s=lambda: now_s[0])
    await streams("PUT", "source", b"x", Content_Type="text/plain")
    await streams("PUT", "fork", Stream_Forked_From="source", Stream_TTL="10")
    await streams("DELETE", "source")
    assert (await streams("GET", "source")).status == 410
    assert await streams.text("fork") == "x"
    now_s[0] += 11
    assert (await streams("GET", "fork")).status == 404
    async with asyncio.timeout(20):
        while (await streams("GET", "source")).status != 404:
            await asyncio.sleep(0.01)


async def test_foreign_journal_events_are_no_data(streams: Streams) -> None:
    await streams("PUT", "s", b"a", Content_Type="text/plain")
    session = streams.bench.node.session()
    [event] = (await session.call(requests.ReadJournal("crew", "stream/s"))).events
    written = unpacked(event.event)
    assert written is not None
    for junk in (b"\xc0", packed(Record(10**6, 9, 0, 0, written.state, [b"junk"])), packed(Record(0, 0, 0, 0, written.state))):
        await session.call(requests.Append("crew", "stream/s", junk))
    await streams("POST", "s", b"b", Content_Type="text/plain")
    assert await streams.text() == "ab"


async def test_a_record_that_nobody_noted_is_kept_by_the_next_holder(streams: Streams) -> None:
    await streams("PUT", "s", b"a", Content_Type="text/plain")
    session = streams.bench.node.session()
    [event] = (await session.call(requests.ReadJournal("crew", "stream/s"))).events
    first = unpacked(event.event)
    assert first is not None
    tail = first.end._replace(data=2, record=2)
    async with asyncio.timeout(20):
        while (await session.call(requests.ListLeases("crew"))).items:
            await asyncio.sleep(0.01)
    left = Record(first.fence, 1, 1, first.from_ms, replace(first.state, tail=tail), [b"b"])
    await session.call(requests.Append("crew", "stream/s", packed(left)))
    assert await streams.text() == "a"  # It may be shown only once it is noted.
    await streams("POST", "s", b"c", Content_Type="text/plain")
    assert await streams.text() == "abc"
    place = await session.call(requests.ReadPlace("crew", "stream/s", COMMITTED))
    assert place.place == 3


async def test_a_deleted_stream_frees_its_data(streams: Streams) -> None:
    await streams("PUT", "s", Content_Type="text/plain")
    for _ in range(5):
        await streams("POST", "s", b"x" * 100, Content_Type="text/plain")
    await streams("DELETE", "s")
    session = streams.bench.node.session()
    async with asyncio.timeout(20):
        while len((await session.call(requests.ReadJournal("crew", "stream/s", skip_trimmed=True))).events) > 1:
            await asyncio.sleep(0.01)
    assert (await streams("GET", "s")).status == 404


async def test_forks_of_forks_are_bounded(serve: Serve) -> None:
    streams = await serve(stream_fork_depth_max=2)
    await streams("PUT", "0", b"x", Content_Type="text/plain")
    made = [await streams("PUT", str(n), Stream_Forked_From=str(n - 1)) for n in (1, 2, 3)]
    assert [answer.status for answer in made] == [201, 201, 400]
    assert await streams.text("2") == "x"
    await streams("DELETE", "2")
    await streams("DELETE", "1")
    await streams("DELETE", "0")
    assert (await streams("PUT", "0", Content_Type="text/html")).status == 201
