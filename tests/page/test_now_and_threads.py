"""The views of now, of threads and of one thread, in a browser: each action, a node that dies, and what is hostile."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import shoal
from tests.page import filling
from tests.page.conftest import Node, Show, apart, nodes

pytestmark = pytest.mark.page


def read(node: Node, reading: Callable[[Any], Any]) -> Any:
    """What a client reads in the space."""

    async def run() -> Any:
        async with shoal.connect(node.url) as store:
            return await reading(store.space(filling.SPACE))

    return apart(run())


def until(page: Any, expression: str) -> None:
    """Wait until this is true in the page, whose policy evaluates no text: the debugger may."""
    for _ in range(150):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never true: {expression}")


def waiting(node: Node, name: str) -> None:
    """A thread of the test's own, that waits for a person."""

    async def run() -> None:
        async with shoal.connect(node.url) as store:
            thread = store.space(filling.SPACE).thread(name, author="agent")
            await thread.save({"draft": "You owe 120.", "messages": [{"role": "user", "content": "how much?"}]})
            await thread.save({"draft": "You owe 130.", "messages": [{"role": "user", "content": "how much?"}]})
            await thread.request_approval("please read the draft", by="agent")

    apart(run())


def open_step(node: Node, name: str) -> None:
    """A thread of the test's own, with a step that nobody ended."""

    async def run() -> None:
        async def dies() -> None:
            raise asyncio.CancelledError

        async with shoal.connect(node.url) as store:
            thread = store.space(filling.SPACE).thread(name)
            await thread.save({"at": 1})
            try:
                await thread.step("charge", key="charge-1", call=dies)
            except asyncio.CancelledError:
                return

    apart(run())


def confirm(page: Any, label: str, within: str = "main") -> None:
    """Press a button, and then the one that carries it out."""
    page.locator(within).get_by_role("button", name=label, exact=True).first.click()
    page.locator(".confirm").get_by_role("button", name=label, exact=True).click()


async def standing(space: Any, name: str) -> Any:
    return await space.thread(name).status()


# ── now ───────────────────────────────────────────────────────────────────────


def test_the_first_sentence_counts_what_waits_and_is_stuck(node: Node, show: Show) -> None:
    page = show(node, "#/crew/now")
    page.get_by_text("ticket-7").first.wait_for()
    assert re.search(
        r"\d+ agents? waits? for a person, \d+ (is|are) stuck, \d+ are well\.", page.locator("h1.sentence").inner_text()
    )
    assert page.get_by_text("refund of 120?").first.is_visible()
    assert page.get_by_text("the file ends in the middle of row 1,201").first.is_visible()


def test_an_approval_is_decided_in_place(node: Node, show: Show) -> None:
    waiting(node, "asks-1")
    page = show(node, "#/crew/now")
    ask = page.locator("article.ask", has_text="asks-1")
    ask.get_by_role("button", name="Approve", exact=True).click()
    ask.locator(".confirm").get_by_role("button", name="Approve", exact=True).click()
    ask.wait_for(state="detached")
    assert read(node, lambda space: standing(space, "asks-1")).status == "running"


def test_a_rejection_has_its_reason_and_author(node: Node, show: Show) -> None:
    waiting(node, "asks-2")
    page = show(node, "#/crew/now")
    page.get_by_placeholder("your name").fill("ana")
    ask = page.locator("article.ask", has_text="asks-2")
    ask.get_by_role("button", name="Reject", exact=True).click()
    ask.get_by_label("Reason").fill("not the right customer")
    ask.locator(".confirm").get_by_role("button", name="Reject", exact=True).click()
    page.locator("article.ask", has_text="not the right customer").wait_for()
    found = read(node, lambda space: standing(space, "asks-2"))
    assert (found.status, found.by, found.reason) == ("failed", "ana", "not the right customer")


def test_a_decision_that_came_late_is_told(node: Node, show: Show) -> None:
    waiting(node, "asks-late")
    page = show(node, "#/crew/now")
    ask = page.locator("article.ask", has_text="asks-late")
    ask.get_by_role("button", name="Reject", exact=True).click()

    def overtake(route: Any) -> None:
        read(node, lambda space: space.thread("asks-late").approve(by="ana"))
        route.continue_()

    page.route("**/threads/asks-late/status", overtake, times=1)
    ask.locator(".confirm").get_by_role("button", name="Reject", exact=True).click()
    ask.wait_for(state="detached")
    told = page.locator("section", has=page.locator("h2", has_text="asks-late")).locator(".refusal")
    told.get_by_text("ana has decided meanwhile: it is running").wait_for(timeout=3_000)
    page.get_by_role("button", name="OK", exact=True).click()
    told.wait_for(state="detached")


@pytest.mark.parametrize("where", ["now", "threads"])
def test_a_form_that_somebody_else_closes_says_so(node: Node, show: Show, where: str) -> None:
    name = f"asks-open-{where}"
    waiting(node, name)
    page = show(node, "#/crew/now" if where == "now" else f"#/crew/threads/{name}")
    place = page.locator("article.ask" if where == "now" else ".thread-head", has_text=name)
    place.get_by_role("button", name="Reject", exact=True).click()
    place.get_by_label("Reason").fill("typed for the first")
    read(node, lambda space: space.thread(name).approve(by="ana"))
    told = page.get_by_label("Decided meanwhile")
    told.get_by_text("ana has decided meanwhile: it is running").wait_for()
    told.get_by_text("Your reason was not written: typed for the first").wait_for()
    told.get_by_role("button", name="OK", exact=True).click()
    told.wait_for(state="detached")
    read(node, lambda space: space.thread(name).request_approval("and this?", by="agent"))  # It begins with no reason.
    place.get_by_role("button", name="Reject", exact=True).click()
    assert place.get_by_label("Reason").input_value() == ""
    read(node, lambda space: space.thread(name).approve(by="ana"))


def test_a_decision_of_ones_own_is_not_told_as_anothers(node: Node, show: Show) -> None:
    waiting(node, "asks-own")
    page = show(node, "#/crew/now")
    ask = page.locator("article.ask", has_text="asks-own")
    ask.get_by_role("button", name="Approve", exact=True).click()
    ask.locator(".confirm").get_by_role("button", name="Approve", exact=True).click()
    ask.wait_for(state="detached")
    page.wait_for_timeout(500)
    assert page.get_by_label("Decided meanwhile").count() == 0


def test_a_state_is_edited_and_then_approved(node: Node, show: Show) -> None:
    waiting(node, "asks-3")
    page = show(node, "#/crew/now")
    ask = page.locator("article.ask", has_text="asks-3")
    ask.get_by_role("button", name="Edit first").click()
    field = ask.get_by_label("State, as JSON")
    field.wait_for()
    until(page, "document.querySelector('article.ask textarea').value.includes('130')")
    field.fill(field.input_value().replace("130", "12"))
    page.reload()  # What was typed stays.
    ask.get_by_role("button", name="Edit first").click()
    until(page, "document.querySelector('article.ask textarea').value.includes('You owe 12.')")
    ask.get_by_role("button", name="Save and approve").click()
    ask.wait_for(state="detached")

    async def state(space: Any) -> Any:
        thread = space.thread("asks-3")
        return (await thread.load()).state["draft"], (await thread.status()).status

    assert read(node, state) == ("You owe 12.", "running")


# ── threads ───────────────────────────────────────────────────────────────────


def test_filters_stand_in_the_address(node: Node, show: Show) -> None:
    page = show(node, "#/crew/threads")
    page.get_by_label("Tag").fill("shard-1")
    until(page, "location.hash.includes('tag=shard-1')")
    page.locator("h1.sentence", has_text="13 threads").wait_for()
    page.reload()
    page.locator("h1.sentence", has_text="13 threads").wait_for()


def test_keys_move_choose_and_go_back(node: Node, show: Show) -> None:
    page = show(node, "#/crew/threads?text=worker-0")
    page.get_by_text("worker-00").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    until(page, "location.hash.includes('threads/worker-01')")
    page.locator(".pane.chosen").get_by_role("button", name="Pause").wait_for()
    page.keyboard.press("Enter")
    until(page, "document.activeElement.closest('.pane.chosen') !== null")
    page.keyboard.press("Escape")
    until(page, "!location.hash.includes('worker-01')")
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("go to Threads").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("n")
    until(page, "location.hash.includes('/now')")


def test_a_text_is_found_inside_states(node: Node, show: Show) -> None:
    page = show(node, "#/crew/now")
    page.keyboard.press("/")
    page.keyboard.type("charged twice\n")
    hit = page.get_by_role("region", name="Found inside").get_by_role("link").filter(has_text="/messages/1/content").first
    hit.click()
    page.locator(".pane.chosen .tree").get_by_text("I was charged twice").first.wait_for()


# ── one thread ────────────────────────────────────────────────────────────────


def test_a_checkpoint_shows_what_it_changed_first(node: Node, show: Show) -> None:
    page = show(node, "#/crew/threads/ticket-7")
    page.locator(".axis li.checkpoint", has_text="+draft").filter(has_text="main").click()
    page.locator(".diff").get_by_text("stage").wait_for()
    page.get_by_role("tab", name="Messages").click()
    page.locator(".messages").get_by_text("I was charged twice").wait_for()
    page.locator(".call summary", has_text="find_invoices").click()
    page.locator(".call").get_by_text("c-881", exact=True).wait_for()
    page.get_by_role("tab", name="State").click()
    page.locator(".tree").get_by_text("invoices", exact=True).wait_for()


def test_branches_are_lanes(node: Node, show: Show) -> None:
    page = show(node, "#/crew/threads/ticket-7")
    page.locator(".lanes").wait_for()
    assert page.locator(".branch").all_inner_texts() == ["main", "bolder"]
    assert len(set(page.locator(".lanes circle").evaluate_all("dots => dots.map((dot) => dot.getAttribute('cx'))"))) == 2


def test_all_branches_that_end_at_a_checkpoint_are_told(node: Node, show: Show) -> None:
    async def fork(space: Any) -> None:
        thread = space.thread("forks-1")
        saved = await thread.save({"n": 1})
        for number in range(5):
            await thread.branch(f"try-{number}", at=saved.id)

    read(node, fork)
    page = show(node, "#/crew/threads/forks-1")
    row = page.locator(".axis li.checkpoint")
    row.locator(".tag").first.wait_for()
    assert row.locator(".tag").all_inner_texts() == ["main", "try-0"]
    assert "and 4 more branches" in row.inner_text()


def test_a_fork_takes_an_edit_along(node: Node, show: Show) -> None:
    waiting(node, "forked-1")
    page = show(node, "#/crew/threads/forked-1")
    page.locator(".axis li.checkpoint").nth(1).click()
    page.get_by_role("button", name="Fork here").click()
    page.get_by_label("Name of the new branch").fill("kinder")
    until(page, "document.querySelector('.editing textarea').value.includes('120')")
    field = page.get_by_label("State, as JSON")
    field.fill(field.input_value().replace("You owe 120.", "You owe nothing."))
    page.get_by_role("button", name="Fork", exact=True).click()
    page.locator(".branch", has_text="kinder").wait_for()

    async def draft(space: Any) -> Any:
        return (await space.thread("forked-1").load(branch="kinder")).state["draft"]

    assert read(node, draft) == "You owe nothing."


def test_a_branch_is_rolled_back_and_labelled(node: Node, show: Show) -> None:
    waiting(node, "rolled-1")
    page = show(node, "#/crew/threads/rolled-1")
    page.locator(".axis li.checkpoint").nth(1).click()
    confirm(page, "Roll back to here", ".pane.chosen")
    page.locator(".pane.chosen", has_text="its head").wait_for()
    page.locator(".pane.chosen").get_by_role("button", name="Label", exact=True).click()
    page.get_by_label("Label", exact=True).last.fill("agreed")
    page.locator(".confirm").get_by_role("button", name="Label", exact=True).click()
    page.locator(".axis li .tag", has_text="agreed").wait_for()

    async def found(space: Any) -> Any:
        return (await space.thread("rolled-1").load(label="agreed")).state["draft"]

    assert read(node, found) == "You owe 120."


def test_labels_stand_at_every_checkpoint(node: Node, show: Show) -> None:
    async def label(space: Any) -> None:
        thread = space.thread("labelled-1")
        await thread.save({"n": 1}, label="first")
        await thread.save({"n": 2}, label="second")
        await thread.save({"n": 3})

    read(node, label)
    page = show(node, "#/crew/threads/labelled-1")
    rows = page.locator(".axis li.checkpoint .tag")
    rows.nth(2).wait_for()
    assert rows.all_inner_texts() == ["main", "second", "first"]
    page.locator(".branches").get_by_role("link", name="first").click()
    confirm(page, "Remove the label", ".pane.chosen")
    page.locator(".axis li.checkpoint .tag", has_text="first").wait_for(state="detached")
    page.get_by_role("heading", name="Checkpoint").wait_for()


def test_a_prune_is_seen_before_it_is_done(node: Node, show: Show) -> None:
    page = show(node, "#/crew/threads/worker-30")

    async def grow(space: Any) -> None:
        thread = space.thread("worker-30")
        await thread.load()
        for number in range(9):
            await thread.save({"n": number})

    read(node, grow)
    page.get_by_role("button", name="Prune", exact=True).click()
    page.get_by_label("Keep the newest").fill("3")
    page.get_by_role("button", name="See what would go").click()
    page.get_by_text("7 checkpoints go").wait_for()
    page.locator(".confirm").get_by_role("button", name="Prune", exact=True).click()
    page.get_by_text("Pruned.").wait_for()


def test_an_open_step_is_settled(node: Node, show: Show) -> None:
    open_step(node, "charged-1")
    page = show(node, "#/crew/threads/charged-1")
    page.get_by_role("link", name="Settle it").click()
    page.get_by_role("button", name="It happened").click()
    page.get_by_label("Result, as JSON").fill('{"receipt": 8}')
    page.locator(".confirm").get_by_role("button", name="It happened").click()
    page.locator(".pane.chosen .sentence", has_text="done").wait_for()

    async def result(space: Any) -> Any:
        return [step.result async for step in space.thread("charged-1").steps()]

    assert read(node, result) == [{"receipt": 8}]


def test_a_refusal_has_its_three_parts(node: Node, show: Show) -> None:
    open_step(node, "charged-2")
    page = show(node, "#/crew/threads/charged-2/step/charge-1")
    page.get_by_role("button", name="It happened").wait_for()

    problem = {
        "code": "step-settled",
        "detail": "The step is settled already. Nothing was written. Look at its result.",
        "written": "no",
        "retryable": False,
        "status": 409,
    }
    page.route("**/resolve*", lambda route: route.fulfill(status=409, json=problem))
    page.get_by_role("button", name="Give it up").click()
    page.locator(".confirm").get_by_role("button", name="Give it up").click()
    told = page.locator(".refusal").inner_text()
    assert "The step is settled already." in told
    assert "Nothing was written." in told
    assert "Look at its result." in told


# ── what is hostile ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [filling.MARKUP, filling.BIDI, "a/b?c#d%2Fe", "x" * 300])
def test_a_hostile_thread_is_shown_as_text(node: Node, show: Show, name: str) -> None:
    page = show(node, f"#/crew/threads/{quote(name, safe='')}")
    page.locator(".axis li.checkpoint").first.click()
    for tab in ("Changes", "Messages", "State", "About"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(50)
    assert "struck" not in page.title().replace(name, "")
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("document.body.scrollWidth <= innerWidth")


def test_a_long_text_shows_its_beginning(node: Node, show: Show) -> None:
    page = show(node, f"#/crew/threads/{quote(filling.MARKUP, safe='')}")
    page.locator(".axis li.checkpoint").first.click()
    page.get_by_role("tab", name="State").click()
    page.get_by_role("button", name=re.compile("more characters")).first.wait_for()
    assert page.evaluate("document.body.textContent.length") < 100_000


# ── a node that dies ──────────────────────────────────────────────────────────


def test_a_page_goes_on_with_another_node(cluster: list[Node], show: Show) -> None:
    page = show(cluster[0], "#/crew/now")
    ask = page.locator("article.ask", has_text="ticket-7")
    ask.get_by_role("button", name="Reject", exact=True).click()
    ask.get_by_label("Reason").fill("typed before the node died")
    until(page, "document.querySelector('.node').textContent.includes('3 nodes')")
    cluster[0].kill()
    page.locator(".banner", has_text="The page goes on with").wait_for(timeout=30_000)
    assert ask.get_by_label("Reason").input_value() == "typed before the node died"
    ask.locator(".confirm").get_by_role("button", name="Reject", exact=True).click()
    page.locator("article.ask", has_text="typed before the node died").wait_for(timeout=30_000)
    assert read(cluster[1], lambda space: standing(space, "ticket-7")).reason == "typed before the node died"


# ── with tokens ───────────────────────────────────────────────────────────────


def test_one_signs_in_and_may_do_what_the_token_allows(tmp_path: Path, show: Show) -> None:
    tokens = tmp_path / "tokens"

    def shoal_command(*arguments: str) -> str:
        command = [sys.executable, "-m", "shoal", "token", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    shoal_command("init", str(tokens))
    writer, reader = (
        shoal_command("create", str(tokens), name, "--allow", f"crew:{may}")
        for name, may in (("ana", "admin"), ("ben", "read"))
    )
    writer, reader = (text.split()[-1] for text in (writer, reader))
    with nodes(tmp_path, 1, f"--token-keys={tokens / 'keys.json'}") as (made,):

        async def ask() -> None:
            async with shoal.connect(made.url, token=writer) as store:
                thread = store.space(filling.SPACE).thread("asks", author="ana")
                await thread.save({"draft": "You owe 120."})
                await thread.request_approval("please read", by="ana")

        apart(ask())
        page = show(made, "#/crew/now")
        page.get_by_label("Token").fill("not.a.token")
        page.get_by_role("button", name="Sign in").click()
        page.locator(".refusal").wait_for()
        page.get_by_label("Token").fill(reader)
        page.get_by_role("button", name="Sign in").click()
        ask_row = page.locator("article.ask", has_text="please read")
        ask_row.get_by_role("button", name="Approve", exact=True).click()
        ask_row.locator(".confirm").get_by_role("button", name="Approve", exact=True).click()
        ask_row.locator(".refusal", has_text="Nothing was written.").wait_for()
        page.reload()  # The cookie, which no script reads, is still there.
        ask_row.wait_for()
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="sign out").click()
        page.get_by_label("Token").wait_for()


# ── for everybody ─────────────────────────────────────────────────────────────


def test_nothing_moves_for_those_who_ask_for_that(node: Node, show: Show) -> None:
    page = show(node, "#/crew/now")
    moving = "[...document.querySelectorAll('*')].filter((each) => getComputedStyle(each).transitionDuration !== '0s').length"
    assert page.evaluate(moving) > 0
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == 0


def test_lists_of_one_view_ask_once_for_the_spaces(node: Node, show: Show) -> None:
    page = show(node, "#/crew/cluster")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{node.url}/#/*/now")
    page.locator(".tbody .tr").first.wait_for()
    page.wait_for_timeout(500)
    # The three lists of the view ask once, and so may the stream of changes and the choice at the top.
    assert 0 < sum(url.endswith("/v1/spaces?limit=500") for url in asked) <= 3


def test_no_file_of_the_page_is_long() -> None:
    files = [path for path in Path("shoal/page").rglob("*.js") if "vendor" not in path.parts]
    assert [str(path) for path in files if len(path.read_text().splitlines()) > 500] == []


def test_now_tells_what_each_did_last_and_counts_agents_alone(node: Node, show: Show) -> None:
    async def work(space: Any) -> None:
        await space.thread("reader").save({"n": 1}, metadata={"module": "json/decoder.py"})
        await space.thread("counter").save({"n": 1})
        await space.thread("counter").update({"n": 2})
        await space.worklist("pages").add({"a.html": 1})
        await space.put_file("guide.txt", b"hello")

    async def run() -> None:
        async with shoal.connect(node.url) as store:
            await work(store.space("lines"))

    apart(run())
    page = show(node, "#/lines/now")
    page.locator(".sentence", has_text="2 agents are well.").wait_for()
    table = page.get_by_label("Recent threads")
    table.get_by_text("module json/decoder.py").wait_for()
    table.get_by_text("changed n").wait_for()
    assert table.get_by_text(".files").count() == 0


def test_threads_of_all_spaces_stay_all_when_one_is_chosen(node: Node, show: Show) -> None:
    page = show(node, "#/*/threads")
    page.get_by_label("Threads", exact=True).get_by_text("planner").first.click()
    page.locator(".pane.chosen h2", has_text="planner").wait_for()
    assert page.url.endswith("#/*/threads/crew/planner")
    page.keyboard.press("j")
    page.locator(".pane.chosen h2:not(:has-text('planner'))").wait_for()
    assert "#/*/threads/" in page.url  # Whichever space the next row is of.
    page.keyboard.press("Escape")
    page.locator(".pane.chosen").wait_for(state="detached")
    assert page.url.endswith("#/*/threads")
