"""A workflow and an agent that are killed 50 times, and go on at another node each time: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.integrations.microsoft import ShoalState
from tests.integrations.crashes import cluster, killed_again_and_again
from tests.integrations.microsoft import worker

KILLS = 25  # Of each.
UPTO = 120


@pytest.mark.parametrize("what", ["workflow", "agent"])
async def test_killed_runs_go_on_at_another_node(what: str, tmp_path: Path, record_property: Any) -> None:
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, what, str(UPTO), kills=KILLS, seed=len(what))
        for url in urls:  # Each has it, and has the same.
            async with ShoalState.connect(url) as state:
                if what == "workflow":
                    latest = await state.checkpoints.get_latest(workflow_name=worker.WORKFLOW)
                    assert latest is not None
                    assert latest.state["counted"] == list(range(UPTO + 1))
                else:
                    said = [message.text for message in await state.history.get_messages(worker.SESSION)]
                    assert said == [text for turn in range(UPTO) for text in (f"turn {turn}", f"done: turn {turn}")]
    # A step that had begun is run again; one whose checkpoint or message was acknowledged is not.
    assert acknowledged == sorted(acknowledged)
    assert what == "workflow" or len(set(acknowledged)) == len(acknowledged)
    record_property("kills", KILLS)
