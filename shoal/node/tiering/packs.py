"""Packs: objects of a bucket that hold sealed chunks of one thread.

Laws:
- A pack's name is the SHA-256 of all of its bytes, so one that was altered is not taken for it.
- Each chunk is sealed by itself, under a key that belongs to this pack alone, and bound to its row. The key is where the
  stubs are, and not in the bucket: whoever has the bucket reads nothing, and without its stubs a pack is noise.
- A pack says which rows it holds. What comes out has the hash that its row names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import StoreCorrupt
from shoal.raising import needed
from shoal.records import NamedTuple
from shoal.storage.cold import Stub, digest_in

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
SEAL_BYTES = 16
_FORMAT = b"SHOLPAK1"
_INDEX = b"index"
_END_BYTES = 4

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, int, int]])


class Pack(NamedTuple):
    """A pack that was made, and the stubs that lead to it."""

    name: bytes
    content: bytes
    stubs: Mapping[bytes, Stub]  # By row, within the object.


class Packing:
    """A pack in the making. `key`: random bytes, used for no other pack."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = _cipher(key)
        self._parts: list[bytes] = [_FORMAT]
        self._at = len(_FORMAT)
        self._rows: list[tuple[bytes, int, int]] = []
        self.bytes = 0
        """Of the chunks."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: bytes, chunk: bytes) -> None:
        """Seal a chunk, which has the hash that its row names."""
        self._parts.append(self._cipher.encrypt(_nonce(self._at), chunk, row))
        self._rows.append((row, self._at, len(chunk)))
        self._at += len(chunk) + SEAL_BYTES
        self.bytes += len(chunk)

    def finish(self) -> Pack:
        """The pack. Nothing may be added to it any more."""
        index = self._cipher.encrypt(_nonce(self._at), _encoder.encode(self._rows), _INDEX)
        content = b"".join([*self._parts, index, len(index).to_bytes(_END_BYTES, "big")])
        name = sha256(content).digest()
        return Pack(name, content, {row: Stub(name, self._key, start, size) for row, start, size in self._rows})


class OpenedPack:
    """A pack that was read."""

    def __init__(self, name: bytes, content: bytes, key: bytes) -> None:
        """
        Raises:
            StoreCorrupt: it is another object, or the key is another pack's.
        """
        if sha256(content).digest() != name or not content.startswith(_FORMAT):
            raise StoreCorrupt(f"pack {name.hex()} was altered in the object store")
        self._name, self._content, self._cipher = name, content, _cipher(key)
        end = len(content) - _END_BYTES
        start = end - int.from_bytes(content[end:], "big")
        self.rows = {row: (at, size) for row, at, size in _decoder.decode(self._opened(start, end, _INDEX))}
        """Where the chunk of each row is, and its size."""

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._content)

    def chunk(self, row: bytes) -> bytes:
        """The chunk of a row.

        Raises:
            StoreCorrupt: the pack holds another one, or none.
        """
        at, size = self.rows.get(row, (0, 0))
        chunk = self._opened(at, at + size + SEAL_BYTES, row) if size else b""
        if sha256(chunk).digest() != digest_in(row):
            raise StoreCorrupt(f"pack {self._name.hex()} does not hold a chunk that was put there")
        return chunk

    def chunks(self) -> Iterator[tuple[bytes, bytes]]:
        """All chunks, by row."""
        return ((row, self.chunk(row)) for row in self.rows)

    def _opened(self, start: int, stop: int, bound_to: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_nonce(start), self._content[start:stop], bound_to)
        except InvalidTag:
            raise StoreCorrupt(f"pack {self._name.hex()} cannot be opened with the key that is here") from None


def _nonce(start: int) -> bytes:
    """Each part of a pack has a place of its own, and each pack a key of its own."""
    return start.to_bytes(12, "big")


def _cipher(key: bytes) -> AESGCM:
    with needed():
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)
