"""The time line of a thread: nothing that was known at a time is missing from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Space
from tests.node.conftest import Bench, bench, open_bench

__all__ = ["bench", "open_bench"]


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[Space]:
    async with shoal.open(tmp_path / "state") as store:
        yield store.space("crew")


async def test_an_earlier_step_knew_what_was_rolled_back(bench: Bench) -> None:
    thread = bench.space.thread("t", author="ana")
    first = await thread.save({"n": 1})
    second = await thread.save({"n": 2})
    await thread.step("mail", key="k", call=lambda: "sent")
    await thread.rollback(first.id, by="bo")
    bench.simulated.now_ms += 1  # Within a millisecond a checkpoint comes before steps, so the step would know it.
    third = await thread.save({"n": 3})
    entries = await thread.audit()
    assert [entry.id for entry in entries if entry.kind == "checkpoint"] == [first.id, second.id, third.id]
    assert {entry.known for entry in entries if entry.kind == "step"} == {second.id}


async def test_both_sides_of_a_merge_are_on_it_and_each_once(space: Space) -> None:
    here, there = space.thread("t"), space.thread("t")
    first = await here.save({"a": 1})
    await there.load()
    sides = [await here.save({"a": 2}), await there.save({"a": 1, "b": 2}, on_conflict="fork")]
    joined = await here.merge()
    listed = [entry.id for entry in await here.audit()]
    assert sorted(listed) == sorted([first.id, *(side.id for side in sides), joined.id])


async def test_events_that_only_look_like_a_rollback_and_what_was_pruned_leave_it_whole(space: Space) -> None:
    thread = space.thread("t")
    first = await thread.save({"n": 1})
    gone = await thread.save({"n": 2})
    await thread.rollback(first.id)
    await thread.prune(keep_last=1)
    for left in ("f" * 64, "no id", 7, gone.id):
        await thread.journal.append({"kind": "rollback", "from": [left]})
    await thread.journal.append({"kind": "rollback", "from": "nothing"})
    entries = await thread.audit()
    assert [entry.id for entry in entries if entry.kind == "checkpoint"] == [first.id]
    assert sum(entry.kind == "event" for entry in entries) == 6


async def test_within_a_millisecond_a_checkpoint_comes_after_its_parents(bench: Bench) -> None:
    thread = bench.space.thread("t")  # The bench's clock stands still.
    saved = [await thread.save({"n": n}) for n in range(4)]
    await thread.branch("side", at=saved[1].id)
    saved.append(await thread.save({"n": 1, "m": 9}, branch="side"))
    saved.append(await thread.merge([saved[3].id, saved[4].id]))
    order = [entry.id for entry in await thread.audit() if entry.kind == "checkpoint"]
    assert sorted(order) == sorted(each.id for each in saved)
    for each in saved:
        assert all(order.index(parent) < order.index(each.id) for parent in each.parents)
