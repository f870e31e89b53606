"""The names by which a node may be asked: a page that rebinds its own name to this machine reaches nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from shoal.api.http.origins import Hosts
from shoal.config import Config

Serve = Callable[..., Awaitable[Any]]
COUNTER = "/v1/spaces/crew/counters/c"


@pytest.mark.answers("stranger-occupies-a-node")
async def test_a_name_that_leads_here_and_is_not_the_nodes_is_refused_before_anything_is_written(
    serve: Serve, http: aiohttp.ClientSession
) -> None:
    served = await serve()
    headers = {"Host": "evil.example:7400", "Origin": "http://evil.example:7400"}
    async with http.post(served.url + COUNTER, json={"add": 1}, headers=headers) as answer:
        problem = await answer.json()
    assert (answer.status, problem["code"]) == (421, "wrong-host")
    assert "allowed_hosts" in problem["detail"]
    assert served.session.asked == []


@pytest.mark.parametrize("host", ["127.0.0.1:7400", "localhost:1", "[::1]:7400", "10.0.0.7", "node.localhost", "SHOAL.test:80"])
async def test_addresses_localhost_and_names_of_the_configuration_are_answered(
    serve: Serve, http: aiohttp.ClientSession, host: str
) -> None:
    served = await serve(allowed_hosts="shoal.test, other.test")
    async with http.get(served.url + "/healthz", headers={"Host": host}) as answer:
        assert answer.status == 200


async def test_a_request_without_a_host_comes_from_no_page(serve: Serve) -> None:
    served = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize(
    ("listen", "allowed", "checks"),
    [
        ("127.0.0.1", "", True),
        ("::1", "", True),
        ("localhost", "", True),
        ("127.0.0.1", "*", False),
        ("0.0.0.0", "", False),
        ("0.0.0.0", "shoal.test", True),
    ],
)
def test_names_are_compared_on_loopback_and_where_they_are_listed(listen: str, allowed: str, checks: bool) -> None:
    assert Hosts(Config(listen_host=listen, allowed_hosts=allowed))._checked is checks


@pytest.mark.parametrize(("listens", "told"), [("0.0.0.0", "max-age=600"), ("127.0.0.1", None)])
@pytest.mark.parametrize("encrypted", [True, False])
async def test_over_tls_a_reachable_node_asks_for_it_again(listens: str, told: str | None, encrypted: bool) -> None:
    response, tls = web.Response(), {"sslcontext": object()} if encrypted else {}
    request: Any = SimpleNamespace(transport=SimpleNamespace(get_extra_info=tls.get))
    await Hosts(Config(listen_host=listens, hsts_s=600)).tell(request, response)
    assert response.headers.get("Strict-Transport-Security") == (told if encrypted else None)
