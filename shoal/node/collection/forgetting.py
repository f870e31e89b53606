"""Forgets what is left of retired origins, the rows of table `R`.

Laws:
- A row goes once it is older than `forget_after_s`, or if its partition has more than `retired_origins_max`, the oldest first.
- None goes before every owner holds all retirements that this node has applied, or while operations of its origin are in
  the log.
- With a row goes what the marks of peers in storage say of its origin (`shoal.storage.marks`).
- Each node forgets by itself, whether it retires origins of its own or only applies the retirements of others.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.stability import Holding
from shoal.config import Config
from shoal.crdt.dot import HORIZON
from shoal.node.partitions import Partition
from shoal.storage import keys, marks
from shoal.storage.interface import Storage

_PART = 8  # One in so many retired origins is forgotten at once; they may be older than `forget_after_s` by such a part of it.


class Forgetting:
    """The bounds of forgetting, as the configuration sets them."""

    def __init__(self, storage: Storage, config: Config) -> None:
        self._storage = storage
        self._forget_ms = int(config.forget_after_s * 1000)
        self._max = config.retired_origins_max

    def forget(self, partition: Partition, owners: Sequence[Holding], now_ms: int) -> dict[bytes, bytes | None]:
        """Forget the oldest retired origins of a partition. Returns the rows to be written at once.

        All rows of table `R` are read for that, so some are gathered first, or go ahead of time.
        """
        retired = partition.retired
        surplus = retired.summary.remembered - self._max
        if surplus <= 0 and retired.summary.oldest_ms >= now_ms - self._forget_ms - self._forget_ms // _PART:
            return {}
        if not all(owner.vector.dominates(retired.summary.floor) for owner in owners):
            return {}
        if surplus > 0:
            surplus += self._max // _PART
        rows = sorted(retired.all(), key=lambda row: row[1].time)
        old = [row for at, row in enumerate(rows) if at < surplus or row[1].wall_ms < now_ms - self._forget_ms]
        gone = {origin: row for origin, row in old if not row.is_logged}
        if not gone:
            return {}
        rest = [row.wall_ms for origin, row in rows if origin not in gone]
        summary = retired.summary.forgetting(list(gone.values()), min(rest, default=0))
        partition.forget(retired.after(summary, {}).written())
        forgotten: dict[bytes, bytes | None] = {keys.retired(partition.number, origin): None for origin in gone}
        forgotten.update(marks.without(self._storage, partition.number, gone.keys()))
        return {**forgotten, keys.retired(partition.number, HORIZON): summary.pack()}
