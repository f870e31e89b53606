"""Bodies of HTTP requests, the deadlines of requests, and the record of whether one has written.

Laws:
- A body is rejected as soon as its Content-Length, the part that has arrived, or its decompressed size
  exceeds `request_bytes_max`. All bodies together take at most `bodies_bytes_max`.
- Where clients have tokens, the bodies of one author take at most `_SHARE` times the room that they leave: whatever one
  author holds, others can send.
- A body that does not match its headers is an error of its sender: 400, and nothing is written.
- If a client sends nothing of a body for `heartbeat_s`, the request fails; so it does if the node has waited for longer than
  that, and for more than a second for each `_SLOWEST` bytes. A client that leaves is not an error of the node.

Deadlines of HTTP requests: after its deadline a caller may repeat a write elsewhere, so no write begins later.

Laws:
- A deadline is a time by the node's clock. A duration would start when the node reads the request, and a node that
  stalled reads it late.
- It is compared when each write begins, after the body has arrived. A write that has begun continues: if it is not
  answered in time, its outcome is unknown.

Whether an HTTP request has written anything, so that no error after its write denies it.

Law: once a write of a request is answered, no error of the request says that nothing was written.

States that this node unpacks for a caller, to merge, compare or edit them.

Law: a state of more than `NODES_MAX` values is refused before it is unpacked, and others get a turn while it is measured.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

from aiohttp import StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from shoal.api.http.problems import RequestTimeout, UnsupportedEncoding
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, OutcomeUnknown, Overloaded, ShoalError, TooLarge, Unavailable
from shoal.protocol.bookmark import SharedBookmark
from shoal.protocol.requests import Checkpoint, Checkpoints, Delta, Durability, R, Read, Replaced, Request
from shoal.protocol.session import Session, Wrapper, noting
from shoal.raising import why
from shoal.values.work import NODES_MAX, Allowance

_SHARE = 3
_SLOWEST = 1024  # Bytes a second.

ENCODINGS = ("gzip", "deflate")
_GZIP_BITS = 16 + zlib.MAX_WBITS
_LEFT = (ConnectionError, web.RequestPayloadError, HttpProcessingError)


class Bodies:
    """The bodies under way at one node; their sum is bounded."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._bytes = 0
        self._of: dict[str, int] = {}  # By author: those of whom bodies are under way.

    @contextmanager
    def under_way(self, author: str | None) -> Iterator[Receiving]:
        """A context for one request: the bytes that it reads count until it is answered. `author`: None if nobody is asked."""
        receiving = Receiving(self, self._config, author)
        try:
            yield receiving
        finally:
            self._bytes -= receiving.bytes
            if author is not None and receiving.bytes:
                left = self._of.pop(author) - receiving.bytes
                if left:
                    self._of[author] = left

    def take(self, size: int, author: str | None) -> None:
        """Count `size` bytes.

        Raises:
            Overloaded: all bodies together, or those of the author, would exceed their bound.
        """
        if self._bytes + size > self._config.bodies_bytes_max:
            raise Overloaded(
                f"the bodies of all requests under way exceed {self._config.bodies_bytes_max} bytes. Nothing was written. "
                "Try again later, or at another node.",
                retry_after_s=1.0,
            )
        if author is not None:
            taken = self._of.get(author, 0) + size
            if taken > _SHARE * (self._config.bodies_bytes_max - self._bytes - size):
                raise Overloaded(
                    f"the bodies of all requests of {author!r} under way would leave too little room for those of others. "
                    "Nothing was written. Send fewer at once, or try again later.",
                    retry_after_s=1.0,
                )
            self._of[author] = taken
        self._bytes += size


class Receiving:
    """The body of one request, which its handler may read."""

    def __init__(self, bodies: Bodies, config: Config, author: str | None) -> None:
        self._bodies = bodies
        self._config = config
        self._author = author
        self._arrived = 0
        self._waited_s = 0.0
        self.bytes = 0  # Its part of the sum.

    async def read(self, request: web.Request) -> bytes:
        """The body, decompressed.

        Raises:
            TooLarge, UnsupportedEncoding, InvalidValue, RequestTimeout, Overloaded: nothing was written.
        """
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower()
        if encoding not in ("identity", *ENCODINGS):
            raise UnsupportedEncoding(
                f"the body's Content-Encoding is {encoding[:80]!r}; this node takes {' and '.join(ENCODINGS)}, one at a time. "
                "Nothing was written."
            )
        raw = await self._received(request)
        return raw if encoding == "identity" else self._decompressed(raw, encoding)

    async def pieces(self, request: web.Request, held_bytes: int) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, which may have any size: its reader holds at most `held_bytes` of it, which are counted.

        Raises:
            InvalidValue, RequestTimeout, Overloaded: it is incomplete, stopped, or too many are under way.
        """
        self.take(held_bytes)
        try:
            while part := await self._part(request.content):
                yield part
        except TimeoutError:
            raise RequestTimeout(
                f"the body stopped for {self._config.heartbeat_s:g} s, or came too slowly. The file was not stored. Send it "
                "again: what has arrived is not stored twice."
            ) from None
        except _LEFT as reason:
            raise InvalidValue(
                f"the body is incomplete or malformed ({type(reason).__name__}). The file was not stored. Send it again: what "
                "has arrived is not stored twice."
            ) from None

    async def _received(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > self._config.request_bytes_max:
            raise self._too_large()
        body = bytearray()
        try:
            while True:
                part = await self._part(request.content)
                if not part:
                    return bytes(body)
                if len(body) + len(part) > self._config.request_bytes_max:
                    raise self._too_large()
                self.take(len(part))
                body += part
        except TimeoutError:
            raise RequestTimeout(
                f"the body stopped for {self._config.heartbeat_s:g} s, or came too slowly. Nothing was written. Send it again."
            ) from None
        except _LEFT as reason:
            raise InvalidValue(f"the body is incomplete or malformed ({type(reason).__name__}). Nothing was written.") from None

    async def _part(self, content: StreamReader) -> bytes:
        if content.is_eof():
            return await content.readany()  # All of it is here.
        began = asyncio.get_running_loop().time()
        late_s = self._config.heartbeat_s + self._arrived / _SLOWEST - self._waited_s
        async with asyncio.timeout(min(self._config.heartbeat_s, late_s)):
            part = await content.readany()
        self._waited_s += asyncio.get_running_loop().time() - began
        self._arrived += len(part)
        return part

    def _decompressed(self, raw: bytes, encoding: str) -> bytes:
        bound = self._config.request_bytes_max
        # A zlib header (RFC 1950) says 8 in its low bits; some send bare deflate (RFC 1951) by the same name.
        bare = encoding == "deflate" and raw[:1] and raw[0] & 0xF != 8
        bits = _GZIP_BITS if encoding == "gzip" else -zlib.MAX_WBITS if bare else zlib.MAX_WBITS
        stream = zlib.decompressobj(bits)
        try:
            whole = stream.decompress(raw, bound + 1)
        except zlib.error as reason:
            raise InvalidValue(f"the body is not {encoding} data: {reason}. Nothing was written.") from None
        if len(whole) > bound:
            raise self._too_large()
        if not stream.eof:
            raise InvalidValue(f"the body's {encoding} data is incomplete. Nothing was written.")
        if stream.unused_data:
            # Further members of a gzip file, too: thousands of empty ones would cost much, and clients send one.
            raise InvalidValue(f"the body's {encoding} data is followed by other bytes. Nothing was written.")
        self.take(len(whole))
        return whole

    def take(self, size: int) -> None:
        """Count `size` more bytes as this body's.

        Raises:
            Overloaded: all bodies together, or those of the author, would exceed their bound.
        """
        self._bodies.take(size, self._author)
        self.bytes += size

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body has more than {self._config.request_bytes_max} bytes. Nothing was written. "
            "Store large values as files, with PUT …/files/{name} (docs/FILES.md), or split it, "
            'or raise request_bytes_max and what goes with it: docs/CONFIGURATION.md, "How large a value may be".'
        )


HEADER = "Shoal-Deadline"
NAMED = (
    "The time at which the caller gives up, in seconds since 1970 (UTC) by the node's clock, which the `Date` of its "
    "answers shows. A request that the node reaches later, because it stalled, writes nothing."
)


def named(request: web.Request) -> float | None:
    """The deadline of a request, in seconds since 1970; None if it has none.

    Raises:
        InvalidInput: it is not one time.
    """
    given = request.headers.getall(HEADER, ())
    if not given:
        return None
    try:
        [text] = given
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s):
        raise InvalidInput(f"{HEADER} must be one time in seconds since 1970. Nothing was written.", field=HEADER)
    return at_s


class Limited(Wrapper):
    """A `Session` that begins no write after a time, in seconds since 1970; `now_s` is the node's clock.

    A subscription has no limit.
    """

    __slots__ = ("_deadline_s", "_now_s")

    def __init__(self, session: Session, deadline_s: float, *, now_s: Callable[[], float]) -> None:
        super().__init__(session)
        self._deadline_s = deadline_s
        self._now_s = now_s

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`).

        Raises:
            Unavailable: the write did not begin in time.
            OutcomeUnknown: it began, and was not answered in time.
        """
        if isinstance(request, Read):
            return await self._session.call(request, stale=stale)
        # Not by the loop's clock, which stands still while a machine is suspended.
        left_s = self._deadline_s - self._now_s()
        if left_s <= 0:
            raise Unavailable(
                f"the request's deadline ({HEADER}) passed {-left_s:.3f} s ago by this node's clock. Nothing was written. "
                "Send it again with a later one."
            )
        scope = asyncio.timeout(left_s)
        try:
            async with scope:
                return await self._session.call(request, key=key, durability=durability, stale=stale)
        except TimeoutError:
            if not scope.expired():
                raise
            raise OutcomeUnknown(
                f"the request's deadline ({HEADER}) passed before the write was done. It may or may not be applied. "
                "Send it again with the same Idempotency-Key and a later deadline."
            ) from None


class Noting(Wrapper):
    """The `Session` of one request. It notes whether a write was answered."""

    __slots__ = ("replaced", "shared", "wrote")

    def __init__(self, session: Session, bookmark: SharedBookmark) -> None:
        super().__init__(session)
        self.shared = bookmark
        self.wrote = False
        self.replaced: list[Replaced] = []  # What rules of redaction replaced in what was written.

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`)."""
        with noting() as replaced:
            reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        self.replaced += replaced
        self.wrote = self.wrote or not isinstance(request, Read)
        return reply

    def checked(self, error: ShoalError) -> ShoalError:
        """The error of a request that made its calls here: one that denies a write says instead that the write is applied."""
        if not self.wrote or error.written != "no":
            return error
        told = type(error)(f"the write is applied, and it cannot be answered: {why(error)}.", **error.detail)
        told.written = "yes"
        return told


class Sparing(Wrapper):
    """A `Session` whose answers have states that can be unpacked on the loop."""

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        """Answer `request` (`Session.call`).

        Raises:
            TooLarge: a state has more than `NODES_MAX` values.
        """
        reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        for state in _states_in(reply):
            await self._measure(state)
        return reply

    async def _measure(self, state: list[bytes]) -> None:
        if sum(map(len, state)) <= NODES_MAX:
            return  # A value takes a byte at least.
        allowance = Allowance(bytes=sum(map(len, state)))
        try:
            for packed in state:
                allowance.charge_packed(packed)
                await asyncio.sleep(0)
        except TooLarge:
            raise TooLarge(
                f"a state has more than {NODES_MAX} values; over HTTP, a node merges, compares and edits smaller ones. "
                "Nothing was written. Do it with the Python client or the command line, which unpack it themselves."
            ) from None


def _states_in(reply: object) -> list[list[bytes]]:
    match reply:
        case Checkpoint(channels=channels):
            return [[*channels.values()]]
        case Checkpoints(items=items):
            return [[*each.channels.values()] for each in items]
        case Delta(checkpoint=checkpoint, appended=appended):
            return [[*checkpoint.channels.values(), *(growth.elements for growth in appended.values())]]
    return []
