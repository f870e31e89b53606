"""A pass after which the files hold nothing of what was deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from shoal.config import Config, MiB
from shoal.storage.engine import BLOB_BYTES_MIN, ErasingPass
from shoal.storage.rocks import RocksStorage
from tests.support.remains import files_with, uncompressed

MARK = b"the-text-that-was-deleted"
PATIENCE_S = 60.0


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksStorage]:
    uncompressed(monkeypatch)
    storage = RocksStorage.open(tmp_path, config=Config(memtable_bytes=MiB, block_cache_bytes=MiB), now_ms=0)
    yield storage
    storage.close()


def write(storage: RocksStorage, rows: Mapping[bytes, bytes | None]) -> None:
    for row, value in rows.items():
        storage.write({row: value})
        storage.rotate_if_due()
    storage.sync()


def others(count: int, seed: int = 1) -> dict[bytes, bytes]:
    random = Random(seed)
    return {b"%08d" % random.randrange(10**8): random.randbytes(4000) for _ in range(count)}


def erase(storage: RocksStorage) -> None:
    storage.begin_erasing()
    began = time.monotonic()
    while not storage.erase(age := time.monotonic() - began):
        assert age < PATIENCE_S
        time.sleep(0.1)


@pytest.mark.answers("deleted-data-can-still-be-read-in-the-files")
@pytest.mark.parametrize("count", [0, 10, 4000], ids=["alone", "few others", "many others"])
def test_no_file_holds_a_deleted_row(storage: RocksStorage, tmp_path: Path, count: int) -> None:
    write(storage, others(count) | {b"5" + MARK: MARK * 10})
    write(storage, {b"5" + MARK: None})
    assert files_with(tmp_path, MARK)
    erase(storage)
    assert files_with(tmp_path, MARK) == []
    assert len(list(storage.scan(b"", None))) == count


def test_no_file_holds_a_deleted_range(storage: RocksStorage, tmp_path: Path) -> None:
    write(storage, others(3000) | {b"5%d%s" % (n, MARK): MARK for n in range(1000)})
    storage.write({}, [(b"50", b"5:")])
    erase(storage)
    assert files_with(tmp_path, MARK) == []


def test_long_deleted_rows_are_gone_after_a_pass(storage: RocksStorage, tmp_path: Path) -> None:
    write(storage, {b"5" + MARK: MARK, b"6" + MARK: b""})
    erase(storage)  # Now they are in the deepest level.
    assert files_with(tmp_path, MARK)
    write(storage, {b"5" + MARK: None, b"6" + MARK: None, **others(2000)})
    erase(storage)
    assert files_with(tmp_path, MARK) == []


def test_a_row_that_was_replaced_is_gone_after_a_pass(storage: RocksStorage, tmp_path: Path) -> None:
    write(storage, {b"5": MARK, **others(2000)})
    erase(storage)
    write(storage, {b"5": b"other"})
    erase(storage)
    assert files_with(tmp_path, MARK) == []


def large(count: int, seed: int = 3) -> dict[bytes, bytes]:
    """Rows that stand in blob files."""
    random = Random(seed)
    return {b"7%03d" % nth: random.randbytes(BLOB_BYTES_MIN) for nth in range(count)}


def blob_files(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in (directory / "db").glob("*.blob")}


def test_no_blob_file_holds_a_deleted_row(storage: RocksStorage, tmp_path: Path) -> None:
    kept = large(8)
    marked = {b"7%03d%s" % (nth, MARK): MARK + kept[b"7%03d" % nth] for nth in range(8)}
    write(storage, dict(sorted((kept | marked).items())))
    storage.reclaim()
    write(storage, dict.fromkeys(list(marked)[:1]))  # Too little for anything to move by itself.
    erase(storage)
    assert len(files_with(tmp_path, MARK)) > 0  # Of those that were not deleted.
    write(storage, dict.fromkeys(list(marked)[1:]))
    erase(storage)
    assert files_with(tmp_path, MARK) == []
    assert dict(storage.scan(b"", None)) == kept


def test_the_rest_of_blob_files_moves(storage: RocksStorage, tmp_path: Path) -> None:
    rows = large(24)
    write(storage, rows)
    storage.reclaim()
    began = time.monotonic()
    while (before := sum(blob_files(tmp_path).values())) < 24 * BLOB_BYTES_MIN:  # The memtable becomes a file on a thread.
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.05)
    gone = list(rows)[::2]
    write(storage, dict.fromkeys(gone))
    storage.reclaim()
    began = time.monotonic()
    while sum(blob_files(tmp_path).values()) > 0.6 * before:
        assert time.monotonic() - began < PATIENCE_S
        storage.write_witness()  # As a node does after each sync.
        time.sleep(0.05)
    assert dict(storage.scan(b"", None)) == {row: value for row, value in rows.items() if row not in gone}


def test_compactions_leave_blob_files_alone(storage: RocksStorage, tmp_path: Path) -> None:
    write(storage, large(24) | others(300))
    storage.reclaim()
    while storage._reclaiming:  # Before, a blob file may still grow: it is there before its rows are.
        storage.write_witness()
        time.sleep(0.05)
    before = blob_files(tmp_path)
    assert before
    for seed in range(3):
        write(storage, others(300, seed) | {b"7000": b"a short one"})
        storage.reclaim()
        while storage._reclaiming:
            storage.write_witness()
            time.sleep(0.05)
    assert blob_files(tmp_path).items() >= before.items()


def test_a_pass_ends_while_the_store_is_written(storage: RocksStorage, tmp_path: Path) -> None:
    write(storage, others(500) | {b"5" + MARK: MARK})
    write(storage, {b"5" + MARK: None})
    storage.begin_erasing()
    began, seed = time.monotonic(), 2
    while not storage.erase(age := time.monotonic() - began):
        assert age < PATIENCE_S
        write(storage, others(30, seed))
        seed += 1
        time.sleep(0.05)
    assert files_with(tmp_path, MARK) == []


def test_a_pass_leaves_the_usual_options(storage: RocksStorage, tmp_path: Path) -> None:
    def options() -> list[str]:
        newest = max((tmp_path / "db").glob("OPTIONS-*"))
        names = ("level0_file_num_compaction_trigger", "ttl", "periodic_compaction_seconds", "blob_garbage_collection_")
        return sorted(line.strip() for line in newest.read_text().splitlines() if line.strip().startswith(names))

    usual = options()
    assert len(usual) == 5
    write(storage, others(300) | large(4))
    write(storage, dict.fromkeys(list(large(4))[:1]))
    erase(storage)
    assert options() == usual


def test_without_a_pass_the_bytes_stay(storage: RocksStorage, tmp_path: Path) -> None:
    write(storage, others(2000) | {b"5" + MARK: MARK * 10})
    write(storage, {b"5" + MARK: None})
    storage.reclaim()
    storage.write_witness()
    assert storage.erase(10.0) is False


class Options:
    """A database of which nothing but options can be changed."""

    def __init__(self) -> None:
        self.set: list[dict[str, str]] = []

    def property_value(self, _name: str) -> str:
        return "0"

    def live_files(self) -> list[dict[str, int]]:
        return [{"level": 6, "num_deletions": 1}]

    def iter(self) -> None:
        """A reader of the files."""

    def set_options(self, options: dict[str, str]) -> None:
        self.set.append(options)


def test_a_pass_changes_options_alone() -> None:
    database = Options()
    erasing = ErasingPass(database)  # type: ignore[arg-type]
    for age_s in range(10):
        erasing.advance(float(age_s))
    assert erasing.advance(10.0)
    assert {name for options in database.set for name in options} == {
        "level0_file_num_compaction_trigger",
        "ttl",
        "periodic_compaction_seconds",
        "blob_garbage_collection_age_cutoff",
    }


class Busy(Options):
    """A database that compacts whenever it is asked."""

    def property_value(self, _name: str) -> str:
        return "1"


def test_a_pass_ends_although_the_store_is_always_busy() -> None:
    erasing = ErasingPass(Busy())  # type: ignore[arg-type]
    assert any(erasing.advance(float(age_s)) for age_s in range(1000))
