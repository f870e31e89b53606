"""When a disk will be full, by how its free space went down.

Laws:
- It is pure: times are arguments.
- The slope is the median of those between all pairs of points, so that one restart, compaction or burst moves it little.
- A disk that was looked at for less than `SPAN_MS`, or that does not fill, has no forecast.
"""

from __future__ import annotations

from collections.abc import Sequence

SPAN_MS = 30 * 60_000
"""The shortest history from which anything follows."""

WINDOW_MS = 7 * 86_400_000
"""Older points say nothing about the present rate."""

FAR_MS = 3_650 * 86_400_000
"""Beyond ten years it is as good as never."""

_POINTS_MAX = 64  # They are compared pair by pair.


def full_at_ms(points: Sequence[tuple[int, int]], now_ms: int) -> int | None:
    """The time at which nothing is free any more, in milliseconds since 1970; None: that cannot be said, or is far away.

    `points`: times in milliseconds, and the bytes that were free then; less than zero: not known.
    """
    known = sorted((at_ms, free) for at_ms, free in points if free >= 0 and now_ms - WINDOW_MS <= at_ms <= now_ms)
    if not known or known[-1][0] - known[0][0] < SPAN_MS:
        return None
    step = -(-len(known) // _POINTS_MAX)
    chosen = known[::-step][::-1]
    slopes = sorted(
        (later - earlier) / (late_ms - early_ms)
        for index, (early_ms, earlier) in enumerate(chosen)
        for late_ms, later in chosen[index + 1 :]
        if late_ms > early_ms
    )
    slope = slopes[len(slopes) // 2]
    if slope >= 0:
        return None
    at_ms, free = known[-1]
    left_ms = free / -slope
    return None if left_ms > FAR_MS else max(now_ms, round(at_ms + left_ms))
