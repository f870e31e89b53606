"""The queue of garbage costs nothing while it is empty, and a bounded look while it is not."""

from __future__ import annotations

from shoal.crdt.dot import Dot, Origin
from shoal.node.collection.garbage import LOOKED_AT_MAX
from shoal.storage import keys
from tests.node.conftest import Bench


async def test_a_look_takes_a_bounded_number_of_entries(bench: Bench) -> None:
    garbage = bench.node._database.garbage
    for sequence in range(1, LOOKED_AT_MAX + 10):
        bench.storage.write({keys.garbage(3, Dot(Origin(b"o" * 16), sequence), 0): b"altered"})
    assert len(list(garbage._entries())) == LOOKED_AT_MAX
    assert len(list(garbage._entries())) == 9


async def test_an_empty_queue_has_no_task(bench: Bench) -> None:
    await bench.space.counter("n").add(1)
    garbage = bench.node._database.garbage
    assert garbage._replicas is not None
    garbage.start(garbage._replicas)
    assert garbage._task is None
