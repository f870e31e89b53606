"""A watch from JavaScript: it goes on by itself, and nothing comes twice or is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

import shoal
from chaos.ports import free_ports
from tests.clients.js.conftest import PATIENCE_S, Program, Rejected, needs_node
from tests.support.killable import Killable

pytestmark = needs_node

WATCH = """
kept.store = shoal.connect(given.url, given.options ?? {})
kept.ending = new AbortController()
kept.seen = []
kept.watching = (async () => {
  const options = { ...given.watch, signal: kept.ending.signal }
  for await (const event of kept.store.space('crew').watch(options)) kept.seen.push(event)
})()
kept.watching.catch(() => {})
kept.until = async (count) => { while (kept.seen.length < count) await new Promise((resolve) => setTimeout(resolve, 10)) }
await kept.until(given.began ?? 1)
"""
NAMES = "await kept.until(given); return kept.seen.map(({ type, name }) => name ?? type)"


async def test_changes_come_with_what_was_asked_for_and_the_signal_ends_the_loop(js: Program, open_url: str) -> None:
    await js(WATCH, {"url": open_url, "watch": {"kinds": ["counter", "register"], "prefix": "w-"}})
    async with shoal.connect(open_url) as store:
        space = store.space("crew")
        await space.set("w-1").add("x")
        await space.counter("other").add(1)
        await space.counter("w-2").add(1)
        await space.register("w-3").set(1)
    assert await js(NAMES, 3) == ["began", "w-2", "w-3"]
    (_, change, last) = await js("kept.ending.abort(); await kept.watching; return kept.seen")
    assert {name: change[name] for name in ("type", "kind", "space", "what")} == {
        "type": "change",
        "kind": "counter",
        "space": "crew",
        "what": "add",
    }
    assert change["wall_ms"] > 0
    # Another program continues after the bookmark.
    await js(
        WATCH, {"url": open_url, "began": 0, "watch": {"prefix": "w-", "kinds": ["register"], "after": change["bookmark"]}}
    )
    assert await js(NAMES, 1) == ["w-3"]
    assert last["bookmark"] != change["bookmark"]
    await js("kept.ending.abort(); await kept.watching")


async def test_a_watch_goes_on_after_its_node_was_killed_and_came_back(js: Program, killable: Killable) -> None:
    await js(WATCH, {"url": killable.url})
    async with shoal.connect(killable.url) as store:
        for number in range(3):
            await store.space("crew").counter(f"c-{number}").add(1)
    assert await js(NAMES, 4) == ["began", "c-0", "c-1", "c-2"]
    killable.kill()
    killable.start()
    async with shoal.connect(killable.url) as store:
        for number in range(3, 6):
            await store.space("crew").counter(f"c-{number}").add(1)
    # Missed changes of different partitions come in any order.
    assert sorted(await js(NAMES, 7)) == ["began", *(f"c-{number}" for number in range(6))]
    await js("kept.ending.abort(); await kept.watching")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Killable]]:
    """Three nodes of one cluster."""
    ports = free_ports(3)
    join = ",".join(f"127.0.0.1:{port}" for port in ports)
    nodes = [Killable(tmp_path / str(port), "--join", join, port=port) for port in ports]
    for node in nodes:
        node.start()
    yield nodes
    for node in nodes:
        node.stop()


async def test_a_watch_goes_on_at_another_node(js: Program, three: list[Killable]) -> None:
    await js(WATCH, {"url": [node.url for node in three]})
    async with shoal.connect(three[1].url) as store:
        space = store.space("crew")
        await space.counter("before").add(1, durability="all")
        assert await js(NAMES, 2) == ["began", "before"]
        three[0].kill()
        for number in range(5):
            await space.counter(f"after-{number}").add(1)
    assert sorted(await js(NAMES, 7)) == [*(f"after-{number}" for number in range(5)), "before", "began"]
    await js("kept.ending.abort(); await kept.watching")


async def test_a_watch_that_its_caller_ends_leaves_no_node(js: Program, open_url: str) -> None:
    """Else what is asked next goes to another node, as if this one had failed."""
    await js(WATCH, {"url": [open_url, f"http://127.0.0.1:{free_ports(1)[0]}"]})
    assert await js("kept.ending.abort(); await kept.watching; return kept.store._transport.url") == open_url


async def test_if_no_node_can_be_found_in_time_the_watch_says_so(js: Program, killable: Killable) -> None:
    await js(WATCH, {"url": killable.url, "watch": {"reconnectMs": 300}})
    killable.kill()
    with pytest.raises(Rejected) as gone:
        await js("await kept.watching")
    assert (gone.value.code, gone.value.written, gone.value.retryable) == ("disconnected", "no", True)


@pytest.mark.parametrize(
    ("options", "code"),
    [({"kinds": ["dragon"]}, "invalid-input"), ({"after": "no bookmark"}, "invalid-value")],
    ids=["a kind that there is not", "a bookmark that is none"],
)
async def test_a_watch_that_cannot_begin_says_why_at_once(
    js: Program, open_url: str, options: dict[str, object], code: str
) -> None:
    with pytest.raises(Rejected) as wrong:
        await js(
            "for await (const _ of shoal.connect(given.url).space('crew').watch(given.watch));",
            {"url": open_url, "watch": options},
        )
    assert wrong.value.code == code


async def served_stream(events: list[list[bytes]]) -> tuple[web.AppRunner, str, list[str | None]]:
    """A server that answers each request with the next of these lists of pieces, and what was asked for with Last-Event-ID."""
    asked: list[str | None] = []

    async def watch(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in events[len(asked) - 1] if len(asked) <= len(events) else []:
            await response.write(piece)
            await asyncio.sleep(0)
        if len(asked) >= len(events):
            await asyncio.sleep(PATIENCE_S)
        return response

    app = web.Application()
    app.router.add_get("/v1/spaces/crew/watch", watch)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # To aiohttp, 0 is for ever.
    await runner.setup()
    port = free_ports(1)[0]
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner, f"http://127.0.0.1:{port}", asked


def event(name: str, data: bytes, id: str = "") -> bytes:
    return f"event: {name}\n{f'id: {id}' if id else 'x: y'}\ndata: ".encode() + data + b"\n\n"


@pytest.mark.answers("page-misses-a-change-when-its-stream-breaks")
async def test_a_stream_that_breaks_anywhere_is_continued_after_its_last_whole_event(js: Program) -> None:
    began = event("began", b"{}", "p0")
    whole = event("change", '{"name":"größe","kind":"counter"}'.encode(), "p1")
    unnamed = event("change", b'{"name":"b","kind":"counter"}')  # Its id was too long.
    last = event("change", b'{"name":"c","kind":"counter"}', "p3")
    pieces = [whole[at : at + 1] for at in range(len(whole))]
    stopping = event("error", b'{"code":"shutting-down","detail":"the node is stopping.","written":"no","retryable":true}')
    runner, url, asked = await served_stream(
        [[began, *pieces, whole[:20]], [unnamed, stopping], [event("reset", b'{"reason":"gap"}', "p2"), last]]
    )
    try:
        await js(WATCH, {"url": url})
        assert await js(NAMES, 5) == ["began", "größe", "b", "reset", "c"]
        assert asked == [None, "p1", "p1"]
        assert await js("return kept.seen.map(({ bookmark }) => bookmark)") == ["p0", "p1", "p1", "p2", "p3"]
        await js("kept.ending.abort(); await kept.watching")
    finally:
        await runner.cleanup()


@pytest.mark.answers("page-misses-a-change-when-its-stream-breaks")
async def test_a_stream_that_begins_anew_may_have_left_something_out(js: Program) -> None:
    # The first position was too long for an id, so that the second stream cannot continue after it.
    runner, url, asked = await served_stream([[event("began", b"{}")], [event("began", b"{}", "p1")]])
    try:
        await js(WATCH, {"url": url})
        assert await js(NAMES, 2) == ["began", "reset"]
        assert asked == [None, None]
        await js("kept.ending.abort(); await kept.watching")
    finally:
        await runner.cleanup()


async def test_a_silent_stream_is_opened_again(js: Program) -> None:
    runner, url, asked = await served_stream([[event("began", b"{}", "p0")], []])
    try:
        # The server ends the first; the second stays silent.
        await js(WATCH, {"url": url, "options": {"streamSilenceMs": 100}})
        async with asyncio.timeout(PATIENCE_S):
            while len(asked) < 3:
                await asyncio.sleep(0.01)
        assert asked[:3] == [None, "p0", "p0"]
        await js("kept.ending.abort(); await kept.watching")
    finally:
        await runner.cleanup()


async def test_an_error_that_cannot_be_helped_and_an_endless_event_end_the_watch(js: Program) -> None:
    refused = event("error", b'{"code":"forbidden","detail":"no.","written":"no","retryable":false}')
    runner, url, _ = await served_stream([[event("began", b"{}", "p0"), refused]])
    other, endless, _ = await served_stream([[event("began", b"{}", "p0"), b"data: " + b"x" * 2000]])
    try:
        for place, code in ((url, "forbidden"), (endless, "too-large")):
            with pytest.raises(Rejected) as ended:
                await js(WATCH + "await kept.watching", {"url": place, "began": 0, "options": {"eventBytesMax": 1000}})
            assert ended.value.code == code
    finally:
        await runner.cleanup()
        await other.cleanup()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_the_parser_reads_every_line_end_in_any_pieces(js: Program, end: str) -> None:
    text = end.join(
        [
            ": hello",
            "retry: 5",
            "event: a",
            "data: one",
            "data:two",
            "",
            "data",
            "",
            "event: none",
            "",
            "id: 7",
            "data:  x",
            "",
            "",
        ]
    )
    for size in (1, 2, 3, 1000):
        told = await js(
            """const parser = new parts.EventParser(100), bytes = new TextEncoder().encode(given.text), found = []
            for (let at = 0; at < bytes.length; at += given.size) found.push(...parser.feed(bytes.slice(at, at + given.size)))
            found.push(...parser.feed(new TextEncoder().encode('\\n')))
            return found""",
            {"text": text, "size": size},
        )
        assert told == [
            {"event": "a", "data": "one\ntwo", "id": None},
            {"event": "message", "data": "", "id": None},
            {"event": "message", "data": " x", "id": "7"},
        ]
