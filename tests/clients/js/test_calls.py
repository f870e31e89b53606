"""What a call does when something is wrong: with the caller's input, the token, the node, or what is between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import shoal
from chaos.ports import free_ports
from tests.access.conftest import Mint
from tests.cli.conftest import served
from tests.clients.js.conftest import Program, Rejected, needs_node
from tests.support.killable import Killable

pytestmark = needs_node

ADD = "return shoal.connect(given.url, given.options ?? {}).space('crew').counter('n').add(1, given.write)"
READ = "return shoal.connect(given.url, given.options ?? {}).space('crew').counter('n').value()"


# ── tokens ────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def mint(tmp_path_factory: pytest.TempPathFactory) -> Mint:
    return Mint(tmp_path_factory.mktemp("mint") / "tokens")


@pytest.fixture(scope="module")
def guarded(mint: Mint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a node that asks for tokens."""
    with served(tmp_path_factory.mktemp("guarded") / "state", "--token-keys", mint.keys) as (_, url):
        yield url


async def test_a_token_opens_what_it_grants(js: Program, guarded: str, mint: Mint) -> None:
    reader = {"url": guarded, "options": {"token": mint.make("crew:read").text}}
    writer = {"url": guarded, "options": {"token": mint.make("crew:write,read", author="ana").text}}
    before = await js(READ, reader)
    assert await js(ADD, writer) == before + 1
    assert await js(READ, reader) == before + 1
    told = await js("return shoal.connect(given.url, given.options).access()", writer)
    assert (told["author"], told["open"]) == ("ana", False)
    with pytest.raises(Rejected) as forbidden:
        await js(ADD, reader)
    assert (forbidden.value.code, forbidden.value.status, forbidden.value.written) == ("forbidden", 403, "no")
    assert forbidden.value.detail["family"] == "counter"


@pytest.mark.parametrize("options", [{}, {"token": "nonsense"}], ids=["none", "wrong"])
async def test_without_a_token_that_counts_nothing_is_read_written_or_watched(
    js: Program, guarded: str, options: dict[str, str]
) -> None:
    for code in (ADD, READ, "for await (const _ of shoal.connect(given.url, given.options).space('crew').watch());"):
        with pytest.raises(Rejected) as refused:
            await js(code, {"url": guarded, "options": options})
        assert (refused.value.code, refused.value.status, refused.value.written, refused.value.retryable) == (
            "unauthenticated",
            401,
            "no",
            False,
        )


async def test_a_function_is_asked_again_when_its_token_is_refused(js: Program, guarded: str, mint: Mint) -> None:
    old, new = mint.make("crew:read", lasts_s=1.0, ago_s=3600.0), mint.make("crew:read")
    told = await js(
        """let calls = 0
        const store = shoal.connect(given.url, { token: async () => given.tokens[Math.min(calls++, 1)] })
        await store.space('crew').counter('n').value()
        return calls""",
        {"url": guarded, "tokens": [old.text, new.text]},
    )
    assert told == 2
    with pytest.raises(Rejected) as refused:
        await js("await shoal.connect(given.url, { token: () => given.old }).access()", {"url": guarded, "old": old.text})
    assert refused.value.code == "unauthenticated"


# ── nodes that go away ────────────────────────────────────────────────────────


@pytest.mark.answers("javascript-client-writes-twice")
async def test_a_write_is_repeated_until_its_node_is_back_and_counts_once(js: Program, killable: Killable) -> None:
    await js(
        "kept.store = shoal.connect(given); kept.counter = kept.store.space('crew').counter('n'); await kept.counter.add(1)",
        killable.url,
    )
    killable.kill()
    await js("kept.adding = kept.counter.add(1)")
    killable.start()
    assert await js("return kept.adding") == 2
    assert await js("return kept.counter.value()") == 2


@asynccontextmanager
async def between(target: str, lose: int) -> AsyncIterator[tuple[str, list[str | None]]]:
    """A proxy that passes requests on, and closes the connection in place of the first `lose` answers; the keys that it saw."""
    keys: list[str | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                keys.append(lines.get(b"idempotency-key", b"").decode() or None)
                body = await reader.readexactly(int(lines.get(b"content-length", b"0")))
                host, port = target.removeprefix("http://").split(":")
                near, far = await asyncio.open_connection(host, int(port))
                far.write(head + body)
                answer = await near.readuntil(b"\r\n\r\n")
                size = next(
                    int(line.split(b": ")[1]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length")
                )
                answer += await near.readexactly(size)
                far.close()
                if len(keys) <= lose:
                    return
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", keys


@pytest.mark.answers("javascript-client-writes-twice")
async def test_a_write_whose_answer_was_lost_is_sent_again_with_its_key(js: Program, killable: Killable) -> None:
    async with between(killable.url, lose=2) as (url, keys):
        assert await js(ADD, {"url": url}) == 1
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert keys[0] is not None
    assert await js(READ, {"url": killable.url}) == 1


async def test_a_write_that_is_never_answered_is_unknown_and_repeated_by_its_key(js: Program, killable: Killable) -> None:
    async with between(killable.url, lose=1000) as (url, keys):
        with pytest.raises(Rejected) as unknown:
            await js(ADD, {"url": url, "options": {"requestTimeoutMs": 1000}})
        assert (unknown.value.code, unknown.value.written, unknown.value.retryable) == ("outcome-unknown", "unknown", True)
        assert {unknown.value.key.lower() if unknown.value.key else None} == set(keys)
        with pytest.raises(Rejected) as unread:
            await js(READ, {"url": url, "options": {"requestTimeoutMs": 1000}})
        assert (unread.value.code, unread.value.written) == ("disconnected", "no")
    assert await js(ADD, {"url": killable.url, "write": {"key": unknown.value.key}}) == 1


async def test_a_write_acknowledged_at_one_node_is_read_at_the_next(js: Program, open_url: str) -> None:
    told = await js(
        """const asked = []
        const noting = (url, init) => { asked.push(init.headers['Shoal-Bookmark'] ?? ''); return fetch(url, init) }
        const store = shoal.connect(given, { fetch: noting })
        const space = store.space('bookmarks')
        await Promise.all([1, 2, 3].map((n) => space.counter(`c-${n}`).add(1)))
        await space.counter('c-1').value()
        await space.counter('c-2').value()
        return asked.map((held) => held.split(', ').filter(Boolean).length)""",
        open_url,
    )
    # Three at once know nothing; the next request sends what all three answered, and its answer covers that.
    assert told == [0, 0, 0, 3, 1]


async def test_bookmarks_that_do_not_fit_lose_the_oldest(js: Program) -> None:
    told = await js(
        """const held = new parts.Bookmarks(10)
        for (const one of ['aaaa', 'bbbb', 'cccc']) held.note(one, false, [])
        const overlapping = held.held()
        held.note('dddd', true, held.held())
        const partial = held.held()
        held.note('e', false, held.held())
        held.note(null, false, [])
        return [overlapping, partial, held.held()]"""
    )
    assert told == [["bbbb", "cccc"], ["cccc", "dddd"], ["e"]]


async def test_the_next_node_is_asked_if_one_is_gone_or_hangs(js: Program, open_url: str) -> None:
    held: list[asyncio.StreamWriter] = []

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with silent:
        hanging = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        for urls in (f"http://127.0.0.1:{free_ports(1)[0]}, {open_url}", [hanging, open_url]):
            assert await js(ADD, {"url": urls, "options": {"attemptTimeoutMs": 300}}) > 0
        for writer in held:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert held


async def test_a_node_that_is_not_there_is_disconnected_and_nothing_was_written(js: Program) -> None:
    with pytest.raises(Rejected) as gone:
        await js(ADD, {"url": f"http://127.0.0.1:{free_ports(1)[0]}", "options": {"requestTimeoutMs": 300}})
    assert (gone.value.code, gone.value.written, gone.value.retryable) == ("disconnected", "no", True)
    assert "ECONNREFUSED" in gone.value.message


# ── other servers ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "headers", "body", "tries"),
    [
        (200, {"Content-Type": "text/html"}, "<!doctype html>", 1),
        (200, {"Content-Type": "application/json"}, "{", 1),
        (404, {"Content-Type": "text/html"}, "nothing here", 1),
        (302, {"Location": "http://127.0.0.1:1/"}, "", 1),
        (502, {"Content-Type": "text/html"}, "bad gateway", 2),
    ],
)
async def test_another_server_at_the_url_is_named(
    js: Program, status: int, headers: dict[str, str], body: str, tries: int
) -> None:
    asked: list[str] = []

    async def other(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, headers=headers, body=body.encode())

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_ports(1)[0]
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        with pytest.raises(Rejected) as wrong:
            await js(READ, {"url": f"http://127.0.0.1:{port}", "options": {"requestTimeoutMs": 3000}})
    finally:
        await runner.cleanup()
    assert wrong.value.code == "unreachable"
    assert (len(asked) >= 2) == (tries >= 2)


# ── the caller's input ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    [
        "shoal.connect('n1:7400')",
        "shoal.connect('ftp://n1')",
        "shoal.connect('http://me:secret@n1')",
        "shoal.connect('http://n1/?token=x')",
        "shoal.connect([])",
        "shoal.connect('http://n1', { timeout: 3 })",
        "shoal.connect('http://n1', { requestTimeoutMs: 0 })",
        "shoal.connect('http://n1', { token: 'a\\nb' })",
        "shoal.connect('http://n1').space('')",
        "shoal.connect('http://n1').space('a').thread('..')",
        "shoal.connect('http://n1').space('a').counter('\\ud800')",
        "await shoal.connect('http://n1').space('a').thread('t').save([1])",
        "await shoal.connect('http://n1').space('a').counter('n').add(1, { key: '' })",
        "await shoal.connect('http://n1').space('a').document('d', {})",
    ],
)
async def test_wrong_input_is_refused_before_anything_is_sent(js: Program, call: str) -> None:
    with pytest.raises(Rejected) as wrong:
        await js(call)
    assert (wrong.value.code in ("invalid-input", "invalid-name"), wrong.value.status, wrong.value.written) == (True, 0, "no")
    assert "secret" not in wrong.value.message


async def test_a_value_too_large_is_refused_by_the_node(js: Program, tmp_path: Path) -> None:
    with served(tmp_path / "state", config={"SHOAL_REQUEST_BYTES_MAX": "64KiB"}) as (_, url):
        with pytest.raises(Rejected) as large:
            await js("await shoal.connect(given).space('crew').thread('t').save({ text: 'x'.repeat(1 << 20) })", url)
        assert (large.value.code, large.value.status, large.value.written) == ("too-large", 413, "no")
        async with shoal.connect(url) as store:
            assert [name async for name in store.space("crew").threads()] == []


async def test_a_signal_ends_a_call_with_its_reason(js: Program) -> None:
    told: dict[str, Any] = await js(
        """const ending = new AbortController()
        const read = shoal.connect(given).space('crew').counter('n').value({ signal: ending.signal })
        ending.abort(new RangeError('enough'))
        return read.catch((error) => ({ name: error.name, message: error.message }))""",
        f"http://127.0.0.1:{free_ports(1)[0]}",
    )
    assert told == {"name": "RangeError", "message": "enough"}
