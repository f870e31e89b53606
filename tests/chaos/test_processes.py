"""What a process can be made to suffer: a full disk, where root may mount one, and a clock that somebody sets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal
from chaos.cluster import Cluster, Node, NodeFailed
from chaos.processes import SKEWED, Disk, no_disks, running
from shoal.client.store import Store
from shoal.errors import ClockWrong, ReadOnly, StorageFull

pytestmark = pytest.mark.usefixtures("forks")

PATIENCE_S = 60.0
BLOB_BYTES = 100_000


async def state(cluster: Cluster, node: Node) -> str:
    async with shoal.connect(node.url) as store:
        return (await store.status()).state


async def comes_to(cluster: Cluster, node: Node, wanted: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await state(cluster, node) != wanted:
            await asyncio.sleep(0.05)


def mountable(directory: Path) -> None:
    if why := no_disks(directory):
        pytest.skip(why)


async def fails(store: Store) -> ReadOnly | StorageFull:
    """Write until it fails. No two contents are alike: what is there already is not written again, and fills nothing."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await store.space("s").thread("t").save({"blob": os.urandom(BLOB_BYTES)}, on_conflict="fork")
            except (ReadOnly, StorageFull) as error:
                return error


async def test_a_full_disk_is_read_and_written_once_there_is_room(tmp_path: Path) -> None:
    mountable(tmp_path)
    async with running(tmp_path, nodes=1, now_s=time.monotonic, disks=True) as cluster:
        [node] = cluster.nodes
        async with shoal.connect(node.url) as store:
            await store.space("s").counter("c").add(3)
            await node.fill()
            await fails(store)
            assert await store.space("s").counter("c").value() == 3
        await node.kill()
        await cluster.launch(node)
        assert await state(cluster, node) == "read-only"
        await node.drain()
        await cluster.stop(node)
        await cluster.start(node)
        async with shoal.connect(node.url) as store:
            assert await store.space("s").counter("c").add(1) == 4
    assert (tmp_path / "n1" / "db").is_dir()
    assert not (tmp_path / "n1.disk").exists()


def test_a_machine_that_mounts_nothing_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Disk) -> None:
        raise OSError("must be superuser to use mount")

    monkeypatch.setattr(Disk, "mount", refused)
    assert no_disks(tmp_path) == "no disk can be mounted here, which takes root (must be superuser to use mount)"


def test_a_disk_ends_with_the_program_that_mounted_it(tmp_path: Path) -> None:
    mountable(tmp_path)
    program = f"""
import os, pathlib
from chaos.processes import Disk, mount_apart
mount_apart()
Disk(pathlib.Path({str(tmp_path / "disk")!r})).mount()
print({str(tmp_path)!r} in pathlib.Path("/proc/self/mounts").read_text(), flush=True)
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-9, "True\n"), ended.stderr
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_a_node_whose_clock_jumps_writes_nothing_until_it_is_right(tmp_path: Path, ahead_s: float) -> None:
    async with running(tmp_path, nodes=3, now_s=time.monotonic, program=SKEWED) as cluster:
        node = cluster.nodes[0]
        async with shoal.connect(node.url) as store:
            await store.space("s").counter("c").add(1)
            await node.set_clock(ahead_s)
            await comes_to(cluster, node, "read-only")  # Once it has heard from both.
            with pytest.raises(ClockWrong):
                await store.space("s").counter("c").add(1)
            await node.set_clock(0.0)
            await comes_to(cluster, node, "ready")
            assert await store.space("s").counter("c").add(1) == 2


async def test_a_node_that_does_not_stop_in_time_is_told_of_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.cluster.STOP_S_MAX", 0.01)
    async with running(tmp_path, nodes=1, now_s=time.monotonic) as cluster:
        [node] = cluster.nodes
        await node.pause()
        with pytest.raises(NodeFailed, match="n1 did not stop within"):
            await cluster.stop(node)
        process = node._process
    assert process is not None
    assert process.returncode == -9
