"""Durations as people write them."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest

import shoal
from shoal.errors import InvalidInput
from shoal.workflows.connection import as_duration_ms


@pytest.mark.parametrize(
    ("duration", "milliseconds"),
    [(None, None), (timedelta(days=1), 86_400_000), (timedelta(microseconds=1500), 1), (5, 5000), (0.25, 250), (-1, -1000)],
)
def test_a_duration_is_a_timedelta_or_seconds(duration: timedelta | float | None, milliseconds: int | None) -> None:
    assert as_duration_ms(duration, what="ttl") == milliseconds


@pytest.mark.parametrize("wrong", ["5", True, math.nan, math.inf, 1e300, [1]], ids=repr)
def test_malformed_durations_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"^older_than must be a timedelta or seconds; got "):
        as_duration_ms(wrong, what="older_than")  # type: ignore[arg-type]


async def test_seconds_do_wherever_a_duration_is_taken(tmp_path: Path) -> None:
    async with shoal.open(tmp_path) as store:
        space = store.space("crew")
        await space.items.put(("notes",), "k", {}, ttl=60)
        found = await space.items.get(("notes",), "k")
        assert found is not None
        assert found.expires is not None
        assert found.expires - found.updated == timedelta(seconds=60)
        thread = space.thread("t")
        await thread.save({"n": 1})
        assert (await thread.prune(older_than=3600, dry_run=True)).count == 0
        assert (await thread.journal.retain(older_than=3600)).older_than == timedelta(hours=1)
        async with await space.document("d") as document:
            document.map("m")["a"] = 1
            assert (await document.compact(older_than=3600)).updates == 0
        for refused in (space.items.put(("notes",), "k", {}, ttl="60"), thread.prune(older_than="60")):  # type: ignore[arg-type]
            with pytest.raises(InvalidInput, match="must be a timedelta or seconds; got '60'"):
                await refused
