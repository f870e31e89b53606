"""A reader of a journal that goes on from where it was: whether it was given everything."""

from __future__ import annotations

import itertools

import pytest

from shoal.client.store import Store
from shoal.kinds.journal.state import journal
from shoal.kinds.journal.state.events import EVENT
from simulation.workload.following import Follower
from simulation.workload.random_agents import SPACE, content_of
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

NUMBERS = itertools.count(1)


async def append(store: Store, times: int) -> None:
    for _ in range(times):
        await store.space(SPACE).thread("a").journal.append(content_of(next(NUMBERS)))


async def late(fleet: Fleet) -> Follower:
    """One that had read on one side of a cut what sorts behind what was appended on the other."""
    await fleet.isolate("b")
    await append(fleet["b"].store(), 2)
    fleet["a"].simulated.now_ms += 1000
    await append(fleet["a"].store(), 2)
    follower = Follower(fleet["a"].store().space(SPACE).thread("a").journal)
    await follower.read()
    fleet.link_all("b")
    await fleet.converged()
    return follower


async def test_a_reader_that_is_given_what_comes_late_missed_nothing() -> None:
    async with Fleet("ab") as fleet:
        follower = await late(fleet)
        assert await follower.missed() == []


async def test_a_reader_that_is_not_given_what_comes_late_missed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(cursor: journal.Cursor, floor_hlc: int | None) -> bytes | None:
        return EVENT + cursor.greatest if cursor.greatest else None

    monkeypatch.setattr(journal, "_start", start)
    async with Fleet("ab") as fleet:
        follower = await late(fleet)
        assert len(await follower.missed()) == 2


async def test_one_that_was_never_given_anything_missed_nothing() -> None:
    async with Fleet("a") as fleet:
        await append(fleet["a"].store(), 1)
        assert await Follower(fleet["a"].store().space(SPACE).thread("a").journal).missed() == []
