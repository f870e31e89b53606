"""What this replica has applied, per partition: the tip of every origin's log.

Law: a tip is read from storage once and kept in step with what is written, so that
`vector` always covers a contiguous prefix of every origin's log in storage.
"""

from __future__ import annotations

from shoal.cluster.operation import NO_TIP, Tip
from shoal.crdt.clock import HybridClock
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.interface import Storage


class Partition:
    """Mutable; one per partition of a node."""

    __slots__ = ("context", "number", "tips", "vector", "written")

    def __init__(self, number: int, tips: dict[Origin, Tip]) -> None:
        self.number = number
        self.tips = tips
        self.vector = VersionVector({origin: tip.sequence for origin, tip in tips.items()})
        self.context = VersionVector()  # Of our own last operation here: what the next one's is coded against.
        self.written = 0  # Number of the last storage write that touched this partition.

    def tip(self, origin: Origin) -> Tip:
        return self.tips.get(origin, NO_TIP)

    def advance(self, dot: Dot, tip: Tip, *, written: int) -> None:
        """Take note of an applied operation."""
        self.vector = self.vector.advance(dot)
        self.tips[dot.origin] = tip
        self.written = written


class Partitions:
    """All of them, loaded when first needed: at most `PARTITIONS`."""

    def __init__(self, storage: Storage, clock: HybridClock) -> None:
        self._storage = storage
        self._clock = clock
        self._loaded: dict[int, Partition] = {}

    def load(self, number: int) -> Partition:
        found = self._loaded.get(number)
        if found is None:
            found = self._loaded[number] = Partition(number, self._tips(number))
        return found

    def written(self, number: int) -> int:
        """Number of the write that a reader of this partition must wait for; 0 if there was none."""
        found = self._loaded.get(number)
        return 0 if found is None else found.written

    def _tips(self, number: int) -> dict[Origin, Tip]:
        prefix = keys.vector(number)
        tips = {Origin(key[len(prefix) :]): Tip.unpack(packed) for key, packed in self._storage.scan(prefix, successor(prefix))}
        for tip in tips.values():
            self._clock.observe(tip.hlc)
        return tips
