"""When a disk will be full."""

from __future__ import annotations

import pytest

from shoal.node.spaces.growth import FAR_MS, SPAN_MS, WINDOW_MS, full_at_ms

HOUR = 3_600_000
NOW = 100 * 24 * HOUR


def falling(*, hours: int, a_hour: int, last: int) -> list[tuple[int, int]]:
    return [(NOW - ago * HOUR, last + ago * a_hour) for ago in range(hours, -1, -1)]


def test_a_disk_that_fills_steadily_is_full_at_its_rate() -> None:
    assert full_at_ms(falling(hours=24, a_hour=10, last=100), NOW) == NOW + 10 * HOUR


def test_one_burst_moves_it_little() -> None:
    points = falling(hours=48, a_hour=10, last=100)
    points[20] = (points[20][0], 0)
    points[30] = (points[30][0], 10**9)
    assert full_at_ms(points, NOW) == pytest.approx(NOW + 10 * HOUR, abs=HOUR)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(NOW, 5)],
        [(NOW - SPAN_MS + 1, 9), (NOW, 5)],
        [(NOW - HOUR, 5), (NOW, 5)],
        [(NOW - HOUR, 5), (NOW, 9)],
        [(NOW - HOUR, -1), (NOW, 5)],
        [(NOW - 2 * WINDOW_MS, 900), (NOW - WINDOW_MS - 1, 500), (NOW, 5)],
        [(NOW - HOUR, FAR_MS), (NOW, FAR_MS - 1)],
        [(NOW - HOUR, 1_010), (NOW, 1_000)],  # An hour says nothing about the day after tomorrow.
    ],
)
def test_a_disk_that_does_not_fill_or_is_not_known_has_no_forecast(points: list[tuple[int, int]]) -> None:
    assert full_at_ms(points, NOW) is None


def test_a_full_disk_is_full_now() -> None:
    assert full_at_ms([(NOW - HOUR, 10), (NOW, 0)], NOW) == NOW


def test_a_long_history_is_thinned_and_ends_with_the_present() -> None:
    points = [(NOW - ago * 60_000, 100_000 + ago) for ago in range(9_000, -1, -1)]
    assert full_at_ms(points, NOW) == NOW + 100_000 * 60_000


def test_times_after_now_are_left_out() -> None:
    points = [*falling(hours=2, a_hour=10, last=100), (NOW + HOUR, 0)]
    assert full_at_ms(points, NOW) == NOW + 10 * HOUR
