"""A conversation that is killed 50 times, and goes on at another node each time: no item is lost, doubled or out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession

from shoal.integrations.openai import ShoalSession
from tests.integrations.crashes import cluster, killed_again_and_again
from tests.integrations.openai import worker

KILLS = 50
TURNS = 150


@pytest.mark.answers("agent-sdk-keeps-half-a-turn")
async def test_a_killed_conversation_goes_on_at_another_node(tmp_path: Path, record_property: Any) -> None:
    calm = SQLiteSession(worker.SESSION)
    for turn in range(TURNS):
        await worker.turn_on(calm, turn)
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, str(TURNS), kills=KILLS, seed=1)
        for url in urls:  # Each has it, and has the same.
            async with ShoalSession.connect(url, worker.SESSION) as session:
                assert await session.get_items() == await calm.get_items()
    assert set(acknowledged) <= set(range(TURNS))
    assert acknowledged == sorted(acknowledged)
    record_property("kills", KILLS)
    calm.close()
