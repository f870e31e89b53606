"""Two LangGraph agents that write a report each, driven by a crew: kill the program at any time, and start it again.

    python examples/langgraph_crew.py ./state                          in one process, with an embedded store
    python examples/langgraph_crew.py http://127.0.0.1:7400 host-1     one machine of several

It needs `pip install '.[langgraph]' langgraph`, in a clone of the repository. The graph's checkpoints are saved in the agent's
thread, under its lease: a machine that stood still cannot write any more once another has taken over. Asking a model costs
money, so it is a step: an answer that was stored is not asked for again, also if its node of the graph was not finished.
"""

from __future__ import annotations

import asyncio
import operator
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import shoal
from shoal.integrations.langgraph import ShoalSaver

SPACE = "reports"
SECTIONS = ("introduction", "method", "results")


class Report(TypedDict, total=False):
    topic: str
    written: Annotated[list[str], operator.add]


async def ask(topic: str, section: str) -> str:
    """Stands for a model."""
    await asyncio.sleep(0.2)
    print(f"asked for the {section} on {topic}", flush=True)  # noqa: T201
    return f"{section} on {topic}"


def graph_of(ctx: shoal.CrewContext, saver: ShoalSaver) -> Any:
    async def write(state: Report) -> Report:
        section = SECTIONS[len(state["written"])]
        # If an earlier run has asked and its answer was not stored, it is asked again: that costs, and harms nobody.
        text = await ctx.thread.step(
            "ask", key=section, idempotent=True, call=lambda: ask(state["topic"], section), arguments=state["topic"]
        )
        return {"written": [text]}

    def is_more(state: Report) -> str:
        return "write" if len(state["written"]) < len(SECTIONS) else END

    builder = StateGraph(Report)
    builder.add_node("write", write)
    builder.add_edge(START, "write")
    builder.add_conditional_edges("write", is_more)
    return builder.compile(checkpointer=saver)


def crew_of(store: shoal.Store) -> shoal.Crew:
    crew = shoal.Crew(store, SPACE)
    saver = ShoalSaver(store, space=SPACE)

    @crew.agent("writer", count=2, ttl=5, params={"topics": ["tea", "coffee"]})
    async def writer(ctx: shoal.CrewContext) -> None:
        graph = graph_of(ctx, saver)
        config: Any = {"configurable": {"thread_id": ctx.name}}
        begun = (await graph.aget_state(config)).created_at is not None
        topic = ctx.params["topics"][ctx.number - 1]
        # With None it goes on at its last checkpoint.
        await graph.ainvoke(None if begun else {"topic": topic, "written": []}, config)

    return crew


async def main(where: str, name: str | None) -> None:
    async with shoal.connect(where) if where.startswith("http") else shoal.open(where) as store:
        await crew_of(store).run(name=name, until_finished=True)
        for agent in (await shoal.Crew(store, SPACE).status()).agents:
            config: Any = {"configurable": {"thread_id": agent.name}}
            saved = await ShoalSaver(store, space=SPACE).aget_tuple(config)
            written = saved.checkpoint["channel_values"]["written"] if saved is not None else []
            print(f"{agent.name} has {agent.state}: {', '.join(written)}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "./state", sys.argv[2] if len(sys.argv) > 2 else None))
