"""Leases on the axis of time, the course of a budget, links in sentences, and long lists that are scrolled."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import shoal
from tests.page import filling
from tests.page.conftest import Node, Show, apart

pytestmark = pytest.mark.page

_MANY = 450


def _write(node: Node, work: Any) -> None:
    async def run() -> None:
        async with shoal.connect(node.url) as store:
            await work(store.space(filling.SPACE))

    apart(run())


def test_leases_stand_on_the_axis_as_they_are_taken_and_given_back(node: Node, show: Show) -> None:
    async def drive(space: Any) -> None:
        thread = space.thread("driven-1")
        async with space.thread("driven-1").lease(ttl=20, holder="worker-1"):
            await space.thread("driven-1").save({"n": 1})
        await thread.lease(ttl=600, holder="worker-2").acquire()

    _write(node, drive)
    page = show(node, "#/crew/threads/driven-1")
    rows = page.locator(".axis li.lease")
    rows.nth(1).wait_for()
    told = rows.all_inner_texts()
    assert "lease taken over by worker-2" in told[0]
    assert re.search("lease taken by worker-1.*given back, then worker-2", told[1])
    rows.nth(1).click()
    pane = page.locator(".pane.chosen")
    pane.get_by_text("worker-1 drove the thread").wait_for()
    assert "checkpoints meanwhile" in pane.inner_text()
    pane.get_by_role("link", name="worker-2").first.click()
    pane.get_by_text("worker-2 drove the thread").or_(pane.get_by_text("worker-2 drives the thread")).first.wait_for()


def test_a_budget_shows_what_the_node_saw(node: Node, show: Show) -> None:
    async def spend(space: Any) -> None:
        await space.budget("burns").grant(1000)
        await space.budget("burns").spend(100)

    _write(node, spend)
    page = show(node, "#/crew/shared/budget/burns")
    page.route(
        "**/budgets/burns/course",
        lambda route: route.fulfill(
            json={
                "points": [{"at_ms": 1_790_000_000_000 + nth * 60_000, "granted": 1000, "spent": nth * 20} for nth in range(6)]
            }
        ),
    )
    page.reload()
    page.get_by_text("as the node that answers saw it since").wait_for()
    page.locator(".plot canvas").first.wait_for()
    page.unroute("**/budgets/burns/course")

    async def read() -> list[tuple[int, int]]:
        async with shoal.connect(node.url) as store:
            return [(point.granted, point.spent) for point in await store.space(filling.SPACE).budget("burns").course()]

    assert apart(read())[-1] == (1000, 100)


@pytest.mark.parametrize("view", ["now", "threads", "shared", "work", "cluster", "audit"])
def test_numbers_in_the_sentence_of_a_view_are_links(node: Node, show: Show, view: str) -> None:
    page = show(node, f"#/crew/{view}")
    link = page.locator(".sentence a").first
    link.wait_for()
    assert (link.get_attribute("href") or "").startswith("#/")
    assert re.search(r"\d", page.locator(".sentence").first.inner_text())


def test_a_long_list_goes_on_as_it_is_scrolled(node: Node, show: Show) -> None:
    async def run() -> None:
        async with shoal.connect(node.url) as store:
            space = store.space("many")
            await asyncio.gather(*(space.thread(f"long-{number:04}").save({"n": number}) for number in range(_MANY)))

    apart(run())
    page = show(node, "#/many/threads")
    page.get_by_role("link", name="long-0000").wait_for()
    page.mouse.move(500, 500)
    for _ in range(80):
        page.mouse.wheel(0, 400)
        page.wait_for_timeout(30)
    page.get_by_role("link", name=f"long-{_MANY - 1:04}").wait_for()
    assert page.locator(".new-rows").count() == 0
    assert page.locator(".tbody .tr").count() < 100
