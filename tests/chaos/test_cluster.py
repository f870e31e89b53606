"""A node that does not do as it should is told of, with what it said."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

import shoal
from chaos.cluster import Cluster, Node, NodeFailed
from chaos.processes import ProcessNode, running

pytestmark = pytest.mark.usefixtures("forks")

PATIENCE_S = 60.0


async def test_a_node_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "n1").write_text("not a directory")
    with pytest.raises(NodeFailed, match=r"(?s)n1 ended by itself.*n1"):
        async with running(tmp_path, nodes=1, now_s=time.monotonic):
            pass


async def test_a_node_that_was_not_ended_by_the_trial_is_missed(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        await cluster.check()
        assert isinstance(node, ProcessNode)
        assert node._process is not None
        os.kill(node._process.pid, signal.SIGKILL)
        await node._process.wait()
        with pytest.raises(NodeFailed, match="n1 ended by itself"):
            await cluster.check()


@pytest.mark.parametrize(("share", "starts"), [(0.02, True), (1.0, False)])
async def test_a_busy_machine_is_no_fault_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, starts: bool
) -> None:
    """A node gets this share of a processor and answers at the hundredth look; each look takes a second of the clock."""
    looks = 0

    async def is_alive(self: Cluster, node: Node) -> bool:
        nonlocal looks
        looks += 1
        return looks == 100

    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        await node.kill()
        monkeypatch.setattr(cluster, "now_s", lambda: float(looks))
        monkeypatch.setattr(ProcessNode, "delayed_s", lambda self: looks * (1 - share))
        monkeypatch.setattr(Cluster, "_is_alive", is_alive)
        if starts:
            await cluster.launch(node)
        else:
            with pytest.raises(NodeFailed, match="n1 did not answer within 30 s"):
                await cluster.launch(node)


async def test_a_process_tells_how_long_it_waited_for_a_processor(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        assert (node.delayed_s() > 0) == Path("/proc/self/schedstat").exists()
        await node.kill()
        assert node.delayed_s() >= 0


async def test_a_node_that_was_killed_comes_back_with_what_it_held_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        url = node.url
        async with shoal.connect(url) as store:
            await store.space("s").counter("c").add(3)
        await node.kill()
        assert cluster.up == []
        assert await cluster.views() == {}
        await cluster.start(node)
        async with shoal.connect(url) as store:
            assert await store.space("s").counter("c").value() == 3


async def test_nodes_are_still_once_nothing_was_written_for_so_long(tmp_path: Path) -> None:
    """A node that puts rights back while another one stops is not a trial in which the nodes differ."""
    written = 0

    async def write(url: str) -> None:
        nonlocal written
        async with shoal.connect(url) as store:
            for _ in range(10):
                await store.space("s").counter("c").add(1)
                written += 1
                await asyncio.sleep(0.1)

    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        writing = asyncio.create_task(write(cluster.nodes[0].url))
        assert await cluster.still(PATIENCE_S, 0.5) is None
        assert await cluster.still(2.0, PATIENCE_S) is not None
        assert written == 10
        await writing
