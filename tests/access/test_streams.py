"""Streams ask for the rights that threads ask for."""

from __future__ import annotations

import aiohttp
import pytest

from tests.access.conftest import Mint, Serve
from tests.access.test_reading import noted

TEXT = {"Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("grant", "allowed"),
    [
        ("crew:thread:read", {"GET", "HEAD"}),
        ("crew:thread:read,append", {"GET", "HEAD", "POST", "PUT", "FORK"}),
        ("crew:thread:append", {"POST", "PUT"}),
        ("crew:admin", {"GET", "HEAD", "POST", "PUT", "FORK", "DELETE"}),
        ("other:admin", set()),
        ("crew:document:admin", set()),
    ],
)
async def test_a_token_does_what_it_grants_and_no_more(serve: Serve, mint: Mint, grant: str, allowed: set[str]) -> None:
    served = await serve(token_keys=mint.keys)
    url = f"{served.url}/v1/streams/crew/s"
    async with aiohttp.ClientSession() as http:
        async with http.put(url, headers={**TEXT, **mint.make("crew:admin").header}, data=b"x") as answer:
            assert answer.status == 201
        token = mint.make(grant).header
        for method in ("GET", "HEAD", "POST", "PUT", "FORK", "DELETE"):
            verb, path = ("PUT", url + "-fork") if method == "FORK" else (method, url)
            more = {"Stream-Forked-From": "s"} if method == "FORK" else {}
            async with http.request(
                verb, path, headers={**TEXT, **token, **more}, data=b"y" if method == "POST" else None
            ) as answer:
                assert (answer.status < 400) == (method in allowed), (method, answer.status)
                assert answer.status < 400 or answer.status == 403
                assert answer.headers["Cache-Control"] in ("no-store", "private, no-cache")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
async def test_without_a_token_nothing_is_told(serve: Serve, mint: Mint, method: str) -> None:
    served = await serve(token_keys=mint.keys)
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, f"{served.url}/v1/streams/crew/s", headers=TEXT) as answer,
    ):
        assert answer.status == 401


async def test_a_read_of_a_logged_space_is_noted(serve: Serve, mint: Mint) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    made = mint.make("crew:admin", author="ana")
    async with aiohttp.ClientSession(headers=made.header) as http:
        url = f"{served.url}/v1/streams/crew/s"
        for method in ("PUT", "GET"):
            async with http.request(method, url, headers=TEXT) as answer:
                assert answer.status < 300
        async with http.put(f"{served.url}/v1/streams/crew/f", headers={**TEXT, "Stream-Forked-From": "s"}) as answer:
            assert answer.status == 201
    found = [each for each in await noted(served, mint) if each["by"] == "ana"]
    assert [name for each in found for _, _, name in each["reads"]] == ["stream/s", "stream/s"]
