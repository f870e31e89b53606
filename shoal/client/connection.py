"""The connection that the handles of one store share."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shoal.workflows.connection import Connection


@dataclass(frozen=True, slots=True)
class StoreConnection(Connection):
    """A connection with the randomness that handles need, and the end of the store."""

    entropy: Callable[[int], bytes]
    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")  # Who begins steps here.
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # The store is; what waits for another node gives up.
    closing: dict[object, Callable[[], Awaitable[None]]] = field(default_factory=dict)  # What ends with the store.
