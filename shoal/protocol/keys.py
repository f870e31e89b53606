"""Idempotency keys that clients make by themselves.

A key is `c`, 12 hex digits of milliseconds since 1970, `-`, and 20 hex digits of
randomness. Its time bounds how long a node must remember it; keys that users
choose have no time in them, and any other form.
"""

from __future__ import annotations

import re

_FORM = re.compile(r"c[0-9a-f]{12}-[0-9a-f]{20}", re.ASCII)
RANDOM_BYTES = 10


def make_key(now_ms: int, random: bytes) -> str:
    """`random` is `RANDOM_BYTES` bytes."""
    return f"c{now_ms:012x}-{random.hex()}"


def is_made_before(key: str, wall_ms: int) -> bool:
    """Whether it is a key that a client made before `wall_ms`; a user's is not."""
    # Such keys are in the order of their times: most are new, and need no closer look.
    return key < f"c{max(0, wall_ms):012x}" and _FORM.fullmatch(key) is not None
