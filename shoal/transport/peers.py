"""All links of a node to its peers: those that it dials, and those that it accepts, with who is let in, and how seeds
lead to them.

Laws:
- Before the handshake is over, no peer is admitted and no message delivered. Until then a
  message has at most `HANDSHAKE_BYTES_MAX` bytes, and handshakes have places of their own: if
  these are taken, the oldest handshake ends, so that silent sockets keep no peer out.
- Messages of a link are delivered one after the other: the next is read once the
  node has taken the last, so the messages of a fast peer wait at the peer.
- Of one link at most `IN_A_ROW_MAX` messages are taken in a turn of the loop: reading what has come already is no pause.
- A link's error closes that link alone, with a reason; so does a handshake that
  takes too long. It is reported here, once.
- A newer link of the same node replaces the older one, and is read once the
  older one's last message was taken.
- A link lasts no longer than the key that its other end proved is accepted (`rekeyed`).
- If the node uses TLS, a peer that showed no certificate is refused before anything else; one whose certificate does not
  name its address, if `tls_peer_names` is "own", once it has proven the cluster's key.
- While a message is being taken no heartbeat can be read: each link sends its
  own, so that a busy node is not taken for a dead one.

Asks the nodes to which the seeds lead who they are, until the members of the cluster are known.

Laws:
- Names are resolved anew for each round; rounds are spread, with pauses that double up to `reconnect_delay_s_max`.
- A name may lead to several addresses, to none, or to this node itself: what leads nowhere is reported once.
- An answer is believed once it is proven, as in every handshake. If `tls_peer_names` is "own", whoever gives it shows a
  certificate that names it: not the address at which it was found, which no certificate does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Protocol

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.http_websocket import WebSocketReader

from shoal.cluster.handshake import ACCEPTED, HANDSHAKE_BYTES_MAX, NAME_CHARS_MAX, NONCE_BYTES, Accepting, refusal
from shoal.cluster.membership.notices import FOUND_MAX
from shoal.cluster.peering import Identity
from shoal.errors import Disconnected, InvalidValue, Overloaded, PeerRefused, ShoalError, ShuttingDown, Unavailable
from shoal.logs import events
from shoal.tls.contexts import key_of
from shoal.transport.peer_dialler import REKEYED, PeerDialler, dial
from shoal.transport.peer_link import (
    BROKEN,
    CLOSE_S,
    STALLED_BEATS,
    LinkContext,
    accepts,
    check_names,
    close_code,
    reason_of,
    side_of,
    why_closed,
)

PAUSE_S_FIRST = 0.05
ASKED = "asked"
"""The reason with which a node ends a handshake in which it only asked."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Finds the addresses, "ip:port", of a host and a port. Raises OSError."""


class Seeding(Protocol):
    """The node, as it wants to know its members."""

    @property
    def is_over(self) -> bool:
        """Whether nobody need be asked any more."""
        ...

    @property
    def told(self) -> str:
        """For people: what is missing."""
        ...

    async def heard(self, peers: list[Identity], /) -> None:
        """Take what one round has found."""
        ...


async def resolved(host: str, port: int) -> list[str]:
    """Ask the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for *_, address in found]
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in dict.fromkeys(hosts)]


class Seeds:
    """`addresses` are the configured ones. `seeding` gets what is found."""

    def __init__(
        self, context: LinkContext, seeding: Seeding, *, addresses: Sequence[str], resolve: Resolve = resolved
    ) -> None:
        self._peer = context.peer
        self._seeding = seeding
        self._addresses = addresses
        self._config = context.config
        self._entropy = context.entropy
        self._report = context.report
        self._resolve = resolve
        self._tls = context.asking
        self._keys = context.keys
        self._reported: dict[str, str] = {}  # By seed or address: why it led nowhere.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s, told = PAUSE_S_FIRST, ""
        while not self._seeding.is_over:
            found = [peer for peer in await asyncio.gather(*map(self._ask, await self._found())) if peer is not None]
            try:
                await self._seeding.heard(found)
            except ShoalError as error:  # Storage failed; the node says so.
                self._note("storage", error.message)
            if self._seeding.told not in ("", told):
                told = self._seeding.told
                self._report(events.MEMBERS_UNKNOWN, reason=told)
            await asyncio.sleep(pause_s * (0.5 + self._entropy(1)[0] / 512))
            pause_s = min(2 * pause_s, self._config.reconnect_delay_s_max)

    async def _found(self) -> list[str]:
        """The addresses to which the seeds lead now."""
        found: dict[str, None] = {}
        for seed in self._addresses:
            host, _, port = seed.rpartition(":")
            try:
                async with asyncio.timeout(self._config.peer_connect_timeout_s):
                    addresses = await self._resolve(host, int(port))
            except (OSError, TimeoutError) as reason:
                self._note(seed, f"the name cannot be resolved: {reason or 'no answer in time'}")
                continue
            if not addresses:
                self._note(seed, "the name leads to no address")
            found.update(dict.fromkeys(addresses))
        return list(found)[:FOUND_MAX]

    async def _ask(self, address: str) -> Identity | None:
        """The identity of the node at this address; None if there is none, or it is this one."""
        told: list[Identity] = []

        def admit(peer: Identity) -> None:
            told.append(peer)
            raise PeerRefused("the node only asked who is there. Nothing was written.", reason=ASKED)

        side = side_of(self._peer, config=self._config, ring=self._keys())
        try:
            await dial(address, side=side, nonce=self._entropy(NONCE_BYTES), config=self._config, admit=admit, tls=self._tls())
        except PeerRefused as refusal:
            if refusal.detail.get("reason") not in (ASKED, "self"):
                self._note(address, refusal.message)
        except (Disconnected, Unavailable) as failure:
            self._note(address, failure.message)
        except ShoalError as error:
            self._note(address, error.message)
        return told[0] if told else None

    def _note(self, about: str, reason: str) -> None:
        """Report why something led nowhere, unless that was reported last."""
        if self._reported.get(about) != reason:
            self._reported[about] = reason
            self._report(events.SEED_LEADS_NOWHERE, seed=about, reason=reason)


IN_A_ROW_MAX = 64  # Messages of a link that are taken in one turn of the loop, if taking them needs no other.


class Peers:
    """The links to all peers. `serve` handles `PEER_PATH`; call `start` once the listener listens, `stop` before it stops.

    `addresses` ("host:port") are dialled. `seeding` learns who is at the `seeds`, until it is over.
    """

    def __init__(
        self,
        context: LinkContext,
        *,
        addresses: Sequence[str],
        seeding: Seeding | None = None,
        seeds: Sequence[str] = (),
        resolve: Resolve = resolved,
    ) -> None:
        self._dialler = PeerDialler(context, addresses)
        self._seeds = None if seeding is None else Seeds(context, seeding, addresses=seeds, resolve=resolve)
        self._door = PeerDoor(context, accepted=self._dialler.hurry)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why there is no link to an address, for the addresses without one."""
        return self._dialler.reasons

    def start(self) -> None:
        """Begin to dial."""
        self._dialler.start()
        if self._seeds is not None:
            self._seeds.start()

    def dial(self, addresses: Sequence[str]) -> None:
        """Keep links to these addresses from now on."""
        self._dialler.dial(addresses)

    async def rekeyed(self) -> None:
        """The keys have changed: end the links whose other end proved one that is not accepted any more."""
        await self._dialler.rekeyed()
        await self._door.rekeyed()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one peer until it leaves.

        Raises:
            ShuttingDown, Overloaded: the node takes no more links.
        """
        return await self._door.serve(request)

    async def stop(self) -> None:
        """Close every link, and make no more; takes about a second or two at most."""
        if self._seeds is not None:
            await self._seeds.stop()
        await self._dialler.stop()
        await self._door.stop()


PEER_LINKS_MAX = 64  # Links accepted from peers.
PEER_HANDSHAKES_MAX = 32  # Sockets that have not completed the handshake; beyond this, the oldest is closed.

_BEATS = 4  # Heartbeats in the time after which the other end asks for one.


class _Socket(web.WebSocketResponse):
    """A WebSocket that gives a reason when aiohttp closes it by itself, and whose bound can be raised."""

    is_wide = False

    def widen(self, bytes_max: int) -> None:
        """From now on take messages of up to `bytes_max` bytes. No part of an older message may be under way."""
        assert self._req is not None
        assert self._reader is not None
        self.is_wide, self._max_msg_size = True, bytes_max
        self._parser = WebSocketReader(self._reader, bytes_max, compress=False, decode_text=True)
        # aiohttp has no public way to change the bound; `test_peer_faults` holds it to this one.
        protocol = self._req.protocol
        protocol._payload_parser = None
        protocol.set_parser(self._parser, data_received_cb=self._on_data_received)

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and not message:
            message = b"the message is over " + (b"peer_message_bytes_max" if self.is_wide else b"a handshake's bound")
        return await super().close(code=code, message=message, drain=drain)


class _Accepted:
    """A link, from its upgrade on."""

    __slots__ = ("deadline", "ended", "key", "name", "proven_key", "socket")

    def __init__(self, socket: _Socket, *, name: str, key: bytes) -> None:
        self.socket = socket
        self.key = key  # See `Identity.key`.
        self.name = name  # For people.
        self.proven_key: bytes | None = None  # The cluster's, once the handshake is over.
        self.ended = asyncio.Event()
        self.deadline: asyncio.Timeout | None = None  # Of its handshake, while that lasts.

    async def binary(self) -> bytes:
        """The next message.

        Raises:
            InvalidValue: the other end sent text.
            Disconnected: it sent no message, and will send none.
        """
        message = await self.socket.receive()
        if message.type is WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is WSMsgType.TEXT:
            raise InvalidValue(
                "the peer sent a text message; links among peers carry binary messages only. Nothing was written."
            )
        raise Disconnected(why_closed(message))

    async def close(self, code: int, /, *, reason: str) -> None:
        if self.socket.prepared:
            with suppress(*BROKEN):
                await self.socket.close(code=code, message=reason_of(reason))


class PeerDoor:
    """The accepted links. `serve` is the handler of `PEER_PATH`; `accepted` is called with the name of each peer that is."""

    def __init__(self, context: LinkContext, *, accepted: Callable[[str], None]) -> None:
        self._peer = context.peer
        self._accepted = accepted
        self._keys = context.keys
        self._config = context.config
        self._entropy = context.entropy
        self._report = context.report
        self._warn = context.warn
        self._links: set[_Accepted] = set()
        self._newest: dict[bytes, _Accepted] = {}  # By node.
        self._shaking: dict[_Accepted, None] = {}  # The links that still shake hands, the oldest first.
        self._stopping = False

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one peer until it leaves.

        Raises:
            ShuttingDown, Overloaded: before the WebSocket is made, so that a crowd costs little.
            PeerRefused: the node uses TLS, and the other end showed no certificate.
        """
        self._refuse_if_full()
        self._refuse_without_certificate(request)
        config = self._config
        socket = _Socket(
            timeout=CLOSE_S,
            heartbeat=STALLED_BEATS * config.peer_heartbeat_s,  # The peer gives up first, and says why.
            compress=False,
            max_msg_size=HANDSHAKE_BYTES_MAX + 1,  # aiohttp's bound is the first size that it refuses.
        )
        link = _Accepted(socket, name=request.remote or "", key=_key_shown(request))
        self._links.add(link)
        try:
            await socket.prepare(request)
            async with self._signs_of_life(socket):
                await self._serve(link)
        finally:
            self._links.discard(link)
            self._shaking.pop(link, None)
            link.ended.set()
        return socket

    def _refuse_if_full(self) -> None:
        if self._stopping:
            raise ShuttingDown("the node is stopping. Nothing was written. Try again later.")
        if len(self._links) - len(self._shaking) >= PEER_LINKS_MAX:
            raise Overloaded(
                f"the node has {PEER_LINKS_MAX} links from peers, and takes no more. Nothing was written. Try again later.",
                retry_after_s=1.0,
            )

    def _refuse_without_certificate(self, request: web.Request) -> None:
        # A certificate that is shown was verified in the TLS handshake.
        transport = request.transport
        if self._config.tls_cert and (transport is None or not transport.get_extra_info("peercert")):
            error = PeerRefused(
                "a peer must show a certificate of the cluster's CA. Nothing was written. Configure tls_cert, tls_key and "
                "tls_ca on all nodes.",
                reason="certificate",
            )
            name = request.remote or ""
            self._warn(events.PEER_REFUSED, name, error, peer=name, remote=name, code=error.code)
            raise error

    @asynccontextmanager
    async def _signs_of_life(self, socket: _Socket) -> AsyncIterator[None]:
        async def beat() -> None:
            with suppress(*BROKEN):
                while True:
                    await asyncio.sleep(self._config.peer_heartbeat_s / _BEATS)
                    await socket.pong()

        beating = asyncio.create_task(beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _serve(self, link: _Accepted) -> None:
        """Serve a link after the upgrade. No HTTP answer is possible any more, so every error ends here."""
        identity = await self._shake_hands(link)
        if identity is None:
            return
        try:
            await self._take_place(link, identity)
            await self._listen(link, identity)
        except Disconnected as end:
            self._report(events.PEER_LEFT, peer=link.name, reason=end.message, remote="")
        except ShoalError as error:
            self._warn(events.PEER_CUT_OFF, link.name, error, peer=link.name, code=error.code)
            await link.close(close_code(error), reason=error.message)
        except Exception as bug:
            self._warn(events.PEER_CUT_OFF, link.name, bug, peer=link.name, code="", bug=bug)
            await link.close(WSCloseCode.INTERNAL_ERROR, reason="unexpected error")
        finally:
            if self._newest.get(identity.node) is link:
                del self._newest[identity.node]

    def _make_room(self) -> None:
        """End the oldest handshake, if too many are under way."""
        if len(self._shaking) >= PEER_HANDSHAKES_MAX:
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            if oldest.deadline is not None:
                oldest.deadline.reschedule(0)

    async def _shake_hands(self, link: _Accepted) -> Identity | None:
        self._make_room()
        self._shaking[link] = None
        meeting = Accepting(side_of(self._peer, config=self._config, ring=self._keys()), nonce=self._entropy(NONCE_BYTES))
        try:
            async with asyncio.timeout(self._limit_s) as link.deadline:
                await link.socket.send_bytes(meeting.greeted(await link.binary()))
                identity = meeting.proven(await link.binary())._replace(key=link.key)
            if not accepts(self._keys(), meeting.proven_key):  # They changed meanwhile.
                raise PeerRefused(f"{REKEYED}. Nothing was written.", reason="key")
            link.proven_key = meeting.proven_key
            self._check_name(link, identity)
            self._peer.admit(identity)
            link.socket.widen(self._config.peer_message_bytes_max + 1)
            await link.socket.send_bytes(ACCEPTED)
        except TimeoutError:
            error = InvalidValue(f"no handshake within {self._limit_s:g} s, or others needed its place. Nothing was written.")
            await self._turn_away(link, meeting, error)
        except ShoalError as error:
            await self._turn_away(link, meeting, error)
        except BROKEN as reason:
            await self._turn_away(link, meeting, Disconnected(f"the connection broke: {reason}"))
        else:
            link.name = identity.name
            return identity
        finally:
            link.deadline = None
            self._shaking.pop(link, None)
        return None

    def _check_name(self, link: _Accepted, identity: Identity) -> None:
        """Check that the certificate that a peer showed is its own, if `tls_peer_names` asks for that."""
        transport = link.socket._req.transport if link.socket._req is not None else None
        shown = None if transport is None else transport.get_extra_info("peercert")
        check_names(shown, identity, self._config)

    @property
    def _limit_s(self) -> float:
        """How long a handshake may take."""
        return min(self._config.connect_timeout_s, self._config.peer_connect_timeout_s)

    async def _turn_away(self, link: _Accepted, meeting: Accepting, error: ShoalError) -> None:
        """Tell both sides the reason: report it here, and send it there."""
        name = link.name if meeting.peer is None else meeting.peer.name[:NAME_CHARS_MAX]
        if isinstance(error, Disconnected):
            self._report(events.PEER_LEFT, peer=name, remote=link.name, reason=error.message)
            return
        if error.detail.get("reason") not in ("self", "asked"):  # A node that meets itself reports that as the dialler.
            self._warn(events.PEER_REFUSED, name, error, peer=name, remote=link.name, code=error.code)
        if not meeting.told:
            with suppress(*BROKEN):
                await link.socket.send_bytes(refusal(error))
        await link.close(close_code(error), reason=error.message)

    async def _take_place(self, link: _Accepted, identity: Identity) -> None:
        older = self._newest.get(identity.node)
        self._newest[identity.node] = link
        self._report(events.PEER_ACCEPTED, peer=link.name, node=identity.node.hex(), software=identity.software)
        self._accepted(identity.name)
        if older is not None:
            await older.close(WSCloseCode.POLICY_VIOLATION, reason="a newer link of this node took its place")
            await older.ended.wait()

    async def _listen(self, link: _Accepted, identity: Identity) -> None:
        for nth in count(1):
            await self._peer.received(identity, await link.binary())
            if nth % IN_A_ROW_MAX == 0:
                await asyncio.sleep(0)

    async def rekeyed(self) -> None:
        """The keys have changed: end the links whose other end proved one that is not accepted any more (`Peers.rekeyed`)."""
        ring = self._keys()
        ending = [link for link in self._links if link.proven_key is not None and not accepts(ring, link.proven_key)]
        closing = (link.close(WSCloseCode.POLICY_VIOLATION, reason=REKEYED) for link in ending)
        await asyncio.gather(*closing, return_exceptions=True)

    async def stop(self) -> None:
        """Take no more links, and close the existing ones; takes about a second at most."""
        self._stopping = True
        links = list(self._links)
        await asyncio.gather(*(link.close(WSCloseCode.GOING_AWAY, reason="the node is stopping") for link in links))
        with suppress(TimeoutError):  # A link's last message may still be at work: that is not waited for.
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(link.ended.wait() for link in links))


def _key_shown(request: web.Request) -> bytes:
    """The key of the certificate that the other end showed in the TLS handshake, which verified it; empty: none."""
    tls = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    shown = None if tls is None else tls.getpeercert(binary_form=True)
    return b"" if shown is None else key_of(shown)
