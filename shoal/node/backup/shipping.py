"""Ships what a node holds to the bucket of its cluster's backup, while writes go on.

Laws:
- Only what is durable here is shipped. What is in the bucket is in it whole: the vector of a manifest grows by a pack once the
  bucket has the pack, and each pack continues where the vector ends.
- Operations that have left the log before they were shipped are shipped as a base: rows of the partition, at one moment, of a
  node that holds everything that the bucket has of it. The base says from when on moments are lost by that.
- Of chunks that idle threads have in another bucket, a base has the bytes, which do not come back here for that. A partition
  of which they cannot be had is skipped, and told.
- Nobody waits for a bucket: a node ships beside its work, within bounds of memory, bytes a second and time on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal.backup.bucket import ORPHANS_KEEP_MS, Bucket
from shoal.backup.format import (
    BASES,
    ERASED,
    SEGMENTS,
    Base,
    Catalogue,
    Entry,
    Manifest,
    Pack,
    Packing,
    Reached,
    encode,
    gap,
)
from shoal.cluster.messages import Range, Shipment
from shoal.crdt.dot import HORIZON, Origin, VersionVector
from shoal.errors import BackupUnreachable, Cold, StoreCorrupt
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.partitions import Partition
from shoal.node.snapshots.exchange import read_piece
from shoal.records import NamedTuple
from shoal.storage import cold

if TYPE_CHECKING:
    from shoal.node.backup.sealing import Sealer

PACK_BYTES = 8 << 20  # Of one pack, about; and the memory that shipping takes, twice.
FIRST_OPERATIONS_MAX = 512  # A partition with more of them, of which the bucket has nothing, begins with a base.
BYTES_S_MAX = 32 << 20  # That are put, on average.
STEP_OPERATIONS = 64  # Read in one step,
STEP_BYTES = 128 << 10  # or so many bytes.
PARTITIONS_AT_ONCE = 16  # In one step, if each has few.
BASE_AFTER_BYTES = 256 << 10  # A base is made once the operations since the last one take so much more than half of it,
BASE_EVERY_MS = 10 * 60 * 1000  # at most so often for each partition.
SALT_BYTES = 16  # Of a pack, so that none has the name of one that is swept meanwhile.
NAMED_WITHIN_MS = ORPHANS_KEEP_MS // 2  # After the first pack of a load was put.
_RESTS = 4  # After a step, so many times as long as it took, while requests wait for the disk.
_REST_S_MAX = 0.1


class Held(NamedTuple):
    """The operations that this node held of a partition at one moment."""

    vector: VersionVector
    horizon: int  # The time of the last retirement.


@dataclass(slots=True)
class Load:
    """The content of packs that no manifest names yet. Mutable."""

    segments: list[Pack] = field(default_factory=list)
    packs: list[Pack] = field(default_factory=list)
    bases: list[Base] = field(default_factory=list)
    origins: dict[int, dict[bytes, tuple[int, int]]] = field(
        default_factory=dict
    )  # By partition and origin: sequence and time.
    sizes: dict[int, int] = field(default_factory=dict)  # By partition: the bytes of its operations here.
    complete: dict[int, Held] = field(default_factory=dict)  # Partitions of which nothing that was held is left out.

    def __bool__(self) -> bool:
        return bool(self.segments or self.bases)


class Shipping:
    """One pass: what this node holds, and the bucket lacks."""

    def __init__(
        self,
        context: NodeContext,
        database: Database,
        bucket: Bucket,
        *,
        keep_ms: int = 0,
        sealer: Sealer | None = None,
        cleared: Collection[int] = (),
    ) -> None:
        """`keep_ms`: for how long moments are kept; 0: for ever. `sealer`: this node is encrypted. `cleared`: partitions that
        get a base; their moments before it are not promised any more.
        """
        self._sealer = sealer
        self._clearing = cleared
        self.cleared: set[int] = set()
        """Those that have it."""
        self._context = context
        self._keep_ms = keep_ms
        self._partitions = context.partitions
        self._commit = context.commit
        self._environment = context.environment
        self._outgoing = database.exchange.outgoing
        self._chunks = database.chunks
        self._bucket = bucket
        self._node = context.incarnation.node
        self._load = Load()
        self._rows = self._packing(BASES)
        self._began_ms = self._environment.now_ms()
        self._entries: dict[int, list[Entry]] = {}
        self._waiting = 0  # Bytes of `_entries`.
        self._since_rest = 0  # Operations that were read,
        self._rested = self._environment.monotonic()  # and when that was.
        self.operations = self.bytes = 0
        """Those that were put."""
        self.skipped: dict[int, str] = {}
        """Partitions that could not be shipped now, and why."""

    async def run(self, lacking: Mapping[int, Held], *, through_ms: int) -> bool:
        """Ship what is lacking of these partitions: what they held at `through_ms`, which is durable.

        Returns whether all of it is in the bucket now.

        Raises:
            BackupUnreachable, BackupDamaged, BackupConflict: as `Bucket.commit`. What was named stays.
            StorageError: storage cannot be read.
        """
        for number, held in sorted(lacking.items()):
            partition = self._partitions.load(number)
            if partition.closed:
                self.skipped[number] = "it is being replaced by a peer's snapshot"
                continue
            await self._ship(partition, held)
        await self._flush()
        await self._commit_load(0 if self.skipped else through_ms)
        return not self.skipped

    async def _ship(self, partition: Partition, held: Held) -> None:
        ranges = self._ranges(partition, held.vector)
        is_whole = ranges is not None and not self._outgoing.truncated(ranges)
        lacking = sum(last - first + 1 for _, _, first, last in ranges or ())
        # To be read as operations, chunks that are away would have to come back.
        is_first = not self._known(partition.number) and (lacking > FIRST_OPERATIONS_MAX or self._is_away(partition.number))
        if not is_whole or is_first:
            await self._ship_base(partition, with_operations=False)
            return
        await self._ship_operations(partition, held)
        now_ms, size = self._environment.now_ms(), self._load.sizes.get(partition.number, 0)
        is_due = is_base_due(self._bucket.catalogue, partition.number, size, now_ms=now_ms, keep_ms=self._keep_ms)
        if (is_due or partition.number in self._clearing) and self._dominates(partition):
            await self._ship_base(partition, with_operations=True)

    def _is_away(self, number: int) -> bool:
        """Whether chunks of a partition are in an object store."""
        return bool(cold.objects(self._context.storage.raw, number))

    def _packing(self, kind: str) -> Packing:
        return Packing(kind, self._environment.entropy(SALT_BYTES), "" if self._sealer is None else self._sealer.name)

    def _known(self, number: int) -> VersionVector:
        """The operations of a partition that are in the bucket, or in packs that are about to be named."""
        known = self._bucket.catalogue.vector(number)
        put = self._load.origins.get(number)
        return known if put is None else known.join(VersionVector((Origin(o), sequence) for o, (sequence, _) in put.items()))

    # ── operations ────────────────────────────────────────────────────────────

    def _ranges(self, partition: Partition, held: VersionVector) -> list[Range] | None:
        """The operations that the bucket lacks; None: some may be of origins that are forgotten here."""
        known = self._known(partition.number)
        retired = partition.retired.lacking(known)
        if retired is None:
            return None
        ranges = [(origin, known[origin] + 1, found.sequence) for origin, found in retired]
        ranges += [(origin, lacking.start, lacking.stop - 1) for origin, lacking in held.missing(known).items()]
        return [(partition.number, origin, first, last) for origin, first, last in sorted(ranges) if first <= last]

    async def _ship_operations(self, partition: Partition, held: Held) -> None:
        number = partition.number
        ranges = self._ranges(partition, held.vector) or []
        while ranges:
            try:
                read = self._outgoing.read(ranges, _size, _same, bytes_max=STEP_BYTES, most=STEP_OPERATIONS)
            except StoreCorrupt as error:
                if not self._is_away(number):
                    raise
                self.skipped[number] = error.message  # It is being fetched.
                return
            if not read:
                self.skipped[number] = "some of its operations cannot be read, or left the log meanwhile"
                return
            for hlc, shipment in read:
                self._add(hlc, shipment)
            ranges = _after(ranges, (shipment for _, shipment in read))
            self._since_rest += len(read) + STEP_OPERATIONS // PARTITIONS_AT_ONCE  # A partition costs something by itself.
            if self._since_rest >= STEP_OPERATIONS:
                await self._rest(self._rested)
            if self._waiting >= PACK_BYTES:
                await self._flush()
                await self._commit_load(0)
        self._load.complete[number] = held

    def _add(self, hlc: int, shipment: Shipment) -> None:
        number, origin = shipment.partition, shipment.origin
        content = encode((shipment.packed, shipment.attached))
        if self._sealer is not None:
            content = self._sealer.operation(shipment, content)
        self._entries.setdefault(number, []).append(Entry(origin, shipment.sequence, hlc, shipment.chain, content))
        self._waiting += len(content)
        self._load.origins.setdefault(number, {})[origin] = shipment.sequence, hlc
        self._load.sizes[number] = self._load.sizes.get(number, 0) + len(content)

    # ── bases ─────────────────────────────────────────────────────────────────

    def _dominates(self, partition: Partition) -> bool:
        """Whether this node holds everything that the bucket has of a partition."""
        vector = self._bucket.catalogue.vector(partition.number)
        return all(partition.vector.bound(origin) >= sequence for origin, sequence in vector.items() if origin != HORIZON)

    async def _ship_base(self, partition: Partition, *, with_operations: bool) -> None:
        """Ship the rows of a partition as they are now; `with_operations`: and what made them, so that no moment is lost."""
        number = partition.number
        if not self._dominates(partition):
            self.skipped[number] = "operations have left its log, and this node lacks others that the bucket has"
            return
        shown, tips, horizon = partition.shown, dict(partition.tips), partition.retired.summary.horizon
        before = self._known(number)[HORIZON]  # The bucket has all of the origins that were retired by then.
        past = {origin: found.sequence for origin, found in partition.retired.all() if found.time > before}
        rows = self._context.storage.raw.snapshot()
        hlc = max((tip.hlc for tip in tips.values()), default=0)
        pieces: list[tuple[str, int]] = []
        size, start = 0, b""
        try:
            await self._commit.wait_durable(self._commit.written)
            if with_operations:
                await self._ship_operations(partition, Held(shown, horizon))
            while True:
                began = self._environment.monotonic()
                piece, start = read_piece(rows, number, start)
                try:
                    found = await self._chunks.filled(piece)
                except (Cold, StoreCorrupt) as error:
                    self.skipped[number] = error.message
                    return
                size += sum(len(key) + len(value) for key, value in found)
                sealed = found if self._sealer is None else self._sealer.rows(number, len(pieces), hlc, found)
                pieces.append(("", self._rows.add_rows(number, sealed)))
                if not start:
                    break
                if self._rows.size >= 2 * PACK_BYTES:
                    pieces = await self._named(pieces)
                await self._rest(began)
        finally:
            rows.close()
        lost = gap(self._ends(number), {**past, **{origin: tip.sequence for origin, tip in tips.items()}})
        base = Base(number, hlc, shown.pack(), pieces, size, lacks_from=hlc if lost is None else lost)
        if number in self._clearing:
            base = replace(base, lacks_from=ERASED)
        self._load.bases.append(base)
        self._load.origins[number] = {origin: (tip.sequence, tip.hlc) for origin, tip in tips.items()}
        if horizon:
            self._load.origins[number][HORIZON] = horizon, 0
        if self._rows.size >= PACK_BYTES or self._load.packs:
            await self._flush()
            await self._commit_load(0)

    def _ends(self, number: int) -> Reached | None:
        """As `_known`, with the times of the operations; None: there are none."""
        before, put = self._bucket.catalogue.reached.get(number), self._load.origins.get(number, {})
        known = {} if before is None else {origin: (sequence, hlc) for origin, sequence, hlc in before.origins}
        known.update(put)
        return Reached(number, [(o, *end) for o, end in known.items()], 0) if known else None

    async def _named(self, pieces: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Put the pack of rows in the making. Its pieces have a name then."""
        packing, self._rows = self._rows, self._packing(BASES)
        pack, content = packing.finish(made_ms=self._environment.now_ms())
        self._load.bases = [replace(base, pieces=_with_name(base.pieces, pack.name)) for base in self._load.bases]
        await self._put(pack, content)
        self._load.packs.append(pack)
        return _with_name(pieces, pack.name)

    # ── packs and manifests ───────────────────────────────────────────────────

    async def _flush(self) -> None:
        """Put what waits. Nothing is named yet."""
        if self._rows.parts:
            await self._named([])
        if self._entries:
            packing = self._packing(SEGMENTS)
            for number, entries in sorted(self._entries.items()):
                packing.add_operations(number, entries)
                await self._environment.pause()
            self._entries, self._waiting = {}, 0
            pack, content = packing.finish(made_ms=self._environment.now_ms())
            await self._put(pack, content)
            self._load.segments.append(pack)

    async def _put(self, pack: Pack, content: bytes) -> None:
        began = self._environment.monotonic()
        if self._sealer is not None:
            await self._sealer.store(self._bucket)
        await self._bucket.put(pack, content)
        self.bytes += pack.size
        left_s = pack.size / BYTES_S_MAX - (self._environment.monotonic() - began)
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def _commit_load(self, through_ms: int) -> None:
        """Name what was put. Nothing waits to be put, but for rows of a base that is not whole."""
        load = self._load
        if not load:
            return
        if await self._bucket.commit(lambda catalogue: self._manifest(catalogue, load, through_ms)) is None:
            raise BackupUnreachable(
                f"other nodes were always faster to ship to {self._bucket.store.url}. Nothing that is stored here is lost; it "
                "is tried again."
            )
        self.operations += sum(pack.operations for pack in load.segments)
        last = {number: bases[-1] for number, bases in self._bucket.catalogue.bases.items() if bases}
        new = (number for base in load.bases if (number := base.partition) in self._clearing)
        self.cleared.update(number for number in new if last[number].lacks_from == ERASED)
        self._load = Load()
        self._began_ms = self._environment.now_ms()

    def _manifest(self, catalogue: Catalogue, load: Load, through_ms: int) -> Manifest | None:
        """The manifest of a load, after those of other nodes.

        Raises:
            BackupUnreachable: what was put may have been swept by now.
        """
        if self._environment.now_ms() - self._began_ms > NAMED_WITHIN_MS:
            raise BackupUnreachable(
                f"shipping to {self._bucket.store.url} took too long, and begins anew. Nothing that is stored here is lost."
            )
        head = catalogue.head
        through_ms = max(through_ms, 0 if head is None else head.through_ms)
        made = self._bucket.next(node=self._node, made_ms=self._environment.now_ms(), through_ms=through_ms)
        bases = [base for base in load.bases if _covers(base, catalogue)]
        left_out = {base.partition for base in load.bases} - {base.partition for base in bases}
        reached = [
            self._reached(number, origins, load, catalogue, is_base=number in {base.partition for base in bases})
            for number, origins in sorted(load.origins.items())
            if number not in left_out
        ]
        named = {name for base in bases for name, _ in base.pieces}
        packs = [pack for pack in load.packs if pack.name in named]
        return replace(made, segments=load.segments, packs=packs, bases=bases, reached=reached)

    def _reached(
        self, number: int, origins: dict[bytes, tuple[int, int]], load: Load, catalogue: Catalogue, *, is_base: bool
    ) -> Reached:
        before = catalogue.reached.get(number)
        known = {} if before is None else {origin: (sequence, hlc) for origin, sequence, hlc in before.origins}
        if is_base:
            return Reached(number, [(o, *end) for o, end in sorted(origins.items())], 0)
        merged = dict(known)
        for origin, end in origins.items():
            merged[origin] = max(end, known.get(origin, (0, 0)))
        held = load.complete.get(number)
        if held is not None and held.horizon and _holds(held.vector, known):
            # All that the bucket has is held here: origins that were retired are covered by the time of that.
            merged = {origin: end for origin, end in merged.items() if Origin(origin) in held.vector}
            merged[HORIZON] = held.horizon, 0
        since = (0 if before is None else before.since) + load.sizes.get(number, 0)
        return Reached(number, [(o, *end) for o, end in sorted(merged.items())], since)

    async def _rest(self, began: float) -> None:
        """Let others go first."""
        took_s = self._environment.monotonic() - began
        self._since_rest = 0
        if self._commit.is_awaited and took_s > 0:
            await asyncio.sleep(min(_RESTS * took_s, _REST_S_MAX))
        else:
            await self._environment.pause()
        self._rested = self._environment.monotonic()


def is_base_due(catalogue: Catalogue, number: int, size: int = 0, *, now_ms: int, keep_ms: int) -> bool:
    """Whether the operations after the last base of a partition, `size` of which are not named yet, would take long to restore.

    If moments are kept for a time, a base is also due after half of it: the operations before it can go in the end.
    """
    bases = catalogue.bases.get(number, [])
    reached = catalogue.reached.get(number)
    since = size + (0 if reached is None else reached.since)
    if since and keep_ms:
        begun = [pack.first_ms for pack in catalogue.segments.values()][:1]
        if (wall_of(bases[-1]) if bases else min(begun, default=now_ms)) + keep_ms // 2 <= now_ms:
            return True
    is_old = not bases or wall_of(bases[-1]) + BASE_EVERY_MS <= now_ms
    return is_old and since > (bases[-1].size // 2 if bases else 0) + BASE_AFTER_BYTES


def wall_of(base: Base) -> int:
    """When the last operation in a base was issued, in milliseconds since 1970."""
    return base.hlc >> 16


def _holds(vector: VersionVector, known: dict[bytes, tuple[int, int]]) -> bool:
    return all(vector.bound(Origin(origin)) >= sequence for origin, (sequence, _) in known.items() if origin != HORIZON)


def _covers(base: Base, catalogue: Catalogue) -> bool:
    """Whether a base holds everything that is in the backup of its partition by now."""
    reached = catalogue.reached.get(base.partition)
    vector = VersionVector.unpack(base.vector)
    horizon = vector[HORIZON]
    return reached is None or all(
        vector[Origin(origin)] >= sequence or (origin != HORIZON and 0 < hlc < horizon)
        for origin, sequence, hlc in reached.origins
    )


def _with_name(pieces: list[tuple[str, int]], name: str) -> list[tuple[str, int]]:
    return [(known or name, nth) for known, nth in pieces]


def _after(ranges: list[Range], read: Iterable[Shipment]) -> list[Range]:
    """The rest of these ranges."""
    last = {shipment.origin: shipment.sequence for shipment in read}
    left = ((number, origin, last.get(origin, first - 1) + 1, stop) for number, origin, first, stop in ranges)
    return [(number, origin, first, stop) for number, origin, first, stop in left if first <= stop]


def _size(shipment: Shipment) -> int:
    return len(shipment.packed) + len(shipment.attached)


def _same(shipment: Shipment) -> Shipment:
    return shipment
