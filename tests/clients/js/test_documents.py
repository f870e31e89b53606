"""Documents from JavaScript: the client's nodes, token and promises around y-websocket, beside a Python agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import shoal
from chaos.ports import free_ports
from tests.access.conftest import Mint
from tests.cli.conftest import served
from tests.clients.js.conftest import PATIENCE_S, Program, Rejected, needs_node, spoken_to, started
from tests.support.killable import Killable

pytestmark = needs_node

JOIN = """
const { Y, WebsocketProvider, WebSocket } = await parts.yjs()
kept.doc ??= new Y.Doc()
kept.text = kept.doc.getText('text')
kept.store = shoal.connect(given.url, given.options ?? {})
const space = kept.store.space('crew')
kept.document = await space.document(given.name ?? '{plan}/a b', { doc: kept.doc, WebsocketProvider, WebSocket })
kept.until = async (wanted) => { while (String(kept.text) !== wanted) await new Promise((resolve) => setTimeout(resolve, 10)) }
"""


@pytest.fixture
async def js() -> AsyncIterator[Program]:
    """A program of the test's own: its document stays connected to the end."""
    with started() as running:
        async with spoken_to(running) as program:
            yield program


async def content(url: str, name: str = "{plan}/a b") -> str:
    async with shoal.connect(url) as store, await store.space("crew").document(name) as document:
        return str(document.text("text"))


async def test_a_page_and_an_agent_edit_one_document_and_see_each_other(js: Program, open_url: str) -> None:
    await js(JOIN + "await kept.document.synced; kept.document.awareness.setLocalState({ user: 'ana' })", {"url": open_url})
    async with shoal.connect(open_url) as store, await store.space("crew").document("{plan}/a b") as document:
        document.text("text").insert(0, "from an agent")
        await js("await kept.until(given); kept.text.insert(0, '> '); await kept.document.saved()", "from an agent")
        async with asyncio.timeout(PATIENCE_S):
            while str(document.text("text")) != "> from an agent" or not await document.presence.members():
                await asyncio.sleep(0.01)
        assert [member.state for member in await document.presence.members()] == [{"user": "ana"}]
    await js("kept.document.destroy()")
    with pytest.raises(Rejected) as left:
        await js("await kept.document.saved()")
    assert (left.value.code, left.value.written) == ("disconnected", "unknown")


async def test_a_document_that_is_left_leaves_no_node(js: Program, open_url: str) -> None:
    await js(JOIN + "await kept.document.synced", {"url": [open_url, f"http://127.0.0.1:{free_ports(1)[0]}"]})
    assert await js("kept.document.destroy(); return kept.store._transport.url") == open_url


@pytest.mark.answers("editor-shows-saved-for-what-only-its-own")
async def test_saved_resolves_when_the_edits_survive_a_kill(js: Program, killable: Killable) -> None:
    await js(JOIN, {"url": killable.url})
    for number in range(3):
        await js("kept.text.insert(kept.text.length, given); await kept.document.saved()", f"{number} ")
        killable.kill()
        await js(
            "kept.text.insert(kept.text.length, given); kept.saved = kept.document.saved(); kept.saved.catch(() => {})",
            f"offline {number} ",
        )
        killable.start()
        await js("await kept.saved")
    killable.kill()
    killable.start()
    assert await content(killable.url) == "0 offline 0 1 offline 1 2 offline 2 "


@pytest.mark.answers("editor-shows-saved-for-what-only-its-own")
async def test_an_edit_that_a_closing_socket_did_not_take_is_not_saved(js: Program, open_url: str) -> None:
    await js(JOIN + "await kept.document.saved()", {"url": open_url, "name": "closing"})
    told = await js(
        """const { provider } = kept.document
        const former = provider.ws
        former.close()
        kept.text.insert(0, 'x')
        await kept.document.saved()
        return provider.ws !== former"""
    )
    assert told is True
    assert await content(open_url, "closing") == "x"


async def test_a_document_goes_on_at_the_next_node(js: Program, killable: Killable) -> None:
    await js(
        JOIN + "kept.text.insert(0, 'x'); await kept.document.saved()",
        {"url": [f"http://127.0.0.1:{free_ports(1)[0]}", killable.url]},
    )
    assert await content(killable.url) == "x"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Mint]]:
    mint = Mint(tmp_path / "tokens")
    with served(tmp_path / "state", "--token-keys", mint.keys) as (_, url):
        yield url, mint


async def test_a_token_opens_a_document_and_without_the_right_one_the_reason_is_told(
    js: Program, guarded: tuple[str, Mint]
) -> None:
    url, mint = guarded
    await js(
        JOIN + "kept.text.insert(0, 'x'); await kept.document.saved(); kept.document.destroy()",
        {"url": url, "options": {"token": mint.make("crew:write,read").text}},
    )
    for options, code, status in (
        ({}, "unauthenticated", 401),
        ({"token": "nonsense"}, "unauthenticated", 401),
        ({"token": mint.make("other:read").text}, "forbidden", 403),
    ):
        with pytest.raises(Rejected) as refused:
            await js("kept.doc = undefined;" + JOIN + "await kept.document.synced", {"url": url, "options": options})
        assert (refused.value.code, refused.value.status, refused.value.written) == (code, status, "no")


async def test_an_edit_without_the_right_to_write_ends_the_connection_with_the_reason(
    js: Program, guarded: tuple[str, Mint]
) -> None:
    url, mint = guarded
    given = {"url": url, "options": {"token": mint.make("crew:read").text}}
    await js(JOIN + "await kept.document.synced; kept.text.insert(0, 'x')", given)
    with pytest.raises(Rejected) as refused:
        await js("await kept.document.saved()")
    assert refused.value.detail["close"] == 4403
    assert await js("return kept.document.provider.shouldConnect") is False


async def test_a_document_outlives_the_token_that_opened_it(js: Program, guarded: tuple[str, Mint]) -> None:
    url, mint = guarded
    tokens = [mint.make("crew:write,read", lasts_s=lasts_s).text for lasts_s in (4, 999, 999)]
    token = (
        "given.options = { token: () => given.tokens.length > 1 ? given.tokens.shift() : given.tokens[0] }; kept.given = given;"
    )
    await js(token + JOIN, {"url": url, "tokens": tokens, "name": "long"})
    await js("kept.text.insert(0, 'first ')")
    await js(
        "while (kept.given.tokens.length > 1) await new Promise((resolve) => setTimeout(resolve, 10))"
    )  # The second is used.
    await js("kept.text.insert(0, 'second '); await kept.document.saved()")
    assert await js("return kept.document.failure") is None


async def test_a_document_that_was_deleted_meanwhile_is_not_restored(js: Program, open_url: str) -> None:
    await js(JOIN + "kept.text.insert(0, 'x'); await kept.document.saved()", {"url": open_url, "name": "doomed"})
    async with shoal.connect(open_url) as store, await store.space("crew").document("doomed") as document:
        await document.delete()
    with pytest.raises(Rejected) as deleted:
        await js(
            "for (;;) { kept.text.insert(0, 'y'); await kept.document.saved(); await new Promise((go) => setTimeout(go, 10)) }"
        )
    assert (deleted.value.code, deleted.value.detail["close"]) == ("conflict", 4410)
