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
    """A connection with a source of randomness, and with everything that must end with the store."""

    entropy: Callable[[int], bytes]
    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")  # Recorded with steps begun here.
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # Set when the store closes; streams then stop waiting.
    closing: dict[object, Callable[[], Awaitable[None]]] = field(default_factory=dict)  # Called when the store closes.
