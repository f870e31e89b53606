"""Bugs of snapshots of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from shoal.node.database import BeforeSwitch, Database
from shoal.node.partitions import Partition, Partitions
from shoal.node.snapshots import receiving, switching
from shoal.node.snapshots.sending import SnapshotSender
from shoal.node.snapshots.switching import Row, Write
from shoal.storage import keys
from shoal.storage.interface import Snapshot, Storage
from tests.mutants.mutant import Mutant


def a_snapshot_is_merged(patch: pytest.MonkeyPatch) -> None:
    sound = switching.writes

    def writes(storage: Storage, number: int, pieces: Iterable[list[Row]]) -> Iterator[Write]:
        for write in sound(storage, number, pieces):
            yield Write(write.rows, [span for span in write.ranges if span[0][:1] not in (keys.OBJECT, keys.LISTED)])

    patch.setattr(switching, "writes", writes)


def a_snapshot_that_lacks_something_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiving, "lacking", lambda content, ours: None)
    patch.setattr(receiving, "differing", lambda *_, only: None)


def a_partition_is_used_while_it_is_replaced(patch: pytest.MonkeyPatch) -> None:
    def close(self: Partitions, number: int) -> Partition:
        return self.load(number)

    patch.setattr(Partitions, "close", close)


def memory_outlasts_the_switch(patch: pytest.MonkeyPatch) -> None:
    def after(self: Database, number: int, before: BeforeSwitch) -> None:
        before.transaction.written()
        self.partitions.replaced(number)

    patch.setattr(Database, "after_switch", after)


class _Now:
    """Not a snapshot: it shows what is there when it is read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        return self._storage.scan(start, stop)

    def close(self) -> None:
        """There is nothing to release."""


def a_snapshot_is_of_several_moments(patch: pytest.MonkeyPatch) -> None:
    sound = SnapshotSender.__init__

    def init(self: SnapshotSender, storage: Storage, *args: object, **options: object) -> None:
        sound(self, storage, *args, **options)  # type: ignore[arg-type]

        class Wrapped:
            def snapshot(self) -> Snapshot:
                return _Now(storage)

        self._storage = Wrapped()  # type: ignore[assignment]

    patch.setattr(SnapshotSender, "__init__", init)


def a_switch_has_no_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switching, "marker", lambda number, pieces: {})


def a_snapshot_is_sent_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    class Hasty:
        written = 0

        async def wait_durable(self, number: int) -> None:
            """Not at all."""

    sound = SnapshotSender.__init__

    def init(self: SnapshotSender, *args: object, **options: object) -> None:
        sound(self, *args, **options)  # type: ignore[arg-type]
        self._commit = Hasty()  # type: ignore[assignment]

    patch.setattr(SnapshotSender, "__init__", init)


def the_catalog_is_not_made_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switching._Entries, "added_to", lambda self, rows: dict(rows))


_REFILLED = frozenset({"refilled"})

MUTANTS = (
    Mutant(
        a_snapshot_is_merged,
        "a snapshot is merged into the partition instead of replacing it",
        ("2", "4"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        a_snapshot_that_lacks_something_is_taken,
        "a partition is replaced by a snapshot that lacks what is held here",
        ("2", "3", "4"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        a_partition_is_used_while_it_is_replaced,
        "a partition is read and written while it is replaced",
        ("1", "2", "4"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        memory_outlasts_the_switch,
        "memory keeps what it knew of a partition that was replaced",
        ("2", "4", "6", "7"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        a_snapshot_is_of_several_moments,
        "a snapshot does not show one moment",
        ("2", "4"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        a_switch_has_no_marker,
        "a switch leaves no marker, so a crash leaves half of it",
        ("2", "4", "9"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        a_snapshot_is_sent_before_it_is_durable,
        "a snapshot is sent before what it shows is durable",
        ("1", "2"),
        composites=_REFILLED,
        nodes_min=3,
    ),
    Mutant(
        the_catalog_is_not_made_again,
        "objects that a snapshot brings are not listed",
        ("4", "6"),
        composites=_REFILLED,
        nodes_min=3,
    ),
)
