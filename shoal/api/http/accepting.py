"""Accepts connections that begin with a TLS handshake, and counts them from their first packet.

Laws:
- Connections that shake hands are among the `connections_max`, and among those of their address. A few more are let through
  to be told that there is no place; beyond these a connection is closed at once, before any of the handshake's work is done.
- A connection that has not finished its handshake after `tls_handshake_s` is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from ssl import SSLContext

from shoal.api.http.places import Places, address_of
from shoal.config import Config

_ACCEPTED_MAX = 16  # In one turn of the loop.
_AGAIN_S = 0.5  # After the system refused to accept: it may be out of file descriptors.


async def check_free(host: str, port: int) -> None:
    """Check that a port of a host can be listened on, without listening.

    Raises:
        OSError: as `listening`.
    """
    for made in await _bound(host, port):
        made.close()


async def listening(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of a host, as `loop.create_server` makes them.

    Raises:
        OSError: an address is in use, or is not of this machine.
    """
    sockets = await _bound(host, port)
    try:
        for made in sockets:
            made.listen(backlog)
    except BaseException:
        for made in sockets:
            made.close()
        raise
    return sockets


async def _bound(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
            made.setblocking(False)
    except BaseException:
        for made in sockets:
            made.close()
        raise
    return sockets


class TlsServer:
    """Accepts on these sockets until it is closed. `connection` makes the protocol of each; `places` has the open ones."""

    def __init__(
        self,
        sockets: list[socket.socket],
        connection: Callable[[], asyncio.Protocol],
        tls: SSLContext,
        *,
        places: Places,
        config: Config,
    ) -> None:
        self.sockets = sockets
        self._connection = connection
        self._tls = tls
        self._places = places
        self._shaking_of: Counter[str] = Counter()
        self._config = config
        self._shaking: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        for each in sockets:
            self._listen(each)

    def close(self) -> None:
        """Accept no more, and end those that shake hands."""
        self._is_closed = True
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()
        for task in self._shaking:
            task.cancel()

    def _listen(self, listener: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Take what waits. Nothing is awaited before the task that closes the connection, however it ends."""
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(listener)
                self._loop.call_later(_AGAIN_S, self._listen, listener)
                return
            address = address_of(peer)
            shaking = {"shaking": len(self._shaking), "of_address": self._shaking_of[address]}
            if not self._places.lets_shake(address, **shaking):
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._shake(accepted))
            self._shaking.add(task)
            self._shaking_of[address] += 1
            task.add_done_callback(partial(self._shaken, accepted, address))

    def _shaken(self, accepted: socket.socket, address: str, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        self._shaking_of[address] -= 1
        if not self._shaking_of[address]:
            del self._shaking_of[address]
        if task.cancelled():
            accepted.close()  # It may not have begun.

    async def _shake(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._config.tls_handshake_s,
                ssl_shutdown_timeout=self._config.heartbeat_s,
            )
        except BaseException as reason:
            accepted.close()
            # It is gone, or does not speak TLS 1.3 (an SSLError is an OSError): nobody is to be told.
            if not isinstance(reason, OSError):
                raise
