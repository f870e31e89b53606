"""Which origins of a partition may be retired now: the two steps of `shoal.cluster.stability`, from look to look.

Laws:
- Of its own operations this node counts the durable ones alone.
- An origin of which much is still in the log waits: until it has left it, it counts against `log_bytes_max`.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cluster import stability
from shoal.cluster.stability import Holding, Step
from shoal.config import Config
from shoal.crdt.dot import Dot, Origin
from shoal.node.partitions import Partition
from shoal.node.replicas import Replicas
from shoal.storage.commit import GroupCommit

_LOOKS = 64  # In the window of keys.


def look_again_ms(config: Config) -> int:
    """How long an origin waits, some of whose adds to maps cannot be merged because their keys are remembered still."""
    return config.key_window_s * 1000 // _LOOKS


class Ripening:
    """Remembers, by partition, the origins that wait for the second step."""

    def __init__(self, commit: GroupCommit, *, config: Config) -> None:
        self._commit = commit
        self._log_bytes_max = config.retire_log_bytes_max
        self._steps: dict[int, Step] = {}

    async def durable(self, partition: Partition) -> None:
        """Return once this node holds durably what it had applied of a partition."""
        await self._commit.wait_durable(partition.written)

    def ripe(self, partition: Partition, found: Iterable[Origin], replicas: Replicas) -> set[Origin]:
        """Those of these origins that may be retired now; call `durable` before."""
        short = [origin for origin in found if self._is_short(partition, origin)]
        ends = [Dot(origin, partition.tip(origin).sequence) for origin in sorted(short)]
        own = Holding(partition.vector, partition.vector)
        owners = [own, *replicas.holdings(partition.number).values()]
        step = stability.advanced_step(self._steps.get(partition.number, Step()), ends, owners)
        self._steps[partition.number] = step
        return {end.origin for end in step.ends} if stability.may_retire(step, owners) else set()

    def done(self, number: int) -> None:
        """Those that were ripe in a partition are retired."""
        self._steps.pop(number, None)

    def clear(self) -> None:
        """Begin again with the first step everywhere."""
        self._steps.clear()

    def _is_short(self, partition: Partition, origin: Origin) -> bool:
        base = partition.bases.get(origin)
        return partition.tip(origin).logged - (0 if base is None else base.logged) <= self._log_bytes_max
