"""A thread's journal."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.errors import ConsumerReset, NotFound, SchemaViolation
from shoal.protocol.fields import Cursor, Named, Natural, Positive, Value
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Http, operation

__all__ = [
    "Ack",
    "Append",
    "Appended",
    "ConsumerState",
    "Consumers",
    "Event",
    "Events",
    "Place",
    "PutSnapshot",
    "ReachPlace",
    "ReadConsumer",
    "ReadConsumers",
    "ReadJournal",
    "ReadPlace",
    "ReadSnapshot",
    "Snapshot",
    "SnapshotKept",
]


@operation(
    batch=True,
    http=Http(
        "POST",
        "/threads/{thread}/events",
        "Append an event to the journal (200 if its key was there already)",
        ops=("append",),
        created="appended",
        errors=(SchemaViolation,),
        example={"event": {"kind": "asked", "text": "hello"}, "key": "event-1"},
    ),
)
class Append(ObjectWrite["Appended"], array_like=True, frozen=True, tag="append"):
    """Append an event to a thread's journal."""

    thread: str
    event: Value
    key: str | None = None  # Lives as long as the entry: the same key again appends nothing.


class Appended(Reply, array_like=True, frozen=True, tag="appended"):
    id: str  # 68 hex digits: the event's position.
    appended: bool  # False if the key was there already; `id` is then the first one's.


@operation(multi_read=True)
class ReadJournal(ObjectRead["Events"], array_like=True, frozen=True, tag="read-journal"):
    """Events that `after` (a cursor of an earlier reply; empty: none) does not cover."""

    thread: str
    after: Cursor = b""
    limit: int = 1000
    since_ms: int = 0  # Events that were ordered before this time are passed over.
    skip_trimmed: bool = False  # Go on where events that `after` does not cover were trimmed; else that is an error.


class Event(Struct, array_like=True, frozen=True):
    id: str
    key: str | None
    wall_ms: int
    event: Value
    late: bool  # It sorts before events that the cursor had already passed.
    cursor: Cursor  # To go on right after this event.


class Events(Reply, array_like=True, frozen=True, tag="events"):
    events: list[Event]
    cursor: Cursor
    more: bool


@operation(
    batch=True,
    http=Http(
        "POST",
        "/threads/{thread}/consumers/{consumer}/ack",
        "Acknowledge an event, and all before it",
        ops=("ack",),
        errors=(NotFound, ConsumerReset),
        example={"cursor": ""},
    ),
)
class Ack(ObjectWrite["ConsumerState"], array_like=True, frozen=True, tag="ack"):
    """Move a consumer's cursor forward to what `cursor` covers too.

    With `reset` the cursor is set to `cursor`, wherever it was, and a generation begins.
    `generation` is the one that the caller reads in: one that has ended is refused. None: whichever it is.
    """

    thread: str
    consumer: str
    cursor: Cursor
    generation: int | None = None
    reset: bool = False  # Set the cursor there, wherever it was.


class ConsumerState(Reply, array_like=True, frozen=True, tag="consumer-state"):
    name: str
    generation: int
    acked_ms: int  # 0: it has acknowledged nothing.
    cursor: Cursor
    behind: int = 0  # Events that it has not acknowledged.
    counted: bool = True  # False: there are more.


@operation(
    multi_read=True,
    http=Http(
        "GET",
        "/threads/{thread}/consumers/{consumer}",
        "A consumer's cursor, to read events after",
        ops=("consumer",),
        errors=(NotFound,),
    ),
)
class ReadConsumer(ObjectRead[ConsumerState], array_like=True, frozen=True, tag="read-consumer"):
    """One consumer's cursor, also if it never acknowledged anything."""

    thread: str
    consumer: str


@operation(http=Http("GET", "/threads/{thread}/consumers", "The journal's consumers, and how far behind they are"))
class ReadConsumers(ObjectRead["Consumers"], array_like=True, frozen=True, tag="read-consumers"):
    """A thread's consumers by name."""

    thread: str
    after: str | None = None
    limit: Positive = 100


class Consumers(Reply, array_like=True, frozen=True, tag="consumers"):
    items: Annotated[list[ConsumerState], Named("consumers")]
    more: bool  # Ask again with after=items[-1].name.


@operation(
    http=Http(
        "PUT",
        "/threads/{thread}/snapshots/{reducer}",
        "Keep what a reducer made of the events so far",
        example={"value": {"total": 12}, "cursor": "", "version": 1},
    )
)
class PutSnapshot(ObjectWrite["SnapshotKept"], array_like=True, frozen=True, tag="put-snapshot"):
    """Keep what a reducer made of all events up to that of `cursor` (an event's)."""

    thread: str
    reducer: str
    cursor: Cursor  # Of the last event that is in it.
    value: Value
    version: Natural = 0


class SnapshotKept(Reply, array_like=True, frozen=True, tag="snapshot-kept"):
    event: Annotated[str, Named("at")]  # The position that it stands at.


class ReadSnapshot(ObjectRead["Snapshot"], array_like=True, frozen=True, tag="read-snapshot"):
    """The latest snapshot of a reducer at or before an event, or a time."""

    thread: str
    reducer: str
    version: int
    until: str | None = None  # An event's id.
    until_ms: int | None = None


class Snapshot(Reply, array_like=True, frozen=True, tag="snapshot"):
    value: bytes | None  # None: there is none that holds.
    event: str  # The last event that is in it; empty without one.
    cursor: Cursor  # To read on after it.


@operation(
    batch=True,
    http=Http("PUT", "/threads/{thread}/places/{loop}", "A loop has come so far", ops=("reach-place",), example={"place": 12}),
)
class ReachPlace(ObjectWrite["Place"], array_like=True, frozen=True, tag="reach-place"):
    """A loop has come so far. With `restart` it begins again, from there."""

    thread: str
    key: Annotated[str, Named("loop")]
    place: Natural  # So many rows are finished.
    restart: bool = False  # Begin again, from there.


@operation(multi_read=True, http=Http("GET", "/threads/{thread}/places/{loop}", "How far a loop has come", ops=("place",)))
class ReadPlace(ObjectRead["Place"], array_like=True, frozen=True, tag="read-place"):
    """How far a loop has come."""

    thread: str
    key: Annotated[str, Named("loop")]


class Place(Reply, array_like=True, frozen=True, tag="place"):
    place: int  # 0: at the start.
