"""Every view at every width, light and dark: nothing is wider than its place or cut off, fingers hit it, axe finds nothing.

`SHOAL_PAGE_SHOTS=FOLDER` keeps a picture of each, for those who look at them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from tests.page import filling
from tests.page.conftest import Node, Show, apart

pytestmark = pytest.mark.page

SHOTS = os.environ.get("SHOAL_PAGE_SHOTS", "")
HEIGHTS = {390: 844, 768: 1024, 1440: 900, 2560: 1300}
READ = (390, 1440)  # Widths at which axe looks, too: its rules are of content and colours.
PLACES = (
    "#/*/now",
    "#/crew/now",
    "#/crew/now/ticket-7",
    "#/crew/now/crawl-3",
    "#/none/now",
    "#/many/now",
    "#/crew/nowhere",
    "#/*/threads",
    "#/crew/threads",
    "#/crew/threads?text=refund",
    "#/crew/threads?text=no such text",
    "#/crew/threads/ticket-7",
    "#/crew/threads/ticket-7/at/HEAD",
    "#/crew/threads/ticket-7/at/HEAD?show=state",
    "#/crew/threads/ticket-7/at/HEAD?show=messages",
    "#/crew/threads/planner",
    "#/crew/threads/crawl-3/step/fetch-17",
    "#/crew/threads/no such thread",
    "#/views/shared",
    "#/none/shared",
    "#/views/shared/document/plan?root=notes",
    "#/views/shared/document/plan?root=limits",
    "#/views/shared/register/chosen",
    "#/views/shared/counter/pages",
    "#/views/shared/set/seen",
    "#/views/shared/map/limits",
    "#/views/shared/list/steps",
    "#/views/shared/budget/tokens",
    "#/views/shared/items/memory",
    "#/views/shared/items/memory/memory.ana/n0",
    "#/views/work",
    "#/none/work",
    "#/views/work/worklist/jobs/pages?part=dead",
    "#/crew/work",
    "#/views/compare",
    "#/views/compare?of=run-0:main,run-1:main",
    "#/*/cluster",
    "#/crew/cluster",
    "#/*/audit",
    "#/views/audit",
    "#/views/audit?what=reads",
)

# The page, or one of its panes, is wider than the place that it has.
WIDE = """() => [document.documentElement, ...document.querySelectorAll('.pane, header, main, dialog[open]')]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.tagName}.${each.className} is ${each.scrollWidth} px wide in ${each.clientWidth}`)"""

# Text that is cut off. What people and agents named may end in "…", what the page itself says may not.
CUT = """() => [...document.querySelectorAll('body *')].flatMap((each) => {
  const isSeen = each.checkVisibility({ visibilityProperty: true })
  if (!isSeen || each.closest('.sr, .uplot, .cm-editor, .skip, option, select')) return []
  const { overflowX, overflowY, textOverflow } = getComputedStyle(each)
  if (![...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== '')) return []
  const isWide = each.scrollWidth > each.clientWidth + 1 && overflowX === 'hidden'
  const isHigh = each.scrollHeight > each.clientHeight + 2 && overflowY === 'hidden' && textOverflow !== 'ellipsis'
  const isPages = each.matches('button, a.button, th, .tr.head > *, nav a, kbd, h1, h3, label, legend, dt')
  const isOwn = isPages && each.querySelector('bdi, input, textarea, select') === null
  const sizes = `${each.scrollWidth} x ${each.scrollHeight} px in ${each.clientWidth} x ${each.clientHeight}`
  return isHigh || (isWide && (textOverflow !== 'ellipsis' || isOwn)) ? [`${each.outerHTML.slice(0, 120)}: ${sizes}`] : []
})"""

# What a finger has to hit, but for words within a text (WCAG 2.5.8), and what a larger part around it takes.
SMALL = """() => [...document.querySelectorAll('button, select, summary, input, textarea, .row-link, a')].flatMap((each) => {
  const box = each.getBoundingClientRect()
  if (box.height === 0 || getComputedStyle(each).visibility === 'hidden' || each.closest('.uplot, .cm-editor, .skip')) return []
  if (each.matches('[type=checkbox], [type=radio]') && each.closest('label')) return []
  const around = each.closest('label, .tr, .axis li, .ask .row, summary')
  const inText = each.matches('a, .link, .id') && each.closest('p, h1, h2, dd, td, li, .branches, .head-line, caption')
  const least = inText ? 24 : 44
  const height = Math.max(box.height, around === null || around === each ? 0 : around.getBoundingClientRect().height)
  const told = `${each.outerHTML.slice(0, 90)} is ${Math.round(box.height)} px`
  return height + 0.5 < (each.matches('a') && inText ? 18 : least) ? [told] : []
})"""


async def _read_head(url: str) -> str:
    async with shoal.connect(url) as store:
        many = store.space("many")  # More threads than are listed at once.
        await asyncio.gather(*(many.thread(f"t{number}").save({"step": number}) for number in range(120)))
        return (await store.space(filling.SPACE).thread("ticket-7").load()).id


@pytest.fixture(scope="module")
def head(shared: Node) -> str:
    """The newest checkpoint of a thread of the node, which also holds all that the views of shared state show."""
    return apart(_read_head(shared.url))


def _shown(page: Any) -> None:
    """Wait until nothing is being loaded."""
    page.locator(".sentence:visible, .says:visible, .head-line:visible, .empty:visible").first.wait_for()
    for _ in range(60):
        page.wait_for_timeout(150)
        if page.evaluate("document.querySelector('.shape') === null && document.querySelector('main .pane') !== null"):
            break
    page.wait_for_timeout(250)


@pytest.mark.parametrize("width", HEIGHTS)
def test_every_view_has_room_is_hit_and_read(
    node: Node, head: str, show: Show, violations: Callable[..., list[str]], width: int
) -> None:
    page = show(node, "", width=width, height=HEIGHTS[width], touch=width < 1000)
    wrong: dict[str, list[str]] = {}
    for place in PLACES:
        page.goto("about:blank")
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto(f"{node.url}/{place.replace('HEAD', head)}")
        _shown(page)
        found = page.evaluate(WIDE) + page.evaluate(CUT)
        if width < 1000:
            found += page.evaluate(SMALL)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            if width in READ:
                found += [f"{scheme}: {each}" for each in violations(page, *(["color-contrast"] if scheme == "dark" else []))]
            if SHOTS:
                name = "".join(letter if letter.isalnum() else "-" for letter in place[2:].replace("*", "all"))
                page.screenshot(path=Path(SHOTS) / f"{name}-{width}-{scheme}.png")
        if found:
            wrong[place] = found
    assert not wrong, "\n".join(f"{place}: {each}" for place, found in wrong.items() for each in found)
