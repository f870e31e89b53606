"""The entries of a thread's journal, and reading them.

Fold a journal's events into a value, as of any point.

Laws:
- The events that existed when the replay began are folded in the journal's order,
  each once.
- A snapshot replaces the events before it only if the node confirms that it holds
  exactly those. Without a name no snapshot is stored or used.
- A reducer returns the new value, and may change the one that it gets. It gets
  decoded copies, so that neither a snapshot nor an event is shared.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import Struct

from shoal import values
from shoal.errors import InvalidInput, JournalTrimmed, NotFound
from shoal.kinds.journal.state.journal import Cursor
from shoal.protocol import requests
from shoal.protocol.base import Cursor as Opaque
from shoal.protocol.base import Http, Named, Natural, Positive, Time, Value
from shoal.protocol.requests import Durability
from shoal.records import NamedTuple
from shoal.workflows.connection import Connection, Flow, moment

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


Reducer = Callable[[Any, Event], Any]


class Naming(NamedTuple):
    """The name and version under which a reducer's snapshots are kept."""

    reducer: str
    version: int


async def replay(
    connection: Connection,
    space: str,
    thread: str,
    reducer: Reducer,
    *,
    initial: Any,
    until: datetime | str | None,
    naming: Naming | None,
    every: int | None,
) -> Any:
    """Fold the events of a journal into a value, beginning at the newest usable snapshot.

    `until` is the last event, by id or by time. If at least `every` events were folded, a new snapshot is stored.

    Raises:
        InvalidInput: `every` is given without a name, or is below 1.
        JournalTrimmed: the first events were trimmed, and there is no snapshot.
        NotFound: the journal has no event `until`.
    """
    if every is not None and (naming is None or every < 1):
        raise InvalidInput("`every` must be at least 1, and it needs `name`, the name under which snapshots are stored.")
    start = requests.Snapshot(None, "", b"")
    if naming is not None:
        start = await _snapshot(connection, space, thread, naming, until)
    if start.value is None:
        await check_whole(connection, space, thread)
    value = _copied(initial) if start.value is None else values.decode(start.value)
    folded, found = 0, start.event
    async with aclosing(events(connection, space, thread, after=start.cursor)) as source:
        async for event in source:
            if _is_of_another_sweep(event, start.cursor):
                break
            if isinstance(until, str) and event.id > until:
                break
            if isinstance(until, datetime) and event.time > until:
                continue
            value, found = reducer(value, event), event.id
            folded += 1
            last = event
    if start.value is None:
        await check_whole(connection, space, thread)  # It may have been trimmed since, before the first page was read.
    if isinstance(until, str) and found != until:
        raise NotFound(f"the journal of {thread!r} has no event {until}. List them with `read`.")
    if every is not None and naming is not None and folded >= every and not isinstance(until, datetime):
        await put_snapshot(connection, space, thread, naming, value, at=last)
    return value


async def put_snapshot(connection: Connection, space: str, thread: str, naming: Naming, value: Any, *, at: Event) -> None:
    """Store a value as a snapshot: the result of a reducer after all events up to `at`."""
    packed = values.encode(value, where="snapshot")
    request = requests.PutSnapshot(space, thread, naming.reducer, at.cursor, packed, naming.version)
    await connection.write(request, key=None, durability=None)


async def _snapshot(
    connection: Connection, space: str, thread: str, naming: Naming, until: datetime | str | None
) -> requests.Snapshot:
    id = until if isinstance(until, str) else None
    until_ms = int(until.timestamp() * 1000) if isinstance(until, datetime) else None
    return await connection.read(requests.ReadSnapshot(space, thread, naming.reducer, naming.version, id, until_ms))


async def check_whole(connection: Connection, space: str, thread: str) -> None:
    """Check that a replay can begin at the first event.

    Raises:
        JournalTrimmed: the first events were trimmed.
    """
    retention = await connection.read(requests.ReadRetention(space, thread))
    if retention.trimmed_ms:
        raise JournalTrimmed(
            f"the journal of {thread!r} was trimmed up to {moment(retention.trimmed_ms):%Y-%m-%d %H:%M:%S}Z, and there "
            "is no snapshot to replay it from. Nothing was written. Keep snapshots before trimming.",
            trimmed_ms=retention.trimmed_ms,
        )


def _is_of_another_sweep(event: Event, start: bytes) -> bool:
    """Whether the event came after the replay began: it may sort before folded events, or be one of them that moved."""
    return Cursor.unpack(event.cursor).vector != Cursor.unpack(start).vector


def _copied(initial: Any) -> Any:
    """A copy for each replay, so that a reducer may change it."""
    return values.decode(values.encode(initial, where="initial"))


class ReplayView(Struct, array_like=True, frozen=True):
    """The snapshot to begin with, and the events to fold into it."""

    snapshot: Value | None  # The reducer's value after all events up to `at`; null with `at` empty if there is none.
    at: str  # The id of the last event in the snapshot.
    events: list[requests.Event]  # The events after it, in order. An event marked `late` belongs before earlier ones.
    cursor: Opaque  # The cursor to continue with: `GET …/events?after=`.
    more: bool  # Whether there are more events.


class ReadReplay(Flow[ReplayView], frozen=True):
    """Read the newest usable snapshot of a reducer, and the first page of events after it.

    A function cannot be sent over HTTP, so the caller reduces: it folds the events in order into the snapshot's value, goes
    on with `GET …/events?after=` while there are more, and keeps the result as the next snapshot.
    """

    http: ClassVar = (
        Http(
            "GET",
            "/threads/{thread}/replay",
            "The latest snapshot of a reducer, and the events since",
            errors=(JournalTrimmed,),
        ),
    )

    space: str
    thread: str
    reducer: str | None = None  # The name of its snapshots. If left out, the replay begins at the first event.
    version: Natural = 0
    until: str | None = None  # An event's id: use no snapshot that includes later events.
    until_ms: Annotated[Time | None, Named("until_time")] = None  # A time with a zone: use no snapshot with later events.
    limit: Positive = 1000  # At most so many events.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> ReplayView:
        """Read the snapshot, and a page after it.

        Raises:
            InvalidInput: `until` or `until_time` is given without a reducer.
            JournalTrimmed: there is no snapshot, and the journal's beginning was trimmed.
        """
        start = requests.Snapshot(None, "", b"")
        if self.reducer is not None:
            asked = requests.ReadSnapshot(self.space, self.thread, self.reducer, self.version, self.until, self.until_ms)
            start = await connection.read(asked)
        elif self.until is not None or self.until_ms is not None:
            raise InvalidInput("`until` and `until_time` choose a snapshot of a reducer. Give `reducer` too.", field="until")
        page = await connection.read(requests.ReadJournal(self.space, self.thread, start.cursor, self.limit))
        if start.value is None:
            await check_whole(connection, self.space, self.thread)
        return ReplayView(start.value, start.event, page.events, page.cursor, page.more)
