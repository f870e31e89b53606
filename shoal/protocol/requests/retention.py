"""What a journal keeps, and what goes."""

from __future__ import annotations

from shoal.protocol.requests.base import Maintenance, ObjectRead, ObjectWrite, Reply

__all__ = ["EventsTrimmed", "ReadRetention", "Retention", "SetRetention", "Trim", "TrimEvents", "TrimReport"]


class Trim(Maintenance["TrimReport"], array_like=True, frozen=True, tag="trim-journal"):
    """Give up a journal's old events.

    An event goes if everything that is given lets it go: it sorts before the event `before`, is
    covered by `cursor`, is older than `older_than_ms`, is not among the last `keep`, nor
    among the last that have `keep_bytes` together.
    """

    thread: str
    before: str | None = None
    cursor: bytes = b""
    older_than_ms: int | None = None
    keep: int | None = None
    keep_bytes: int | None = None
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


class SetRetention(ObjectWrite["Retention"], array_like=True, frozen=True, tag="set-retention"):
    """From now on the journal gives up by itself what is beyond any of these bounds."""

    thread: str
    older_than_ms: int | None = None
    bytes: int | None = None
    events: int | None = None


class ReadRetention(ObjectRead["Retention"], array_like=True, frozen=True, tag="read-retention"):
    """Read how long events are kept."""

    thread: str


class Retention(Reply, array_like=True, frozen=True, tag="retention"):
    older_than_ms: int | None
    bytes: int | None
    events: int | None
    trimmed_ms: int = 0  # When the last event that was trimmed was ordered; 0: none was.
