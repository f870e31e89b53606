"""`shoal mcp --listen`: clients over HTTP, each with its own token."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.subscriptions import ResourceUpdated

import shoal
from tests.cli.conftest import PATIENCE_S, running, served
from tests.cli.test_tokens import run
from tests.integrations.mcp.conftest import WHOLE_TEST_S, answer, refusal

if TYPE_CHECKING:
    from mcp.client.client import Client

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
JSON = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def client(url: str, token: str = "", **more: Any) -> AsyncIterator[Client]:
    """The SDK's client."""
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as http,
        Client(streamable_http_client(url, http_client=http), **more) as made,
    ):
        yield made


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A node that asks for tokens, and tokens by name."""
    assert run("token", "init", str(tmp_path / "tokens")).exit_code == 0
    tokens = {}
    grants = {"ana": "crew:write,read", "reader": "crew:read", "bob": "other:write,read", "operator": "*:admin"}
    for name, allow in grants.items():
        file = tmp_path / f"{name}.token"
        made = run("token", "create", str(tmp_path / "tokens"), name, "--allow", allow, "--lasts", "1h", "--out", str(file))
        assert made.exit_code == 0, made.stderr
        tokens[name] = file.read_text().strip()
    with served(tmp_path / "closed", "--token-keys", str(tmp_path / "tokens" / "keys.json")) as (_, url):
        yield url, tokens


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_writes_over_http_are_there(target: list[str], mode: Any) -> None:
    with running("mcp", *target, "--space", "crew", "--listen", "127.0.0.1:0") as (_, url):
        async with client(url, mode=mode) as made, client(url, mode=mode) as other:
            added = {"kind": "counter", "name": "n", "add": 1}
            for each in (made, other, made):
                await answer(each, "write_value", **added)
            again = [await answer(made, "write_value", **added, idempotency_key="once") for _ in range(2)]
            assert [each["value"] for each in again] == [4, 4]
            saved = await answer(made, "edit_thread", thread="t", set={"x": 1})
            assert (await answer(other, "load_thread", thread="t"))["id"] == saved["id"]
            assert [each.name for each in (await made.list_resources()).resources] == ["t"]


async def test_requests_of_two_clients_with_equal_ids_are_two(target: list[str]) -> None:
    with running("mcp", *target, "--listen", "127.0.0.1:0") as (_, url):
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client(url)) for _ in range(3)]
            for each in clients:
                await answer(each, "write_value", kind="counter", name="n", add=1)
            assert (await answer(clients[0], "read_value", kind="counter", name="n"))["value"] == 3


async def test_a_client_is_told_of_changes_by_others(url: str) -> None:
    with running("mcp", "--url", url, "--space", "crew", "--listen", "127.0.0.1:0") as (_, at):
        async with asyncio.timeout(WHOLE_TEST_S), client(at) as made, shoal.connect(url) as store:
            uri = "shoal://crew/threads/t"
            async with made.listen(resource_subscriptions=[uri]) as changes:
                await store.space("crew").thread("t").save({"x": 1})
                assert await anext(changes) == ResourceUpdated(uri=uri)


async def test_each_client_may_do_what_its_own_token_grants(closed: tuple[str, dict[str, str]]) -> None:
    node, tokens = closed
    with running("mcp", "--url", node, "--space", "crew", "--listen", "127.0.0.1:0") as (_, url):
        async with (
            client(url, tokens["ana"]) as ana,
            client(url, tokens["reader"]) as reader,
            client(url, tokens["bob"]) as bob,
        ):
            await answer(ana, "edit_thread", thread="t", set={"x": 1})
            assert (await answer(reader, "load_thread", thread="t"))["state"] == {"x": 1}
            for each, tool in ((reader, "edit_thread"), (bob, "edit_thread"), (bob, "load_thread")):
                told = await refusal(each, tool, thread="t", **({"set": {"x": 2}} if tool == "edit_thread" else {}))
                assert told.startswith("Forbidden: ")
                assert "Nothing was" in told
            assert (await answer(ana, "load_thread", thread="t"))["state"] == {"x": 1}


async def test_callers_without_a_valid_token_are_refused(closed: tuple[str, dict[str, str]]) -> None:
    node, tokens = closed
    with running("mcp", "--url", node, "--listen", "127.0.0.1:0", "--set", "token_failures_max=3") as (_, url):
        async with aiohttp.ClientSession(headers=JSON) as http:

            async def status(*, expected: int, **headers: str) -> str:
                async with http.post(url, json=PING, headers=headers) as response:
                    assert response.status == expected, await response.text()
                    return response.headers.get("WWW-Authenticate") or response.headers.get("Retry-After") or ""

            assert (await status(expected=401)).startswith("Bearer ")
            assert (await status(expected=401, Authorization="Basic YTpi")).startswith("Bearer ")
            for _ in range(2):
                await status(expected=401, Authorization=f"Bearer {tokens['ana'][:-9]}AAAAAAAAA")
            assert int(await status(expected=429, Authorization="Bearer x")) > 0
            assert int(await status(expected=429, Authorization=f"Bearer {tokens['ana']}")) > 0


async def test_a_token_that_is_revoked_ends_its_subscriptions(closed: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    node, tokens = closed
    with running("mcp", "--url", node, "--space", "crew", "--listen", "127.0.0.1:0") as (_, url):
        async with asyncio.timeout(WHOLE_TEST_S), client(url, tokens["reader"]) as made:
            async with made.listen(resource_subscriptions=["shoal://crew/threads/t"]) as changes:
                async with shoal.connect(node, token=tokens["ana"]) as store:
                    await store.space("crew").thread("t").save({"x": 1})
                assert await anext(changes) == ResourceUpdated(uri="shoal://crew/threads/t")
                id = json.loads(run("token", "inspect", str(tmp_path / "reader.token"), "--json").stdout)["id"]
                operator = ("--token-file", str(tmp_path / "operator.token"))
                words = (*operator, "token", "revoke", str(tmp_path / "tokens"), id, "--url", node)
                assert (await asyncio.to_thread(run, *words)).exit_code == 0
                with pytest.raises(SubscriptionLost):
                    await anext(changes)
            headers = {**JSON, "Authorization": f"Bearer {tokens['reader']}"}
            async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=PING) as response:
                assert response.status == 401
        async with client(url, tokens["ana"]) as other:
            assert (await answer(other, "load_thread", thread="t"))["state"] == {"x": 1}


async def test_other_hosts_and_pages_are_refused_before_anything_is_looked_at(url: str) -> None:
    with running("mcp", "--url", url, "--listen", "127.0.0.1:0", "--set", "request_bytes_max=65536") as (_, at):
        async with aiohttp.ClientSession(headers=JSON) as http:
            for headers, status in (
                ({"Host": "evil.example.com"}, 421),
                ({"Origin": "https://evil.example.com"}, 403),
                ({"Host": "localhost:1"}, 200),
            ):
                async with http.post(at, json=PING, headers=headers) as response:
                    assert response.status == status, await response.text()
            async with http.post(at, data=b"x" * 70_000, headers={"Content-Type": "application/json"}) as response:
                assert response.status == 413
            async with http.get(at.removesuffix("/mcp")) as response:
                assert response.status == 404


def test_it_says_why_it_does_not_start(url: str, tmp_path: Path) -> None:
    for options, environment, told in (
        (("--listen", "0.0.0.0:0"), {}, "without TLS and tokens"),
        (("--listen", "7500"), {}, "--listen must be HOST:PORT"),
        (("--listen", "127.0.0.1:0"), {"SHOAL_TOKEN": "x"}, "Leave SHOAL_TOKEN out"),
        (("--listen", "127.0.0.1:0", "--tls", str(tmp_path)), {}, "cert.pem"),
        (("--tls", str(tmp_path)), {}, "belong to --listen"),
        (("--listen", f"127.0.0.1:{url.rpartition(':')[2]}"), {}, "cannot listen on"),
    ):
        with running("mcp", "--url", url, *options, config=environment) as (process, at):
            _, said = process.communicate(timeout=PATIENCE_S)
            assert (at, process.returncode != 0) == ("", True)
            assert told in " ".join(said.replace("│", " ").split()), said
            assert "Traceback" not in said


async def test_it_serves_over_tls_and_stops_when_told(url: str, tmp_path: Path) -> None:
    assert run("tls", "init", str(tmp_path / "tls"), "--node", "m,127.0.0.1").exit_code == 0
    tls = str(tmp_path / "tls" / "m")
    with running("mcp", "--url", url, "--listen", "127.0.0.1:0", "--tls", tls) as (process, at):
        assert at.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
        async with aiohttp.ClientSession(headers=JSON) as http, http.post(at, json=PING, ssl=context) as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
        assert "Traceback" not in said
