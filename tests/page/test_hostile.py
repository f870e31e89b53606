"""Names and contents that are hostile, in every view: markup, scripts, text of other directions, and a megabyte of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

import shoal
from tests.page import filling
from tests.page.conftest import Node, Show, apart

pytestmark = pytest.mark.page

SPACE = "hostile"
NAME = (filling.MARKUP[:60] + filling.BIDI).replace(".", "")  # A period parts the labels of a namespace.
TEXT = filling.MARKUP + filling.BIDI + filling.LONG[:1_000_000]
# Text of the store that turns the direction of what stands beside it: each must be isolated, or alone in its element.
TURNED = """
(() => {
  const found = []
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walk.nextNode()) {
    const { data, parentElement } = walk.currentNode
    const isAlone = parentElement.closest('bdi, textarea, option') || parentElement.textContent === data
    if (data.includes('\\u202e') && !isAlone) found.push(parentElement.outerHTML.slice(0, 200))
  }
  return found
})()
"""


# The page, or one of its panes, is wider than the place that it has.
WIDE = """
document.documentElement.scrollWidth > innerWidth ||
[...document.querySelectorAll('.pane')].some((pane) => pane.scrollWidth > pane.clientWidth)
"""
# What is folded, opened.
OPEN = """
[...document.querySelectorAll('main details:not([open]) > summary')].slice(0, 4).forEach((each) => each.click())
"""


async def _fill(url: str) -> None:
    async with shoal.connect(url) as store:
        space = store.space(SPACE)
        value = {NAME: TEXT, "list": [filling.BIDI, {filling.BIDI: filling.MARKUP}]}
        thread = space.thread(NAME, author=NAME)
        await thread.save({"messages": [{"role": "user", "name": NAME, "content": TEXT}], NAME: value}, label=NAME)
        await thread.step(NAME, key="step-1", call=_returns)
        await thread.journal.append({"text": TEXT})
        await thread.journal.append(TEXT)
        await thread.branch(NAME, at=(await thread.load()).id)
        await thread.save({"messages": [], NAME: 1}, metadata={"tags": [NAME], NAME: 2})
        await thread.request_approval(NAME, by=NAME)
        await thread.worklist(NAME).add({NAME: TEXT[:60_000]})
        await space.register(NAME).set(value, by=NAME)
        await space.counter(NAME).add(1)
        await space.set(NAME).add(NAME, TEXT[:3_900])
        await space.map(NAME).set(NAME, value)
        await space.list(NAME).push(TEXT[:60_000], NAME)
        await space.budget(NAME).grant(3)
        await space.items.put((NAME, NAME), NAME, {"text": TEXT[:200_000]})
        async with await space.document(NAME, author=NAME) as document:
            document.text("notes").insert(0, TEXT)
            document.map(NAME)[NAME] = filling.BIDI


async def _returns() -> dict[str, str]:
    return {NAME: TEXT}


@pytest.fixture(scope="module")
def hostile(node: Node) -> Node:
    apart(_fill(node.url))
    return node


def at(view: str, *names: str, query: str = "") -> str:
    return "/".join([f"#/{SPACE}/{view}", *(quote(name, safe="") for name in names)]) + query


VIEWS = [
    at("now"),
    at("threads"),
    at("threads", NAME),
    at("threads", NAME, "step", "step-1"),
    at("shared"),
    *(at("shared", kind, NAME) for kind in ("register", "counter", "set", "map", "list", "budget", "items")),
    at("shared", "document", NAME, query="?root=notes"),
    at("shared", "document", NAME, query="?root=" + quote(NAME, safe="")),
    at("work"),
    at(
        "compare",
        query="?of=" + quote(quote(NAME, safe="") + ":main," + quote(NAME, safe="") + ":" + quote(NAME, safe=""), safe=""),
    ),
    at("audit"),
    "#/*/now",
    "#/*/shared",
    "#/*/audit",
]


@pytest.mark.parametrize("width", [1440, 390])
def test_every_view_takes_hostile_content_as_text(hostile: Node, show: Show, width: int) -> None:
    page = show(hostile, VIEWS[0], width=width)
    wrong: dict[str, Any] = {}
    for view in VIEWS:
        page.goto(f"{hostile.url}/{view}")
        page.locator(".sentence, .says, .head-line, .empty").locator("visible=true").first.wait_for()
        page.wait_for_timeout(500)
        if "/threads/" in view and "/step/" not in view:
            page.locator(".axis li.checkpoint").last.click()
            for tab in ("Changes", "Messages", "State", "About"):
                page.get_by_role("tab", name=tab).click()
                page.wait_for_timeout(100)
                wrong[f"{view} {tab}"] = _wrong(page)
        page.evaluate(OPEN)
        page.wait_for_timeout(100)
        wrong[view] = _wrong(page)
    wrong = {view: told for view, told in wrong.items() if told}
    assert [f"{view}: {each}" for view, told in wrong.items() for each in told] == []


def _wrong(page: Any) -> list[str]:
    found = list(page.evaluate(TURNED))
    checks: dict[str, Callable[[], bool]] = {
        "struck": lambda: page.evaluate("document.title === 'struck'"),
        "markup": lambda: page.locator("main img:not(.cm-widgetBuffer), main script").count() > 0,
        "wide": lambda: page.evaluate(WIDE),
        "much": lambda: page.evaluate("document.body.textContent.length") > 200_000,
    }
    return found + [name for name, holds in checks.items() if holds()]


ANSWERS = (
    "{}",
    "null",
    "[]",
    '{"threads": [{}], "names": ["a", 5], "entries": [{}], "members": [{}], "siblings": [{}]}',
    "<html>",
)
STRANGE = (
    at("now"),
    at("threads"),
    at("threads", NAME),
    at("shared"),
    at("shared", "register", "a"),
    at("shared", "budget", "a"),
    at("work"),
    at("cluster"),
    at("audit"),
)


@pytest.mark.parametrize("answer", ANSWERS)
def test_strange_answers_are_told_and_outlived(hostile: Node, show: Show, answer: str) -> None:
    page = show(hostile, at("now"))
    page.route("**/v1/**", lambda route: route.fulfill(body=answer, content_type="application/json"))
    for view in STRANGE:
        page.goto(f"{hostile.url}/{view}")
        page.locator(".panes").first.wait_for(state="attached")
        page.wait_for_timeout(250)
        assert page.locator("main").count() == page.locator(".panes").count() == 1
    page.unroute_all()
    page.goto(f"{hostile.url}/{at('now')}")
    page.locator("h1.sentence", has_text="waits for a person").wait_for()


def test_a_cut_network_is_told_and_ends(hostile: Node, show: Show) -> None:
    page = show(hostile, at("now"))
    page.context.set_offline(True)
    page.locator(".banner", has_text="No node answers").wait_for(timeout=60_000)
    assert page.locator("article.ask").first.is_visible()  # What was there stays, and is said to be old.
    page.context.set_offline(False)
    page.locator(".banner").wait_for(state="detached", timeout=60_000)


def test_a_slow_network_loses_nothing_typed(hostile: Node, show: Show) -> None:
    page = show(hostile, f"#/{SPACE}/audit")
    page.locator(".tbody [role=row]").first.wait_for()

    def late(route: Any) -> None:
        page.wait_for_timeout(700)
        route.continue_()

    page.route("**/audit**", late)
    field = page.get_by_label("Find a word")
    field.press_sequentially("saved", delay=120)
    page.wait_for_timeout(1500)
    assert field.input_value() == "saved"
    assert field.evaluate("field => field === document.activeElement")


def test_marks_that_reorder_text_are_seen_in_editors(hostile: Node, show: Show) -> None:
    async def write() -> None:
        async with shoal.connect(hostile.url) as store, await store.space(SPACE).document("marked") as document:
            document.text("notes").insert(0, f"pay {filling.BIDI} \u202a\u2068 now")

    apart(write())
    page = show(hostile, at("shared", "document", "marked"))
    page.locator(".cm-specialChar").first.wait_for()
    assert page.locator(".cm-specialChar").count() == 6


def test_four_seconds_without_a_network_are_told(node: Node, show: Show) -> None:
    page = show(node, f"#/{filling.SPACE}/now")
    page.locator(".ask").first.wait_for()
    page.context.set_offline(True)
    page.locator(".banner", has_text="No node answers").wait_for(timeout=4_000)
    page.context.set_offline(False)
    page.locator(".banner", has_text="No node answers").wait_for(state="detached")
