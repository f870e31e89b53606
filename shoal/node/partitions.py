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

    __slots__ = ("context", "durable", "endings", "number", "tips", "vector", "written")

    def __init__(self, number: int, tips: dict[Origin, Tip]) -> None:
        self.number = number
        self.tips = tips
        self.vector = VersionVector({origin: tip.sequence for origin, tip in tips.items()})
        self.durable = self.vector  # What of it survives a crash, and so may be told to peers.
        self.endings = self.vector  # Covers every deletion that was applied; which those were is not known after a start.
        self.context = VersionVector()  # Of our own last operation here: what the next one's is coded against.
        self.written = 0  # Number of the last storage write that touched this partition.

    def tip(self, origin: Origin) -> Tip:
        return self.tips.get(origin, NO_TIP)

    def advance(self, dot: Dot, tip: Tip, *, written: int) -> None:
        """Take note of an applied operation."""
        self.vector = self.vector.advance(dot)
        self.tips[dot.origin] = tip
        self.written = written

    def adopt(self, vector: VersionVector, tips: dict[Origin, Tip], *, written: int) -> None:
        """Take note of several at once; `tips` are those that moved."""
        self.vector = vector
        self.tips.update(tips)
        self.written = written

    def ends(self, dot: Dot) -> None:
        """Take note of an operation that deletes."""
        self.endings = self.endings.join(VersionVector([dot]))

    def settle(self, dot: Dot) -> None:
        """An applied operation became durable."""
        self.durable = self.durable.advance(dot)


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

    def load_all(self) -> None:
        """Load every partition that holds anything."""
        start: bytes | None = keys.VECTOR
        while start is not None:
            row = next(iter(self._storage.scan(start, successor(keys.VECTOR), limit=1)), None)
            if row is None:
                return
            number = int.from_bytes(row[0][1:3], "big")
            self.load(number)
            start = successor(keys.vector(number))

    def vectors(self) -> dict[int, VersionVector]:
        """What was applied, durable or not, of the loaded partitions that hold anything."""
        return {number: partition.vector for number, partition in self._loaded.items() if partition.vector}

    def holding(self) -> list[int]:
        """The numbers of the loaded partitions that hold anything durable."""
        return [number for number, partition in self._loaded.items() if partition.durable]

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
