"""What users felt is kept in a bounded number of slices, and lag is measured against what the harness saw."""

from __future__ import annotations

import pytest

from chaos.samples import SLICE_S, SLICES_MAX, Lags, Samples


def test_slices_stay_bounded_and_lose_no_answer() -> None:
    samples, count = Samples(began_s=100.0), 10_000
    for nth in range(count):
        samples.answered("write" if nth % 2 else "read", asked_s=100.0 + nth, now_s=100.5 + nth)
        samples.failed("no-quorum", now_s=100.5 + nth)
        samples.behind("n1", float(nth), now_s=100.5 + nth)
    whole = samples.whole()
    assert len(samples.slices) <= SLICES_MAX
    assert len(samples.slices) * samples.slice_s >= count
    assert (whole.writes, whole.reads, whole.errors) == (count / 2, count / 2, {"no-quorum": count})
    assert sum(whole.took.values()) == count
    assert whole.lag_s == {"n1": count - 1}


def test_percentiles_are_near_what_was_measured() -> None:
    samples = Samples()
    for nth in range(1, 101):
        samples.answered("write", asked_s=0.0, now_s=nth / 1000)
    whole = samples.whole()
    assert whole.percentile_s(0.5) == pytest.approx(0.050, rel=0.05)
    assert whole.percentile_s(0.99) == pytest.approx(0.099, rel=0.05)
    assert Samples().whole().percentile_s(0.5) is None


def test_a_wait_is_held_against_its_beginning() -> None:
    samples = Samples()
    samples.answered("write", asked_s=0.0, now_s=4 * SLICE_S)
    assert [each.writes for each in samples.slices] == [0, 0, 0, 0, 1]
    assert samples.slices[0].percentile_s(0.5) == pytest.approx(4 * SLICE_S, rel=0.05)


def test_a_node_that_is_away_falls_behind_until_it_holds_everything() -> None:
    lags = Lags()
    assert lags.seen("n1", {"a": 1}, now_s=0.0) == 0.0
    assert lags.seen("n2", {"a": 1}, now_s=0.1) == 0.0
    assert lags.seen("n1", {"a": 2}, now_s=1.0) == 0.0
    assert lags.seen("n2", None, now_s=1.5) == 0.5
    assert lags.seen("n1", {"a": 3}, now_s=2.0) == 0.0
    assert lags.seen("n2", {"a": 2}, now_s=4.0) == 2.0
    assert lags.seen("n2", {"a": 3}, now_s=5.0) == 0.0


def test_an_origin_that_nobody_names_any_more_is_not_lacked() -> None:
    lags = Lags()
    lags.seen("n1", {"a": 1, "old": 5}, now_s=0.0)
    lags.seen("n1", {"a": 1}, now_s=1.0)
    assert lags.seen("n2", {"a": 1}, now_s=2.0) == 0.0
