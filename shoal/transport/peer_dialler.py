"""Keep a link to each peer: dial, hold, dial again.

Laws:
- The addresses may change while it runs (`dial`).
- There is one task per address, and at most one link per node: an address that leads to
  a node which is linked by another address is refused.
- Attempts are spread: exponential delays up to `reconnect_delay_s_max`, drawn anew
  each time ("full jitter"). They start over after a link that lasted longer
  than the slowest of them. A peer that refused, or was refused, is dialled at the slowest pace.
- A peer that has just made a link to this node can be reached: it is dialled at once. If that link does not last, the
  next attempt is made at the usual pace, whatever links it makes meanwhile.
- An address that leads to this node itself is a mistake, which may be corrected while the
  node runs: it is reported, and dialled again at the slowest pace. It still counts as an owner.
- A link lasts no longer than the key that its other end proved is accepted (`rekeyed`).
- `reasons` says of each other address why there is no link now, if there is none.

One attempt to reach a peer: connect, shake hands, and say in plain words how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext

import aiohttp
from aiohttp import WSCloseCode

from shoal.cluster.handshake import HANDSHAKE_BYTES_MAX, NONCE_BYTES, Dialling, Side, refusal
from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.errors import Disconnected, Overloaded, PeerRefused, ShoalError, Unavailable, Unsupported
from shoal.logs import events
from shoal.transport.dialling import DialledSocket, why
from shoal.transport.peer_link import (
    BROKEN,
    CLOSE_S,
    PEER_PATH,
    LinkContext,
    PeerLink,
    accepts,
    check_names,
    side_of,
    why_closed,
)

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
            peer = await _shake_hands(socket, meeting, admit=admit, own=None if _is_named(tls) else config)
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


def _is_named(tls: SSLContext | None) -> bool:
    """Whether the certificate of who is dialled is compared with the address, or there is none."""
    return tls is None or tls.check_hostname


async def _shake_hands(socket: DialledSocket, meeting: Dialling, *, admit: Admit, own: Config | None = None) -> Identity | None:
    """`own`: the peer's certificate is compared with the name that it tells, as these settings say."""
    try:
        await socket.send_bytes(meeting.hello)
        proof = meeting.welcomed(await _answer(socket))
        assert meeting.peer is not None
        if own is not None:
            check_names(socket.connection.get_extra_info("peercert"), meeting.peer, own)
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


REKEYED = "the cluster has another key now"
DELAY_S_FIRST = 0.05  # Before the second attempt, at most; it doubles from there.

_SLOWEST = 16  # Failures in a row, after which the delay is at its bound.


class PeerDialler:
    """The links that this node dials. `start` and `stop` belong to a running event loop; stopping twice is allowed."""

    def __init__(self, context: LinkContext, addresses: Sequence[str]) -> None:
        self._peer = context.peer
        self._addresses = addresses
        self._config = context.config
        self._entropy = context.entropy
        self._report = context.report
        self._warn = context.warn
        self._tls = context.tls
        self._keys = context.keys
        self._held: set[PeerLink] = set()
        self._reasons: dict[str, str] = {}
        self._linked: dict[bytes, tuple[str, bytes]] = {}  # Node → the address by which it is linked, and its opening.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # Of addresses that are not dialled any more.
        self._hurried: dict[str, asyncio.Event] = {}
        self._has_started = False
        self._expect(addresses)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why there is no link to an address, for the addresses without one."""
        return self._reasons

    def start(self) -> None:
        """Begin to dial every address."""
        self._has_started = True
        self.dial(self._addresses)

    def dial(self, addresses: Sequence[str]) -> None:
        """Keep links to these addresses from now on, and end those to others."""
        self._expect(addresses)
        if not self._has_started:
            return
        for address in self._tasks.keys() - set(addresses):
            task = self._tasks.pop(address)
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for address in addresses:
            if address not in self._tasks:
                self._tasks[address] = asyncio.create_task(self._keep(address))

    def _expect(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        for address in self._reasons.keys() - set(addresses):
            del self._reasons[address]
        for address in addresses:
            if address not in self._hurried:
                self._hurried[address] = asyncio.Event()
                self._reasons[address] = "not dialled yet"
        for address in self._hurried.keys() - set(addresses):
            del self._hurried[address]

    async def stop(self) -> None:
        """Close every link, and dial no more; takes about a second at most."""
        self._has_started = False
        ending = [*self._tasks.values(), *self._leaving]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()

    async def rekeyed(self) -> None:
        """The keys have changed: end the links whose other end proved one that is not accepted any more (`Peers.rekeyed`)."""
        ring = self._keys()
        ending = [link for link in self._held if not accepts(ring, link.proven_key)]
        closing = (link.close(WSCloseCode.POLICY_VIOLATION, reason=REKEYED) for link in ending)
        await asyncio.gather(*closing, return_exceptions=True)

    def hurry(self, address: str) -> None:
        """The peer at this address is up: dial it at once, unless it is linked. Unknown addresses are ignored."""
        hurried = self._hurried.get(address)
        if hurried is not None and all(there != address for there, _ in self._linked.values()):
            hurried.set()

    async def _keep(self, address: str) -> None:
        failures, at_once, hurried = 0, False, self._hurried[address]
        while True:
            hurried.clear()
            failures = await self._once(address, failures=failures)
            if at_once and failures > 1:  # Two peers whose links do not last would go on dialling each other.
                at_once = False
                await asyncio.sleep(self._delay_s(failures))
                continue
            at_once = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self._delay_s(failures)):
                    await hurried.wait()
                    at_once = True

    async def _once(self, address: str, *, failures: int) -> int:
        """Make one attempt, and hold its link. Returns the number of failures in a row."""
        met: list[Identity] = []
        try:
            link = await self._dial(address, met)
            return 1 if await self._hold(address, link) else failures + 1
        except (Disconnected, Unavailable) as failure:
            self._fail(address, failure.message)
            return failures + 1
        except ShoalError as refusal:
            self._reasons[address] = refusal.message
            if isinstance(refusal, PeerRefused):
                self._peer.refused(address, refusal, met[0] if met else None)
            self._warn(events.PEER_REFUSES, address, refusal, address=address, code=refusal.code)
        except Exception as bug:
            self._reasons[address] = f"{type(bug).__name__}: {bug}"
            self._warn(events.PEER_REFUSES, address, bug, address=address, code="", bug=bug)
        return _SLOWEST

    async def _dial(self, address: str, met: list[Identity]) -> PeerLink:
        """Make one attempt. The node that is there is added to `met` once it has proven who it is."""

        def admit(peer: Identity) -> None:
            met.append(peer)
            there, its_opening = self._linked.get(peer.node, (address, peer.opening))
            if there != address:
                raise PeerRefused(
                    f"{address} is the node that is already linked as {there}. Nothing was written. Name it once."
                    if its_opening == peer.opening
                    else f"{address} and {there} have copies of one data directory. Nothing was written. Give each its own.",
                    reason="twice" if its_opening == peer.opening else "clone",
                )
            self._linked[peer.node] = address, peer.opening

        side = side_of(self._peer, config=self._config, ring=self._keys())
        try:
            return await dial(
                address, side=side, nonce=self._entropy(NONCE_BYTES), config=self._config, admit=admit, tls=self._tls()
            )
        except BaseException:
            self._forget(address)
            raise

    def _forget(self, address: str) -> None:
        for node in [node for node, (there, _) in self._linked.items() if there == address]:
            del self._linked[node]

    async def _hold(self, address: str, link: PeerLink) -> bool:
        """Serve as the node's outlet until the link is lost; True if it lasted."""
        clock = asyncio.get_running_loop().time
        began = clock()
        code, reason = WSCloseCode.GOING_AWAY, "the node is stopping"
        self._reasons.pop(address, None)
        self._report(events.PEER_LINKED, address=address, peer=link.peer.name, node=link.peer.node.hex())
        self._held.add(link)
        try:
            if not accepts(self._keys(), link.proven_key):  # They changed meanwhile.
                code, reason = WSCloseCode.POLICY_VIOLATION, REKEYED
                return False
            self._peer.linked(link.peer, link)
            reason = await link.run()
            code = WSCloseCode.POLICY_VIOLATION
        finally:
            self._held.discard(link)
            self._peer.unlinked(link.peer, link)
            self._forget(address)
            await link.close(code, reason=reason)
        self._fail(address, reason)
        return clock() - began > self._config.reconnect_delay_s_max

    def _fail(self, address: str, reason: str) -> None:
        """Report why there is no link. The same reason is reported once."""
        if address in self._hurried and self._reasons.get(address) != reason:
            self._reasons[address] = reason
            self._report(events.PEER_NOT_LINKED, address=address, reason=reason)

    def _delay_s(self, failures: int) -> float:
        bound_s = min(self._config.reconnect_delay_s_max, DELAY_S_FIRST * (1 << min(failures - 1, _SLOWEST)))
        return bound_s * int.from_bytes(self._entropy(2), "big") / 0xFFFF
