"""Another agent has overwritten what a reader reads: no hostile value makes a conversation's reader run code."""

from __future__ import annotations

from typing import Any

from shoal.client.store import Store
from shoal.integrations.openai import ShoalSession
from tests.support.hostile import lying, read_hostile


async def test_hostile_conversations_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    given: list[Any] = [{"role": "user", "content": "hi"}, {"type": "function_call", "name": "pay", "arguments": "{}"}]
    await ShoalSession(opened, "s", space=space).add_items(given)

    async def read() -> None:
        assert len(await ShoalSession(opened, "s", space=space).get_items()) == 2

    await read_hostile(liar, read)
