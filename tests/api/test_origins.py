"""Pages of other origins: requests, preflights, streams and WebSockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from shoal.config import Config, checked
from shoal.errors import InvalidConfig

Served = Any  # Of conftest.py.
Serve = Callable[..., Awaitable[Any]]

APP = "https://app.example.com"
COUNTER = "/v1/spaces/crew/counters/c"
PREFLIGHT = {"Origin": APP, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


def listed(answer: aiohttp.ClientResponse, header: str) -> set[str]:
    return {part.strip().lower() for part in answer.headers.get(header, "").split(",")}


@pytest.mark.parametrize(("allowed", "told"), [(f"https://x.example, {APP}/", APP), ("*", "*")])
@pytest.mark.parametrize("path", [COUNTER, "/v1/spaces/crew/registers/r", "/nothing/here", "/healthz", "/v1/spaces/crew/watch"])
async def test_an_allowed_page_reads_every_answer_and_its_headers(
    serve: Serve, http: aiohttp.ClientSession, allowed: str, told: str, path: str
) -> None:
    served = await serve(allowed_origins=allowed)
    async with http.get(served.url + path, headers={"Origin": APP}) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == told
        assert "Access-Control-Allow-Credentials" not in answer.headers  # No cookie is sent from there.
        assert "origin" in listed(answer, "Vary")
        exposed = listed(answer, "Access-Control-Expose-Headers")
        assert {"etag", "shoal-bookmark", "shoal-bookmark-left-out", "location", "retry-after", "allow"} <= exposed


@pytest.mark.parametrize("path", [COUNTER, "/v1/spaces/crew/documents/d", "/nothing/here", "/v1/spaces/crew/watch"])
async def test_a_preflight_of_an_allowed_page_is_answered_for_every_path(
    serve: Serve, http: aiohttp.ClientSession, path: str
) -> None:
    served = await serve(allowed_origins=APP)
    async with http.options(served.url + path, headers=PREFLIGHT) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, APP)
        assert "origin" in listed(answer, "Vary")
        assert listed(answer, "Access-Control-Allow-Methods") == {"get", "head", "post", "put", "patch", "delete"}
        used = {"content-type", "idempotency-key", "shoal-bookmark", "if-match", "if-none-match", "last-event-id"}
        used |= {"traceparent", "tracestate"}
        assert used <= listed(answer, "Access-Control-Allow-Headers")
    assert served.session.asked == []


@pytest.mark.parametrize("allowed", ["", "https://x.example"])
@pytest.mark.parametrize("origin", [APP, "null", "http://[", "junk"])
async def test_any_other_page_is_refused_and_told_nothing(
    serve: Serve, http: aiohttp.ClientSession, allowed: str, origin: str
) -> None:
    served = await serve(allowed_origins=allowed)
    for method, headers in (("GET", {}), ("OPTIONS", PREFLIGHT)):
        async with http.request(method, served.url + COUNTER, headers={**headers, "Origin": origin}) as answer:
            assert answer.status == 403
            assert (await answer.json(content_type="application/problem+json"))["code"] == "cross-origin"
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert "origin" in listed(answer, "Vary")
    assert served.session.asked == []


@pytest.mark.parametrize(("allowed", "joins"), [(APP, True), ("*", True), ("https://x.example", False)])
@pytest.mark.parametrize("path", ["/v1/session", "/v1/yjs/crew/board", "/v1/hocuspocus/crew"])
async def test_a_websocket_is_held_to_the_same_origins(
    serve: Serve, http: aiohttp.ClientSession, allowed: str, joins: bool, path: str
) -> None:
    served = await serve(allowed_origins=allowed)
    if not joins:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await http.ws_connect(served.url + path, headers={"Origin": APP})
        return
    async with http.ws_connect(served.url + path, headers={"Origin": APP}) as socket:
        assert not socket.closed


async def test_options_without_a_preflight_says_what_is_allowed(served: Served, http: aiohttp.ClientSession) -> None:
    async with http.options(served.url + COUNTER) as answer:
        assert (answer.status, listed(answer, "Allow")) == (204, {"delete", "get", "head", "options", "post"})
    async with http.options(served.url + "/nothing") as answer:
        assert answer.status == 404


@pytest.mark.parametrize("text", ["app.example.com", "https://app.example.com/path", "https://", "https://a b", "* *"])
def test_a_malformed_origin_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(InvalidConfig, match="allowed_origins"):
        checked(Config(allowed_origins=text))


@pytest.mark.parametrize("text", ["", "*", "null", f"{APP}, http://localhost:3000/", "http://[::1]:80", "app://local"])
def test_origins_are_taken_as_browsers_write_them(text: str) -> None:
    assert checked(Config(allowed_origins=text)).allowed_origins == text
