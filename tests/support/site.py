"""The site of an application that is not Shoal's: one page, and folders of files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

PAGE = "<!doctype html><link rel=icon href=data:,>"
"""A page without content, for which a browser asks no icon."""


@asynccontextmanager
async def site(page: str = PAGE, folders: Mapping[str, Path] | None = None) -> AsyncIterator[str]:
    """The origin of a site that serves `page` at its root, and the files of `folders` below their paths."""

    async def shown(_request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", shown)
    for path, folder in (folders or {}).items():
        app.router.add_static(path, folder)
    runner = web.AppRunner(app)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0)
    await place.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
