"""Fold a partition's log again, from nothing, and compare the result with the stored rows.

Laws:
- Operations are applied in a causal order by the same code that applied them first, each under the vector of those
  before it, as on a peer that had received all of these.
- Ended generations are not compared, nor rows that prunes, trims, compactions, cuts of notes and erasures of events erased,
  or that expired. A row that is missing for any other reason is a flaw.
- A checkpoint that was saved again after it was pruned and swept is no flaw, if it is as that save alone made it: it is
  swept again, or is mended by the scrub once a later checkpoint needs it, since the log has both saves.
- What a peer supplied for a change is taken only if it is what the change names by its hash.
- A damaged operation does not affect others: it is reported, and the rest is folded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from shoal.crdt import deletion
from shoal.crdt.applier import Blobs, Erased, is_gone
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import POSITION_BYTES, Stamp
from shoal.errors import ShoalError, StoreCorrupt
from shoal.kinds.document.state import repeats
from shoal.kinds.document.state.compaction import Coverage
from shoal.kinds.label import state as notes
from shoal.kinds.thread.state import dag
from shoal.node import mutation
from shoal.node.collection.entries import split
from shoal.node.collection.expiring import expires
from shoal.node.transaction import ObjectRows, Transaction
from shoal.node.verification.report import Logged, Object, ObjectPlace, Report, reason, text_of
from shoal.records import NamedTuple
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

_AT_ONCE = 1024  # Requests of a document that are looked at.


class Folded(NamedTuple):
    """The result of folding a partition's log. Ended generations are not folded."""

    rows: dict[ObjectPlace, dict[bytes, bytes]]
    alive: set[ObjectPlace]  # Objects with a change of their current generation.
    generations: dict[ObjectPlace, int]  # Of deleted objects: the number of the current generation.
    erased: dict[ObjectPlace, Erased]  # What the operations in the log erased.

    def current(self, place: ObjectPlace) -> int:
        """The number of an object's current generation."""
        return self.generations.get(place, 0)

    def erased_of(self, place: ObjectPlace) -> Erased:
        """The parts of an object that the operations in the log erased."""
        return self.erased.get(place) or Erased()

    def shows(self, place: ObjectPlace, row: bytes) -> bool:
        """Whether a row is compared: one of the current generation, or that of the last deletion."""
        return row == deletion.ROW or split(row)[0] == self.current(place)


def refolded(
    storage: Storage, partition: int, logged: list[Logged], report: Report, away: Collection[ObjectPlace] = ()
) -> Folded:
    """Fold the log of a partition in causal order; operations that cannot be applied are added to the report.

    Objects of which chunks are `away` are not folded: their bytes are not here.
    """
    memory: dict[ObjectPlace, Transaction] = {}
    found = Folded({}, set(), *erased(logged))
    folded = VersionVector()
    for entry in sorted(logged, key=lambda entry: (entry.hlc, entry.dot)):
        try:
            _fold(storage, entry, found, context=folded, memory=memory, report=report, away=away)
        except Exception as error:  # A damaged operation can raise anything.
            report.problem(f"partition {partition}: operation {entry.dot} cannot be applied: {reason(error)}")
        folded = folded.join(VersionVector([entry.dot]))
    for place, folding in memory.items():
        found.rows[place] = {row: value for row, value in folding.rows.items() if value is not None}
    return found


def inhabited(stored: dict[ObjectPlace, dict[bytes, bytes]], folded: Folded) -> set[ObjectPlace]:
    """The objects that have stored rows of their current generation."""
    return {place for place, rows in stored.items() if any(row != deletion.ROW and folded.shows(place, row) for row in rows)}


def compare(
    stored: dict[ObjectPlace, dict[bytes, bytes]], folded: Folded, report: Report, away: Collection[ObjectPlace] = ()
) -> None:
    """Add each object to the report whose stored rows differ from the folded ones, but for those that were not folded."""
    for place in sorted((stored.keys() | folded.rows.keys()).difference(away)):
        here, prefix = stored.get(place, {}), deletion.prefix(folded.current(place))
        flawed = differing(place, here, folded)
        if flawed and place.kind is Kind.THREAD:
            repeated = _with_repeats(folded.rows.get(place, {}), here, prefix)
            flawed = differing(place, here, folded._replace(rows={place: repeated}))
        if flawed:
            report.problem(f"{text_of(place)}: {len(flawed)} rows differ from what its operations make")


def differing(place: ObjectPlace, stored: Mapping[bytes, bytes], folded: Folded) -> dict[bytes, bytes | None]:
    """The rows of an object that differ from what its operations make, with their right values; None: it must not exist."""
    here = {row: value for row, value in stored.items() if folded.shows(place, row)}
    there = folded.rows.get(place, {})
    prefix = deletion.prefix(folded.current(place))
    if place.kind is Kind.THREAD:
        there = _without_marks(there, here)
        if prefix + notes.NOTES in there:
            there = _without_cuts(there, here)
    elif place.kind is Kind.DOCUMENT:
        there = _without_settled(there, here, prefix, folded.erased_of(place).updates)
    there = {row: value for row, value in there.items() if row in here or not expires(place.kind, row)}
    return {row: there.get(row) for row in sorted(here.keys() | there.keys()) if here.get(row) != there.get(row)}


def _fold(
    storage: Storage,
    entry: Logged,
    found: Folded,
    *,
    context: VersionVector,
    memory: dict[ObjectPlace, Transaction],
    report: Report,
    away: Collection[ObjectPlace],
) -> None:
    for nth, change in enumerate(mutation.decode(entry.body.payload)):
        stamp = change.stamp(entry.dot, entry.body, context, nth)
        place = ObjectPlace(entry.partition, Kind(change.kind), change.space, change.name)
        if place in away:
            if not mutation.ends(change.change) and change.generation == found.current(place):
                found.alive.add(place)
            continue
        try:
            fold(storage, place, stamp, change, found=found, into=memory.setdefault(place, blank()))
        except ShoalError as error:
            report.problem(f"{text_of(place)}: {error.message}")


def fold(
    storage: Storage,
    place: ObjectPlace,
    stamp: Stamp,
    change: mutation.Mutation,
    *,
    found: Folded,
    into: Transaction,
    supplied: Blobs | None = None,
) -> bool:
    """Apply a change to `into`, the rows that earlier changes made. `supplied` are a peer's blobs, instead of the stored ones.

    Returns whether all blobs of the change were erased.

    Raises:
        StoreCorrupt: the blobs of the change are missing or damaged here.
        BadOperation: the supplied blobs do not match the change.
    """
    if mutation.ends(change.change):
        deletion.apply(ObjectRows(into, b""), stamp, cast(deletion.Delete, change.change))
        return False
    if change.generation != found.current(place):
        return False
    found.alive.add(place)
    stored = Object(storage, place, change.generation).rows
    folding = ObjectRows(into, deletion.prefix(change.generation))
    beside = mutation.attached_of(stored, stamp, change.change) if supplied is None else supplied
    if beside.erased:
        _check_erased(stamp, change.change, found.erased_of(place), stored)
    if supplied is not None and not is_gone(supplied):
        beside = mutation.check(folding, stamp, change.change, supplied)
    mutation.apply(folding, stamp, change.change, beside)
    return is_gone(beside)


def erased(logged: list[Logged]) -> tuple[dict[ObjectPlace, int], dict[ObjectPlace, Erased]]:
    """The current generations, and what the operations erase: the last fields of `Folded`."""
    current: dict[ObjectPlace, int] = {}
    found: dict[ObjectPlace, Erased] = {}
    for place, change in [made for entry in logged for made in _changes(entry)]:
        effects = mutation.effects_of(change)
        if effects is None:
            continue
        if effects.ends:
            current[place] = max(cast(deletion.Delete, change).generation + 1, current.get(place, 0))
        if effects.erases is not None:
            effects.erases(change, found.setdefault(place, Erased()))
    return current, found


def _changes(entry: Logged) -> list[tuple[ObjectPlace, mutation.Change]]:
    try:
        made = mutation.decode(entry.body.payload)
        return [(ObjectPlace(entry.partition, Kind(change.kind), change.space, change.name), change.change) for change in made]
    except (StoreCorrupt, ValueError):
        return []  # A damaged operation; it is reported when it is applied.


def _check_erased(stamp: Stamp, change: mutation.Change, erased: Erased, stored: ObjectRows) -> None:
    """Check that something erased the blobs of a change.

    Raises:
        StoreCorrupt: the rows that it produced are missing, and nothing erased them.
    """
    effects = mutation.effects_of(change)
    if effects is None or effects.erased_by is None or not effects.erased_by(stored, stamp, change, erased):
        raise StoreCorrupt("the rows that it produced are missing, and nothing erased them.")


def _without_marks(folded: dict[bytes, bytes], stored: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Leave out marks of pruned checkpoints that are not stored, and moves to these: they are swept with their records."""

    def pruned(key: bytes, value: bytes) -> bytes | None:
        """The checkpoint that a row is about, if it can go with it."""
        if key.startswith(dag.MOVE):
            return dag.moved_to(value)
        if key.startswith(dag.WHEN) and value:
            return dag.place(key, value).id
        return key[1:] if key.startswith(dag.PRUNED) and key != dag.PRUNED else None

    def is_over(row: bytes, value: bytes) -> bool:
        key = split(row)[1]
        id = pruned(key, value)
        return id is not None and row[: len(row) - len(key)] + dag.CHECKPOINT + id not in folded

    def remembered(row: bytes, value: bytes) -> tuple[bytes, bytes] | None:
        """The row that replaces a mark, if it follows from that."""
        key = split(row)[1]
        if key == dag.PRUNED or not key.startswith(dag.PRUNED):
            return None
        swept = row[: len(row) - len(key)] + dag.SWEPT + key[1:]
        is_swept = row not in stored and stored.get(swept) == value and is_over(row, value)
        return (swept, value) if is_swept else None

    kept = {row: value for row, value in folded.items() if row in stored or not is_over(row, value)}
    return kept | dict(found for row, value in folded.items() if (found := remembered(row, value)) is not None)


def _with_repeats(folded: dict[bytes, bytes], stored: dict[bytes, bytes], prefix: bytes) -> dict[bytes, bytes]:
    """Put the save whose record is stored in the place of those that were swept: the log names these, and has no record.

    If its dot is the least, it counts in the log, too, and only the records of the others are not stored.
    """
    found = dict(folded)
    for row, value in stored.items():
        id = row[len(prefix) + 1 :]
        if not row.startswith(prefix + dag.CHECKPOINT) or row not in folded or prefix + dag.PRUNED + id not in stored:
            continue
        twins = prefix + dag.TWIN + id
        if folded[row] != value:
            try:
                first, here = dag.unpack(id, folded[row]), dag.unpack(id, value)
            except StoreCorrupt:
                continue
            if found.get(twins + here.dot.pack()) != dag.record_of(value):
                continue  # No operation makes it.
            found.pop(prefix + dag.when_row(first.record.branch, first.wall_ms, id), None)
            found |= {row: value, prefix + dag.when_row(here.record.branch, here.wall_ms, id): b""}
        found = {each: kept for each, kept in found.items() if not each.startswith(twins) or each in stored}
    return found


def _without_cuts(folded: dict[bytes, bytes], stored: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Leave out what is not stored of the vectors of cut notes, if none of these notes is: they are swept together."""
    kept: dict[bytes, list[Dot]] = {}  # The notes that are stored, by the row of their label.
    for row in stored:
        found = notes.parsed(split(row)[1])
        if found is not None and found[1] is not None:
            kept.setdefault(row[:-POSITION_BYTES], []).append(found[1])

    def settled(row: bytes, value: bytes) -> bytes:
        found = notes.parsed(split(row)[1])
        if found is None or found[1] is not None:
            return value
        try:
            cut, left = VersionVector.unpack(value), VersionVector.unpack(stored.get(row, b""))
        except ValueError:
            return value
        is_swept = all(left.covers(dot) for dot in kept.get(row, []) if cut.covers(dot))
        return stored.get(row, b"") if cut.dominates(left) and is_swept else value

    settling = {row: settled(row, value) for row, value in folded.items()}
    return {row: value for row, value in settling.items() if value or not folded[row]}


def _without_settled(
    folded: dict[bytes, bytes], stored: dict[bytes, bytes], prefix: bytes, compacted: list[Coverage]
) -> dict[bytes, bytes]:
    """Leave out requests that are not stored and of which a compaction settles all edits: they are swept with these."""
    folding = blank()
    folding.rows.update(folded)
    rows = ObjectRows(folding, prefix)
    for coverage in compacted:
        for requests in repeats.settled(lambda: rows, is_settled=coverage.settles, requests_max=_AT_ONCE):
            repeats.forget(rows, [request for request in requests if prefix + repeats.row_of(request) not in stored])
    return {row: value for row, value in folding.rows.items() if value is not None}


def blank() -> Transaction:
    """An empty transaction over an empty storage, with which a fold begins."""
    return Transaction(_Nothing())


class _Nothing:
    """An empty storage below the rows of a fold."""

    def get(self, key: bytes, /) -> bytes | None:
        return None

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(())
