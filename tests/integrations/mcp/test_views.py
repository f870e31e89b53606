"""Which clients of MCP over HTTP are known, and that none waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Store
from shoal.errors import Overloaded, Unauthenticated, Unreachable
from shoal.integrations.mcp.views import ViewsByToken
from tests.integrations.mcp.conftest import WHOLE_TEST_S


class Nodes:
    """Nodes that let tokens in when told, and count the connections that are open."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.open: list[str | None] = []
        self.answers: dict[str | None, asyncio.Event] = {}
        self.refuses: dict[str | None, Exception] = {}

    @asynccontextmanager
    async def connect(self, token: str | None) -> AsyncIterator[Store]:
        if token in self.answers:
            await self.answers[token].wait()
        if token in self.refuses:
            raise self.refuses[token]
        self.open.append(token)
        yield self.store
        self.open.remove(token)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with shoal.open(tmp_path / "agents") as store:
        yield Nodes(store)


def of(nodes: Nodes, clients_max: int = 8) -> ViewsByToken:
    return ViewsByToken(nodes.connect, "crew", asks=True, clients_max=clients_max)


async def test_no_client_waits_for_the_connection_of_another(nodes: Nodes) -> None:
    views = of(nodes)
    nodes.answers["slow"] = asyncio.Event()
    waiting = asyncio.create_task(views.admits("slow"))
    await asyncio.sleep(0)
    async with asyncio.timeout(WHOLE_TEST_S):
        assert await views.admits("quick")
    assert not waiting.done()
    nodes.answers["slow"].set()
    assert await waiting
    assert nodes.open == ["quick", "slow"]
    await views.close()
    assert nodes.open == []


async def test_requests_with_one_token_share_its_connection(nodes: Nodes) -> None:
    views = of(nodes)
    nodes.answers["ana"] = asyncio.Event()
    asked = [asyncio.create_task(views.admits("ana")) for _ in range(3)]
    await asyncio.sleep(0)
    nodes.answers["ana"].set()
    assert await asyncio.gather(*asked) == [True] * 3
    assert nodes.open == ["ana"]
    await views.close()


async def test_clients_whose_connection_is_being_opened_count(nodes: Nodes) -> None:
    views = of(nodes, clients_max=2)
    tokens = ["a", "b"]
    nodes.answers = {token: asyncio.Event() for token in tokens}
    asked = [asyncio.create_task(views.admits(token)) for token in tokens]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 tokens are under way"):
        async with asyncio.timeout(WHOLE_TEST_S), views.by("c"):
            pass
    for token in tokens:
        nodes.answers[token].set()
    assert await asyncio.gather(*asked) == [True, True]
    async with views.by("c"):
        assert nodes.open == ["b", "c"]
    await views.close()


@pytest.mark.parametrize("error", [Unauthenticated("no"), Unreachable("no node")])
async def test_a_client_that_could_not_connect_is_forgotten(nodes: Nodes, error: Exception) -> None:
    views = of(nodes, clients_max=1)
    nodes.refuses["ana"] = error
    assert await views.admits("ana") is isinstance(error, Unreachable)
    async with views.by("bob"):
        assert nodes.open == ["bob"]
    await views.close()


async def test_a_client_that_is_in_use_closes_when_its_requests_end(nodes: Nodes) -> None:
    views = of(nodes)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(views.by("ana"))
        await views.close()
        assert nodes.open == ["ana"]
    assert nodes.open == []
