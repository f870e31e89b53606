"""Compact a document in as many requests as it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from shoal.protocol.requests import Compact, Compacted
from shoal.workflows.moments import as_duration_ms


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of compacting a document."""

    updates: int  # That are part of one from now on.
    bytes: int  # Of that one; 0 if there was nothing to do.


async def compact(
    write: Callable[[Compact], Awaitable[Compacted]], space: str, document: str, older_than: timedelta | float | None
) -> Compaction:
    """
    Raises:
        NotFound: there is no such document.
        CatchingUp: a part of it is still on its way to the node; try again.
        TooLarge: as one update it would be over the node's `request_bytes_max`.
    """
    age_ms = as_duration_ms(older_than, what="older_than") or 0
    updates = 0
    while True:
        done = await write(Compact(space, document, age_ms))
        updates += done.updates
        if not done.more:
            return Compaction(updates, done.bytes)
