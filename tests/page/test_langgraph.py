"""Graphs of LangGraph on the page: their messages are a conversation, their ids are no labels, and a search looks into them."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any, TypedDict

import pytest

from tests.page.conftest import Node, Show, apart

pytestmark = pytest.mark.page


class State(TypedDict):
    """Of the graph."""

    messages: Annotated[list[Any], operator.add]


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")


@pytest.fixture(scope="module")
def graphs(node: Node) -> Node:
    """The node, with two runs of a graph: `weather-1` asks a person, `weather-2` was answered."""
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command, interrupt

    from shoal.integrations.langgraph import ShoalSaver

    async def agent(state: State) -> Any:
        call = {"id": "call_1", "name": "weather", "args": {"city": "Zanzibar"}}
        used = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}
        return {"messages": [AIMessage("Let me look it up.", tool_calls=[call], usage_metadata=used)]}

    async def tool(state: State) -> Any:
        return {"messages": [ToolMessage('{"rain": true}', tool_call_id="call_1", name="weather")]}

    async def ask(state: State) -> Any:
        return {"messages": [HumanMessage(interrupt({"question": "send it to the customer?"}))]}

    builder = StateGraph(State)
    for each in (agent, tool, ask):
        builder.add_node(each.__name__, each)
    for one, other in ((START, "agent"), ("agent", "tool"), ("tool", "ask"), ("ask", END)):
        builder.add_edge(one, other)

    async def run() -> None:
        async with ShoalSaver.connect(node.url) as saver:
            graph = builder.compile(checkpointer=saver)
            for name in ("weather-1", "weather-2"):
                begun: Any = {"messages": [HumanMessage("What is the weather in Zanzibar?")]}
                await graph.ainvoke(begun, {"configurable": {"thread_id": name}})
            await graph.ainvoke(Command(resume="yes"), {"configurable": {"thread_id": "weather-2"}})

    apart(run())
    return node


def test_its_messages_are_a_conversation(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/threads/weather-1")
    page.locator(".axis li.checkpoint").first.click()
    page.get_by_role("tab", name="Messages").click()
    said = page.locator(".messages > li")
    assert said.nth(0).inner_text().split("\n")[0] == "user"
    assert "What is the weather in Zanzibar?" in said.nth(0).inner_text()
    assert "assistant" in said.nth(1).inner_text()
    assert "weather" in said.nth(1).locator("summary").first.inner_text()
    assert "no result" not in said.nth(1).inner_text()
    assert said.count() == 2, "the tool's result is folded into its call"


def test_its_own_ids_and_channels_are_not_shown_as_labels_and_changes(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/now/weather-2")
    rows = page.locator(".axis li.checkpoint")
    rows.first.wait_for()
    shown = page.locator("main").inner_text()
    assert not _ID.search(shown)
    assert "branch:to" not in shown
    assert "__start__" not in shown
    assert page.locator(".axis select option").all_inner_texts() == []
    rows.first.click()
    pane = page.locator(".pane.chosen")
    pane.get_by_text("of the graph").wait_for()
    assert not _ID.search(pane.locator("h2").inner_text())
    assert pane.get_by_role("button", name="Remove the label").count() == 0, "without its label the graph would lose it"


def test_an_edit_says_that_the_graph_does_not_read_it(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/threads/weather-2")
    page.locator(".axis li.checkpoint").first.click()
    page.get_by_role("button", name="Fork here").click()
    page.get_by_text("graph.update_state").wait_for()


def test_a_search_looks_into_its_messages(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/threads?text=Zanzibar")
    page.locator("li, a", has_text="/messages/0").first.wait_for()
    assert "left out" not in page.locator("main").inner_text()


def test_its_tokens_are_compared(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/compare?of=weather-1:main,weather-2:main")
    page.locator("td", has_text=re.compile("^120$")).first.wait_for()
