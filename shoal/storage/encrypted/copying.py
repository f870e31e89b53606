"""Copies a directory row by row, into one that is encrypted under another key, or not at all.

Law: the copy has its name only once it is whole and durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from shoal.config import Config, MiB
from shoal.errors import StorageError
from shoal.storage import layout
from shoal.storage.encrypted.keyring import Entropy
from shoal.storage.opening import open_storage

_WRITE_BYTES = MiB
_PARTIAL = ".partial"


def copy(
    source: Path,
    to: Path,
    *,
    config: Config,
    encryption_key: str,
    now_ms: Callable[[], int],
    entropy: Entropy,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Copy the store in `source` to a new directory, and return the number of rows. `encryption_key`: the copy's; empty: none.

    `config` opens the source; `progress` is called with the number of rows copied so far. Blocks.

    Raises:
        StorageError: `to` exists, or one of the two cannot be read or written. There is no copy then.
    """
    partial = to.with_name(to.name + _PARTIAL)
    for each in (to, partial):
        if each.exists():
            raise StorageError(f"{each} exists already. Nothing was written. Remove it, or name another directory.")
    origin = open_storage(source, config=config, now_ms=now_ms, entropy=entropy)
    try:
        copied = open_storage(partial, config=replace(config, encryption_key=encryption_key), now_ms=now_ms, entropy=entropy)
        rows: dict[bytes, bytes | None] = {}
        count = size = 0
        try:
            for key, value in origin.scan(b"", None):
                rows[key] = value
                count, size = count + 1, size + len(key) + len(value)
                if size >= _WRITE_BYTES:
                    copied.write(rows)
                    rows, size = {}, 0
                    progress(count)
            copied.write(rows)
            copied.sync()
        finally:
            copied.close()
    finally:
        origin.close()
    os.rename(partial, to)
    layout.sync_directory(to.parent)
    return count
