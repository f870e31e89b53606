"""Which origins wait before they are retired."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal.cluster.operation import Tip
from shoal.crdt.dot import HybridClock, Origin
from shoal.node.collection.retiring import Ripening
from shoal.node.partitions import Partition, Partitions
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered

SHORT, LONG = Origin(b"s" * 16), Origin(b"l" * 16)
ALONE: Any = SimpleNamespace(holdings=lambda _: {})


def partition() -> Partition:
    tips = {keys.vector(3, SHORT): Tip(1, 1, bytes(32), logged=10), keys.vector(3, LONG): Tip(1, 1, bytes(32), logged=5000)}
    return Partitions(MemoryStorage({key: tip.pack() for key, tip in tips.items()}), HybridClock()).load(3)


def test_an_origin_with_a_long_log_waits() -> None:
    with altered(retire_log_bytes_max=1000):
        ripening = Ripening(None)  # type: ignore[arg-type]
        assert ripening.ripe(partition(), [SHORT, LONG], ALONE) == {SHORT}


async def test_reads_wait_for_writes_not_yet_durable() -> None:
    waited: list[int] = []

    class Commit:
        async def wait_durable(self, number: int) -> None:
            waited.append(number)

    here = partition()
    here.written = 7
    await Ripening(Commit()).durable(here)  # type: ignore[arg-type]
    assert waited == [7]
