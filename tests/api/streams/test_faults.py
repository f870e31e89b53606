"""Streams over HTTP under faults, and with requests that meet each other."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from shoal.protocol import requests
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.record import Record, packed, unpacked
from tests.api.streams.conftest import Serve, Streams


async def unnoted(streams: Streams, data: bytes) -> Record:
    """Leave a record that is committed, and that nobody has noted: what a writer leaves that dies between two steps."""
    session = streams.bench.node.session()
    [event] = (await session.call(requests.ReadJournal("crew", "stream/s"))).events
    first = unpacked(event.event)
    assert first is not None
    async with asyncio.timeout(20):
        while (await session.call(requests.ListLeases("crew"))).items:
            await asyncio.sleep(0.01)
    tail = first.end._replace(data=2, record=2)
    left = Record(first.fence, 1, 1, first.from_ms, replace(first.state, tail=tail), [data])
    await session.call(requests.Append("crew", "stream/s", packed(left)))
    return left


async def test_an_offset_that_a_live_reader_got_before_its_node_died_counts_at_all_nodes(streams: Streams) -> None:
    """Its node noted the record, showed it, and died before others had the note."""
    await streams("PUT", "s", b"a", Content_Type="text/plain")
    left = await unnoted(streams, b"b")
    read = await streams("GET", f"s?offset={left.end}&live=long-poll")
    assert (read.status, read.next) == (204, str(left.end))
    assert await streams.text() == "ab"
    beyond = left.end._replace(data=left.end.data + 1)
    assert (await streams("GET", f"s?offset={beyond}")).status == 400


async def test_a_fork_begins_at_an_offset_that_nobody_noted(streams: Streams) -> None:
    await streams("PUT", "s", b"a", Content_Type="text/plain")
    left = await unnoted(streams, b"b")
    assert (await streams("PUT", "fork", Stream_Forked_From="s", Stream_Fork_Offset=str(left.end))).status == 201
    assert await streams.text("fork") == "ab"


@pytest.mark.parametrize("ends", ["deleted", "expired"])
@pytest.mark.parametrize("again", [0, 1, 2, 3])
async def test_an_offset_of_a_stream_that_was_created_again_is_refused(serve: Serve, ends: str, again: int) -> None:
    now_s = [1_800_000_000.0]
    streams = await serve(now_s=lambda: now_s[0])
    await streams("PUT", "s", b"1", Content_Type="text/plain", Stream_TTL="10")
    old = [(await streams("POST", "s", b"2", Content_Type="text/plain")).next]
    if ends == "deleted":
        await streams("DELETE", "s")
    now_s[0] += 11
    made = await streams("PUT", "s", Content_Type="text/plain")
    for n in range(again):
        await streams("POST", "s", b"new %d" % n, Content_Type="text/plain")
    for live in ("", "&live=long-poll"):
        refused = await streams("GET", f"s?offset={old[0]}{live}")
        assert refused.status == 400, refused
    assert (await streams("PUT", "fork", Stream_Forked_From="s", Stream_Fork_Offset=old[0])).status == 400
    assert (await streams("GET", f"s?offset={made.next}")).body == b"".join(b"new %d" % n for n in range(again))


async def test_requests_for_one_fork_at_once_leave_its_source_alive(streams: Streams) -> None:
    made = await streams("PUT", "source", b"a", Content_Type="text/plain")
    offsets = [made.next, (await streams("POST", "source", b"b", Content_Type="text/plain")).next]
    asked = [streams("PUT", "fork", Stream_Forked_From="source", Stream_Fork_Offset=offsets[n % 2]) for n in range(6)]
    answers = await asyncio.gather(*asked)
    assert sorted({answer.status for answer in answers}) == [200, 201, 409]
    before = await streams.text("fork")
    await streams("DELETE", "source")
    assert await streams.text("fork") == before
    await streams("DELETE", "fork")
    async with asyncio.timeout(20):
        while (await streams("GET", "source")).status != 404:  # What no fork reads is freed.
            await asyncio.sleep(0.01)


async def test_a_fork_that_is_refused_does_not_keep_its_source(streams: Streams) -> None:
    await streams("PUT", "source", b"[1]", Content_Type="application/json")
    assert (await streams("PUT", "fork", b"{", Content_Type="application/json", Stream_Forked_From="source")).status == 400
    await streams("DELETE", "source")
    async with asyncio.timeout(20):
        while (await streams("GET", "source")).status != 404:
            await asyncio.sleep(0.01)


async def test_a_stop_lets_go_of_the_source_of_a_fork_whose_deletion_is_under_way(streams: Streams) -> None:
    await streams("PUT", "source", b"a", Content_Type="text/plain")
    await streams("PUT", "fork", Stream_Forked_From="source")
    await streams("DELETE", "source")
    session = streams.bench.node.session()
    async with asyncio.timeout(20):
        while (await session.call(requests.ListLeases("crew"))).items:
            await asyncio.sleep(0.01)
        streams.bench.simulated.hold_syncs()
        deleting = asyncio.create_task(streams("DELETE", "fork"))
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(streams.listener.stop())
        await asyncio.sleep(0.1)
        streams.bench.simulated.release_syncs()
        await asyncio.gather(deleting, stopping, return_exceptions=True)
    head = await chain.caught_up(session, "crew", "source")
    assert head.state is not None
    assert head.state.deleted
    assert not (await session.call(requests.ListLeases("crew"))).items


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Type: text/plain; a=\xff", 400),
        ("Stream-Forked-From: http://[", 400),
        ("Stream-Forked-From: \xff", 400),
        ("Stream-Forked-From: %FF", 400),
        ("Stream-TTL: \xb2", 400),
        ("Stream-Expires-At: \xff", 400),
        ("Stream-Closed: \xff", 201),
    ],
)
async def test_bytes_in_headers_that_are_no_text_are_no_error_of_the_node(streams: Streams, header: str, status: int) -> None:
    url = streams.url("s")
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"PUT {url.raw_path} HTTP/1.1\r\nHost: {url.authority}\r\nConnection: close\r\n{header}\r\n\r\n".encode("latin-1")
    )
    answer = await reader.read()
    writer.close()
    assert int(answer.split()[1]) == status, answer


async def test_a_node_whose_disk_is_full_shows_what_it_has(serve: Serve) -> None:
    now_s = [1_800_000_000.0]
    # A stop would wait for the release of a lease, on which this node cannot vote.
    streams = await serve(now_s=lambda: now_s[0], stream_sse_s=0.1, stop_timeout_s=0.1)
    await streams("PUT", "s", b"kept", Content_Type="text/plain", Stream_TTL="100")
    streams.bench.storage.fail_next("write")
    refused = await streams("POST", "s", b"lost", Content_Type="text/plain")
    assert refused.status >= 500
    now_s[0] += 50
    assert await streams.text() == "kept"
    assert (await streams("GET", "s?offset=-1&live=sse")).status == 200


async def test_a_reader_that_reads_nothing_is_let_go(serve: Serve) -> None:
    streams = await serve(heartbeat_s=0.2, stream_readers_max=1)
    await streams("PUT", "s", Content_Type="text/plain")
    for _ in range(32):
        await streams("POST", "s", b"x" * 1_000_000, Content_Type="text/plain")
    url = streams.url("s")
    _, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
    writer.write(f"GET {url.raw_path}?offset=-1&live=sse HTTP/1.1\r\nHost: {url.authority}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        while (await streams("GET", "s?offset=now&live=long-poll")).status != 429:
            await asyncio.sleep(0.01)
        while (await streams("GET", "s?offset=now&live=long-poll")).status == 429:
            await asyncio.sleep(0.05)
    writer.close()


async def test_two_hundred_producers_with_two_epochs_each_are_there_once(streams: Streams) -> None:
    await streams("PUT", "s", Content_Type="application/json")

    async def produce(id: int) -> list[int]:
        said = {"Content_Type": "application/json", "Producer_Id": f"p{id}"}
        sent = [("0", "0"), ("0", "1"), ("1", "0"), ("0", "2"), ("1", "1"), ("1", "1")]
        return [
            (
                await streams(
                    "POST", "s", b'"%d.%s.%s"' % (id, e.encode(), n.encode()), **said, Producer_Epoch=e, Producer_Seq=n
                )
            ).status
            for e, n in sent
        ]

    answers = await asyncio.gather(*(produce(id) for id in range(200)))
    assert answers == [[200, 200, 200, 403, 200, 204]] * 200
    stored = json.loads(await streams.text())
    assert len(stored) == len(set(stored)) == 800
    for id in range(200):
        assert [each for each in stored if each.startswith(f"{id}.")] == [f"{id}.{n}" for n in ("0.0", "0.1", "1.0", "1.1")]
