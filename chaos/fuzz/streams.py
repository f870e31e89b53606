"""Streams that are opened and left: of changes, durable ones, sessions that watch, Yjs clients; with a token or without.

Laws:
- A stream that is let in says so at once, and each of its events is whole: a name, JSON, and an id by which it is continued
  later. An event that tells of a bug is a finding, and so is a WebSocket that is closed for one.
- Without a token none is let in. What comes right behind a request that is refused is not listened to.
- Nobody says farewell: a connection is cut wherever it is.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import aiohttp

from chaos.fuzz.probes import SPACE, Asked, Probes
from shoal.api.yjs.door import HOCUSPOCUS_PATH, YJS_PATH
from shoal.protocol.yjs import prefix

ANSWER_S_MAX = 30.0  # Then a stream counts as hung.
_QUIET_S = 0.02  # Then nothing more is expected of it.
_EVENTS = 8  # That are read of a stream.
_MESSAGES = 5  # Of a Yjs client.
_SEEN_MAX = 100  # Ids of events.
_NAMES = {"began", "change", "reset", "error"}
_ASKED = b"\x00\x00\x01\x00"  # What has the document that I lack?
_ANSWERED = b"\x00\x01"
_OPENED = b"\x02\x00\x00"  # A Hocuspocus provider opens a document, with the token of its WebSocket,
_LEFT = b"\x07"  # and the node ends it.
_BUG = "error"


class Streams:
    """Opens streams at one node, and notes what it saw. `took` is told how long it took until a stream answered."""

    def __init__(
        self,
        probes: Probes,
        port: int,
        token: str,
        *,
        answers: Counter[str],
        findings: list[str],
        took: Callable[[Asked, float], None],
    ) -> None:
        self._probes, self._port, self._token = probes, port, token
        self._answers, self._findings, self._took = answers, findings, took
        self._seen: deque[str] = deque(maxlen=_SEEN_MAX)
        self._offsets: deque[str] = deque(maxlen=_SEEN_MAX)

    async def refused(self) -> int:
        """Ask for one stream without a token."""
        match self._probes.choice(1, 1, 1):
            case 0:
                asked = self._probes.watch(None, self._seen)
            case 1:
                asked = self._probes.durable(None, self._offsets)
            case _:
                asked = self._probes.upgrade(None)
        status, _ = await self._sent(asked, self._left)
        if status == "101" or status.startswith("2"):
            self._findings.append(f"{asked.what} was let in without a token: {asked.raw!r}")
        return 1

    async def opened(self) -> int:
        """Open one stream with the token; returns how many probes were sent in it."""
        match self._probes.choice(3, 1, 4, 1):
            case 0:
                asked = self._probes.watch(self._token, self._seen)
                await self._sent(asked, self._events)
            case 1:
                await self._sent(self._probes.upgrade(self._token), self._left)
            case 2:
                asked = self._probes.durable(self._token, self._offsets)
                _, head = await self._sent(asked, self._durable)
                if offset := re.search(rb"(?i)\r\nstream-next-offset: (\S+)\r\n", head):
                    self._offsets.append(offset[1].decode("latin-1"))
            case _:
                return await self.document(self._probes.choice(1, 1) == 1)
        return 1

    async def _sent(self, asked: Asked, then: Callable[[asyncio.StreamReader, Asked], Awaitable[None]]) -> tuple[str, bytes]:
        """Send a request, read the head of its answer, and go on with what it opened; then cut the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        begun, head = time.monotonic(), b""
        try:
            writer.write(asked.raw)
            async with asyncio.timeout(ANSWER_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                while head.startswith(b"HTTP/1.1 100"):
                    head = await reader.readuntil(b"\r\n\r\n")
            status = head[9:12].decode("latin-1")
            self._took(asked, time.monotonic() - begun)
            if status in ("101", "200"):
                if status == "101":
                    writer.write_eof()
                async with asyncio.timeout(ANSWER_S_MAX):
                    await then(reader, asked)
        except TimeoutError:
            status = "none"
        except (ConnectionError, asyncio.IncompleteReadError):
            status = head[9:12].decode("latin-1") or "closed"
        finally:
            writer.transport.abort()
        self._answers[f"stream {status}"] += 1
        if status in ("500", "none"):
            self._findings.append(f"{asked.what} was answered with {status}: {asked.raw!r}")
        return status, head

    async def _durable(self, reader: asyncio.StreamReader, asked: Asked) -> None:
        """The events of a durable stream, if it tells any: each has a name, and says where it goes on."""
        told = b""
        with suppress(TimeoutError, ValueError):  # Not in chunks: it is no stream of events.
            async for chunk in _chunks(reader, _QUIET_S):
                told += chunk
                if told.count(b"\n\n") > _EVENTS:
                    break
        for event in told.decode("utf-8", "replace").split("\n\n")[:-1]:
            if not (found := re.match(r"event: (data|control|error)\n", event)) and not event.startswith(":"):
                self._findings.append(f"{asked.what} told {event!r}: {asked.raw!r}")
            elif found:
                self._answers[f"durable {found[1]}"] += 1

    async def _left(self, reader: asyncio.StreamReader, _: Asked) -> None:
        """Until the node closes, which it does once its peer has closed."""
        while await reader.read(1 << 16):
            pass

    async def _events(self, reader: asyncio.StreamReader, asked: Asked) -> None:
        if asked.what.startswith("HEAD"):
            return
        told = b""
        with suppress(TimeoutError):
            async for chunk in _chunks(reader):
                told += chunk
                if told.count(b"\n\n") > _EVENTS:
                    break
        if not told.startswith(b": watching\n"):
            self._findings.append(f"{asked.what} was let in and told nothing: {told[:200]!r}")
        for event in told.decode().split("\n\n")[:-1]:
            if not event.startswith(":"):
                self._event(event, asked)

    def _event(self, event: str, asked: Asked) -> None:
        found = re.fullmatch(r"event: (\w+)\n(?:id: (\S+)\n)?data: (.*)", event)
        if found is None or found[1] not in _NAMES:
            self._findings.append(f"{asked.what} told {event!r}")
            return
        told = json.loads(found[3])
        self._answers[f"event {found[1]}"] += 1
        if found[2]:
            self._seen.append(found[2])
        if found[1] == "error" and told["code"] == _BUG:
            self._findings.append(f"{asked.what} met a bug: {told['detail']}: {asked.raw!r}")

    async def document(self, hocuspocus: bool) -> int:
        """A client of a document, in either protocol, which asks for it in the end; returns how many probes it sent."""
        name = f"n{self._probes.choice(1, 1, 1)}"
        if hocuspocus:
            path, before, opening = HOCUSPOCUS_PATH.format(space=SPACE), prefix(name.encode()), [_OPENED]
        else:
            path, before, opening = YJS_PATH.format(space=SPACE, document=name), b"", []
        sent = [before + message for message in [*opening, *(self._probes.yjs() for _ in range(_MESSAGES))]]
        asked = Asked(f"a client of {path} that sent {sent!r}", b"")
        url = f"http://127.0.0.1:{self._port}{path}"
        async with aiohttp.ClientSession() as http:
            opened = await http.ws_connect(url, headers={"Authorization": f"Bearer {self._token}"}, max_msg_size=0)
            begun, heard = time.monotonic(), "closed"
            try:
                with suppress(ConnectionError):
                    for message in (*sent, before + _ASKED):
                        await opened.send_bytes(message)
                async with asyncio.timeout(ANSWER_S_MAX):
                    while (told := await opened.receive()).type is aiohttp.WSMsgType.BINARY:
                        if told.data.startswith(before + _ANSWERED):
                            heard = "answered"
                            break
                        if before and told.data.startswith(before + _LEFT):
                            break
            except TimeoutError:
                heard = "hung"
                self._findings.append(f"{asked.what} was neither answered nor closed")
            self._took(asked, time.monotonic() - begun)
            self._answers[f"{path.split('/')[2]} {heard}"] += 1
            if opened.close_code == aiohttp.WSCloseCode.INTERNAL_ERROR:
                self._findings.append(f"{asked.what} met a bug")
            await opened.close()
        return _MESSAGES


async def _chunks(reader: asyncio.StreamReader, quiet_s: float = ANSWER_S_MAX) -> AsyncIterator[bytes]:
    """The chunks of an answer, until it ends.

    Raises:
        TimeoutError: there was none for a while. The first one says that the stream is open.
    """
    while True:
        async with asyncio.timeout(quiet_s):
            size = int((await reader.readline()).strip() or b"0", 16)
            if not size:
                return
            chunk = await reader.readexactly(size + 2)
        yield chunk[:-2]  # Outside of the time-out, which would end whoever leaves this loop.
        quiet_s = _QUIET_S
