"""The views of the cluster's disks and of files, in a browser; and of more spaces than one view shows."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from tests.page.conftest import Node, Show, apart, nodes

pytestmark = pytest.mark.page

TEAMS = 27


def picture(width: int, height: int) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\x20\x80\xf0" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with more spaces than are shown at once, and files."""

    async def fill(url: str) -> None:
        async with shoal.connect(url) as store:
            for number in range(TEAMS):
                await store.space(f"team-{number:02}").thread("a-1").save({"text": "x" * 1000 * number})
            space = store.space("the-largest-of-all-spaces")
            for number in range(60):
                await space.thread(f"ticket-{number}").save({"text": "x" * 4000})
            thread = space.thread("ticket-1")
            await thread.put_file("notes.txt", "größe <b>bold</b>\n".encode() * 3)
            await thread.put_file("chart.png", picture(40, 20))
            await thread.put_file("broken.png", b"\x89PNG no picture")
            await thread.put_file("page.html", b"<script>document.title = 'struck'</script>")
            await space.retention.set(prefix="ticket-", keep_last=50)
            await space.set_quota(bytes=10 * 2**20)

    with nodes(tmp_path_factory.mktemp("teams"), 1) as (made,):
        apart(fill(made.url))
        yield made


def test_growth_is_told_by_space_and_within_one(teams: Node, show: Show, violations: Callable[[Any], list[str]]) -> None:
    page = show(teams, "#/*/cluster")
    held = page.get_by_role("region", name="Spaces by size")
    held.locator("tbody tr").first.wait_for()
    assert "the-largest-of-all-spaces" in held.locator("tbody tr").first.inner_text()
    assert page.get_by_text("smaller spaces are not shown").is_visible()
    assert page.get_by_role("region", name="Backup").get_by_text("shoal backup init").is_visible()
    held.get_by_role("link", name="the-largest-of-all-spaces").click()
    within = page.get_by_role("article", name="space the-largest-of-all-spaces on disk")
    within.get_by_text("It holds").wait_for()
    assert "ticket-" in within.get_by_role("region", name="names that begin with").inner_text()
    assert within.get_by_text("of 10 MiB").is_visible()
    assert within.get_by_text("the last 50 checkpoints of a branch stay").is_visible()
    assert violations(page) == []
    within.get_by_role("region", name="largest objects").get_by_role("link").first.click()
    page.get_by_role("heading", name="ticket-").first.wait_for()


def test_files_are_listed_saved_and_shown(
    teams: Node, show: Show, tmp_path: Path, violations: Callable[[Any], list[str]]
) -> None:
    page = show(teams, "#/the-largest-of-all-spaces/threads/ticket-1")
    page.get_by_text("4 files").wait_for()
    page.get_by_role("link", name="notes.txt").click()
    text = page.locator("pre.text")
    text.wait_for()
    assert text.inner_text().startswith("größe <b>bold</b>")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save", exact=True).click()
    saved.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == "größe <b>bold</b>\n".encode() * 3
    page.get_by_role("link", name="chart.png").click()
    page.get_by_role("img", name="chart.png, 40 × 20").wait_for()
    assert (
        page.evaluate("[...document.querySelector('canvas').getContext('2d').getImageData(5, 5, 1, 1).data].join()")
        == "32,128,240,255"
    )
    assert violations(page) == []
    page.get_by_role("link", name="broken.png").click()
    page.get_by_text("It is no picture that this browser can read.").wait_for()
    page.get_by_role("link", name="page.html").click()
    page.locator("pre.text").get_by_text("<script>").wait_for()
    assert "struck" not in page.title()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator(".confirm").get_by_role("button", name="Delete", exact=True).click()
    page.get_by_text("3 files").wait_for()


def test_the_spaces_that_are_used_most_are_shown(teams: Node, show: Show) -> None:
    page = show(teams, "#/*/threads")
    page.get_by_text("8 spaces are not shown").wait_for()
    page.get_by_role("row").filter(has_text="the-largest-of-all-spaces").first.wait_for()


def test_a_view_of_thousands_of_branches_stays_small(teams: Node, show: Show) -> None:
    async def fork() -> None:
        async with shoal.connect(teams.url) as store:
            thread = store.space("team-00").thread("forked")
            first = await thread.save({"n": 0})
            for start in range(0, 1500, 50):
                await asyncio.gather(*(thread.branch(f"try-{number:04}", at=first.id) for number in range(start, start + 50)))
            await thread.save({"n": 1})

    apart(fork())
    page = show(teams)
    sizes: list[int] = []
    page.on(
        "response",
        lambda answer: sizes.append(int(answer.headers.get("content-length", "0"))) if "/v1/" in answer.url else None,
    )
    page.goto(f"{teams.url}/#/team-00/threads/forked")
    page.get_by_text("Only branches with checkpoints below are shown.").wait_for()
    page.wait_for_timeout(500)
    assert page.locator(".tag", has_text="main").first.is_visible()
    assert sum(sizes) < 100_000


def test_an_event_has_an_address_beyond_the_first_page(teams: Node, show: Show) -> None:
    async def write() -> Any:
        async with shoal.connect(teams.url) as store:
            thread = store.space("team-00").thread("long")
            await thread.save({"n": 0})
            await thread.journal.append({"said": "the first of all"})
            for number in range(260):
                await thread.journal.append({"n": number})
            events = [event async for event in thread.journal.read(limit=1)]
            return events[0]

    event = apart(write())
    page = show(teams)
    page.goto(f"{teams.url}/#/team-00/threads/long/event/{event.id}?ms={int(event.time.timestamp() * 1000)}")
    page.get_by_text("the first of all").wait_for()


def test_a_view_that_is_left_leaves_no_node(show: Show, cluster: list[Node]) -> None:
    """Its streams end with it; the node that sent them has not failed."""
    page = show(cluster[0], "#/crew/now")
    for view in ("Compare", "Now", "Cluster", "Now"):
        page.locator("nav").get_by_text(view, exact=True).click()
        page.wait_for_timeout(1500)  # Streams end half a second later.
    assert page.locator(".banner").count() == 0
    assert page.locator("a.node").get_attribute("title").startswith(f"{cluster[0].url},")
