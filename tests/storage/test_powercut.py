from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from chaos.trials import powercut
from chaos.trials.powercut import power_cut, synced_wal_bytes
from shoal.errors import StoreCorrupt
from shoal.storage.rocks import RocksStorage

OpenStore = Callable[[Path], RocksStorage]

CUTS = 50


def numbers(storage: RocksStorage) -> list[int]:
    return [int(key) for key, _ in storage.scan(b"", None)]


def lives(storage: RocksStorage, random: Random, count: int) -> Iterator[tuple[int, int]]:
    """Write, sync and rotate at random; yield how many writes were made, and how many of them are synced."""
    made = 0
    for _ in range(count):
        for _ in range(random.randrange(1, 6)):
            made = storage.write({b"%06d" % made: random.randbytes(random.choice((10, 1000, 150_000)))})
        if random.random() < 0.4:
            storage.sync()
        storage.rotate_if_due()
        yield made, storage.synced.number


def test_every_synced_write_survives_and_the_survivors_are_a_prefix(tmp_path: Path, open_store: OpenStore) -> None:
    random = Random(20)
    storage = open_store(tmp_path / "live")
    partial = 0
    for cut, (made, synced) in enumerate(lives(storage, random, CUTS)):
        target = tmp_path / f"cut-{cut}"
        power_cut(tmp_path / "live", target, synced_wal_bytes=lambda: synced_wal_bytes(storage), cut=random.randint)
        survivor = open_store(target)
        left = numbers(survivor)
        survivor.close()
        shutil.rmtree(target)
        assert left == list(range(len(left))), f"a hole after cut {cut}"
        assert synced <= len(left) <= made, f"cut {cut} lost synced writes"
        partial += synced < len(left) < made
    assert storage.rotations > 2, "the run must cross rotations"
    assert partial > 2, "some cuts must fall between two unsynced writes"


@pytest.mark.answers("power-cut-loses-fsynced-data")
def test_a_cut_below_what_was_synced_would_be_noticed(tmp_path: Path, open_store: OpenStore) -> None:
    # What the test above relies on: a storage that acknowledged too early fails it.
    storage = open_store(tmp_path / "live")
    storage.write({b"a": bytes(100)})
    storage.sync()
    storage.write_witness()
    power_cut(tmp_path / "live", tmp_path / "cut", synced_wal_bytes=dict, cut=lambda _, most: most // 2)
    with pytest.raises(StoreCorrupt):
        open_store(tmp_path / "cut")


def test_a_copy_is_not_locked_by_its_source(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path / "live")
    power_cut(tmp_path / "live", tmp_path / "cut", synced_wal_bytes=lambda: synced_wal_bytes(storage), cut=max)
    assert numbers(open_store(tmp_path / "cut")) == []


def test_a_manifest_that_goes_while_it_is_looked_at_is_no_still_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "CURRENT").touch()
    monkeypatch.setattr(os, "listdir", lambda path: ["CURRENT", "MANIFEST-000010"])
    assert not powercut._copy_still(tmp_path / "db", tmp_path / "copy")
