"""A thread's journal, as a handle."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal import values
from shoal.client.connection import Connection
from shoal.client.moments import moment
from shoal.errors import SlowConsumer
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the journal."""

    id: str
    key: str | None
    time: datetime
    late: bool  # It arrived after events that come later in the journal's order had been read.
    cursor: bytes = field(repr=False)  # Read on after this event with `read(after=…)`.
    _event: bytes = field(repr=False)

    @property
    def event(self) -> Any:
        """What was appended, decoded anew at each access.

        Raises:
            InvalidValue: its type is not registered here.
        """
        return values.decode(self._event)


@dataclass(frozen=True, slots=True)
class Appended:
    id: str
    appended: bool  # False if the key was there already: `id` is then the first event's.


class Journal:
    def __init__(self, connection: Connection, space: str, thread: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.thread = check_name("thread", thread)

    def __repr__(self) -> str:
        return f"Journal({self.space!r}, {self.thread!r})"

    async def append(self, event: Any, *, key: str | None = None, durability: Durability | None = None) -> Appended:
        """Append an event. Of all events with one `key`, one is there, for as long as the journal.

        Raises:
            InvalidValue: the event cannot be serialised.
            KeyReused: `key` is there with another event.
        """
        packed = values.encode(event, where="event")
        reply = await self._connection.write(
            requests.Append(self.space, self.thread, packed, key), key=None, durability=durability
        )
        assert isinstance(reply, requests.Appended)
        return Appended(reply.id, reply.appended)

    async def read(
        self, *, after: bytes | None = None, limit: int | None = None, follow: bool = False, stale: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Events in order, after a cursor or from the first; with `follow` it waits for more, and ends at `limit` only.

        Who stops following early closes it (`contextlib.aclosing`), which ends its subscription at once.
        `stale`: see `Store`.

        Raises:
            InvalidValue: `after` is no cursor.
            Disconnected: while following; read on from the last event's cursor.
        """
        cursor = after or b""
        if not follow:
            async for event in self._rest(cursor, limit, stale=stale):
                yield event
            return
        while True:
            # Watch first, then read: what comes between is seen by both, and read once.
            async with self._connection.session.subscribe(requests.Watch(self.space, "thread", self.thread)) as changes:
                async for event in self._rest(cursor, limit, stale=stale):
                    cursor, limit = event.cursor, None if limit is None else limit - 1
                    yield event
                if limit is not None and limit <= 0:
                    return
                # Whoever is slow reads again, which is what a change asks for as well.
                with suppress(SlowConsumer):
                    async for change in changes:
                        if isinstance(change, requests.Change) and (change.name, change.what) == (self.thread, "append"):
                            break

    async def _rest(self, cursor: bytes, limit: int | None, *, stale: bool) -> AsyncIterator[Event]:
        while limit is None or limit > 0:
            asked = 1000 if limit is None else min(limit, 1000)
            request = requests.ReadJournal(self.space, self.thread, cursor, asked)
            page = await self._connection.read(request, stale=stale)
            assert isinstance(page, requests.Events)
            for found in page.events:
                yield Event(found.id, found.key, moment(found.wall_ms), found.late, found.cursor, found.event)
            if not page.more:
                return
            cursor = page.cursor
            limit = None if limit is None else limit - len(page.events)
