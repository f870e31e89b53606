"""The page of a node: its files, their policy, and the other nodes that it may ask."""

from __future__ import annotations

import gzip
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from shoal import page
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.config import Config
from tests.api.conftest import FakeSession

Served = Any  # Of conftest.py.

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OTHERS = ["n2.example.com:7400", "127.0.0.1:7402", "[::1]:7403"]


@asynccontextmanager
async def member(*others: str) -> AsyncIterator[str]:
    """The URL of a node with these others in its cluster."""
    config = Config(listen_port=0)
    app = create_app(FakeSession().open, config=config, node="ab12", version="0.1.0", now_s=time.time, others=lambda: [*others])
    listener = Listener(app, config=config)
    await listener.start()
    try:
        yield listener.url
    finally:
        await listener.stop()


async def test_browsers_get_the_page_at_the_root(http: aiohttp.ClientSession, served: Served) -> None:
    async with http.get(served.url, headers=BROWSER) as answer:
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert answer.headers["Cache-Control"] == "no-cache"
        assert 'src="ui/app.js"' in await answer.text()


async def test_every_file_of_the_page_is_served(http: aiohttp.ClientSession, served: Served) -> None:
    assert {"index.html", "app.js", "style.css", "client/index.js"} <= set(page.listed())
    for name, file in page.listed().items():
        async with http.get(f"{served.url}/ui/{name}") as answer:
            assert (answer.status, answer.content_type) == (200, file.content_type)
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert await answer.read() == file.path.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "none.js",
        "../api/pages.py",
        "%2e%2e/api/pages.py",
        "..%2fapi%2fpages.py",
        "__init__.py",
        "client",
        "client/",
        "/app.js",
    ],
)
async def test_nothing_else_is_served(http: aiohttp.ClientSession, rest: Any, name: str) -> None:
    problem = await rest.problem("GET", f"/ui/{name}")
    assert problem["code"] == "not-found"


async def test_a_file_that_is_held_is_not_sent_again(http: aiohttp.ClientSession, served: Served) -> None:
    url = f"{served.url}/ui/client/index.js"
    async with http.head(url) as answer:
        assert (answer.status, await answer.read()) == (200, b"")
        tag = answer.headers["ETag"]
    for held, status in ((tag, 304), ('"another"', 200)):
        async with http.get(url, headers={"If-None-Match": held}) as answer:
            assert (answer.status, answer.headers["ETag"]) == (status, tag)


async def test_a_file_is_sent_as_the_client_takes_it(served: Served) -> None:
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        for taken, encoding in (("gzip, br", "gzip"), ("identity", None)):
            async with http.get(f"{served.url}/ui/app.js", headers={"Accept-Encoding": taken}) as answer:
                body = await answer.read()
                assert answer.headers.get("Content-Encoding") == encoding
            assert (gzip.decompress(body) if encoding else body) == page.listed()["app.js"].path.read_bytes()


async def test_the_page_may_ask_the_other_members() -> None:
    async with member(*OTHERS) as url, aiohttp.ClientSession() as http:
        async with http.get(url, headers=BROWSER) as answer:
            policy = answer.headers["Content-Security-Policy"]
        async with http.get(url) as answer:
            told = await answer.json()
    others = ["http://n2.example.com:7400", "http://127.0.0.1:7402"]  # A policy cannot name an IPv6 address.
    sockets = ["ws://n2.example.com:7400", "ws://127.0.0.1:7402"]
    assert f"connect-src 'self' {' '.join([*others, *sockets])};" in policy
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy.split("; "))
    assert (told["others"], told["open"], told["local"]) == (others, True, True)


@pytest.mark.parametrize(
    ("origin", "is_taken"),
    [
        ("http://n2.example.com:7400", True),
        ("http://localhost:7402", True),  # As people type the address.
        ("https://n2.example.com:7400", False),
        ("http://n2.example.com:7401", False),
        ("http://localhost:7409", False),
        ("http://n2.example.com", False),
        ("http://evil.example/n2.example.com:7400", False),
        ("http://n2.example.com:7400.evil.example", False),
        ("null", False),
    ],
)
async def test_a_member_takes_requests_of_the_others_pages(origin: str, is_taken: bool) -> None:
    async with member(*OTHERS) as url, aiohttp.ClientSession() as http:
        for method, headers in (("GET", {}), ("OPTIONS", {"Access-Control-Request-Method": "POST"})):
            async with http.request(method, f"{url}/v1/spaces", headers={"Origin": origin, **headers}) as answer:
                assert (answer.status < 300) == is_taken
                assert answer.headers.get("Access-Control-Allow-Origin") == (origin if is_taken else None)
                assert "Access-Control-Allow-Credentials" not in answer.headers
