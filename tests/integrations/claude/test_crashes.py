"""A session that is killed 50 times, and resumed at another node each time: no entry is lost, doubled or out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import SessionKey

from shoal.integrations.claude import ShoalSessionStore
from tests.integrations.claude import scripted, worker
from tests.integrations.crashes import cluster, killed_again_and_again

KILLS = 25  # In each mode.
TURNS = 200
KEY = SessionKey(project_key=worker.PROJECT, session_id=scripted.SESSION)


@pytest.mark.answers("transcript-that-is-mirrored-again-has-entries-twice")
@pytest.mark.parametrize("flush", ["batched", "eager"])
async def test_a_killed_session_goes_on_at_another_node(flush: str, tmp_path: Path, record_property: Any) -> None:
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, flush, str(TURNS), kills=KILLS, seed=len(flush))
        wanted = [entry for turn in range(TURNS) for entry in scripted.turn_entries(turn)]
        for url in urls:  # Each has it, and has the same.
            async with ShoalSessionStore.connect(url) as store:
                assert await store.load(KEY) == wanted
        assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", KILLS)
