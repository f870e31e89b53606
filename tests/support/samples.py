"""Hypothesis strategies: values that Shoal stores, and choices for `tests.support.causal`.

Importing this needs Hypothesis (the extra `test`); nothing in the rest of the kit does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timedelta, timezone
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from tests.support.causal import Choose
from tests.support.examples import is_quick

ZONES = ["Europe/Paris", "America/New_York", "Asia/Kolkata", "UTC"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
zones = st.one_of(
    st.none(),
    st.sampled_from(ZONES).map(ZoneInfo),
    st.integers(-86_000, 86_000).map(lambda seconds: timezone(timedelta(seconds=seconds))),
)
# A day from either end of the calendar, so that no offset leads out of it.
moments = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001 (Hypothesis wants naive bounds)
    zones,
    st.integers(0, 1),
)
hashables = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(min_value=-(2**80), max_value=2**80),
        st.floats(allow_nan=False),
        texts,
        st.binary(max_size=8),
        st.complex_numbers(allow_nan=False),
        st.decimals(allow_nan=False),
        st.uuids(),
        moments,
        st.dates(),
        st.times(timezones=zones),
        st.timedeltas(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
anything = st.recursive(
    hashables,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(hashables, inner, max_size=4), st.sets(hashables, max_size=4)
    ),
    max_leaves=8,
)


def shape(value: Any) -> Any:
    """Types all the way down: 1, 1.0 and True are equal, and must not be confused."""
    if isinstance(value, dict):
        return dict, [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [shape(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(shape(item)) for item in value)
    if isinstance(value, (datetime, time)):
        zone = value.tzinfo
        return type(value), value.fold, zone.key if isinstance(zone, ZoneInfo) else repr(zone)
    return type(value)


def chooser(data: st.DataObject) -> Choose:
    """Choices that Hypothesis draws, and shrinks when a check fails.

    In `make test` it draws their seed alone: most checks take a twentieth of what the draws of all their choices take.
    """
    if is_quick():
        return Random(data.draw(st.integers(0, (1 << 64) - 1))).randrange
    return lambda below: data.draw(st.integers(0, below - 1))


def fails_for_some_seed(check: Callable[[Choose], object], *, seeds: int = 200) -> bool:
    """Whether a check raises AssertionError within `seeds` runs: what a planted bug must make it do."""
    for seed in range(seeds):
        try:
            check(Random(seed).randrange)
        except AssertionError:
            return True
    return False
