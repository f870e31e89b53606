"""Recipes of docs/DISKS_AND_NODES_LOST.md with real processes and the commands of the page."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

import shoal
from shoal.errors import NoQuorum, NotAMember, Unavailable
from tests.cli.conftest import PATIENCE_S
from tests.end_to_end.test_members import Nodes, command, founded, nodes, noticed, three


async def fence(url: str) -> int:
    """Take a lease and give it back, within a while; returns its fencing number."""
    async with (
        shoal.connect(url, wait=PATIENCE_S) as store,
        store.space("crew").lease("nightly", ttl=1.0, wait=PATIENCE_S) as lease,
    ):
        return lease.fence


async def saved(url: str, durability: str) -> int:
    async with shoal.connect(url, wait=PATIENCE_S) as store:
        counter = store.space("crew").counter("c")
        await counter.add(1, durability=durability)  # type: ignore[arg-type]
        return await counter.value()


async def saved_once_filled(url: str) -> int:
    """As `saved` on all, as soon as nodes that are being filled count."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await saved(url, "all")
            except NoQuorum as refused:
                if "until it has fetched" not in str(refused):
                    raise
            await asyncio.sleep(0.1)


async def barred(url: str) -> None:
    """A node that was given up is refused by the others, and writes nothing from then on."""
    async with asyncio.timeout(PATIENCE_S), shoal.connect(url, wait=PATIENCE_S) as store:
        while "removed from its cluster" not in (await store.status()).reason:
            await asyncio.sleep(0.05)
        with pytest.raises(NotAMember):
            await store.space("crew").counter("c").add(1, durability="local")


def moved(directory: Path, number: int) -> None:
    """Copy a directory to another disk, and put it in the place of the old one."""
    shutil.copytree(directory / str(number), directory / f"copy of {number}")
    (directory / str(number)).rename(directory / f"old {number}")
    (directory / f"copy of {number}").rename(directory / str(number))


def start(fleet: Nodes, numbers: list[int]) -> None:
    for number in numbers:
        fleet.start(number, [0, 1, 2])


@pytest.mark.answers("lost-majorities-are-rebuilt", note="real processes")
@pytest.mark.thorough
async def test_one_dead_node_and_one_lost_disk_are_survived(tmp_path: Path) -> None:
    with nodes(tmp_path) as fleet:
        url = await three(fleet)
        last = fleet.urls([2])[0]
        before = await fence(url)
        assert await saved(url, "all") == 1
        fleet.kill(0)
        fleet.kill(1)
        shutil.rmtree(tmp_path / "1")
        fleet.start(1, [0, 1, 2])
        await noticed(last, fleet.addresses[0])
        with pytest.raises((NoQuorum, Unavailable)):
            await saved(last, "quorum")
        [view] = await command("rebuild", "--dry-run", "--url", last)
        assert [each["name"] for each in view["survivors"]] == sorted(fleet.addresses[1:3])
        await command("rebuild", "--yes", "--leases-after", "0", "--url", last)
        assert await fence(last) > before
        assert await saved_once_filled(last) == 2
        fleet.start(0, [0, 1, 2])  # The dead node returns with its old disk.
        await barred(fleet.urls([0])[0])
        fleet.kill(0)
        shutil.rmtree(tmp_path / "0")
        fleet.start(0, [2])
        await command("add", fleet.addresses[0], "--url", last)
        assert await saved_once_filled(last) == 3


@pytest.mark.thorough
async def test_the_last_of_three_goes_on_alone(tmp_path: Path) -> None:
    with nodes(tmp_path) as fleet:
        url = await three(fleet)
        last = fleet.urls([2])[0]
        before = await fence(url)
        for number in (0, 1):
            fleet.kill(number)
        await noticed(last, fleet.addresses[0])
        await noticed(last, fleet.addresses[1])
        await command("rebuild", "--yes", "--leases-after", "0", "--url", last)
        assert await fence(last) > before
        assert await saved(last, "quorum") == 1
        fleet.start(3, [2])
        await command("add", fleet.addresses[3], "--url", last)
        assert await saved(fleet.urls([3])[0], "all") == 2


@pytest.mark.thorough
async def test_directories_that_were_all_moved_go_on_by_themselves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet = stack.enter_context(nodes(tmp_path))
        url = await three(fleet)
        before = await fence(url)
        assert await saved(url, "all") == 1
        for number in range(3):
            fleet.kill(number)
            moved(tmp_path, number)
        start(fleet, [0, 1, 2])
        await founded(url)
        assert await fence(url) > before
        assert await saved(url, "all") == 2
        fleet.kill(0)
        (tmp_path / "0").rename(tmp_path / "moved 0")
        (tmp_path / "old 0").rename(tmp_path / "0")
        fleet.start(0, [0, 1, 2])  # The directory of before is refused.
        await barred(url)
