"""Updates that wait for others: when they are due, and how many are held."""

from __future__ import annotations

from shoal.api.yjs.room import UPDATE_OVERHEAD_BYTES, EarlyUpdates

SIZE = 10
EACH = SIZE + UPDATE_OVERHEAD_BYTES


def test_an_update_is_due_at_its_clock() -> None:
    held: EarlyUpdates[str] = EarlyUpdates(bytes_max=10 * EACH)
    for name, client, clock in (("a", 1, 5), ("b", 1, 7), ("c", 2, 5)):
        assert held.hold(name, SIZE, client=client, clock=clock)
    assert held.take({1: 4, 3: 9}) == []
    assert held.take({1: 5}) == ["a"]
    assert held.take({1: 9}) == ["b"]
    assert held.take({2: 6}) == ["c"]
    assert not held


def test_beyond_the_bound_no_update_is_held() -> None:
    held: EarlyUpdates[str] = EarlyUpdates(bytes_max=2 * EACH)
    assert [held.hold(name, SIZE, client=1, clock=1) for name in "abc"] == [True, True, False]
    assert held.take({1: 1}) == ["a", "b"]
    assert held.hold("c", SIZE, client=1, clock=1)
