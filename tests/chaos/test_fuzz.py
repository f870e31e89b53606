"""The fuzzer sends the same for one seed, finds what is planted, and nothing in a node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from chaos.__main__ import app
from chaos.fuzz import run as fuzzing
from chaos.fuzz.probes import Asked, Probes
from chaos.fuzz.run import FuzzOptions, Run
from chaos.fuzz.streams import Streams
from shoal.errors import NotFound, ShoalError
from shoal.protocol.frames import encode_end
from shoal.protocol.requests.families import operations

pytestmark = pytest.mark.usefixtures("forks")

OPTIONS = FuzzOptions(frames=8, seed=1)


class _Node:
    """The process whose memory is looked at: one that does nothing, since this one holds what other tests left."""

    pid: int


node = _Node()


@pytest.fixture(scope="module", autouse=True)
def quiet_node() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        node.pid = process.pid
        yield
        process.kill()


def said(seed: int) -> list[object]:
    probes = Probes(seed)
    return [
        each
        for _ in range(200)
        for each in (
            probes.wrong_bytes(),
            probes.request(None),
            probes.request("t"),
            probes.frame(),
            probes.watching(),
            probes.watch("t", ["AZAB"]),
            probes.upgrade(None),
            probes.durable("t", ["0"]),
            probes.yjs(),
        )
    ]


def test_the_seed_says_what_is_sent() -> None:
    assert said(1) == said(1)
    assert said(1) != said(2)


def test_frames_name_all_kinds_of_requests() -> None:
    probes = Probes(3)
    missing = {str(kind.__struct_config__.tag).encode() for kind in operations()}
    for _ in range(20_000):
        frame = probes.frame()
        missing = {tag for tag in missing if tag not in frame}
        if not missing:
            break
    assert missing == set()


def test_a_node_stands_it(tmp_path: Path) -> None:
    found = asyncio.run(fuzzing.run(FuzzOptions(frames=540, seed=5, slow_s=20.0), tmp_path, say=print))
    assert found.findings == []
    assert all(count >= 180 for count in found.sent.values())
    assert len(found.sent) == 6
    assert found.answers.keys() >= {"401", "200", "reply", "invalid-input", "stream 401"}
    assert found.memory_mb > 10


@pytest.mark.parametrize(
    ("kind", "heard"),
    [
        (lambda streams: streams.opened(), {"stream 200", "event began"}),
        (lambda streams: streams.document(hocuspocus=False), {"yjs answered"}),
        (lambda streams: streams.document(hocuspocus=True), {"hocuspocus answered"}),
    ],
)
async def test_a_node_answers_each_kind_of_stream(
    tmp_path: Path, kind: Callable[[Streams], Awaitable[int]], heard: set[str]
) -> None:
    async with fuzzing.node(tmp_path) as (process, port, token):
        run = Run(OPTIONS, port, token, process.pid, print)
        for _ in range(200):
            await kind(run._streams)
            if run._answers.keys() >= heard:
                break
    assert run._answers.keys() >= heard
    assert run.found.findings == []


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answers: Answer) -> AsyncIterator[int]:
    """A server that is no node, and answers as it was planted."""
    tasks = set()
    writers = []

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        writers.append(writer)
        await answers(reader, writer)

    server = await asyncio.start_server(kept, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


async def told(port: int, options: FuzzOptions = OPTIONS) -> list[str]:
    run = Run(options, port, "token", node.pid, lambda _: None)
    await run._each("requests before a token", 4, lambda: run._request(None))
    return run.found.findings


def saying(status: str) -> Answer:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    return answers


async def test_a_bug_that_a_node_tells_is_found() -> None:
    async with serving(saying("500 Internal Server Error")) as port:
        assert "was answered with 500" in (await told(port))[0]


async def test_requests_let_in_without_a_token_are_found() -> None:
    async with serving(saying("200 OK")) as port:
        assert any("was answered with 200" in each for each in await told(port))


async def test_a_refusal_is_no_finding() -> None:
    async with serving(saying("401 Unauthorized")) as port:
        assert await told(port) == []


async def test_unanswered_requests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "ANSWER_S_MAX", 0.05)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1 << 20)
        await asyncio.sleep(60)

    async with serving(silent) as port:
        assert "was answered with none" in (await told(port))[0]


async def test_a_node_that_ended_is_found() -> None:
    async with serving(saying("401 Unauthorized")) as port:
        pass
    assert "cannot be reached" in (await told(port))[0]


async def test_memory_beyond_its_bound_is_found() -> None:
    async with serving(saying("401 Unauthorized")) as port:
        assert "MB" in (await told(port, msgspec.structs.replace(OPTIONS, memory_mb=1)))[0]


async def streamed(port: int, *, opened: bool) -> list[str]:
    run = Run(OPTIONS, port, "token", node.pid, lambda _: None)
    for _ in range(20):
        await (run._streams.opened() if opened else run._streams.refused())
    return run.found.findings


def streaming(*events: str) -> Answer:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"Upgrade" in head:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in (*events, ""):
                writer.write(b"%x\r\n%s\r\n" % (len(event), event.encode()))
        writer.close()

    return answers


@pytest.fixture
def changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probes, "choice", lambda *_: 0)


@pytest.mark.usefixtures("changes_alone")
@pytest.mark.parametrize(
    ("events", "finding"),
    [
        ((": watching\n\n", 'event: error\ndata: {"code": "error", "detail": "planted"}\n\n'), "met a bug: planted"),
        ((": watching\n\n", "event: odd\ndata: {}\n\n"), "told 'event: odd"),
        (("event: began\ndata: {}\n\n",), "let in and told nothing"),
    ],
)
async def test_a_stream_that_tells_what_it_should_not_is_found(events: tuple[str, ...], finding: str) -> None:
    async with serving(streaming(*events)) as port:
        assert any(finding in each for each in await streamed(port, opened=True))


@pytest.mark.usefixtures("changes_alone")
async def test_a_sound_stream_is_no_finding() -> None:
    async with serving(streaming(": watching\n\n", "event: began\nid: AZAB\ndata: {}\n\n", ": heartbeat\n\n")) as port:
        assert await streamed(port, opened=True) == []


async def test_a_durable_stream_that_tells_what_it_should_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probes, "choice", lambda *_: 2)
    async with serving(streaming("event: control\ndata:{}\n\n", ": heartbeat\n\n")) as port:
        assert await streamed(port, opened=True) == []
    async with serving(streaming("event: began\ndata:{}\n\n")) as port:
        assert "told 'event: began" in (await streamed(port, opened=True))[0]


@pytest.mark.parametrize("status", ["101 Switching Protocols", "200 OK"])
async def test_a_stream_that_is_let_in_without_a_token_is_found(status: str) -> None:
    async with serving(saying(status)) as port:
        assert "was let in without a token" in (await streamed(port, opened=False))[0]


async def test_a_subscription_that_ends_by_a_bug_is_found() -> None:
    run = Run(OPTIONS, 1, "token", node.pid, lambda _: None)
    run._heard(b"\x91" + encode_end(7, ShoalError("planted")))
    run._heard(b"\x91" + encode_end(7, NotFound("gone")))
    assert run.found.findings == ["a call or a subscription met a bug: planted"]


async def test_the_time_bounds_a_run_of_any_size() -> None:
    async with serving(saying("401 Unauthorized")) as port:
        run = Run(FuzzOptions(frames=10**12, seed=1, minutes=0.001), port, "token", node.pid, lambda _: None)
        await run._each("requests before a token", 10**12, lambda: run._request(None))
        assert run.found.findings == []


async def test_computing_is_told_from_waiting() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        run = Run(OPTIONS, 1, "token", busy.pid, lambda _: None)
        while run._computed() < 0.1:
            await asyncio.sleep(0.02)
        busy.kill()
    run._took([], 5.0, 0.3)
    assert (run.found.slowest_s, run.found.computed_s) == (5.0, 0.3)


async def test_a_slow_probe_counts_if_it_is_slow_alone() -> None:
    answered = 0

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        await asyncio.sleep(0.2 if answered == 1 else 0.0)
        await saying("401 Unauthorized")(reader, writer)

    options = msgspec.structs.replace(OPTIONS, slow_s=0.1, frames=4)
    async with serving(slow) as port:
        run = Run(options, port, "token", node.pid, lambda _: None)
        asked = run._probes.request(None)
        await run._alone(asked)
        assert (run.found.findings, run.found.stalls) == ([], 1)

    async def always(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await saying("401 Unauthorized")(reader, writer)

    async with serving(always) as port:
        run = Run(options, port, "token", node.pid, lambda _: None)
        await run._alone(asked)
        assert "slow each time" in run.found.findings[0]


async def test_a_head_that_is_sent_alone_waits_for_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    async def headed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 273\r\n\r\n")
        await reader.read()

    monkeypatch.setattr(fuzzing, "ANSWER_S_MAX", 0.3)
    async with serving(headed) as port:
        run = Run(msgspec.structs.replace(OPTIONS, slow_s=0.1), port, "token", node.pid, lambda _: None)
        await run._alone(Asked("HEAD /v1/streams/a/b HTTP/1.1", b"HEAD /v1/streams/a/b HTTP/1.1\r\n\r\n"))
        assert (run.found.findings, run.found.stalls) == ([], 1)


def test_the_command_says_what_it_found_and_removes_what_is_sound() -> None:
    said = CliRunner().invoke(app, ["fuzz", "--frames", "8", "--seed", "7", "--slow", "20"])
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines()[0] == "seed 7"
    assert '"findings": []' in said.stdout
    assert "kept" not in said.stdout
