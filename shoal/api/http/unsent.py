"""Bytes of an answer that wait in a connection.

With TLS, a transport counts what it has not encrypted and what it holds back; the connection below it holds up to one more
write, which is not counted.
"""

from __future__ import annotations

import asyncio


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
