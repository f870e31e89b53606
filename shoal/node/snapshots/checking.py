"""Checks a peer's snapshot of a partition, piece by piece, before anything is replaced by it.

Laws:
- Nothing that a peer says about a snapshot counts: the vector is that of the rows.
- All rows belong to the partition, in the order of its tables and keys, each once. The log has every operation between the
  base and the tip of each origin, and their chain hashes follow from each other.
- A partition is replaced only by a snapshot that holds every operation that is held here, with the same chain hashes as
  far as both logs reach.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

from shoal.cluster import operation
from shoal.cluster.operation import CHAIN_BYTES, NO_TIP, TIP_BYTES, Tip, partition_of
from shoal.cluster.snapshots.roots import GARBAGE_MAX
from shoal.crdt.clock import is_plausible
from shoal.crdt.dot import DOT_BYTES, HORIZON, ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.errors import BadOperation, InvalidName
from shoal.names import check_name
from shoal.node.collection.entries import unpack
from shoal.node.retired import Retirement, Summary
from shoal.node.snapshots import switching
from shoal.node.snapshots.rooting import mark_of, mark_of_ended
from shoal.node.snapshots.switching import Row
from shoal.records import NamedTuple
from shoal.storage import keys

_PLACES = {table[0]: place for place, table in enumerate(keys.PARTITION_TABLES)}
_HEAD_BYTES = 3  # Of each key: the table and the partition.
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
