"""Check a whole store against itself: `shoal verify`.

It checks, partition by partition, that
- the log of every origin is contiguous from its base to its tip, and its hash chain ends in the tip's;
- folding the log again, from nothing, gives the stored rows of every object, byte for byte. If operations have left the log,
  `remains` says what is checked instead;
- every chunk matches its hash, and every checkpoint's values can be assembled from chunks;
- a document's snapshot with the updates after it is the document that all its updates build;
- the rows of an index are those that the items make;
- every idempotency key names the operation that it stands for;
- the catalog lists exactly the objects that have operations, and the threads under their statuses and open steps;
- the rows are those of signed statements: of those that are given, and of those that nodes keep in this store.

Rows whose operations have left the log cannot be folded. The report says so of each partition, and from whom they came, or
which node has signed them.

Verifying changes nothing. It holds in memory one partition's rows, and the names of all objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec.structs import replace

from shoal import values
from shoal.audit import statements as signing
from shoal.audit.statements import StatedRoot
from shoal.audit.verification import RowsOf
from shoal.cluster import operation
from shoal.cluster.operation import NO_TIP, PARTITIONS, Tip, partition_of
from shoal.config import Config
from shoal.crdt import deletion
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.kinds.items.serving import indexes
from shoal.kinds.journal.state import events
from shoal.names import RESERVED
from shoal.node import mutation
from shoal.node.catalog import is_asking, standing_of, status_flaws
from shoal.node.collection.entries import split
from shoal.node.retired import RetiredOrigins
from shoal.node.snapshots.receiving import taken
from shoal.node.verification import remains
from shoal.node.verification.replay import compare, inhabited, refolded
from shoal.node.verification.report import Logged, Object, ObjectPlace, Report, check_object, reason, text_of
from shoal.protocol.requests import Statement
from shoal.storage import cold, keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind

_Named = tuple[str, Kind, str]  # Space, kind and name.
_CHECKED = (keys.VECTOR, keys.RETIRED, keys.BASE, keys.OBJECT, keys.LOG, keys.KEY, keys.INDEX)
_OWN = "were made here, from operations that have left the log since"
_PLACE_BYTES = 3  # A table's byte and a partition.


def verify(
    storage: Storage,
    *,
    config: Config,
    progress: Callable[[int], None] = lambda partition: None,
    statements: Collection[Statement] = (),
) -> Report:
    """Check everything; `progress` is called with each partition's number as it begins.

    `statements` are signed ones that somebody has kept, of this node or of another owner.

    Raises:
        StoreCorrupt: a block cannot be read at all.
    """
    report = Report()
    there: set[_Named] = set()
    truncated: set[int] = set()
    aways = 0
    standings: dict[tuple[str, str], bytes] = {}
    asking: set[tuple[str, str]] = set()
    filled = _with_rows(storage)
    given, kept = RowsOf(list(_signed(statements, report))), RowsOf(_last(_signed(_kept(storage, report), report)))
    for partition in range(PARTITIONS):
        progress(partition)
        if partition not in filled:
            continue
        based = remains.bases(storage, partition)
        logged = list(_log(storage, partition, based, report))
        stored = _objects(storage, partition, report)
        report.partitions += bool(logged or stored)
        report.objects += len(stored)
        away = _away(storage, partition, stored)
        aways += len(away)
        if not remains.is_whole(storage, partition):
            folded = remains.standing(stored, logged, report)
            remains.check_keys(storage, partition, logged, based, report)
            truncated.add(partition)
        else:
            report.folded += bool(logged or stored)
            folded = refolded(storage, partition, logged, report, away)
            compare(stored, folded, report, away)
            _check_keys(storage, partition, logged, report)
        remains.check_roots(storage, partition, given, logged, folds=True)
        remains.check_roots(storage, partition, kept, logged, folds=False)
        # A counter whose adds sum to 0 has no rows, but it exists.
        there.update((place.space, place.kind, place.name) for place in folded.alive | inhabited(stored, folded))
        _check_indexes(storage, partition, stored, report)
        for place, rows in stored.items():
            if place in folded.alive:
                found = Object(storage, place, folded.current(place))
                check_object(found, rows, report, config)
                if partition in truncated:
                    remains.check_rows(found, report)
                if place.kind is Kind.THREAD:
                    standings[place.space, place.name] = _standing(found)
                    with suppress(StoreCorrupt):  # Its rows are reported.
                        if is_asking(found.rows):
                            asking.add((place.space, place.name))
    _check_catalog(storage, there, truncated, report)
    for flaw in status_flaws(storage, standings, asking):
        report.problem(flaw)
    for claims in (given, kept):
        report.rows += claims.compared
        for finding in claims.findings:
            report.problem(finding.text)
    report.uncompared += given.told()
    _name_trusted(storage, truncated, kept.agreed | given.agreed, report)
    if aways:
        report.trusted.append(
            f"the rows of {aways:,} thread{'' if aways == 1 else 's'} with chunks in an object store were not folded, and "
            f"{report.away:,} chunks are there: they were not read"
        )
    return report


def _signed(found: Iterable[Statement], report: Report) -> Iterator[Statement]:
    """The statements whose signatures hold."""
    for each in found:
        report.statements += 1
        if signing.is_signed(each):
            yield each
        else:
            report.problem(f"the statement of node {each.node.hex()} at {each.time_ms} does not have a valid signature")


def _last(found: Iterable[Statement]) -> list[Statement]:
    """The last statement of each node on the rows of each partition, as a statement of its own. A year has very many."""
    last: dict[tuple[bytes, int], Statement] = {}
    for each in found:
        for root in each.roots or ():
            place = (each.node, root.partition)
            if place not in last or last[place].time_ms <= each.time_ms:
                last[place] = replace(each, heads=[], roots=[root])
    return list(last.values())


def _kept(storage: Storage, report: Report) -> Iterator[Statement]:
    """The statements that nodes keep in this store."""
    start = keys.catalog(RESERVED, Kind.THREAD, signing.THREADS)
    for key, _ in storage.scan(start, successor(start)):
        name = keys.split_catalog(key)[2]
        place = ObjectPlace(partition_of(RESERVED, name), Kind.THREAD, RESERVED, name)
        ending = storage.get(keys.object_rows(*place) + deletion.ROW)
        rows = Object(storage, place, _current({} if ending is None else {deletion.ROW: ending})).rows
        for row, stored in rows.scan(events.EVENT):
            try:
                event = events.unpack(row[1:], stored)
                if not event.is_erased:
                    yield signing.from_text(values.decode(event.payload))
            except Exception as error:  # Damaged rows can raise anything.
                report.problem(f"{text_of(place)}: a statement cannot be read: {reason(error)}")


def _name_trusted(storage: Storage, truncated: set[int], agreed: Mapping[int, StatedRoot], report: Report) -> None:
    """Say of the partitions that were not folded from whom their rows came, or which node has signed them."""
    try:
        records = taken(storage)
    except ValueError:
        records = {}
        report.problem("a row that says from whom a partition's rows came is damaged")

    def told(number: int) -> str:
        if number in agreed:
            claim = agreed[number]
            return f"are those that node {claim.node.hex()} has signed, at {claim.time_ms} the last time"
        return records[number].told if number in records else _OWN

    counted = Counter(map(told, truncated))
    report.trusted += [
        f"the rows of {count:,} partition{'' if count == 1 else 's'} {told}" for told, count in sorted(counted.items())
    ]


def _with_rows(storage: Storage) -> set[int]:
    """The partitions that have rows of any table that is checked partition by partition."""
    found: set[int] = set()
    for table in _CHECKED:
        start: bytes | None = table
        while start is not None and (row := next(storage.scan(start, successor(table), limit=1), None)) is not None:
            place = row[0][:_PLACE_BYTES]
            found.add(int.from_bytes(place[1:], "big"))
            start = successor(place) if len(place) == _PLACE_BYTES else row[0] + b"\0"
    return found


def _log(storage: Storage, partition: int, based: Mapping[Origin, Tip], report: Report) -> Iterator[Logged]:
    """The operations in a partition's log; the chain of each origin is checked from its base on the way."""
    ends: dict[Origin, Tip] = dict(based)
    report.truncated += sum(base.sequence for base in based.values())
    named = NOTHING_SEEN
    prefix = keys.log_of(partition)
    for key, stored in storage.scan(prefix, successor(prefix)):
        _, dot = keys.split_log(key)
        entry = operation.LogEntry.unpack(stored)
        before = ends.get(dot.origin, NO_TIP)
        if dot.sequence != before.sequence + 1:
            report.problem(f"partition {partition}: {dot.origin.hex()} has a hole before sequence {dot.sequence} in its log")
        body = _body(partition, dot, entry.packed, report)
        hlc = 0 if body is None else body.hlc
        chain = operation.chain(before.chain, partition, dot, entry.packed)
        if chain != entry.chain:
            report.problem(
                f"partition {partition}: operation {dot.sequence} of {dot.origin.hex()} breaks its origin's hash chain"
            )
        ends[dot.origin] = before.after(dot.sequence, hlc, chain, entry.packed)
        report.operations += 1
        if body is not None:
            named = named.join(body.knowing())
            yield Logged(partition, hlc, dot, body)
    prefix = keys.vector(partition)
    recorded = {Origin(key[len(prefix) :]): Tip.unpack(tip) for key, tip in storage.scan(prefix, successor(prefix))}
    recorded.update((origin, row.tip) for origin, row in RetiredOrigins(storage, partition).all())
    for origin in sorted(recorded.keys() | ends.keys()):
        tip, end = recorded.get(origin, NO_TIP), ends.get(origin, NO_TIP)
        if (tip.sequence, tip.hlc, tip.chain, tip.logged) != (end.sequence, end.hlc, end.chain, end.logged):
            report.problem(f"partition {partition}: the log of {origin.hex()} does not end where its vector says")
        elif tip.known and named[origin] < tip.sequence and not based:
            report.problem(
                f"partition {partition}: the vector says that an operation knows of the last one of {origin.hex()}; none does"
            )


def _body(partition: int, dot: Dot, packed: bytes, report: Report) -> operation.Body | None:
    try:
        body = operation.decode(packed)
        mutation.decode(body.payload)
    except ShoalError as error:
        report.problem(f"partition {partition}: operation {dot.sequence} of {dot.origin.hex()}: {error.message}")
        return None
    return body


def _check_keys(storage: Storage, partition: int, logged: list[Logged], report: Report) -> None:
    """Check that each request's key names the least dot of the operations that have it."""
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


def _objects(storage: Storage, partition: int, report: Report) -> dict[ObjectPlace, dict[bytes, bytes]]:
    prefix = keys.OBJECT + partition.to_bytes(2, "big")
    objects: dict[ObjectPlace, dict[bytes, bytes]] = {}
    for key, value in storage.scan(prefix, successor(prefix)):
        try:
            _, kind, space, name, row = keys.split_object(key)
        except ValueError:
            report.problem(f"partition {partition}: row {key.hex()} belongs to no object")
        else:
            objects.setdefault(ObjectPlace(partition, kind, space, name), {})[row] = value
    return objects


def _away(storage: Storage, partition: int, stored: dict[ObjectPlace, dict[bytes, bytes]]) -> set[ObjectPlace]:
    """The objects that have stubs."""
    found: set[ObjectPlace] = set()
    for of in cold.objects(storage, partition):
        place = ObjectPlace(*keys.split_object(of)[:4])
        if any(cold.stub_of(of + row, value) is not None for row, value in stored.get(place, {}).items()):
            found.add(place)
    return found


def _check_indexes(storage: Storage, partition: int, objects: dict[ObjectPlace, dict[bytes, bytes]], report: Report) -> None:
    """Check the index rows of current generations. Those of ended ones are swept with their generations."""
    indexed: dict[ObjectPlace, dict[bytes, bytes]] = {}
    prefix = keys.INDEX + partition.to_bytes(2, "big")
    for key, value in storage.scan(prefix, successor(prefix)):
        try:
            place, row = ObjectPlace(*(parts := keys.split_object(key))[:4]), parts[4]
        except ValueError:
            report.problem(f"partition {partition}: index row {key.hex()} belongs to no object")
            continue
        generation, current = split(row)[0], _current(objects.get(place, {}))
        if generation > current:
            report.problem(f"{text_of(place)}: index row {key.hex()} belongs to a generation that has not begun")
        elif generation == current:
            indexed.setdefault(place, {})[key] = value
    for place, rows in indexed.items():
        stored = objects.get(place, {})
        current = _current(stored)
        own = {split(row)[1]: value for row, value in stored.items() if split(row)[0] == current}
        try:
            for flaw in indexes.flaws(keys.object_rows(*place) + deletion.prefix(current), rows, own):
                report.problem(f"{text_of(place)}: {flaw}")
        except StoreCorrupt as error:
            report.problem(f"{text_of(place)}: {error.message}")


def _current(rows: dict[bytes, bytes]) -> int:
    """The number of the current generation of an object with these rows."""
    packed = rows.get(deletion.ROW)
    return 0 if packed is None else deletion.unpack(packed).generation


def _standing(thread: Object) -> bytes:
    with suppress(StoreCorrupt):  # Its rows are reported.
        return standing_of(thread.rows)
    return b""


def _check_catalog(storage: Storage, there: set[_Named], truncated: set[int], report: Report) -> None:
    listed: set[_Named] = set()
    for key, _ in storage.scan(keys.CATALOG, successor(keys.CATALOG)):
        try:
            listed.add(keys.split_catalog(key))
        except ValueError:
            report.problem(f"catalog entry {key.hex()} names no object")
    for space, kind, name in sorted(listed ^ there):
        if (space, kind, name) in listed and partition_of(space, name) in truncated:
            continue  # It may exist without rows, as a counter whose adds sum to 0.
        what = "is listed and does not exist" if (space, kind, name) in listed else "exists and is not listed"
        report.problem(f"{kind.label} {name!r} of space {space!r} {what}")
    wanted = {keys.listed(partition_of(space, name), kind, space, name): b"" for space, kind, name in listed}
    stored = dict(storage.scan(keys.LISTED, successor(keys.LISTED)))
    for key in sorted(wanted.keys() | stored.keys()):
        if wanted.get(key) != stored.get(key):
            report.problem(f"row {key.hex()} in the list of a partition is missing, damaged, or of no object in the catalog")
