"""Compaction: replace many updates of a document by one, and describe which updates it covers.

Compaction: replacing many updates of a document by one, without deleted content.

Laws:
- A compaction says which updates it covers, among those that its issuer had applied, and has the update that all
  of these build. So the covered operations are a causally closed set, and a function of the set of compactions.
- Applying one removes nothing, because a peer may lack an update that it covers. Covered updates are removed
  once the compaction is stable, and once the merged update was proved to contain them.
- If a peer sends an update as erased, the update is awaited: the document has a gap until a compaction
  arrives that covers it, later in the same causal order.
- A beginning is never erased: if another one counts, its content is shown from its update.

Rows (within the document's, beside its updates):
    C position₃₄      which updates are in the merged one: a packed `Coverage`
    M position₃₄      the merged update
    W position₃₄      empty: an update that was erased before it arrived here

Which updates of a document a compaction covers.

Laws:
- It covers those at or below its floor (`shoal.crdt.dot`), and of each origin that it names those up to an operation. So
  whether it covers an update follows from the update's position alone, on every replica.
- An origin's end has the time of its operation. So of two coverages it can be said whether one covers what the other does,
  although they may name different origins.
- It raises its floor to the last operation of the origins that its replica has forgotten, if no update that it does not cover
  is as old. So it names as many origins as a replica remembers, however many have edited the document.
- It says up to which time no request can be repeated any more (`settled`). An edit for a request that is covered and as old
  has no second one that is still to come: see `shoal.kinds.document.state.repeats`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import msgspec

from shoal.crdt.dot import DOT_BYTES, FLOOR_BYTES, HLC_BYTES, NO_FLOOR, Dot, Floor, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.document.state import document, readiness, repeats, yjs
from shoal.kinds.document.state.document import dot_of
from shoal.kinds.document.state.readiness import parts, pieces
from shoal.records import NamedTuple

_VERSION = b"\x01"
_END_BYTES = DOT_BYTES + HLC_BYTES


class End(NamedTuple):
    """The last operation of an origin whose updates are covered."""

    sequence: int
    hlc: int


class Coverage(NamedTuple):
    """The updates that a compaction covers, as the module describes. It is never changed."""

    floor: Floor = NO_FLOOR
    ends: Mapping[Origin, End] = {}
    settled: int = 0  # HLC.

    def settles(self, position: bytes) -> bool:
        """Whether it covers the update at a position, and no other edit of its request can come."""
        return int.from_bytes(position[:HLC_BYTES], "big") <= self.settled and self.covers(position)

    def covers(self, position: bytes) -> bool:
        """Whether it covers the update at a position."""
        if int.from_bytes(position[:HLC_BYTES], "big") <= self.floor.hlc:
            return True
        dot = dot_of(position)
        end = self.ends.get(dot.origin)
        return end is not None and end.sequence >= dot.sequence

    def dominates(self, other: Coverage) -> bool:
        """Whether it covers all that the other one does."""
        return other.floor.hlc <= self.floor.hlc and all(
            end.hlc <= self.floor.hlc or ((own := self.ends.get(origin)) is not None and own.sequence >= end.sequence)
            for origin, end in other.ends.items()
        )

    def join(self, other: Coverage) -> Coverage:
        """The updates that either of them covers."""
        floor = self.floor.join(other.floor)
        ends = dict(self.ends)
        for origin, end in other.ends.items():
            ends[origin] = max(end, ends.get(origin, end))
        return Coverage(floor, _above(floor, ends), max(self.settled, other.settled))

    def raised(self, context: VersionVector, below: int) -> Coverage:
        """The same, with as high a floor as a replica at `context` can tell. It covers every update older than `below`."""
        retired = context.retired
        if retired is None or not self.floor.hlc < retired.forgotten_hlc < below:
            return self
        floor = self.floor.join(Floor(retired.forgotten_hlc, retired.forgotten))
        return self._replace(floor=floor, ends=_above(floor, self.ends))

    @property
    def vector(self) -> VersionVector:
        """The operations that it names."""
        return VersionVector([(origin, end.sequence) for origin, end in self.ends.items()])

    def pack(self) -> bytes:
        """The floor, 8 bytes for `settled`, then 32 for each origin, by origin. Equal ones give equal bytes."""
        ends = [origin + sequence.to_bytes(8, "big") + hlc.to_bytes(8, "big") for origin, (sequence, hlc) in self.ends.items()]
        return _VERSION + self.floor.pack() + self.settled.to_bytes(HLC_BYTES, "big") + b"".join(sorted(ends))

    @classmethod
    def unpack(cls, packed: bytes) -> Coverage:
        """The coverage in bytes from `pack`.

        Raises:
            ValueError: `packed` is not what `pack` returns.
        """
        floor, settled = packed[len(_VERSION) :][:FLOOR_BYTES], packed[len(_VERSION) + FLOOR_BYTES :][:HLC_BYTES]
        first = len(_VERSION) + FLOOR_BYTES + HLC_BYTES
        ends = [_unpack_end(packed[at : at + _END_BYTES]) for at in range(first, len(packed), _END_BYTES)]
        found = cls(Floor.unpack(floor), dict(ends), int.from_bytes(settled, "big"))
        # Neither torn, nor out of order, nor twice, nor below the floor: one coverage has one form.
        if found.pack() != packed or any(end.sequence <= 0 or end.hlc <= found.floor.hlc for end in found.ends.values()):
            raise ValueError("the bytes are no coverage")
        return found


NOTHING_COVERED = Coverage()


def coverage_of(positions: Iterable[bytes]) -> Coverage:
    """The coverage of the updates at these positions, and all earlier ones of their origins."""
    ends: dict[Origin, End] = {}
    for position in positions:
        dot = dot_of(position)
        if dot.origin not in ends or ends[dot.origin].sequence < dot.sequence:
            ends[dot.origin] = End(dot.sequence, int.from_bytes(position[:HLC_BYTES], "big"))
    return Coverage(NO_FLOOR, ends)


def _above(floor: Floor, ends: Mapping[Origin, End]) -> Mapping[Origin, End]:
    return {origin: end for origin, end in ends.items() if end.hlc > floor.hlc}


def _unpack_end(packed: bytes) -> tuple[Origin, End]:
    dot = Dot.unpack(packed[:DOT_BYTES])
    return dot.origin, End(dot.sequence, int.from_bytes(packed[DOT_BYTES:], "big"))


_COVERAGE, _MERGED, _AWAITED = b"C", b"M", b"W"
_NEVER = 1 << 64  # Later than any operation.


class Compact(msgspec.Struct, array_like=True, frozen=True, tag="compact"):
    """The mutation: compacts the document. Its content is the merged update."""

    digest: bytes  # SHA-256 of the merged update.
    coverage: bytes  # Packed: the updates that are in it.


class Cut(NamedTuple):
    """The updates that a compaction would cover."""

    coverage: Coverage  # Including what other compactions cover.
    updates: int  # How many of them no other compaction covers.
    more: bool  # Whether another operation could cover more.


class CurrentCompaction(NamedTuple):
    """A compaction that no other covers whole."""

    position: bytes
    coverage: Coverage
    merged: bytes


def apply(rows: Rows, stamp: Stamp, compact: Compact, merged: bytes) -> bool:
    """Write a compaction's rows. Returns whether this closed the document's last gap."""
    position = stamp.pack_position()
    rows.put(_COVERAGE + position, compact.coverage)
    rows.put(_MERGED + position, merged)
    coverage = Coverage.unpack(compact.coverage)
    awaited = [row for row, _ in rows.scan(_AWAITED)]
    filled = [row for row in awaited if coverage.covers(row[1:])]
    for row in filled:
        rows.delete(row)
    return bool(awaited) and len(filled) == len(awaited)


def apply_erased(rows: Rows, stamp: Stamp, update: document.Update) -> None:
    """Write the rows of an update that a peer sent as erased. The compaction that covers it is still to come."""
    document.declare(rows, stamp, update)
    rows.put(_AWAITED + stamp.pack_position(), b"")


def check(compact: Compact, stamp: Stamp) -> None:
    """Check what a compaction from a peer covers. Its origin had applied the context of `stamp`.

    Raises:
        ValueError: no node that had applied this would have made it.
    """
    coverage = Coverage.unpack(compact.coverage)
    if not coverage.ends and not coverage.floor.hlc:
        raise ValueError("it names no operations")
    if not stamp.context.accepts(coverage.vector):
        raise ValueError("it covers operations that its origin had not applied")
    if any(end.hlc > stamp.hlc for end in coverage.ends.values()):
        raise ValueError("it covers operations that are not in its past")
    if coverage.settled >= stamp.hlc:
        raise ValueError("it settles requests that are not in its past")
    coverage.floor.check(stamp.hlc)


def vet(merged: bytes, *, structs_max: int) -> Generator[None, None, None]:
    """Check the merged update of a compaction from a peer, some structs at a time.

    Raises:
        InvalidValue, NotReady: it is malformed, or has a gap.
    """
    state: yjs.StateVector = {}
    for piece in pieces(merged, structs_max=structs_max):
        state = readiness.advance((yield from yjs.parsing(piece, structs_max)), state).state
        yield


def has_gap(rows: Rows) -> bool:
    """Whether an update was erased whose compaction has not arrived yet. If so, the document cannot be built."""
    return next(rows.scan(_AWAITED, limit=1), None) is not None


def covered(rows: Rows) -> Coverage:
    """The updates that compactions cover."""
    found = NOTHING_COVERED
    for _, coverage in _coverages(rows):
        found = found.join(coverage)
    return found


def is_awaited(rows: Rows, stamp: Stamp) -> bool:
    """Whether this update arrived as erased, and the compaction that covers it has not arrived."""
    return rows.get(_AWAITED + stamp.pack_position()) is not None


def is_erased(rows: Rows, stamp: Stamp, update: document.Update) -> bool:
    """Whether the row of this update may be absent."""
    if is_awaited(rows, stamp):
        return True
    return not update.genesis and covered(rows).covers(stamp.pack_position())


def content_of(rows: Rows, stamp: Stamp, compact: Compact) -> bytes | None:
    """The merged update of a compaction that was applied; None if it was removed because another covers it.

    Raises:
        StoreCorrupt: it is missing, and no other covers it.
    """
    merged = rows.get(_MERGED + stamp.pack_position())
    coverage = Coverage.unpack(compact.coverage)
    if merged is None and not any(
        other.dominates(coverage) for position, other in _coverages(rows) if position != stamp.pack_position()
    ):
        raise _missing(stamp.pack_position())
    return merged


def standing(rows: Rows) -> list[CurrentCompaction]:
    """The compactions that no other covers whole; of equal ones the later. Together they hold the content of all.

    Raises:
        StoreCorrupt: one of them is missing.
    """
    found: list[CurrentCompaction] = []
    for position, coverage in _coverages(rows):
        if superseding(rows, position, coverage):
            continue
        merged = rows.get(_MERGED + position)
        if merged is None:
            raise _missing(position)
        found.append(CurrentCompaction(position, coverage, merged))
    return found


def uncovered(rows: Rows, coverage: Coverage) -> Iterator[tuple[bytes, bytes]]:
    """Positions and updates that `coverage` does not cover, in causal order."""
    return ((position, update) for position, update in document.updates(rows) if not coverage.covers(position))


def updates(rows: Rows) -> Iterator[bytes]:
    """All updates of a document that are stored, merged or not, in an order in which they can be applied.

    Raises:
        StoreCorrupt: a merged update is missing.
    """
    yield from (each.merged for each in standing(rows))
    yield from (update for _, update in document.updates(rows))


def cut(
    rows: Callable[[], Rows], context: VersionVector, *, before_hlc: int, updates_max: int, pace: document.Pace
) -> Generator[None, None, Cut]:
    """Find the oldest updates that no compaction covers, of those before a time (`before_hlc`), about `updates_max` of them.

    `rows` returns the current rows, of a replica that had applied `context` when it began.
    """
    before = covered(rows())
    found: dict[Origin, bytes] = {}  # The last position of each.
    count = 0
    for page in document.pages(rows, pace):
        for position, _ in page:
            if before.covers(position):
                continue
            hlc, dot = int.from_bytes(position[:HLC_BYTES], "big"), dot_of(position)
            is_too_late = hlc >= before_hlc
            is_split = dot.origin in found and dot_of(found[dot.origin]) == dot
            if is_too_late or (count >= updates_max and not is_split):
                return Cut(before.join(coverage_of(found.values())).raised(context, hlc), count, not is_too_late)
            found[dot.origin] = position
            count += 1
        yield
    return Cut(before.join(coverage_of(found.values())).raised(context, _NEVER), count, False)


def content(rows: Callable[[], Rows], coverage: Coverage, *, pace: document.Pace) -> Iterator[list[bytes]]:
    """The updates from which to build a merged update of what is covered, in an order in which they can be applied.

    `coverage` must cover everything that `covered` returns.

    They come in pieces, between which other requests may run. `rows` returns the current rows: if a compaction arrives
    meanwhile that covers more than those at the beginning, a sweep may remove updates that are still to come.

    Raises:
        StoreCorrupt: a merged update is missing.
    """
    merged = NOTHING_COVERED
    for each in standing(rows()):
        merged = merged.join(each.coverage)
        for part in parts(each.merged, pace, whole_max=pace.bytes):
            yield [part]
    for page in document.pages(rows, pace):
        yield [update for position, update in page if coverage.covers(position) and not merged.covers(position)]
    yield [document.withdrawn(rows(), known=coverage.covers)]


# ── removal, once it is stable ────────────────────────────────────────────────


def find(rows: Rows, position: bytes) -> CurrentCompaction | None:
    """The compaction at a position; None if it was removed, or never arrived."""
    ends, merged = rows.get(_COVERAGE + position), rows.get(_MERGED + position)
    return None if ends is None or merged is None else CurrentCompaction(position, _unpack(ends), merged)


def proved(rows: Callable[[], Rows], found: CurrentCompaction, digest: bytes, pace: document.Pace) -> Iterator[None]:
    """Check, some updates at a time, that a compaction contains all that it covers. `rows` returns the current rows.

    Raises:
        StoreCorrupt: it does not, or it is damaged.
    """
    position, _, merged = found
    if hashlib.sha256(merged).digest() != digest:
        raise _unproved(position, "is damaged")
    proof = _Proof()
    for part in parts(merged, pace, whole_max=pace.bytes):
        proof.add([part])
        yield
    proof.begin()
    for at in superseded_by(rows(), found):
        if (other := find(rows(), at)) is not None:
            for part in parts(other.merged, pace, whole_max=pace.bytes):
                proof.add([part])
                yield
    for page in swept(rows, found, pace):
        proof.add([update for _, update in page])
        yield
    proof.add([document.repeated(rows(), known=found.coverage.covers)])
    if not proof.holds:
        raise _unproved(position, "lacks some of the updates that it covers")


def swept(rows: Callable[[], Rows], found: CurrentCompaction, pace: document.Pace) -> Iterator[list[tuple[bytes, bytes]]]:
    """Positions and updates that a stable compaction makes unnecessary, some at a time. `rows` returns the current rows."""
    for page in document.pages(rows, pace):
        kept = document.beginnings(rows())
        yield [(at, update) for at, update in page if found.coverage.covers(at) and at not in kept]
        if page[-1][0] > found.position:
            return  # It covers nothing that came after it.


def settled(rows: Callable[[], Rows], found: CurrentCompaction, pace: document.Pace) -> Iterator[list[bytes]]:
    """Requests whose edits a stable compaction settles, all of each, some at a time (`repeats`)."""
    return repeats.settled(rows, is_settled=found.coverage.settles, requests_max=pace.updates)


def superseded_by(rows: Rows, found: CurrentCompaction) -> list[bytes]:
    """Positions of the compactions that this one replaces."""
    position, coverage, _ = found
    return [other for other, theirs in _coverages(rows) if other != position and _is_below(theirs, other, coverage, position)]


def superseding(rows: Rows, position: bytes, coverage: Coverage) -> list[bytes]:
    """Positions of the compactions that replace the one at `position`."""
    return [other for other, theirs in _coverages(rows) if other != position and _is_below(coverage, position, theirs, other)]


def rows_of(position: bytes) -> tuple[bytes, bytes]:
    """The keys of a compaction's rows."""
    return _COVERAGE + position, _MERGED + position


class _Proof:
    """Whether a merged update contains others: applying them must not change it."""

    def __init__(self) -> None:
        from shoal.kinds.document.state.surrogates import Replica  # With the engine, which takes long to import.

        self._replica = Replica()
        self._before, self._begun = (b"", b""), self._replica.doc

    def begin(self) -> None:
        """From now on, what is added must change nothing."""
        self._before, self._begun = self._packed(), self._replica.doc

    def add(self, updates: Sequence[bytes]) -> None:
        """Apply updates, in causal order.

        Raises:
            InvalidValue: the engine refuses one of them.
        """
        from shoal.kinds.document.state.live import engine

        with engine("an update was refused by the Yjs engine"):
            self._replica.apply(updates)

    @property
    def holds(self) -> bool:
        if self._replica.doc is not self._begun:
            return False  # A pair that one of them cuts was whole.
        after = self._packed()
        return after == self._before or _form(*after) == _form(*self._before)

    def _packed(self) -> tuple[bytes, bytes]:
        """State vector and deletions, in any order: if both are equal, the documents are."""
        doc = self._replica.doc
        state = doc.get_state()
        return state, doc.get_update(state)


def _form(state: bytes, deleted: bytes) -> tuple[yjs.StateVector, bytes]:
    return yjs.parse_state(state), yjs.pack_deletes(yjs.parse(deleted).deletes)


def _coverages(rows: Rows) -> Iterator[tuple[bytes, Coverage]]:
    return ((row[1:], _unpack(packed)) for row, packed in rows.scan(_COVERAGE))


def _unpack(packed: bytes) -> Coverage:
    try:
        return Coverage.unpack(packed)
    except ValueError as error:
        raise StoreCorrupt(f"a compaction cannot be read ({error}). Nothing was written; run `shoal verify`.") from None


def _is_below(coverage: Coverage, position: bytes, theirs: Coverage, other: bytes) -> bool:
    """Whether the compaction at `other` covers all that the one at `position` does; of equal ones the later counts."""
    return theirs.dominates(coverage) and (other > position or not coverage.dominates(theirs))


def _unproved(position: bytes, how: str) -> StoreCorrupt:
    return StoreCorrupt(f"the compaction {position.hex()} of a document {how}. Nothing was erased; run `shoal verify`.")


def _missing(position: bytes) -> StoreCorrupt:
    return StoreCorrupt(f"the compaction {position.hex()} of a document is missing. Nothing was written; run `shoal verify`.")
