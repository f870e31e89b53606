"""A LangGraph agent that asks before it acts, and survives its process.

    python examples/langgraph_agent.py ./state            asks
    python examples/langgraph_agent.py ./state yes        another process: answers, and acts

It needs `pip install '.[langgraph]'`, in a clone of the repository. What it did is a thread like any other:
`shoal log order-17 --data ./state --space langgraph`.
"""

from __future__ import annotations

import operator
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from shoal.integrations.langgraph import ShoalSaver


class Order(TypedDict, total=False):
    amount: int
    log: Annotated[list[str], operator.add]


def look_up(state: Order) -> Order:
    return {"amount": 120, "log": ["looked up the order"]}


def refund(state: Order) -> Order:
    answer = interrupt(f"refund {state['amount']} €?")
    return {"log": ["refunded" if answer == "yes" else "left as it was"]}


def main(directory: str, answer: str | None) -> None:
    builder = StateGraph(Order)
    builder.add_node("look_up", look_up)
    builder.add_node("refund", refund)
    builder.add_edge(START, "look_up")
    builder.add_edge("look_up", "refund")
    builder.add_edge("refund", END)
    config: Any = {"configurable": {"thread_id": "order-17"}}
    with ShoalSaver.open(directory) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"log": []} if answer is None else Command(resume=answer), config)
        state = graph.get_state(config)
        asked = [question.value for task in state.tasks for question in task.interrupts]
        print(f"waits: {asked[0]}" if asked else f"done: {', '.join(state.values['log'])}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "./state", sys.argv[2] if len(sys.argv) > 2 else None)
