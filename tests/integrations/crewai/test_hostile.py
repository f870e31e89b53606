"""Another agent has overwritten what a reader reads: no hostile value makes a flow's reader run code."""

from __future__ import annotations

import asyncio

from shoal.client.store import Store
from shoal.integrations.crewai import ShoalFlowPersistence
from tests.integrations.crewai.test_persistence import waiting
from tests.support.hostile import lying, read_hostile


async def test_hostile_flows_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    persistence = ShoalFlowPersistence(opened, space=space)
    await asyncio.to_thread(persistence.save_pending_feedback, "f", waiting(), {"n": [1, {"deep": "x"}]})

    async def read() -> None:
        assert await asyncio.to_thread(persistence.load_state, "f")
        assert await asyncio.to_thread(persistence.load_pending_feedback, "f")

    await read_hostile(liar, read)
