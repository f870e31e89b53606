"""Cuts between real nodes: each direction by itself, with and without a word, by a user without privileges."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import shoal
from chaos.cluster import Cluster
from chaos.network import Cut, Route
from chaos.processes import running
from shoal.errors import NoQuorum, OutcomeUnknown

pytestmark = pytest.mark.usefixtures("forks")

PATIENCE_S = 30


async def held(cluster: Cluster, name: str) -> int:
    [url] = [node.url for node in cluster.nodes if node.name == name]
    async with shoal.connect(url) as store:
        return await store.space("s").counter("c").value()


async def reaches(cluster: Cluster, name: str, value: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await held(cluster, name) != value:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_cut_direction_carries_nothing_and_the_other_goes_on(tmp_path: Path, how: Cut) -> None:
    async with running(tmp_path, nodes=2, now_s=time.monotonic) as cluster:
        await cluster.network.cut([Route("n1", "n2")], how)
        passed = cluster.network.passed[Route("n1", "n2")]
        for node in cluster.nodes:
            async with shoal.connect(node.url) as store:
                await store.space("s").counter("c").add(1 if node.name == "n1" else 10)
        await reaches(cluster, "n1", 11)
        assert await held(cluster, "n2") == 10
        assert cluster.network.passed[Route("n1", "n2")] == passed
        await cluster.network.heal()
        await reaches(cluster, "n2", 11)


async def test_a_node_that_is_cut_off_makes_no_quorum(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=3, now_s=time.monotonic) as cluster:
        await cluster.network.isolate("n1", "refused")
        config = shoal.Config(request_timeout_s=1.0)
        async with shoal.connect(cluster.nodes[0].url, durability="quorum", config=config) as store:
            with pytest.raises((NoQuorum, OutcomeUnknown)):
                await store.space("s").counter("c").add(1)
        async with shoal.connect(cluster.nodes[1].url, durability="quorum") as store:
            await store.space("s").counter("c").add(1)


async def test_a_deaf_node_is_heard_and_hears_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2, now_s=time.monotonic) as cluster:
        network = cluster.network
        await network.deafen(Route("n1", "n2"))
        before = dict(network.heard)
        for node in cluster.nodes:
            async with shoal.connect(node.url) as store:
                await store.space("s").counter("c").add(1 if node.name == "n1" else 10)
        await reaches(cluster, "n1", 11)
        assert await held(cluster, "n2") == 10
        assert network.heard[Route("n1", "n2")] == before[Route("n1", "n2")]
        assert network.heard[Route("n2", "n1")] > before[Route("n2", "n1")]
        await network.heal()
        await reaches(cluster, "n2", 11)
