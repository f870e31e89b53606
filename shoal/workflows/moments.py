"""Times and durations: conversions between the protocol's milliseconds and the values of handles."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import floor, isfinite, isnan

from shoal.errors import InvalidInput

_END_MS = 2**53  # Later than any clock.


def moment(wall_ms: int) -> datetime:
    """A time of the protocol as a datetime in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def as_wall_ms(time: datetime | float | None) -> int | None:
    """Milliseconds since 1970. A number is seconds since 1970, as from `time.time()`.

    Raises:
        InvalidInput: it has no time zone, or is not a time.
    """
    if time is None:
        return None
    if isinstance(time, int | float) and not isinstance(time, bool) and isfinite(time):
        return floor(max(0, min(time * 1000, _END_MS)))
    if not isinstance(time, datetime):
        raise InvalidInput(f"a time must be a datetime with a time zone, or seconds since 1970; got {time!r:.80}.")
    if time.tzinfo is None:
        raise InvalidInput("a time needs a time zone: datetime(…, tzinfo=UTC), or datetime.now(UTC).")
    # Floats would lose the last millisecond.
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def as_timeout_s(timeout: float | None) -> float | None:
    """A timeout in seconds, unchanged; None means no limit.

    Raises:
        InvalidInput: it is not a number.
    """
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool) and not isnan(timeout)):
        return timeout
    raise InvalidInput(
        f"timeout must be a number of seconds, or None; got {timeout!r:.80}. Nothing was written.", field="timeout"
    )


def as_duration_ms(duration: timedelta | float | None, *, what: str) -> int | None:
    """Whole milliseconds. A number is seconds; `what` is for the error.

    Raises:
        InvalidInput: it is not a duration.
    """
    if duration is None:
        return None
    if isinstance(duration, timedelta):
        return int(duration / timedelta(milliseconds=1))
    if isinstance(duration, int | float) and not isinstance(duration, bool) and abs(duration) * 1000 < _END_MS:
        return int(duration * 1000)
    raise InvalidInput(f"{what} must be a timedelta or seconds; got {duration!r:.80}. Nothing was written.")
