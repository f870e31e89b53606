"""The holders of a set of leases, as far as a machine knows them.

Law: this is a hint. It is right soon after each change while a quorum can be reached, and says nothing of leases that were
not read yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress

from shoal.client.connection import StoreConnection
from shoal.errors import ShoalError
from shoal.kinds.lease.handle.leases import Leasing
from shoal.protocol.requests import LeaseState

_PAUSE_S = 0.5  # After the nodes could not be reached for `request_timeout_s`.
_UNNAMED = "another client"


class Holders:
    """The holders of leases by name. `stirred` is set with each change."""

    def __init__(self, connection: StoreConnection, leasing: Callable[[str], Leasing], stirred: asyncio.Event) -> None:
        self.holders: dict[str, str] = {}  # "" if it is free; a lease that was not read yet is missing.
        self.last: dict[str, str] = {}  # Of a free lease, who had it last.
        self.free_since_s: dict[str, float] = {}
        self.changed_s = 0.0  # When something changed last.
        self._connection = connection
        self._leasing = leasing
        self._stirred = stirred
        self._watching: dict[str, asyncio.Task[None]] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Watch exactly these leases from now on."""
        wanted = dict.fromkeys(names)
        for name in [name for name in self._watching if name not in wanted]:
            self._watching.pop(name).cancel()
            for known in (self.holders, self.last, self.free_since_s):
                known.pop(name, None)
        for name in wanted:
            if name not in self._watching:
                self._watching[name] = asyncio.get_running_loop().create_task(self._watch(name))

    async def close(self) -> None:
        """Watch nothing any more."""
        tasks = list(self._watching.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, name: str) -> None:
        while not self._connection.closed.is_set():
            with suppress(ShoalError):
                async with aclosing(self._leasing(name).watch()) as states:
                    async for state in states:
                        self._seen(name, state)
            await asyncio.sleep(_PAUSE_S)

    def _seen(self, name: str, state: LeaseState) -> None:
        holder = (state.holder or _UNNAMED) if state.held else ""
        before = self.holders.get(name)
        if holder == before:
            return
        now = self._connection.uptime()
        self.holders[name], self.changed_s = holder, now
        if holder:
            self.last[name] = holder
            self.free_since_s.pop(name, None)
        else:
            self.free_since_s[name] = now
        self._stirred.set()
