from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict

from chaos.trials.powercut import power_cut, synced_wal_bytes
from shoal.config import Config, MiB
from shoal.errors import StorageError, StorageFull, StoreLocked
from shoal.storage.rocks import RocksStorage
from tests.support.panics import a_panic

OpenStore = Callable[[Path], RocksStorage]

ROW = 16 * 1024


@pytest.fixture
def storage(tmp_path: Path, open_store: OpenStore) -> RocksStorage:
    """Its memtable's bound is 1 MiB, which 64 of `fill`'s rows reach."""
    return open_store(tmp_path / "store")


def fill(storage: RocksStorage, rows: int, *, size: int = ROW) -> None:
    for number in range(rows):
        storage.write({b"%08d" % number: bytes(size)})


def logs_begun(tmp_path: Path) -> int:
    """The number of the newest log; RocksDB counts all its files with one counter."""
    return max(int(path.stem) for path in (tmp_path / "store" / "db").glob("*.log"))


def test_a_small_log_is_not_rotated(storage: RocksStorage) -> None:
    fill(storage, 10)
    assert not storage.rotate_if_due()
    assert storage.rotations == 0


def test_a_full_log_is_rotated_when_asked(storage: RocksStorage, tmp_path: Path) -> None:
    before = logs_begun(tmp_path)
    fill(storage, 65)
    assert logs_begun(tmp_path) == before
    assert storage.rotate_if_due()
    assert logs_begun(tmp_path) > before
    assert not storage.rotate_if_due()


def test_a_rotation_makes_all_that_was_written_durable(storage: RocksStorage) -> None:
    fill(storage, 65)
    assert storage.synced.number == 0
    storage.rotate_if_due()
    assert storage.synced.number == 65


@pytest.mark.parametrize("size", [0, 10, ROW], ids=["empty", "tiny", "large"])
def test_rocksdb_never_begins_a_log_by_itself(storage: RocksStorage, tmp_path: Path, size: int) -> None:
    # Tiny rows cost a memtable many times their bytes: the bound must allow for that. One batch each 100 rows.
    begun = logs_begun(tmp_path)
    for number in range(0, 30_000 if size < ROW else 300, 100 if size < ROW else 1):
        batch: dict[bytes, bytes | None] = {b"%d" % n: bytes(size) for n in range(number, number + (100 if size < ROW else 1))}
        rotations = storage.rotations
        storage.write(batch)
        if storage.rotations == rotations:
            assert logs_begun(tmp_path) == begun
        begun = logs_begun(tmp_path)
    assert storage.rotations > 0


@pytest.mark.parametrize("size_mib", [3, 6, 12])
def test_one_write_larger_than_every_bound_leaves_no_unsynced_log_behind(
    storage: RocksStorage, tmp_path: Path, size_mib: int
) -> None:
    fill(storage, 50)
    storage.write({b"huge": bytes(size_mib * MiB)})
    assert storage.rotations == 1
    assert storage.synced.number == 51
    begun = logs_begun(tmp_path)
    fill(storage, 50)
    assert logs_begun(tmp_path) == begun


def test_a_store_reopened_with_a_larger_memtable_begins_no_log_by_itself(storage: RocksStorage, tmp_path: Path) -> None:
    storage.close()
    larger = RocksStorage.open(tmp_path / "store", config=Config(memtable_bytes=16 * MiB), now_ms=0)
    begun = logs_begun(tmp_path)
    fill(larger, 640)
    assert (larger.rotations, logs_begun(tmp_path)) == (0, begun)
    larger.close()


@pytest.mark.parametrize("openings", [1, 2])
def test_tables_have_filters_in_pieces_in_every_opening(tmp_path: Path, open_store: OpenStore, openings: int) -> None:
    for _ in range(openings):
        storage = open_store(tmp_path / "store")
        fill(storage, 1)
        storage.close()
    newest = max((tmp_path / "store" / "db").glob("*.sst"))
    assert b"partitionedfilter." in newest.read_bytes()


def test_a_sync_while_a_write_rotates_is_no_failure(storage: RocksStorage) -> None:
    failures: list[Exception] = []
    over = threading.Event()

    def keep_syncing() -> None:
        try:
            while not over.is_set():
                storage.sync()
        except Exception as error:
            failures.append(error)

    syncing = threading.Thread(target=keep_syncing)
    syncing.start()
    fill(storage, 600)
    over.set()
    syncing.join()
    assert failures == []
    assert storage.rotations >= 4


def test_writes_across_rotations_are_there_after_reopening(
    storage: RocksStorage, tmp_path: Path, open_store: OpenStore
) -> None:
    fill(storage, 300)
    storage.close()
    assert len(list(open_store(tmp_path / "store").scan(b"", None))) == 300


def test_a_log_takes_no_disk_in_advance(tmp_path: Path) -> None:
    storage = RocksStorage.open(tmp_path / "store", config=Config(), now_ms=0)
    storage.write({b"a": b"1"})
    storage.sync()
    assert storage.bytes_on_disk() < MiB
    storage.close()


def test_recovered_rows_are_durable_before_they_are_shown(killed: Path, tmp_path: Path, open_store: OpenStore) -> None:
    opened = open_store(killed)
    power_cut(killed, tmp_path / "again", synced_wal_bytes=lambda: synced_wal_bytes(opened), cut=lambda at_least, _: at_least)
    assert len(list(open_store(tmp_path / "again").scan(b"", None))) == 100


def test_two_openings_exclude_each_other(storage: RocksStorage, tmp_path: Path, open_store: OpenStore) -> None:
    with pytest.raises(StoreLocked, match="shoal serve --data"):
        open_store(tmp_path / "store")


def test_a_refused_opening_frees_the_lock(killed: Path, open_store: OpenStore) -> None:
    witness = (killed / "WITNESS").read_bytes()
    (killed / "WITNESS").write_bytes(b"")
    with pytest.raises(StorageError):
        open_store(killed)
    (killed / "WITNESS").write_bytes(witness)
    open_store(killed)


def test_a_creation_that_was_cut_short_is_taken_up(tmp_path: Path, open_store: OpenStore) -> None:
    for name in ("LOCK", "WITNESS.new", "FORMAT.new", "lost+found"):
        (tmp_path / name).touch()
    (tmp_path / "WITNESS").write_bytes(b"half")
    open_store(tmp_path).write({b"a": b"1"})


@pytest.mark.parametrize("name", [".snapshot", ".zfs", ".Trash-1000", ".DS_Store", "lost+found", "System Volume Information"])
def test_names_of_file_systems_are_no_strangers(name: str, tmp_path: Path, open_store: OpenStore) -> None:
    (tmp_path / name).mkdir()
    for number in range(2):
        storage = open_store(tmp_path)
        storage.write({b"%d" % number: b""})
        storage.close()
    assert (tmp_path / name).is_dir()


def test_reading_a_closed_store_says_that_it_is_closed(storage: RocksStorage) -> None:
    storage.close()
    with pytest.raises(StorageError, match="was closed"):
        storage.get(b"a")


def test_a_store_of_the_default_configuration_opens_and_reopens(tmp_path: Path) -> None:
    for number in range(2):
        storage = RocksStorage.open(tmp_path / "deep" / "store", config=Config(), now_ms=0)
        storage.write({b"%d" % number: b""})
        storage.close()
        assert not list(tmp_path.rglob("*.new"))


def test_a_store_that_compacts_can_be_closed(storage: RocksStorage) -> None:
    fill(storage, 3)
    storage.reclaim()
    storage.close()
    with pytest.raises(StorageError, match="closed"):
        storage.get(b"k")


def test_a_store_closed_while_it_gave_space_back_compacts_as_usual_when_reopened(
    storage: RocksStorage, tmp_path: Path, open_store: OpenStore
) -> None:
    def trigger() -> str:
        newest = max((tmp_path / "store" / "db").glob("OPTIONS-*"))
        return next(line.strip() for line in newest.read_text().splitlines() if "level0_file_num_compaction_trigger" in line)

    usual = trigger()
    fill(storage, 3)
    storage.reclaim()
    storage.close()
    assert trigger() != usual
    open_store(tmp_path / "store")
    assert trigger() == usual


class Counting:
    """A database that notes which options are changed."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self.changed: list[dict[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def set_options(self, options: dict[str, str]) -> None:
        self.changed.append(options)
        self._database.set_options(options)


def test_space_that_is_given_back_already_changes_no_options(storage: RocksStorage) -> None:
    """Each change holds Python's lock while RocksDB syncs two files."""
    counting = Counting(storage._db)
    storage._db = counting  # type: ignore[assignment]
    for _ in range(3):
        fill(storage, 3)
        storage.reclaim()
    assert len(counting.changed) == 1


class Panicking:
    """A database of the binding in which every call panics."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            raise a_panic()

        return call


def test_a_panic_of_the_binding_is_a_storage_error(tmp_path: Path) -> None:
    storage = RocksStorage.open(tmp_path / "state", config=Config(), now_ms=0)
    database, storage._db = storage._db, Panicking()  # type: ignore[assignment]
    for read in (lambda: storage.get(b"k"), lambda: list(storage.scan(b"", None)), storage.snapshot):
        with pytest.raises(StorageError):
            read()
    with pytest.raises(StorageFull):
        storage.write({b"k": b"v"})
    assert storage.failed
    storage.close()
    database.close()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are of POSIX")
def test_a_store_is_its_owners_alone(tmp_path: Path, open_store: OpenStore) -> None:
    directory = tmp_path / "store"
    directory.mkdir(mode=0o755)
    open_store(directory).close()
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # As a version before made it, or a restored backup.
    open_store(directory).close()
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir())} == {
        "store": 0o700, "db": 0o700, "FORMAT": 0o600, "LOCK": 0o600, "WITNESS": 0o600,
    }  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are of POSIX")
def test_files_of_before_become_their_owners_alone(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    storage.write({b"k": b"v"})
    storage.close()
    for path in (tmp_path / "db").iterdir():
        path.chmod(0o644)  # As a version before made it.
    storage = open_store(tmp_path)
    assert open_to_others(tmp_path / "db") == []
    assert storage.get(b"k") == b"v"


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="lists of rights are of Linux")
def test_files_made_later_are_their_owners_alone(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    storage.write({b"k": b"v"})
    before = set((tmp_path / "db").iterdir())
    storage._db.flush(wait=True)  # Nothing of ours looks at the files after it.
    (tmp_path / "db" / "made").open("w").close()
    assert len(set((tmp_path / "db").iterdir()) - before) >= 2
    assert open_to_others(tmp_path / "db") == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are of POSIX")
@pytest.mark.parametrize("act", ["open", "rotate", "close"])
def test_files_are_closed_without_lists_of_rights(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    monkeypatch.delattr(os, "setxattr", raising=False)
    storage = open_store(tmp_path)
    if act != "open":
        (tmp_path / "db" / "made").touch(0o644)
    if act == "rotate":
        storage.write({b"k": b"v" * 2 * MiB})
    if act == "close":
        storage.close()
    left = open_to_others(tmp_path / "db")  # After a rotation RocksDB goes on making files.
    assert "made" not in left if act == "rotate" else left == []


def open_to_others(files: Path) -> list[str]:
    return sorted(path.name for path in files.iterdir() if path.stat().st_mode & 0o077)


def test_a_store_that_cannot_be_closed_to_others_is_refused(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "store"
    open_store(directory).close()
    foreign = {directory}
    sound = Path.chmod

    def chmod(self: Path, mode: int, **options: Any) -> None:
        if self in foreign:
            raise PermissionError(1, "Operation not permitted")
        sound(self, mode, **options)

    for path in (directory, directory / "db"):
        path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", chmod)
    open_store(directory).close()  # The root of a mounted volume: what is in it is closed.
    assert stat.S_IMODE((directory / "db").stat().st_mode) == 0o700
    foreign.add(directory / "db")
    sound(directory / "db", 0o755)
    with pytest.raises(StorageError, match="can be read by other users"):
        open_store(directory)
