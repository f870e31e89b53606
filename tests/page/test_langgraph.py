"""Graphs of LangGraph on the page: their messages are a conversation, their ids are no labels, and a search looks into them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

import shoal
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


def test_a_rollback_says_that_the_graph_does_not_read_it(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/threads/weather-2")
    page.locator(".axis li.checkpoint").nth(1).click()
    page.get_by_role("button", name="Roll back to here").click()
    says = page.locator(".confirm").inner_text()
    assert "graph.invoke(None, config)" in says
    assert "its agent loads this state next" not in says


def test_a_search_looks_into_its_messages(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/threads?text=Zanzibar")
    page.locator("li, a", has_text="/messages/0").first.wait_for()
    assert "left out" not in page.locator("main").inner_text()


def test_its_tokens_are_compared(graphs: Node, show: Show) -> None:
    page = show(graphs, "#/langgraph/compare?of=weather-1:main,weather-2:main")
    page.locator("td", has_text=re.compile("^120$")).first.wait_for()


# ── graphs that wait for an answer ────────────────────────────────────────────


def asking(node: Node, thread_id: str, *values: Any) -> Any:
    """A graph that asks all of these at once, and the coroutine that runs it with an input."""
    pytest.importorskip("langgraph")
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import interrupt

    from shoal.integrations.langgraph import ShoalSaver

    class Answers(TypedDict, total=False):
        said: Annotated[list[str], operator.add]

    builder: Any = StateGraph(Answers)
    for nth, value in enumerate(values):
        builder.add_node(f"ask-{nth}", lambda state, value=value: {"said": [interrupt(value)]})
        builder.add_edge(START, f"ask-{nth}")
        builder.add_edge(f"ask-{nth}", END)

    async def run(given: Any) -> Any:
        async with ShoalSaver.connect(node.url, space="asking") as saver:
            return await builder.compile(checkpointer=saver).ainvoke(given, {"configurable": {"thread_id": thread_id}})

    return run


def run_python(node: Node, code: str, thread_id: str, *values: Any) -> Any:
    """What the page's snippet returns where the graph is: the snippet itself is run."""
    begun: list[Any] = []

    class Graph:
        def invoke(self, given: Any, config: Any) -> None:
            begun.append((given, config))

    exec(code, {"graph": Graph()})
    [(given, config)] = begun
    assert config == {"configurable": {"thread_id": thread_id}}
    return apart(asking(node, thread_id, *values)(given))


def test_a_graph_that_asks_is_found_and_let_go_on(node: Node, show: Show, violations: Callable[..., list[str]]) -> None:
    page = show(node, "#/asking/now")
    page.get_by_text("No agent has written anything here").wait_for()
    apart(asking(node, "refund/1", "refund of 120?")({}))
    ask = page.locator(".ask", has_text="refund/1")
    ask.get_by_text("refund of 120?").wait_for()
    page.locator("h1", has_text="1 agent waits for a person").wait_for()
    assert ask.get_by_role("button", name="Approve").count() == 0
    ask.get_by_role("button", name="Answer").click()
    ask.get_by_label("Answer").fill('yes, "all" of it')
    assert violations(page) == []
    code = ask.locator("pre").inner_text()
    assert run_python(node, code, "refund/1", "refund of 120?") == {"said": ['yes, "all" of it']}
    ask.wait_for(state="detached")


def test_a_former_approver_is_not_the_one_that_asks(node: Node, show: Show) -> None:
    apart(asking(node, "approved", "which wording?")({}))

    async def approve() -> None:
        async with shoal.connect(node.url) as store:
            await store.space("asking").thread("approved").approve(by="ana")

    apart(approve())
    ask = show(node, "#/asking/now").locator(".ask", has_text="which wording?")
    assert "ana" not in ask.inner_text()


def test_of_two_questions_each_is_answered_by_its_id(node: Node, show: Show) -> None:
    apart(asking(node, "two", "left?", "right?")({}))
    page = show(node, "#/asking/threads/two")
    page.get_by_text("waits for an answer").wait_for()
    questions = page.locator(".question")
    assert sorted(questions.locator(".says bdi").all_inner_texts()) == ["left?", "right?"]
    left = questions.filter(has_text="left?")
    left.get_by_label("Answer").fill("yes")
    answered = run_python(node, page.locator(".questions pre").inner_text(), "two", "left?", "right?")
    assert [each.value for each in answered["__interrupt__"]] == ["right?"]
    left.wait_for(state="detached")
    questions.get_by_label("Answer").fill("no")
    assert run_python(node, page.locator(".questions pre").inner_text(), "two", "left?", "right?") == {"said": ["yes", "no"]}
    page.locator(".questions").wait_for(state="detached")


EVIL = [
    "'\");import os#\\",
    "\u202e\u2066evil\u2028\u2029\u0085\ufeff",
    "<img src=x onerror=alert(1)>",
    "{}${x}`",
    "100%25 \U0001f600",
]


@pytest.mark.parametrize("evil", EVIL, ids=["quotes", "bidi", "markup", "template", "astral"])
def test_a_snippet_holds_a_hostile_text_as_one_literal(node: Node, show: Show, evil: str) -> None:
    thread_id = f"hostile {evil}"
    apart(asking(node, thread_id, evil)({}))
    page = show(node, "#/asking/now")
    ask = page.locator(".ask", has_text=evil[:5] if evil.isascii() else "evil" if "evil" in evil else "100%")
    ask.get_by_role("button", name="Answer").click()
    ask.get_by_label("Answer").fill(evil.translate({0x2028: "", 0x2029: "", 0x85: ""}))
    code = ask.locator("pre").text_content()
    assert not set(code) & set("\u202e\u2066\u2028\u2029\u0085\ufeff")
    assert run_python(node, code, thread_id, evil) == {"said": [evil.translate({0x2028: "", 0x2029: "", 0x85: ""})]}


def test_a_question_of_a_megabyte_and_half_a_character_is_shown(node: Node, show: Show) -> None:
    apart(asking(node, "huge \ud800", "x" * 1_000_000)({}))
    page = show(node, "#/asking/now")
    ask = page.locator(".ask", has_text="huge")
    ask.get_by_role("button", name="Answer").click()
    assert len(ask.inner_text()) < 2_000
    assert '"huge \\ud800"' in ask.locator("pre").inner_text()


def test_an_answer_that_is_typed_stays(node: Node, show: Show) -> None:
    apart(asking(node, "typed", "why?")({}))
    page = show(node, "#/asking/threads/typed")
    page.get_by_label("Answer").fill("because")
    page.reload()
    page.locator(".questions pre", has_text='Command(resume="because")').wait_for()
