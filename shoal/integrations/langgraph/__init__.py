"""LangGraph on Shoal: a graph's state in a durable, replicated store.

async with ShoalSaver.open("./state") as saver:
    graph = builder.compile(checkpointer=saver)
"""

from shoal.integrations.langgraph.saver import ShoalSaver

__all__ = ["ShoalSaver"]
