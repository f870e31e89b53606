"""Milliseconds since 1970, as the protocol has them, to the datetimes that handles show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shoal.errors import InvalidInput


def moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def as_wall_ms(time: datetime | None) -> int | None:
    """
    Raises:
        InvalidInput: it has no time zone.
    """
    if time is None:
        return None
    if time.tzinfo is None:
        raise InvalidInput("a time needs a time zone: datetime(…, tzinfo=UTC), or datetime.now(UTC).")
    # Not by floats: they would lose the last millisecond.
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
