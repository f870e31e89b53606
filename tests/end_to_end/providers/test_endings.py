"""Pages in Chromium, by each provider: presence, tokens that end or only read, a deleted document, no node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import shoal
from chaos.ports import free_ports
from tests.access.conftest import Mint
from tests.end_to_end.browser import needs_chromium
from tests.end_to_end.providers.conftest import PATIENCE_S, PROVIDERS, World

pytestmark = needs_chromium

EDITED = "client.text.insert(0, 'kept'); client.text.delete(0, 1)"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_presence_ends_with_its_page_and_providers_see_each_other(world: World, provider: str) -> None:
    nodes = world.cluster(2)
    one, other, third = await world.tab(), await world.tab(), await world.tab()
    await one.open(provider, nodes[0].url)
    await other.open(PROVIDERS[0], nodes[1].url)
    await third.open(PROVIDERS[1], nodes[0].url)
    for tab, name in ((one, "Ada"), (other, "Bob"), (third, "Cy")):
        await tab(f"client.provider.awareness.setLocalStateField('user', {{ name: '{name}' }})")
    await one.until("client.others().join() === 'Bob,Cy'")
    await other.until("client.others().join() === 'Ada,Cy'")
    await third.close()
    await other.until("client.others().join() === 'Ada'")
    await one.page.crash()  # Without a word.
    await other.until("client.others().length === 0")
    async with shoal.connect(nodes[0].url) as store, await store.space("crew").document("plan") as document:
        async with asyncio.timeout(PATIENCE_S):
            while [member.state["user"]["name"] for member in await document.presence.members()] != ["Bob"]:
                await asyncio.sleep(0.05)


@pytest.mark.answers("provider-knocks-for-ever")
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_page_whose_token_expires_goes_on_with_the_next_one(world: World, tmp_path: Path, provider: str) -> None:
    mint = Mint(tmp_path / "tokens")
    [node] = world.cluster(1, "--token-keys", mint.keys)
    tab = await world.tab()
    await tab.open(provider, node.url, tokens=[mint.make("crew:read,write", lasts_s=lasts_s).text for lasts_s in (6, 999, 999)])
    await tab("client.text.insert(0, 'first ')")
    await tab.until("client.tokens.length === 1 && client.provider.synced")  # It has used the second.
    await tab("client.text.insert(0, 'second ')")
    async with (
        shoal.connect(node.url, token=mint.make("crew:read").text) as store,
        await store.space("crew").document("plan") as document,
        asyncio.timeout(PATIENCE_S),
    ):
        while str(document.text("text")) != "second first ":
            await asyncio.sleep(0.05)
    assert await tab("return client.shown") == []


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_page_whose_token_expires_edits_on_and_comes_back_once_it_has_another(
    world: World, tmp_path: Path, provider: str
) -> None:
    mint = Mint(tmp_path / "tokens")
    # Hocuspocus's provider tries again when its WebSocket, on which it may open nothing, is closed.
    [node] = world.cluster(1, "--token-keys", mint.keys, "--set", "heartbeat_s=2")
    tab = await world.tab()
    expiring = mint.make("crew:read,write", lasts_s=6)
    await tab.open(provider, node.url, tokens=[expiring.text])
    told = {
        "hocuspocus": "client.shown.some((reason) => reason.includes('expired'))",
        "y-websocket": "client.provider.wsUnsuccessfulReconnects > 1",  # A browser does not tell a page why.
    }
    await tab.until(told[provider])
    await tab("client.text.insert(0, 'kept')")
    await tab(f"client.tokens.push('{mint.make('crew:read,write').text}'); client.tokens.shift()")
    await tab.until("client.provider.synced")
    async with (
        shoal.connect(node.url, token=mint.make("crew:read").text) as store,
        await store.space("crew").document("plan") as document,
        asyncio.timeout(PATIENCE_S),
    ):
        while str(document.text("text")) != "kept":
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_page_that_may_only_read_reads_also_again_and_its_edits_stay_in_it(
    world: World, tmp_path: Path, provider: str
) -> None:
    mint = Mint(tmp_path / "tokens")
    [node] = world.cluster(1, "--token-keys", mint.keys)
    writer, reader = await world.tab(), await world.tab()
    await writer.open(provider, node.url, tokens=[mint.make("crew:read,write").text])
    await writer(EDITED)
    token = mint.make("crew:read").text
    await reader.open(provider, node.url, tokens=[token])
    await reader.until("client.provider.synced && String(client.text) === 'ept'")
    await reader("while ((await client.kept()).text !== 'ept') await new Promise((resolve) => setTimeout(resolve, 10))")
    await reader.close()
    # Again: it has all from IndexedDB, and answers the node with what it has, deletions too.
    await reader.open(provider, node.url, tokens=[token])
    await reader.until("client.provider.synced")
    await writer("client.text.insert(3, '!')")
    await reader.until("String(client.text) === 'ept!'")
    assert await reader("return client.shown") == []
    if provider == "hocuspocus":
        assert await reader("return client.provider.authorizedScope") == "readonly"
        await reader.until("!client.provider.hasUnsyncedChanges")
    await reader("client.text.insert(0, 'no ')")
    if provider == "hocuspocus":
        await writer("client.text.insert(4, '?')")
        await reader.until("String(client.text) === 'no ept!?'")
        assert await reader("return client.provider.hasUnsyncedChanges") is True
    else:
        await reader.until("client.shown.some((reason) => reason.includes('does not grant'))")
    async with shoal.connect(node.url, token=token) as store, await store.space("crew").document("plan") as document:
        assert "no" not in str(document.text("text"))


@pytest.mark.answers("provider-knocks-for-ever")
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_document_that_was_deleted_meanwhile_is_not_restored_and_the_page_is_told(world: World, provider: str) -> None:
    [node] = world.cluster(1)
    here, away = await world.tab(), await world.tab()
    for tab in (here, away):
        await tab.open(provider, node.url)
    await here(EDITED)
    await away.until("String(client.text) === 'ept'")
    await away("while ((await client.kept()).text !== 'ept') await new Promise((resolve) => setTimeout(resolve, 10))")
    await away.close()
    async with shoal.connect(node.url) as store:
        async with await store.space("crew").document("plan") as document:
            await document.delete()
        await here("client.text.insert(0, 'x')")
        await here.until("client.shown.some((reason) => reason.includes('was deleted'))")
        await away.open(provider, node.url)
        await away.until("client.shown.some((reason) => reason.includes('was deleted'))")
        # It begins anew, as the documentation says.
        await away("await client.stored.clearData()")
        await away.close()
        await away.open(provider, node.url)
        await away.until("client.provider.synced")
        assert (await away.value())["text"] == ""
        await away("client.text.insert(0, 'anew')")
        async with await store.space("crew").document("plan") as document, asyncio.timeout(PATIENCE_S):
            while str(document.text("text")) != "anew":
                await asyncio.sleep(0.05)


@pytest.mark.answers("page-that-was-offline-loses-what-was-edited")
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_page_edits_while_no_node_exists_at_its_address_and_sends_it_once_one_does(world: World, provider: str) -> None:
    tab = await world.tab()
    nodes = world.cluster(1)
    await tab.open(provider, f"http://127.0.0.1:{free_ports(1)[0]}")
    await tab(EDITED)
    await tab("while ((await client.kept()).text !== 'ept') await new Promise((resolve) => setTimeout(resolve, 10))")
    assert await tab("return client.provider.synced") is False
    await tab(f"client.nodes.push('{nodes[0].url.replace('http', 'ws')}')")
    await tab.until("client.provider.synced")
    assert await tab("return client.shown") == []
    async with shoal.connect(nodes[0].url) as store, await store.space("crew").document("plan") as document:
        async with asyncio.timeout(PATIENCE_S):
            while str(document.text("text")) != "ept":
                await asyncio.sleep(0.05)
