"""Idempotency keys that clients generate.

A key is `c`, 12 hex digits of milliseconds since 1970, `-`, and 20 hex digits of
randomness. Its time bounds how long a node must remember it. Keys that users
choose contain no time and may have any other form.
"""

from __future__ import annotations

import re

_FORM = re.compile(r"c[0-9a-f]{12}-[0-9a-f]{20}", re.ASCII)
RANDOM_BYTES = 10


def make_key(now_ms: int, random: bytes) -> str:
    """A new key; `random` is `RANDOM_BYTES` bytes."""
    return f"c{now_ms:012x}-{random.hex()}"


def is_made(key: str) -> bool:
    """Whether a client generated `key`; false for a key that a user chose."""
    return key[:1] == "c" and _FORM.fullmatch(key) is not None


def first_key(now_ms: int) -> str:
    """A key that sorts before every key that a client generates from this time on, and after all that were generated before."""
    return f"c{max(0, now_ms):012x}"


def is_made_before(key: str, wall_ms: int) -> bool:
    """Whether a client generated `key` before `wall_ms`; false for a key that a user chose."""
    # Generated keys sort by their times: most are new, and this comparison settles them.
    return key < first_key(wall_ms) and _FORM.fullmatch(key) is not None
