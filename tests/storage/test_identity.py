"""The identity of a data directory: a restart and a renaming keep it, no copy has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.config import Config
from shoal.storage.interface import MemoryStorage
from shoal.storage.layout import identity_of
from shoal.storage.rocks import RocksStorage


def opened_identity(directory: Path) -> bytes:
    storage = RocksStorage.open(directory, config=Config(), now_ms=0)
    try:
        return storage.identity
    finally:
        storage.close()


def test_a_restart_and_a_new_name_keep_it(tmp_path: Path) -> None:
    first = opened_identity(tmp_path / "n1")
    assert opened_identity(tmp_path / "n1") == first
    (tmp_path / "n1").rename(tmp_path / "n2")
    assert opened_identity(tmp_path / "n2") == first


@pytest.mark.answers("copied-directory-is-admitted-as-its-original")
def test_a_copy_and_a_copy_that_is_put_back_have_others(tmp_path: Path) -> None:
    first = opened_identity(tmp_path / "n1")
    shutil.copytree(tmp_path / "n1", tmp_path / "backup")
    copied = opened_identity(tmp_path / "backup")
    shutil.rmtree(tmp_path / "n1")
    shutil.copytree(tmp_path / "backup", tmp_path / "n1")
    assert len({first, copied, opened_identity(tmp_path / "n1")}) == 3


def test_a_file_system_without_generations_has_inode_numbers(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert identity_of(file).startswith(b"%d:" % file.stat().st_ino)


def test_in_memory_a_crash_keeps_it_and_a_copy_has_another() -> None:
    storage = MemoryStorage()
    copies = [storage.left_by_crash(), storage.left_by_crash()]
    assert len({storage.identity, *(copy.identity for copy in copies)}) == 3
    assert storage.crash().identity == storage.identity
