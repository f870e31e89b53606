"""Pages in Chromium on two nodes, by each provider: offline with IndexedDB, closed, opened again, and back at another node."""

from __future__ import annotations

import asyncio

import pytest

import shoal
from tests.end_to_end.browser import needs_chromium
from tests.end_to_end.providers.conftest import PATIENCE_S, PROVIDERS, Tab, World
from tests.support.killable import Killable

pytestmark = needs_chromium


async def content(node: Killable) -> object:
    """As an agent sees the document."""
    async with shoal.connect(node.url) as store, await store.space("crew").document("plan") as document:
        return document.to_py()


async def agreed(*tabs: Tab) -> None:
    """Wait until all have the same bytes."""
    async with asyncio.timeout(PATIENCE_S):
        while len({await tab.state() for tab in tabs}) > 1:
            await asyncio.sleep(0.05)


@pytest.mark.answers("page-that-was-offline-loses-what-was-edited")
@pytest.mark.parametrize(("provider", "others"), [*zip(PROVIDERS, PROVIDERS, strict=True), PROVIDERS])
async def test_a_page_that_was_closed_offline_comes_back_at_another_node_and_nothing_is_lost_or_doubled(
    world: World, provider: str, others: str
) -> None:
    nodes = world.cluster(3)
    one, other = await world.tab(), await world.tab()
    await one.open(provider, nodes[0].url)
    await other.open(others, nodes[1].url)
    await one("await client.synced()")
    await one("for (let n = 0; n < 20; n++) { client.text.insert(0, 'a'); client.map.set(`one-${n}`, n) }")
    await other("for (let n = 0; n < 20; n++) { client.text.insert(client.text.length, 'b'); client.map.set(`other-${n}`, n) }")
    for tab in (one, other):
        await tab.until("client.text.length === 40 && client.map.size === 40")
    await other("client.text.delete(client.text.length - 5, 5)")
    await one.until("client.text.length === 35")
    await agreed(one, other)
    before = (await one.value())["text"]

    # The node of one is killed; it edits on, and IndexedDB has what it edits.
    nodes[0].kill()
    await one.until("!client.provider.synced")
    await one("client.text.insert(0, 'offline '); client.map.set('offline', true); client.map.delete('one-0')")
    await one("while ((await client.kept()).map.offline !== true) await new Promise((resolve) => setTimeout(resolve, 10))")
    await one.close()
    await other("client.text.insert(0, 'meanwhile '); client.map.set('meanwhile', true)")

    # Opened again, it shows what it had, and edits on.
    await one.open(provider, nodes[0].url)
    assert (await one.value())["text"] == "offline " + before
    await one("client.text.insert(client.text.length, ' again'); client.doc.getArray('list').push([1])")
    await one("while ((await client.kept()).list.length !== 1) await new Promise((resolve) => setTimeout(resolve, 10))")
    await one.close()

    # Online again, at another node.
    await one.open(provider, nodes[0].url, nodes[2].url)
    for tab in (one, other):
        await tab.until("client.map.has('meanwhile') && client.map.has('offline') && client.doc.getArray('list').length === 1")
    await agreed(one, other)
    value = await one.value()
    assert len(value["text"]) == len("offline meanwhile  again") + len(before)
    for part in ("offline ", "meanwhile ", before + " again"):
        assert value["text"].count(part) == 1
    assert (len(value["map"]), value["list"], "one-0" in value["map"]) == (41, [1], False)
    assert await content(nodes[1]) == value
