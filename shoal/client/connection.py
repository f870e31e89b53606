"""What every handle shares: the session, and the store's defaults."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shoal.config import Config
from shoal.protocol.requests import Durability, R, Request
from shoal.protocol.session import Session


@dataclass(frozen=True, slots=True)
class Connection:
    session: Session
    config: Config
    durability: Durability
    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]
    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")  # Who begins steps here.
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # The store is; what waits for another node gives up.
    closing: dict[object, Callable[[], Awaitable[None]]] = field(default_factory=dict)  # What ends with the store.

    async def write(self, request: Request[R], *, key: str | None, durability: Durability | None) -> R:
        return await self.session.call(request, key=key, durability=durability or self.durability)

    async def read(self, request: Request[R], *, stale: bool = False) -> R:
        return await self.session.call(request, stale=stale)
