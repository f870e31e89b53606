"""What a disk holds is counted as quotas count it, told without delay, and remembered within bounds."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from shoal.kinds import Kind
from shoal.node.spaces import growth
from shoal.node.spaces.growth import leaving
from shoal.node.spaces.usage import Count, counted, prefix_of
from shoal.node.turns import at_once
from shoal.protocol.requests import UsageView
from shoal.storage import keys
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


async def filled(bench: Bench) -> None:
    for name in ("ticket-1", "ticket-2", "crawl/1", "plain"):
        await bench.space.thread(name).save({"text": "x" * 100 * len(name)})
    await bench.space.counter("tokens").add(1)
    await bench.store.space("other").register("choice").set("y" * 5000)


async def usage(bench: Bench, **fields: Any) -> UsageView:
    """The answer, with a count that is not older than the call."""
    bench.simulated.now_ms += int(growth.CENSUS_REST_S * 1000)
    await bench.store.usage()
    while (found := await bench.store.usage(**fields)).is_counting:
        await asyncio.sleep(0)
    return found


async def test_spaces_are_counted_as_quotas_count_them(bench: Bench) -> None:
    await filled(bench)
    found = await usage(bench)
    sizes = {space.name: (space.bytes, space.objects) for space in found.spaces}
    for name in ("crew", "other"):
        while not (quota := await bench.store.space(name).quota()).is_counted:
            await asyncio.sleep(0)
        assert sizes[name] == (quota.used.bytes, quota.used.objects)
    assert [space.name for space in found.spaces][:2] == ["other", "crew"]
    assert found.stored_bytes == sum(space.bytes for space in found.spaces)
    assert found.objects == sum(space.objects for space in found.spaces)
    assert found.spaces_in_all == len(found.spaces)
    assert found.disk_bytes == bench.storage.bytes_on_disk()


async def test_a_space_is_told_by_kind_prefix_and_object(bench: Bench) -> None:
    await filled(bench)
    await usage(bench)
    found = await bench.space.usage()
    assert [(use.kind, use.objects) for use in found.kinds] == [("thread", 4), ("counter", 1)]
    assert {use.prefix: use.objects for use in found.prefixes} == {"ticket-": 2, "crawl/": 1, "": 2}
    assert sum(use.bytes for use in found.prefixes) == sum(use.bytes for use in found.kinds) == found.bytes
    assert [each.name for each in found.largest] == ["ticket-2", "ticket-1", "crawl/1", "plain", "tokens"]
    assert sum(each.bytes for each in found.largest) == found.bytes
    assert len((await bench.space.usage(limit=1)).largest) == 1


async def test_an_unknown_space_holds_nothing(bench: Bench) -> None:
    found = await bench.store.space("nowhere").usage()
    assert (found.bytes, found.objects, found.largest, found.prefixes) == (0, 0, [], [])


def test_names_of_all_spaces_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of thousands of spaces could have fifty names of a kilobyte."""
    monkeypatch.setattr("shoal.node.spaces.usage.LARGEST_ALL_MAX", 4)
    count = Count()
    for space in ("a", "b", "c"):
        for size in (3, 1, 2):
            count.add(space, Kind.THREAD, f"n{size}", bytes=size, objects=1)
    assert {name: len(space.largest) for name, space in count.spaces.items()} == {"a": 3, "b": 1, "c": 0}
    assert count.spaces["b"].largest == [(3, Kind.THREAD, "n3")]
    assert (count.bytes, count.objects, count.spaces["c"].bytes) == (18, 9, 6)


async def test_all_beyond_the_bounds_is_counted_together(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench()
    monkeypatch.setattr("shoal.node.spaces.usage.CENSUS_SPACES_MAX", 3)
    monkeypatch.setattr("shoal.node.spaces.usage.CENSUS_PREFIXES_MAX", 2)
    monkeypatch.setattr("shoal.node.spaces.usage.LARGEST_MAX", 2)
    for space in ("a", "b", "c", "d", "e"):
        for name in ("one-1", "two-1", "three-1"):
            await bench.store.space(space).counter(name).add(1)
    count = at_once(counted(bench.storage))
    assert list(count.spaces) == ["a", "b", "c", ""]
    assert (count.objects, count.spaces[""].objects) == (15, 6)
    assert {prefix: use.objects for prefix, use in count.spaces["a"].prefixes.items()} == {"one-": 1, "three-": 1, "": 1}
    assert len(count.spaces["a"].largest) == 2
    assert count.bytes == sum(len(key) + len(value) for key, value in bench.storage.scan(keys.OBJECT, b"P"))


@pytest.mark.parametrize("rows", [1, 2, 7])
async def test_steps_of_any_length_count_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    await filled(bench)
    whole = at_once(counted(bench.storage))
    monkeypatch.setattr("shoal.node.spaces.usage._STEP_ROWS", rows)
    parts = at_once(counted(bench.storage))
    assert (parts.bytes, parts.objects, parts.key_bytes) == (whole.bytes, whole.objects, whole.key_bytes)
    assert {name: space.largest for name, space in parts.spaces.items()} == {
        name: space.largest for name, space in whole.spaces.items()
    }


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("ticket-7", "ticket-"),
        ("crew/red/7", "crew/"),
        ("-7", ""),
        ("plain", ""),
        ("{crew-7}/planner", "{crew-7}/"),
        ("{crew-7}", ""),
        ("a_b-c", "a_"),
        ("ends-", "ends-"),
        ("", ""),
    ],
)
def test_names_are_grouped_by_what_they_begin_with(name: str, prefix: str) -> None:
    assert prefix_of(name) == prefix


async def test_growth_is_remembered_over_restarts(open_bench: Opener) -> None:
    bench = open_bench()
    await bench.space.register("choice").set("x" * 1000)
    first = await usage(bench)
    bench.simulated.now_ms += HOUR
    await bench.space.register("choice").set("x" * 9000)
    await usage(bench)
    await bench.node.stop()
    again = open_bench(bench.storage.left_by_crash(0))
    again.simulated.now_ms = bench.simulated.now_ms + HOUR
    found = await again.store.usage()
    assert next(point.at_ms for point in found.points) == first.now_ms
    [crew] = [space for space in found.spaces if space.name == "crew"]
    assert crew.history[1] > crew.history[0] + 7000
    since = await again.store.usage(since_ms=first.now_ms + 1)
    assert len(since.points) == len(found.points) - 1
    within = await again.space.usage()
    assert within.history[:2] == crew.history[:2]
    assert within.times_ms == [point.at_ms for point in found.points]


async def test_when_the_disk_is_full_is_known_after_a_restart(open_bench: Opener) -> None:
    bench = open_bench()
    for free in (700, 600, 500):
        bench.storage.bytes_free = lambda free=free: free  # type: ignore[method-assign, misc]
        await usage(bench)
        bench.simulated.now_ms += HOUR - int(growth.CENSUS_REST_S * 1000)
    assert bench.node.service.growth.full_at_ms(400) == bench.simulated.now_ms + 4 * HOUR
    await bench.node.stop()
    again = open_bench(bench.storage.left_by_crash(0))
    again.simulated.now_ms = bench.simulated.now_ms
    again.simulated.volume = 400, 1000
    await asyncio.sleep(6)
    assert (await again.store.status()).disk_full_ms == again.simulated.now_ms + 4 * HOUR


async def test_nobody_has_to_ask_for_the_history(bench: Bench) -> None:
    await filled(bench)
    await asyncio.sleep(growth.CENSUS_FIRST_S + 1)
    for _ in range(3):
        bench.simulated.now_ms += HOUR
        await asyncio.sleep(growth.CENSUS_EACH_S + 1)
    assert len((await bench.store.usage()).points) == 4


async def test_a_count_that_takes_long_is_made_rarely(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    loop = asyncio.get_running_loop()

    def slow(storage: Any) -> Any:
        begun.append(loop.time())
        bench.simulated.now_ms += 200_000  # What it takes, by the clock of the node.
        return counted(storage)

    monkeypatch.setattr(growth, "counted", slow)
    for _ in range(7):
        await bench.space.counter("tokens").add(1)
        await asyncio.sleep(growth.CENSUS_EACH_S)
    assert len(begun) == 3
    assert begun[1] - begun[0] >= 50 * 200


async def test_an_idle_store_is_not_counted_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(bench)
    counts: list[object] = []

    def noted(storage: Any) -> Any:
        counts.append(storage)
        return counted(storage)

    monkeypatch.setattr(growth, "counted", noted)
    await usage(bench)
    before = len(counts)
    for _ in range(5):
        await usage(bench)
    assert len(counts) == before
    await bench.space.counter("tokens").add(1)
    await usage(bench)
    assert len(counts) == before + 1


async def test_askers_in_a_row_begin_one_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[object] = []

    def noted(storage: Any) -> Any:
        counts.append(storage)
        return counted(storage)

    monkeypatch.setattr(growth, "counted", noted)
    await asyncio.gather(*(bench.store.usage() for _ in range(20)))
    for _ in range(10):
        await bench.space.counter("tokens").add(1)
        await bench.store.usage()
    assert len(counts) == 1


async def test_an_answer_does_not_wait_for_a_long_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(bench)
    monkeypatch.setattr("shoal.node.spaces.usage._STEP_ROWS", 1)
    monkeypatch.setattr(bench.node.service.growth, "_pause", lambda: asyncio.sleep(10))
    async with asyncio.timeout(growth.CENSUS_WAIT_S + 1):
        first = await bench.store.usage()
        assert (first.counted_ms, first.is_counting, first.spaces) == (0, True, [])
    while not (found := await bench.store.usage()).counted_ms:
        await asyncio.sleep(5)
    assert found.objects == 6


async def test_unreadable_points_and_rows_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(bench)
    bench.node._commit.write({growth._row(5): b"\xff", growth._row(6): b"\x93\x01"})
    found = await usage(bench)
    assert [point.at_ms for point in found.points if point.at_ms < 10] == []

    def fails(_storage: Any) -> Any:
        yield Kind(249)

    monkeypatch.setattr(growth, "counted", fails)
    await bench.space.counter("tokens").add(1)
    after = await usage(bench)
    assert "not a valid Kind" in after.trouble
    assert after.stored_bytes == found.stored_bytes


def test_points_thin_as_they_age() -> None:
    now = 400 * DAY
    hourly, often = range(300 * DAY, 397 * DAY, HOUR), range(397 * DAY, now + 1, 5 * MINUTE)
    kept: list[int] = []
    for at_ms in (*hourly, *often):
        gone = set(leaving(kept, at_ms))
        kept = [each for each in kept if each not in gone] + [at_ms]
    ages = [now - at_ms for at_ms in kept]
    assert len(kept) <= growth.POINTS_MAX
    assert max(ages) > 85 * DAY
    assert all(older - newer >= HOUR for older, newer in itertools.pairwise(ages) if newer > DAY + HOUR)
    assert sum(age <= DAY for age in ages) >= 100


def test_points_of_a_wrong_clock_go() -> None:
    assert leaving([HOUR, 2 * HOUR, 50 * DAY], 3 * HOUR) == [50 * DAY]


def test_points_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "POINTS_MAX", 3)
    assert leaving([HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR], 5 * HOUR) == [HOUR, 2 * HOUR]


async def test_members_that_lack_operations_hold_the_log() -> None:
    async with Fleet() as fleet:
        store = fleet["a"].store()
        await store.space("crew").register("choice").set("x" * 1000)
        await fleet.converged()
        await fleet.durable()
        assert (await store.usage()).log_holders == []
        address = fleet["c"].address
        await fleet.isolate("c")
        await store.space("crew").register("choice").set("y" * 1000)
        await asyncio.sleep(5)
        found = await store.usage()
        [holder] = found.log_holders
        assert (holder.name, holder.linked) == (address, False)
        assert 1000 < holder.bytes <= found.log_bytes
