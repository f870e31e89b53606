"""When a node ships to the bucket of its cluster's backup, and how far that is.

Laws:
- The nodes take turns, which saves work and is not needed for safety. A node whose operations are not in the bucket after
  `LATE_S` ships out of turn.
- `covered_ms` is a moment at which this node held nothing that the bucket does not have by now.
- An encrypted node seals what it ships. Once it has destroyed the keys of a space, it ships bases without that space, and then
  destroys the keys in the bucket.
- Small packs are merged, and what is kept no longer goes, by the node that has the turn, beside its shipping.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal.backup.bucket import Bucket, ObjectStore
from shoal.backup.format import BASES, CLUSTERS, SEGMENTS, TIME_MS_END, VERIFIED, Packing
from shoal.backup.keeping import Stamp, merge, merge_rows, retire, time_of
from shoal.crdt.dot import HORIZON, VersionVector
from shoal.node.backup.restoring import earliest
from shoal.node.backup.shipping import SALT_BYTES, Held, Shipping, is_base_due
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.protocol.requests import BackupView
from shoal.records import NamedTuple
from shoal.storage.opening import encrypted

if TYPE_CHECKING:
    from shoal.node.backup.sealing import Sealer

LATE_S = 5.0  # A node ships out of its turn what it has held for so long.
TURN_MS = 60_000
SWEEP_S = 3600.0  # Between two sweeps of what no manifest names.
RETIRE_S = 600.0  # Between two looks at what is kept no longer,
BASES_LOOK_S = 60.0  # and at which partitions need a base for that,
BASES_AT_ONCE = 16  # so many at a time.
VERIFIED_LOOK_S = 300.0  # Between two looks for a verification,
UNVERIFIED_LOOK_S = 30.0  # or while there is none of the last days: somebody may wait to see it.
VERIFIED_OLD_MS = 7 * 86_400_000


class _Watched(NamedTuple):
    """The operations that this node held at a moment, and that were not in the bucket."""

    at_ms: int
    at: float
    lacking: Mapping[int, Held]


def rank(node: bytes, nodes: Iterable[bytes], now_ms: int) -> int:
    """The place of a node in the order of turns at this time: 0 has the turn."""
    window = (now_ms // TURN_MS).to_bytes(8, "big")

    def drawn(each: bytes) -> bytes:
        return blake2b(window + each, digest_size=16).digest()

    return sum(drawn(other) < drawn(node) for other in nodes if other != node)


class Shipper:
    """Ships to one bucket. `fellows` are the nodes that are linked."""

    def __init__(
        self,
        context: NodeContext,
        database: Database,
        store: ObjectStore,
        *,
        cluster: bytes,
        fellows: Callable[[], Collection[bytes]],
        keep_ms: int = 0,
    ) -> None:
        self._context = context
        self._database = database
        self._bucket = Bucket(store, cluster=cluster, now=context.environment.monotonic)
        self._fellows = fellows
        self.keep_ms = keep_ms
        """For how long moments are kept; 0: for ever."""
        self._partitions = context.partitions
        self._environment = context.environment
        self._node = context.incarnation.node
        self._loaded = False
        self._sealer: Sealer | None = None
        self._cleared: set[int] = set()  # Partitions that have a base without spaces that are erased.
        self._skipped: dict[int, str] = {}
        self._watched: _Watched | None = None
        self._begun_ms = context.environment.now_ms()
        self._covered_ms = 0
        self._is_covered = False
        self._shipped = self._shipped_bytes = 0
        self._verified_ms = self._declared_ms = 0
        self._verified_at = self._swept_at = self._retired_at = self._bases_at = float("-inf")
        self._lagless: dict[int, VersionVector] = {}  # By partition: what was durable when nothing lacked.

    async def look(self) -> None:
        """Ship what is due.

        Raises:
            ShoalError: the bucket or the storage cannot be read or written.
        """
        await self._bucket.refresh()
        if not self._loaded:
            self._partitions.load_all()
            self._loaded = True
        now_ms, now = self._environment.now_ms(), self._environment.monotonic()
        await self._unlock()
        lacking = self._lacking()
        await self._context.commit.wait_durable(self._context.commit.written)
        self._watch(lacking, now_ms, now)
        has_turn = rank(self._node, self._fellows(), now_ms) == 0
        is_late = self._watched is not None and now - self._watched.at >= LATE_S
        if has_turn:
            lacking = lacking | self._due(now, now_ms)
        ended = [] if self._sealer is None else self._sealer.ended()
        clearing = [] if self._sealer is None else self._sealer.partitions(ended)[:BASES_AT_ONCE]
        if (lacking and (has_turn or is_late)) or ended:
            lacking = lacking | {number: self._held(number) for number in clearing}
            await self._ship(lacking, now_ms, clearing)
            await self._clear(ended)
        if has_turn:
            await self._tidy(now)
        await self._look_for_verification(now)

    def told(self, view: BackupView) -> BackupView:
        """This view, with how far the backup is."""
        is_current = not view.trouble and self._is_covered and not self._lacking(look=True)
        since_ms = self._environment.now_ms() - (self._covered_ms or self._begun_ms)
        view = replace(
            view,
            state="current" if is_current else view.state,
            covered_ms=self._covered_ms,
            lag_ms=0 if is_current else max(1, since_ms),
            shipped=self._shipped,
            shipped_bytes=self._shipped_bytes,
            verified_ms=self._verified_ms,
            begun_ms=self._declared_ms,
            keep_ms=self.keep_ms,
            skipped=[f"partition {number}: {why}" for number, why in sorted(self._skipped.items())],
        )
        catalogue = self._bucket.catalogue
        if catalogue.head is None:
            return view
        return replace(
            view,
            manifest=catalogue.number,
            manifest_ms=catalogue.head.made_ms,
            bytes=catalogue.size,
            objects=len(catalogue.segments) + len(catalogue.packs),
            earliest_ms=earliest(catalogue),
        )

    async def _unlock(self) -> None:
        """If this node is encrypted: have its keys for the bucket, wrapped by the master key in force."""
        storage = encrypted(self._context.storage)
        if storage is None:
            return
        if self._sealer is None:
            from shoal.node.backup.sealing import sealer  # It loads the code of encryption.

            self._sealer = await sealer(self._bucket, storage, self._node, self._environment)
        elif self._sealer.is_stale:
            await self._sealer.store(self._bucket)

    async def _clear(self, ended: list[bytes]) -> None:
        """Destroy the keys of spaces that are erased, as far as no promised moment needs them."""
        if self._sealer is not None and ended:
            self._sealer.cleared(ended, self._cleared)
            self._cleared = set()
            await self._sealer.store(self._bucket)

    def _held(self, number: int) -> Held:
        partition = self._partitions.load(number)
        return Held(partition.vector, partition.retired.summary.horizon)

    async def _ship(self, lacking: Mapping[int, Held], now_ms: int, clearing: Collection[int] = ()) -> None:
        shipping = Shipping(
            *(self._context, self._database, self._bucket), keep_ms=self.keep_ms, sealer=self._sealer, cleared=clearing
        )
        try:
            is_all = await shipping.run(lacking, through_ms=now_ms)
        finally:
            self._shipped += shipping.operations
            self._shipped_bytes += shipping.bytes
            self._skipped = shipping.skipped
            self._cleared |= shipping.cleared
        if is_all:
            self._covered(now_ms)
            self._watched = None

    def _watch(self, lacking: Mapping[int, Held], now_ms: int, now: float) -> None:
        """Note what this node holds that is not in the bucket, until it is."""
        if not lacking:
            self._covered(now_ms)
            self._watched = None
            return
        if self._watched is not None:
            left = {n: held for n, held in self._watched.lacking.items() if self._lacks(n, held)}
            if left:
                self._watched = self._watched._replace(lacking=left)
                return
            self._covered(self._watched.at_ms)
        self._watched = _Watched(now_ms, now, lacking)

    def _covered(self, ms: int) -> None:
        self._covered_ms, self._is_covered = max(self._covered_ms, ms), True

    def _lacks(self, number: int, held: Held) -> bool:
        """Whether the bucket lacks something of what was held of a partition."""
        known = self._bucket.catalogue.vector(number)
        return bool(held.vector.missing(known)) or known[HORIZON] < held.horizon

    def _lacking(self, *, look: bool = False) -> dict[int, Held]:
        """The partitions of which the bucket lacks something that is held here. `look`: nothing is noted."""
        found: dict[int, Held] = {}
        for number, vector in self._partitions.vectors().items():
            if self._lagless.get(number) is vector:
                continue
            held = Held(vector, self._partitions.load(number).retired.summary.horizon)
            if self._lacks(number, held):
                found[number] = held
            elif not look:
                self._lagless[number] = vector
        return found

    def _due(self, now: float, now_ms: int) -> dict[int, Held]:
        """Partitions of which a base is due because moments are kept for a time, though nothing lacks; looked for rarely."""
        if not self.keep_ms or now - self._bases_at < BASES_LOOK_S:
            return {}
        self._bases_at = now
        catalogue, found = self._bucket.catalogue, dict[int, Held]()
        for number, vector in self._partitions.vectors().items():
            if is_base_due(catalogue, number, now_ms=now_ms, keep_ms=self.keep_ms) and len(found) < BASES_AT_ONCE:
                found[number] = Held(vector, self._partitions.load(number).retired.summary.horizon)
        return found

    async def _tidy(self, now: float) -> None:
        """Merge small packs; let go what is kept no longer, and sweep what is not named, now and then."""
        if self._bucket.catalogue.head is None:
            return
        stamp = Stamp(self._node, self._environment.now_ms())
        for merging, kind in ((merge, SEGMENTS), (merge_rows, BASES)):
            packing = partial(Packing, kind, self._environment.entropy(SALT_BYTES))  # And under which keys.
            await merging(self._bucket, stamp, packing=packing, pause=self._environment.pause)
        if self.keep_ms and now - self._retired_at >= RETIRE_S and not await retire(self._bucket, stamp, keep_ms=self.keep_ms):
            self._retired_at = now  # Nothing more goes now.
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            await self._bucket.sweep(await time_of(self._bucket, stamp.now_ms))

    async def _look_for_verification(self, now: float) -> None:
        """Read when the backup was last verified, now and then."""
        is_old = self._environment.now_ms() - self._verified_ms > VERIFIED_OLD_MS
        if now - self._verified_at >= (UNVERIFIED_LOOK_S if is_old else VERIFIED_LOOK_S):
            self._verified_at = now
            if not self._declared_ms:
                times = [found.modified_ms async for found in self._bucket.store.listed(CLUSTERS)]
                self._declared_ms = max(times, default=0)
            async for found in self._bucket.store.listed(VERIFIED):
                with suppress(ValueError):
                    verified_ms = int(found.name.removeprefix(VERIFIED))
                    if verified_ms < TIME_MS_END:
                        self._verified_ms = max(self._verified_ms, verified_ms)
