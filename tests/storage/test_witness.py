from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.errors import StoreCorrupt
from shoal.storage import layout
from shoal.storage.layout import Witness, Witnessed
from shoal.storage.rocks import RocksStorage

OpenStore = Callable[[Path], RocksStorage]

SLOTS = (0, 4096)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "WITNESS"
    made.write_bytes(layout.blank())
    return made


def record(path: Path, *records: Witnessed) -> None:
    opened = Witness.open(path)
    for each in records:
        opened.record(each)
    opened.close()


def read(path: Path) -> Witnessed:
    opened = Witness.open(path)
    opened.close()
    opened.close()
    return opened.latest


def spoil(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_blank_witness_claims_nothing(path: Path) -> None:
    assert read(path) == Witnessed(0, 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_record_counts(path: Path, count: int) -> None:
    record(path, *(Witnessed(10 * n, n) for n in range(1, count + 1)))
    assert read(path) == Witnessed(10 * count, count)


@pytest.mark.parametrize("count", [2, 3])
def test_a_torn_record_leaves_the_one_before_it(path: Path, count: int) -> None:
    record(path, *(Witnessed(10 * n, n) for n in range(1, count + 1)))
    spoil(path, SLOTS[count % 2] + 20)
    assert read(path) == Witnessed(10 * (count - 1), count - 1)


def test_a_record_after_a_torn_one_counts_again(path: Path) -> None:
    record(path, Witnessed(1, 1), Witnessed(2, 2))
    spoil(path, SLOTS[0] + 20)
    record(path, Witnessed(3, 3))
    assert read(path) == Witnessed(3, 3)


def test_without_a_valid_slot_it_is_refused(path: Path) -> None:
    record(path, Witnessed(1, 1))
    for slot in SLOTS:
        spoil(path, slot + 20)
    with pytest.raises(StoreCorrupt, match="checksum"):
        Witness.open(path)


@pytest.mark.parametrize("size", [0, 10, 35])
def test_a_truncated_witness_is_refused(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreCorrupt):
        Witness.open(path)


def test_a_missing_witness_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreCorrupt, match="is missing"):
        Witness.open(tmp_path / "WITNESS")


def test_a_store_without_its_witness_is_refused(killed: Path, open_store: OpenStore) -> None:
    (killed / "WITNESS").unlink()
    with pytest.raises(StoreCorrupt, match="WITNESS is missing"):
        open_store(killed)


@pytest.mark.answers("deleted-log-opens-with-its-keys-missing")
def test_a_store_whose_log_was_deleted_is_refused(killed: Path, open_store: OpenStore, log_of: Callable[[Path], Path]) -> None:
    log_of(killed).unlink()
    with pytest.raises(StoreCorrupt, match="lacks its write-ahead log"):
        open_store(killed)


def test_a_log_is_witnessed_before_the_first_write_to_it(killed_early: Path, open_store: OpenStore) -> None:
    shutil.rmtree(killed_early / "db")
    with pytest.raises(StoreCorrupt, match="lacks its write-ahead log"):
        open_store(killed_early)


@pytest.mark.answers("deleted-log-opens-with-its-keys-missing")
@pytest.mark.parametrize("left", [0, 1, 50, 99])
def test_a_store_whose_log_was_cut_below_what_was_synced_is_refused(
    killed: Path, open_store: OpenStore, log_of: Callable[[Path], Path], left: int
) -> None:
    log = log_of(killed)
    log.write_bytes(log.read_bytes()[: log.stat().st_size * left // 100])
    with pytest.raises(StoreCorrupt, match=r"\d+ row writes are missing"):
        open_store(killed)


@pytest.mark.answers("deleted-log-opens-with-its-keys-missing")
def test_an_older_database_under_a_newer_witness_is_refused(tmp_path: Path, open_store: OpenStore) -> None:
    directory = tmp_path / "store"
    for number in range(2):
        storage = open_store(directory)
        storage.write({b"a": b"%d" % number})
        storage.close()
        if number == 0:
            shutil.copytree(directory / "db", tmp_path / "older")
    shutil.rmtree(directory / "db")
    shutil.copytree(tmp_path / "older", directory / "db")
    with pytest.raises(StoreCorrupt):
        open_store(directory)


def test_an_older_database_with_a_newer_log_number_is_refused(tmp_path: Path, open_store: OpenStore) -> None:
    # Opening the copy elsewhere raises its log number past the witness's: the sequence still tells.
    directory, older = tmp_path / "store", tmp_path / "older"
    open_store(directory).close()
    shutil.copytree(directory, older)
    for _ in range(3):
        open_store(older).close()
    storage = open_store(directory)
    storage.write({b"a": b"1"})
    storage.close()
    shutil.rmtree(directory / "db")
    shutil.copytree(older / "db", directory / "db")
    with pytest.raises(StoreCorrupt, match="1 row writes are missing"):
        open_store(directory)


def test_a_database_that_is_gone_is_refused(killed: Path, open_store: OpenStore) -> None:
    shutil.rmtree(killed / "db")
    with pytest.raises(StoreCorrupt):
        open_store(killed)
    assert not (killed / "db").exists()


def test_a_copy_of_the_whole_directory_opens(tmp_path: Path, killed: Path, open_store: OpenStore) -> None:
    shutil.copytree(killed, tmp_path / "clone")
    assert open_store(killed).get(b"k099") == b"99" * 50
    assert open_store(tmp_path / "clone").get(b"k099") == b"99" * 50


def test_the_witness_is_written_only_when_more_is_durable(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path / "store")
    assert not storage.write_witness()
    storage.write({b"a": b"1"})
    assert not storage.write_witness(), "an unsynced write must not be claimed"
    storage.sync()
    assert storage.write_witness()


def test_a_clean_close_leaves_the_witness_up_to_date(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path / "store")
    storage.write({b"a": b"1", b"b": b"2"})
    storage.close()
    assert read(tmp_path / "store" / "WITNESS").sequence == 2
