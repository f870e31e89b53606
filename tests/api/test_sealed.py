"""Whatever a user stored, a browser that opens it on the node's origin runs nothing."""

from __future__ import annotations

import aiohttp
import pytest

from shoal.api.streams.headers import SHOWN
from tests.access.conftest import Serve, serve  # noqa: F401

PAGE = b'<script>fetch("/v1/spaces").then(r=>r.text()).then(alert)</script>'
RUNS = [
    "text/html",
    "image/svg+xml",
    "application/xhtml+xml",
    "text/xml",
    "application/pdf",
    "text/javascript",
    "TEXT/HTML;x=y",
]


@pytest.fixture
async def url(serve: Serve) -> str:  # noqa: F811
    return (await serve()).url


def check_sealed(answer: aiohttp.ClientResponse) -> None:
    assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("kind", [*RUNS, *sorted(SHOWN)])
async def test_a_stored_page_is_a_file_in_a_sandbox(url: str, kind: str) -> None:
    at = f"{url}/v1/streams/a/x"
    body = b"[1]" if kind == "application/json" else PAGE
    async with aiohttp.ClientSession() as http:
        async with http.put(at, data=body, headers={"Content-Type": kind}) as answer:
            assert answer.status == 201
            check_sealed(answer)
        for query in ("", "?offset=-1", "?offset=-1&live=long-poll"):
            async with http.get(at + query) as answer:
                check_sealed(answer)
                assert (answer.headers.get("Content-Disposition") == "attachment") == (kind in RUNS)
        async with http.get(at + "?offset=-1&live=sse") as answer:
            check_sealed(answer)
            assert answer.headers["Content-Type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/readyz",
        "/metrics",
        "/v1/openapi.json",
        "/v1/spaces",
        "/absent",
        "/v1/spaces/s/documents/<script>",
        "/v1/streams/s/no",
    ],
)
async def test_every_answer_is_sealed(url: str, path: str) -> None:
    async with aiohttp.ClientSession() as http, http.get(url + path, headers={"Accept": "application/json"}) as answer:
        check_sealed(answer)


async def test_the_nodes_own_page_keeps_its_policy(url: str) -> None:
    async with aiohttp.ClientSession() as http, http.get(url + "/docs") as answer:
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "sandbox" not in answer.headers["Content-Security-Policy"]
