"""A thread's journal: events, consumers, snapshots of reducers, places of loops.

Trimming of a journal, and its retention rule.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Struct

from shoal.errors import ConsumerReset, JournalTrimmed, NotFound, SchemaViolation
from shoal.protocol.base import (
    Cli,
    Cursor,
    Http,
    Maintenance,
    Named,
    Natural,
    ObjectRead,
    ObjectWrite,
    Positive,
    Reply,
    Seconds,
    Shape,
    Value,
    Waits,
    Would,
    operation,
)

__all__ = [
    "Ack",
    "Append",
    "Appended",
    "ConsumerState",
    "Consumers",
    "EraseEvent",
    "Event",
    "EventErased",
    "Events",
    "EventsTrimmed",
    "Place",
    "PutSnapshot",
    "ReachPlace",
    "ReadConsumer",
    "ReadConsumers",
    "ReadJournal",
    "ReadPlace",
    "ReadRetention",
    "ReadSnapshot",
    "Retention",
    "SetRetention",
    "Snapshot",
    "SnapshotKept",
    "Trim",
    "TrimEvents",
    "TrimReport",
]


@operation(
    weighs=lambda request: len(request.event),
    action="append",
    batch=True,
    http=Http(
        "POST",
        "/threads/{thread}/events",
        "Append an event to the journal (200 if its key was appended before)",
        ops=("append",),
        created="appended",
        errors=(SchemaViolation,),
        example={"event": {"kind": "asked", "text": "hello"}, "key": "event-1"},
    ),
    cli=Cli("append", """shoal append researcher-1 '{"order": 17}' --key order-17 --data ./state --space crew""", shows="id"),
)
class Append(ObjectWrite["Appended"], array_like=True, frozen=True, tag="append"):
    """Append an event to a thread's journal."""

    thread: str
    event: Value
    key: str | None = None  # While the event exists, appending the same key again appends nothing.


class Appended(Reply, array_like=True, frozen=True, tag="appended"):
    """The event's id, and whether it is new."""

    id: str  # 68 hex digits: the event's position.
    appended: bool  # False if the key was appended before; `id` is then the first event's.


@operation(
    frees=True,
    batch=True,
    http=Http(
        "DELETE",
        "/threads/{thread}/events/{event}",
        "Erase an event's value; its place, id, key and time stay",
        ops=("erase-event",),
        errors=(NotFound,),
    ),
    would=Would(
        lambda request: (ReadJournal(request.space, request.thread, skip_trimmed=True),),
        lambda request, before, found: EventErased(
            (before is not None and before.erased) or any(each.id == request.event and not each.erased for each in found.events)
        ),
        lambda read, reply: msgspec.structs.replace(read, after=reply.cursor) if reply.more else None,
    ),
    cli=Cli(
        "event erase",
        "shoal event erase researcher-1 019b…01 --yes --data ./state --space crew",
        shows="erased",
        help="Erase the value of an event of a thread's journal, on every node; its place, id, key and time stay.",
        destroys="Erase the value of event {event} of thread {thread}",
    ),
)
class EraseEvent(ObjectWrite["EventErased"], array_like=True, frozen=True, tag="erase-event"):
    """Erase the value of an event of a thread's journal. Its place, id, key and time stay."""

    thread: str
    event: str  # Its id.


class EventErased(Reply, array_like=True, frozen=True, tag="event-erased"):
    """An event's value was erased."""

    erased: bool  # False if there was none: it was erased before, or its event was trimmed.


@operation(
    multi_read=True,
    http=Http(
        "GET",
        "/threads/{thread}/events",
        "Events after the cursor `after`; with `wait`, once there are some",
        ops=("events",),
        errors=(JournalTrimmed,),
        waits=Waits("append", "events"),
    ),
)
class ReadJournal(ObjectRead["Events"], array_like=True, frozen=True, tag="read-journal"):
    """Read events that `after`, a cursor of an earlier reply, does not cover; if it is empty, from the first."""

    thread: str
    after: Cursor = b""
    limit: Positive = 1000
    since_ms: Natural = 0  # Leave out events that were ordered before this time.
    skip_trimmed: bool = False  # Continue after trimmed events that `after` does not cover, instead of an error.


class Event(Struct, array_like=True, frozen=True):
    """One event of a journal."""

    id: str
    key: str | None
    wall_ms: int
    event: Value
    late: bool  # It sorts before events that the cursor had already passed.
    cursor: Cursor  # The cursor right after this event.
    erased: bool = False  # Its value was erased, so `event` is nil.


class Events(Reply, array_like=True, frozen=True, tag="events"):
    """A page of a journal."""

    events: list[Event]
    cursor: Cursor
    more: bool


@operation(
    frees=True,
    makes=True,
    batch=True,
    http=Http(
        "POST",
        "/threads/{thread}/consumers/{consumer}/ack",
        "Acknowledge an event and all events before it",
        ops=("ack",),
        errors=(NotFound, ConsumerReset),
        example={"cursor": ""},
    ),
)
class Ack(ObjectWrite["ConsumerState"], array_like=True, frozen=True, tag="ack"):
    """Move a consumer's cursor forward, so that it covers `cursor` too.

    With `reset` the cursor is set to `cursor`, even if that moves it backwards, and a new generation begins.
    `generation` is the one that the caller read; if it has ended, the request is rejected. None: any generation.
    """

    thread: str
    consumer: str
    cursor: Cursor
    generation: int | None = None
    reset: bool = False  # Set the cursor even if that moves it backwards.


class ConsumerState(Reply, array_like=True, frozen=True, tag="consumer-state"):
    """A consumer's cursor, and how far it is behind."""

    name: str
    generation: int
    acked_ms: int  # When it acknowledged last; 0 if it never did.
    cursor: Cursor
    behind: int = 0  # Events that it has not acknowledged.
    counted: bool = True  # False if there are more than `behind`.


@operation(
    multi_read=True,
    http=Http(
        "GET",
        "/threads/{thread}/consumers/{consumer}",
        "A consumer's cursor",
        ops=("consumer",),
        errors=(NotFound,),
    ),
)
class ReadConsumer(ObjectRead[ConsumerState], array_like=True, frozen=True, tag="read-consumer"):
    """Read one consumer's cursor, which is at the start if it never acknowledged an event."""

    thread: str
    consumer: str


@operation(
    http=Http("GET", "/threads/{thread}/consumers", "The journal's consumers, and how far behind they are"),
    cli=Cli(
        "consumers",
        "shoal consumers researcher-1 --data ./state --space crew",
        help="List the consumers of a thread's journal, and how far behind they are.",
        rows="items",
        place="name",
        columns=("name", "behind", "acked_ms"),
    ),
)
class ReadConsumers(ObjectRead["Consumers"], array_like=True, frozen=True, tag="read-consumers"):
    """List a thread's consumers by name."""

    thread: str
    after: str | None = None
    limit: Positive = 100


class Consumers(Reply, array_like=True, frozen=True, tag="consumers"):
    """A page of a journal's consumers."""

    items: Annotated[list[ConsumerState], Named("consumers")]
    more: bool  # Ask again with after=items[-1].name.


@operation(
    http=Http(
        "PUT",
        "/threads/{thread}/snapshots/{reducer}",
        "Store a snapshot of a reducer",
        example={"value": {"total": 12}, "cursor": "", "version": 1},
    )
)
class PutSnapshot(ObjectWrite["SnapshotKept"], array_like=True, frozen=True, tag="put-snapshot"):
    """Store the result of a reducer after all events up to the one with the cursor `cursor`."""

    thread: str
    reducer: str
    cursor: Cursor  # The cursor of the last event in the snapshot.
    value: Value
    version: Natural = 0


class SnapshotKept(Reply, array_like=True, frozen=True, tag="snapshot-kept"):
    """A snapshot was stored."""

    event: Annotated[str, Named("at")]  # The id of the last event in the snapshot.


class ReadSnapshot(ObjectRead["Snapshot"], array_like=True, frozen=True, tag="read-snapshot"):
    """Read the latest snapshot of a reducer that includes no event after an event or a time."""

    thread: str
    reducer: str
    version: int
    until: str | None = None  # An event's id.
    until_ms: int | None = None


class Snapshot(Reply, array_like=True, frozen=True, tag="snapshot"):
    """A snapshot of a reducer; without a value there is none."""

    value: bytes | None  # None if there is no usable snapshot.
    event: str  # The id of the last event in the snapshot; empty without one.
    cursor: Cursor  # The cursor after the snapshot.


@operation(
    drives=True,
    batch=True,
    http=Http(
        "PUT", "/threads/{thread}/places/{loop}", "Store the place of a loop", ops=("reach-place",), example={"place": 12}
    ),
)
class ReachPlace(ObjectWrite["Place"], array_like=True, frozen=True, tag="reach-place"):
    """Store how many rows of a loop are finished. It only grows, unless `restart` is set."""

    thread: str
    key: Annotated[str, Named("loop")]
    place: Natural  # How many rows are finished.
    restart: bool = False  # Begin again from this place.


@operation(multi_read=True, http=Http("GET", "/threads/{thread}/places/{loop}", "The place of a loop", ops=("place",)))
class ReadPlace(ObjectRead["Place"], array_like=True, frozen=True, tag="read-place"):
    """Read how many rows of a loop are finished."""

    thread: str
    key: Annotated[str, Named("loop")]


class Place(Reply, array_like=True, frozen=True, tag="place"):
    """How many rows of a loop are finished."""

    place: int  # 0 at the start.


EventsPlace = bytes  # Where an operation's events are in a journal: 32 bytes; empty: before all.


@operation(
    http=Http(
        "POST",
        "/threads/{thread}/events:trim",
        "Trim the journal's old events, or show how many would be trimmed",
        errors=(NotFound,),
        example={"keep": 10_000, "dry_run": True},
    ),
    cli=Cli(
        "trim",
        "shoal trim researcher-1 --older-than 30d --keep-last 1000 --dry-run --data ./state --space crew",
        help="Trim old events of a thread's journal, on every node: those that meet all the options.",
        destroys="Trim these events of thread {thread}",
    ),
)
class Trim(Maintenance["TrimReport"], array_like=True, frozen=True, tag="trim-journal"):
    """Trim a journal's old events.

    An event is trimmed if it meets all given conditions: it sorts before the event `before`, is
    covered by `cursor`, is older than `older_than_ms`, is not among the last `keep`, and not
    among the last ones with `keep_bytes` together.
    """

    thread: str
    before: str | None = None  # An event's id.
    cursor: Cursor = b""  # Only events that it covers.
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    keep: Natural | None = None
    keep_bytes: Natural | None = None
    dry_run: bool = False


class TrimReport(Reply, array_like=True, frozen=True, tag="trim-report"):
    """The events that were trimmed, or would be."""

    events: int
    bytes: int  # As stored; freed on each node once the trim is stable.
    dry_run: bool


@operation(frees=True, action="admin")
class TrimEvents(ObjectWrite["EventsTrimmed"], array_like=True, frozen=True, tag="trim-events"):
    """Trim a bounded number of the events before a place, the oldest first."""

    thread: str
    before: bytes  # Up to 32 bytes: HLC and dot, or the beginning of them.
    cursor: bytes = b""  # If given, only events that it covers.
    after: EventsPlace = b""  # Only events above this place.


class EventsTrimmed(Reply, array_like=True, frozen=True, tag="events-trimmed"):
    """The number of events that were trimmed, and whether there are more."""

    events: int
    bytes: int
    more: bool
    last: EventsPlace = b""  # That of the last operation that was looked at: the next piece begins after it.


@operation(
    frees=True,
    makes=True,
    action="admin",
    http=Http(
        "PUT",
        "/threads/{thread}/retention",
        "Set the journal's retention rule; without bounds everything is kept",
        example={"events": 100_000},
    ),
    cli=Cli(
        "retain",
        "shoal retain researcher-1 --older-than 30d --keep-last 100000 --data ./state --space crew",
        help="Set a journal's retention rule: events beyond any bound are trimmed from now on; without bounds all stay.",
    ),
)
class SetRetention(ObjectWrite["Retention"], array_like=True, frozen=True, tag="set-retention"):
    """Set the retention rule: from now on events beyond any of these bounds are trimmed automatically."""

    thread: str
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    bytes: Positive | None = None
    events: Positive | None = None


@operation(
    http=Http("GET", "/threads/{thread}/retention", "The journal's retention rule, and the time up to which it was trimmed"),
    cli=Cli("retained", "shoal retained researcher-1 --data ./state --space crew"),
)
class ReadRetention(ObjectRead["Retention"], array_like=True, frozen=True, tag="read-retention"):
    """Read the retention rule, and the time up to which the journal was trimmed."""

    thread: str


class Retention(Reply, array_like=True, frozen=True, tag="retention"):
    """The bounds of a journal; None means no bound."""

    older_than_ms: Annotated[Seconds | None, Named("older_than_s")]
    bytes: int | None
    events: int | None
    trimmed_ms: Annotated[int, Shape.MOMENT] = 0  # The time of the last event that was trimmed.
