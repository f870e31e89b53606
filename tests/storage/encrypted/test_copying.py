"""Copies of directories, and what an opening makes of the keys that it is given."""

from __future__ import annotations

from os import urandom
from pathlib import Path

import pytest

from shoal.config import Config
from shoal.errors import MasterKeyWrong, StorageError
from shoal.storage.encrypted.keyring import LocalKeys
from shoal.storage.encrypted.storage import copy, open_encrypted
from shoal.storage.interface import Storage
from shoal.storage.opening import open_storage

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
ROW = b"Mnode"


def opened(directory: Path, *masters: bytes) -> Storage:
    return open_encrypted(directory, config=Config(), now_ms=lambda: 0, entropy=urandom, master=LocalKeys(masters, urandom))


def test_a_copy_that_failed_does_not_have_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    source = open_storage(tmp_path / "state", config=config, now_ms=lambda: 0, entropy=urandom)
    source.write({ROW: b"1"})
    source.sync()
    source.close()

    def open_and_fail(directory: Path, **options: object) -> Storage:
        storage = open_storage(directory, **options)  # type: ignore[arg-type]
        if directory.name != "state":
            monkeypatch.setattr(storage, "sync", _fail, raising=False)
        return storage

    monkeypatch.setattr("shoal.storage.encrypted.storage.open_storage", open_and_fail)
    with pytest.raises(StorageError, match="full"):
        copy(
            tmp_path / "state",
            tmp_path / "copy",
            config=config,
            encryption_key="",
            now_ms=lambda: 0,
            entropy=urandom,
        )
    assert not (tmp_path / "copy").exists()


def _fail() -> None:
    raise StorageError("the disk is full. Nothing was written.")


def test_an_opening_takes_the_master_key_in_force(tmp_path: Path) -> None:
    opened(tmp_path, OLD).close()
    opened(tmp_path, NEW, OLD).close()
    opened(tmp_path, NEW).close()
    with pytest.raises(MasterKeyWrong):
        opened(tmp_path, OLD)
