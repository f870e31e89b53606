"""What the files of a store still hold of data that was deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from rocksdict import DBCompressionType, Options

from shoal.config import Config
from shoal.storage import engine as recovery
from shoal.storage.engine import options_for


def uncompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stores that are opened from now on keep their rows as they are, so that a search of the files finds them."""

    def options(config: Config, *, create: bool, encrypted: bool = False) -> Options:
        found = options_for(config, create=create, encrypted=encrypted)
        found.set_compression_type(DBCompressionType.none())
        return found

    monkeypatch.setattr(recovery, "options_for", options)


def files_with(directory: Path, text: bytes) -> list[str]:
    """The names of the files below a directory that hold the text."""
    found = []
    for path in sorted(directory.rglob("*")):
        try:
            if path.is_file() and text in path.read_bytes():
                found.append(path.name)
        except FileNotFoundError:  # RocksDB removes files in the background.
            continue
    return found
