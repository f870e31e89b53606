"""What a hostile colleague writes, and what an unlucky one meets: faults within an edit, old drafts, wrong clocks, proxies."""

from __future__ import annotations

import shlex
import time
from typing import Any
from urllib.parse import quote

import pytest

import shoal
from tests.page.conftest import Node, Show, apart
from tests.page.proxy import Ways, front

pytestmark = pytest.mark.page

SPACE = "attacked"
EVIL = 'x\'; touch "$(id)" `id` #'


def write(node: Any, work: Any) -> Any:
    """Do something in the space."""

    async def done() -> Any:
        async with shoal.connect(node.url) as store:
            return await work(store.space(SPACE))

    return apart(done())


def confirm(page: Any, label: str) -> None:
    page.get_by_role("button", name=label, exact=True).first.click()
    page.locator(".confirm").get_by_role("button", name=label, exact=True).click()


# ── what is shown ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["register", "set", "map", "list", "items"])
def test_a_command_holds_a_hostile_name_as_one_word(node: Node, show: Show, kind: str) -> None:
    page = show(node, f"#/{quote(EVIL, safe='')}/shared/{kind}/{quote(EVIL, safe='')}")
    page.locator(".pane.chosen .empty code").wait_for()
    words = shlex.split(page.locator(".pane.chosen .empty code").inner_text())
    assert words.count(EVIL) == 2


def test_secret_fields_stay_hidden_without_tokens(node: Node, show: Show) -> None:
    async def save(space: Any) -> str:
        schema = shoal.Schema("case", model={"type": "object"}, secret={"pin"})
        thread = space.thread("secrets", schema=schema)
        await thread.save({"pin": "tell-nobody", "sum": 1})
        await thread.save({"pin": "tell-nobody-more", "sum": 1})
        return str((await thread.save({"pin": "tell-nobody-at-all", "sum": 2})).id)

    at = write(node, save)
    page = show(node, f"#/{SPACE}/threads/secrets/at/{at}?show=state")
    chosen = page.locator(".pane.chosen")
    chosen.get_by_text("«secret»").first.wait_for()
    for tab in ("Changes", "State", "About"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(100)
        assert "tell-nobody" not in page.content()
    page.get_by_role("button", name="Fork here").click()
    field = page.get_by_label("State, as JSON")
    field.wait_for()
    page.wait_for_function("document.querySelector('.editing textarea').value !== ''")
    assert "tell-nobody" not in field.input_value()
    field.fill(field.input_value().replace('"sum": 2', '"sum": 3'))
    page.get_by_label("Name of the new branch").fill("other")
    page.get_by_role("button", name="Fork", exact=True).click()
    page.locator(".editing").wait_for(state="detached")
    found = write(node, lambda space: space.thread("secrets").load(branch="other"))
    assert found.state == {"pin": "tell-nobody-at-all", "sum": 3}
    page.goto(f"{node.url}/#/{SPACE}/threads/secrets/at/{at}?show=state")
    page.get_by_role("button", name="Show secret fields").click()
    chosen.get_by_text("tell-nobody-at-all").first.wait_for()


def test_a_browser_whose_clock_is_wrong_calls_nothing_stuck(node: Node, show: Show) -> None:
    async def begin(space: Any) -> None:
        thread = space.thread("clocked")
        await thread.save({"n": 1})
        await thread.pause("look", by="ana")

    write(node, begin)
    page = show(node, f"#/{SPACE}/threads")
    page.add_init_script("{ const right = Date.now; Date.now = () => right() + 86_400_000 }")
    page.reload()
    row = page.locator(".tbody [role=row]", has_text="clocked")
    row.wait_for()
    page.wait_for_timeout(1500)
    assert row.locator("time").inner_text().split()[-1] in ("now", "s", "min")


def test_long_lists_are_compared_at_once(node: Node, show: Show) -> None:
    page = show(node, f"#/{SPACE}/now")
    lines = page.evaluate(
        """async () => {
          const { changes } = await import('./ui/kit/diff.js')
          const all = Array.from({ length: 40_200 }, (_, n) => ({ role: 'user', content: `turn ${n}` }))
          const after = [...all.slice(100, 20_000), { role: 'user', content: 'new' }, ...all.slice(20_001)]
          const lines = changes({ messages: all.slice(0, 40_000) }, { messages: after })
          return lines.map(({ kind, path }) => [kind, path.join('/')])
        }"""
    )
    kinds = {kind for kind, _ in lines}
    assert {"removed", "added"} <= kinds
    assert ["added", "messages/19900"] in lines or ["changed", "messages/19900"] in lines
    assert len(lines) <= 302


# ── what is typed ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("9007199254740993", 9007199254740993),
        (
            '{"a": [-123456789012345678901234567890, 1.5, "9007199254740993"]}',
            {"a": [-(123456789012345678901234567890), 1.5, "9007199254740993"]},
        ),
    ],
)
def test_a_typed_number_is_written_exactly(node: Node, show: Show, typed: str, value: Any) -> None:
    name = f"number-{len(typed)}"
    page = show(node, f"#/{SPACE}/shared/register/{name}")
    page.get_by_label("Value (JSON, or plain text)").fill(typed)
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_text("Done.").wait_for()
    assert write(node, lambda space: space.register(name).get()) == value


def test_an_edit_writes_typed_numbers_exactly(node: Node, show: Show) -> None:
    write(node, lambda space: space.thread("exact").save({"n": 1, "big": 9007199254740995}))
    page = show(node, f"#/{SPACE}/threads/exact")
    page.get_by_role("button", name="Edit", exact=True).click()
    field = page.get_by_label("State, as JSON")
    page.wait_for_function("document.querySelector('.editing textarea').value !== ''")
    field.fill(field.input_value().replace('"n": 1', '"n": 9007199254740993'))
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator(".editing").wait_for(state="detached")
    found = write(node, lambda space: space.thread("exact").load())
    assert found.state == {"n": 9007199254740993, "big": 9007199254740995}


def test_an_old_draft_undoes_nothing_of_others(node: Node, show: Show) -> None:
    write(node, lambda space: space.thread("drafted").save({"mine": 1, "theirs": 1}))
    page = show(node, f"#/{SPACE}/threads/drafted")
    page.get_by_role("button", name="Edit", exact=True).click()
    field = page.get_by_label("State, as JSON")
    page.wait_for_function("document.querySelector('.editing textarea').value !== ''")
    field.fill(field.input_value().replace('"mine": 1', '"mine": 2'))
    write(node, lambda space: _update(space, "drafted", theirs=5, more=[1]))
    page.reload()
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator(".editing").wait_for(state="detached")
    found = write(node, lambda space: space.thread("drafted").load())
    assert found.state == {"mine": 2, "theirs": 5, "more": [1]}


async def _update(space: Any, name: str, **channels: Any) -> None:
    thread = space.thread(name)
    await thread.load()
    await thread.update(channels)


def test_text_typed_during_a_write_stays(node: Node, show: Show) -> None:
    page = show(node, f"#/{SPACE}/shared/set/typed")

    def late(route: Any) -> None:
        page.wait_for_timeout(1200)
        route.continue_()

    page.route("**/sets/typed**", lambda route: late(route) if route.request.method != "GET" else route.continue_())
    field = page.get_by_label("Value (JSON, or plain text)")
    field.fill("one")
    page.get_by_role("button", name="Add", exact=True).click()
    field.fill("one, and another")
    page.get_by_text("Done.").wait_for()
    assert field.input_value() == "one, and another"


def test_a_fork_whose_edit_was_refused_is_tried_again(node: Node, show: Show) -> None:
    at = write(node, lambda space: _saved(space, "forked"))
    page = show(node, f"#/{SPACE}/threads/forked/at/{at}")
    page.get_by_role("button", name="Fork here").click()
    field = page.get_by_label("State, as JSON")
    page.wait_for_function("document.querySelector('.editing textarea').value !== ''")
    field.fill(field.input_value().replace('"n": 1', '"n": 2'))
    page.get_by_label("Name of the new branch").fill("second")
    refusal = '{"error": {"code": "storage-full", "message": "The disk is full. Nothing was written.", "written": "no"}}'
    page.route(
        "**/threads/forked**",
        lambda route: (
            route.fulfill(status=409, body=refusal, content_type="application/json") if _edits(route) else route.continue_()
        ),
    )
    page.get_by_role("button", name="Fork", exact=True).click()
    page.locator(".editing .refusal").wait_for()
    page.unroute_all()
    page.reload()
    page.get_by_role("button", name="Fork here").click()
    page.get_by_role("button", name="Fork", exact=True).click()
    page.locator(".editing").wait_for(state="detached")
    assert write(node, lambda space: space.thread("forked").load(branch="second")).state == {"n": 2}


async def _saved(space: Any, name: str) -> str:
    return str((await space.thread(name).save({"n": 1})).id)


def _edits(route: Any) -> bool:
    return str(route.request.url).split("?")[0].endswith("/edit")


# ── what is decided ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["now", "threads/asked"])
def test_a_confirmation_is_of_the_question_that_was_read(node: Node, show: Show, where: str) -> None:
    name = "asked"

    async def ask(space: Any, what: str) -> None:
        thread = space.thread(name)
        await thread.request_approval(what, by="agent")

    async def again(space: Any) -> None:
        await space.thread(name).approve(by="ben")
        await ask(space, "pay 100000?")

    write(node, lambda space: ask(space, "pay 1?"))
    page = show(node, f"#/{SPACE}/{where}")
    place = page.locator("article.ask", has_text=name) if where == "now" else page.locator(".thread-head").first
    place.get_by_text("pay 1?").wait_for()
    place.get_by_role("button", name="Approve", exact=True).click()
    place.locator(".confirm").wait_for()
    write(node, again)
    place.get_by_text("pay 100000?").first.wait_for()
    page.wait_for_timeout(300)
    assert place.locator(".confirm").count() == 0
    confirm(page, "Approve") if where == "now" else None
    write(node, lambda space: space.thread(name).approve(by="ben"))


def test_of_two_who_decide_the_second_is_told(node: Node, show: Show) -> None:
    write(node, lambda space: space.thread("twice").request_approval("both?", by="agent"))
    page = show(node, f"#/{SPACE}/now")
    place = page.locator("article.ask", has_text="twice")
    place.get_by_role("button", name="Reject", exact=True).click()
    # The page hears of nothing: only its own act arrives.
    page.route("**/v1/**", lambda route: route.continue_() if "/status" in route.request.url else route.abort())
    write(node, lambda space: space.thread("twice").approve(by="ben"))
    place.locator(".confirm").get_by_role("button", name="Reject", exact=True).click()
    page.locator(".refusal", has_text="ben has decided meanwhile").wait_for()
    assert write(node, lambda space: space.thread("twice").status()).status == "running"


def test_a_decision_within_the_same_moment_is_not_overwritten(node: Node, show: Show) -> None:
    """The other decides after the page looked, and before its own decision arrives."""
    write(node, lambda space: space.thread("moment").request_approval("both?", by="agent"))
    page = show(node, f"#/{SPACE}/now")
    place = page.locator("article.ask", has_text="moment")

    def before(route: Any) -> None:
        if route.request.method == "PUT":
            write(node, lambda space: space.thread("moment").approve(by="ben"))
        route.continue_() if "/status" in route.request.url else route.abort()

    place.get_by_role("button", name="Reject", exact=True).click()
    page.route("**/v1/**", before)
    place.locator(".confirm").get_by_role("button", name="Reject", exact=True).click()
    page.locator(".refusal", has_text="set meanwhile by ben: it is running").wait_for()
    assert write(node, lambda space: space.thread("moment").status()).status == "running"


# ── what stands between ───────────────────────────────────────────────────────


def test_a_proxy_may_serve_the_page_below_a_path(node: Node, show: Show) -> None:
    write(node, lambda space: space.thread("proxied").save({"n": 1}))
    with front(node.url, Ways(prefix="/tools/shoal")) as far:
        page = show(far, f"#/{SPACE}/threads")
        page.locator(".tbody [role=row]", has_text="proxied").wait_for()
        page.goto(f"{far.url}/#/{SPACE}/shared/set/below")
        page.get_by_label("Value (JSON, or plain text)").fill("one")
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_text("Done.").wait_for()
        assert page.locator(".banner").count() == 0
        page.close()


def test_behind_a_proxy_that_buffers_the_page_stays_fresh(node: Node, show: Show) -> None:
    write(node, lambda space: space.thread("held").save({"n": 1}))
    with front(node.url, Ways(buffers=True)) as far:
        page = show(far, f"#/{SPACE}/threads")
        page.locator(".tbody [role=row]", has_text="held").wait_for()
        page.mouse.move(0, 0)
        page.wait_for_timeout(1000)
        write(node, lambda space: space.thread("held").pause("wait for me", by="ana"))
        page.locator(".tbody [role=row]", has_text="wait for me").wait_for(timeout=15_000)
        page.close()


def test_streams_that_are_cut_leave_the_page_live(node: Node, show: Show) -> None:
    write(node, lambda space: space.thread("cut").save({"n": 1}))
    with front(node.url, Ways(cuts_s=1.0, sockets=False)) as far:
        page = show(far, f"#/{SPACE}/threads")
        page.locator(".tbody [role=row]", has_text="cut").wait_for()
        page.mouse.move(0, 0)
        time.sleep(3)
        write(node, lambda space: space.thread("cut").pause("after the cuts", by="ana"))
        page.locator(".tbody [role=row]", has_text="after the cuts").wait_for()
        assert page.locator(".banner").count() == 0
        page.close()
