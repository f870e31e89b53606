from __future__ import annotations

from typing import Literal

import pytest

from shoal.errors import StorageError, StorageFull
from shoal.storage.interface import MemoryStorage


def written(*, synced: int, unsynced: int) -> MemoryStorage:
    storage = MemoryStorage()
    for number in range(synced + unsynced):
        if number == synced:
            storage.sync()
        storage.write({b"%d" % number: b""})
    return storage


def keys(storage: MemoryStorage) -> list[bytes]:
    return [key for key, _ in storage.scan(b"", None)]


@pytest.mark.parametrize(("keep", "left"), [(0, 2), (1, 3), (3, 5), (99, 5), (None, 5)])
def test_a_crash_keeps_as_many_unsynced_writes_as_it_is_told(keep: int | None, left: int) -> None:
    assert keys(written(synced=2, unsynced=3).crash(keep)) == [b"%d" % number for number in range(left)]


def test_data_that_survived_a_crash_survives_the_next() -> None:
    assert keys(written(synced=0, unsynced=2).crash(1).crash(0)) == [b"0"]


def test_a_storage_is_dead_after_its_crash() -> None:
    storage = written(synced=1, unsynced=1)
    left = storage.crash(0)
    storage.close()
    with pytest.raises(StorageError, match="lost in a crash"):
        storage.write({b"late": b""})
    with pytest.raises(StorageError, match="lost in a crash"):
        storage.sync()
    assert keys(left) == [b"0"]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_one_failure_every_write_and_sync_is_refused(operation: Literal["write", "sync"]) -> None:
    storage = MemoryStorage()
    storage.fail_next(operation)
    with pytest.raises(StorageFull):
        getattr(storage, operation)(*([{b"a": b""}] if operation == "write" else []))
    with pytest.raises(StorageFull):
        storage.write({b"b": b""})
    with pytest.raises(StorageFull):
        storage.sync()
    assert storage.failed is not None


def test_a_failed_write_is_not_shown() -> None:
    storage = written(synced=1, unsynced=0)
    storage.fail_next("write")
    with pytest.raises(StorageFull):
        storage.write({b"a": b""}, [(b"", b"z")])
    assert keys(storage) == [b"0"]


def test_a_failed_sync_makes_nothing_durable() -> None:
    storage = written(synced=1, unsynced=1)
    storage.fail_next("sync")
    with pytest.raises(StorageFull):
        storage.sync()
    storage.close()
    assert keys(storage.crash(0)) == [b"0"]
