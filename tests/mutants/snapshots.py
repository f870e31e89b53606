"""Bugs of snapshots of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from shoal.node.database import BeforeSwitch, Database
from shoal.node.snapshots import switching
from shoal.node.snapshots.switching import Row, Write
from shoal.storage import keys
from shoal.storage.interface import Storage
from tests.mutants.mutant import Mutant


def a_snapshot_is_merged(patch: pytest.MonkeyPatch) -> None:
    sound = switching.writes

    def writes(storage: Storage, number: int, pieces: Iterable[list[Row]]) -> Iterator[Write]:
        for write in sound(storage, number, pieces):
            yield Write(write.rows, [span for span in write.ranges if span[0][:1] not in (keys.OBJECT, keys.LISTED)])

    patch.setattr(switching, "writes", writes)


def memory_outlasts_the_switch(patch: pytest.MonkeyPatch) -> None:
    def after(self: Database, number: int, before: BeforeSwitch) -> None:
        before.transaction.written()
        self.partitions.replaced(number)

    patch.setattr(Database, "after_switch", after)


def the_catalog_is_not_made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switching.Entries, "added_to", lambda self, rows: dict(rows))


REFILLED = frozenset({"refilled"})

MUTANTS = (
    Mutant(
        a_snapshot_is_merged,
        "a snapshot is merged into the partition instead of replacing it",
        ("2", "4"),
        composites=REFILLED,
        nodes_min=3,
    ),
    Mutant(
        memory_outlasts_the_switch,
        "memory keeps what it knew of a partition that was replaced",
        ("2", "4", "6", "7"),
        composites=REFILLED,
        nodes_min=3,
    ),
    Mutant(
        the_catalog_is_not_made_again,
        "objects that a snapshot brings are not listed",
        ("4", "6"),
        composites=REFILLED,
        nodes_min=3,
    ),
)
