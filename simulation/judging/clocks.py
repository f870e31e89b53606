"""Looks whether a node that could know that its clock is wrong issues its time all the same: invariant 21.

Laws:
- A node could know once a majority of all members, whose clocks are right since, were linked with it in both
  directions for so long that each has told it the time, on a network that loses nothing. The members are those of the
  epoch in which the node is: of two that differ, neither can know.
- What was told counts for the node's whole life, and for theirs, until one of their clocks is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.cluster import operation
from shoal.cluster.operation import LogEntry
from shoal.crdt.dot import Dot
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging.ledger import Violated

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

LOOK_S = 0.1  # In virtual time.
RIGHT_MS = 500
"""A clock that is no further from the truth is right."""
_SLACK_MS = 1000  # For round trips, and for drifting clocks between two comparisons.


class ClockWatch:
    """Watches all disks of a cluster for operations; `keep_watch` follows the links."""

    def __init__(self, cluster: SimulatedCluster, violated: Violated) -> None:
        self._cluster = cluster
        self._violated = violated
        self._seen: set[tuple[int, Dot]] = set()
        self._linked: dict[tuple[str, str], tuple[tuple[int, int], float]] = {}  # In which lives, and so long, without a break.
        self._told: dict[tuple[str, str], tuple[int, int]] = {}  # Node and its peer → the lives in which this was so.
        for host in cluster.hosts.values():
            host.disk.watchers.append(_Disk(host, self))

    async def keep_watch(self) -> None:
        """Follow which nodes were told the time by which, until cancelled."""
        config = self._cluster.config
        enough_s = 3 * config.clock_interval_s + config.peer_heartbeat_s
        while True:
            for host in self._cluster.hosts.values():
                for peer in self._cluster.hosts.values():
                    if host is not peer:
                        self._follow(host, peer, enough_s)
            await asyncio.sleep(LOOK_S)

    def _follow(self, host: SimulatedNode, peer: SimulatedNode, enough_s: float) -> None:
        pair = host.name, peer.name
        if not is_right(peer):
            self._told.pop(pair, None)
        is_calm = host.up and peer.up and is_right(peer) and self._cluster.is_calm(*pair)
        lives = host.life.number, peer.life.number
        then, linked_s = self._linked.get(pair, (lives, 0.0))
        linked_s = linked_s + LOOK_S if is_calm and then == lives else 0.0
        self._linked[pair] = lives, linked_s
        if linked_s >= enough_s:
            self._told[pair] = lives
        elif self._told.get(pair, lives) != lives:
            self._told.pop(pair, None)

    def issued(self, host: SimulatedNode, partition: int, dot: Dot, entry: LogEntry) -> None:
        """An operation was written. The first time it is written anywhere, it was issued there."""
        if (partition, dot) in self._seen:
            return
        self._seen.add((partition, dot))
        off_ms = abs(operation.decode(entry.packed).wall_ms - host.clock.true_ms())
        if off_ms <= self._cluster.config.clock_skew_max_ms + _SLACK_MS:
            return
        told = [peer for (node, peer), then in self._told.items() if node == host.name and self._counts(host, peer, then)]
        if told and len(told) > host.peer.quorum.members.size // 2:
            self._violated(
                "21",
                f"{host.name} issues an operation {off_ms / 1000:,.1f} s from the true time, which {', '.join(told)} told it",
            )

    def _counts(self, host: SimulatedNode, name: str, lives: tuple[int, int]) -> bool:
        """Whether what was told in these lives shows a node what time it is."""
        peer = self._cluster.hosts[name]
        is_owner = any(owner.address == peer.address for owner in host.peer.quorum.members.owners)
        return is_owner and lives == (host.life.number, peer.life.number) and is_right(peer)


def is_right(host: SimulatedNode) -> bool:
    """Whether a machine shows about the true time."""
    return abs(host.clock.now_ms() - host.clock.true_ms()) <= RIGHT_MS


class _Disk:
    """See `Watcher`."""

    def __init__(self, host: SimulatedNode, watch: ClockWatch) -> None:
        self._host = host
        self._watch = watch

    def mounted(self, storage: MemoryStorage, /) -> None:
        """A life begins."""

    def replaced(self) -> None:
        """Another disk is in its place."""

    def synced(self) -> None:
        """Nothing depends on it."""

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        for key, value in rows.items():
            if value is not None and key[:1] == keys.LOG:
                self._watch.issued(self._host, *keys.split_log(key), LogEntry.unpack(value))
