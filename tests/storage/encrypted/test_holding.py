"""Rows that are held until a sync begins, and then sealed together."""

from __future__ import annotations

import pytest

from shoal.errors import StorageFull
from shoal.storage import keys
from shoal.storage.encrypted.storage import EncryptedStorage, sealed_by
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from tests.storage.encrypted.conftest import Sealed

ROWS = keys.object_rows(7, Kind.REGISTER, "crew", "goal")
ROW, OTHER = ROWS + b"S", ROWS + b"T"


def below(inner: MemoryStorage) -> list[bytes]:
    return [key for key, _ in inner.scan(b"", None)]


def test_rows_are_held_until_a_sync_begins_and_are_written_below_as_one(sealed: Sealed) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    assert [storage.write({ROW: b"1"}), storage.write({ROW: b"2", OTHER: b""})] == [1, 2]
    assert below(inner) == []
    sync = storage.begin_sync()
    assert below(inner) == [ROW, OTHER]
    assert storage.write({OTHER: None}) == 3
    assert sync() == 2
    assert opened(storage, inner.left_by_crash(0)) == {ROW: b"2", OTHER: b""}
    assert storage.get(OTHER) is None
    assert storage.sync() == 3


def opened(storage: EncryptedStorage, inner: MemoryStorage) -> dict[bytes, bytes]:
    return dict(storage.opened(place, row) for place, row in inner.scan(b"", None))


@pytest.mark.answers("encrypted-files-show-nothing", note="what is held until a sync")
def test_held_rows_are_seen_by_every_read(sealed: Sealed) -> None:
    storage = sealed(MemoryStorage())
    storage.write({ROW: b"old", OTHER: b"gone"})
    storage.sync()
    storage.write({ROW: b"new", OTHER: None, ROWS + b"U": b"more"})
    shown = [(ROW, b"new"), (ROWS + b"U", b"more")]
    assert storage.get(ROW) == b"new"
    assert storage.get(OTHER) is None
    assert list(storage.scan(b"", None)) == shown
    assert list(storage.scan(ROW, ROWS + b"V", reverse=True)) == shown[::-1]
    assert list(storage.scan(ROW, None, limit=1)) == shown[:1]
    assert storage.has_rows(ROWS + b"U", ROWS + b"V")
    assert not storage.has_rows(ROWS + b"V", ROWS + b"W")
    taken = storage.snapshot()
    assert list(taken.scan(b"", b"\xff")) == shown


def test_a_range_that_is_deleted_takes_held_rows_with_it(sealed: Sealed) -> None:
    storage = sealed(MemoryStorage())
    storage.write({ROW: b"1", OTHER: b"2"})
    storage.write({ROW: b"3"}, [(ROWS, ROWS + b"\xff")])
    assert list(storage.scan(b"", None)) == [(ROW, b"3")]


@pytest.mark.parametrize("size", [1, 100_000])
def test_held_operations_are_bounded(sealed: Sealed, size: int) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    most = 0
    for number in range(600):
        storage.write({ROWS + b"%d" % number: b"x" * size})
        most = max(most, number + 1 - len(below(inner)))
    assert most == (256 if size == 1 else 11)


@pytest.mark.answers("encrypted-files-show-nothing", note="what is held until a sync")
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failure_reads_show_what_is_held_and_writes_are_refused(sealed: Sealed, operation: str) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    storage.write({ROW: b"1"})
    inner.fail_next("write" if operation == "write" else "sync")
    with pytest.raises(StorageFull):
        storage.sync()
    for _ in range(2):
        with pytest.raises(StorageFull):
            storage.write({OTHER: b"2"})
    with pytest.raises(StorageFull):
        storage.sync()
    assert storage.get(ROW) == b"1"
    assert list(storage.scan(b"", None)) == [(ROW, b"1")]
    storage.close()


@pytest.mark.answers("encrypted-files-show-nothing", note="what is held until a sync")
def test_sealing_anew_does_not_bring_back_what_a_held_row_replaces(sealed: Sealed) -> None:
    storage = sealed(MemoryStorage())
    storage.write({ROW: b"old"})
    storage.sync()
    number = storage.keyring.ensure(b"crew").current.number
    storage.keyring.rotate([b"crew"])
    storage.write({ROW: b"new"})
    assert sealed_by(storage, [number], b"", rows_max=100, bytes_max=1000).rows == {}
    assert storage.get(ROW) == b"new"


def test_closing_makes_held_rows_durable(sealed: Sealed) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    storage.write({ROW: b"1"})
    storage.close()
    assert below(inner.left_by_crash(0)) == [ROW]
