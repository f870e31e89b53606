"""A storage that seals each row before the storage below sees it: the one boundary of encryption. Its opening, and new keys
for its rows.

Laws:
- It keeps the laws of `shoal.storage.interface`, which hold for plain keys and values.
- Rows that were written are *held* in memory until the next sync begins, and then sealed and written below together: that
  takes half of the time of sealing them one write at a time. What is held was never acknowledged. Reads see it at once.
- Rows of one *group*, whose keys share all but a hidden part, are in another order below. A scan opens a group as a
  whole and sorts it. The order of large groups is remembered, within a bound.
- The layers above see plain rows alone: chain hashes, comparisons and snapshots are those of any other node.
- A directory is encrypted from its first row on, or never: a plain row that was once on the disk stays there for a while,
  and could not be told from a forged one. `shoal encryption copy` makes an encrypted copy of a plain directory, or the
  other way round.
- The directory's key is wrapped by the master key in force: if that has changed, by a new directory key.
- A master key that is missing, wrong or not needed changes nothing.

Rows get another key: in their place, as data keys are replaced or destroyed, or in a copy of the directory.

A pass reads all rows as they are below, some at a time, and opens only those that it looks for.

Laws:
- The copy has its name only once it is whole and durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from shoal.config import Config, MiB
from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong, StorageError, StorageFull, StoreCorrupt
from shoal.records import NamedTuple
from shoal.storage import layout
from shoal.storage.commit import LoggedStorage
from shoal.storage.encrypted.keyring import Entropy, Keyring, KeysFile, service_of
from shoal.storage.encrypted.ordering import Orders, Scanning
from shoal.storage.encrypted.rows import (
    HIDING_TABLES,
    STORE,
    STORE_TABLES,
    RowCipher,
    check_layers,
    hidden_from,
    place_of,
    scopes_of,
    unhidden,
    with_hidden,
)
from shoal.storage.interface import DigestOf, Snapshot
from shoal.storage.opening import open_storage
from shoal.storage.rocks import RocksStorage

_RECENT_MAX: Final = 1024  # Rows that were just written, in memory,
_RECENT_BYTES_MAX: Final = 256  # of at most this size.
_HELD_ROWS_MAX: Final = 256  # Held rows, and the bytes of those that are not small: beyond, the next write seals them first.
_HELD_BYTES_MAX: Final = 1 << 20
_SMALL_BYTES: Final = 1024  # A row of so few bytes names far less than 255 spaces.


class EncryptedStorage:
    """A `LoggedStorage` over another one. `keyring` has its keys."""

    def __init__(self, inner: LoggedStorage, keyring: Keyring, *, entropy: Entropy, order_rows_max: int) -> None:
        self.keyring = keyring
        self.inner = inner
        self.cipher = RowCipher(keyring, entropy)
        self._rows_max = order_rows_max
        self._held: dict[bytes, bytes | None] = {}
        self._held_bytes = 0
        self._written = 0
        self._failed = False  # Below; then each write tries there, and is told.
        self._recent: dict[bytes, bytes] = {}
        self._snapshots: set[EncryptedSnapshot] = set()
        self._orders = orders = Orders(order_rows_max)
        self._forwards = Scanning(self.cipher, orders, inner.scan, inner.get)
        self._backwards = Scanning(self.cipher, orders, partial(inner.scan, reverse=True), inner.get, reverse=True)

    @property
    def failed(self) -> str | None:
        """Why it rejects writes, since it was opened or later; None if it does not (`LoggedStorage.failed`)."""
        return self.inner.failed

    # ── reading ───────────────────────────────────────────────────────────────

    def get(self, key: bytes, /) -> bytes | None:
        """The value of `key`, or None (`Storage.get`). A row that does not open raises `StoreCorrupt`."""
        if key in self._held:
            return self._held[key]
        if key and key[0] in HIDING_TABLES:
            if (value := self._recent.get(key)) is not None:
                return value
            scope, clear = place_of(key)
            if clear < len(key):
                live = self.cipher.find(scope)
                stored = None if live is None else self.inner.get(place := live.name(key, clear))
                return None if stored is None else unhidden(self.cipher.open(place, stored))[1]
        stored = self.inner.get(key)
        return None if stored is None else self.cipher.open(key, stored)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop` (None: to the end), in key order or its reverse (`Storage.scan`)."""
        if limit == 0 or (stop is not None and start >= stop):
            return
        held = {key: value for key, value in self._held.items() if start <= key and (stop is None or key < stop)}
        if not held:
            yield from self._scanned(start, stop, reverse=reverse, limit=limit)
            return
        below = (row for row in self._scanned(start, stop, reverse=reverse, limit=None) if row[0] not in held)
        above = sorted(held.items(), reverse=reverse)
        rows = merge(below, above, key=itemgetter(0), reverse=reverse)
        yield from islice(((key, value) for key, value in rows if value is not None), limit)

    def _scanned(self, start: bytes, stop: bytes | None, *, reverse: bool, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        """The rows below."""
        if start and stop is not None and start[0] == stop[0] and start[0] not in HIDING_TABLES:
            rows = self.inner.scan(start, stop, reverse=reverse, limit=limit)
            return ((key, self.cipher.open(key, stored)) for key, stored in rows)
        return islice((self._backwards if reverse else self._forwards).rows(start, stop), limit)

    def snapshot(self) -> EncryptedSnapshot:
        """The store as it is now, unsynced writes included (`Storage.snapshot`); also StorageFull, if what is held cannot be
        written.
        """
        self.hand_over()
        taken = EncryptedSnapshot(self.inner.snapshot(), self, self._rows_max)
        self._snapshots.add(taken)
        return taken

    def opened(self, place: bytes, stored: bytes) -> tuple[bytes, bytes]:
        """The plain key and value of a row as it is below.

        Raises:
            StoreCorrupt: it does not open.
        """
        plain = self.cipher.open(place, stored)
        clear = hidden_from(place)
        if clear >= len(place):
            return place, plain
        hidden, value = unhidden(plain)
        return place[:clear] + hidden, value

    def closed(self, snapshot: EncryptedSnapshot) -> None:
        """Told by a snapshot."""
        self._snapshots.discard(snapshot)

    def has_rows(self, start: bytes, stop: bytes) -> bool:
        """Whether there is a row with `start` ≤ key < `stop`. Neither may be within a hidden part. Nothing is opened."""
        if any(value is not None and start <= key < stop for key, value in self._held.items()):
            return True
        return next(self.inner.scan(start, stop, limit=1), None) is not None

    def shows_before(self, version: int) -> bool:
        """Whether a snapshot is open that was taken before the keyring had this version: it may need older keys."""
        return any(taken.version < version for taken in self._snapshots)

    # ── writing ───────────────────────────────────────────────────────────────

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        """Delete `ranges` (start inclusive, stop exclusive), then put `rows` (None deletes), atomically (`Storage.write`). What
        is beyond the bounds of what is held, or deletes ranges, is sealed at once.
        """
        if ranges or self._failed or len(self._held) >= _HELD_ROWS_MAX or self._held_bytes >= _HELD_BYTES_MAX:
            self.hand_over()
        if ranges:
            self._write_below(rows, ranges)
        else:
            for key, value in rows.items():
                if value is not None and len(value) > _SMALL_BYTES:
                    check_layers(scopes_of(key, value))
                    self._held_bytes += len(value)
            self._held.update(rows)
        self._written += 1
        return self._written

    def begin_write(self, rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        """`write` in two steps (`Storage.begin_write`). The first does nothing: rows are sealed when they are handed over."""
        return partial(self.write, rows)

    def begin_laying(self, values: Sequence[bytes], digest_of: DigestOf, /) -> None:
        """Large values are sealed and written like others (`Storage.begin_laying`)."""

    def hand_over(self) -> None:
        """Seal what is held, and write it below. The first row in a space makes its keys, which blocks for the disk.

        Raises:
            StorageFull: it cannot be written. It is still held, and reads show it.
        """
        if self._held or self._failed:
            self._write_below(self._held, ())
            self._held, self._held_bytes = {}, 0

    def _write_below(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]]) -> None:
        if self.cipher.follow():
            self._orders.clear()
        sealed: dict[bytes, bytes | None] = {}
        try:
            spans = [span for start, stop in ranges for span in self._deleted(start, stop, sealed)] if ranges else ()
            self._seal(rows, sealed)
            self.inner.write(sealed, spans)
        except BaseException:
            self._orders.clear()
            self._recent.clear()
            self._failed = True
            raise

    def _seal(self, rows: Mapping[bytes, bytes | None], sealed: dict[bytes, bytes | None]) -> None:
        """Add rows to `sealed`, as they are below. Each save has five rows, so calls are spared."""
        cipher, recent, is_ordered = self.cipher, self._recent, self._orders.is_used
        nonces, lives = cipher.nonces(len(rows)), cipher.lives
        for key, value in rows.items():
            place, scope, live, scopes = key, STORE, None, None
            table = key[0] if key else 0
            if table in HIDING_TABLES:
                scope, clear = place_of(key)
                if clear < len(key):
                    live = lives.get(scope) or (cipher.find(scope) if value is None else cipher.live(scope))
                    if live is None:
                        continue  # Nothing was ever written in the space of a row that is deleted.
                    place = live.name(key, clear)
                    if is_ordered:
                        (self._orders.discard if value is None else self._orders.add)(key[:clear], key[clear:], place[clear:])
                    if value is not None:
                        value = with_hidden(key[clear:], value)
                elif value is not None and len(value) <= _RECENT_BYTES_MAX:
                    recent[key] = value  # The heads of a branch are read again by the next save.
                else:
                    recent.pop(key, None)
            elif value is not None and table not in STORE_TABLES:
                scopes = scopes_of(key, value)
                scope = scopes[0]
            if value is None:
                sealed[place] = None
            elif scopes is None or len(scopes) == 1:
                live = live or lives.get(scope) or cipher.live(scope)
                nonce = nonces.pop()
                sealed[place] = live.prefix + nonce + live.encrypt(nonce, value, place)
            else:
                sealed[place] = cipher.seal(place, scopes, value)
        while len(recent) > _RECENT_MAX:
            del recent[next(iter(recent))]

    def _deleted(self, start: bytes, stop: bytes, sealed: dict[bytes, bytes | None]) -> list[tuple[bytes, bytes]]:
        """The ranges below of a range that is deleted; rows in a part of a group become deletions in `sealed`."""
        self._orders.drop(start, stop)
        for key in [key for key in self._recent if start <= key < stop]:
            del self._recent[key]
        if hidden_from(start) >= len(start) and hidden_from(stop) >= len(stop):
            return [(start, stop)]
        for key, _ in self.scan(start, stop):
            scope, clear = place_of(key)
            live = None if clear >= len(key) else self.cipher.find(scope)
            sealed[key if live is None else live.name(key, clear)] = None
        return []

    # ── what the storage below does ───────────────────────────────────────────

    @property
    def identity(self) -> bytes:
        """Names this copy of the store: the same after every restart, different in a copied or restored directory
        (`Storage.identity`).
        """
        return self.inner.identity

    def begin_sync(self) -> Callable[[], int]:
        """A sync of all writes before this call, which are sealed now if they are held (`Storage.begin_sync`)."""
        self.hand_over()
        return partial(self._sync, self.inner.begin_sync(), self._written)

    def _sync(self, below: Callable[[], int], written: int) -> int:
        try:
            below()
        except BaseException:
            self._failed = True
            raise
        return written

    def sync(self) -> int:
        """`begin_sync` and that call at once (`Storage.sync`)."""
        return self.begin_sync()()

    def bytes_on_disk(self) -> int:
        """The space that the store's files occupy, the write-ahead log included; in memory, the size of the durable rows
        (`Storage.bytes_on_disk`).
        """
        return self.inner.bytes_on_disk()

    def bytes_free(self) -> int:
        """The bytes that are free on the disk (`Storage.bytes_free`)."""
        return self.inner.bytes_free()

    def rotate_if_due(self) -> bool:
        """Begin a new log if the old one is long; True if all writes are now durable (`LoggedStorage.rotate_if_due`)."""
        self.hand_over()
        return self.inner.rotate_if_due()

    def reclaim(self) -> None:
        """Begin to give back the space of deleted rows (`LoggedStorage.reclaim`)."""
        self.hand_over()
        self.inner.reclaim()

    def begin_erasing(self) -> None:
        """Begin to remove the bytes of deleted rows from the disk (`LoggedStorage.begin_erasing`)."""
        self.hand_over()
        self.inner.begin_erasing()

    def erase(self, age_s: float) -> bool:
        """Carry on what began `age_s` seconds ago; True when nothing of what was deleted before is left
        (`LoggedStorage.erase`).
        """
        return self.inner.erase(age_s)

    def write_witness(self) -> bool:
        """Record outside the log what is durable; False if the record is already up to date (`LoggedStorage.write_witness`)."""
        return self.inner.write_witness()

    def close(self) -> None:
        """Sync and release everything (`Storage.close`)."""
        with suppress(StorageFull):
            self.hand_over()
        self.inner.close()


class EncryptedSnapshot:
    """A `Snapshot` of an `EncryptedStorage`. What it shows never changes, so the orders that it remembers stay right."""

    def __init__(self, inner: Snapshot, storage: EncryptedStorage, rows_max: int) -> None:
        self.version = storage.keyring.version
        self._inner = inner
        self._storage = storage
        self._scanning = Scanning(storage.cipher, Orders(rows_max), inner.scan, self._get)

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The rows with `start` ≤ key < `stop`, in key order (`Snapshot.scan`)."""
        return self._scanning.rows(start, stop)

    def close(self) -> None:
        """Release it (`Snapshot.close`)."""
        self._storage.closed(self)
        self._inner.close()

    def _get(self, place: bytes) -> bytes | None:
        return next((stored for _, stored in self._inner.scan(place, place + b"\0")), None)


ENCRYPTION_ORDER_ROWS_MAX = 131_072  # Rows with hidden keys whose order is remembered, or found out by one scan.


def open_encrypted(
    directory: Path,
    *,
    config: Config,
    now_ms: Callable[[], int],
    entropy: Entropy,
    master: KeyService | None = None,
) -> EncryptedStorage:
    """Open, or make, the encrypted store in `directory`. Without `master`, the key is the one of `config`. Blocks.

    Raises:
        MasterKeyWrong: the master key is wrong or cannot be fetched, or the directory is not encrypted. Nothing was changed.
        StoreCorrupt: as `RocksStorage.open`; or the file of its keys is damaged or missing.
        StoreLocked, StoreTooNew, StorageFull, StorageError, Unsupported: as `RocksStorage.open`.
    """
    service = service_of(config.encryption_key, entropy) if master is None else master
    home = KeysFile(directory)
    if layout.holds_store(directory):
        if not layout.is_encrypted(directory):
            raise MasterKeyWrong(
                f"{directory} is not encrypted, and an encryption key was given. Nothing was written. Leave the key out, or "
                "make an encrypted copy with `shoal encryption copy`."
            )
        if home.read() is not None:
            Keyring(home, service, entropy=entropy, now_ms=now_ms, keys_max=config.encryption_keys_max)
    inner = RocksStorage.open(directory, config=config, now_ms=now_ms(), encrypted=True)
    try:
        if home.read() is None and next(inner.scan(b"", None, limit=1), None) is not None:
            raise StoreCorrupt(
                f"{directory} has rows, and its file {layout.KEYS} is missing. Nothing was written. Without it no row can be "
                f"read: restore {layout.KEYS} or the whole directory from a backup, or rebuild it from the other nodes."
            )
        keyring = Keyring(home, service, entropy=entropy, now_ms=now_ms, keys_max=config.encryption_keys_max)
        if keyring.master != service.name:
            keyring.adopt(keyring.renewed())  # Another key is in force now, and this one may be gone soon.
    except BaseException:
        inner.close()
        raise
    return EncryptedStorage(inner, keyring, entropy=entropy, order_rows_max=ENCRYPTION_ORDER_ROWS_MAX)


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
