"""A run: one node in a process of its own, so many probes before a token is shown and as many after, and what was found.

Laws:
- A finding is: the node ended; an answer or a session said that a bug was met; a probe that took longer than the bound did so
  again alone; the node's memory went beyond its bound; its directory does not verify.
- What the machine's other load delays is no finding: a slow probe is sent again, alone, and counts if it is slow each time.
- Whatever ends the run ends the node.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec

from chaos.cluster import START_S_MAX, STOP_S_MAX, NodeFailed, last_words
from chaos.engine import outliving_nobody
from chaos.fuzz.probes import SPACE, Asked, Probes
from chaos.fuzz.streams import ANSWER_S_MAX, Streams
from chaos.processes import PROGRAM
from shoal.access import grants, keys
from shoal.protocol.frames import (
    PROTOCOL,
    EndFrame,
    ErrorFrame,
    Hello,
    PushFrame,
    ReplyFrame,
    decode_node_frames,
    encode_call,
    encode_hello,
)
from shoal.protocol.requests import ListSpaces

_PING = 1 << 40  # The id of a call that must be answered; probes have lower ones.
_BATCH = 50  # Frames before it.
_BATCHES = 40  # In one session.
_AT_ONCE = 4
_SLOW_MAX = 100  # That are sent again.
_SAID_EVERY_S = 30.0
_KINDS = 6  # Of probes.
_BUG = "error"
"""The code of an error that is no error of the caller's."""


class FuzzOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    frames: int  # Probes before a token is shown, and as many after.
    seed: int
    slow_s: float = 1.0
    memory_mb: int = 1024
    minutes: float | None = None  # Of all kinds of probes together; then it ends, with what was sent by then.


class Found(msgspec.Struct):
    """What a run did and found."""

    seed: int
    sent: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # By kind: bytes, requests and streams before; frames, requests and streams after.
    seconds: float = 0.0
    answers: dict[str, int] = msgspec.field(default_factory=dict)  # By status.
    slowest_s: float = 0.0
    computed_s: float = 0.0  # The most processor time that the node took during one probe, for that and those beside it.
    stalls: int = 0  # Probes that were slow beside others, and quick alone.
    memory_mb: int = 0  # The most that the node held.
    findings: list[str] = msgspec.field(default_factory=list)


class Run:
    """The probes of a run, and what came of them."""

    def __init__(self, options: FuzzOptions, port: int, token: str, pid: int, say: Callable[[str], None]) -> None:
        self.found = Found(options.seed)
        self._options, self._port, self._token, self._pid, self._say = options, port, token, pid, say
        self._probes = Probes(options.seed)
        self._answers: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._slow: list[Asked | list[bytes]] = []
        self._streams = Streams(self._probes, port, token, answers=self._answers, findings=self.found.findings, took=self._took)
        self._said_s = time.monotonic()

    def _computed(self) -> float:
        return computed_s(self._pid)

    async def all(self) -> Found:
        """Send everything."""
        begun = time.monotonic()
        third = self._options.frames // 3
        await self._each("bytes before a token", self._options.frames - 2 * third, self._some_bytes)
        await self._each("requests before a token", third, lambda: self._request(None))
        await self._each("streams before a token", third, self._streams.refused)
        await self._each("frames after", self._options.frames - 2 * third, lambda: self._session(self._probes.frame))
        await self._each("requests after", third, lambda: self._request(self._token))
        await self._each("streams after", third, self._stream)
        for probe in self._slow[:_SLOW_MAX]:
            await self._alone(probe)
        self.found.seconds = round(time.monotonic() - begun, 1)
        self.found.sent, self.found.answers = dict(self._sent), dict(sorted(self._answers.items()))
        return self.found

    async def _each(self, kind: str, count: int, send: Callable[[], Awaitable[int]]) -> None:
        """Have `send` send until there are so many, or the time is over; it returns how many it sent."""

        minutes = self._options.minutes
        ends_s = time.monotonic() + (1e9 if minutes is None else 60 * minutes / _KINDS)

        async def work() -> None:
            while self._sent[kind] < count and len(self.found.findings) < _SLOW_MAX and time.monotonic() < ends_s:
                try:
                    sent = await send()
                except OSError as error:
                    self.found.findings.append(f"{kind}: the node cannot be reached: {error}")
                    return
                self._sent[kind] += sent
                self._look(kind, count)

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    def _look(self, kind: str, count: int) -> None:
        if time.monotonic() - self._said_s > _SAID_EVERY_S:
            self._said_s = time.monotonic()
            self._say(
                f"{self._sent[kind]:,} of {count:,} {kind}; {self.found.memory_mb} MB; {len(self.found.findings)} findings"
            )
        if sum(self._sent.values()) % 100 < _BATCH:
            self.found.memory_mb = max(self.found.memory_mb, memory_mb(self._pid))
            if self.found.memory_mb > self._options.memory_mb and not any("MB" in each for each in self.found.findings):
                self.found.findings.append(f"{kind}: the node holds {self.found.memory_mb} MB")

    # ── before a token, and over HTTP ─────────────────────────────────────────

    async def _some_bytes(self) -> int:
        """Send bytes, end the sending side, and wait until the node closes."""
        probe, begun, computed = self._probes.wrong_bytes(), time.monotonic(), self._computed()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        with suppress(ConnectionError):
            writer.write(probe)
            writer.write_eof()
            async with asyncio.timeout(ANSWER_S_MAX):
                while await reader.read(1 << 16):
                    pass
        self._took(Asked(f"the bytes {probe[:200]!r}", b""), time.monotonic() - begun, self._computed() - computed)
        writer.transport.abort()
        return 1

    async def _request(self, token: str | None) -> int:
        """Send requests over one connection, until the node closes it."""
        sent = 0
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        while sent < _BATCH:
            asked = self._probes.request(token)
            sent += 1
            begun, computed = time.monotonic(), self._computed()
            writer.write(asked.raw)
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    status, stays = await answer(reader)
            except TimeoutError:
                status, stays = "none", False
            except (ConnectionError, asyncio.IncompleteReadError):
                status, stays = "closed", False
            computed = self._computed() - computed
            self._took(asked, time.monotonic() - begun, computed)
            self._answers[status] += 1
            if status in ("500", "none") or (token is None and status.startswith("2") and not _is_open(asked)):
                self.found.findings.append(
                    f"{asked.what} was answered with {status} (the node computed {computed:.1f} s meanwhile): {asked.raw!r}"
                )
            if not stays:
                break
        writer.transport.abort()
        return sent

    # ── with a token ──────────────────────────────────────────────────────────

    async def _stream(self) -> int:
        return await (self._session(self._probes.watching) if self._probes.choice(1, 20) == 0 else self._streams.opened())

    async def _session(self, frame: Callable[[], bytes]) -> int:
        sent = 0
        async with aiohttp.ClientSession() as http:
            opened = await http.ws_connect(
                f"http://127.0.0.1:{self._port}/v1/session", headers={"Authorization": f"Bearer {self._token}"}, max_msg_size=0
            )
            await opened.send_bytes(encode_hello(Hello(PROTOCOL, "fuzz")))
            await opened.receive_bytes()
            for _ in range(_BATCHES):
                some = [frame() for _ in range(_BATCH)]
                sent += len(some)
                begun, computed = time.monotonic(), self._computed()
                is_open = await self._answered(opened, some)
                self._took(some, time.monotonic() - begun, self._computed() - computed)
                if not is_open:
                    break
            await opened.close()
        return sent

    async def _answered(self, opened: aiohttp.ClientWebSocketResponse, some: list[bytes]) -> bool:
        """Send frames, and then a call; return whether it was answered, rather than the session closed."""
        with suppress(ConnectionError):
            for frame in some:
                await opened.send_bytes(frame)
            await opened.send_bytes(b"\x91" + encode_call(_PING, ListSpaces(), key=None))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                while True:
                    message = await opened.receive()
                    if message.type is not aiohttp.WSMsgType.BINARY:
                        self._answers[f"closed {opened.close_code}"] += 1
                        if opened.close_code == aiohttp.WSCloseCode.INTERNAL_ERROR:
                            self.found.findings.append(f"a session met a bug after {some!r}")
                        return False
                    if self._heard(message.data):
                        return True
        except TimeoutError:
            self.found.findings.append(f"a call was not answered after {some!r}")
            return False

    def _heard(self, message: bytes) -> bool:
        """Count the frames of a message; return whether the last call is answered."""
        for frame in decode_node_frames(message):
            if isinstance(frame, PushFrame):
                self._answers["push"] += 1
            if isinstance(frame, ErrorFrame | EndFrame) and frame.fault is not None:
                self._answers[frame.fault.code] += 1
                if frame.fault.code == _BUG:
                    self.found.findings.append(f"a call or a subscription met a bug: {frame.fault.message}")
            if isinstance(frame, ReplyFrame):
                if frame.id == _PING:
                    return True
                self._answers["reply"] += 1
        return False

    # ── time ──────────────────────────────────────────────────────────────────

    def _took(self, probe: Asked | list[bytes], seconds: float, computed: float = 0.0) -> None:
        self.found.slowest_s = max(self.found.slowest_s, round(seconds, 3))
        self.found.computed_s = max(self.found.computed_s, round(computed, 2))
        if seconds > self._options.slow_s:
            self._slow.append(probe)

    async def _alone(self, probe: Asked | list[bytes]) -> None:
        """Send a slow probe again, three times."""
        took = []
        for _ in range(3):
            begun = time.monotonic()
            if isinstance(probe, list):
                async with aiohttp.ClientSession() as http:
                    opened = await http.ws_connect(
                        f"http://127.0.0.1:{self._port}/v1/session", headers={"Authorization": f"Bearer {self._token}"}
                    )
                    await opened.send_bytes(encode_hello(Hello(PROTOCOL, "fuzz")))
                    await opened.receive_bytes()
                    begun = time.monotonic()
                    await self._answered(opened, probe)
                    took.append(time.monotonic() - begun)
                    await opened.close()
                continue
            if not probe.raw:
                break  # Its time was that of closing a connection.
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
            writer.write(probe.raw)
            with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(ANSWER_S_MAX):
                    await (reader.readuntil(b"\r\n\r\n") if probe.what.startswith("HEAD") else answer(reader))
            took.append(time.monotonic() - begun)
            writer.transport.abort()
        if took and min(took) > self._options.slow_s:
            self.found.findings.append(f"slow each time, {min(took):.1f} s: {probe!r:.2000}")
        else:
            self.found.stalls += 1


def _is_open(asked: Asked) -> bool:
    path = asked.what.partition(" ")[2].partition("?")[0]
    return path.startswith("/ui/") or path in (
        "/",
        "/docs",
        "/docs/rapidoc.js",
        "/healthz",
        "/readyz",
        "/v1/openapi.json",
        "/v1/access/cookie",
    )


async def answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """The status of an HTTP answer, which is read whole, and whether the connection stays."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    while head.startswith("http/1.1 100"):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = head[9:12]
    if length := re.search(r"\r\ncontent-length: (\d+)", head):
        await reader.readexactly(int(length[1]))
    elif "transfer-encoding: chunked" in head:
        while size := int((await reader.readline()).strip() or b"0", 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return status, "connection: close" not in head and status != "101"


def computed_s(pid: int) -> float:
    """The processor time that a process took, in seconds; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> int:
    """What a process holds in memory; 0 where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return 0 if found is None else int(found[1]) // 1024


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[tuple[Process, int, str]]:
    """A node that asks for tokens, its port, and a token that may do everything in one space and read all others.

    Raises:
        NodeFailed: it does not start.
    """
    keys.found(directory / "tokens")
    allowed = [grants.parsed(each) for each in (f"{SPACE}:admin,impersonate,reveal", "*:read")]
    _, token = keys.issue(
        directory / "tokens",
        "fuzz",
        allowed,
        cluster="shoal",
        now_s=time.time(),
        lasts_s=10 * 24 * 3600.0,
        entropy=os.urandom,
        bytes_max=1 << 16,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    log = directory / "node.log"
    settings = ("token_failures_max=1000000000", "journal_wait_s_max=0.01", "lease_poll_s=0.05", "stream_poll_s=0.05")
    options = [part for each in settings for part in ("--set", each)]
    serve = ["serve", "--data", str(directory / "state"), "--listen", f"127.0.0.1:{port}"]
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *outliving_nobody((*PROGRAM, *serve, "--token-keys", str(directory / "tokens" / keys.KEYS), *options)),
            stdin=DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        await _ready(process, port, log)
        yield process, port, token
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S_MAX)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(process: Process, port: int, log: Path) -> None:
    ends = time.monotonic() + START_S_MAX
    while time.monotonic() < ends and process.returncode is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise NodeFailed(f"the node did not start:\n{last_words(log)}")


async def run(options: FuzzOptions, directory: Path, *, say: Callable[[str], None]) -> Found:
    """Probe a node, and judge what it leaves.

    Raises:
        NodeFailed: it does not start.
    """
    async with node(directory) as (process, port, token):
        found = await Run(options, port, token, process.pid, say).all()
        if process.returncode is not None:
            found.findings.append(f"the node ended with {process.returncode}:\n{last_words(directory / 'node.log')}")
    found.findings += await _left(directory)
    return found


async def _left(directory: Path) -> list[str]:
    """What the log and the directory say afterwards."""
    log = (directory / "node.log").read_text(errors="replace")
    found = [f"the log has a traceback:\n{last_words(directory / 'node.log')}"] if "Traceback" in log else []
    verify = await asyncio.create_subprocess_exec(
        *PROGRAM, "verify", str(directory / "state"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await verify.communicate()
    if verify.returncode:
        found.append(f"the directory does not verify:\n{said.decode(errors='replace')[-2000:]}")
    return found


def told(found: Found) -> str:
    """What a run did, on one line of JSON."""
    return json.dumps(msgspec.to_builtins(found), ensure_ascii=False)
