"""The OpenAI Agents SDK on Shoal: conversations in a durable, replicated store.

async with ShoalSession.open("./state", "ticket-7") as session:
    result = await Runner.run(agent, "where is my order?", session=session)

As one write, with a key, so that a crash leaves it out whole and a second run does not repeat it:

async with session.turn("order-17") as turn:
    if not turn.done:
        result = await Runner.run(agent, "where is my order?", session=turn)
"""

try:
    import agents.memory as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.openai needs the package openai-agents, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[openai]'",
        name=missing.name,
    ) from None

from shoal.integrations.openai.session import ShoalSession
from shoal.integrations.openai.turn import Turn

__all__ = ["ShoalSession", "Turn"]
