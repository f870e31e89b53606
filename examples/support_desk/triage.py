"""A LangGraph agent that triages tickets, and asks a person before much money is paid back.

    python -m examples.support_desk.triage http://127.0.0.1:7400 ./desk

Its graph's checkpoints are in the desk's space. At an `interrupt` it asks for approval on the ticket's thread, and whoever
approves there answers the graph. Killed at any point, it goes on at the graph's last checkpoint: a question is asked once.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, TypedDict

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import shoal
from examples.support_desk.desk import ASK_FROM, CLAIMS_MAX, ORDERS, SPACE, WAIT_S, arguments, say, work
from shoal.integrations.langgraph import ShoalSaver

WORKERS = 4  # Each waits for the answer to its own question.


class Case(TypedDict, total=False):
    order: int
    text: str
    kind: str
    decision: str


def model(text: str) -> FakeListChatModel:
    """Stands for a model: put yours here."""
    return FakeListChatModel(responses=["refund" if "money back" in text else "question"])


async def classify(state: Case) -> Case:
    said = await model(state["text"]).ainvoke(f"Is this a refund or a question? {state['text']}")
    return {"kind": str(said.content)}


async def decide(state: Case) -> Case:
    price = ORDERS[state["order"]]["price"]
    if state["kind"] != "refund":
        return {"decision": "answer"}
    if price < ASK_FROM:
        return {"decision": "refund"}
    return {"decision": interrupt(f"Refund {price} € for order {state['order']}?")}


def graph_of(saver: ShoalSaver) -> Any:
    builder = StateGraph(Case)
    builder.add_node("classify", classify)
    builder.add_node("decide", decide)
    builder.add_edge(START, "classify")
    builder.add_edge("classify", "decide")
    builder.add_edge("decide", END)
    return builder.compile(checkpointer=saver)


async def triage(space: shoal.Space, graph: Any, name: str) -> None:
    ticket = space.thread(name, author="triage")
    config: Any = {"configurable": {"thread_id": name.replace("ticket", "triage")}}
    found = await graph.aget_state(config)
    if not found.interrupts:
        opened = (await ticket.load()).state
        begun = found.created_at is not None
        # With None it goes on at its last checkpoint.
        await graph.ainvoke(None if begun else {"order": opened["order"], "text": opened["text"]}, config)
        found = await graph.aget_state(config)
    if found.interrupts:
        answer = await asked(ticket, found.interrupts[0].value)
        await graph.ainvoke(Command(resume=answer), config)
        found = await graph.aget_state(config)
    case = found.values
    await ticket.update({"kind": case["kind"], "decision": case["decision"]}, key="triaged")
    await space.worklist("answers").add([name], attempts_max=CLAIMS_MAX)
    say(f"{name} is a {case['kind']}, to {case['decision']}")


async def asked(ticket: shoal.Thread, question: str) -> str:
    """What a person answers, now or after a restart."""
    if (await ticket.status()).time is None:  # Nobody has asked yet.
        await ticket.request_approval(question, by="triage")
        say(f"asks: {question}")
    answered = await ticket.wait_for("running")
    say(f"{answered.by} says: {answered.reason}")
    return answered.reason


async def main() -> None:
    url, _ = arguments(sys.argv)
    async with shoal.connect(url, wait=WAIT_S) as store, asyncio.TaskGroup() as workers:
        space, graph = store.space(SPACE), graph_of(ShoalSaver(store, space=SPACE))
        for _ in range(WORKERS):
            workers.create_task(work(space, "tickets", lambda name: triage(space, graph, name)))


if __name__ == "__main__":
    asyncio.run(main())
