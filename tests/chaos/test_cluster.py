"""A node that does not do as it should is told of, with what it said."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import shoal
from chaos.cluster import NodeFailed, running


async def test_a_node_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "n1").write_text("not a directory")
    with pytest.raises(NodeFailed, match=r"(?s)n1 ended by itself.*n1"):
        async with running(tmp_path, nodes=1, now_s=time.monotonic):
            pass


async def test_a_node_that_was_not_ended_by_the_trial_is_missed(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        cluster.check()
        assert node._process is not None
        os.kill(node._process.pid, signal.SIGKILL)
        await node._process.wait()
        with pytest.raises(NodeFailed, match="n1 ended by itself"):
            cluster.check()


async def test_a_node_that_was_killed_comes_back_with_what_it_held_where_it_was(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        url = node.url
        async with shoal.connect(url) as store:
            await store.space("s").counter("c").add(3)
        await cluster.kill(node)
        assert cluster.up == []
        assert await cluster.views() == {}
        await cluster.start(node)
        async with shoal.connect(url) as store:
            assert await store.space("s").counter("c").value() == 3
