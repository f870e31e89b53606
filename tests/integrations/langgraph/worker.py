"""A program that is killed: it runs a graph turn after turn, and goes on in the middle of the one that was cut off."""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from shoal.integrations.langgraph import ShoalSaver

CONFIG: Any = {"configurable": {"thread_id": "trial"}}


class Counted(TypedDict, total=False):
    """What was asked for, and what its nodes added to it."""

    turn: int
    begun: Annotated[list[int], operator.add]
    counted: Annotated[list[int], operator.add]


def graph_on(saver: ShoalSaver) -> Any:
    """A graph that adds the number of its turn, in two nodes after each other."""
    graph = StateGraph(Counted)
    graph.add_node("begin", lambda state: {"begun": [state["turn"]]})
    graph.add_node("count", lambda state: {"counted": [state["turn"]]})
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "count")
    graph.add_edge("count", END)
    return graph.compile(checkpointer=saver)


def main(urls: str, turns: int) -> None:
    with ShoalSaver.connect(urls.split(","), durability="quorum", wait=30) as saver:
        graph = graph_on(saver)
        with saver.lease("trial", ttl=1, wait=30):  # What was acknowledged to the worker before is here, on this node too.
            found = graph.get_state(CONFIG)
            print("began", len(found.values.get("counted", [])), flush=True)  # noqa: T201
            if found.tasks:  # Not `next`: that leaves out a task whose writes are stored, and whose checkpoint is not.
                graph.invoke(None, CONFIG, durability="sync")
            for turn in range(len(graph.get_state(CONFIG).values.get("counted", [])), turns):
                graph.invoke({"turn": turn}, CONFIG, durability="sync")
                print("acknowledged", turn, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
