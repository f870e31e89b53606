"""The first members, found by seeds: a list is told once the disk has it, and counts once all have confirmed it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cluster.membership.epochs import Record, founded
from shoal.cluster.peering import Identity
from shoal.errors import StorageFull
from shoal.node.peers.memberships import Seeding

NAMES = ("a:1", "b:1", "c:1")


class Disk:
    """As much of a roster as the search for members needs."""

    own = "a:1"
    epoch = 0

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.is_full = False
        self.members: tuple[str, ...] = ()

    def kept(self, row: bytes) -> bytes | None:
        return self.rows.get(row)

    async def keep(self, row: bytes, value: bytes) -> None:
        if self.is_full:
            raise StorageFull("the disk is full. Nothing was written.")
        self.rows[row] = value

    def found(self, members: tuple[str, ...]) -> None:
        self.members = members

    @property
    def record(self) -> Record:
        return founded(self.members)


def peers(*names: str, members: tuple[str, ...] = ()) -> list[Identity]:
    return [Identity(name.encode().ljust(16), name, "test", members=members) for name in names]


async def test_a_list_is_told_once_the_disk_has_it() -> None:
    disk: Any = Disk()
    seeding = Seeding(disk, size=3)
    disk.is_full = True
    with pytest.raises(StorageFull):
        await seeding.heard(peers("b:1", "c:1"))
    assert not seeding.members
    disk.is_full = False
    await seeding.heard(peers("b:1", "c:1"))
    assert seeding.members == NAMES
    assert Seeding(disk, size=3).members == NAMES


async def test_a_list_counts_once_all_have_confirmed_it() -> None:
    disk: Any = Disk()
    seeding = Seeding(disk, size=3)
    await seeding.heard(peers("b:1", "c:1"))
    await seeding.heard([*peers("b:1", members=NAMES), *peers("c:1")])
    assert not seeding.is_over
    assert disk.members == ()
    await seeding.heard(peers("b:1", "c:1", members=NAMES))
    assert seeding.is_over
    assert disk.members == NAMES
