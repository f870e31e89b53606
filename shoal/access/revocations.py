"""Tokens that are revoked: a map in the store, so that it is replicated, durable and asked for like everything else.

Laws:
- The map `REVOKED` of the space `RESERVED` holds, for each id of a token, when it expires; 0 means never.
- A node reads it before it listens, and again after each change; until a change has arrived, the token counts there.
- An entry is removed a day after its token has expired. Any node may do it, and twice is no harm.
- At most `revocations_max` are read. If there are more, the node says so and accepts no token at all, because any could be one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from shoal import values
from shoal.access.gate import Gate
from shoal.access.grants import REVOKED
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import RESERVED
from shoal.protocol.requests import MapEntry, ReadMap, RemoveEntry, Watch
from shoal.protocol.session import Session

_FORGOTTEN_S = 24 * 3600.0  # After its end; clocks differ by less.
_AGAIN_S = 1.0  # Before a watch that failed begins again.


class Revocations:
    """The revoked tokens, as one node knows them. `session` is the node's own; `now_s` its clock, in seconds since 1970."""

    def __init__(self, session: Session, gate: Gate, *, config: Config, now_s: Callable[[], float]) -> None:
        self._session = session
        self._gate = gate
        self._config = config
        self._now_s = now_s

    async def load(self) -> None:
        """Read the map, and let the gate know it.

        Raises:
            ShoalError: it cannot be read.
        """
        found = await self._read()
        if len(found) > self._config.revocations_max:
            log(events.REVOCATIONS_MANY, bound="revocations_max", accepted="no token")
            self._gate.close()
            return
        now_s = self._now_s()
        over = [id for id, ends_s in found.items() if ends_s and now_s > ends_s + _FORGOTTEN_S]
        self._gate.revoke(found.keys() - set(over))
        for id in over:
            with suppress(ShoalError):  # Another time, or another node.
                await self._session.call(RemoveEntry(RESERVED, REVOKED, id))

    async def follow(self) -> None:
        """Read the map again after each change, until cancelled."""
        told = ""
        while True:
            try:
                async with self._session.subscribe(Watch(RESERVED, "map", REVOKED)) as changes:
                    await self.load()
                    async for _ in changes:
                        await self.load()
            except ShoalError as error:
                if error.message != told:  # A node that waits for its peers says so once.
                    told = error.message
                    log(events.REVOCATIONS_TROUBLE, reason=told)
            await asyncio.sleep(_AGAIN_S)

    async def _read(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        after: str | None = None
        while len(found) <= self._config.revocations_max:
            page = await self._session.call(ReadMap(RESERVED, REVOKED, after=after), stale=True)
            for entry in page.entries:
                found[entry.key] = _ends_s(entry)
            if not page.more:
                break
            after = page.entries[-1].key
        return found


def _ends_s(entry: MapEntry) -> float:
    """When a revoked token expires; 0 if that is not known."""
    ends = []
    for sibling in entry.siblings:
        try:
            ends.append(values.decode(sibling.value))
        except ShoalError:
            return 0.0
    known = all(isinstance(each, int | float) and not isinstance(each, bool) for each in ends)
    return float(max(ends)) if ends and known and min(ends) > 0 else 0.0
