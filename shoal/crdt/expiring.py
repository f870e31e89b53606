"""Claims under keys that clients made: they expire, and each replica removes them by itself.

Laws:
- Such a key contains the time at which a client made it. Once its window is over and the operation that claims it is stable
  (`shoal.cluster.truncation`), no other operation with this key can arrive: those that were issued without knowledge of it
  are here, and a node that holds it has answered or rejected every repetition. So the claim decides nothing any more.
- These rows are no part of an object's canonical form: replicas that hold the same operations may hold different ones.
- Keys are in the order of their times. So a sweep reads the rows that it removes, and one more.

The rows of a counter and of either part of a budget are below `PREFIX`, as `shoal.kinds.counter.state` says.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows
from shoal.records import NamedTuple

MARK = b"\x01"
"""The first byte of a key that expires; then follow `c` and 12 hex digits of milliseconds since 1970."""
PREFIX = b"E"

_MARK = MARK.decode()
_KEYS, _CONFLICTS = PREFIX + b"K", PREFIX + b"X"
_TIME_FROM, _TIME_TO = len(_KEYS) + 2, len(_KEYS) + 14


class KeyUse(NamedTuple):
    """The use that counts of a key: its row, when the key was made, and the operation."""

    row: bytes
    wall_ms: int
    dot: Dot


def is_made_before(key: str, wall_ms: int) -> bool:
    """Whether a key expires and was made before `wall_ms`."""
    return key.startswith(_MARK) and int(key[2:14], 16) < wall_ms


def uses(rows: Rows, *, after: bytes | None = None, limit: int) -> list[KeyUse]:
    """The uses of keys that expire, the oldest first; `after` is a row."""
    found = rows.scan(_KEYS + MARK, after=after, limit=limit)
    return [KeyUse(row, int(row[_TIME_FROM:_TIME_TO], 16), Dot.unpack(use[:DOT_BYTES])) for row, use in found]


def rows_of(rows: Rows, use: KeyUse) -> Iterator[bytes]:
    """The rows of a use: its own, and those of other amounts under its key."""
    yield use.row
    key = use.row[len(_KEYS) :]
    for row, _ in rows.scan(_CONFLICTS + len(key).to_bytes(2, "big") + key):
        yield row
