"""The connection that the handles of one store share."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shoal.client.home import Home
from shoal.client.yjs_client_ids import ClientIds
from shoal.workflows.connection import Connection


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class StoreConnection(Connection):
    """A connection with a source of randomness, and with everything that must end with the store."""

    entropy: Callable[[int], bytes]
    holder: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")  # Recorded with steps begun here.
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # Set when the store closes; streams then stop waiting.
    uptime: Callable[[], float] = _loop_time  # Seconds, for leases; best if they include those that the machine was suspended.
    keepers: dict[str, object] = field(default_factory=dict)  # What works for the store in the background, by name.
    client_ids: ClientIds = field(default_factory=ClientIds)  # Of documents, left by mirrors that were closed.
    home: Home | None = None  # Where the store was opened; None in tests, which use it there.
    closing: dict[object, Callable[[], Awaitable[None]]] = field(default_factory=dict)  # Called when the store closes.

    def check_home(self) -> None:
        """Check, before waiting for something that only the store's own loop can bring, that this is that loop.

        Raises:
            WrongProcess, WrongLoop: it is not.
        """
        if self.home is not None:
            self.home.check()
