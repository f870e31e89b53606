"""Pages in Chromium that edit documents by the code of docs/YJS.md, and the nodes of a cluster for them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.cli.conftest import served
from tests.end_to_end.browser import Page, browsing
from tests.end_to_end.test_watch import free_ports

HERE = Path(__file__).parent
DOCS = HERE.parent.parent.parent / "docs" / "YJS.md"
PAGE = """<!doctype html><link rel=icon href=data:,><script type=module>
globalThis.loaded = import("/client.mjs").then((module) => { globalThis.client = module.client })
</script>"""
PROVIDERS = ("y-websocket", "hocuspocus")
PATIENCE_S = 60


def snippet(provider: str) -> str:
    """The code for a provider that the documentation shows, without its imports."""
    shown = re.findall(r"^```js\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    [found] = [each for each in shown if re.search(rf"^import .*{provider}.*'$", each, re.MULTILINE)]
    return re.sub(r"^import .*\n", "", found, flags=re.MULTILINE)


class Tab:
    """One page that edits the document `plan` of the space `crew`, in a profile that outlives it."""

    def __init__(self, page: Page, origin: str, profile: str) -> None:
        self.page = page
        self._origin = origin
        self._profile = profile

    async def open(self, provider: str, *urls: str, tokens: list[str] | None = None) -> None:
        """Open the page; the document is there as far as this browser has it."""
        await self.page.open(self._origin, profile=self._profile)
        await self.page("globalThis.loaded")
        given = {"nodes": [url.replace("http:", "ws:") for url in urls], "tokens": tokens or ["none"]}
        await self(f"await client.open({json.dumps(snippet(provider))}, {json.dumps(given)})")

    async def __call__(self, code: str) -> Any:
        """What the body of an asynchronous function returns in the page, with `client` in its scope."""
        return await self.page(f"(async () => {{ {code} }})()")

    async def until(self, condition: str) -> None:
        """Wait until a condition, in JavaScript, holds."""
        await asyncio.wait_for(self(f"await client.until(() => {condition})"), PATIENCE_S)

    async def value(self) -> Any:
        return await self("return client.value()")

    async def state(self) -> str:
        found: str = await self("return client.state()")
        return found

    async def close(self) -> None:
        await self.page.close()


class Member:
    """One node of a cluster, which can be killed and started again."""

    def __init__(self, data: Path, addresses: list[str], number: int, origin: str, *arguments: str) -> None:
        self.url = f"http://{addresses[number]}"
        joining = ("--join", ",".join(addresses), "--set", f"advertise={addresses[number]}") if len(addresses) > 1 else ()
        self._arguments = ("--listen", addresses[number], *joining, *arguments)
        self._data = data
        self._origin = origin
        self._serving: Any = None
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        config = {"SHOAL_ALLOWED_ORIGINS": self._origin}
        self._serving = served(self._data, *self._arguments, config=config)
        self._process, _ = self._serving.__enter__()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._serving.__exit__(None, None, None)
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self.kill()


class World:
    """A browser, the site of an application, and a cluster."""

    def __init__(self, origin: str, make: Any, directory: Path) -> None:
        self._origin = origin
        self._make = make
        self._directory = directory
        self.nodes: list[Member] = []

    async def tab(self) -> Tab:
        """A tab in a browser of its own, which is closed."""
        page = await self._make()
        return Tab(page, self._origin, await page.profile())

    def cluster(self, size: int, *arguments: str) -> list[Member]:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
        self.nodes = [
            Member(self._directory / f"node-{number}", addresses, number, self._origin, *arguments) for number in range(size)
        ]
        for node in self.nodes:
            node.start()
        return self.nodes


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """The origin of the application's page."""

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_static("/", HERE)
    runner = web.AppRunner(app)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0)
    await place.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with site() as origin, browsing(tmp_path / "browser") as make:
        made = World(origin, make, tmp_path)
        try:
            yield made
        finally:
            for node in made.nodes:
                node.stop()
