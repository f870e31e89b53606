"""Check a whole store against itself: `shoal verify`.

What holds in a sound store, partition by partition:
- the log of every origin is contiguous from 1 to its tip, and its hash chain ends in the tip's;
- folding the log again, from nothing, gives the stored rows of every object, byte for byte;
- every chunk matches its hash, and every checkpoint's values can be put together from chunks;
- a document's snapshot with the updates after it is the document that all its updates build;
- the rows of an index are those that the items make;
- every idempotency key names the operation that it stands for;
- the catalog lists exactly the objects that have operations.

Verifying reads, and changes nothing. Memory is needed for one partition's rows, and for the names of all objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from shoal.cluster import operation
from shoal.cluster.operation import NO_TIP, Tip
from shoal.cluster.partition import PARTITIONS
from shoal.config import Config
from shoal.crdt import channel, deletion, document, journal, lineage, pruning, tree, trimming
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.live import EMPTY, LiveDocument
from shoal.crdt.rows import POSITION_BYTES, Stamp, successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node import indexes, mutation
from shoal.node.generations import split
from shoal.node.target import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

PROBLEMS_LISTED_MAX = 100


@dataclass(slots=True)
class Report:
    partitions: int = 0  # That hold anything.
    operations: int = 0
    objects: int = 0
    checkpoints: int = 0
    chunks: int = 0
    problem_count: int = 0
    problems: list[str] = field(default_factory=list)  # The first `PROBLEMS_LISTED_MAX`.

    @property
    def sound(self) -> bool:
        return self.problem_count == 0

    def problem(self, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_LISTED_MAX:
            self.problems.append(text)


class _Logged(NamedTuple):
    partition: int
    hlc: int
    dot: Dot
    body: operation.Body


class _Place(NamedTuple):
    partition: int
    kind: Kind
    space: str
    name: str


_Named = tuple[str, Kind, str]  # Space, kind and name.


def verify(storage: Storage, *, config: Config, progress: Callable[[int], None] = lambda partition: None) -> Report:
    """Check everything; `progress` is told each partition's number as it is begun.

    Raises:
        StoreCorrupt: a block cannot be read at all.
    """
    report = Report()
    there: set[_Named] = set()
    for partition in range(PARTITIONS):
        progress(partition)
        logged = list(_log(storage, partition, report))
        stored = _objects(storage, partition, report)
        report.partitions += bool(logged or stored)
        report.objects += len(stored)
        folded = _folded(storage, partition, logged, report)
        # A counter that adds up to nothing has no rows, and is an object all the same.
        there.update((place.space, place.kind, place.name) for place in folded.alive | _inhabited(stored, folded))
        _compare(stored, folded, report)
        _check_keys(storage, partition, logged, report)
        _check_indexes(storage, partition, stored, report)
        for place, rows in stored.items():
            if place in folded.alive:
                _check_object(_Object(storage, place, folded.current(place)), rows, report, config)
    _check_catalog(storage, there, report)
    return report


def _log(storage: Storage, partition: int, report: Report) -> Iterator[_Logged]:
    """The partition's operations, each origin's chain checked on the way."""
    ends: dict[Origin, Tip] = {}
    prefix = keys.log_of(partition)
    for key, stored in storage.scan(prefix, successor(prefix)):
        _, dot = keys.split_log(key)
        stated, packed = operation.Entry.unpack(stored)
        before = ends.get(dot.origin, NO_TIP)
        if dot.sequence != before.sequence + 1:
            report.problem(f"partition {partition}: {dot.origin.hex()} has a hole before sequence {dot.sequence} in its log")
        body = _body(partition, dot, packed, report)
        hlc = 0 if body is None else body.hlc
        chain = operation.chain(before.chain, partition, dot, packed)
        if chain != stated:
            report.problem(
                f"partition {partition}: operation {dot.sequence} of {dot.origin.hex()} breaks its origin's hash chain"
            )
        ends[dot.origin] = Tip(dot.sequence, hlc, chain)
        report.operations += 1
        if body is not None:
            yield _Logged(partition, hlc, dot, body)
    prefix = keys.vector(partition)
    recorded = {Origin(key[len(prefix) :]): Tip.unpack(tip) for key, tip in storage.scan(prefix, successor(prefix))}
    for origin in sorted(recorded.keys() | ends.keys()):
        if recorded.get(origin) != ends.get(origin):
            report.problem(f"partition {partition}: the log of {origin.hex()} does not end where its vector says")


def _check_keys(storage: Storage, partition: int, logged: list[_Logged], report: Report) -> None:
    """Each request's key names the least dot of the operations that have it."""
    claimed: dict[str, Dot] = {}
    for entry in logged:
        if entry.body.key is not None:
            claimed[entry.body.key] = min(entry.dot, claimed.get(entry.body.key, entry.dot))
    wanted = {keys.request_key(partition, key): dot.pack() for key, dot in claimed.items()}
    prefix = keys.request_key(partition, "")
    stored = dict(storage.scan(prefix, successor(prefix)))
    for key in sorted(wanted.keys() | stored.keys()):
        if wanted.get(key) != stored.get(key):
            name = key[len(prefix) :].decode(errors="replace")
            report.problem(f"partition {partition}: idempotency key {name!r} does not name the operation that it stands for")


def _body(partition: int, dot: Dot, packed: bytes, report: Report) -> operation.Body | None:
    try:
        body = operation.decode(packed)
        mutation.decode(body.payload)
    except ShoalError as error:
        report.problem(f"partition {partition}: operation {dot.sequence} of {dot.origin.hex()}: {error.message}")
        return None
    return body


class _Folded(NamedTuple):
    """What a partition's log makes. Of generations that were ended nothing is folded, and nothing compared."""

    rows: dict[_Place, dict[bytes, bytes]]
    alive: set[_Place]  # With a change of their current generation.
    generations: dict[_Place, int]  # Of those that were deleted: the current one.
    pruned: dict[_Place, set[bytes]]  # Checkpoints that prunes name.
    trimmed: dict[_Place, VersionVector]  # Operations whose events trims took.

    def current(self, place: _Place) -> int:
        return self.generations.get(place, 0)

    def shows(self, place: _Place, row: bytes) -> bool:
        return row == deletion.ROW or split(row)[0] == self.current(place)


class _Object(NamedTuple):
    """An object's current generation in storage."""

    storage: Storage
    place: _Place
    generation: int

    @property
    def rows(self) -> ObjectRows:
        return ObjectRows(Transaction(self.storage), keys.object_rows(*self.place) + deletion.prefix(self.generation))


def _erased(
    logged: list[_Logged],
) -> tuple[dict[_Place, int], dict[_Place, set[bytes]], dict[_Place, VersionVector]]:
    current: dict[_Place, int] = {}
    pruned: dict[_Place, set[bytes]] = {}
    trimmed: dict[_Place, VersionVector] = {}
    for place, change in [found for entry in logged for found in _changes(entry)]:
        if isinstance(change, deletion.Delete):
            current[place] = max(change.generation + 1, current.get(place, 0))
        elif isinstance(change, pruning.Prune):
            pruned.setdefault(place, set()).update(change.ids)
        elif isinstance(change, trimming.Trim):
            trimmed[place] = trimmed.get(place, VersionVector()).join(trimming.covered(change.ends))
    return current, pruned, trimmed


def _changes(entry: _Logged) -> list[tuple[_Place, mutation.Change]]:
    try:
        made = mutation.decode(entry.body.payload)
        return [(_Place(entry.partition, Kind(change.kind), change.space, change.name), change.change) for change in made]
    except (StoreCorrupt, ValueError):
        return []  # A damaged operation: it is told where it is to be applied.


def _folded(storage: Storage, partition: int, logged: list[_Logged], report: Report) -> _Folded:
    """The objects that the log makes, applied to nothing in causal order."""
    memory: dict[_Place, Transaction] = {}
    found = _Folded({}, set(), *_erased(logged))
    contexts: dict[Origin, VersionVector] = {}
    for entry in sorted(logged, key=lambda entry: (entry.hlc, entry.dot)):
        try:
            _fold(storage, entry, found, contexts=contexts, memory=memory, report=report)
        except Exception as error:  # What a damaged operation says can be refused anywhere.
            report.problem(f"partition {partition}: operation {entry.dot} cannot be applied: {_reason(error)}")
    for place, folding in memory.items():
        found.rows[place] = {row: value for row, value in folding.rows.items() if value is not None}
    return found


def _fold(
    storage: Storage,
    entry: _Logged,
    found: _Folded,
    *,
    contexts: dict[Origin, VersionVector],
    memory: dict[_Place, Transaction],
    report: Report,
) -> None:
    context = contexts.get(entry.dot.origin, VersionVector()).join(entry.body.delta())
    contexts[entry.dot.origin] = context.join(VersionVector({entry.dot.origin: entry.dot.sequence}))
    for nth, change in enumerate(mutation.decode(entry.body.payload)):
        stamp = Stamp(entry.dot, entry.hlc, entry.body.wall_ms, context, nth)
        place = _Place(entry.partition, Kind(change.kind), change.space, change.name)
        into = memory.setdefault(place, Transaction(_Nothing()))
        if isinstance(change.change, deletion.Delete):
            deletion.apply(ObjectRows(into, b""), stamp, change.change)
            continue
        if change.generation != found.current(place):
            continue
        found.alive.add(place)
        stored = _Object(storage, place, change.generation).rows
        folding = ObjectRows(into, deletion.prefix(change.generation))
        try:
            beside = mutation.attached_of(stored, stamp, change.change)
            if beside.erased:
                _check_erased(entry.dot, change.change, found, place)
            mutation.apply(folding, stamp, change.change, beside)
        except ShoalError as error:
            report.problem(f"{_text(place)}: {error.message}")


def _objects(storage: Storage, partition: int, report: Report) -> dict[_Place, dict[bytes, bytes]]:
    prefix = keys.OBJECT + partition.to_bytes(2, "big")
    objects: dict[_Place, dict[bytes, bytes]] = {}
    for key, value in storage.scan(prefix, successor(prefix)):
        try:
            _, kind, space, name, row = keys.split_object(key)
        except ValueError:
            report.problem(f"partition {partition}: row {key.hex()} belongs to no object")
        else:
            objects.setdefault(_Place(partition, kind, space, name), {})[row] = value
    return objects


def _inhabited(stored: dict[_Place, dict[bytes, bytes]], folded: _Folded) -> set[_Place]:
    return {place for place, rows in stored.items() if any(row != deletion.ROW and folded.shows(place, row) for row in rows)}


def _compare(stored: dict[_Place, dict[bytes, bytes]], folded: _Folded, report: Report) -> None:
    for place in sorted(stored.keys() | folded.rows.keys()):
        here = {row: value for row, value in stored.get(place, {}).items() if folded.shows(place, row)}
        there = folded.rows.get(place, {})
        if place.kind is Kind.THREAD:
            there = _without_marks(there, here)
        differing = [row for row in here.keys() | there.keys() if here.get(row) != there.get(row)]
        if differing:
            report.problem(f"{_text(place)}: {len(differing)} rows differ from what its operations make")


def _check_erased(dot: Dot, change: mutation.Change, found: _Folded, place: _Place) -> None:
    """
    Raises:
        StoreCorrupt: what it made is missing, and nothing erased it.
    """
    pruned = isinstance(change, lineage.Save) and change.id in found.pruned.get(place, set())
    trimmed = isinstance(change, journal.Append) and found.trimmed.get(place, VersionVector()).covers(dot)
    if not (pruned or trimmed):
        raise StoreCorrupt("what it made is missing, and nothing erased it.")


def _without_marks(folded: dict[bytes, bytes], stored: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The marks of pruned checkpoints go with their records, when nothing needs these."""
    return {row: value for row, value in folded.items() if row in stored or not split(row)[1].startswith(lineage.PRUNED)}


def _check_object(found: _Object, rows: dict[bytes, bytes], report: Report, config: Config) -> None:
    own = {key: value for row, value in rows.items() for of, key in [split(row)] if of == found.generation}
    try:
        if found.place.kind is Kind.THREAD:
            _check_thread(found.place, found.rows, own, report)
        elif found.place.kind is Kind.DOCUMENT:
            _check_document(found, config)
    except Exception as error:  # Damaged rows can fail in any way.
        report.problem(f"{_text(found.place)}: {_reason(error)}")


def _check_thread(place: _Place, object_rows: ObjectRows, rows: dict[bytes, bytes], report: Report) -> None:
    for row, value in rows.items():
        if row.startswith(lineage.CHUNK):
            report.chunks += 1
            if sha256(value).digest() != row[1:]:
                report.problem(f"{_text(place)}: chunk {row[1:].hex()} is damaged")
    recipes = {
        row[1:]: found.record
        for row in rows
        if row.startswith(lineage.CHECKPOINT) and (found := lineage.checkpoint(object_rows, row[1:])) is not None
    }
    chunks = _Chunks(rows)
    for id, record in recipes.items():
        if lineage.PRUNED + id in rows:
            continue
        report.checkpoints += 1
        if lineage.identify(record) != id:
            report.problem(f"{_text(place)}: checkpoint {id.hex()} does not match its id")
        for name, recipe in record.channels.items():

            def of_base(base: bytes, name: str = name) -> channel.Recipe | None:
                return recipes[base].channels.get(name) if base in recipes else None

            outline = channel.outline_of(recipe, of_base)
            size = None if outline is None else chunks.size(outline.tops)
            if outline is None or size is None:
                report.problem(f"{_text(place)}: channel {name!r} of checkpoint {id.hex()} misses chunks")
            elif (
                channel.hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash
                or len(recipe.header) + size + len(outline.tail) != recipe.size
            ):
                report.problem(f"{_text(place)}: channel {name!r} of checkpoint {id.hex()} does not match its hash")


class _Chunks:
    """How many bytes there are below the tops of a tree. Each node is looked at once: the trees share them."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows
        self._sizes: dict[tuple[bytes, int], int | None] = {}

    def size(self, tops: tree.Tops) -> int | None:
        """None if a chunk or a node is missing."""
        return _sum(self._below(digest, height) for height, level in enumerate(tops) for digest in level)

    def _below(self, digest: bytes, height: int) -> int | None:
        if (digest, height) not in self._sizes:
            stored = self._rows.get(lineage.CHUNK + digest)
            if stored is None or height == 0:
                self._sizes[digest, height] = None if stored is None else len(stored)
            else:
                self._sizes[digest, height] = _sum(self._below(child, height - 1) for child in tree.children(stored))
        return self._sizes[digest, height]


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


def _check_document(found: _Object, config: Config) -> None:
    rows = found.rows
    roots = document.roots(rows)

    def built(snapshot: bytes, position: bytes | None) -> LiveDocument:
        updates = [update for _, update in document.updates(rows, after=position)]
        updates.append(document.withdrawn(rows))
        return LiveDocument(
            bytes_max=config.document_bytes_max,
            roots_max=config.roots_max,
            snapshot=snapshot,
            updates=updates,
            roots=roots,
        )

    whole = built(EMPTY, None)
    stored = found.storage.get(keys.snapshot(*found.place))
    if stored is not None and built(stored[POSITION_BYTES:], stored[:POSITION_BYTES]).canonical() != whole.canonical():
        raise ShoalError("its snapshot is not what its updates build")


def _check_indexes(storage: Storage, partition: int, objects: dict[_Place, dict[bytes, bytes]], report: Report) -> None:
    indexed: dict[_Place, dict[bytes, bytes]] = {}
    prefix = keys.INDEX + partition.to_bytes(2, "big")
    for key, value in storage.scan(prefix, successor(prefix)):
        try:
            place = _Place(*keys.split_object(key)[:4])
        except ValueError:
            report.problem(f"partition {partition}: index row {key.hex()} belongs to no object")
        else:
            indexed.setdefault(place, {})[key] = value
    for place, rows in indexed.items():
        try:
            for flaw in indexes.flaws(Target(*place[1:]), rows, objects.get(place, {})):
                report.problem(f"{_text(place)}: {flaw}")
        except StoreCorrupt as error:
            report.problem(f"{_text(place)}: {error.message}")


def _check_catalog(storage: Storage, there: set[_Named], report: Report) -> None:
    listed: set[_Named] = set()
    for key, _ in storage.scan(keys.CATALOG, successor(keys.CATALOG)):
        try:
            listed.add(keys.split_catalog(key))
        except ValueError:
            report.problem(f"catalog entry {key.hex()} names no object")
    for space, kind, name in sorted(listed ^ there):
        what = "is listed and does not exist" if (space, kind, name) in listed else "exists and is not listed"
        report.problem(f"{kind.label} {name!r} of space {space!r} {what}")


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, ShoalError) else repr(error)


def _text(place: _Place) -> str:
    return f"{place.kind.label} {place.name!r} of space {place.space!r}"


class _Nothing:
    """A storage that is empty: below the rows that a fold makes."""

    def get(self, key: bytes, /) -> bytes | None:
        return None

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(())
