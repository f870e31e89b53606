"""Looks whether a directory that was set back as a whole is taken for what it was: invariant 19.

A node that heard what the directory held, and has run since, must not count it as an owner
before it has heard, on the link that stands, that the directory holds that again. What no
other disk holds is left out: it cannot come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.cluster.knowledge import is_retired
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging.ledger import Violated
from simulation.world.disk import tips_on

if TYPE_CHECKING:
    from simulation.world.host import SimulatedNode
    from simulation.world.incarnation import Incarnation

LOOK_S = 0.01  # In virtual time; a node fetches nothing in less.

Vectors = dict[int, VersionVector]

_NODE = keys.meta("node")


@dataclass
class _Fallen:
    host: SimulatedNode
    node: bytes
    known: list[tuple[SimulatedNode, Incarnation, Vectors]] = field(default_factory=list)  # What is lost, by who heard of it.


class Fallen:
    """The directories of a cluster that were set back."""

    def __init__(self) -> None:
        self._fallen: list[_Fallen] = []
        self._fell = asyncio.Event()

    def replaced(self) -> None:
        """A disk is gone for good: what was expected to come back may not."""
        self._fallen.clear()

    def fell(self, host: SimulatedNode, *, before: MemoryStorage, after: MemoryStorage) -> None:
        """The disk of `host` went back to `after`."""
        node = before.get(_NODE)
        if node is None or after.get(_NODE) != node:
            return  # It is another node's from now on.
        had, has = _vectors(before), _vectors(after)
        elsewhere = [_vectors(other.disk.copy()) for other in host.others]
        fallen = _Fallen(host, node)
        for other in host.others:
            if not other.up:
                continue
            lost: Vectors = {}
            for partition, vector in had.items():
                heard = other.peer.quorum.holdings(partition)[host.address].vector
                kept = NOTHING_SEEN
                for vectors in elsewhere:
                    kept = kept.join(vectors.get(partition, NOTHING_SEEN))
                left = {origin: min(sequence, heard[origin], kept[origin]) for origin, sequence in vector.items()}
                missing = VersionVector(left).missing(has.get(partition, NOTHING_SEEN))
                if missing:
                    lost[partition] = VersionVector({origin: left[origin] for origin in missing})
            if lost:
                fallen.known.append((other, other.life, lost))
        self._fallen.append(fallen)
        self._fell.set()

    async def keep_watch(self, violated: Violated) -> None:
        """Say which of them count too early, until cancelled."""
        while True:
            if not self._fallen:  # As in most runs, all the time.
                self._fell.clear()
                await self._fell.wait()
            await asyncio.sleep(LOOK_S)
            for fallen in list(self._fallen):
                for what in _counted(fallen):
                    violated("19", what)
                    self._fallen.remove(fallen)
                    break


def _counted(fallen: _Fallen) -> Iterator[str]:
    for other, life, lost in fallen.known:
        if other.life is not life or not other.up or not other.peer.quorum.counts(fallen.node):
            continue
        for partition, vector in lost.items():
            holding = other.peer.quorum.holdings(partition)[fallen.host.address]
            # A node counts a copy of its own operation later than it hears of it: once it holds the peer's deletions, and all
            # have told the ends of their past origins. So of these the disk itself is asked.
            heard = holding.vector.join(holding.whole or NOTHING_SEEN)
            own = other.node._incarnation.current
            if own is not None and heard[own] < vector.get(own, 0) and fallen.host.up:
                held = _vectors(fallen.host.disk.copy()).get(partition, NOTHING_SEEN)
                heard = heard.join(VersionVector({own: held[own]}))
            applied = other.node._database.vector_of(partition)  # What the peer has retired, it knew that all hold.
            vector = VersionVector((o, n) for o, n in vector.items() if not is_retired(applied, o, n))
            if not heard.dominates(vector):
                count = sum(map(len, vector.missing(heard).values()))
                yield (
                    f"{fallen.host.name} was set back, and {other.name} counts it as an owner before it holds {count} "
                    f"operations of partition {partition} that it once held"
                )


def _vectors(storage: MemoryStorage) -> Vectors:
    """What a disk holds."""
    found: dict[int, dict[Origin, int]] = {}
    for (partition, origin), tip in tips_on(storage).items():
        found.setdefault(partition, {})[origin] = tip.sequence
    return {partition: VersionVector(vector) for partition, vector in found.items()}
