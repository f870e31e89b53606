"""Bodies of HTTP requests: read within bounds, and decompressed.

Laws:

- A body is rejected as soon as its Content-Length, the part that has arrived, or its decompressed size
  exceeds `request_bytes_max`. All bodies together take at most `bodies_bytes_max`.
- A body that does not match its headers is an error of its sender: 400, and nothing is written.
- If a client sends nothing of a body for `heartbeat_s`, the request fails. A client that leaves is not an error of the node.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import StreamReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from shoal.api.http.problems import RequestTimeout, UnsupportedEncoding
from shoal.config import Config
from shoal.errors import InvalidValue, Overloaded, TooLarge

ENCODINGS = ("gzip", "deflate")
_GZIP_BITS = 16 + zlib.MAX_WBITS
_LEFT = (ConnectionError, web.RequestPayloadError, HttpProcessingError)


class Bodies:
    """The bodies under way at one node; their sum is bounded."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._bytes = 0

    @contextmanager
    def under_way(self) -> Iterator[Receiving]:
        """A context for one request: the bytes that it reads count until it is answered."""
        receiving = Receiving(self, self._config)
        try:
            yield receiving
        finally:
            self._bytes -= receiving.bytes

    def take(self, size: int) -> None:
        """Count `size` bytes.

        Raises:
            Overloaded: all bodies together would exceed their bound.
        """
        if self._bytes + size > self._config.bodies_bytes_max:
            raise Overloaded(
                f"the bodies of all requests under way exceed {self._config.bodies_bytes_max} bytes. Nothing was written. "
                "Try again later, or at another node.",
                retry_after_s=1.0,
            )
        self._bytes += size


class Receiving:
    """The body of one request, which its handler may read."""

    def __init__(self, bodies: Bodies, config: Config) -> None:
        self._bodies = bodies
        self._config = config
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
                self._take(len(part))
                body += part
        except TimeoutError:
            raise RequestTimeout(
                f"the body stopped for {self._config.heartbeat_s:g} s. Nothing was written. Send it again."
            ) from None
        except _LEFT as reason:
            raise InvalidValue(f"the body is incomplete or malformed ({type(reason).__name__}). Nothing was written.") from None

    async def _part(self, content: StreamReader) -> bytes:
        if content.is_eof():
            return await content.readany()  # All of it is here.
        async with asyncio.timeout(self._config.heartbeat_s):
            return await content.readany()

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
        self._take(len(whole))
        return whole

    def _take(self, size: int) -> None:
        self._bodies.take(size)
        self.bytes += size

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body has more than {self._config.request_bytes_max} bytes. Nothing was written. "
            'Split it, or raise request_bytes_max and what goes with it: docs/CONFIGURATION.md, "How large a value may be".'
        )
