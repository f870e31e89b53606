"""Compaction: many updates of a document as one, without what was deleted.

Laws:
- A compaction names, per origin, the last operation whose updates it covers, of those that its
  issuer had applied, and the update that all of these build. So what is covered is a causally
  closed set, and a function of the set of compactions.
- Applying one takes nothing away: a peer may lack what it covers. What it covers goes once it is
  stable, and once it was seen that the merged update holds it.
- An update that was erased before it came is awaited: the document has a gap until a compaction
  is there that covers it, which is later in the same causal order.
- A beginning is never erased: what it brought is shown where another one counts.

Rows (within the document's, beside its updates):
    C position₃₄      24 bytes per origin: the last operation whose updates are in the merged one
    M position₃₄      the merged update
    W position₃₄      empty: an update that was erased before it came
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pycrdt

from shoal.crdt.document import document, readiness, yjs
from shoal.crdt.document.document import dot_of
from shoal.crdt.document.live import engine
from shoal.crdt.dot import Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt

_COVERAGE, _MERGED, _AWAITED = b"C", b"M", b"W"
_PROVED_AT_ONCE = 64  # Updates that are looked at before others get a turn.


class Compact(msgspec.Struct, array_like=True, frozen=True, tag="compact"):
    """The mutation. Its content is the merged update."""

    digest: bytes  # SHA-256 of it.
    ends: bytes  # A packed version vector: per origin the last operation whose updates are in it.


class Cut(NamedTuple):
    """What a compaction would cover."""

    ends: VersionVector  # What others cover is in it.
    updates: int  # That no other covers.
    more: bool  # There are more that could be, in another operation.


class CurrentCompaction(NamedTuple):
    """A compaction that no other covers whole."""

    position: bytes
    ends: VersionVector
    merged: bytes


def apply(rows: Rows, stamp: Stamp, compact: Compact, merged: bytes) -> bool:
    """Put an operation's rows. Returns whether the document had a gap, and has none any more."""
    position = stamp.pack_position()
    rows.put(_COVERAGE + position, compact.ends)
    rows.put(_MERGED + position, merged)
    ends = VersionVector.unpack(compact.ends)
    awaited = [row for row, _ in rows.scan(_AWAITED)]
    filled = [row for row in awaited if ends.covers(dot_of(row[1:]))]
    for row in filled:
        rows.delete(row)
    return bool(awaited) and len(filled) == len(awaited)


def apply_erased(rows: Rows, stamp: Stamp, update: document.Update) -> None:
    """Put the rows of an update that a compaction erased, which is still to come."""
    document.declare(rows, stamp, update)
    rows.put(_AWAITED + stamp.pack_position(), b"")


def check(compact: Compact, applied: VersionVector, merged: bytes) -> None:
    """
    Raises:
        ValueError: it is not what a node would have made that had applied so much.
        InvalidValue, NotReady: the merged update is none, or has a gap.
    """
    ends = VersionVector.unpack(compact.ends)
    if not ends:
        raise ValueError("it names no operations")
    if not applied.dominates(ends):
        raise ValueError("it covers what its origin had not applied")
    readiness.advance(yjs.parse(merged), {})


def has_gap(rows: Rows) -> bool:
    """Whether an update was erased whose compaction is not here yet: the document cannot be built."""
    return next(rows.scan(_AWAITED, limit=1), None) is not None


def covered(rows: Rows) -> VersionVector:
    """The operations whose updates compactions cover."""
    found = VersionVector()
    for _, ends in _coverages(rows):
        found = found.join(ends)
    return found


def is_awaited(rows: Rows, stamp: Stamp) -> bool:
    """Whether this update was erased before it came, and what covers it is still to come."""
    return rows.get(_AWAITED + stamp.pack_position()) is not None


def is_erased(rows: Rows, stamp: Stamp, update: document.Update) -> bool:
    """Whether an update whose row is not there may be missing."""
    if is_awaited(rows, stamp):
        return True
    return not update.genesis and covered(rows).covers(stamp.dot)


def content_of(rows: Rows, stamp: Stamp, compact: Compact) -> bytes | None:
    """The merged update of a compaction that was applied; None: it went, for another one covers it.

    Raises:
        StoreCorrupt: it is missing, and should not be.
    """
    merged = rows.get(_MERGED + stamp.pack_position())
    ends = VersionVector.unpack(compact.ends)
    if merged is None and not any(
        other.dominates(ends) for position, other in _coverages(rows) if position != stamp.pack_position()
    ):
        raise _missing(stamp.pack_position())
    return merged


def standing(rows: Rows) -> list[CurrentCompaction]:
    """The compactions that no other covers whole; of equal ones the later. They hold what all of them do.

    Raises:
        StoreCorrupt: one of them is missing.
    """
    found: list[CurrentCompaction] = []
    for position, ends in _coverages(rows):
        if superseding(rows, position, ends):
            continue
        merged = rows.get(_MERGED + position)
        if merged is None:
            raise _missing(position)
        found.append(CurrentCompaction(position, ends, merged))
    return found


def uncovered(rows: Rows, ends: VersionVector) -> Iterator[tuple[bytes, bytes]]:
    """Positions and updates that `ends` does not cover, in causal order."""
    return ((position, update) for position, update in document.updates(rows) if not ends.covers(dot_of(position)))


def updates(rows: Rows) -> Iterator[bytes]:
    """All that is here of a document, merged or not, in an order in which it can be applied.

    Raises:
        StoreCorrupt: a merged update is missing.
    """
    yield from (each.merged for each in standing(rows))
    yield from (update for _, update in document.updates(rows))


def cut(rows: Rows, *, before_hlc: int, updates_max: int) -> Cut:
    """The oldest updates that no compaction covers, of those before a time."""
    before = covered(rows)
    found: dict[Origin, int] = {}
    count = 0
    for position, _ in uncovered(rows, before):
        if int.from_bytes(position[:8], "big") >= before_hlc:
            break
        dot = dot_of(position)
        if count >= updates_max and found.get(dot.origin) != dot.sequence:
            return Cut(before.join(VersionVector(found)), count, True)
        found[dot.origin] = dot.sequence
        count += 1
    return Cut(before.join(VersionVector(found)), count, False)


def content(rows: Rows, ends: VersionVector) -> list[bytes]:
    """What a merged update that covers `ends` is built of, `covered` within it, in an order in which it can be applied.

    Raises:
        StoreCorrupt: a merged update is missing.
    """
    before = standing(rows)
    merged = VersionVector()
    for each in before:
        merged = merged.join(each.ends)
    found = [each.merged for each in before]
    found += [update for position, update in uncovered(rows, merged) if ends.covers(dot_of(position))]
    found.append(document.withdrawn(rows, known=lambda position: ends.covers(dot_of(position))))
    return found


# ── what goes once it is stable ───────────────────────────────────────────────


def find(rows: Rows, position: bytes) -> CurrentCompaction | None:
    """The compaction at a position; None if it went, or never came."""
    ends, merged = rows.get(_COVERAGE + position), rows.get(_MERGED + position)
    return None if ends is None or merged is None else CurrentCompaction(position, VersionVector.unpack(ends), merged)


def proved(rows: Callable[[], Rows], found: CurrentCompaction, digest: bytes) -> Iterator[None]:
    """Look, some updates at a time, whether a compaction holds all that it covers. `rows` gives them as they are now.

    Raises:
        StoreCorrupt: it does not, or is damaged.
    """
    position, ends, merged = found
    if hashlib.sha256(merged).digest() != digest:
        raise _unproved(position, "is damaged")
    proof = _Proof(merged)
    proof.add(other.merged for at in superseded_by(rows(), found) if (other := find(rows(), at)) is not None)
    after: bytes | None = None
    while some := list(islice(swept(rows(), ends, after=after), _PROVED_AT_ONCE)):
        proof.add(update for _, update in some)
        after = some[-1][0]
        yield
    if not proof.holds:
        raise _unproved(position, "lacks some of what it covers")


def swept(rows: Rows, ends: VersionVector, *, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Positions and updates that a stable compaction no longer needs, from strictly above a position."""
    kept = document.beginnings(rows)
    for position, update in document.updates(rows, after=after):
        if ends.covers(dot_of(position)) and position not in kept:
            yield position, update


def superseded_by(rows: Rows, found: CurrentCompaction) -> list[bytes]:
    """Positions of the compactions whose place this one takes."""
    position, ends, _ = found
    return [other for other, theirs in _coverages(rows) if other != position and _is_below(theirs, other, ends, position)]


def superseding(rows: Rows, position: bytes, ends: VersionVector) -> list[bytes]:
    """Positions of those that take the place of the one at `position`."""
    return [other for other, theirs in _coverages(rows) if other != position and _is_below(ends, position, theirs, other)]


def rows_of(position: bytes) -> tuple[bytes, bytes]:
    """The keys of a compaction's rows."""
    return _COVERAGE + position, _MERGED + position


class _Proof:
    """Whether a merged update holds others: with them it must be what it is without."""

    def __init__(self, merged: bytes) -> None:
        """
        Raises:
            InvalidValue: the engine refuses it.
        """
        self._doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
        self._add(merged)
        self._before = self._form()

    def add(self, updates: Iterable[bytes]) -> None:
        """In causal order.

        Raises:
            InvalidValue: the engine refuses one of them.
        """
        for update in updates:
            self._add(update)

    @property
    def holds(self) -> bool:
        return self._form() == self._before

    def _add(self, update: bytes) -> None:
        with engine("an update was refused by the Yjs engine"):
            self._doc.apply_update(update)

    def _form(self) -> tuple[yjs.StateVector, bytes]:
        """State vector and deletions: where both are equal, so is the document."""
        state = self._doc.get_state()
        return yjs.parse_state(state), yjs.pack_deletes(yjs.parse(self._doc.get_update(state)).deletes)


def _coverages(rows: Rows) -> Iterator[tuple[bytes, VersionVector]]:
    for row, packed in rows.scan(_COVERAGE):
        try:
            yield row[1:], VersionVector.unpack(packed)
        except ValueError as error:
            raise StoreCorrupt(f"a compaction cannot be read ({error}). Nothing was written; run `shoal verify`.") from None


def _is_below(ends: VersionVector, position: bytes, theirs: VersionVector, other: bytes) -> bool:
    """Whether the compaction at `other` covers all that the one at `position` does; of equal ones the later counts."""
    return theirs.dominates(ends) and (theirs != ends or other > position)


def _unproved(position: bytes, how: str) -> StoreCorrupt:
    return StoreCorrupt(f"the compaction {position.hex()} of a document {how}. Nothing was erased; run `shoal verify`.")


def _missing(position: bytes) -> StoreCorrupt:
    return StoreCorrupt(f"the compaction {position.hex()} of a document is missing. Nothing was written; run `shoal verify`.")
