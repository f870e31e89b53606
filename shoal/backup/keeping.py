"""Lets go what a backup keeps no longer, and makes one large pack of many small ones.

Laws:
- A pack goes only if no restore to a moment from `since` on reads it, and `since` never goes back.
- Packs of operations are merged with those beside them, each operation in its place: a restore to any moment stays the same.
- What goes is named no more first. Its object is deleted a day later (`Bucket.sweep`), when restores that had begun are done.
- A clock that is ahead lets nothing go early: time is the node's, and at most an hour beyond the last manifest's in the bucket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from shoal.backup.bucket import Bucket
from shoal.backup.format import (
    MANIFESTS,
    Base,
    Catalogue,
    Entry,
    Manifest,
    Pack,
    Packing,
    Part,
    manifest_name,
    read_entries,
    uncovered,
    unpacked_vector,
)
from shoal.crdt.dot import COUNTER_BITS, VersionVector
from shoal.records import NamedTuple

AHEAD_MS_MAX = 3600 * 1000  # A node's clock counts so far beyond the time of the last manifest in the bucket.
LOOK_MAX = 256  # Packs of operations of which one pass reads the index, those with the oldest first.
MERGED_BYTES = 8 << 20  # Of a merged pack, about; and so much of what is merged is in memory.
MERGED_MIN, MERGED_MAX = 16, 64  # Packs of which one is made.
TIERS = (64 << 10, 512 << 10, 4 << 20)  # Bytes: packs below the first are merged with each other, then those below the second …

Pause = Callable[[], Awaitable[None]]


class Stamp(NamedTuple):
    """The writer of a manifest, and its time."""

    node: bytes
    now_ms: int


# ── moments that are kept no longer ───────────────────────────────────────────


def since_of(catalogue: Catalogue, *, now_ms: int, keep_ms: int) -> int:
    """The time from which on moments are kept; 0: all are."""
    return max(catalogue.since, (max(0, now_ms - keep_ms) << COUNTER_BITS) if keep_ms else 0)


def first_bases(catalogue: Catalogue, since: int) -> dict[int, Base]:
    """By partition: the base from which a restore to `since` begins. Later moments need nothing that it covers."""
    early = {number: [base for base in bases if base.hlc <= since] for number, bases in catalogue.bases.items()}
    return {number: bases[-1] for number, bases in early.items() if bases}


def idle_packs(catalogue: Catalogue, first: Mapping[int, Base]) -> list[str]:
    """The packs of rows that hold nothing but bases before the first that is needed."""
    needed: set[str] = set()
    for number, bases in catalogue.bases.items():
        begin = bases.index(first[number]) if number in first else 0
        needed.update(name for base in bases[begin:] for name, _ in base.pieces)
    return [name for name in catalogue.packs if name not in needed]


def is_idle(parts: Iterable[Part], vectors: Mapping[int, VersionVector]) -> bool:
    """Whether no restore reads these parts. `vectors`: of the first bases that are needed."""
    return all(part.partition in vectors and not uncovered(part, vectors[part.partition]) for part in parts)


async def time_of(bucket: Bucket, now_ms: int) -> int:
    """The time by which it is decided what goes.

    Raises:
        BackupUnreachable: the bucket cannot be read.
    """
    number = bucket.catalogue.number
    after = manifest_name(number - 1) if number > 1 else ""
    seen = [found.modified_ms async for found in bucket.store.listed(MANIFESTS, after)]
    return min(now_ms, max(seen, default=0) + AHEAD_MS_MAX)


async def retire(bucket: Bucket, stamp: Stamp, *, keep_ms: int) -> int:
    """Name those packs no more that only moments before `keep_ms` ago need. Returns how many.

    Raises:
        BackupUnreachable, BackupDamaged, BackupConflict: as `Bucket.commit`. Nothing is lost.
    """
    catalogue = bucket.catalogue
    since = since_of(catalogue, now_ms=await time_of(bucket, stamp.now_ms), keep_ms=keep_ms)
    first = first_bases(catalogue, since)
    vectors = {number: unpacked_vector(base.vector) for number, base in first.items()}
    gone = idle_packs(catalogue, first)
    old = [pack for pack in catalogue.segments.values() if pack.last_hlc <= since]
    for pack in old[:LOOK_MAX]:
        if is_idle(await bucket.index(pack), vectors):
            gone.append(pack.name)
    if not gone:
        return 0

    def made(now: Catalogue) -> Manifest | None:
        left = [name for name in gone if name in now.segments or name in now.packs]
        named = _next(bucket, now, stamp)
        return msgspec.structs.replace(named, gone=_at(left, stamp), since=max(now.since, since)) if left else None

    done = await bucket.commit(made)
    return 0 if done is None else len(gone)


# ── small packs ───────────────────────────────────────────────────────────────


def run_of(packs: Iterable[Pack]) -> list[Pack]:
    """Packs beside each other that are to become one; none: there are few. Those in the smallest tier come first.

    The result is at least twice as large as each of them, so that no operation is written again often.
    """
    every = list(packs)
    for tier in TIERS:
        some: list[Pack] = []
        for pack in [*every, None]:
            is_like = pack is not None and pack.size < tier and (not some or pack.sealed == some[0].sealed)
            if pack is not None and is_like and len(some) < MERGED_MAX and _size(some) < MERGED_BYTES:
                some.append(pack)
                continue
            if len(some) >= MERGED_MIN and _size(some) >= 2 * max(each.size for each in some):
                return some
            some = [pack] if pack is not None and pack.size < tier else []
    return []


async def merge(bucket: Bucket, stamp: Stamp, *, packing: Callable[[str], Packing], pause: Pause) -> int:
    """Make one pack of operations of many small ones, if there are many. Returns of how many.

    Raises:
        BackupUnreachable, BackupDamaged, BackupConflict: as `Bucket.commit`. Nothing is lost.
    """
    run = run_of(bucket.catalogue.segments.values())
    if not run:
        return 0
    made = packing(run[0].sealed)
    found: dict[int, list[tuple[Part, bytes]]] = {}
    for pack in run:
        parts, content = await bucket.whole(pack)
        for part in parts:
            found.setdefault(part.partition, []).append((part, content[part.start : part.start + part.size]))
    for number, each in sorted(found.items()):
        for entries in joined(each):
            made.add_operations(number, entries)
            await pause()
    names = [pack.name for pack in run]

    def replacing(pack: Pack, now: Catalogue) -> Manifest | None:
        order = list(now.segments)
        at = order.index(names[0]) if names[0] in now.segments else len(order)
        if order[at : at + len(names)] != names:
            return None  # Another node was faster.
        return msgspec.structs.replace(_next(bucket, now, stamp), segments=[pack], gone=_at(names, stamp))

    return await _replaced(bucket, made, stamp, replacing, len(run))


def joined(parts: Iterable[tuple[Part, bytes]]) -> list[list[Entry]]:
    """The operations of parts of one partition, in their order: in one list as long as none is missing between."""
    found: list[list[Entry]] = []
    ends: dict[bytes, int] = {}
    for part, content in parts:
        if not found or any(ends.get(origin, first - 1) + 1 != first for origin, first, _ in part.spans):
            found.append([])
            ends = {}
        found[-1] += read_entries(content, "a pack")
        ends.update({origin: last for origin, _, last in part.spans})
    return found


async def merge_rows(bucket: Bucket, stamp: Stamp, *, packing: Callable[[str], Packing], pause: Pause) -> int:
    """As `merge`, of packs of rows: their parts stay as they are.

    Raises:
        BackupUnreachable, BackupDamaged, BackupConflict: as `Bucket.commit`. Nothing is lost.
    """
    run = run_of(bucket.catalogue.packs.values())
    if not run:
        return 0
    made = packing(run[0].sealed)
    places: dict[str, int] = {}  # Where the parts of a pack begin in the new one.
    for pack in run:
        parts, content = await bucket.whole(pack)
        places[pack.name] = len(made.parts)
        for part in parts:
            made.add_part(part, content[part.start : part.start + part.size])
        await pause()

    def replacing(pack: Pack, now: Catalogue) -> Manifest | None:
        if not all(name in now.packs for name in places):
            return None  # Another node was faster, or some are not needed any more.
        moved = [
            msgspec.structs.replace(
                base, pieces=[(pack.name, places[name] + nth) if name in places else (name, nth) for name, nth in base.pieces]
            )
            for bases in now.bases.values()
            for base in bases
            if any(name in places for name, _ in base.pieces)
        ]
        named = _next(bucket, now, stamp)
        return msgspec.structs.replace(named, packs=[pack], bases=moved, gone=_at(places, stamp))

    return await _replaced(bucket, made, stamp, replacing, len(run))


async def _replaced(
    bucket: Bucket,
    packing: Packing,
    stamp: Stamp,
    replacing: Callable[[Pack, Catalogue], Manifest | None],
    count: int,
) -> int:
    pack, content = packing.finish(made_ms=stamp.now_ms)
    await bucket.put(pack, content)
    done = await bucket.commit(lambda now: replacing(pack, now))
    return 0 if done is None else count


def _next(bucket: Bucket, now: Catalogue, stamp: Stamp) -> Manifest:
    through_ms = 0 if now.head is None else now.head.through_ms
    return bucket.next(node=stamp.node, made_ms=stamp.now_ms, through_ms=through_ms)


def _at(names: Iterable[str], stamp: Stamp) -> list[tuple[str, int]]:
    return [(name, stamp.now_ms) for name in names]


def _size(packs: Iterable[Pack]) -> int:
    return sum(pack.size for pack in packs)
