"""Tell the service manager (systemd) that the node is ready, still turns, and stops: the protocol of `sd_notify`.

Laws:
- Without `NOTIFY_SOCKET` in the environment nothing is opened and nothing is sent.
- A beat of the watchdog comes from the event loop, so a loop that is stuck sends none, and the manager ends the process.
- A manager that cannot be reached stops nothing: the node serves.
- The variables are not handed on to programs that the node starts.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

_BEATS = 2  # In the time after which the manager would act.
_ABSTRACT = "@"


class Manager:
    """The service manager that started this process; one that wants to be told nothing is told nothing."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_ours = not pid or pid == str(os.getpid())
        self._beat_s = int(usec) / 1e6 / _BEATS if usec.isdecimal() and int(usec) > 0 and is_ours and self._address else 0.0
        self._beating: asyncio.Task[None] | None = None

    def ready(self, url: str) -> None:
        """The node answers at `url`; from now on the watchdog is beaten."""
        self._tell(f"READY=1\nSTATUS=serves {url}")
        if self._beat_s:
            self._beating = asyncio.create_task(self._beat())

    def stopping(self) -> None:
        """No new requests are taken; those under way end. That has a time of its own, so the watchdog is beaten on."""
        self._tell("STOPPING=1\nSTATUS=requests under way end, then the store is closed")

    def stopped(self) -> None:
        """End the beats."""
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._beat_s)

    def _tell(self, state: str) -> None:
        if not self._address.startswith(("/", _ABSTRACT)):
            return
        path = f"\0{self._address[1:]}" if self._address.startswith(_ABSTRACT) else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.setblocking(False)
            sending.sendto(state.encode(), path)
