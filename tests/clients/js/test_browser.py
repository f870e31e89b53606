"""The client in Chromium: a page of another origin watches a thread, and edits a document with a program under Node.js."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

import shoal
from tests.access.conftest import Mint
from tests.cli.conftest import served
from tests.clients.js.conftest import Program, needs_node
from tests.clients.js.description import CLIENT
from tests.clients.js.test_documents import JOIN
from tests.end_to_end.browser import Page, browser, needs_chromium

HERE = Path(__file__).parent
FILES = {"/src": CLIENT / "src", "/npm": HERE}
IMPORTS = {"imports": {"shoal-client": "/src/index.js"}}
PAGE = f"<!doctype html><link rel=icon href=data:,><script type=importmap>{json.dumps(IMPORTS)}</script>"
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


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """The origin of a page, and of the client's files as they lie here."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    for path, folder in FILES.items():
        app.router.add_static(path, folder)
    runner = web.AppRunner(app)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0)
    await place.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ran(page: Page, code: str, given: Any = None) -> Any:
    """What the body of an asynchronous function returns in the page."""
    return await page(f"(async () => {{ const given = {json.dumps(given)}; {code} }})()")


@needs_node
@needs_chromium
async def test_a_page_shows_a_thread_and_edits_a_document_with_another_client(js: Program, tmp_path: Path) -> None:
    mint = Mint(tmp_path / "tokens")
    token = mint.make("crew:write,read").text
    async with site() as origin, browser(tmp_path / "profile") as page:
        config = {"SHOAL_ALLOWED_ORIGINS": origin}
        with served(tmp_path / "state", "--token-keys", mint.keys, config=config) as (_, url):
            await page.open(origin)
            # Of an agent without a token it sees only the refusal.
            assert await ran(page, BEGIN, {"url": url, "token": token}) == ["unauthenticated", 401]
            async with shoal.connect(url, token=token) as store:
                await store.space("crew").thread("plan").save({"step": 1})
                await ran(page, "await kept.until(() => kept.seen.length === 2)")
            saved = "const saved = await kept.space.thread('plan').update({ set: { by: 'page' } }); return saved.parents.length"
            assert await ran(page, saved) == 1
            await ran(page, "await kept.until(() => kept.seen.length === 3); kept.ending.abort(); await kept.watching")
            assert await ran(page, "return kept.seen") == [
                ["began", "not-found"],
                ["change", {"step": 1}],
                ["change", {"step": 1, "by": "page"}],
            ]

            await js(JOIN, {"url": url, "name": "board", "options": {"token": token}})
            await js("kept.text.insert(0, 'node '); await kept.document.saved()")
            await ran(page, "await kept.until(() => String(kept.text) === 'node ')")
            await ran(page, "kept.text.insert(5, 'page'); await kept.document.saved()")
            await js("await kept.until('node page')")
            await ran(page, "kept.document.destroy()")
            assert {asked.split("/")[2] for asked in page.requested if not asked.startswith("data:")} == {
                origin.split("/")[2],
                url.split("/")[2],
            }
