"""A graph that is killed 50 times, and goes on at another node each time: no step that was stored is lost or doubled.

The dev environment has LangGraph, so `make test` runs this with few kills; `make integrations` makes all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.integrations.langgraph import ShoalSaver
from tests.integrations.crashes import cluster, killed_again_and_again
from tests.integrations.langgraph import worker
from tests.support import forked


@pytest.mark.answers("graph-is-resumed-on-a-node-that-lags")
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.integrations)])
async def test_a_killed_graph_goes_on_at_another_node(kills: int, tmp_path: Path, record_property: Any) -> None:
    turns = 2 * kills
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(
            worker.__name__, urls, str(turns), kills=kills, seed=1, imports=forked.LANGGRAPH
        )
        for url in urls:  # Each has it, and has the same.
            async with ShoalSaver.connect(url) as saver:
                found = (await worker.graph_on(saver).aget_state(worker.CONFIG)).values
            assert (found["begun"], found["counted"]) == (list(range(turns)), list(range(turns)))
    assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", kills)
