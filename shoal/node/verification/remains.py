"""Verify what can be verified of a partition whose log was truncated: without the operations that have left it.

- The current generation of each object is that of its row; the deletions in the rest of the log are in it.
- All rows that readers decode can be decoded. (`integrity` checks the hashes of content.)
- A key stands for an operation in the log that has it, or has the answer of one that has left.
- The rows are those of a signed statement, if there is one on just these operations. So are those of a whole log, folded up to
  the operations of a statement.

Without such a statement a row that was altered and can still be decoded is not found here: replicas find it when they compare
their rows.

The operations in the log of a directory that nobody has open, and how to ask a node whether it holds them.

Law: a read of an object in the partition, with the bookmark of `naming`, is answered only by a node that holds these
operations, and those before them of their origins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count

from shoal.audit.statements import StatedRoot
from shoal.audit.verification import AWAY, SWEPT, WRITTEN, RowsOf
from shoal.cluster import operation
from shoal.cluster.operation import TIP_BYTES, LogEntry, Tip, partition_of
from shoal.crdt import deletion
from shoal.crdt.dot import HORIZON, ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, successor
from shoal.errors import StoreCorrupt
from shoal.kinds import CHANGES, Kind, declared
from shoal.kinds.counter import state as counter
from shoal.node import mutation
from shoal.node.collection import answers
from shoal.node.collection.entries import of_partition, split
from shoal.node.retired import RetiredOrigins
from shoal.node.snapshots.checking import mark_of, state_root, vector_root
from shoal.node.turns import at_once
from shoal.node.verification.replay import Folded, refolded
from shoal.node.verification.report import Logged, Object, ObjectPlace, Report, reason, text_of
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import StateRoot
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.interface import Storage

_ENTRIES_MAX = 16384  # Of garbage, of one partition. With more its rows are not compared before they are swept.


def bases(storage: Storage, partition: int) -> dict[Origin, Tip]:
    """The last operation of each origin that has left the log; without origins that are retired and forgotten."""
    prefix = keys.base(partition)
    found = {Origin(key[len(prefix) :]): Tip.unpack(tip) for key, tip in storage.scan(prefix, successor(prefix))}
    retired = RetiredOrigins(storage, partition)
    return {**found, **{origin: row.tip for origin, row in retired.all() if not row.is_logged}}


def is_whole(storage: Storage, partition: int) -> bool:
    """Whether the log holds everything that was ever applied."""
    return not bases(storage, partition) and not RetiredOrigins(storage, partition).forgotten


def standing(stored: Mapping[ObjectPlace, Mapping[bytes, bytes]], logged: list[Logged], report: Report) -> Folded:
    """The objects that exist, and their current generations; with no rows, since the log does not produce them."""
    current = {place: deletion.unpack(rows[deletion.ROW]).generation for place, rows in stored.items() if deletion.ROW in rows}
    alive = {
        place
        for place, rows in stored.items()
        if any(split(row)[0] == current.get(place, 0) for row in rows if row != deletion.ROW)
    }
    for entry in logged:
        with suppress(StoreCorrupt):  # It is reported where the log is read.
            for change in mutation.decode(entry.body.payload):
                place = ObjectPlace(entry.partition, Kind(change.kind), change.space, change.name)
                if not mutation.ends(change.change):
                    if change.generation == current.get(place, 0):
                        alive.add(place)
                elif change.generation >= current.get(place, 0):
                    report.problem(f"{text_of(place)}: its rows lack a deletion that is in the log")
    return Folded({}, alive, current, {})


def check_roots(storage: Storage, partition: int, rows: RowsOf, logged: list[Logged], *, folds: bool) -> None:
    """Compare the rows of a partition with what signed statements say of them.

    If it has moved on since, and `folds`, compare what its log makes up to there.
    """
    here: dict[tuple[bytes, ...], StateRoot] = {}
    swept = of_partition(storage, partition, _ENTRIES_MAX)
    waiting = None if swept is None else frozenset(map(mark_of, swept))
    prefix = keys.vector(partition)
    tips = {Origin(key[len(prefix) :]): Tip.unpack(tip) for key, tip in storage.scan(prefix, successor(prefix))}
    vector, folds = vector_root(tips), folds and is_whole(storage, partition)
    away = frozenset(map(mark_of, cold.objects(storage, partition)))
    for claim in rows.claims(partition):
        left = frozenset(claim.root.left)
        if not away <= left:
            rows.set_aside(claim, AWAY)
            continue
        if claim.root.vector != vector:
            made = _root_of_fold(storage, claim, logged) if folds else None
            if made is None:
                rows.set_aside(claim, WRITTEN)
            else:
                rows.decide(claim, made, "what the operations make")
        elif waiting is None or not waiting <= left:
            rows.set_aside(claim, SWEPT)
        else:
            key = tuple(claim.root.left)
            here[key] = here.get(key) or at_once(state_root(partition, storage.scan, tips, left))
            rows.decide(claim, here[key], "this directory")


def _root_of_fold(storage: Storage, claim: StatedRoot, logged: list[Logged]) -> StateRoot | None:
    """The root of what the operations of a claim make; None if it cannot be told, as some of that was erased since."""
    number = claim.root.partition
    tips = {Origin(head.origin): Tip(head.sequence, head.hlc, head.chain) for head in claim.heads}
    if vector_root(tips) != claim.root.vector or not all(_is_logged(storage, number, *each) for each in tips.items()):
        return None
    covered, failed = VersionVector((origin, tip.sequence) for origin, tip in tips.items()), Report()
    folded = refolded(storage, number, [entry for entry in logged if covered.covers(entry.dot)], failed)
    if failed.problem_count or folded.erased or folded.generations:
        return None
    made = [(keys.object_rows(*place) + row, value) for place, rows in folded.rows.items() for row, value in rows.items()]
    made += [(keys.listed(*place), b"") for place in folded.alive]

    def scan(start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        return sorted(row for row in made if start <= row[0] < stop)

    return at_once(state_root(number, scan, tips, frozenset(claim.root.left)))


def _is_logged(storage: Storage, partition: int, origin: Origin, tip: Tip) -> bool:
    stored = storage.get(keys.log(partition, Dot(origin, tip.sequence)))
    return stored is not None and LogEntry.unpack(stored).chain == tip.chain


def check_rows(found: Object, report: Report) -> None:
    """Decode all rows of an object that readers decode."""
    try:
        for read in _READERS.get(found.place.kind, ()):
            read(found.rows)
    except Exception as error:  # Damaged rows can raise anything.
        report.problem(f"{text_of(found.place)}: {reason(error)}")


def check_keys(storage: Storage, partition: int, logged: list[Logged], based: Mapping[Origin, Tip], report: Report) -> None:
    """Check each request's key against the log, or its stored answer."""
    claimed = {(entry.body.key, entry.dot) for entry in logged if entry.body.key is not None}
    named = {key for key, _ in claimed}
    retired = RetiredOrigins(storage, partition)

    def has_left(dot: Dot) -> bool:
        if dot.origin in based:
            return based[dot.origin].sequence >= dot.sequence
        is_known = retired.find(dot.origin) is not None or storage.get(keys.vector(partition, dot.origin)) is not None
        return bool(retired.forgotten) and not is_known

    prefix = keys.request_key(partition, "")
    for row, stored in storage.scan(prefix, successor(prefix)):
        key = row[len(prefix) :].decode(errors="replace")
        named.discard(key)
        try:
            found = answers.unpack_answer(stored)
        except StoreCorrupt as error:
            report.problem(f"partition {partition}: idempotency key {key!r}: {error.message}")
            continue
        if (found.kept is not None) != has_left(found.dot) or (found.kept is None and (key, found.dot) not in claimed):
            report.problem(f"partition {partition}: idempotency key {key!r} does not name the operation that it stands for")
    for key in sorted(named):
        report.problem(f"partition {partition}: idempotency key {key!r} does not name the operation that it stands for")


_READERS: dict[Kind, list[Callable[[Rows], object]]] = {}
for _kind, _read in declared("read_whole", *CHANGES):
    _READERS.setdefault(_kind, []).append(_read)


class Held(NamedTuple):
    """An operation in a log."""

    partition: int
    dot: Dot
    objects: tuple[tuple[str, str, str], ...]  # Kind, space and name of each that it changes.
    added: dict[tuple[str, str, str], int]  # What it adds to those that are counters.


def operations(storage: Storage) -> Iterator[Held]:
    """All operations in the log, in the order of partitions, origins and sequences.

    Raises:
        InvalidValue, StoreCorrupt: one of them cannot be read.
    """
    for key, row in storage.scan(keys.LOG, successor(keys.LOG)):
        partition, dot = keys.split_log(key)
        body = operation.decode(operation.LogEntry.unpack(row).packed)
        changed: dict[tuple[str, str, str], int] = {}
        for each in mutation.decode(body.payload):
            named = Kind(each.kind).label, each.space, each.name
            amount = each.change.amount if isinstance(each.change, counter.Add) else 0
            changed[named] = changed.get(named, 0) + amount
        yield Held(partition, dot, tuple(sorted(changed)), {named: amount for named, amount in changed.items() if amount})


def logged_before(storage: Storage) -> Iterator[Held]:
    """The last operations that have left the log, of live and of retired origins, with all objects of their partitions."""
    objects: dict[int, tuple[tuple[str, str, str], ...]] = {}
    for table in (keys.BASE, keys.RETIRED):
        for key, packed in storage.scan(table, successor(table)):
            partition, origin = int.from_bytes(key[1:3], "big"), Origin(key[3:])
            if len(origin) != ORIGIN_BYTES or origin == HORIZON:
                continue  # A row about retired origins.
            if partition not in objects:
                objects[partition] = tuple(_objects(storage, partition))
            sequence = Tip.unpack(packed[:TIP_BYTES]).sequence
            yield Held(partition, Dot(origin, sequence), objects[partition], {})


def naming(partition: int, held: Iterable[Held]) -> str:
    """The text of a bookmark that names these operations of a partition; of one origin, the last one given counts."""
    bookmark = Bookmark()
    bookmark.note(partition, VersionVector(dict(each.dot for each in held)))
    return bookmark.text()


def name_in(space: str, partition: int) -> str:
    """The name of an object that would be in this partition."""
    return next(name for number in count() if partition_of(space, name := f"leftovers-{number}") == partition)


def _objects(storage: Storage, partition: int) -> Iterator[tuple[str, str, str]]:
    for key, _ in storage.scan(*keys.rows_of(keys.LISTED, partition)):
        space, kind, name = keys.split_catalog(keys.catalog_of_listed(key))
        yield kind.label, space, name
