"""What a journal keeps, and what goes."""

from __future__ import annotations

from typing import Annotated

from shoal.errors import NotFound
from shoal.protocol.fields import Cursor, Named, Natural, Positive, Seconds, Shape
from shoal.protocol.requests.base import Maintenance, ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Http, operation

__all__ = ["EventsTrimmed", "ReadRetention", "Retention", "SetRetention", "Trim", "TrimEvents", "TrimReport"]


@operation(
    http=Http(
        "POST",
        "/threads/{thread}/events:trim",
        "Give up the journal's old events, or say how many would go",
        errors=(NotFound,),
        example={"keep": 10_000, "dry_run": True},
    )
)
class Trim(Maintenance["TrimReport"], array_like=True, frozen=True, tag="trim-journal"):
    """Give up a journal's old events.

    An event goes if everything that is given lets it go: it sorts before the event `before`, is
    covered by `cursor`, is older than `older_than_ms`, is not among the last `keep`, nor
    among the last that have `keep_bytes` together.
    """

    thread: str
    before: str | None = None  # An event's id.
    cursor: Cursor = b""  # What it covers.
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    keep: Natural | None = None
    keep_bytes: Natural | None = None
    dry_run: bool = False


class TrimReport(Reply, array_like=True, frozen=True, tag="trim-report"):
    events: int
    bytes: int  # As stored; freed on each node once the trim is stable.
    dry_run: bool


class TrimEvents(ObjectWrite["EventsTrimmed"], array_like=True, frozen=True, tag="trim-events"):
    """Give up a bounded number of the events below a place, the oldest first."""

    thread: str
    before: bytes  # Up to 32 bytes: HLC and dot, or the beginning of them.
    cursor: bytes = b""  # If given, only what it covers.


class EventsTrimmed(Reply, array_like=True, frozen=True, tag="events-trimmed"):
    events: int
    bytes: int
    more: bool


@operation(
    http=Http(
        "PUT",
        "/threads/{thread}/retention",
        "Set what the journal keeps; without bounds everything",
        example={"events": 100_000},
    )
)
class SetRetention(ObjectWrite["Retention"], array_like=True, frozen=True, tag="set-retention"):
    """From now on the journal gives up by itself what is beyond any of these bounds."""

    thread: str
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    bytes: Positive | None = None
    events: Positive | None = None


@operation(http=Http("GET", "/threads/{thread}/retention", "What the journal keeps, and up to when it was trimmed"))
class ReadRetention(ObjectRead["Retention"], array_like=True, frozen=True, tag="read-retention"):
    """Read how long events are kept."""

    thread: str


class Retention(Reply, array_like=True, frozen=True, tag="retention"):
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")]
    bytes: int | None
    events: int | None
    trimmed_ms: Annotated[int, Shape.MOMENT] = 0  # When the last event that was trimmed was ordered.
