"""The links that this node accepted: whom it lets in, and how their messages reach it.

Laws:
- Nobody is admitted, and no message delivered, before the handshake is over.
- Messages of a link are delivered one after the other: the next is read once the
  node has taken the last, so that what a peer sends faster waits at the peer.
- A link's error closes that link alone, with a reason; so does its being too slow
  to shake hands. It is reported here, once.
- A newer link of the same node takes the older one's place, and is heard once the
  older one's last message was taken.
- While a message is being taken no sign of life can be read: each link gives its
  own, so that a busy node is not taken for a dead one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import WSCloseCode, WSMsgType, web

from shoal.cluster.handshake import ACCEPTED, NAME_CHARS_MAX, NONCE_BYTES, Accepting, refusal
from shoal.cluster.peering import Identity, Peer
from shoal.config import Config
from shoal.errors import Disconnected, InvalidValue, Overloaded, ShoalError, ShuttingDown
from shoal.transport.peer import BROKEN, CLOSE_S, Report, Warnings, close_code, reason_of, side_of, why_closed
from shoal.transport.peer_link import STALLED_BEATS

_BEATS = 4  # Signs of life in the time after which the other end asks for one.


class _Socket(web.WebSocketResponse):
    """One that gives a reason where aiohttp closes it by itself."""

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        if code == WSCloseCode.MESSAGE_TOO_BIG and not message:
            message = b"the message is over peer_message_bytes_max"
        return await super().close(code=code, message=message, drain=drain)


class _Accepted:
    """A link, from its upgrade on."""

    __slots__ = ("ended", "name", "socket")

    def __init__(self, socket: _Socket, *, name: str) -> None:
        self.socket = socket
        self.name = name  # For people.
        self.ended = asyncio.Event()

    async def binary(self) -> bytes:
        """
        Raises:
            InvalidValue: the other end sent text.
            Disconnected: it sent no message, and will send none.
        """
        message = await self.socket.receive()
        if message.type is WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is WSMsgType.TEXT:
            raise InvalidValue("a peer sends binary messages only; this one is text. Nothing was written.")
        raise Disconnected(why_closed(message))

    async def close(self, code: int, /, *, reason: str) -> None:
        if self.socket.prepared:
            with suppress(*BROKEN):
                await self.socket.close(code=code, message=reason_of(reason))


class PeerDoor:
    """`serve` is the handler of `PEER_PATH`."""

    def __init__(
        self,
        peer: Peer,
        *,
        config: Config,
        entropy: Callable[[int], bytes],
        report: Report,
        warn: Warnings,
    ) -> None:
        self._peer = peer
        self._config = config
        self._entropy = entropy
        self._report = report
        self._warn = warn
        self._links: set[_Accepted] = set()
        self._newest: dict[bytes, _Accepted] = {}  # By node.
        self._stopping = False

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one peer until it leaves.

        Raises:
            ShuttingDown, Overloaded: before the WebSocket is there, so that a crowd costs little.
        """
        self._refuse_if_full()
        config = self._config
        socket = _Socket(
            timeout=CLOSE_S,
            heartbeat=STALLED_BEATS * config.peer_heartbeat_s,  # The peer gives up first, and says why.
            compress=False,
            max_msg_size=config.peer_message_bytes_max + 1,  # aiohttp's bound is the first size that it refuses.
        )
        link = _Accepted(socket, name=request.remote or "")
        self._links.add(link)
        try:
            await socket.prepare(request)
            async with self._signs_of_life(socket):
                await self._serve(link)
        finally:
            self._links.discard(link)
            link.ended.set()
        return socket

    def _refuse_if_full(self) -> None:
        if self._stopping:
            raise ShuttingDown("the node is stopping. Nothing was written. Try again later.")
        if len(self._links) >= self._config.peer_links_max:
            raise Overloaded(
                f"the node has {self._config.peer_links_max} links from peers, and takes no more. Nothing was written. "
                "Try again later.",
                retry_after_s=1.0,
            )

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
        """From the upgrade on there is no HTTP answer any more: whatever goes wrong ends here."""
        identity = await self._shake_hands(link)
        if identity is None:
            return
        try:
            await self._take_place(link, identity)
            await self._listen(link, identity)
        except Disconnected as end:
            self._report("peer left", peer=link.name, reason=end.message)
        except ShoalError as error:
            self._warn("peer cut off", link.name, error, peer=link.name, code=error.code)
            await link.close(close_code(error), reason=error.message)
        except Exception as bug:
            self._warn("peer cut off", link.name, bug, peer=link.name, exc_info=bug)
            await link.close(WSCloseCode.INTERNAL_ERROR, reason="unexpected error")
        finally:
            if self._newest.get(identity.node) is link:
                del self._newest[identity.node]

    async def _shake_hands(self, link: _Accepted) -> Identity | None:
        meeting = Accepting(side_of(self._peer, config=self._config), nonce=self._entropy(NONCE_BYTES))
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await link.socket.send_bytes(meeting.greeted(await link.binary()))
                identity = meeting.proven(await link.binary())
            self._peer.admit(identity)
            await link.socket.send_bytes(ACCEPTED)
        except TimeoutError:
            limit_s = self._config.connect_timeout_s
            await self._turn_away(link, meeting, InvalidValue(f"no handshake within {limit_s:g} s. Nothing was written."))
        except ShoalError as error:
            await self._turn_away(link, meeting, error)
        except BROKEN as reason:
            await self._turn_away(link, meeting, Disconnected(f"the connection broke: {reason}"))
        else:
            link.name = identity.name
            return identity
        return None

    async def _turn_away(self, link: _Accepted, meeting: Accepting, error: ShoalError) -> None:
        """Both sides know the reason: it is reported here, and sent there."""
        name = link.name if meeting.peer is None else meeting.peer.name[:NAME_CHARS_MAX]
        if isinstance(error, Disconnected):
            self._report("peer left", peer=name, remote=link.name, reason=error.message)
            return
        if error.detail.get("reason") != "self":  # What a node hears of itself, it was told on the side that dialled.
            self._warn("peer refused", name, error, peer=name, remote=link.name, code=error.code)
        if not meeting.told:
            with suppress(*BROKEN):
                await link.socket.send_bytes(refusal(error))
        await link.close(close_code(error), reason=error.message)

    async def _take_place(self, link: _Accepted, identity: Identity) -> None:
        older = self._newest.get(identity.node)
        self._newest[identity.node] = link
        self._report("peer accepted", peer=link.name, node=identity.node.hex(), software=identity.software)
        if older is not None:
            await older.close(WSCloseCode.POLICY_VIOLATION, reason="a newer link of this node took its place")
            await older.ended.wait()

    async def _listen(self, link: _Accepted, identity: Identity) -> None:
        while True:
            await self._peer.received(identity, await link.binary())

    async def stop(self) -> None:
        """Take no more links, and close those there are; takes about a second at most."""
        self._stopping = True
        links = list(self._links)
        await asyncio.gather(*(link.close(WSCloseCode.GOING_AWAY, reason="the node is stopping") for link in links))
        with suppress(TimeoutError):  # What a link's last message still does is not waited for.
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(link.ended.wait() for link in links))
