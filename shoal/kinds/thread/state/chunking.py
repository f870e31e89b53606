"""Content-defined chunks, by which states share storage, and short descriptions of growing lists of them.

Content-defined chunks, so that states which share content share storage.

Laws:
- A cut depends only on the bytes before it, back to the cut before: two inputs
  with a common prefix have the same cuts within it, and an append moves no cut.
- Every chunk is `CHUNK_BYTES_MIN` to `CHUNK_BYTES_MAX` long. The bytes after the last
  cut are no chunk yet, and fewer than `CHUNK_BYTES_MAX`.

A cut follows a place where a rolling hash of the bytes before it matches a pattern
(Muthitacharoen et al., LBFS, 2001). The hash is cyclic polynomial (Cohen, 1997): the
XOR of a table's entries for 8 neighbouring bytes, each rotated by its place. All
positions are computed at once: a block of data is one big integer with eight bits for
each byte, and three rounds of shift, rotate and XOR each double the window.

A growing list of digests, described by a few: the tops of a tree with `FANOUT` children to a node.

A flat list would be hashed whole by each save, and written whole by many: 64 KB for 10,000 messages of 1 KB.

Laws:
- The tops are a function of the list alone, and so are the nodes.
- A node is the digests of its children in order, stored under its own SHA-256. It is
  complete when it is made, and never changes: an append makes about one node for every
  `FANOUT` digests, and leaves all others as they are.
- Level 0 of the tops holds the newest digests of the list; level n holds the digests of
  nodes that stand for `FANOUT` to the power of n digests each. Each level has fewer than
  `FANOUT` entries, so a list of any length has a short description.

It is the counter with base `FANOUT` of Merkle mountain ranges (Todd, 2012).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

CHUNK_BYTES_MIN = 1024
CHUNK_BYTES_MAX = 16384
# Small enough that the tail after the last cut is cheap to write again in full,
# large enough that the hashes stay below one per cent of the state.
_PATTERN = re.compile(rb"\x00[\x00-\x1f]", re.DOTALL)  # One place in 2,048.
HASHED_BYTES = 8
_WINDOW = HASHED_BYTES + 1  # Bytes that a match has read: two neighbouring hashes.
_BLOCK = 65536  # How many positions are computed at once.


def _table(seed: int) -> bytes:
    """A fixed permutation of the 256 bytes."""
    return bytes(sorted(range(256), key=lambda byte: sha256(f"shoal chunks {seed} {byte}".encode()).digest()))


# These bytes decide where cuts fall: changing them ends sharing with older states.
_BEFORE, _AFTER = _table(0), _table(1)
# Per round: how many bytes, and bits, the later half of the window is moved by; and the bits
# of each byte that a rotation puts at its upper and lower end.
_ROUNDS = tuple(
    (
        shift,
        int.from_bytes(bytes([255 << shift & 255]) * (_BLOCK + _WINDOW)),
        int.from_bytes(bytes([255 >> 8 - shift]) * (_BLOCK + _WINDOW)),
    )
    for shift in (1, 2, 4)
)


def _hashes(data: bytes) -> bytes:
    """Byte i hashes data[i : i + 8]; the last 7 bytes of the result mean nothing."""
    mixed = int.from_bytes(data.translate(_BEFORE), "little")
    for shift, upper, lower in _ROUNDS:
        later = mixed >> 8 * shift
        mixed ^= (later << shift & upper) | (later >> 8 - shift & lower)
    # Equal bytes hash to one of two values, which are translated to bytes that do not match the pattern.
    return mixed.to_bytes(len(data), "little").translate(_AFTER)


def rolling(data: bytes) -> bytes:
    """Byte i hashes data[i : i + 8]; the last 7 bytes of the result mean nothing."""
    if len(data) <= _BLOCK:
        return _hashes(data)
    starts = range(0, len(data), _BLOCK)
    return b"".join([_hashes(data[start : start + _BLOCK + _WINDOW])[:_BLOCK] for start in starts])


def cuts(data: bytes, start: int = 0, *, settled: int = 0) -> list[int]:
    """Where the chunks of `data[start:]` end. `start` must be a cut, or 0.

    `settled`: there is no cut between `start` and this offset. A caller that appends knows this from before.
    """
    size = len(data)
    low = max(start + CHUNK_BYTES_MIN, settled + 1)
    base = low - _WINDOW
    hashes = rolling(data[base:]) if size >= low else b""
    ends = []
    while size >= low:
        high = min(start + CHUNK_BYTES_MAX, size)
        # A match at hash i has read data up to i + _WINDOW, where the cut is put.
        match = _PATTERN.search(hashes, low - base - _WINDOW, max(0, high - base - _WINDOW + 2))
        if match is not None:
            start = base + match.start() + _WINDOW
        elif high == start + CHUNK_BYTES_MAX:
            start = high
        else:
            break
        ends.append(start)
        low = start + CHUNK_BYTES_MIN
    return ends


FANOUT = 32
DIGEST_BYTES = 32

Tops = tuple[tuple[bytes, ...], ...]


def grown(tops: Tops, digests: Sequence[bytes]) -> tuple[Tops, dict[bytes, bytes]]:
    """The tops after `digests` are appended, and the nodes that this completes, by digest."""
    if not digests:
        return tops, {}
    levels = [list(level) for level in tops]
    nodes: dict[bytes, bytes] = {}
    for leaf in digests:
        digest, at = leaf, 0
        while True:
            if at == len(levels):
                levels.append([])
            levels[at].append(digest)
            if len(levels[at]) < FANOUT:
                break
            node = b"".join(levels[at])
            digest = sha256(node).digest()
            nodes[digest] = node
            levels[at] = []
            at += 1
    return tuple(tuple(level) for level in levels), nodes


def count(tops: Tops) -> int:
    """How many digests the list has."""
    return sum(len(level) * FANOUT**height for height, level in enumerate(tops))


def children(node: bytes) -> list[bytes]:
    """The digests in a node, in order."""
    return [node[at : at + DIGEST_BYTES] for at in range(0, len(node), DIGEST_BYTES)]


def leaves(tops: Tops, node_of: Callable[[bytes], bytes], *, skip: int = 0) -> Iterator[bytes]:
    """The list, in order, without its first `skip` digests; nodes above only skipped digests are not read.

    `node_of` returns a node's bytes by digest; its exceptions pass through.
    """
    for height in range(len(tops) - 1, -1, -1):
        for digest in tops[height]:
            yield from _below(digest, height, node_of, skip)
            skip = max(0, skip - FANOUT**height)


def _below(digest: bytes, height: int, node_of: Callable[[bytes], bytes], skip: int) -> Iterator[bytes]:
    if skip >= FANOUT**height:
        return
    if height == 0:
        yield digest
        return
    for child in children(node_of(digest)):
        yield from _below(child, height - 1, node_of, skip)
        skip = max(0, skip - FANOUT ** (height - 1))
