"""The deletion of an object: it ends a generation, and the next may begin. And claims under clients' keys, which expire.

Laws:
- Every change names the generation that was current for its issuer, and belongs to it.
  Each generation has rows of its own; only the current one's are shown.
- A deletion ends the generation that it names and all before it. So the current
  generation is the greatest that was ended, plus one: a function of the set of deletions.
- A change of an ended generation is dead, whenever it arrives. If several deletions name
  one generation, the first ends it and the others leave the next alone. So a deletion that
  is sent to two nodes counts once.

Row, one per object that was ever deleted, beside its generations' rows and kept forever:
    00              generation₄ dot₂₄ hlc₈ wall_ms₈ [client₈ …]: the current generation, the deletion that
                    began it (if several did, the one with the least dot), and the Yjs clients that it named

Claims under keys that clients made: they expire, and each replica removes them by itself.

Laws:
- Such a key contains the time at which a client made it. Once its window is over and the operation that claims it is stable
  (`shoal.cluster.truncation`), no other operation with this key can arrive: those that were issued without knowledge of it
  are here, and a node that holds it has answered or rejected every repetition. So the claim decides nothing any more.
- These rows are no part of an object's canonical form: replicas that hold the same operations may hold different ones.
- Keys are in the order of their times. So a sweep reads the rows that it removes, and one more.

The rows of a counter and of either part of a budget are below `PREFIX`, as `shoal.kinds.counter.state` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.records import NamedTuple

ROW = b"\x00"
GENERATION_BYTES = 4
GENERATIONS_MAX = (1 << 8 * GENERATION_BYTES) - 1


class Delete(msgspec.Struct, array_like=True, frozen=True, tag="delete"):
    """The mutation: it ends the generation to which it belongs."""

    generation: int
    clients: list[int] = []  # Of a document: the Yjs clients that edited the ended generation. They may not edit the next.


class Deletion(NamedTuple):
    """The row `ROW`: the deletion that began the current generation."""

    generation: int  # The current one; from 1.
    dot: Dot
    hlc: int
    wall_ms: int
    clients: tuple[int, ...] = ()


def apply(rows: Rows, stamp: Stamp, delete: Delete) -> bool:
    """Apply a deletion, and return whether a new generation is now current. `rows` are the object's, not a generation's."""
    before = last(rows)
    made = Deletion(delete.generation + 1, stamp.dot, stamp.hlc, stamp.wall_ms, tuple(delete.clients))
    if before is None or before.generation < made.generation:
        rows.put(ROW, _pack(made))
        return True
    if before.generation == made.generation and made.dot < before.dot:
        rows.put(ROW, _pack(made))
    return False


def last(rows: Rows) -> Deletion | None:
    """The deletion that began the current generation; None if the object was never deleted."""
    packed = rows.get(ROW)
    return None if packed is None else unpack(packed)


def prefix(generation: int) -> bytes:
    """The prefix of a generation's rows among the object's. The first has none, and no row of it begins with a 0 byte."""
    return ROW + generation.to_bytes(GENERATION_BYTES, "big") if generation else b""


def unpack(packed: bytes) -> Deletion:
    """The deletion in the bytes of row `ROW`."""
    at = GENERATION_BYTES + DOT_BYTES
    return Deletion(
        int.from_bytes(packed[:GENERATION_BYTES], "big"),
        Dot.unpack(packed[GENERATION_BYTES:at]),
        int.from_bytes(packed[at : at + 8], "big"),
        int.from_bytes(packed[at + 8 : at + 16], "big"),
        tuple(int.from_bytes(packed[start : start + 8], "big") for start in range(at + 16, len(packed), 8)),
    )


def _pack(made: Deletion) -> bytes:
    stamp = made.dot.pack() + made.hlc.to_bytes(8, "big") + made.wall_ms.to_bytes(8, "big")
    clients = b"".join(client.to_bytes(8, "big") for client in made.clients)
    return made.generation.to_bytes(GENERATION_BYTES, "big") + stamp + clients


MARK = b"\x01"
"""The first byte of a key that expires; then follow `c` and 12 hex digits of milliseconds since 1970."""
PREFIX = b"E"

KEPT_MARK, EXPIRING_MARK = "\x00", MARK.decode()
"""The first characters of keys that were derived from those of requests: a user's key has no control characters."""
_MADE = re.compile(r"c[0-9a-f]{12}-[0-9a-f]{20}", re.ASCII)
_KEYS, _CONFLICTS = PREFIX + b"K", PREFIX + b"X"
_TIME_FROM, _TIME_TO = len(_KEYS) + 2, len(_KEYS) + 14


class KeyUse(NamedTuple):
    """The use that counts of a key: its row, when the key was made, and the operation."""

    row: bytes
    wall_ms: int
    dot: Dot


def is_made(key: str) -> bool:
    """Whether a client generated `key`; false for a key that a user chose."""
    return key[:1] == "c" and _MADE.fullmatch(key) is not None


def users_key(key: str | None) -> str | None:
    """The key if a user chose it; None if it is missing or derived from a request's."""
    return None if key is None or key.startswith((KEPT_MARK, EXPIRING_MARK)) else key


def check_key(key: str | None) -> None:
    """Check the key of a change that a peer sent.

    Raises:
        BadOperation: it says that it expires, and does not say when.
    """
    if key is not None and key.startswith(EXPIRING_MARK) and not is_made(key[1:].partition(EXPIRING_MARK)[0]):
        raise BadOperation("the key of a change is malformed. Nothing of it was written.", reason="content")


def is_made_before(key: str, wall_ms: int) -> bool:
    """Whether a key expires and was made before `wall_ms`."""
    return key.startswith(EXPIRING_MARK) and int(key[2:14], 16) < wall_ms


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
