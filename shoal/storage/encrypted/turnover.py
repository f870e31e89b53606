"""Finds the rows that some data keys still seal, so that they can be sealed anew, or the keys destroyed.

A pass reads all rows as they are below, some at a time, and opens only those that it looks for.
"""

from __future__ import annotations

from collections.abc import Collection

from shoal.errors import StoreCorrupt
from shoal.records import NamedTuple
from shoal.storage.encrypted.storage import EncryptedStorage


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
