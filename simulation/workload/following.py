"""A reader of a journal that goes on where it stopped, and knows whether it was given everything.

Law: whatever came late or behind its back, and on whatever node it reads, a reader is
given each event that there is (invariant 10: nothing comes back silently short).
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.kinds.journal.flows import Event
from shoal.kinds.journal.handle import Journal


class Follower:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._cursor: bytes | None = None
        self._given: set[int] = set()  # By the reads that led to the cursor.

    @property
    def is_new(self) -> bool:
        """Whether it was never given anything."""
        return self._cursor is None

    async def read(self, *, anew: bool = False) -> list[Event]:
        """What came since the last read; `anew`: all there is.

        Raises:
            ShoalError: as `Journal.read`; the reader goes on from where it was.
        """
        after = None if anew else self._cursor
        events = [event async for event in self._journal.read(after=after)]
        self._given = set(numbers_of(events)) | (set() if anew else self._given)
        if events:
            self._cursor = events[-1].cursor
        return events

    async def missed(self) -> list[int]:
        """Read on to the end; the events that are there, and were in none of its reads.

        Raises:
            ShoalError: as `Journal.read`.
        """
        if self.is_new:
            return []
        there = numbers_of([event async for event in self._journal.read()])
        await self.read()
        return [number for number in there if number not in self._given]


def numbers_of(events: Iterable[Event]) -> list[int]:
    """The numbers of the appends that they are."""
    return [event.event["number"] for event in events]
