"""The bounds of RocksDB are those of the configuration."""

from __future__ import annotations

from pathlib import Path

from shoal.config import Config, MiB
from shoal.storage.rocks import RocksStorage


def test_each_cache_and_buffer_has_its_configured_bound(tmp_path: Path) -> None:
    config = Config(memtable_bytes=MiB, block_cache_bytes=3 * MiB, tables_open_max=77)
    storage = RocksStorage.open(tmp_path / "store", config=config, now_ms=0)
    assert storage._db.property_value("rocksdb.block-cache-capacity") == str(3 * MiB)
    [*_, newest] = sorted((tmp_path / "store" / "db").glob("OPTIONS-*"))
    said = dict(line.strip().split("=", 1) for line in newest.read_text().splitlines() if "=" in line)
    assert said["max_open_files"] == "77"
    assert int(said["write_buffer_size"]) == 4 * MiB
    storage.close()
