"""The queue of garbage costs nothing while it is empty, and a bounded look while it is not."""

from __future__ import annotations

import pytest

from shoal.crdt.dot import Dot, Origin
from shoal.node.collection.garbage import LOOKED_AT_MAX, RECLAIM_INTERVAL_S, RECLAIM_REST
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


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0, RECLAIM_INTERVAL_S), (0.25, 0.25 * RECLAIM_REST)])
async def test_space_is_given_back_rarely_where_it_takes_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, took_s: float, rest_s: float
) -> None:
    garbage, clock_s, reclaimed_s = bench.node._database.garbage, [1000.0], list[float]()

    def reclaim() -> None:
        clock_s[0] += took_s
        reclaimed_s.append(clock_s[0])

    monkeypatch.setattr(garbage, "_now", lambda: clock_s[0])
    monkeypatch.setattr(garbage._storage, "reclaim", reclaim)
    for later_s in (0.0, rest_s - 1, 1.0):
        clock_s[0] += later_s
        garbage._unreclaimed = True
        garbage._reclaim()
    assert [each - reclaimed_s[0] for each in reclaimed_s] == [0.0, pytest.approx(rest_s + took_s)]
