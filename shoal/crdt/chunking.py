"""Content-defined chunks, so that states which share content share storage.

Laws:
- The cuts are a function of the bytes alone, and a cut depends only on the bytes
  before it: two inputs with a common prefix have the same cuts within it, but
  for the last chunk, which ends where the data ends.
- Every chunk but the last is `CHUNK_BYTES_MIN` to `CHUNK_BYTES_MAX` long.

A cut follows a place where a rolling hash of the last 32 bytes matches a pattern
(Muthitacharoen et al., LBFS, 2001). The hashes of all positions are computed
at once: `bytes.translate` looks every byte up in a table, and one XOR of whole
inputs as big integers combines each position with a later one, which doubles
the window: five rounds make 32. That runs at memory speed in plain Python.
"""

from __future__ import annotations

import re
from hashlib import sha256

CHUNK_BYTES_MIN = 1024
CHUNK_BYTES_MAX = 16384
# Small enough that an append rewrites little (half a chunk on average),
# large enough that the hashes stay below one per cent of the state.
_PATTERN = re.compile(rb"\x00[\x00-\x0f]", re.DOTALL)  # One place in 4,096.
_WINDOW = 33  # Bytes that a match has read: two neighbouring hashes of 32.


def _table(seed: int) -> bytes:
    """A fixed permutation of the 256 bytes."""
    return bytes(sorted(range(256), key=lambda byte: sha256(f"shoal chunks {seed} {byte}".encode()).digest()))


# These bytes decide where cuts fall: changing them ends sharing with older states.
_TABLES = tuple(_table(seed) for seed in range(6))


def _rolling(data: bytes) -> bytes:
    """Byte i hashes data[i : i + 32]; the last 31 bytes of the result mean nothing."""
    size = len(data)
    hashes = data.translate(_TABLES[0])
    for doubling, table in enumerate(_TABLES[1:]):
        later = hashes[1 << doubling :].translate(table)
        # Little-endian, so that a shorter right-hand side aligns with the first bytes.
        mixed = int.from_bytes(hashes, "little") ^ int.from_bytes(later, "little")
        hashes = mixed.to_bytes(size, "little")
    return hashes


def cuts(data: bytes, start: int = 0) -> list[int]:
    """Where the chunks of `data[start:]` end; `start` must be a cut, or 0. The last is len(data)."""
    size = len(data)
    if size - start <= CHUNK_BYTES_MIN:
        return [size] if size > start else []
    base = start
    hashes = _rolling(data[base:])
    ends = []
    while size - start > CHUNK_BYTES_MIN:
        low, high = start + CHUNK_BYTES_MIN, min(start + CHUNK_BYTES_MAX, size)
        # A match at hash i has read data up to i + _WINDOW, where the cut is put.
        match = _PATTERN.search(hashes, low - base - _WINDOW, max(0, high - base - _WINDOW + 2))
        if match is not None:
            start = base + match.start() + _WINDOW
        elif high < size:
            start = high
        else:
            break
        ends.append(start)
    if not ends or ends[-1] != size:
        ends.append(size)
    return ends


def shared_prefix(a: bytes, b: bytes) -> int:
    """How many bytes `a` and `b` begin with in common: a few memory comparisons."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # a[:low] is shared, a[:high] is not.
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
