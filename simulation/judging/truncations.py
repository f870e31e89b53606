"""Looks at each write that truncates a log, or lets a key expire: invariant 22.

Laws:
- An operation leaves a log only once it is durable on every node; on a majority, if it is too large or owners are
  forgotten.
- The rows that leave, and the base that says so, are one write.
- A key goes only once its window is over, and its node holds every operation that has it, unless nobody does.
- A partition that is replaced by a peer's snapshot is not truncated by that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.cluster.operation import Tip
from shoal.crdt.dot import Dot, Origin
from shoal.crdt.rows import successor
from shoal.node.retired import Retirement
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging.ledger import Ledger, Violated
from simulation.world.disk import tips_of

if TYPE_CHECKING:
    from simulation.world.host import SimulatedNode


class TruncationWatch:
    """The disk of one machine, seen by `ledger` as well. `needed`: on so many disks must be durable what leaves."""

    def __init__(self, host: SimulatedNode, ledger: Ledger, violated: Violated, *, needed: int) -> None:
        self._name = host.name
        self._now_ms = host.clock.now_ms
        self._window_ms = host.config.key_window_s * 1000
        self._ledger = ledger
        self._violated = violated
        self._needed = needed
        self._bases: defaultdict[tuple[int, Origin], int] = defaultdict(int)

    def mounted(self, storage: MemoryStorage, /) -> None:
        self._bases.clear()
        for table in (keys.BASE, keys.RETIRED):
            self._bases.update(base for row in storage.scan(table, successor(table)) if (base := _base(*row)) is not None)

    def replaced(self) -> None:
        """The next life begins with what is there."""

    def synced(self) -> None:
        """Nothing depends on it."""

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        replaced = {start[1:3] for start, _ in ranges if start[:1] == keys.VECTOR}  # By a peer's snapshot.
        for place in [place for place in self._bases if place[0].to_bytes(2, "big") in replaced]:
            del self._bases[place]
        for key, value in rows.items():
            if value is not None and (base := _base(key, value)) is not None:
                self._raised(*base)
        for key, value in rows.items():
            if value is not None or key[1:3] in replaced:
                continue
            if key[:1] == keys.LOG:
                self._left(*keys.split_log(key))
            elif key[:1] == keys.KEY:
                self._expired(int.from_bytes(key[1:3], "big"), key[3:].decode())

    def _raised(self, place: tuple[int, Origin], sequence: int) -> None:
        durable = sorted((shelf.durable.get(place, 0) for shelf in self._ledger.shelves.values()), reverse=True)
        if durable[self._needed - 1] < sequence:
            self._broken(place[0], f"operation {sequence} of {place[1].hex()[:8]} left the log, and is on too few disks")
        self._bases[place] = max(sequence, self._bases[place])

    def _left(self, partition: int, dot: Dot) -> None:
        if dot.sequence > self._bases[partition, dot.origin]:
            self._broken(partition, f"operation {dot.sequence} of {dot.origin.hex()[:8]} was deleted, and is above the base")

    def _expired(self, partition: int, key: str) -> None:
        shelves = self._ledger.shelves
        for dot in self._ledger.dots_of(partition, key):
            name, place = f"operation {dot.sequence} of {dot.origin.hex()[:8]}", (partition, dot.origin)
            # It may be lost with its disk, before anybody got it.
            is_lost = all(shelf.held.get(place, 0) < dot.sequence for shelf in shelves.values())
            if shelves[self._name].held.get(place, 0) < dot.sequence and not is_lost:
                self._broken(partition, f"key {key} expired before {name} came")
        ages = [self._now_ms() - self._ledger.bodies[partition, dot].wall_ms for dot in self._ledger.dots_of(partition, key)]
        if ages and max(ages) <= self._window_ms:
            self._broken(partition, f"key {key} expired at the age of {max(ages) / 1000:g} s")

    def _broken(self, partition: int, what: str) -> None:
        self._violated("22", f"{self._name}, partition {partition}: {what}")


def _base(key: bytes, value: bytes) -> tuple[tuple[int, Origin], int] | None:
    """The last operation of an origin that has left the log, if this row says it: one of a base, or of a retired origin."""
    place = int.from_bytes(key[1:3], "big"), Origin(key[3:])
    if key[:1] == keys.BASE:
        return place, Tip.unpack(value).sequence
    if place in tips_of([(key, value)]) and key[:1] == keys.RETIRED:
        found = Retirement.unpack(value)
        return None if found.is_logged else (place, found.sequence)
    return None
