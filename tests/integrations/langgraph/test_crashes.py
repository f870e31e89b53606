"""A graph that is killed 50 times, and goes on at another node each time: no step that was stored is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.integrations.langgraph import ShoalSaver
from tests.integrations.crashes import cluster, killed_again_and_again
from tests.integrations.langgraph import worker

KILLS = 50
TURNS = 100


async def test_a_killed_graph_goes_on_at_another_node(tmp_path: Path, record_property: Any) -> None:
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, str(TURNS), kills=KILLS, seed=1)
        for url in urls:  # Each has it, and has the same.
            async with ShoalSaver.connect(url) as saver:
                found = (await worker.graph_on(saver).aget_state(worker.CONFIG)).values
            assert (found["begun"], found["counted"]) == (list(range(TURNS)), list(range(TURNS)))
    assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", KILLS)
