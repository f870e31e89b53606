"""Keyrings and encrypted storages in memory."""

from __future__ import annotations

from collections.abc import Callable
from os import urandom

import pytest

from shoal.storage.encrypted.keyring import Keyring, KeysInMemory, LocalKeys
from shoal.storage.encrypted.storage import EncryptedStorage
from shoal.storage.interface import MemoryStorage

MASTER = bytes(range(32))
OpenKeys = Callable[..., Keyring]
Sealed = Callable[..., EncryptedStorage]


@pytest.fixture
def open_keys() -> OpenKeys:
    """Unlocks the keys of a home, or makes them."""

    def unlock(home: KeysInMemory, *masters: bytes, keys_max: int = 1000) -> Keyring:
        master = LocalKeys(masters or (MASTER,), urandom)
        return Keyring(home, master, entropy=urandom, now_ms=lambda: 0, keys_max=keys_max)

    return unlock


@pytest.fixture
def sealed(open_keys: OpenKeys) -> Sealed:
    """Encrypted storages over a memory storage."""

    def make(inner: MemoryStorage, home: KeysInMemory | None = None, *, order_rows_max: int = 1000) -> EncryptedStorage:
        return EncryptedStorage(inner, open_keys(home or KeysInMemory()), entropy=urandom, order_rows_max=order_rows_max)

    return make
