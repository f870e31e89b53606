"""Compaction of a document, in as many requests as are needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from shoal.protocol.requests import Compact, Compacted
from shoal.workflows.moments import as_duration_ms


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of compacting a document."""

    updates: int  # How many updates were replaced by one.
    bytes: int  # The size of that one; 0 if there was nothing to do.


async def compact(
    write: Callable[[Compact], Awaitable[Compacted]], space: str, document: str, older_than: timedelta | float | None
) -> Compaction:
    """Compact a document until nothing is left to compact.

    Raises:
        NotFound: there is no such document.
        CatchingUp: a part of it has not reached the node yet; try again.
        TooLarge: as one update it would exceed the node's `request_bytes_max`.
    """
    age_ms = as_duration_ms(older_than, what="older_than") or 0
    updates = 0
    while True:
        done = await write(Compact(space, document, age_ms))
        updates += done.updates
        if not done.more:
            return Compaction(updates, done.bytes)
