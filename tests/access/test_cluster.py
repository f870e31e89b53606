"""Tokens and a cluster: a revocation reaches all nodes, and no token opens the peers' route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest

import shoal
from chaos.ports import free_ports
from shoal.access.access import Access
from shoal.cli.serving import access_of, listening, peers_of
from shoal.config import Config
from shoal.errors import Unauthenticated
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.transport.peer_link import PEER_PATH
from tests.access.conftest import Mint

PATIENT = Config(request_timeout_s=30.0, reach_timeout_s=30.0)


@pytest.fixture
async def urls(mint: Mint, tmp_path: Path) -> AsyncIterator[list[str]]:
    """Two nodes that are linked, and ask for tokens."""
    ports = free_ports(2)
    join = ",".join(f"127.0.0.1:{port}" for port in ports)
    async with AsyncExitStack() as stack:
        found = []
        for port in ports:
            config = msgspec.structs.replace(
                Config(),
                listen_port=port,
                join=join,
                cluster_key="a secret of the nodes alone",
                token_keys=mint.keys,
                stop_timeout_s=2.0,
            )
            environment = system_environment()
            node = await open_node(tmp_path / f"n{port}", config=config, environment=environment)
            stack.push_async_callback(node.stop)
            access = access_of(config)
            assert isinstance(access, Access)
            await access.start(node.session())
            stack.push_async_callback(access.stop)
            peers = peers_of(node.replicator, config, environment)
            listener = await listening(node, config, peers, None, access)
            stack.push_async_callback(listener.stop)
            assert peers is not None
            peers.start()
            found.append(listener.url)
        yield found


@pytest.mark.answers("revoked-tokens-end")
async def test_a_revocation_at_one_node_counts_at_the_others(mint: Mint, urls: list[str]) -> None:
    first, second = urls
    made, ops = mint.make("crew:read,write"), mint.make("*:admin")
    async with (
        shoal.connect(second, token=made.text, config=PATIENT) as store,
        shoal.connect(first, token=ops.text, config=PATIENT) as admin,
    ):
        await store.space("crew").counter("n").add(1)
        await admin.space(".shoal").map("revoked").set(made.token.id, int(made.token.ends_s))
        async with asyncio.timeout(60):
            with pytest.raises(Unauthenticated, match="is revoked"):
                while True:
                    await store.space("crew").counter("n").value()
                    await asyncio.sleep(0.02)


@pytest.mark.answers("peers-route-is-closed")
async def test_no_token_opens_the_route_of_the_peers(mint: Mint, urls: list[str], http: aiohttp.ClientSession) -> None:
    made = mint.make("*:admin,impersonate")
    for headers in ({}, made.header, {"Cookie": f"__Host-shoal={made.text}"}):
        peer = await http.ws_connect(urls[0] + PEER_PATH, headers=headers)
        for said in (b"", made.text.encode(), msgspec.msgpack.encode(["peer-hello", made.text])):
            if not peer.closed:
                await peer.send_bytes(said)
        async with asyncio.timeout(60):
            answers = [message.data async for message in peer if message.type is aiohttp.WSMsgType.BINARY]
        assert b"peer-accepted" not in b"".join(answers)
        assert peer.closed


async def test_the_cluster_goes_on_without_tokens_among_peers(mint: Mint, urls: list[str]) -> None:
    made = mint.make("crew:read,write")
    async with shoal.connect(urls[0], token=made.text, config=PATIENT, durability="all") as store:
        await store.space("crew").counter("n").add(5)
    async with shoal.connect(urls[1], token=made.text, config=PATIENT) as store:
        assert await store.space("crew").counter("n").value() == 5
