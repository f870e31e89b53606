"""Stores in temporary directories, closed when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.trials.powercut import power_cut, synced_wal_bytes
from shoal.config import Config, MiB
from shoal.storage.rocks import RocksStorage

OpenStore = Callable[[Path], RocksStorage]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Opens a store with the smallest memtable that is legal."""
    with ExitStack() as opened:

        def open_at(directory: Path) -> RocksStorage:
            storage = RocksStorage.open(directory, config=Config(memtable_bytes=MiB, block_cache_bytes=MiB), now_ms=0)
            opened.callback(storage.close)
            return storage

        yield open_at


def kill(open_store: OpenStore, directory: Path, *, witnessed: bool) -> Path:
    storage = open_store(directory / "live")
    for number in range(100):
        storage.write({b"k%03d" % number: b"%d" % number * 50})
    storage.sync()
    if witnessed:
        storage.write_witness()
    power_cut(
        directory / "live",
        directory / "killed",
        synced_wal_bytes=lambda: synced_wal_bytes(storage),
        cut=lambda at_least, _: at_least,
    )
    return directory / "killed"


@pytest.fixture
def killed(open_store: OpenStore, tmp_path: Path) -> Path:
    """The directory of a store that was killed: 100 rows `k000` … in its log, all synced and witnessed; nobody holds it."""
    return kill(open_store, tmp_path, witnessed=True)


@pytest.fixture
def killed_early(open_store: OpenStore, tmp_path: Path) -> Path:
    """The same, killed after the sync and before the witness was written: it knows of the log's name alone."""
    return kill(open_store, tmp_path, witnessed=False)


@pytest.fixture
def log_of() -> Callable[[Path], Path]:
    """The newest write-ahead log of a store's directory."""
    return lambda directory: max((directory / "db").glob("*.log"))
