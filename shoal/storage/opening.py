"""Opens the store in a directory, as its configuration and its format say: plain, or encrypted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shoal.config import Config
from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong
from shoal.raising import needed
from shoal.storage import layout
from shoal.storage.cold import raw_of
from shoal.storage.commit import LoggedStorage
from shoal.storage.rocks import RocksStorage

if TYPE_CHECKING:
    from shoal.storage.encrypted.storage import EncryptedStorage


def encrypted(storage: LoggedStorage) -> EncryptedStorage | None:
    """The storage itself, if it is an encrypted one. It does not load the code of encryption."""
    storage = raw_of(storage)
    return cast("EncryptedStorage", storage) if hasattr(storage, "keyring") else None


def open_storage(
    directory: Path,
    *,
    config: Config,
    now_ms: Callable[[], int],
    entropy: Callable[[int], bytes],
    master: KeyService | None = None,
) -> LoggedStorage:
    """Open, or make, the store in `directory`. `master` takes precedence over `config.encryption_key`. Blocks.

    Raises:
        MasterKeyWrong: it is encrypted and there is no key, or the other way round, or the key is wrong. Nothing was changed.
        StoreLocked, StoreTooNew, StoreCorrupt, StorageFull, StorageError, Unsupported: as `RocksStorage.open`.
    """
    if master is not None or config.encryption_key:
        # Imported here, because most stores are plain, and start sooner without it.
        with needed():
            from shoal.storage.encrypted.storage import open_encrypted

        return open_encrypted(directory, config=config, now_ms=now_ms, entropy=entropy, master=master)
    if layout.holds_store(directory) and layout.is_encrypted(directory):
        raise MasterKeyWrong(
            f"{directory} is encrypted, and no key was given. Nothing was written. Give its master key: --encryption-key, "
            "SHOAL_ENCRYPTION_KEY, or the setting encryption_key. See docs/ENCRYPTION.md."
        )
    return RocksStorage.open(directory, config=config, now_ms=now_ms())
