"""One attempt to reach a peer: connect, shake hands, and say in plain words how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext

import aiohttp

from shoal.cluster.handshake import HANDSHAKE_BYTES_MAX, Dialling, Side, refusal
from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.errors import Disconnected, Overloaded, PeerRefused, ShoalError, Unavailable, Unsupported
from shoal.transport.dialling import why
from shoal.transport.peer import BROKEN, CLOSE_S, PEER_PATH, why_closed
from shoal.transport.peer_link import PeerLink
from shoal.transport.sockets import DialledSocket

Admit = Callable[[Identity], None]
"""Called with the peer that a handshake found; it may raise PeerRefused."""


async def dial(
    address: str, /, *, side: Side, nonce: bytes, config: Config, admit: Admit, tls: SSLContext | None = None
) -> PeerLink:
    """A link to the node at "host:port", with TLS if a context is given.

    Raises:
        Unsupported: only one of the two uses TLS, one does not trust the other's certificate, or there is another server.
        PeerRefused, InvalidInput: the two cannot work together, or do not understand each other; both are told why.
            Also if the address leads back to this node.
        Unavailable: it takes no links now.
        Disconnected: it cannot be reached, or did not answer in time.
    """
    limit_s = min(config.connect_timeout_s, config.peer_connect_timeout_s)
    http = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), ws_response_class=DialledSocket)
    link, socket = None, None
    try:
        async with asyncio.timeout(limit_s):
            socket = await _open(http, address, config=config, tls=tls)
            meeting = Dialling(side, nonce=nonce)
            peer = await _shake_hands(socket, meeting, admit=admit)
            if peer is None:
                raise _leads_back(address, side.identity.name)
            link = PeerLink(http, socket, address=address, peer=peer, proven_key=meeting.proven_key, config=config)
    except TimeoutError:
        raise Disconnected(f"{address} did not answer within {limit_s:g} s. Nothing was written.") from None
    except aiohttp.WSServerHandshakeError as reason:
        raise _refused(address, reason) from None
    except BROKEN as reason:
        # A cut connection looks like one that a listener with TLS closes: only asking it tells them apart.
        wants_tls = tls is None and _is_broken_off(reason) and await _speaks_tls(address, within_s=limit_s)
        raise _unreached(address, reason, tls=tls, wants_tls=wants_tls) from None
    finally:
        if link is None:
            if socket is not None:
                socket.cut()
            await http.close()
    return link


async def _open(http: aiohttp.ClientSession, address: str, *, config: Config, tls: SSLContext | None) -> DialledSocket:
    socket = await http.ws_connect(
        f"{'http' if tls is None else 'https'}://{address}{PEER_PATH}",
        ssl=True if tls is None else tls,
        heartbeat=config.peer_heartbeat_s,
        timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
        compress=0,
        max_msg_size=HANDSHAKE_BYTES_MAX + 1,  # An acceptor sends nothing larger.
    )
    assert isinstance(socket, DialledSocket)
    return socket


async def _shake_hands(socket: DialledSocket, meeting: Dialling, *, admit: Admit) -> Identity | None:
    try:
        await socket.send_bytes(meeting.hello)
        proof = meeting.welcomed(await _answer(socket))
        assert meeting.peer is not None
        admit(meeting.peer)
        await socket.send_bytes(proof)
        meeting.accepted(await _answer(socket))
        return meeting.peer
    except ShoalError as error:
        if not meeting.told:
            with suppress(*BROKEN):
                await socket.send_bytes(refusal(error))
        await socket.close()
        if meeting.itself:
            return None
        raise


async def _answer(socket: DialledSocket) -> bytes:
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is aiohttp.WSMsgType.TEXT:
        raise Unsupported("the peer sent a text message; links among peers carry binary messages only. Nothing was written.")
    raise Disconnected(f"{why_closed(message)}. Nothing was written.")


def _leads_back(address: str, own: str) -> PeerRefused:
    return PeerRefused(
        f"{address} leads to this node, which is {own} to its peers. It counts as an owner that cannot be reached. If the "
        f"address is meant for this node, start it with SHOAL_ADVERTISE={address}; if not, correct the address.",
        reason="self",
    )


_ALL_OR_NONE = "Nothing was written. Configure tls_cert, tls_key and tls_ca on all nodes of the cluster, or on none."


async def _speaks_tls(address: str, *, within_s: float) -> bool:
    """Whether a TLS handshake with an address succeeds, whatever its certificate."""
    anyone = SSLContext(PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, CERT_NONE
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=anyone)
    except (OSError, ValueError):  # TimeoutError and SSLError are OSErrors.
        return False
    writer.transport.abort()
    return True


def _unreached(address: str, reason: Exception, *, tls: SSLContext | None, wants_tls: bool) -> ShoalError:
    """The error for an attempt that led to no WebSocket."""
    if wants_tls:
        return Disconnected(f"{address} speaks TLS, and this node does not. {_ALL_OR_NONE}")
    if _is_broken_off(reason):
        told = f"{address} closed the connection without an answer: the network between the two may be cut, or it is stopping"
        if tls is None:
            return Disconnected(f"{told}. Nothing was written. This node tries again by itself.")
        # asyncio sends no alert if it ends a handshake: a refused certificate looks like this.
        return Disconnected(f"{told}; or it may not accept this node's certificate. {_ALL_OR_NONE}")
    if isinstance(reason, aiohttp.ClientConnectorCertificateError):
        told = why(reason, how="name it in tls_ca, on all nodes")
        return Unsupported(f"{address} is not trusted: {told}. Nothing was written.")
    if isinstance(reason, aiohttp.ClientSSLError):
        return Unsupported(f"{address} does not speak TLS, and this node does. {_ALL_OR_NONE}")
    return Disconnected(f"{address} cannot be reached: {why(reason)}. Nothing was written.")


def _is_broken_off(reason: Exception) -> bool:
    """Whether a connection was made, and ended without an answer that is HTTP."""
    if isinstance(reason, aiohttp.ClientConnectorError):
        return False
    return isinstance(reason, aiohttp.ServerDisconnectedError | aiohttp.ClientResponseError | aiohttp.ClientOSError)


def _refused(address: str, refusal: aiohttp.WSServerHandshakeError) -> ShoalError:
    if refusal.status == Overloaded.status:
        return Overloaded(f"{address} has no room for another link. Nothing was written.")
    if refusal.status == Unavailable.status:
        return Unavailable(f"{address} takes no links now. Nothing was written.")
    if refusal.status == PeerRefused.status:
        return Unsupported(f"{address} takes only peers that show a certificate of the cluster's CA. {_ALL_OR_NONE}")
    return Unsupported(
        f"{address} is no Shoal node that takes peers: it answered with status {refusal.status}. Nothing was written. "
        "Check the address."
    )
