"""Trimming of a journal, and its retention rule."""

from __future__ import annotations

from typing import Annotated

from shoal.errors import NotFound
from shoal.protocol.base import Maintenance, ObjectRead, ObjectWrite, Reply
from shoal.protocol.declared import Http, operation
from shoal.protocol.fields import Cursor, Named, Natural, Positive, Seconds, Shape

__all__ = ["EventsTrimmed", "ReadRetention", "Retention", "SetRetention", "Trim", "TrimEvents", "TrimReport"]

Place = bytes  # Where an operation's events are in a journal: 32 bytes; empty: before all.


@operation(
    http=Http(
        "POST",
        "/threads/{thread}/events:trim",
        "Trim the journal's old events, or show how many would be trimmed",
        errors=(NotFound,),
        example={"keep": 10_000, "dry_run": True},
    )
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
    after: Place = b""  # Only events above this place.


class EventsTrimmed(Reply, array_like=True, frozen=True, tag="events-trimmed"):
    """The number of events that were trimmed, and whether there are more."""

    events: int
    bytes: int
    more: bool
    last: Place = b""  # That of the last operation that was looked at: the next piece begins after it.


@operation(
    frees=True,
    action="admin",
    http=Http(
        "PUT",
        "/threads/{thread}/retention",
        "Set the journal's retention rule; without bounds everything is kept",
        example={"events": 100_000},
    ),
)
class SetRetention(ObjectWrite["Retention"], array_like=True, frozen=True, tag="set-retention"):
    """Set the retention rule: from now on events beyond any of these bounds are trimmed automatically."""

    thread: str
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    bytes: Positive | None = None
    events: Positive | None = None


@operation(
    http=Http("GET", "/threads/{thread}/retention", "The journal's retention rule, and the time up to which it was trimmed")
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
