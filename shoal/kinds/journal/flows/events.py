"""The entries of a thread's journal, and reading them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal import values
from shoal.protocol import requests
from shoal.workflows.connection import Connection
from shoal.workflows.moments import moment

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the journal."""

    id: str
    key: str | None
    time: datetime
    late: bool  # It sorts before events that the reader's cursor had already passed.
    cursor: bytes = field(repr=False)  # Continue after this event with `read(after=…)`.
    _event: bytes = field(repr=False)
    erased: bool = False  # Its value was erased: it is None.

    @property
    def event(self) -> Any:
        """The event's value, decoded again at each access; None if it was erased.

        Raises:
            InvalidValue: its type is not registered here.
        """
        return values.decode(self._event)

    @property
    def packed(self) -> bytes:
        """The event's value as it is stored."""
        return self._event


def shown_event(found: requests.Event) -> Event:
    """An event as handles show it."""
    return Event(found.id, found.key, moment(found.wall_ms), found.late, found.cursor, found.event, found.erased)


async def events(
    connection: Connection,
    space: str,
    thread: str,
    *,
    after: bytes = b"",
    limit: int | None = None,
    stale: bool = False,
    skip_trimmed: bool = False,
) -> AsyncGenerator[Event, None]:
    """The events of a journal in order, after a cursor or from the first, until there are no more.

    Raises:
        InvalidValue: `after` is not a cursor.
        JournalTrimmed: events that `after` does not cover were trimmed, and `skip_trimmed` is false.
    """
    while limit is None or limit > 0:
        asked = _PAGE if limit is None else min(limit, _PAGE)
        request = requests.ReadJournal(space, thread, after, asked, skip_trimmed=skip_trimmed)
        page = await connection.read(request, stale=stale)
        for found in page.events:
            yield shown_event(found)
        if not page.more:
            return
        after = page.cursor
        limit = None if limit is None else limit - len(page.events)
