"""Checks a peer's snapshot of a partition, piece by piece, before anything is replaced by it.

Laws:
- Nothing that a peer says about a snapshot counts: the vector is that of the rows.
- All rows belong to the partition, in the order of its tables and keys, each once. The log has every operation between the
  base and the tip of each origin, and their chain hashes follow from each other.
- A partition is replaced only by a snapshot that holds every operation that is held here, with the same chain hashes as
  far as both logs reach.

The roots of a partition: a hash of each of its tables, equal on all owners that hold the same operations.

Laws:
- A root is a function of the operations, but for what `Left` leaves out.
- The log is not hashed: the roots of the vector prove it, as each origin's hash chain ends there.
- A row of another table than these is passed over.
- A root of the state, which a node signs, is of the objects and their list alone: of what operations make for good. Retired
  origins are forgotten and keys expire in each node's own time, so they would make it another one at the same vector.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b, sha256
from itertools import chain
from typing import TYPE_CHECKING

from shoal.cluster import operation
from shoal.cluster.comparing import GARBAGE_MAX, MARK_BYTES
from shoal.cluster.operation import CHAIN_BYTES, NO_TIP, TIP_BYTES, Tip, partition_of
from shoal.crdt.dot import DOT_BYTES, HORIZON, NOTHING_SEEN, ORIGIN_BYTES, Dot, Origin, VersionVector, is_plausible
from shoal.errors import BadOperation, InvalidName
from shoal.names import check_name
from shoal.node.collection.entries import Garbage, unpack
from shoal.node.collection.expiring import range_end
from shoal.node.retired import Retirement, Summary
from shoal.node.snapshots import switching
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


_PLACES = {table[0]: place for place, table in enumerate(keys.PARTITION_TABLES)}
_SEQUENCE_BYTES = DOT_BYTES - ORIGIN_BYTES
_LISTED_MAX = 16384  # Objects that are remembered until their rows come; the names of others are checked again.
_NO_END = NO_TIP.sequence, NO_TIP.chain


class Content(NamedTuple):
    """The content of a checked snapshot."""

    tips: dict[Origin, Tip]  # Those of retired origins too.
    bases: dict[Origin, Tip]
    starts: list[bytes]  # The first key of each piece, after the number of its table.
    summary: Summary  # Of what is retired there.
    live: set[Origin]  # Those origins that are not.
    garbage: dict[bytes, bytes]  # By a mark of each entry: one of its generation, if that has ended.

    @property
    def base(self) -> VersionVector:
        """The last operations of origins that have left the log."""
        return VersionVector((origin, tip.sequence) for origin, tip in self.bases.items())


class Checker:
    """Checks the pieces of one snapshot, in their order. `clock` is the greatest time that this node has seen."""

    def __init__(self, number: int, *, clock: int) -> None:
        self._number = number
        self._clock = clock
        self._heads = {table[0]: keys.rows_of(table, number)[0] for table in keys.PARTITION_TABLES}
        self._last = b""  # The last key,
        self._head = b""  # and what all keys of its table begin with.
        self._object = b"\xff"  # The prefix of the last object's rows, which are sound as far as they are looked at.
        self._listed: set[bytes] = set()  # Objects in the list of the partition, whose names were checked there.
        self._ends: dict[bytes, tuple[int, bytes]] = {}  # By origin: sequence and chain hash of the last operation so far.
        self._content = Content({}, {}, [], Summary(), set(), {})

    def take(self, packed: bytes) -> list[Row]:
        """Check the next piece, and return its rows.

        Raises:
            BadOperation: it is no piece of a sound snapshot of this partition.
        """
        try:
            rows = switching.unpack(packed)
            if not rows and self._last:
                raise self._bad("a piece is empty")
            for row in rows:  # Most rows are of the same object as the row before: a new node checks millions of them.
                key = row[0]
                if not key.startswith(self._head) or not self._head:
                    self._enter(key)
                elif key <= self._last:
                    raise self._bad("its rows are not in order")
                self._last = key
                if not key.startswith(self._object):
                    self._take(*row)
        except BadOperation:
            raise
        except (ValueError, InvalidName) as error:  # Of msgspec, of text that is no UTF-8, and of numbers that name no kind.
            raise self._bad(f"a row cannot be decoded ({error})") from None
        if rows:
            self._content.starts.append(_ordered(rows[0][0]))
        return rows

    def finish(self) -> Content:
        """Check that the logs end where the vector says; return what the snapshot holds.

        Raises:
            BadOperation: they do not.
        """
        for origin, tip in self._content.tips.items():
            sequence, chain = self._ends.get(origin, _NO_END)
            if (sequence, chain) != (tip.sequence, tip.chain):
                raise self._bad(f"the log of {origin.hex()} ends at {sequence}, and its vector says {tip.sequence}")
        if not self._ends.keys() <= self._content.tips.keys():
            raise self._bad("its log has operations of an origin that its vector does not name")
        return self._content

    def _enter(self, key: bytes) -> None:
        """Check that a new table begins with this key."""
        if not key or self._heads.get(key[0]) != key[:_HEAD_BYTES]:
            raise self._bad(f"the row {key[:40].hex()} does not belong to it")
        if self._last and _PLACES[key[0]] <= _PLACES[self._last[0]]:
            raise self._bad("its rows are not in order")
        self._head, self._object = key[:_HEAD_BYTES], b"\xff"

    def _take(self, key: bytes, value: bytes) -> None:
        if len(key) <= _HEAD_BYTES:
            raise self._bad(f"the row {key.hex()} does not belong to it")
        table = key[:1]
        if table == keys.OBJECT:
            found = keys.object_of(key)
            self._object = found if found[1:] in self._listed else self._place(key)
        elif table == keys.LOG:
            self._log(key, value)
        elif table in (keys.VECTOR, keys.BASE):
            self._tip(key, value)
        elif table == keys.RETIRED:
            self._retired(key, value)
        elif table == keys.LISTED:
            self._place(key)
            if len(self._listed) < _LISTED_MAX:
                self._listed.add(key[1:])
        elif table == keys.GARBAGE:
            self._content.garbage[mark_of(key, value)] = mark_of_ended(self._number, unpack(value))
            if len(self._content.garbage) > GARBAGE_MAX:
                raise self._bad("too much in it waits to be swept")

    def _place(self, key: bytes) -> bytes:
        """Check the object of a row; returns what all its rows begin with."""
        _, _, space, name, row = keys.split_object(key)
        check_name("space", space)
        check_name("object", name)
        if partition_of(space, name) != self._number or (key[:1] == keys.LISTED and row):
            raise self._bad(f"the row {key[:40].hex()} is of an object of another partition")
        return key[: len(key) - len(row)]

    def _tip(self, key: bytes, value: bytes) -> None:
        origin, tip = Origin(key[_HEAD_BYTES:]), Tip.unpack(value)
        if len(origin) != ORIGIN_BYTES or not TIP_BYTES <= len(value) <= TIP_BYTES + 1 or not 0 < tip.sequence < 1 << 63:
            raise self._bad(f"the row {key.hex()} is no place in a log")
        if not is_plausible(tip.hlc, seen=self._clock):
            raise self._bad("its time is beyond all clocks")
        if key[:1] == keys.VECTOR:
            self._content.tips[origin] = tip
            self._content.live.add(origin)
            return
        if self._content.tips.get(origin, NO_TIP).sequence < tip.sequence:
            raise self._bad(f"the base of {origin.hex()} is above its vector")
        self._content.bases[origin], self._ends[origin] = tip, (tip.sequence, tip.chain)

    def _retired(self, key: bytes, value: bytes) -> None:
        origin = Origin(key[_HEAD_BYTES:])
        if origin == HORIZON:
            self._content = self._content._replace(summary=Summary.unpack(value))
        elif len(origin) == ORIGIN_BYTES:
            found = Retirement.unpack(value)
            if origin in self._content.tips or not is_plausible(max(found.tip.hlc, found.time), seen=self._clock):
                raise self._bad(f"it cannot have retired {origin.hex()}")
            self._content.tips[origin] = found.tip
            if not found.is_logged:
                self._ends[origin] = found.tip.sequence, found.tip.chain
        elif not key[_HEAD_BYTES:].startswith(HORIZON):
            raise self._bad(f"the row {key[:40].hex()} is of no retired origin")

    def _log(self, key: bytes, value: bytes) -> None:
        if len(key) != _HEAD_BYTES + DOT_BYTES or len(value) <= CHAIN_BYTES:
            raise self._bad(f"the row {key[:40].hex()} is no operation")
        origin, sequence = key[_HEAD_BYTES:-_SEQUENCE_BYTES], int.from_bytes(key[-_SEQUENCE_BYTES:], "big")
        before, chain = self._ends.get(origin, _NO_END)
        if sequence != before + 1:
            raise self._bad(f"the log of {origin.hex()} has a hole before {sequence}")
        if not operation.continues(chain, key[1:], value):
            raise self._bad(f"the chain hash of operation {sequence} of {origin.hex()} does not follow")
        self._ends[origin] = sequence, value[:CHAIN_BYTES]

    def _bad(self, why: str) -> BadOperation:
        return BadOperation(f"a peer's snapshot of partition {self._number} cannot be used: {why}.", reason="snapshot")


def lacking(content: Content, ours: Mapping[Origin, Tip]) -> Dot | None:
    """An operation that is held here, whose tips are `ours`, and is not in the snapshot; None if it dominates.

    What the snapshot's node has retired and forgotten counts as held: it refuses operations that are not later.
    """
    for origin, tip in ours.items():
        if origin not in content.tips and tip.hlc <= content.summary.forgotten_hlc:
            continue
        if content.tips.get(origin, NO_TIP).sequence < tip.sequence:
            return Dot(origin, tip.sequence)
    return None


def differing(number: int, content: Content, ours: Mapping[Origin, Tip], pieces: Callable[[int], list[Row]]) -> Dot | None:
    """An operation that is held here, and is another one in the snapshot; None if there is none.

    `pieces` gives the rows of a piece.
    """
    for origin, tip in ours.items():
        dot = Dot(origin, tip.sequence)
        chain = _chain(number, content, dot, pieces)
        if chain is not None and chain != tip.chain:
            return dot
    return None


def _chain(number: int, content: Content, dot: Dot, pieces: Callable[[int], list[Row]]) -> bytes | None:
    """The chain hash after an operation that the snapshot covers; None if it left the log there."""
    for tip in (content.tips.get(dot.origin, NO_TIP), content.bases.get(dot.origin, NO_TIP)):
        if tip.sequence == dot.sequence:
            return tip.chain
    key = keys.log(number, dot)
    piece = bisect_right(content.starts, _ordered(key)) - 1
    if piece < 0:
        return None
    found = dict(pieces(piece)).get(key)
    return None if found is None else operation.LogEntry.unpack(found).chain


def _ordered(key: bytes) -> bytes:
    """The key with the place of its table in front: the order of the rows of a snapshot."""
    return bytes([_PLACES[key[0]]]) + key
