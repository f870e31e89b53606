"""The hashes that this process has made of what it sends to a node within it, so that the node makes them only once.

Laws:
- Who says a hash has made it of these very bytes, in this process, and holds them until it says it no longer. What came from
  elsewhere is another object, so its hash is unknown here.
- The hash of a file is said only if all of its chunks were sent: what is stored already is read before a name leads to it.
- What is known is forgotten once the request is answered.
- Chunks that came from elsewhere are hashed once, too, while the node handles their request; nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256

_hashes: dict[int, bytes] = {}  # By the identity of an object that somebody holds: SHA-256 of a chunk, or of a manifest's file.


_made: dict[int, bytes] = {}  # The same, of chunks that came from elsewhere.


@contextmanager
def hashed_once(chunks: Iterable[bytes]) -> Iterator[None]:
    """Keep the hashes that are made of these chunks, in any thread, until the block ends."""
    identities = dict.fromkeys(map(id, chunks), b"")
    _made.update(identities)
    try:
        yield
    finally:
        for identity in identities:
            _made.pop(identity, None)


@contextmanager
def saying(hashes: Mapping[bytes, bytes]) -> Iterator[None]:
    """Say these hashes, each with the chunk, or the manifest of all that was hashed, until the block ends."""
    identities = {id(thing): hash for hash, thing in hashes.items()}
    _hashes.update(identities)
    try:
        yield
    finally:
        for identity in identities:
            _hashes.pop(identity, None)


def said(thing: bytes) -> bytes | None:
    """The hash that was said of this object; None if nobody did."""
    return _hashes.get(id(thing))


def digest_of(chunk: bytes) -> bytes:
    """The SHA-256 of a chunk."""
    found = said(chunk) or _made.get(id(chunk))
    if not found:
        found = sha256(chunk).digest()
        if id(chunk) in _made:
            _made[id(chunk)] = found
    return found
