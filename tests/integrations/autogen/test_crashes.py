"""A team that is killed 50 times, and goes on at another node each time: no turn that was stored is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import shoal
from tests.integrations.autogen import worker
from tests.integrations.crashes import cluster, killed_again_and_again

KILLS = 50
TURNS = 300


async def test_a_killed_team_goes_on_at_another_node(tmp_path: Path, record_property: Any) -> None:
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, str(TURNS), kills=KILLS, seed=1)
        for url in urls:  # Each has it, and has the same.
            async with shoal.connect(url) as store:
                state = (await store.space(worker.SPACE).thread(worker.THREAD).load()).state
            assert worker.said(state) == [text for turn in range(TURNS) for text in (f"turn {turn}", f"answer {turn}")]
    assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", KILLS)
