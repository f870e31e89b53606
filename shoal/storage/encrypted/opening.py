"""Opens a directory, encrypted or not.

Laws:
- A directory is encrypted from its first row on, or never: a plain row that was once on the disk stays there for a while,
  and could not be told from a forged one. `shoal encryption copy` makes an encrypted copy of a plain directory, or the
  other way round.
- The directory's key is wrapped by the master key in force: if that has changed, by a new directory key.
- A master key that is missing, wrong or not needed changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal.config import Config
from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong, StoreCorrupt
from shoal.storage import layout
from shoal.storage.encrypted.keyring import Entropy, Keyring, KeysFile, service_of
from shoal.storage.encrypted.storage import EncryptedStorage
from shoal.storage.rocks import RocksStorage

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
