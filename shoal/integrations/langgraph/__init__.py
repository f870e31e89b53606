"""LangGraph on Shoal: a graph's state in a durable, replicated store.

async with ShoalSaver.open("./state") as saver:
    graph = builder.compile(checkpointer=saver)

With long-term memory beside it:

async with shoal.open("./state") as opened:
    graph = builder.compile(checkpointer=ShoalSaver(opened), store=ShoalStore(opened))
"""

from shoal.integrations.langgraph.saver import ShoalSaver
from shoal.integrations.langgraph.store import ShoalStore

__all__ = ["ShoalSaver", "ShoalStore"]
