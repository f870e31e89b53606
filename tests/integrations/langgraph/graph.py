"""A graph with a fan-out, an interrupt, and a subgraph that interrupts too; run as a program it kills itself on its way.

    python graph.py DIRECTORY KILL_AT

It opens a saver on DIRECTORY/state, answers each interrupt, and kills itself as the node KILL_AT begins.
DIRECTORY/entered lists the nodes that began.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

CONFIG: Any = {"configurable": {"thread_id": "support/7"}}
START_STATE: Any = {"topic": "billing"}


class Inner(TypedDict, total=False):
    draft: str
    notes: Annotated[list[str], operator.add]


class State(TypedDict, total=False):
    topic: str
    notes: Annotated[list[str], operator.add]
    found: Annotated[list[str], operator.add]
    answer: str
    draft: str


class Work(TypedDict):
    number: int


def build(saver: BaseCheckpointSaver[str] | None, entered: Callable[[str], None] = lambda node: None) -> Any:
    """`entered` is told each node that begins."""

    def plan(state: State) -> State:
        entered("plan")
        return {"notes": [f"planned {state['topic']}"]}

    def work(state: Work) -> State:
        entered(f"work-{state['number']}")
        return {"found": [f"fact {state['number']}"]}

    def gather(state: State) -> State:
        entered("gather")
        return {"notes": [f"gathered {len(state['found'])}"]}

    def review(state: State) -> State:
        entered("review")
        answer = interrupt({"question": "publish?", "found": state["found"]})
        entered("reviewed")
        return {"answer": answer}

    def write(state: Inner) -> Inner:
        entered("write")
        return {"draft": "a draft", "notes": ["wrote"]}

    def sign(state: Inner) -> Inner:
        entered("sign")
        name = interrupt({"sign": state["draft"]})
        return {"draft": f"{state['draft']}, signed {name}", "notes": ["signed"]}

    inner = StateGraph(Inner)
    inner.add_node("write", write)
    inner.add_node("sign", sign)
    inner.add_edge(START, "write")
    inner.add_edge("write", "sign")
    inner.add_edge("sign", END)

    outer = StateGraph(State)
    outer.add_node("plan", plan)
    outer.add_node("work", work, input_schema=Work)
    outer.add_node("gather", gather)
    outer.add_node("review", review)
    outer.add_node("main", inner.compile())
    outer.add_edge(START, "plan")
    outer.add_conditional_edges("plan", lambda state: [Send("work", {"number": n}) for n in range(3)], ["work"])
    outer.add_edge("work", "gather")
    outer.add_edge("gather", "review")
    outer.add_edge("review", "main")
    outer.add_edge("main", END)
    return outer.compile(checkpointer=saver)


def answer_to(question: Any) -> str:
    return "yes" if "question" in question else "Ada"


def drive(graph: Any) -> dict[str, Any]:
    """To the end, from wherever it is."""
    while True:
        state = graph.get_state(CONFIG)
        if not state.next and state.values:
            return dict(state.values)
        asked = [one.value for task in state.tasks for one in task.interrupts]
        given = START_STATE if not state.values and not state.next else Command(resume=answer_to(asked[0])) if asked else None
        graph.invoke(given, CONFIG, durability="sync")


def note(directory: Path, node: str) -> None:
    """Write down that `node` has begun."""
    with (directory / "entered").open("a") as log:
        log.write(node + "\n")


def main(directory: Path, kill_at: str) -> None:
    from shoal.integrations.langgraph import ShoalSaver

    def entered(node: str) -> None:
        note(directory, node)
        if node == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with ShoalSaver.open(directory / "state") as saver:
        drive(build(saver, entered))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
