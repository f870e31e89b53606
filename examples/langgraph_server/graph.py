"""A graph that remembers: the turns of a thread in its state, and what a person likes in the store, for all threads."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime


class State(TypedDict):
    """What a thread holds. A run's input is `{"said": "…"}`."""

    said: str
    turns: Annotated[list[str], operator.add]


async def note(state: State, runtime: Runtime[None]) -> dict[str, list[str]]:
    """Record the turn, and in the store how many turns there have been in all threads."""
    count = 0
    if runtime.store is not None:
        found = await runtime.store.aget(("diary",), "turns")
        count = (found.value["count"] if found is not None else 0) + 1
        await runtime.store.aput(("diary",), "turns", {"count": count})
    return {"turns": [f"{count}: {state['said']}"]}


graph = StateGraph(State).add_node("note", note).add_edge(START, "note").add_edge("note", END).compile()
