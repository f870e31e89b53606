"""A run that is killed 50 times, and taken up at another node each time: no event is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from shoal.integrations.adk import ShoalServices
from tests.integrations.adk import worker
from tests.integrations.crashes import cluster, killed_again_and_again

KILLS = 50
TURNS = 100


@pytest.mark.filterwarnings("ignore:.EXPERIMENTAL. ResumabilityConfig")
async def test_a_killed_run_goes_on_at_another_node(tmp_path: Path, record_property: Any) -> None:
    calm = InMemorySessionService()
    await calm.create_session(**worker.SESSION)
    for turn in range(TURNS):
        await worker.turn_on(worker.runner(calm), turn)
    wanted = await calm.get_session(**worker.SESSION)
    assert wanted is not None
    async with cluster(tmp_path) as urls:
        acknowledged = await killed_again_and_again(worker.__name__, urls, str(TURNS), kills=KILLS, seed=1)
        for url in urls:  # Each has it, and has the same.
            async with ShoalServices.connect(url) as services:
                found = await services.sessions.get_session(**worker.SESSION)
            assert found is not None
            assert worker.shown(found.events) == worker.shown(wanted.events)
            assert found.state == wanted.state
            assert len({event.id for event in found.events}) == len(found.events)
    assert acknowledged == sorted(set(acknowledged)), "a turn that was acknowledged ran again"
    record_property("kills", KILLS)
