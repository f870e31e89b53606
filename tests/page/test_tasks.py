"""The tasks of a person who is new to the page, walked and counted; and what happens with few rights, or without a node."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shoal
from tests.page import filling
from tests.page.conftest import Node, Show, apart, nodes
from tests.page.test_now_and_threads import read, standing, until, waiting
from tests.page.test_shared_and_work import SPACE as VIEWS
from tests.page.test_shared_and_work import ask

pytestmark = pytest.mark.page

CLICKS_MAX = 6


COUNTED = """
window.clicks = 0
addEventListener('click', (event) => { if (event.isTrusted && event.detail > 0) window.clicks += 1 }, true)
"""


class Walk:
    """A page on which clicks are counted, by the page itself; it begins where `shoal serve` tells one to look."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self._chosen = 0
        page.evaluate(COUNTED)

    @property
    def clicks(self) -> int:
        """So many were made: a list that is opened and a choice in it count as two, of which the page is told nothing."""
        return int(self.page.evaluate("window.clicks")) + 2 * self._chosen

    def click(self, found: Any) -> None:
        """Click what is found, which must be seen without any other click. It has a text or a name."""
        found = found.first
        found.wait_for()
        assert found.is_visible()
        told = found.inner_text().strip() or found.get_attribute("aria-label") or ""
        assert told, "a person would not know what this is"
        before = self.clicks
        found.click()
        assert before < self.clicks <= CLICKS_MAX

    def choose(self, label: str, value: str) -> None:
        """Choose one of a list that has this label."""
        field = self.page.get_by_label(label)
        field.wait_for()
        assert field.is_visible()
        field.select_option(value)
        self._chosen += 1
        assert self.clicks <= CLICKS_MAX


@pytest.fixture
def walk(node: Node, show: Show) -> Walk:
    return Walk(show(node))


def press(walk: Walk, within: Any, label: str) -> None:
    """Press a button, and then the one that carries it out, which stands in its place and says what will happen."""
    walk.click(within.get_by_role("button", name=label, exact=True))
    within.get_by_role("button", name="Cancel", exact=True).wait_for()
    walk.click(within.get_by_role("button", name=label, exact=True))


# ── five tasks ────────────────────────────────────────────────────────────────


def test_a_stuck_agent_is_found_and_let_go_on(node: Node, walk: Walk) -> None:
    async def fails(space: Any) -> None:
        thread = space.thread("stuck-1", author="worker-3")
        await thread.save({"rows": 1200})
        await thread.fail("the file has no header")

    read(node, fails)
    waiting(node, "asks-now")
    page = walk.page
    stuck = page.locator("article.ask", has_text="the file has no header")
    press(walk, stuck, "Let it go on")
    stuck.wait_for(state="detached")
    asked = page.locator("article.ask", has_text="asks-now")
    press(walk, asked, "Approve")
    asked.wait_for(state="detached")

    async def both(space: Any) -> list[str]:
        return [(await standing(space, name)).status for name in ("stuck-1", "asks-now")]

    assert read(node, both) == ["running"] * 2


def test_one_finds_when_and_by_whom_a_value_changed(node: Node, walk: Walk) -> None:
    async def changes(space: Any) -> None:
        thread = space.thread("dosage", author="agent")
        for number in range(17):
            await thread.save({"n": number, "limit": 4})
        ben = space.thread("dosage", author="ben")
        await ben.load()
        await ben.save({"n": 17, "limit": 9})
        await thread.load()
        for number in range(18, 40):
            await thread.save({"n": number, "limit": 9})

    read(node, changes)
    page = walk.page
    walk.click(page.get_by_role("searchbox", name="Search threads"))
    page.keyboard.type("dosage\n")
    walk.click(page.get_by_role("table", name="Threads").get_by_role("link", name="dosage"))
    walk.choose("Changes of", "limit")
    found = page.get_by_role("listitem").filter(has_text="by ben")
    until(page, "document.querySelectorAll('.axis li.checkpoint').length === 2")
    walk.click(found.get_by_role("link"))
    page.locator(".diff li.changed", has_text="limit").wait_for()
    assert page.locator(".pane.chosen time").first.get_attribute("title")


def test_a_fork_with_an_edit_is_compared(node: Node, walk: Walk) -> None:
    waiting(node, "forked-2")
    page = walk.page
    walk.click(page.get_by_role("article").get_by_role("link", name="forked-2"))
    walk.click(page.get_by_role("listitem").filter(has_text="+draft").get_by_role("link"))
    walk.click(page.get_by_role("button", name="Fork here"))
    until(page, "document.querySelector('.editing textarea').value.includes('120')")
    page.get_by_label("Name of the new branch").fill("kinder")
    field = page.get_by_label("State, as JSON")
    field.fill(field.input_value().replace("You owe 120.", "You owe nothing."))
    walk.click(page.get_by_role("button", name="Fork", exact=True))
    walk.click(page.get_by_role("link", name="Compare its branches"))
    page.get_by_text("after 1 checkpoint").wait_for()
    assert "You owe nothing." in page.locator(".diff").first.inner_text()


def test_a_conflict_is_settled(node: Node, show: Show) -> None:
    apart(filling.disagree(node.url, VIEWS, "heading"))
    walk = Walk(show(node))
    page = walk.page
    walk.choose("Space", VIEWS)
    walk.click(page.get_by_role("link", name="Shared"))
    walk.click(page.get_by_text("heading", exact=True))
    walk.click(page.get_by_label("value 2").get_by_role("button", name="Keep this value"))
    page.get_by_label("value 2").wait_for(state="detached")
    assert len(ask(node, "GET", "registers/heading")["siblings"]) == 1


def test_one_sees_why_a_node_lags(tmp_path: Path, show: Show) -> None:
    with nodes(tmp_path, 3) as made:
        walk = Walk(show(made[0]))
        page = walk.page
        until(page, "document.querySelector('.node').textContent.includes('3 nodes')")
        os.kill(made[2].pid, signal.SIGSTOP)
        try:

            async def save(space: Any) -> None:
                thread = space.thread("busy")
                for number in range(20):
                    await thread.save({"n": number})

            read(made[0], save)
            walk.click(page.get_by_role("link", name="Cluster", exact=True))
            page.locator(".problems").get_by_text(made[2].url.removeprefix("http://")).first.wait_for(timeout=60_000)
            walk.click(page.get_by_role("table", name="Nodes").get_by_role("link", name=made[2].url.removeprefix("http://")))
            told = page.locator(".pane.chosen .says")
            told.get_by_text("lacks").or_(told.get_by_text("is not linked")).first.wait_for()
        finally:
            os.kill(made[2].pid, signal.SIGCONT)
        page.get_by_text("nothing needs care").wait_for(timeout=60_000)


# ── a node dies ───────────────────────────────────────────────────────────────


def document(node: Node, name: str, *, holds: str, token: str | None = None) -> None:
    """Wait until a node has this text of a document: what is durable at one node is sent to the others."""

    async def run() -> None:
        async with asyncio.timeout(20), shoal.connect(node.url, token=token) as store:
            while True:
                async with await store.space(filling.SPACE).document(name) as opened:
                    if str(opened.text("notes")) == holds:
                        return
                await asyncio.sleep(0.2)

    apart(run())


def opened(node: Node, show: Show, name: str) -> Any:
    """A page with a shared text in it."""

    async def make(space: Any) -> None:
        async with await space.document(name, author="ada") as made:
            made.text("notes").insert(0, "# Plan\n")

    read(node, make)
    page = show(node, f"#/crew/shared/document/{name}?root=notes")
    page.get_by_text("all typed is durable").wait_for()
    until(page, "document.querySelector('.node').textContent.includes('3 nodes')")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    return page


def test_text_typed_as_a_node_dies_is_at_another(cluster: list[Node], show: Show) -> None:
    page = opened(cluster[0], show, "plan")
    page.keyboard.type("typed before, ")
    cluster[0].kill()
    page.keyboard.type("and after")
    page.locator(".banner", has_text="The page goes on with").wait_for(timeout=30_000)
    page.get_by_text("all typed is durable").wait_for(timeout=30_000)
    document(cluster[1], "plan", holds="# Plan\ntyped before, and after")


def test_a_view_that_was_never_opened_outlives_its_node(cluster: list[Node], show: Show) -> None:
    page = show(cluster[0], "#/crew/now")
    until(page, "document.querySelector('.node').textContent.includes('3 nodes')")
    until(page, "performance.getEntriesByType('resource').some(({ name }) => name.endsWith('/views/cluster/problems.js'))")
    page.wait_for_timeout(500)  # The last of its files.
    cluster[0].kill()
    page.locator(".banner", has_text="The page goes on with").wait_for(timeout=30_000)
    page.get_by_role("link", name="Cluster", exact=True).click()
    page.get_by_text("of 3 nodes answer").wait_for()


def test_a_lone_node_that_dies_is_told_soon(tmp_path: Path, show: Show) -> None:
    with nodes(tmp_path, 1) as (made,):
        waiting(made, "asks-last")
        page = show(made)
        ask = page.get_by_role("article").filter(has_text="asks-last")
        ask.get_by_role("button", name="Edit first").click()
        until(page, "document.querySelector('.editing textarea')?.value.includes('130')")
        field = page.get_by_label("State, as JSON")
        field.fill(field.input_value().replace("130", "135"))
        made.kill()
        page.locator(".banner", has_text="No node answers").wait_for()
        assert "135" in field.input_value()


def test_text_typed_without_a_node_survives_a_reload(node: Node, show: Show) -> None:
    async def make(space: Any) -> None:
        async with await space.document("kept") as made:
            made.text("notes").insert(0, "# Kept\n")

    read(node, make)
    page = show(node, "#/crew/shared/document/kept?root=notes")
    page.get_by_text("all typed is durable").wait_for()
    page.context.set_offline(True)
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.type("typed offline")
    page.wait_for_timeout(400)
    document(node, "kept", holds="# Kept\n")
    page.context.set_offline(False)
    page.goto("about:blank")
    page.goto(f"{node.url}/#/crew/shared/document/kept?root=notes")
    page.get_by_text("all typed is durable").wait_for()
    until(page, "Object.keys(localStorage).every((key) => !key.includes('document crew/kept'))")
    document(node, "kept", holds="# Kept\ntyped offline")


# ── tokens ────────────────────────────────────────────────────────────────────


class Tokens:
    """Tokens of one key, each for an author and what it grants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run("init", str(folder))

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "shoal", "token", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def create(self, author: str, *allow: str) -> str:
        return self._run("create", str(self.folder), author, *(part for each in allow for part in ("--allow", each))).split()[
            -1
        ]


def sign_in(page: Any, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.locator(".author", has_text="sign out").wait_for()


def test_a_token_without_rights_sees_and_writes_nothing(tmp_path: Path, show: Show) -> None:
    tokens = Tokens(tmp_path / "tokens")
    admin, reader = tokens.create("ana", "*:admin,reveal"), tokens.create("ben", "crew:read")
    with nodes(tmp_path, 1, f"--token-keys={tokens.folder / 'keys.json'}") as (made,):

        async def fill() -> None:
            async with shoal.connect(made.url, token=admin) as store:
                await store.space("hidden").thread("payroll").save({"sum": 1})
                crew = store.space(filling.SPACE)
                case = shoal.Schema("case", model={"type": "object"}, secret={"pin"})
                thread = crew.thread("case-1", author="ana", schema=case)
                await thread.save({"pin": "tell-nobody", "sum": 2})
                await thread.request_approval("pay?", by="ana")
                await crew.register("goal").set("moon")
                await crew.list("plan").push("a", "b")

        apart(fill())
        page = show(made, "#/*/now")
        sign_in(page, reader)
        page.get_by_text("who may only read here").wait_for()
        page.get_by_text("case-1").first.wait_for()
        assert "hidden" not in page.get_by_label("Space").inner_text()
        for view in ("now", "threads", "shared", "work", "audit", "compare"):
            page.goto(f"{made.url}/#/*/{view}")
            page.locator(".sentence, .empty").first.wait_for()
            page.wait_for_timeout(200)
            assert "payroll" not in page.content()
        page.goto(f"{made.url}/#/crew/audit?find=case-1")
        page.locator(".tbody [role=row]", has_text="saved on main").first.click()
        token = page.get_by_role("article", name="Record").locator("dt", has_text="token")
        token.wait_for()  # Under which it was written.
        page.goto(f"{made.url}/#/hidden/threads/payroll")
        page.locator(".refusal", has_text="hidden").first.wait_for()
        page.goto(f"{made.url}/#/crew/threads/case-1")
        page.locator(".axis li.checkpoint").first.click()
        page.get_by_role("tab", name="State").click()
        page.get_by_text("«secret»").first.wait_for()
        assert "tell-nobody" not in page.content()
        page.get_by_role("button", name="Approve", exact=True).click()
        page.locator(".confirm").get_by_role("button", name="Approve", exact=True).click()
        page.locator(".refusal", has_text="Nothing was written.").wait_for()
        page.goto(f"{made.url}/#/crew/shared/list/plan")
        page.get_by_role("button", name="Remove 1").click()
        page.locator(".refusal", has_text="Nothing was written.").wait_for()
        page.goto(f"{made.url}/#/*/cluster")
        page.locator(".refusal").first.wait_for()


def test_after_a_reload_the_other_node_gets_the_token(tmp_path: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(tmp_path / "tokens")
    ana = tokens.create("ana", "crew:write,read")
    monkeypatch.setenv("SHOAL_CLUSTER_KEY", "a key of this test alone, that is long enough")
    with nodes(tmp_path, 3, f"--token-keys={tokens.folder / 'keys.json'}") as made:

        async def fill() -> None:
            async with shoal.connect(made[0].url, token=ana) as store, await store.space("crew").document("plan") as opened:
                opened.text("notes").insert(0, "# Plan\n")

        apart(fill())
        page = show(made[0], "#/crew/shared/document/plan?root=notes")
        sign_in(page, ana)
        page.reload()
        page.get_by_text("all typed is durable").wait_for()
        page.locator(".cm-content").click()
        page.keyboard.press("Control+End")
        made[0].kill()
        page.keyboard.type("typed without a token")
        form = page.get_by_role("form", name="Token for the other node")
        form.get_by_label("Token").fill("no.token", timeout=30_000)
        form.get_by_role("button", name="Go on").click()
        form.locator(".refusal").wait_for()
        form.get_by_label("Token").fill(ana)
        form.get_by_role("button", name="Go on").click()
        page.get_by_text("all typed is durable").wait_for(timeout=30_000)
        document(made[1], "plan", holds="# Plan\ntyped without a token", token=ana)
