"""What lies between the nodes, and is cut; `Relays` are a proxy before each node, which knows who dials.

Laws:
- A link carries operations from the node that dialled it: to cut one direction is to
  cut that link, and leave the one that its target dialled.
- A cut is `refused`, when connections are closed and new ones end at once, or `silent`,
  when nothing is delivered and nobody is told, until it is healed or given up on.
- If one node is deaf to another, nothing that the other sends arrives over either link, and
  whatever it sends itself does.
- Nodes advertise the proxy's address and dial only such addresses: whatever one node
  sends to another passes here. Clients go to the nodes directly.
- The dialler is known from its hello, which is read on the way and never changed. It
  needs no privileges, and the nodes do not know that there is a proxy.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
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


class Network(ABC):
    """Between nodes with these names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    @property
    def routes(self) -> list[Route]:
        return [Route(source, target) for source in self.names for target in self.names if source != target]

    @abstractmethod
    async def cut(self, routes: Iterable[Route], how: Cut) -> None:
        """Cut these links."""

    async def isolate(self, name: str, how: Cut) -> None:
        """Cut a node off from all others, in both directions."""
        await self.cut([route for route in self.routes if name in route], how)

    @abstractmethod
    async def deafen(self, route: Route) -> None:
        """Deliver nothing that the source sends to the target, over any link; the other way all arrives."""

    @abstractmethod
    async def heal(self) -> None:
        """Mend all that was cut, and let all hear each other."""


class Relays(Network):
    """`addresses` are those of the proxies, by node. Use as an asynchronous context."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.addresses: dict[str, str] = dict.fromkeys(self.names, "")
        self.passed: defaultdict[Route, int] = defaultdict(int)  # Bytes that were delivered over a link.
        self.heard: defaultdict[Route, int] = defaultdict(int)  # Bytes of the source that were delivered to the target.
        self._ports: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._cuts: dict[Route, Cut] = {}
        self._open: defaultdict[Route, asyncio.Event] = defaultdict(_set_event)  # Of links.
        self._audible: defaultdict[Route, asyncio.Event] = defaultdict(_set_event)  # Of what a source sends, over any link.
        self._pipes: dict[asyncio.Task[None], Route | None] = {}

    async def __aenter__(self) -> Relays:
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

    async def cut(self, routes: Iterable[Route], how: Cut) -> None:
        for route in routes:
            self._cuts[route] = how
            self._open[route].clear()
            if how == "refused":
                self._end(route)

    async def deafen(self, route: Route) -> None:
        self._audible[route].clear()

    async def heal(self) -> None:
        self._cuts.clear()
        for event in (*self._open.values(), *self._audible.values()):
            event.set()

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
            back = Route(route.target, route.source)
            await self._passable(route, route)
            to_there.write(frame)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(route, route, reader, to_there))
                group.create_task(self._pump(route, back, there, writer))
        finally:
            to_there.close()

    async def _passable(self, link: Route, way: Route) -> None:
        waits = self._open[link], self._audible[way]
        while not all(event.is_set() for event in waits):  # Once more: it may have been healed and cut again meanwhile.
            for event in waits:
                await event.wait()

    def _source(self, message: bytes) -> str:
        with suppress(msgspec.DecodeError):
            name = _hello.decode(message).name
            for node, address in self.addresses.items():
                if address == name:
                    return node
        return ""

    async def _pump(self, link: Route, way: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._passable(link, way)
            self.passed[link] += len(chunk)
            self.heard[way] += len(chunk)
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
