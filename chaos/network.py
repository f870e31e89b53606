"""What lies between the nodes: a proxy before each, which knows who dials, and cuts what it is told to.

Laws:
- Nodes advertise the proxy's address and dial only such addresses: whatever one node
  sends to another passes here. Clients go to the nodes directly.
- A link carries operations from the node that dialled it: to cut one direction is to
  cut that link, and leave the one that its target dialled.
- The dialler is known from its hello, which is read on the way and never changed. It
  needs no privileges, and the nodes do not know that there is a proxy.
- A cut is `refused`, when connections are closed and new ones end at once, or `silent`,
  when nothing is delivered and nobody is told, until it is healed or given up on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from shoal.cluster.handshake import PeerHello

Cut = Literal["refused", "silent"]

_CHUNK = 64 * 1024
_HEAD_MAX = 16 * 1024
_BROKEN = (OSError, EOFError, asyncio.LimitOverrunError)

_hello = msgspec.msgpack.Decoder(PeerHello)


class Route(NamedTuple):
    """One direction between two nodes."""

    source: str
    target: str


class Network:
    """`addresses` are those of the proxies, by node. Use as an asynchronous context."""

    def __init__(self, names: Iterable[str]) -> None:
        self.addresses: dict[str, str] = dict.fromkeys(names, "")
        self.passed: defaultdict[Route, int] = defaultdict(int)  # Bytes that were delivered.
        self._ports: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._cuts: dict[Route, Cut] = {}
        self._open: defaultdict[Route, asyncio.Event] = defaultdict(_set_event)
        self._pipes: dict[asyncio.Task[None], Route | None] = {}

    async def __aenter__(self) -> Network:
        for name in self.addresses:
            server = await asyncio.start_server(self._serving(name), "127.0.0.1", 0, limit=_HEAD_MAX)
            self._servers.append(server)
            host, port = server.sockets[0].getsockname()[:2]
            self.addresses[name] = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for pipe in list(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def place(self, ports: Mapping[str, int]) -> None:
        """Say on which port of this machine each node listens."""
        self._ports.update(ports)

    @property
    def routes(self) -> list[Route]:
        return [Route(source, target) for source in self.addresses for target in self.addresses if source != target]

    def cut(self, routes: Iterable[Route], how: Cut) -> None:
        for route in routes:
            self._cuts[route] = how
            self._open[route].clear()
            if how == "refused":
                self._end(route)

    def isolate(self, name: str, how: Cut) -> None:
        """Cut a node off from all others, in both directions."""
        self.cut([route for route in self.routes if name in route], how)

    def heal(self, routes: Iterable[Route] | None = None) -> None:
        """Mend these directions, or all."""
        for route in self.routes if routes is None else routes:
            self._cuts.pop(route, None)
            self._open[route].set()

    def _end(self, route: Route) -> None:
        for pipe, its in list(self._pipes.items()):
            if its == route:
                pipe.cancel()

    def _serving(self, target: str) -> asyncio.streams._ClientConnectedCallback:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._pipes[task] = None
            try:
                await self._serve(task, target, reader, writer)
            except asyncio.CancelledError:
                pass  # It was cut, or the trial is over: asyncio would log the end of a server's task.
            except (*_BROKEN, ExceptionGroup):
                pass
            finally:
                del self._pipes[task]
                writer.close()

        return serve

    async def _serve(
        self, task: asyncio.Task[None], target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._ports[target])
        try:
            to_there.write(await reader.readuntil(b"\r\n\r\n"))
            writer.write(await there.readuntil(b"\r\n\r\n"))
            frame, message = await _frame(reader)
            route = self._pipes[task] = Route(self._source(message), target)
            if self._cuts.get(route) == "refused":
                return
            await self._passable(route)
            to_there.write(frame)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(route, reader, to_there))
                group.create_task(self._pump(route, there, writer))
        finally:
            to_there.close()

    async def _passable(self, route: Route) -> None:
        while not self._open[route].is_set():  # Once more: it may have been healed and cut again before this went on.
            await self._open[route].wait()

    def _source(self, message: bytes) -> str:
        with suppress(msgspec.DecodeError):
            name = _hello.decode(message).name
            for node, address in self.addresses.items():
                if address == name:
                    return node
        return ""

    async def _pump(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._passable(route)
            self.passed[route] += len(chunk)
            writer.write(chunk)
            await writer.drain()
        raise EOFError  # One end has closed: so does the other, by the end of the group.


async def _frame(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The first frame of a WebSocket's client, as it came and as it was meant (RFC 6455, 5.2)."""
    head = await reader.readexactly(2)
    size = head[1] & 0x7F
    if size >= 126:
        extended = await reader.readexactly(2 if size == 126 else 8)
        head, size = head + extended, int.from_bytes(extended, "big")
    mask = await reader.readexactly(4) if head[1] & 0x80 else b""
    payload = await reader.readexactly(min(size, _HEAD_MAX))
    meant = bytes(byte ^ mask[nth % 4] for nth, byte in enumerate(payload)) if mask else payload
    return head + mask + payload, meant


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
