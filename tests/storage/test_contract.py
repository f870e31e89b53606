"""Every storage keeps the laws of `shoal.storage.interface`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count
from os import urandom
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.trials.powercut import power_cut, synced_wal_bytes, unsynced_parts
from shoal.config import Config, MiB
from shoal.errors import Overloaded, StorageError
from shoal.storage.commit import LoggedStorage
from shoal.storage.encrypted.keyring import Keyring, KeysInMemory, LocalKeys
from shoal.storage.encrypted.storage import EncryptedStorage
from shoal.storage.interface import LARGE_BYTES_MIN, STORAGE_SNAPSHOTS_MAX, MemoryStorage, Snapshot
from shoal.storage.rocks import RocksStorage
from tests.support.examples import examples

Rows = dict[bytes, bytes | None]
Write = tuple[Rows, list[tuple[bytes, bytes]]]

EVERYTHING = [(b"", b"\xff" * 8)]


class Harness(Protocol):
    storage: LoggedStorage

    def crash(self, cut: Callable[[int, int], int]) -> None:
        """Lose what `cut` leaves off, and open again."""
        ...


class MemoryHarness:
    def __init__(self) -> None:
        self.memory = MemoryStorage()
        self.storage: LoggedStorage = self.memory
        self.unsynced = 0

    def crash(self, cut: Callable[[int, int], int]) -> None:
        # More than there are means all of them.
        self.memory = MemoryStorage.crash(self.memory, cut(0, 4))
        self.storage = self.memory


class RocksHarness:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.generation = 0
        self.numbers = count(1)  # A crash that was cut short has made a directory already.
        self.rocks = self._open()
        self.storage: LoggedStorage = self.rocks

    def _open(self) -> RocksStorage:
        return RocksStorage.open(self.directory / str(self.generation), config=Config(memtable_bytes=MiB), now_ms=0)

    def crash(self, cut: Callable[[int, int], int]) -> None:
        before, following = self.rocks, next(self.numbers)
        power_cut(
            self.directory / str(self.generation),
            self.directory / str(following),
            synced_wal_bytes=lambda: synced_wal_bytes(before),
            cut=cut,
            unsynced=lambda: unsynced_parts(before),
        )
        before.close()
        self.generation = following
        self.rocks = self._open()
        self.storage = self.rocks


class EncryptedHarness:
    """Another harness, with encryption on top. Its keys outlive every crash, as a file that is synced."""

    def __init__(self, below: MemoryHarness | RocksHarness) -> None:
        self.below = below
        self.keys = KeysInMemory()
        self.storage: LoggedStorage = self._open()

    def _open(self) -> EncryptedStorage:
        keyring = Keyring(self.keys, LocalKeys([b"k" * 32], urandom), entropy=urandom, now_ms=lambda: 0, keys_max=1 << 20)
        return EncryptedStorage(self.below.storage, keyring, entropy=urandom, order_rows_max=4)

    def crash(self, cut: Callable[[int, int], int]) -> None:
        self.below.crash(cut)
        self.storage = self._open()


@pytest.fixture(params=["memory", "rocks", "encrypted memory", "encrypted rocks"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    below: MemoryHarness | RocksHarness = MemoryHarness() if "memory" in request.param else RocksHarness(tmp_path)
    made: Harness = EncryptedHarness(below) if "encrypted" in request.param else below
    yield made
    made.storage.close()


@pytest.fixture
def storage(harness: Harness) -> LoggedStorage:
    return harness.storage


def scan(storage: LoggedStorage) -> list[tuple[bytes, bytes]]:
    return list(storage.scan(b"", None))


@pytest.mark.parametrize("cut", [min, max])
def test_a_value_that_was_laid_down_is_as_durable_as_its_row(harness: Harness, cut: Callable[[int, int], int]) -> None:
    content = urandom(LARGE_BYTES_MIN)
    lay = harness.storage.begin_laying([content], lambda _: sha256(content).digest())
    end = lay() if lay is not None else None  # An encrypted one seals it with its row.
    harness.storage.write({b"a": content, b"b": b"1"})
    assert scan(harness.storage) == [(b"a", content), (b"b", b"1")]
    if end is not None:
        end()
    harness.storage.sync()
    harness.crash(cut)
    assert scan(harness.storage) == [(b"a", content), (b"b", b"1")]


def test_a_write_is_visible_at_once(storage: LoggedStorage) -> None:
    storage.write({b"a": b"1"})
    assert storage.get(b"a") == b"1"


def test_a_missing_key_reads_as_none(storage: LoggedStorage) -> None:
    assert storage.get(b"a") is None


def test_an_empty_value_is_not_a_missing_one(storage: LoggedStorage) -> None:
    storage.write({b"a": b""})
    assert storage.get(b"a") == b""


def test_none_deletes(storage: LoggedStorage) -> None:
    storage.write({b"a": b"1", b"b": b"2"})
    storage.write({b"a": None})
    assert scan(storage) == [(b"b", b"2")]


def test_deleting_what_is_not_there_does_nothing(storage: LoggedStorage) -> None:
    storage.write({b"a": None}, [(b"b", b"c")])
    assert scan(storage) == []


def test_writes_are_numbered_from_one(storage: LoggedStorage) -> None:
    assert [storage.write({b"a": b"1"}) for _ in range(3)] == [1, 2, 3]


def test_an_empty_write_counts(storage: LoggedStorage) -> None:
    assert storage.write({}) == 1
    assert storage.sync() == 1


def test_sync_returns_the_last_write_it_covers(storage: LoggedStorage) -> None:
    assert storage.sync() == 0
    storage.write({b"a": b"1"})
    storage.write({b"b": b"2"})
    assert storage.sync() == 2


def test_ranges_are_deleted_before_rows_are_put(storage: LoggedStorage) -> None:
    storage.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    storage.write({b"a": b"new"}, [(b"a", b"c")])
    assert scan(storage) == [(b"a", b"new"), (b"c", b"3")]


def test_a_range_that_ends_before_it_starts_is_empty(storage: LoggedStorage) -> None:
    storage.write({b"a": b"1", b"b": b"2"})
    storage.write({b"c": b"3"}, [(b"b", b"a"), (b"a", b"a")])
    assert scan(storage) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


@pytest.mark.parametrize(("start", "stop"), [(b"b", b"a"), (b"a", b"a")])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_that_ends_before_it_starts_is_empty(storage: LoggedStorage, start: bytes, stop: bytes, reverse: bool) -> None:
    storage.write({b"a": b"1", b"b": b"2"})
    assert list(storage.scan(start, stop, reverse=reverse)) == []


def test_a_limit_of_a_reverse_scan_counts_from_the_end(storage: LoggedStorage) -> None:
    storage.write({b"%d" % n: b"" for n in range(9)})
    assert [key for key, _ in storage.scan(b"2", b"7", reverse=True, limit=2)] == [b"6", b"5"]


def test_a_scan_shows_the_store_as_of_its_first_row(storage: LoggedStorage) -> None:
    storage.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    rows = storage.scan(b"", None)
    first = next(rows)
    storage.write({b"b": b"new", b"bb": b"", b"d": b"4"}, [(b"c", b"d")])
    assert [first, *rows] == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_a_scan_that_was_not_begun_sees_what_is_written_before_its_first_row(storage: LoggedStorage) -> None:
    rows = storage.scan(b"", None)
    storage.write({b"a": b"1"})
    assert list(rows) == [(b"a", b"1")]


def test_the_rows_given_may_be_changed_after_the_write(storage: LoggedStorage, harness: Harness) -> None:
    rows: Rows = {b"a": b"1"}
    storage.write(rows)
    rows[b"a"] = b"2"
    storage.sync()
    harness.crash(lambda least, _: least)
    assert scan(harness.storage) == [(b"a", b"1")]


def test_closing_keeps_what_was_not_synced(harness: Harness) -> None:
    harness.storage.write({b"a": b"1"})
    harness.storage.close()
    harness.storage.close()


short = st.binary(max_size=3)
writes = st.tuples(st.dictionaries(short, st.none() | short, max_size=5), st.lists(st.tuples(short, short), max_size=2))
per_example = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def apply(model: dict[bytes, bytes], write: Write) -> dict[bytes, bytes]:
    """The obvious twin."""
    rows, ranges = write
    left = {k: v for k, v in model.items() if not any(start <= k < stop for start, stop in ranges)}
    for key, value in rows.items():
        left.pop(key, None)
        if value is not None:
            left[key] = value
    return left


def expected(
    model: dict[bytes, bytes], start: bytes, stop: bytes | None, reverse: bool, limit: int | None
) -> list[tuple[bytes, bytes]]:
    inside = [(k, v) for k, v in sorted(model.items(), reverse=reverse) if k >= start and (stop is None or k < stop)]
    return inside[:limit]


@pytest.mark.answers("id-contains-a-separator")
@per_example
@given(st.lists(writes, max_size=6), short, st.none() | short, st.booleans(), st.none() | st.integers(0, 4))
def test_any_scan_equals_that_of_a_sorted_dict(
    harness: Harness, made: list[Write], start: bytes, stop: bytes | None, reverse: bool, limit: int | None
) -> None:
    harness.storage.write({}, EVERYTHING)
    model: dict[bytes, bytes] = {}
    for write in made:
        harness.storage.write(*write)
        model = apply(model, write)
    found = list(harness.storage.scan(start, stop, reverse=reverse, limit=limit))
    assert found == expected(model, start, stop, reverse, limit)
    assert all(harness.storage.get(key) == model.get(key) for key in {start, *model})


@settings(per_example, max_examples=12)
@given(st.lists(writes, max_size=4), st.lists(writes, max_size=4), st.randoms(use_true_random=False))
def test_a_crash_leaves_the_synced_writes_and_a_prefix_of_the_others(
    harness: Harness, synced: list[Write], unsynced: list[Write], random: Random
) -> None:
    harness.storage.write({}, EVERYTHING)
    model: dict[bytes, bytes] = {}
    for write in synced:
        harness.storage.write(*write)
        model = apply(model, write)
    harness.storage.sync()
    legal = [model]
    for write in unsynced:
        harness.storage.write(*write)
        legal.append(apply(legal[-1], write))
    harness.crash(random.randint)
    assert dict(scan(harness.storage)) in legal


def test_a_crash_that_keeps_the_log_keeps_every_write_before_a_sync_began(harness: Harness) -> None:
    for number in range(4):
        harness.storage.write({b"%d" % number: b""})
    harness.storage.begin_sync()
    harness.crash(lambda _, most: most)
    assert len(scan(harness.storage)) == 4


def test_a_crash_that_loses_the_unsynced_log_loses_every_unsynced_write(harness: Harness) -> None:
    harness.storage.write({b"synced": b""})
    harness.storage.sync()
    harness.storage.write({b"unsynced": b""})
    harness.crash(lambda least, _: least)
    assert scan(harness.storage) == [(b"synced", b"")]


def test_two_crashes_in_a_row_lose_nothing_that_the_first_kept(harness: Harness) -> None:
    harness.storage.write({b"a": b"1"})
    harness.storage.begin_sync()
    harness.crash(lambda _, most: most)
    harness.crash(lambda least, _: least)
    assert scan(harness.storage) == [(b"a", b"1")]


def rows_of(snapshot: Snapshot) -> list[tuple[bytes, bytes]]:
    return list(snapshot.scan(b"", b"\xff"))


@pytest.mark.parametrize("later", ["put", "change", "delete", "range"])
def test_a_snapshot_shows_nothing_of_later_writes(storage: LoggedStorage, later: str) -> None:
    storage.write({b"a": b"1", b"b": b"2"})
    snapshot = storage.snapshot()
    rows: dict[str, Rows] = {"put": {b"c": b"3"}, "change": {b"a": b"3"}, "delete": {b"a": None}, "range": {}}
    storage.write(rows[later], EVERYTHING if later == "range" else [])
    assert rows_of(snapshot) == [(b"a", b"1"), (b"b", b"2")]
    assert scan(storage) != rows_of(snapshot)
    snapshot.close()


def test_a_snapshot_outlasts_a_new_log_and_reclaimed_space(storage: LoggedStorage) -> None:
    storage.write({bytes([number]): b"1" * 1000 for number in range(100)})
    snapshot = storage.snapshot()
    storage.write({}, EVERYTHING)
    storage.reclaim()
    for number in range(100):
        storage.write({bytes([number]): b"2" * 20_000})
        storage.sync()
        storage.rotate_if_due()
    assert rows_of(snapshot) == [(bytes([number]), b"1" * 1000) for number in range(100)]
    snapshot.close()


def test_a_snapshot_shows_writes_that_are_not_synced(storage: LoggedStorage) -> None:
    storage.sync()
    storage.write({b"a": b"1"})
    snapshot = storage.snapshot()
    assert rows_of(snapshot) == [(b"a", b"1")]
    snapshot.close()


def test_a_snapshot_is_scanned_in_parts(storage: LoggedStorage) -> None:
    storage.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    snapshot = storage.snapshot()
    assert list(snapshot.scan(b"b", b"c")) == [(b"b", b"2")]
    assert list(snapshot.scan(b"a", b"b")) == [(b"a", b"1")]
    assert list(snapshot.scan(b"d", b"e")) == []
    snapshot.close()


def test_a_closed_snapshot_shows_nothing(storage: LoggedStorage) -> None:
    snapshot = storage.snapshot()
    snapshot.close()
    snapshot.close()
    with pytest.raises(StorageError, match="closed"):
        rows_of(snapshot)


def test_the_open_snapshots_are_bounded(storage: LoggedStorage) -> None:
    taken = [storage.snapshot() for _ in range(STORAGE_SNAPSHOTS_MAX)]
    with pytest.raises(Overloaded, match="snapshots"):
        storage.snapshot()
    taken.pop().close()
    taken.append(storage.snapshot())
    for snapshot in taken:
        snapshot.close()


def test_closing_a_store_closes_its_snapshots(harness: Harness) -> None:
    harness.storage.write({b"a": b"1"})
    snapshot = harness.storage.snapshot()
    harness.storage.close()
    with pytest.raises(StorageError):
        rows_of(snapshot)
