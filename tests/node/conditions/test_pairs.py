"""Two conditions at once: each is told by its own name and command, neither hides the other, and each goes by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import pytest

from shoal.node.conditions.watcher import CONDITIONS
from simulation.world.fleet import Fleet
from tests.node.conditions import test_noticed as single
from tests.node.conditions.conftest import Page, faces, names, noticed
from tests.node.membership.test_changes import cluster

PAIRS = (
    ("clock-wrong", "certificate"),
    ("disk-nearly-full", "member-away"),
    ("quota-reached", "tokens-end"),
    ("quarantine", "change-stands"),
    ("change-stands", "quarantine"),
)


@pytest.fixture
async def shared(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """Three nodes, on which all cases make their conditions true."""
    async with cluster(quorum_timeout_s=2.0, quarantine_s=0.02, clock_skew_max_ms=600_000, clock_interval_s=0.05) as fleet:

        async def same(_stack: single.Fleets, **_settings: Any) -> Fleet:
            return fleet

        monkeypatch.setattr(single, "three", same)
        monkeypatch.setattr(single, "one", same)
        yield fleet


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_of_two_at_once_neither_hides_the_other(first: str, second: str, shared: Fleet, page: Page | None) -> None:
    async with AsyncExitStack() as stack:
        of_first, of_second = single.CASES[first](stack), single.CASES[second](stack)
        made, beside = await anext(of_first), await anext(of_second)
        for name, at in ((first, made.at), (second, beside.at)):
            await noticed(shared, partial(_is_told, shared, at, name))
            shown = await faces(shared[at], page)
            assert {face for face, found in shown.items() if name in found} == set(shown)
        with suppress(StopAsyncIteration):
            await anext(of_first)
        await noticed(shared, lambda: not _is_told(shared, made.at, first))
        assert _is_told(shared, beside.at, second)
        assert CONDITIONS[first].mends != CONDITIONS[second].mends
        with suppress(StopAsyncIteration):
            await anext(of_second)
        await noticed(shared, lambda: not _is_told(shared, beside.at, second))


def _is_told(fleet: Fleet, at: str, name: str) -> bool:
    return name in names(fleet[at])


async def test_a_late_backup_and_a_bucket_that_refuses_are_both_told(
    monkeypatch: pytest.MonkeyPatch, page: Page | None
) -> None:
    late, failing = single.FAULTS["late"], single.FAULTS["failing"]
    monkeypatch.setitem(single.FAULTS, "both", lambda now_ms: late(now_ms) | failing(now_ms))
    async with AsyncExitStack() as stack:
        steps = single.backed_up("both")(stack)
        fleet, at = await anext(steps)
        await noticed(fleet, lambda: {"backup-late", "backup-failing"} <= {*names(fleet[at])})
        shown = await faces(fleet[at], page)
        assert all({"backup-late", "backup-failing"} <= found for found in shown.values())
        with suppress(StopAsyncIteration):
            await anext(steps)
        await noticed(fleet, lambda: not {"backup-late", "backup-failing"} & {*names(fleet[at])})
