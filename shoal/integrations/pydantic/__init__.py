"""Pydantic AI on Shoal: runs that go on after a crash, and conversations in a durable, replicated store.

agent = Agent("openai:gpt-5", name="clerk", capabilities=[ShoalDurability()])
with durable(space.thread("ticket-7"), key="order-17"):
    result = await agent.run("refund order 17")

async with ShoalConversationStore.open("./state") as store:
    await store.save(result)
"""

try:
    import pydantic_ai.conversation_store as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.pydantic needs the package pydantic-ai-slim, from version 2.68, and {missing.name!r} is not "
        "installed. Install it in a clone of Shoal: pip install '.[pydantic-ai]'",
        name=missing.name,
    ) from None

from shoal.integrations.pydantic.conversations import ShoalConversationStore
from shoal.integrations.pydantic.durability import ShoalDurability, StepOptions, durable

__all__ = ["ShoalConversationStore", "ShoalDurability", "StepOptions", "durable"]
