"""What the page says where something is missing, empty, or told by an id alone; and the times of tool calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import shoal
from tests.page.conftest import Node, Show, apart

pytestmark = pytest.mark.page

SPACE = "honest"
BEGAN_S = 1_790_000_000


def write(node: Node, work: Any) -> Any:
    """Do something in the space `honest`."""

    async def done() -> Any:
        async with shoal.connect(node.url) as store:
            return await work(store.space(SPACE))

    return apart(done())


def test_a_thread_of_another_name_is_not_well(node: Node, show: Show) -> None:
    page = show(node, f"#/{SPACE}/threads/it's%20none")
    chosen = page.locator(".pane.chosen")
    chosen.get_by_text("shoal save 'it'\\''s none'").wait_for()
    assert chosen.locator("h2").inner_text().split() == ["it's", "none", "holds", "nothing"]
    assert chosen.get_by_role("img").get_attribute("aria-label") == "unknown"
    assert chosen.get_by_role("button", name="Prune").count() == 0


@pytest.mark.parametrize(
    ("view", "says"),
    [
        ("shared", "Nothing is shared here yet."),
        ("work", "No work is under way here."),
        ("compare", "There are no threads to compare yet."),
    ],
)
def test_an_empty_view_answers_first_and_says_what_to_do(node: Node, show: Show, view: str, says: str) -> None:
    page = show(node, f"#/no-such-space/{view}")
    assert page.locator("h1.sentence").inner_text() == says
    assert f"--url {node.url} --space no-such-space" in page.locator(".empty code").inner_text()


def test_a_budget_names_its_nodes_by_their_addresses(node: Node, show: Show) -> None:
    async def grant(space: Any) -> None:
        await space.budget("tokens").grant(10)
        await space.budget("tokens").spend(1)

    write(node, grant)
    page = show(node, f"#/{SPACE}/shared/budget/tokens")
    page.get_by_role("cell", name=node.url.removeprefix("http://"), exact=True).wait_for()


def _assistant(call: str, **more: Any) -> dict[str, Any]:
    function = {"name": f"look-{call}", "arguments": json.dumps({"at": call})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": call, "type": "function", "function": function}], **more}


def test_tool_calls_have_the_times_of_their_messages_or_steps(node: Node, show: Show) -> None:
    messages = [
        _assistant("c-told", timestamp=BEGAN_S),
        {"role": "tool", "tool_call_id": "c-told", "content": "here", "created_at": "2026-09-21T14:13:22Z"},
        _assistant("c-step"),
        {"role": "tool", "tool_call_id": "c-step", "content": "there"},
        _assistant("c-none", time=3.5, timestamp="yesterday", created_at=1e300),
        {"role": "tool", "tool_call_id": "c-none", "content": "nowhere"},
    ]

    async def called() -> str:
        return "there"

    async def save(space: Any) -> str:
        thread = space.thread("calls")
        await thread.step("look", key="tools.c-step", call=called)
        return str((await thread.save({"messages": messages})).id)

    at = write(node, save)
    page = show(node, f"#/{SPACE}/threads/calls/at/{at}?show=messages")
    calls = page.locator(".messages .call")
    calls.nth(2).wait_for()
    page.wait_for_function("document.querySelectorAll('.messages .call .when').length === 2")
    told, stepped, none = (calls.nth(number).locator("summary").first.inner_text() for number in range(3))
    assert told.startswith("2 s at ")
    assert " at " in stepped
    assert "no result" not in none
    assert none.startswith("look-c-none")


def test_a_question_of_a_crew_stands_beside_its_agent(node: Node, show: Show) -> None:
    async def run() -> None:
        async with shoal.connect(node.url) as store:
            crew = shoal.Crew(store, "honest-crew")

            @crew.agent("clerk")
            async def clerk(ctx: Any) -> None:
                await ctx.thread.request_approval("please read the draft", by=ctx.name)
                await ctx.checkpoint({"draft": 1})
                await ctx.thread.ready()

            running = asyncio.create_task(crew.run(name="host-1"))
            async with asyncio.timeout(30):
                while (await store.space("honest-crew").thread("clerk-1").status()).status != "waiting":
                    await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.wait([running])

    apart(run())
    page = show(node, "#/honest-crew/work/crew")
    page.get_by_role("article", name="Crew").get_by_text("please read the draft").wait_for()


def test_rows_of_a_time_line_are_as_high_as_a_thumb_needs(node: Node, show: Show) -> None:
    page = show(node, "#/crew/threads/ticket-7", width=390, height=844)
    page.locator(".axis li.checkpoint").first.wait_for()
    assert {box["height"] for box in (row.bounding_box() for row in page.locator(".axis li").all())} == {44}
    dots = page.locator(".lanes circle").evaluate_all("dots => dots.map((dot) => Number(dot.getAttribute('cy')) % 44)")
    assert set(dots) == {22}


@pytest.mark.parametrize("view", ["shared", "work", "compare", "audit"])
def test_filters_that_leave_nothing_say_so_and_end(node: Node, show: Show, view: str) -> None:
    page = show(node, f"#/crew/{view}?find=no-such-word-anywhere")
    page.get_by_text("Nothing fits what is typed or chosen above.").wait_for()
    page.get_by_role("button", name="Show all").click()
    page.locator(".tbody [role=row]").first.wait_for()
