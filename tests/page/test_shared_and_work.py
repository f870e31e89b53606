"""The views of shared state, work, runs, the cluster and the audit, in a browser: each action, two people, hostile names."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

import shoal
from tests.page import filling
from tests.page.conftest import Node, Show, apart, nodes

pytestmark = pytest.mark.page

SPACE = filling.SHARED
STRUCK = "document.title === 'struck'"


async def _ask(node: Node, method: str, path: str, body: Any = None) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{node.url}/v1/spaces/{SPACE}/{path}", json=body) as answer,
    ):
        assert answer.status < 300, await answer.text()
        return await answer.json()


def ask(node: Node, method: str, path: str, body: Any = None) -> Any:
    """What the node's REST interface answers."""
    return apart(_ask(node, method, path, body))


@pytest.fixture
def filled(shared: Node) -> Node:
    """The node, with what these views show, in a space of their own."""
    return shared


@pytest.mark.parametrize("path", [("document",), ("register",), ("map", "limits")])
def test_hostile_names_are_only_text(filled: Node, show: Show, path: tuple[str, ...]) -> None:
    names = path if len(path) > 1 else (*path, filling.MARKUP)
    page = show(filled, f"#/{SPACE}/shared/" + "/".join(quote(name, safe="") for name in names))
    page.get_by_text("onerror", exact=False).first.wait_for()
    page.wait_for_timeout(300)
    assert not page.evaluate(STRUCK)
    # The editor sets an image without a source beside each mark.
    assert page.locator("main img:not(.cm-widgetBuffer), main img[src], main script").count() == 0


def test_two_people_edit_one_document_at_once(filled: Node, show: Show) -> None:
    address = f"#/{SPACE}/shared/document/plan?root=notes"
    one, other = show(filled, address), show(filled, address)
    for page, name in ((one, "ana"), (other, "bo")):
        page.get_by_label("Your name").fill(name)
        page.reload()
        page.locator(".cm-content").wait_for()
    one.locator(".cm-content").click()
    one.keyboard.press("Control+End")
    one.keyboard.type("written by ana")
    other.locator(".cm-content").get_by_text("written by ana").wait_for()
    other.locator(".here").get_by_text("ana").first.wait_for()
    other.locator(".cm-content").click()
    other.keyboard.press("Control+End")
    other.keyboard.type(", and by bo")
    one.locator(".cm-content").get_by_text("written by ana, and by bo").wait_for()
    one.get_by_text("all typed is durable").wait_for()
    assert "written by ana, and by bo" in ask(filled, "GET", "documents/plan")["notes"]


def test_a_conflict_is_settled_within_six_clicks(filled: Node, show: Show) -> None:
    apart(filling.disagree(filled.url, SPACE, "course"))
    page = show(filled, f"#/{SPACE}/cluster")
    page.get_by_role("link", name="Shared").click()
    page.get_by_text("course", exact=True).click()
    page.get_by_role("region", name="value 2").or_(page.get_by_label("value 2")).get_by_role("button", name="Keep").click()
    page.get_by_label("value 2").wait_for(state="detached")
    assert len(ask(filled, "GET", "registers/course")["siblings"]) == 1
    assert ask(filled, "GET", "registers/course")["value"] == "Moon"


def test_a_draft_survives_a_reload_and_counts_once(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/shared/counter/pages")
    page.get_by_label("Amount").fill("5")
    page.reload()
    assert page.get_by_label("Amount").input_value() == "5"
    page.get_by_role("button", name="Add").click()
    page.get_by_text("Done.").wait_for()
    assert page.get_by_label("Amount").input_value() == ""
    assert ask(filled, "GET", "counters/pages")["value"] == 46


def test_a_refusal_keeps_the_draft(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/shared/budget/tokens")
    page.get_by_label("Amount").fill("many")
    page.get_by_role("button", name="Grant", exact=True).click()
    page.get_by_role("alert").get_by_text("is no whole number").wait_for()
    assert page.get_by_label("Amount").input_value() == "many"


def test_a_row_tells_in_a_line_what_it_holds(filled: Node, show: Show) -> None:
    _list(filled, "held", "design", "build", "ship", "sell", "rest")
    page = show(filled, f"#/{SPACE}/shared")
    for kind, name, held in (
        ("counter", "pages", re.compile(r"^\d+$")),
        ("budget", "tokens", re.compile(r"^[\d,]+ of [\d,]+ left$")),
        ("list", "held", re.compile(r"^design, build, ship, sell …$")),
    ):
        row = page.locator(".tbody [role=row], .tbody > *").filter(has_text=kind).filter(has_text=name).first
        row.get_by_text(held).wait_for()
    _list(filled, "held", "more")
    place = f"{filled.url}/v1/spaces/{SPACE}/counters/pages"
    page.request.post(place, data={"add": 1000})
    page.locator(".tbody").get_by_text(re.compile(r"^1,0\d\d$")).wait_for()


def test_values_are_changed_in_place(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/shared/register/goal")
    page.get_by_label("Value (JSON").fill('{"reach": "Venus"}')
    page.get_by_role("button", name="Set", exact=True).click()
    page.locator(".history").get_by_text("Venus").first.wait_for()
    page.goto(f"{filled.url}/#/{SPACE}/shared/map/limits")
    page.get_by_role("textbox", name="Key").fill("retries")
    page.get_by_label("Value (JSON").fill("9")
    page.get_by_role("button", name="Set a key").or_(page.get_by_role("button", name="Set", exact=True)).click()
    page.locator(".entries").get_by_text("retries").wait_for()
    page.goto(f"{filled.url}/#/{SPACE}/shared/set/seen")
    page.get_by_label("Value (JSON").fill("fresh")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator(".rows").get_by_text('"fresh"').wait_for()
    assert ask(filled, "GET", "registers/goal")["value"] == {"reach": "Venus"}
    assert ask(filled, "GET", "maps/limits/retries")["siblings"][0]["value"] == 9
    assert "fresh" in ask(filled, "GET", "sets/seen")["members"]


def _list(node: Node, name: str, *values: Any) -> None:
    async def run() -> None:
        async with shoal.connect(node.url) as store:
            await store.space(SPACE).list(name).push(*values)

    apart(run())


def _values(node: Node, name: str) -> list[Any]:
    return [element["value"] for element in ask(node, "GET", f"lists/{name}")["elements"]]


def test_a_list_is_changed_in_place(filled: Node, show: Show) -> None:
    _list(filled, "plan", "a", "b", "c")
    page = show(filled, f"#/{SPACE}/shared")
    page.locator(".tbody").get_by_text("list", exact=True).first.wait_for()
    page.goto(f"{filled.url}/#/{SPACE}/shared/list/plan")
    rows = page.locator(".elements > li")
    page.get_by_role("button", name="Move 3 up").click()
    rows.nth(1).get_by_text('"c"').wait_for()
    page.get_by_role("button", name="Remove 3").click()
    rows.nth(2).wait_for(state="detached")
    page.get_by_label("Where").select_option(label='before 2: "c"')
    insert = page.get_by_role("form", name="Insert a value")
    insert.get_by_label("Value (JSON").fill('{"new": 1}')
    insert.get_by_role("button", name="Insert").click()
    rows.nth(1).get_by_text("new").first.wait_for()
    rows.nth(0).locator("summary").click()
    replace = rows.nth(0).get_by_role("form")
    replace.get_by_label("Value (JSON").fill("z")
    replace.get_by_role("button", name="Replace").click()
    rows.nth(0).get_by_text('"z"').first.wait_for()
    assert _values(filled, "plan") == ["z", {"new": 1}, "c"]


def test_a_moved_element_keeps_the_focus(filled: Node, show: Show) -> None:
    _list(filled, "order", "a", "b", "c", "d")
    page = show(filled, f"#/{SPACE}/shared/list/order")
    page.get_by_role("button", name="Move 1 down").focus()
    for place in (2, 3):
        page.keyboard.press("Enter")
        page.locator(".elements > li").nth(place - 1).get_by_text('"a"').wait_for()
        page.get_by_role("button", name=f"Move {place} down").and_(page.locator(":focus")).wait_for()
    assert _values(filled, "order") == ["b", "c", "a", "d"]


def test_spaces_beyond_the_bound_are_told(tmp_path: Path, show: Show) -> None:
    with nodes(tmp_path, 1) as (made,):

        async def fill() -> None:
            async with shoal.connect(made.url) as store:
                for number in range(22):
                    await store.space(f"s{number:02}").thread("t").save({"n": 1})
                    await store.space(f"s{number:02}").register("r").set(1)

        apart(fill())
        page = show(made, "#/*/now")
        for view in ("now", "threads", "shared", "work", "audit", "compare"):
            page.goto(f"{made.url}/#/*/{view}")
            page.get_by_text("2 spaces are not shown: these are the 20 that are used most.").wait_for()


def test_memories_are_found_by_text_and_by_field(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/shared/items/memory")
    field = page.get_by_label("Search memories")
    field.fill("tea 2")
    page.get_by_text("1 of 3 memories").wait_for()
    field.fill("kind: fact")
    page.get_by_text("2 of 2 memories").wait_for()


def test_a_dead_letter_is_put_back(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/work")
    page.get_by_text("jobs / pages").click()
    page.get_by_role("tab", name="1 given up").click()
    page.get_by_text("no answer in 30 s").first.click()
    page.get_by_role("button", name="Put back").click()
    page.get_by_role("tab", name="0 given up").wait_for()
    assert ask(filled, "GET", "threads/jobs/worklists")["worklists"][0]["pending"] == 3


def test_a_lease_is_ended_by_an_operator(filled: Node, show: Show) -> None:
    ask(filled, "POST", "leases/deploy", {"ttl": 60, "holder": "worker-7"})
    page = show(filled, f"#/{SPACE}/work/lease/deploy")
    page.get_by_text("worker-7").first.wait_for()
    page.get_by_role("button", name="End its lease").click()
    page.get_by_label("Reason").fill("its machine is gone")
    page.locator(".confirm").get_by_role("button", name="End its lease").click()
    page.get_by_text("Nobody holds this lease.").wait_for(timeout=70_000)


def test_passages_are_coloured_once_their_authors_are_known(filled: Node, show: Show) -> None:
    async def make() -> None:
        async with shoal.connect(filled.url) as store:
            for author in ("writer", "ben", "ana"):  # By their names alone two of them would have one hue.
                async with await store.space(SPACE).document("minutes", author=author) as opened:
                    text = opened.text("notes")
                    text.insert(len(str(text)), f"{author} wrote this. ")

    apart(make())
    page = show(filled, f"#/{SPACE}/shared")
    asked = []

    def late(route: Any) -> None:
        asked.append(route)
        page.wait_for_timeout(1000)
        route.continue_()

    page.route("**/minutes/authors*", late)
    page.goto(f"{filled.url}/#/{SPACE}/shared/document/minutes?root=notes")
    page.locator(".cm-content", has_text="ana wrote this").wait_for()
    page.locator(".cm-content [class^=by-]").nth(2).wait_for()
    classes = [each.get_attribute("class") for each in page.locator(".cm-content [class^=by-]").all()]
    assert asked
    assert len(set(classes)) == 3


def test_passages_have_their_authors_after_they_left(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/shared/document/plan?root=notes")
    page.locator(".legend .writer", has_text="ada").wait_for()


def test_runs_are_compared_and_exported(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/compare?of=run-0:main,run-1:main,run-2:main")
    page.get_by_text("after 2 checkpoints").first.wait_for()
    page.get_by_role("button", name="score", exact=True).first.click()
    page.get_by_role("button", name="score ↑").click()
    assert page.locator(".runs tbody tr").first.inner_text().startswith("run-2")
    texts = {}
    for name in ("CSV", "JSON Lines"):
        with page.expect_download() as kept:
            page.get_by_role("button", name=name).click()
        texts[name] = Path(kept.value.path()).read_text()
    rows = list(csv.DictReader(io.StringIO(texts["CSV"])))
    told = [json.loads(line) for line in texts["JSON Lines"].splitlines()]
    assert [row["score"] for row in rows] == ["3", "6", "9"] == [str(row["score"]) for row in told]


def test_runs_are_chosen_by_their_boxes(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/compare")
    for number in range(3):
        page.get_by_role("checkbox", name=f"compare run-{number}").click()
    page.get_by_text("3 runs are compared").wait_for()
    page.get_by_role("checkbox", name="compare run-1").click()
    page.get_by_text("2 runs are compared").wait_for()
    page.locator(".pick", has_text="run-1").locator("bdi").click()
    page.get_by_text("3 runs are compared").wait_for()


def test_the_audit_is_searched_by_author_and_word(filled: Node, show: Show) -> None:
    page = show(filled, f"#/{SPACE}/audit?by=writer&find=run-1")
    page.get_by_text("things were done").wait_for()
    page.locator(".tbody [role=row]").first.click()
    page.get_by_role("article", name="Record").get_by_text("run-1").wait_for()


def test_a_lost_node_stands_with_its_command(cluster: list[Node], show: Show) -> None:
    page = show(cluster[0], "#/*/cluster")
    page.get_by_text("nothing needs care").wait_for()
    cluster[2].kill()
    lost = page.locator(".problems li").filter(has=page.locator("p", has_text="is not reached"))
    lost.wait_for(timeout=60_000)
    lost.get_by_text("shoal serve --data DIR").wait_for()


def test_the_cluster_says_how_busy_the_node_is(filled: Node, show: Show) -> None:
    page = show(filled, "#/*/cluster")
    busy = page.get_by_label("How busy this node is")
    busy.get_by_text("its loop is late").wait_for()
    busy.get_by_role("cell", name="save", exact=True).wait_for()
    assert busy.get_by_role("row").filter(has_text=SPACE).count() >= 1


def test_it_says_how_many_registers_were_not_looked_at(node: Node, show: Show) -> None:
    async def run() -> None:
        async with shoal.connect(node.url) as store:
            for number in range(42):
                await store.space("many").register(f"r{number:02}").set(number)

    apart(run())
    page = show(node, "#/many/shared")
    page.get_by_text("2 more registers were not looked at").wait_for()
