"""The narrow waist: whoever answers requests is a `Session`.

The node's service is one (an embedded store), the pipelined WebSocket link to a
node is another, and the public surface in `shoal.client` stands on either. The
API serves any `Session` too, so that it need not know the node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, Subscription


class Session(Protocol):
    async def call(self, request: AnyRequest, /, *, key: str | None = None, durability: Durability = "local") -> AnyReply:
        """Answer `request`.

        A write is applied once per `key`, whatever the number of calls; it is
        answered once it is as durable as `durability` says.

        Raises:
            ShoalError: each says whether anything was written.
        """
        ...

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        """Pushes from now on, until the context is left. They wait in a buffer of bounded bytes.

        Raises:
            SlowConsumer: from the iterator, once the buffer overflowed.
        """
        ...

    async def close(self) -> None: ...
