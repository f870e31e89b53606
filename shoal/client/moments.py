"""Milliseconds since 1970, as the protocol has them, to the datetimes that handles show."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)
