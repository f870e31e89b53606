"""Content-defined chunks, so that states which share content share storage.

Laws:
- A cut depends only on the bytes before it, back to the cut before: two inputs
  with a common prefix have the same cuts within it, and what is appended moves none.
- Every chunk is `CHUNK_BYTES_MIN` to `CHUNK_BYTES_MAX` long. What follows the last
  cut is no chunk yet, and shorter than `CHUNK_BYTES_MAX`.

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
# Small enough that what follows the last cut is little to write again in full,
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


def cuts(data: bytes, start: int = 0, *, settled: int = 0) -> list[int]:
    """Where the chunks of `data[start:]` end; `start` must be a cut, or 0.

    `settled` says that there is no cut after `start` up to there: who appends knows.
    """
    size = len(data)
    low = max(start + CHUNK_BYTES_MIN, settled + 1)
    base = low - _WINDOW
    hashes = _rolling(data[base:]) if size >= low else b""
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
