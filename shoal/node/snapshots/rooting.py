"""The roots of a partition: a hash of each of its tables, equal on all owners that hold the same operations.

Laws:
- A root is a function of the operations, but for what `Left` leaves out.
- The log is not hashed: the roots of the vector prove it, as each origin's hash chain ends there.
- A row of another table than these is passed over.
- A root of the state, which a node signs, is of the objects and their list alone: of what operations make for good. Retired
  origins are forgotten and keys expire in each node's own time, so they would make it another one at the same vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b, sha256
from itertools import chain
from typing import TYPE_CHECKING

from shoal.cluster.operation import Tip
from shoal.cluster.snapshots.roots import MARK_BYTES
from shoal.crdt.dot import DOT_BYTES, HORIZON, NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.node.collection.entries import Garbage
from shoal.node.collection.expiring import range_end
from shoal.node.retired import Retirement, Summary
from shoal.node.snapshots.switching import Row
from shoal.node.turns import Steps
from shoal.protocol.requests import StateRoot
from shoal.records import NamedTuple
from shoal.storage import keys

if TYPE_CHECKING:
    from hashlib import _Hash

TABLES = (keys.RETIRED, keys.LISTED, keys.OBJECT, keys.KEY)
"""The tables that have a root, in the order of `Roots.roots`."""

_RETIRED, _LISTED, _OBJECT, _KEY = (table[0] for table in TABLES)
_HEAD_BYTES = 3
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 18  # That are hashed before others get a turn.
_NAMES = {keys.RETIRED: "retired origins", keys.LISTED: "list of objects", keys.OBJECT: "objects", keys.KEY: "requests' keys"}


class Left(NamedTuple):
    """The rows that are left out of the roots of two nodes, because they may differ without a fault."""

    base: VersionVector = NOTHING_SEEN  # Keys of requests whose operations have left the log of one of them.
    forgotten: int = 0  # Origins that were retired until then.
    unsure: frozenset[bytes] = frozenset()  # Marks of objects.


def mark_of(*parts: bytes) -> bytes:
    """A short name of an object, or of an entry of garbage."""
    return blake2b(b"".join(parts), digest_size=MARK_BYTES).digest()


def mark_of_ended(number: int, garbage: Garbage) -> bytes:
    """A short name of the generation to which an entry of garbage belongs, if that has ended."""
    return mark_of(keys.object_rows(number, *garbage.target), b"%d" % garbage.generation)


def vector_root(tips: Mapping[Origin, Tip]) -> bytes:
    """The hash of a partition's vector with the chain hashes of all origins that are not retired."""
    hashed = sha256()
    for origin, tip in sorted(tips.items()):
        hashed.update(origin + tip.sequence.to_bytes(8, "big") + tip.hlc.to_bytes(8, "big") + tip.chain)
    return hashed.digest()


def tables_that_differ(ours: Iterable[bytes], theirs: Iterable[bytes]) -> list[str]:
    """For people: the tables whose roots differ."""
    return [_NAMES[table] for table, one, other in zip(TABLES, ours, theirs, strict=False) if one != other]


def in_slices(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows, as many at a time as one step may hash."""
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row[1])
        if len(some) == _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def state_root(
    number: int, scan: Callable[[bytes, bytes], Iterable[Row]], tips: Mapping[Origin, Tip], left: frozenset[bytes]
) -> Steps[StateRoot]:
    """Compute, in steps, the root of a partition's state at `tips`, the last operations of its live origins.

    `left` are marks of the objects that are left out.
    """
    rooting = Rooting((), Left(unsure=left))
    rows = chain.from_iterable(scan(*keys.rows_of(table, number)) for table in (keys.LISTED, keys.OBJECT))
    for nth, some in enumerate(in_slices(rows)):
        if nth:  # Most partitions are one step: a pause in each would take longer than all the rest.
            yield
        rooting.take(some)
    _, listed, objects, _ = rooting.roots()
    return StateRoot(number, vector_root(tips), listed, objects, sorted(left))


class Rooting:
    """Hashes the rows of a partition as they come, in the order of its tables. `live` are the origins that are not retired."""

    def __init__(self, live: Iterable[Origin], left: Left) -> None:
        self._live = frozenset(live)
        self._left = left
        self._hashes: dict[int, _Hash] = {table[0]: sha256() for table in TABLES}
        self._object = b"\xff"  # The prefix of the last object's rows,
        self._is_unsure = False  # and whether they are left out.

    def take(self, rows: Iterable[Row]) -> None:
        """Hash these rows."""
        for key, value in rows:
            table = key[0]
            if table == _OBJECT:
                if self._counts(key):
                    self._add(table, key, value)
            elif table == _KEY:
                dot = Dot.unpack(value[:DOT_BYTES])
                if dot.origin in self._live and dot.sequence > self._left.base[dot.origin]:
                    self._add(table, key, value)
            elif table == _LISTED:
                if not self._left.unsure or mark_of(keys.OBJECT, key[1:]) not in self._left.unsure:
                    self._add(table, key, value)
            elif table == _RETIRED:
                self._retired(key, value)

    def roots(self) -> list[bytes]:
        """The hashes, in the order of `TABLES`."""
        return [hashed.digest() for hashed in self._hashes.values()]

    def _add(self, table: int, key: bytes, value: bytes) -> None:
        self._hashes[table].update(len(key).to_bytes(4, "big") + len(value).to_bytes(4, "big") + key + value)

    def _counts(self, key: bytes) -> bool:
        if not key.startswith(self._object):
            self._object = keys.object_of(key)
            self._is_unsure = bool(self._left.unsure) and mark_of(self._object) in self._left.unsure
        return not self._is_unsure and range_end(self._object, key) is None

    def _retired(self, key: bytes, value: bytes) -> None:
        origin = Origin(key[_HEAD_BYTES:])
        if origin == HORIZON:
            summary = Summary.unpack(value)
            self._add(_RETIRED, key, summary.horizon.to_bytes(8, "big") + summary.floor.pack())
        elif not origin.startswith(HORIZON):  # Those below it queue logs that are yet to leave.
            found = Retirement.unpack(value)
            if found.time > self._left.forgotten:
                numbers = (found.tip.sequence, found.tip.hlc, found.time, found.wall_ms)
                self._add(_RETIRED, key, b"".join(number.to_bytes(8, "big") for number in numbers) + found.tip.chain)
