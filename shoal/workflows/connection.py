"""Requests of flows and handles: over a session, with the store's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config import Config
from shoal.protocol.requests import Durability, R, Request
from shoal.protocol.session import Session


@dataclass(frozen=True, slots=True)
class Connection:
    """A session, and the defaults of its requests."""

    session: Session
    config: Config
    durability: Durability  # The default of writes.

    async def write(self, request: Request[R], *, key: str | None, durability: Durability | None) -> R:
        """Send a write; without a durability, it has the store's."""
        return await self.session.call(request, key=key, durability=durability or self.durability)

    async def read(self, request: Request[R], *, stale: bool = False) -> R:
        """Send a read; if `stale`, the node's state may be older than the session's bookmark."""
        return await self.session.call(request, stale=stale)
