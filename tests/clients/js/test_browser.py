"""The client in Chromium: a page of another origin watches a thread, and edits a document with a program under Node.js."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from tests.access.conftest import Mint
from tests.cli.conftest import served
from tests.clients.js.conftest import Program, needs_node
from tests.clients.js.description import CLIENT
from tests.clients.js.test_documents import JOIN
from tests.end_to_end.browser import browser, chromium, needs_chromium
from tests.support.site import PAGE, site

HERE = Path(__file__).parent
FILES = {"/src": CLIENT / "src", "/npm": HERE}
IMPORTS = {"imports": {"shoal-client": "/src/index.js"}}
MAPPED = f"{PAGE}<script type=importmap>{json.dumps(IMPORTS)}</script>"
BEGIN = """
const shoal = await import('shoal-client'), { Y, WebsocketProvider } = await import('/npm/yjs.mjs')
const kept = globalThis.kept = { seen: [], ending: new AbortController(), doc: new Y.Doc() }
const space = kept.space = shoal.connect(given.url, { token: given.token }).space('crew')
kept.until = async (holds) => { while (!holds()) await new Promise((resolve) => setTimeout(resolve, 10)) }
kept.watching = (async () => {
  for await (const event of space.watch({ kinds: ['thread'], signal: kept.ending.signal })) {
    const state = await space.thread('plan').load().then((found) => found.state, (error) => error.code)
    kept.seen.push([event.type, state])
  }
})()
kept.document = await space.document('board', { doc: kept.doc, WebsocketProvider })
kept.text = kept.doc.getText('text')
await kept.document.synced
await kept.until(() => kept.seen.length === 1)
return shoal.connect(given.url).access().catch((error) => [error.code, error.status])
"""


@pytest.fixture
def chromium_address(tmp_path: Path) -> Iterator[str]:
    with chromium(tmp_path / "profile") as address:
        yield address


@needs_node
@needs_chromium
async def test_a_page_shows_a_thread_and_edits_a_document_with_another_client(
    js: Program, tmp_path: Path, chromium_address: str
) -> None:
    mint = Mint(tmp_path / "tokens")
    token = mint.make("crew:write,read").text
    async with site(MAPPED, FILES) as origin, browser(chromium_address) as page:
        config = {"SHOAL_ALLOWED_ORIGINS": origin}
        with served(tmp_path / "state", "--token-keys", mint.keys, config=config) as (_, url):
            await page.open(origin)
            # Of an agent without a token it sees only the refusal.
            assert await page.run(BEGIN, {"url": url, "token": token}) == ["unauthenticated", 401]
            async with shoal.connect(url, token=token) as store:
                await store.space("crew").thread("plan").save({"step": 1})
                await page.run("await kept.until(() => kept.seen.length === 2)")
            saved = "const saved = await kept.space.thread('plan').update({ set: { by: 'page' } }); return saved.parents.length"
            assert await page.run(saved) == 1
            await page.run("await kept.until(() => kept.seen.length === 3); kept.ending.abort(); await kept.watching")
            assert await page.run("return kept.seen") == [
                ["began", "not-found"],
                ["change", {"step": 1}],
                ["change", {"step": 1, "by": "page"}],
            ]

            await js(JOIN, {"url": url, "name": "board", "options": {"token": token}})
            await js("kept.text.insert(0, 'node '); await kept.document.saved()")
            await page.run("await kept.until(() => String(kept.text) === 'node ')")
            await page.run("kept.text.insert(5, 'page'); await kept.document.saved()")
            await js("await kept.until('node page')")
            await page.run("kept.document.destroy()")
            assert {asked.split("/")[2] for asked in page.requested if not asked.startswith("data:")} == {
                origin.split("/")[2],
                url.split("/")[2],
            }
