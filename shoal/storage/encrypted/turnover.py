"""Rows get another key: in their place, as data keys are replaced or destroyed, or in a copy of the directory.

A pass reads all rows as they are below, some at a time, and opens only those that it looks for.

Laws:
- The copy has its name only once it is whole and durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec.structs import replace

from shoal.config import Config, MiB
from shoal.errors import StorageError, StoreCorrupt
from shoal.records import NamedTuple
from shoal.storage import layout
from shoal.storage.encrypted.keyring import Entropy
from shoal.storage.encrypted.storage import EncryptedStorage
from shoal.storage.opening import open_storage


class Slice(NamedTuple):
    """The rows that a pass met in one step."""

    rows: dict[bytes, bytes]  # Plain keys and values of rows that these keys seal.
    damaged: int  # Rows that these keys seal and that cannot be opened.
    behind: bytes | None  # The key below at which the next step begins; None: there are no more rows.


def sealed_by(storage: EncryptedStorage, numbers: Collection[int], start: bytes, *, rows_max: int, bytes_max: int) -> Slice:
    """The rows from a key below on that the data keys of these numbers seal, in any layer. At least one row is looked at.

    Raises:
        StorageFull: what is held cannot be written.
    """
    storage.hand_over()  # Otherwise a row that is sealed anew would replace a newer one.
    found: dict[bytes, bytes] = {}
    damaged = size = 0
    behind: bytes | None = None
    for place, stored in storage.inner.scan(start, None, limit=rows_max):
        size += len(stored)
        behind = place + b"\0"
        try:
            if storage.cipher.is_under(place, stored, numbers):
                key, value = storage.opened(place, stored)
                found[key] = value
        except StoreCorrupt:
            damaged += 1
        if size >= bytes_max:
            break
    return Slice(found, damaged, behind)


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
