"""LangGraph on Shoal: a graph's state in a durable, replicated store.

async with ShoalSaver.open("./state") as saver:
    graph = builder.compile(checkpointer=saver)

With long-term memory beside it:

async with shoal.open("./state") as opened:
    graph = builder.compile(checkpointer=ShoalSaver(opened), store=ShoalStore(opened))
"""

try:
    from langgraph.checkpoint.base import DeltaChannelHistory as _  # noqa: F401
except ImportError as missing:
    raise type(missing)(
        f"shoal.integrations.langgraph needs the package langgraph-checkpoint, 4.3.1 or newer, and it is not here ({missing}). "
        "Install it in a clone of Shoal: pip install '.[langgraph]'",
        name=missing.name,
    ) from None

from shoal.integrations.langgraph.saver import ShoalSaver
from shoal.integrations.langgraph.store import ShoalStore

__all__ = ["ShoalSaver", "ShoalStore"]
