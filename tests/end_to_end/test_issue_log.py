"""A log of many agents' changes to shared issues, replayed on three nodes: every recorded state is reproduced on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks import issue_log
from benchmarks.issue_log import Opened, Record, Replayed
from benchmarks.trajectories import VARIABLE
from shoal.client.store import Store
from shoal.config import Config
from shoal.node.verification.verify import verify
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

_RECORDS = {"beads_issue_log": 40, "beads_issue_log_merges": 60}
"""Of each real log; `python -m benchmarks --only issue-log` takes them whole, on nodes that are processes."""


def opened_on(fleet: Fleet) -> Opened:
    @asynccontextmanager
    async def opened(node: int) -> AsyncIterator[Store]:
        yield fleet["abc"[node]].store()

    return opened


async def replayed(records: list[Record]) -> Replayed:
    async with Fleet("abc", session_wait_s=20.0) as fleet:
        found = await issue_log.replay(opened_on(fleet), records)
        await fleet.converged(30.0)
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
        assert verify(fleet["a"].storage, config=Config()).problems == []
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_a_made_up_log_is_replayed_state_by_state(seed: int) -> None:
    records = issue_log.made_up(seed)
    assert any(len(record.parents) > 1 for record in records)
    found = await replayed(records)
    assert found.digests == sum(record.digest is not None for record in records) > 10
    assert found.lines > 3


@pytest.mark.parametrize("name", issue_log.NAMES)
async def test_the_beginning_of_a_real_log_is_replayed_state_by_state(name: str) -> None:
    source = issue_log.path(name)
    if source is None:
        pytest.skip(f"the real logs are no part of the project; {VARIABLE} says where they are")
    records = issue_log.read(source, _RECORDS[name])
    found = await replayed(records)
    assert found.digests == sum(record.digest is not None for record in records) >= 1


async def test_a_state_that_is_another_than_was_recorded_is_noticed() -> None:
    records = issue_log.made_up(1)
    place = max(nth for nth, record in enumerate(records) if record.digest is not None)
    records[place] = records[place]._replace(digest=issue_log.digest({"is-0": {"n": -1}}))
    with pytest.raises(ExceptionGroup) as failed:
        await replayed(records)
    assert failed.group_contains(AssertionError, match=f"after record {records[place].seq} node 0 shows another state")
