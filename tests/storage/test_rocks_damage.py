"""Damage is refused with a reason, and refusing changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from shoal.errors import StorageError, StoreCorrupt, StoreTooNew
from shoal.storage.rocks import RocksStorage

OpenStore = Callable[[Path], RocksStorage]
LogOf = Callable[[Path], Path]


def flip_bit(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def content(directory: Path) -> dict[str, bytes]:
    """All that the store is made of: neither the lock's text nor RocksDB's diary, nor the binding's own notes."""
    ours = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(("LOCK", "LOG", "rocksdict"))]
    return {str(path.relative_to(directory)): path.read_bytes() for path in ours}


def refused(open_store: OpenStore, directory: Path, error: type[StorageError] = StoreCorrupt) -> str:
    before = content(directory)
    with pytest.raises(error) as raised:
        open_store(directory)
    assert content(directory) == before
    assert raised.type is error
    assert raised.value.written == "no"
    return str(raised.value)


@pytest.mark.answers("default-recovery-mode-loses-synced-keys")
@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_in_the_synced_log_is_refused_even_before_the_witness_knows_of_it(
    killed_early: Path, open_store: OpenStore, log_of: LogOf, seed: int
) -> None:
    log = log_of(killed_early)
    flip_bit(log, Random(seed).randrange(log.stat().st_size))
    assert "Move the directory aside" in refused(open_store, killed_early)


def test_a_log_cut_below_what_was_synced_is_refused(killed: Path, open_store: OpenStore, log_of: LogOf) -> None:
    log = log_of(killed)
    os.truncate(log, log.stat().st_size // 2)
    assert "row writes are missing" in refused(open_store, killed)


# Nothing of the record, a part of its header, all of its header, a part of its body, all but its last byte.
@pytest.mark.answers("error-is-read-as-not-found", "default-recovery-mode-loses-synced-keys")
@pytest.mark.parametrize("cut", [0, 1, 6, 7, 8, 30, -1])
def test_a_torn_end_of_the_log_opens_without_the_torn_write(
    killed: Path, tmp_path: Path, open_store: OpenStore, cut: int
) -> None:
    opened = open_store(killed)
    opened.write({b"last": b"v" * 40})
    shutil.copytree(killed, tmp_path / "torn")
    log = max((tmp_path / "torn" / "db").glob("*.log"))
    log.write_bytes(log.read_bytes()[:cut])
    torn = open_store(tmp_path / "torn")
    assert len(list(torn.scan(b"k", b"l"))) == 100
    assert torn.get(b"last") is None


def test_a_log_that_ends_in_zeros_opens(killed: Path, open_store: OpenStore, log_of: LogOf) -> None:
    # A file system may have made the file longer and not yet written what belongs there.
    with log_of(killed).open("ab") as log:
        log.write(bytes(5000))
    assert len(list(open_store(killed).scan(b"", None))) == 100


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.sst"])
def test_a_missing_file_of_the_database_is_refused(tmp_path: Path, open_store: OpenStore, name: str) -> None:
    storage = open_store(tmp_path)
    storage.write({b"a": b"1"})
    storage.close()
    for path in (tmp_path / "db").glob(name):
        path.unlink()
    refused(open_store, tmp_path)


@pytest.mark.parametrize("at", [8, 60, 100])
def test_a_flipped_bit_in_the_manifest_is_refused(tmp_path: Path, open_store: OpenStore, at: int) -> None:
    open_store(tmp_path).close()
    (manifest,) = (tmp_path / "db").glob("MANIFEST-*")
    flip_bit(manifest, at)
    refused(open_store, tmp_path)


@pytest.fixture
def damaged_table(tmp_path: Path, open_store: OpenStore) -> RocksStorage:
    """A store of 2,000 rows whose one table has a bad block in its middle."""
    storage = open_store(tmp_path)
    random = Random(1)
    storage.write({b"k%04d" % number: random.randbytes(100) for number in range(2000)})
    storage.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    flip_bit(table, table.stat().st_size // 2)
    return open_store(tmp_path)


def test_a_bad_block_raises_when_one_of_its_rows_is_read(damaged_table: RocksStorage) -> None:
    with pytest.raises(StoreCorrupt, match="Run `shoal verify`"):
        [damaged_table.get(b"k%04d" % number) for number in range(2000)]


@pytest.mark.answers("error-is-read-as-not-found")
def test_no_row_of_a_bad_block_reads_as_missing(damaged_table: RocksStorage) -> None:
    bad = [number for number in range(2000) if not readable(damaged_table, b"k%04d" % number)]
    assert 0 < len(bad) < 500
    assert bad == list(range(bad[0], bad[-1] + 1))


@pytest.mark.answers("damage-is-detected", "corrupt-block-ends-a-scan-early")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_that_meets_a_bad_block_raises_and_is_never_short(damaged_table: RocksStorage, reverse: bool) -> None:
    rows = damaged_table.scan(b"", None, reverse=reverse)
    before_the_damage = [next(rows) for _ in range(100)]
    assert len(before_the_damage) == 100
    with pytest.raises(StoreCorrupt):
        list(rows)


@pytest.mark.answers("corrupt-block-ends-a-scan-early")
def test_a_scan_that_begins_in_a_bad_block_raises(damaged_table: RocksStorage) -> None:
    bad = next(number for number in range(2000) if not readable(damaged_table, b"k%04d" % number))
    with pytest.raises(StoreCorrupt):
        list(damaged_table.scan(b"k%04d" % bad, b"k%04d" % (bad + 1)))
    with pytest.raises(StoreCorrupt):
        list(damaged_table.scan(b"", b"k%04d" % (bad + 1), reverse=True, limit=1))


def readable(storage: RocksStorage, key: bytes) -> bool:
    try:
        assert storage.get(key) is not None
    except StoreCorrupt:
        return False
    return True


def test_rows_outside_a_bad_block_can_still_be_read(damaged_table: RocksStorage) -> None:
    assert damaged_table.get(b"k0000") is not None
    assert len(list(damaged_table.scan(b"", b"k0010"))) == 10


@pytest.mark.answers("versions-work-together")
def test_a_newer_format_is_left_untouched(killed: Path, open_store: OpenStore) -> None:
    (killed / "FORMAT").write_text("shoal store, format 99\n")
    names = sorted(os.listdir(killed))
    assert "newer version" in refused(open_store, killed, StoreTooNew)
    assert sorted(os.listdir(killed)) == names, "not even a lock file may be made"


def test_an_older_format_is_left_untouched(killed: Path, open_store: OpenStore) -> None:
    (killed / "FORMAT").write_text("shoal store, format 1\n")
    names = sorted(os.listdir(killed))
    assert "development version" in refused(open_store, killed, StorageError)
    assert sorted(os.listdir(killed)) == names


def test_an_unreadable_format_is_refused(killed: Path, open_store: OpenStore) -> None:
    (killed / "FORMAT").write_bytes(b"\xff\xfe")
    assert "FORMAT" in refused(open_store, killed)


def test_a_foreign_directory_is_left_untouched(tmp_path: Path, open_store: OpenStore) -> None:
    (tmp_path / "thesis.txt").write_text("chapter one")
    assert "'thesis.txt'" in refused(open_store, tmp_path, StorageError)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_file_in_place_of_the_directory_is_left_untouched(tmp_path: Path, open_store: OpenStore) -> None:
    (tmp_path / "state").write_text("not a directory")
    with pytest.raises(StorageError):
        open_store(tmp_path / "state")
    assert (tmp_path / "state").read_text() == "not a directory"


# A limit on the size of a file makes writes fail as a full disk does, and needs no rights. It holds for the whole
# process, so it is a process of its own.
FULL = """
import json, resource, signal, sys
from pathlib import Path
from shoal.config import Config
from shoal.errors import StorageFull
from shoal.storage.rocks import RocksStorage

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
storage = RocksStorage.open(Path(sys.argv[1]), config=Config(), now_ms=0)
storage.write({b"synced": b"1"})
storage.sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
shown, errors = 0, []
try:
    for number in range(1000):
        storage.write({b"k%04d" % number: bytes(1000)})
        shown += 1
except StorageFull as error:
    errors.append(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for again in (lambda: storage.write({b"late": b""}), storage.sync, storage.write_witness):
    try:
        again()
    except StorageFull as error:
        errors.append(str(error))
seen = len(list(storage.scan(b"k", b"l")))
storage.close()
print(json.dumps([shown, seen, len(errors), errors[0], storage.failed]))
"""


@pytest.fixture
def full(tmp_path: Path) -> list[int | str]:
    run = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "full")], capture_output=True, check=True, text=True)
    found: list[int | str] = json.loads(run.stdout)
    return found


@pytest.mark.answers("no-space-left")
def test_a_full_disk_refuses_the_write_and_every_later_one_even_with_space_again(full: list[int | str]) -> None:
    shown, seen, errors, first, failed = full
    assert isinstance(shown, int)
    assert 0 < shown < 1000
    assert seen == shown, "what was refused must not be shown"
    assert errors == 4
    assert "free some space" in str(first)
    assert str(failed) in str(first)


def test_a_store_that_was_full_opens_again_with_all_that_was_synced(
    full: list[int | str], tmp_path: Path, open_store: OpenStore
) -> None:
    storage = open_store(tmp_path / "full")
    assert storage.get(b"synced") == b"1"
    found = [key for key, _ in storage.scan(b"k", b"l")]
    assert found == [b"k%04d" % number for number in range(len(found))]
    storage.write({b"late": b""})
    storage.sync()
