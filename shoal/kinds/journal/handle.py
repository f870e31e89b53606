"""The handles of a thread's journal, of its consumers, and of loops that store their place in it.

The handle of a journal's consumer, which continues after the last event that was acknowledged under its name.

    async for event in thread.journal.consumer("billing"):
        await bill(event.event, key=event.key)
        await consumer.ack(event)

Law: at least once. An event that is not acknowledged comes again to the next reader of
this name, on any node. Of two events with the same key and content a
reader gets one. If an event is acknowledged in one batch with its effects
(`batch.thread(name).ack(consumer, event)`), each effect counts once.

A loop over many rows that stores its place, so that it continues there after a restart.

Law: a row counts as finished when the next one is requested, or when the loop has ended.
The stored place is never after an unfinished row: after a crash the rows since the
last stored place come again, and none is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol, TypeVar, overload

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, reread
from shoal.errors import InvalidInput
from shoal.kinds.journal.flows import Event, Naming, Reducer, events, put_snapshot, replay
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import as_duration_ms, moment

KEYS_MAX = 4096  # How many keys a reader remembers to leave out repetitions.


class Source(Protocol):
    """The journal that a consumer reads."""

    space: str
    thread: str

    def read(
        self, *, after: bytes | None, follow: bool, timeout: float | None, skip_trimmed: bool
    ) -> AsyncGenerator[Event, None]:
        """Yield events in order, after a cursor or from the first (`Journal.read`)."""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer of a journal, and how far behind it is."""

    name: str
    behind: int  # How many events it has not acknowledged; at least so many if `counted` is false.
    counted: bool
    acked: datetime | None  # When it acknowledged last; None if it never did.
    cursor: bytes


@named
class Consumer:
    """A reader of a journal whose cursor is stored under a name."""

    def __init__(self, connection: StoreConnection, journal: Source, name: str) -> None:
        self._connection = connection
        self._journal = journal
        self.name = check_name("consumer", name)
        self.generation: int | None = None  # The generation of the cursor that it reads from; a reset begins another.

    def __repr__(self) -> str:
        return f"Consumer({self._journal.space!r}, {self._journal.thread!r}, {self.name!r})"

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.read()

    async def read(
        self,
        *,
        follow: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109
        skip_trimmed: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events that this consumer has not acknowledged, and with `follow` new ones as they come.

        After a disconnect it continues by itself, with another node if there is one. With a `timeout` it follows until
        nothing has come for so many seconds.

        Raises:
            Disconnected: no node could be reached for `request_timeout_s`. Read again after the last acknowledged event.
            JournalTrimmed: events that it has not acknowledged were trimmed; with `skip_trimmed` it continues after them.
        """
        state = await self._state()
        self.generation = state.generation
        got: dict[str, bytes] = {}
        source = self._journal.read(after=state.cursor, follow=follow, timeout=timeout, skip_trimmed=skip_trimmed)
        async with aclosing(source) as events:
            async for event in events:
                # A key that was appended on two nodes moves to one of the two places, and may come again.
                if event.key is not None:
                    if got.get(event.key) == event.packed:
                        continue
                    got[event.key] = event.packed
                    if len(got) > KEYS_MAX:
                        del got[next(iter(got))]
                yield event

    async def ack(self, event: Event, *, durability: Durability | None = None) -> None:
        """Acknowledge `event` and all events that this consumer received before it.

        Raises:
            ConsumerReset: the cursor was reset after this handle began to read; read again.
        """
        request = ack_request(self._journal.space, self._journal.thread, self, event)
        await self._connection.write(request, key=None, durability=durability)

    async def reset(self, after: Event | None = None, *, durability: Durability | None = None) -> None:
        """Set the cursor after `event`, or to the start of the journal, even if that moves it backwards."""
        cursor = b"" if after is None else after.cursor
        request = requests.Ack(self._journal.space, self._journal.thread, self.name, cursor, None, True)
        self.generation = (await self._connection.write(request, key=None, durability=durability)).generation

    async def info(self) -> ConsumerInfo:
        """How far behind the consumer is."""
        return described(await self._state())

    async def _state(self) -> requests.ConsumerState:
        journal = self._journal
        return await self._connection.read(requests.ReadConsumer(journal.space, journal.thread, self.name))


def ack_request(space: str, thread: str, consumer: Consumer, event: Event) -> requests.Ack:
    """The request that acknowledges an event and all that the consumer received before it."""
    return requests.Ack(space, thread, consumer.name, event.cursor, consumer.generation)


def described(state: requests.ConsumerState) -> ConsumerInfo:
    """A consumer's state as handles show it."""
    acked = moment(state.acked_ms) if state.acked_ms else None
    return ConsumerInfo(state.name, state.behind, state.counted, acked, state.cursor)


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of `Journal.append`."""

    id: str
    appended: bool  # False if the key was appended before; `id` is then the first event's.


@dataclass(frozen=True, slots=True)
class Retention:
    """The bounds of a journal; None means no bound."""

    older_than: timedelta | None
    bytes: int | None
    events: int | None
    trimmed: datetime | None  # The time of the last event that was trimmed; None if none was.


@named
class Journal:
    """The journal of a thread: events in one order on all nodes."""

    def __init__(self, connection: StoreConnection, space: str, thread: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.thread = check_name("thread", thread)

    def __repr__(self) -> str:
        return f"Journal({self.space!r}, {self.thread!r})"

    async def append(self, event: Any, *, key: str | None = None, durability: Durability | None = None) -> Appended:
        """Append an event. Of all events with one `key`, the journal has one.

        Raises:
            InvalidValue: the event cannot be serialised.
            KeyReused: `key` was appended with another event.
        """
        request = append_request(self.space, self.thread, event, key=key)
        reply = await self._connection.write(request, key=None, durability=durability)
        return Appended(reply.id, reply.appended)

    async def read(
        self,
        *,
        after: bytes | None = None,
        limit: int | None = None,
        follow: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
        stale: bool = False,
        skip_trimmed: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield events in order, after a cursor or from the first.

        With `follow` it waits for more, and ends at `limit`, or when nothing has come for `timeout` seconds. After a
        disconnect it continues by itself, with another node if there is one. To stop following early, close it
        (`contextlib.aclosing`), which ends its subscription at once. `stale`: see `Store`.

        Raises:
            InvalidValue: `after` is not a cursor.
            JournalTrimmed: events that `after` does not cover were trimmed; with `skip_trimmed` it continues after them.
            Disconnected: no node could be reached for `request_timeout_s`; continue from the last event's cursor.
        """
        cursor, left = after or b"", limit

        async def rest() -> AsyncGenerator[Event, None]:
            nonlocal cursor, left
            source = events(
                self._connection, self.space, self.thread, after=cursor, limit=left, stale=stale, skip_trimmed=skip_trimmed
            )
            async for event in source:
                cursor, left = event.cursor, None if left is None else left - 1
                yield event

        found = reread(self._connection, self.space, self.thread, "append", rest, timeout=timeout) if follow else rest()
        async with aclosing(found):
            while left is None or left > 0:
                event = await anext(found, None)
                if event is None:
                    return
                yield event

    async def wait(self, *, after: bytes | None = None, timeout: float | None = None) -> Event | None:  # noqa: ASYNC109
        """Wait for the first event that `after` does not cover; None if none comes for `timeout` seconds.

        Without a cursor this is the journal's first event. To wait for the next one, pass the cursor of the last.
        """
        async with aclosing(self.read(after=after, limit=1, follow=True, timeout=timeout)) as events:
            return await anext(events, None)

    async def erase(self, event: Event | str, *, durability: Durability | None = None) -> bool:
        """Erase the value of an event, or of the one with this id, on every node. Its place, id, key and time stay.

        From then on it is read as an event whose value is None and whose `erased` is true. The value does not come back if
        the same append arrives late or is sent again with its key. Copies, such as snapshots of reducers, stay.
        Returns False if there was no value: it was erased before, or its event was trimmed.

        Raises:
            NotFound: the node does not know the event.
            InvalidInput: it is no id of an event, or the journal holds a durable stream.
        """
        request = erase_request(self.space, self.thread, event)
        return (await self._connection.write(request, key=None, durability=durability)).erased

    # ── consumers ─────────────────────────────────────────────────────────────

    def consumer(self, name: str) -> Consumer:
        """A reader whose cursor is stored with the journal, under `name`."""
        return Consumer(self._connection, self, name)

    async def consumers(self) -> AsyncIterator[ConsumerInfo]:
        """Yield all consumers that have acknowledged an event, by name, with how far behind they are."""
        after: str | None = None
        while True:
            page = await self._connection.read(requests.ReadConsumers(self.space, self.thread, after))
            for state in page.items:
                yield described(state)
            if not page.more:
                return
            after = page.items[-1].name

    # ── replay ────────────────────────────────────────────────────────────────

    @overload
    async def replay(
        self,
        reducer: Callable[[S, Event], S],
        *,
        initial: S,
        until: datetime | str | None = None,
        name: str | None = None,
        version: int = 0,
        every: int | None = None,
    ) -> S: ...
    @overload
    async def replay(
        self,
        reducer: Callable[[Any, Event], S],
        *,
        until: datetime | str | None = None,
        name: str | None = None,
        version: int = 0,
        every: int | None = None,
    ) -> S | None: ...
    async def replay(
        self,
        reducer: Reducer,
        *,
        initial: Any = None,
        until: datetime | str | None = None,
        name: str | None = None,
        version: int = 0,
        every: int | None = None,
    ) -> Any:
        """Fold the events up to `until`, in order: start from `initial` and apply `reducer(value, event)`.

        `until` is an event's id (that event included), or a time by the writers' clocks.
        With a `name` the replay begins at the latest snapshot that `snapshot` stored under
        it and `version`, if that includes all events up to there. With `every` it stores a
        snapshot itself after folding that many. Give a changed reducer a new `version`.

        Raises:
            NotFound: there is no event `until`.
            JournalTrimmed: the first events were trimmed, and no snapshot includes them.
            InvalidValue: with `every`, the value cannot be serialised.
        """
        naming = None if name is None else Naming(name, version)
        return await replay(
            self._connection, self.space, self.thread, reducer, initial=initial, until=until, naming=naming, every=every
        )

    async def snapshot(self, value: Any, *, at: Event, name: str, version: int = 0) -> None:
        """Store `value` as the result of the reducer `name` over all events up to `at`; the last 8
        snapshots are kept.

        Raises:
            InvalidInput: `at` is a late event: it sorts before events that were read earlier.
            InvalidValue, TooLarge: `value` cannot be stored.
        """
        await put_snapshot(self._connection, self.space, self.thread, Naming(name, version), value, at=at)

    # ── retention ─────────────────────────────────────────────────────────────

    async def trim(
        self,
        before: Event | str | bytes | None = None,
        *,
        older_than: timedelta | float | None = None,
        keep: int | None = None,
        keep_bytes: int | None = None,
        dry_run: bool = False,
        durability: Durability | None = None,
    ) -> requests.TrimReport:
        """Remove old events on every node: those that all given conditions allow to remove.

        `before`: an event (or its id), or a cursor; only events before the event, or covered by the
        cursor, are removed. `keep`: so many of the last events stay. `keep_bytes`: the last events
        up to that many bytes together stay. The events of an operation are removed together.
        Events of other nodes that have not reached this one stay. The keys of
        removed events may be used again.

        Raises:
            InvalidInput: no condition is given, or one is out of range.
        """
        event = before.id if isinstance(before, Event) else before
        request = requests.Trim(
            self.space,
            self.thread,
            event if isinstance(event, str) else None,
            event if isinstance(event, bytes) else b"",
            as_duration_ms(older_than, what="older_than"),
            keep,
            keep_bytes,
            dry_run,
        )
        return await self._connection.write(request, key=None, durability=durability)

    async def retain(
        self,
        *,
        older_than: timedelta | float | None = None,
        bytes: int | None = None,
        events: int | None = None,
        durability: Durability | None = None,
    ) -> Retention:
        """From now on, trim the journal as it grows: events beyond any of these bounds are removed.

        The call replaces all bounds set before; without arguments nothing is trimmed by itself.
        Trimming starts when a bound is exceeded by an eighth.

        Raises:
            InvalidInput: a bound is out of range.
        """
        request = requests.SetRetention(self.space, self.thread, as_duration_ms(older_than, what="older_than"), bytes, events)
        return _retention(await self._connection.write(request, key=None, durability=durability))

    async def retention(self) -> Retention:
        """The bounds that `retain` has set."""
        return _retention(await self._connection.read(requests.ReadRetention(self.space, self.thread)))


def _retention(reply: requests.Retention) -> Retention:
    age = None if reply.older_than_ms is None else timedelta(milliseconds=reply.older_than_ms)
    trimmed = moment(reply.trimmed_ms) if reply.trimmed_ms else None
    return Retention(age, reply.bytes, reply.events, trimmed)


def append_request(space: str, thread: str, event: Any, *, key: str | None = None) -> requests.Append:
    """The request that appends an event."""
    return requests.Append(space, thread, values.encode(event, where="event"), key)


def erase_request(space: str, thread: str, event: Event | str) -> requests.EraseEvent:
    """The request that erases an event's value."""
    return requests.EraseEvent(space, thread, event.id if isinstance(event, Event) else event)


T = TypeVar("T")


class Loop:
    """A loop of a thread, by its key."""

    def __init__(self, connection: StoreConnection, space: str, thread: str, key: str) -> None:
        self._connection = connection
        self._space, self._thread, self._key = space, thread, key

    async def place(self) -> int:
        """How many rows are finished."""
        reply = await self._connection.read(requests.ReadPlace(self._space, self._thread, self._key))
        return reply.place

    async def reach(self, place: int, *, restart: bool = False) -> None:
        """Record that so many rows are finished."""
        request = requests.ReachPlace(self._space, self._thread, self._key, place, restart)
        await self._connection.write(request, key=None, durability=None)

    async def rows(self, rows: Iterable[T] | AsyncIterable[T], *, every: int, restart: bool) -> AsyncGenerator[T, None]:
        """The rows after the recorded place: see `Thread.iterate`."""
        if every < 1:
            raise InvalidInput(f"`every` must be a number of rows, at least 1; got {every}. Nothing was written.")
        if restart:
            await self.reach(0, restart=True)
        finished = kept = 0 if restart else await self.place()
        try:
            async with aclosing(_after(rows, finished)) as rest:
                async for row in rest:
                    yield row
                    finished += 1
                    if finished - kept >= every:
                        await self.reach(finished)
                        kept = finished
        finally:
            if finished > kept:
                await self.reach(finished)


async def _after(rows: Iterable[T] | AsyncIterable[T], count: int) -> AsyncGenerator[T, None]:
    """Yield all rows except the first `count`."""
    if isinstance(rows, AsyncIterable):
        left = count
        source: AsyncIterator[T] = aiter(rows)
        async for row in source:
            if left:
                left -= 1
            else:
                yield row
    elif isinstance(rows, Sequence):
        for index in range(count, len(rows)):
            yield rows[index]
    else:
        for row in islice(rows, count, None):
            yield row
