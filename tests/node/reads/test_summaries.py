"""Threads at a glance, and the work of a space: their states and reasons, filters, pages, and what a page costs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal import Thread
from shoal.errors import InvalidInput, InvalidName
from shoal.protocol.requests import AcquireLease, ListSummaries, ListWork, Summaries, ThreadSummary, Work
from tests.node.conftest import Bench, Opener


async def page(bench: Bench, **fields: Any) -> Summaries:
    return await bench.node.session().call(ListSummaries("crew", **fields))


async def every(bench: Bench, **fields: Any) -> list[ThreadSummary]:
    found: list[ThreadSummary] = []
    after = ""
    while True:
        one = await page(bench, after=after, **fields)
        found += one.items
        if not one.more:
            return found
        after = one.cursor


async def states(bench: Bench, **fields: Any) -> dict[str, str]:
    return {each.name: each.state for each in await every(bench, **fields)}


async def begin(thread: Thread, key: str = "fetch") -> None:
    """A step whose program died."""

    async def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await thread.step("fetch", key=key, call=die)


async def filled(bench: Bench) -> None:
    for name in ("asks", "paused", "failed", "done", "well", "steps"):
        await bench.space.thread(name, author="agent").save({"n": 1}, metadata={"tags": ["red", name]}, label=f"L-{name}")
    await bench.space.thread("asks").request_approval("refund of 120?", by="agent")
    await bench.space.thread("paused").pause(by="ana", reason="too dear")
    await bench.space.thread("failed").fail("no money")
    await bench.space.thread("done").finish()
    await begin(bench.space.thread("steps"))


async def test_a_summary_says_who_waits_for_what(bench: Bench) -> None:
    await filled(bench)
    found = {each.name: each for each in await every(bench)}
    assert {name: (each.state, each.says) for name, each in found.items()} == {
        "asks": ("waits", "It asks: refund of 120?"),
        "done": ("well", "It is done."),
        "failed": ("stuck", "It failed: no money"),
        "paused": ("waits", "It was paused by ana: too dear"),
        "steps": ("well", "Step 'fetch' is under way."),
        "well": ("well", "It asks nothing, and no step is open."),
    }
    asks = found["asks"]
    assert (asks.status, asks.asks, asks.by, asks.author, asks.branch, asks.branches) == (
        *("waiting", "refund of 120?", "agent", "agent", "main"),
        ["main"],
    )
    assert (asks.label, asks.tags) == ("L-asks", ["red", "asks"])
    assert asks.checkpoint_ms == asks.since_ms == bench.simulated.now_ms
    assert asks.checkpoint == (await bench.space.thread("asks").load()).id
    assert [(step.name, step.key) for step in found["steps"].steps] == [("fetch", "fetch")]
    assert found["steps"].open_steps == 1


async def test_a_summary_tells_the_newest_checkpoint_in_a_line(bench: Bench) -> None:
    told = bench.space.thread("told")
    await told.save(
        {"n": 1}, key="one", metadata={"module": "json.py", "tags": ["red"], "score": 2 / 3, "of": {"more": 1}, "none": ""}
    )
    silent = bench.space.thread("silent")
    await silent.save({"n": 1, "same": 2})
    await silent.save({"n": 2, "same": 2, "new": 3})
    await bench.space.thread("long").save({"n": 1}, metadata={"text": "x" * 500})
    lines = {each.name: each.last for each in await every(bench)}
    assert lines == {"told": "module json.py, score 0.6667", "silent": "changed n, new", "long": f"text {'x' * 114}…"}


async def test_an_old_open_step_makes_a_thread_stuck(bench: Bench) -> None:
    await filled(bench)
    assert await states(bench, state="stuck") == {"failed": "stuck"}
    assert await states(bench, state="stuck", stuck_after_ms=0) == {"failed": "stuck", "steps": "stuck"}


async def test_a_driver_that_is_gone_leaves_its_thread_stuck(bench: Bench) -> None:
    await begin(bench.space.thread("driven"))
    await bench.node.session().call(AcquireLease("crew", "driven", 5000, "worker-2", thread=True))
    [held] = await every(bench)
    assert (held.state, held.driver, held.driven) == ("well", "worker-2", True)
    await asyncio.sleep(20)
    bench.simulated.now_ms += 20_000
    [left] = await every(bench)
    assert (left.state, left.driver, left.driven) == ("stuck", "", False)
    assert left.says == "Step 'fetch' is open, and nobody holds the lease of the thread any more."


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"state": "waits"}, ["asks", "paused"]),
        ({"text": "REFUND"}, ["asks"]),
        ({"text": "l-done"}, ["done"]),
        ({"tag": "paused"}, ["paused"]),
        ({"author": "ana"}, ["paused"]),
        ({"author": "nobody"}, []),
        ({"prefix": "w"}, ["well"]),
        ({"state": "unknown"}, []),
    ],
)
async def test_summaries_are_filtered(bench: Bench, fields: dict[str, Any], names: list[str]) -> None:
    await filled(bench)
    assert [each.name for each in await every(bench, **fields)] == names


async def test_pages_of_summaries_show_each_thread_once(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=7, summaries_step=3)
    for number in range(40):
        thread = bench.space.thread(f"t{number:02}")
        await thread.save({})
        if number % 3 == 0:
            await thread.fail("x")
        if number % 4 == 1:
            await begin(thread)
    names = [f"t{number:02}" for number in range(40)]
    assert [each.name for each in await every(bench, limit=6)] == names
    stuck = [each.name for each in await every(bench, state="stuck", stuck_after_ms=0, limit=2)]
    assert stuck == names[::3] + [name for number, name in enumerate(names) if number % 4 == 1 and number % 3]
    totals = (await page(bench)).totals
    assert totals == {"all": 40, "paused": 0, "waiting": 0, "done": 0, "failed": 14}


@pytest.mark.answers("a-stuck-thread-among-very-many-is-not-seen")
async def test_one_that_is_stuck_is_found_beyond_all_that_run(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=5)
    for number in range(30):
        await bench.space.thread(f"t{number:02}").save({})
    await begin(bench.space.thread("t29"))
    one = await page(bench, state="stuck", stuck_after_ms=0)
    assert ([each.name for each in one.items], one.more) == (["t29"], False)


@pytest.mark.answers("a-stuck-thread-among-very-many-is-not-seen")
async def test_the_oldest_open_step_is_the_first_that_is_looked_at(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=5, summaries_step=3)
    await begin(bench.space.thread("z-old"))
    bench.simulated.now_ms += 700_000
    for number in range(20):
        await begin(bench.space.thread(f"t{number:02}"))
    one = await page(bench, state="stuck")
    assert ([each.name for each in one.items], one.more) == (["z-old"], True)
    assert await states(bench, state="stuck") == {"z-old": "stuck"}
    assert await states(bench, state="stuck", prefix="t") == {}
    bench.simulated.now_ms += 700_000
    names = [f"t{number:02}" for number in range(20)]
    assert [each.name for each in await every(bench, state="stuck", limit=3)] == ["z-old", *names]
    assert [each.name for each in await every(bench, state="stuck", prefix="t1", limit=3)] == names[10:]


async def test_a_page_of_large_summaries_stays_small(bench: Bench) -> None:
    for number in range(60):
        await bench.space.thread(f"{number:03}" + "n" * 900).request_approval("why " * 1000, by="b" * 900)
    one = await page(bench)
    assert one.more
    assert len(msgspec.json.encode([msgspec.structs.asdict(each) for each in one.items])) < 100_000
    assert len(await every(bench)) == 60


async def test_a_page_looks_at_a_bounded_number_of_threads(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=10)
    for number in range(30):
        await bench.space.thread(f"t{number:02}").save({})
    one = await page(bench, text="t29")
    assert (one.items, one.more) == ([], True)


@pytest.mark.parametrize("cursor", ["x", "9/a", "1/a", "0", "/", "0/", "-1/a", "0/\x00", "١/a"])
async def test_a_cursor_of_another_kind_is_refused(bench: Bench, cursor: str) -> None:
    with pytest.raises((InvalidInput, InvalidName)):
        await page(bench, after=cursor)


@pytest.mark.parametrize("cursor", ["2/", "2/0", "2/0123456z-t", "2/01234567", "2/0123456", "2/012345678\x00", "3/a"])
async def test_a_cursor_of_stuck_threads_that_is_none_is_refused(bench: Bench, cursor: str) -> None:
    with pytest.raises((InvalidInput, InvalidName)):
        await page(bench, state="stuck", after=cursor)


async def test_python_and_http_show_the_same(bench: Bench) -> None:
    await filled(bench)
    assert [each.name async for each in bench.space.summaries(state="stuck", stuck_after=0)] == ["failed", "steps"]
    with pytest.raises(InvalidInput):
        await anext(bench.space.summaries(state="sad"))  # type: ignore[arg-type]


async def work(bench: Bench, **fields: Any) -> Work:
    return await bench.node.session().call(ListWork("crew", **fields))


async def test_work_has_queues_and_leases_in_one_answer(bench: Bench) -> None:
    await bench.space.thread("idle").save({})
    await bench.space.thread("jobs").worklist("pages").add(["a", "b"])
    await bench.space.thread("asked").inbox.send("hello")
    await bench.node.session().call(AcquireLease("crew", "deploy", 5000, "worker-2"))
    found = await work(bench)
    assert [(each.thread, each.worklist, each.pending) for each in found.items] == [("asked", "", 1), ("jobs", "pages", 2)]
    assert [(each.lease, each.holder) for each in found.leases] == [("deploy", "worker-2")]
    assert (found.looked, found.more, found.more_leases) == (3, False, False)
    assert [each.thread async for each in bench.space.work()] == ["asked", "jobs"]


async def test_pages_of_work_show_each_queue_once(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=4, summaries_step=3)
    for number in range(11):
        for name in ("first", "second"):
            await bench.space.thread(f"t{number:02}").worklist(name).add(["a"])
    assert (await work(bench, limit=100)).looked == 4
    found, after = [], ""
    while True:
        one = await work(bench, limit=3, after=after)
        assert one.looked <= 4
        found += [(each.thread, each.worklist) for each in one.items]
        if not one.more:
            break
        after = one.cursor
    assert found == [(f"t{number:02}", name) for number in range(11) for name in ("first", "second")]


async def test_a_kept_page_is_made_anew_after_a_write(bench: Bench) -> None:
    await filled(bench)
    first = await page(bench)
    assert await page(bench) is first
    assert await page(bench, limit=3) is not first
    await bench.space.thread("well").fail("no money")
    assert (await page(bench)).totals["failed"] == 2


async def test_a_page_that_only_a_write_changes_is_kept_until_then(bench: Bench) -> None:
    await bench.space.thread("well").save({"n": 1})
    first = await page(bench)
    bench.simulated.now_ms += 3_600_000
    later = await page(bench)
    assert (later.items is first.items, later.now_ms) == (True, bench.simulated.now_ms)
    lease = await bench.space.thread("well").lease(ttl=30, holder="worker-1").acquire()
    driven = await page(bench)
    bench.simulated.now_ms += 11_000
    assert (await page(bench)).items is not driven.items  # The lease may have ended.
    await lease.release()


async def test_a_kept_page_does_not_outlive_its_time(bench: Bench) -> None:
    await begin(bench.space.thread("steps"))
    assert (await states(bench, stuck_after_ms=5000))["steps"] == "well"
    bench.simulated.now_ms += 11_000
    assert (await states(bench, stuck_after_ms=5000))["steps"] == "stuck"
