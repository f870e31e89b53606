"""A framework needs nothing of its own: its calls are within the span in which it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.graph import END, START, StateGraph

from shoal.integrations.langgraph import ShoalSaver
from tests.traces.recording import Recorded


async def test_saves_of_langgraph_are_within_its_callers_span(tmp_path: Path, recorded: Recorded) -> None:
    graph: Any = StateGraph(dict)
    graph.add_node("look", lambda state: {"found": 1})
    graph.add_edge(START, "look")
    graph.add_edge("look", END)
    async with ShoalSaver.open(tmp_path) as saver:
        compiled = graph.compile(checkpointer=saver)
        with recorded.provider.get_tracer("agent").start_as_current_span("turn") as turn:
            await compiled.ainvoke({}, {"configurable": {"thread_id": "t"}})
    requests = [span for span in recorded.spans if span.name.startswith("shoal ")]
    assert requests
    assert {span.context.trace_id for span in requests} == {turn.get_span_context().trace_id}
