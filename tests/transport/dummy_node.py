"""A node that is links and a listener over real sockets, and notes what it is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TypeVar

from aiohttp import web

from shoal.cluster.handshake import Side
from shoal.cluster.peering import Identity, Outlet
from shoal.config import Config
from shoal.errors import PeerRefused, ShoalError
from shoal.logs.event import Event
from shoal.transport.keyring import Keyring
from shoal.transport.peer_dialler import dial
from shoal.transport.peer_link import PEER_PATH, LinkContext, PeerLink, Warnings
from shoal.transport.peers import Peers

CONFIG = Config(
    cluster_key="a secret of the nodes alone",
    reconnect_delay_s_max=0.02,
    connect_timeout_s=20.0,
    peer_connect_timeout_s=20.0,
    peer_message_bytes_max=1 << 20,
    peer_send_bytes_max=1 << 16,
)

_TURNS = 10
"""Of the loop, after which a connection that was accepted is known to its server, and closed with it."""

ENGINE = version("pycrdt")

_Result = TypeVar("_Result")


async def soon(what: Awaitable[_Result]) -> _Result:
    """Whatever a test waits for happens in milliseconds, or it has failed."""
    return await asyncio.wait_for(what, 20)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


class DummyNode:
    """A `Peer` with a listener and links; it notes what it is told."""

    def __init__(self, node: bytes, config: Config) -> None:
        self.node = node.ljust(16, b".")
        self.config = config
        self.port = 0
        self.links: asyncio.Queue[tuple[Identity, Outlet]] = asyncio.Queue()
        self.losses: asyncio.Queue[Identity] = asyncio.Queue()
        self.opening = os.urandom(16)
        self.inbox: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()  # Sender, message.
        self.refuse: ShoalError | None = None
        self.error: Exception | None = None  # Raised by what is received next.
        self.open = asyncio.Event()  # While it is not set, messages are being taken.
        self.open.set()
        self.taking = 0
        self.ring = Keyring(config.cluster_key)
        self.events: list[tuple[str, dict[str, object]]] = []
        self.refusals: list[tuple[str, Identity | None]] = []
        self.warned: list[str] = []  # Of these events those that were warnings.
        self.on_report: Callable[[], None] = lambda: None
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None  # In the place of its door's.

    # ── a Peer ────────────────────────────────────────────────────────────────

    def identity(self) -> Identity:
        return Identity(self.node, self.address, "test", opening=self.opening)

    def admit(self, peer: Identity, /) -> None:
        if self.refuse is not None:
            raise self.refuse

    def refused(self, address: str, error: PeerRefused, peer: Identity | None, /) -> None:
        self.refusals.append((address, peer))

    def linked(self, peer: Identity, outlet: Outlet, /) -> None:
        self.links.put_nowait((peer, outlet))

    def unlinked(self, peer: Identity, outlet: Outlet, /) -> None:
        self.losses.put_nowait(peer)

    async def received(self, peer: Identity, message: bytes, /) -> None:
        self.taking += 1
        assert self.taking == 1, "two messages at once"
        await self.open.wait()
        self.taking -= 1
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.inbox.put_nowait((peer.node.rstrip(b"."), message))

    # ── a process ─────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def listen(self) -> None:
        app = web.Application(middlewares=[_problems])
        app.router.add_get(PEER_PATH, self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        await web.SockSite(self._runner, self._listener).start()
        self.port = self._runner.addresses[0][1]

    def start(self, *addresses: str) -> None:
        warn = Warnings(self._warned)
        context = LinkContext(self, self.config, os.urandom, report=self._note, warn=warn, keys=lambda: self.ring)
        self.peers = Peers(context, addresses=addresses)
        self.peers.start()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return await (self.answer or self.peers.serve)(request)

    def _note(self, event: Event, /, **detail: object) -> None:
        self.on_report()
        self.events.append((event.name, detail))

    def _warned(self, event: Event, /, **detail: object) -> None:
        self._note(event, **detail)
        self.warned.append(event.name)

    def reported(self, *events: str) -> list[str]:
        return [str(detail.get("reason")) for name, detail in self.events if name in events]

    async def stop(self) -> None:
        await self.peers.stop()
        # asyncio leaks a connection that is accepted in the turn of the loop in which its server closes.
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await self._runner.cleanup()

    # ── what a test does ──────────────────────────────────────────────────────

    async def outlet(self) -> PeerLink:
        _, outlet = await soon(self.links.get())
        assert isinstance(outlet, PeerLink)
        return outlet

    async def reason(self, *events: str) -> str:
        """The first reason reported. A loss is told some turns of the loop earlier: how many depends on the Python."""
        await until(lambda: self.reported(*events))
        return self.reported(*events)[0]

    async def next(self) -> tuple[bytes, bytes]:
        return await soon(self.inbox.get())


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ShoalError as error:
        return web.Response(status=error.status)


Make = Callable[..., Awaitable[DummyNode]]


def side(name: bytes = b"c", *, opening: bytes = b"o" * 16, engine: str = ENGINE) -> Side:
    return Side(
        Identity(name.ljust(16, b"."), f"{name.decode()}:1", "test", opening=opening),
        "shoal",
        CONFIG.cluster_key.encode(),
        engine,
    )


@asynccontextmanager
async def dialled(node: DummyNode, name: bytes = b"c") -> AsyncIterator[PeerLink]:
    """A link that the test itself dials, and may misuse."""
    link = await dial(node.address, side=side(name), nonce=os.urandom(32), config=CONFIG, admit=lambda peer: None)
    assert link is not None
    try:
        yield link
    finally:
        await link.close(1000, reason="")


def raw(link: PeerLink) -> asyncio.Transport:
    return link._socket.connection
