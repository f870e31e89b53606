"""The seam to a key service, which wraps the keys of encrypted directories (docs/ENCRYPTION.md)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class KeyService(Protocol):
    """Wraps a directory's key: a key of this process, or a service elsewhere that never shows its own.

    Calls may block. They are made when a directory is opened, and when keys are rotated or erased; never for a row.
    """

    @property
    def name(self) -> str:
        """Names the key that `wrap` uses now, such as its id and version. It is stored readable, and shown to people."""
        ...

    def wrap(self, key: bytes, /) -> bytes:
        """Encrypt 32 bytes, with authentication. At most 64 KiB.

        Raises:
            MasterKeyWrong: this cannot be done now.
        """
        ...

    def unwrap(self, wrapped: bytes, /) -> bytes:
        """The 32 bytes.

        Raises:
            MasterKeyWrong: no key of this service wrapped these bytes, or this cannot be done now.
        """
        ...
