"""Connections as a node takes them: their acceptance, their number, and the bytes that wait in each.

Accepts connections that begin with a TLS handshake, and counts them from their first packet.

Laws:
- Connections that shake hands are among the `connections_max`, and among those of their address. A few more are let through
  to be told that there is no place; beyond these a connection is closed at once, before any of the handshake's work is done.
- A connection that has not finished its handshake after `TLS_HANDSHAKE_S` is closed.

The places of a node's connections: who may open one more.

Laws:
- No address takes all places: one has a share, and the last `CONNECTIONS_KEPT` are for addresses that have few. So what one
  machine opens, however many and however slow, keeps no peer, no probe and no operator out.
- An address of IPv6 is its /64, because that is what one host gets.

Bytes of an answer that wait in a connection.

With TLS, a transport counts what it has not encrypted and what it holds back; the connection below it holds up to one more
write, which is not counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address, IPv6Network
from ssl import SSLContext

from shoal.config import Config

CONNECTIONS_KEPT = 64  # The last places, for addresses that have few connections: peers, probes and operators.
TLS_HANDSHAKE_S = 10.0  # A connection that has not finished the handshake after this is closed.

FEW = 8
"""Connections of an address that may take one of the kept places: a peer's links, or a probe."""
TOLD_MAX = 16
"""Connections above a bound that are told so: after a handshake, as without one nothing can be said."""


class Places:
    """The connections that are open, by address."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._held: Counter[str] = Counter()
        self._all = 0

    def take(self, address: str) -> str:
        """Count a connection, which must `leave` in any case. Why there is no place for it; empty if there is one."""
        self._held[address] += 1
        self._all += 1
        held, config = self._held[address], self._config
        if self._all > config.connections_max:
            return f"the node has {config.connections_max} connections, which is its maximum"
        if held > config.connections_address_max:
            return f"{address or 'its address'} has {config.connections_address_max} connections, the maximum of one address"
        kept = min(CONNECTIONS_KEPT, config.connections_max // 8)
        if held > FEW and self._all > config.connections_max - kept:
            return f"the node keeps its last {kept} connections for addresses with at most {FEW}"
        return ""

    def leave(self, address: str) -> None:
        """A connection has ended."""
        self._all -= 1
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]

    def lets_shake(self, address: str, *, shaking: int, of_address: int) -> bool:
        """Whether one more may shake hands, beside those that do. A few beyond the bounds may, to be told why not."""
        config = self._config
        return (
            self._all + shaking < config.connections_max + TOLD_MAX
            and self._held[address] + of_address < config.connections_address_max + TOLD_MAX
        )


def address_of(peer: object) -> str:
    """The address that a connection counts for, from its socket's peer name; empty if it has none."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))


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
                ssl_handshake_timeout=TLS_HANDSHAKE_S,
                ssl_shutdown_timeout=self._config.heartbeat_s,
            )
        except BaseException as reason:
            accepted.close()
            # It is gone, or does not speak TLS 1.3 (an SSLError is an OSError): nobody is to be told.
            if not isinstance(reason, OSError):
                raise


def unsent_bytes(transport: asyncio.WriteTransport | None) -> int:
    """Bytes in the write buffer; 0 if there is no connection any more."""
    if transport is None:
        return 0
    try:
        return transport.get_write_buffer_size()
    except AttributeError:  # asyncio's TLS transport, once it was closed twice: it has let go of its buffer.
        return 0


def is_encrypted(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the connection uses TLS."""
    return transport is not None and transport.get_extra_info("sslcontext") is not None
