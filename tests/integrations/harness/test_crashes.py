"""A program on the harness's stores that is killed 50 times, and goes on at another node each time: nothing that they keep is
lost, doubled or out of order.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import shoal
from tests.integrations.crashes import cluster, killed_again_and_again
from tests.integrations.harness import worker

KILLS = 50
TURNS = 40


@pytest.mark.answers("workers-on-several-nodes-overspend-a-budget")
async def test_a_killed_program_goes_on_at_another_node(tmp_path: Path, record_property: Any) -> None:
    every = list(range(TURNS))
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, str(TURNS), kills=KILLS, seed=5)
        for url in urls:  # Each has it, and has the same.
            async with shoal.connect(url, durability="quorum") as store:
                work = worker.Turns(store)
                assert [int(item.id) for item in await work.plan.get_items()] == every
                assert await work.first() == TURNS
                spent = (await work.spend.get_many([worker.WINDOW]))[worker.WINDOW]
                assert (spent.usd, spent.requests) == (Decimal("0.1") * TURNS, TURNS)
                file = await work.memory.read(worker.FILE, max_chars=2**20)
                assert file is not None
                assert [int(line) for line in file.content.splitlines()] == every
                assert [event.step_index for event in await work.steps.list_events(run_id=worker.RUN)] == every
                snapshots = await work.steps.list_snapshots(run_id=worker.RUN)
                assert [len(each.messages) for each in snapshots] == [TURNS - 2, TURNS - 1, TURNS]
    assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", KILLS)
