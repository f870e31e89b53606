"""Another agent has overwritten what a reader reads: no hostile value makes a conversation's or run's reader run code."""

from __future__ import annotations

from shoal.client.store import Store
from shoal.integrations.pydantic import ShoalConversationStore, durable
from tests.integrations.pydantic import scripted
from tests.integrations.pydantic.test_conversations import saved
from tests.integrations.pydantic.test_durability import Outside
from tests.support.hostile import lying, read_hostile


async def test_hostile_conversations_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    await saved(ShoalConversationStore(opened, space=space), "c", "hi", "ho", "and")

    async def read() -> None:
        assert await ShoalConversationStore(opened, space=space).load("c") is not None

    await read_hostile(liar, read)


async def test_hostile_steps_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    outside = Outside()
    thread = opened.space(space).thread("ticket")
    agent = scripted.agent_of(outside.ask, outside.do, outside.do)
    agent = scripted.agent_of(outside.ask, outside.do, outside.do)

    async def read() -> None:
        with durable(thread, key="order-17"):
            await agent.run(scripted.PROMPT)

    await read_hostile(liar, read, rounds=40)
