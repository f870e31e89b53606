"""Pages in Chromium that edit documents by the code of docs/YJS.md, and the nodes of a cluster for them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chaos.ports import free_ports
from tests.end_to_end.browser import Page, browsing
from tests.support.killable import Killable
from tests.support.site import site

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

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self._origin = origin

    async def open(self, provider: str, *urls: str, tokens: list[str] | None = None) -> None:
        """Open the page; the document is there as far as this browser has it."""
        await self.page.open(self._origin)
        await self.page("globalThis.loaded")
        given = {"nodes": [url.replace("http:", "ws:") for url in urls], "tokens": tokens or ["none"]}
        await self(f"await client.open({json.dumps(snippet(provider))}, {json.dumps(given)})")

    async def __call__(self, code: str) -> Any:
        """What the body of an asynchronous function returns in the page, with `client` in its scope."""
        return await self.page.run(code)

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


class World:
    """A browser, the site of an application, and a cluster."""

    def __init__(self, origin: str, make: Any, directory: Path) -> None:
        self._origin = origin
        self._make = make
        self._directory = directory
        self.nodes: list[Killable] = []

    async def tab(self) -> Tab:
        """A tab in a profile of its own, which is closed."""
        return Tab(await self._make(), self._origin)

    def cluster(self, size: int, *arguments: str) -> list[Killable]:
        ports = free_ports(size)
        joining = ("--join", ",".join(f"127.0.0.1:{port}" for port in ports)) if size > 1 else ()
        config = {"SHOAL_ALLOWED_ORIGINS": self._origin}
        self.nodes = [
            Killable(self._directory / f"node-{number}", *joining, *arguments, port=port, config=config)
            for number, port in enumerate(ports)
        ]
        for node in self.nodes:
            node.start()
        return self.nodes


@pytest.fixture
async def world(tmp_path: Path, chromium_address: str) -> AsyncIterator[World]:
    async with site(PAGE, {"/": HERE}) as origin, browsing(chromium_address) as make:
        made = World(origin, make, tmp_path)
        try:
            yield made
        finally:
            for node in made.nodes:
                node.stop()
