"""Fold a journal's events into a value, as of any point.

Laws:
- The events are folded in the journal's order, each once: those that were there
  when the replay began.
- A snapshot takes the place of the events up to it only where the node vouches
  that it holds exactly those. Without a name nothing is stored, and none is used.
- A reducer returns the new value; it may change the one it gets. It is called with
  what is decoded again, so that neither a snapshot nor an event is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple

from shoal import values
from shoal.crdt.thread.journal import Cursor
from shoal.errors import InvalidInput, JournalTrimmed, NotFound
from shoal.protocol import requests
from shoal.workflows.connection import Connection
from shoal.workflows.events import Event, events
from shoal.workflows.moments import moment

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
    if every is not None and (naming is None or every < 1):
        raise InvalidInput(
            "every must be at least 1 and needs a reducer's name under which to store the snapshots: give `name` too."
        )
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
    """Keep a value as the result of a reducer up to an event."""
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
    """
    Raises:
        JournalTrimmed: a replay that begins at nothing would lack the first events.
    """
    retention = await connection.read(requests.ReadRetention(space, thread))
    if retention.trimmed_ms:
        raise JournalTrimmed(
            f"the journal of {thread!r} was trimmed up to {moment(retention.trimmed_ms):%Y-%m-%d %H:%M:%S}Z, and there "
            "is no snapshot to replay it from. Nothing was written. Keep snapshots before trimming.",
            trimmed_ms=retention.trimmed_ms,
        )


def _is_of_another_sweep(event: Event, start: bytes) -> bool:
    """Whether it came after the replay began: it may sort before what is folded, or be one that is, and has moved."""
    return Cursor.unpack(event.cursor).vector != Cursor.unpack(start).vector


def _copied(initial: Any) -> Any:
    """Of its own for each replay, so that a reducer may change it."""
    return values.decode(values.encode(initial, where="initial"))
