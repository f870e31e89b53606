"""A thread's journal."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.requests.base import Read, Reply, Write


class Append(Write, array_like=True, frozen=True, tag="append"):
    """Append an event to a thread's journal; answered by `Appended`."""

    space: str
    thread: str
    event: bytes
    key: str | None = None  # Lives as long as the entry: the same key again appends nothing.


class Appended(Reply, array_like=True, frozen=True, tag="appended"):
    id: str  # 68 hex digits: the event's position.
    appended: bool  # False if the key was there already; `id` is then the first one's.


class ReadJournal(Read, array_like=True, frozen=True, tag="read-journal"):
    """Events that `after` (a cursor of an earlier reply; empty: none) does not cover; answered by `Events`."""

    space: str
    thread: str
    after: bytes = b""
    limit: int = 1000


class Event(Struct, array_like=True, frozen=True):
    id: str
    key: str | None
    wall_ms: int
    event: bytes
    late: bool  # It sorts before events that the cursor had already passed.
    cursor: bytes  # To go on right after this event.


class Events(Reply, array_like=True, frozen=True, tag="events"):
    events: list[Event]
    cursor: bytes
    more: bool
