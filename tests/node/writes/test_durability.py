"""Promise 1 and 4: what is acknowledged survives, and nothing is shown that could still be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

from shoal.errors import HeadMoved, ReadOnly, ShoalError, ShuttingDown, SlowConsumer, StorageFull
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from tests.node.conftest import Bench, Opener


async def test_an_acknowledged_save_survives_a_power_cut(bench: Bench) -> None:
    saved = await bench.space.thread("a").save({"n": 1})
    again = bench.crashed()
    assert (await again.space.thread("a").load()).id == saved.id
    await again.node.stop()


@pytest.mark.answers("acknowledged-then-lost")
async def test_a_save_is_not_acknowledged_before_its_sync(bench: Bench) -> None:
    bench.simulated.hold_syncs()
    saving = asyncio.create_task(bench.space.thread("a").save({"n": 1}))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not saving.done()
    bench.simulated.release_syncs()
    await saving


async def test_memory_durability_acknowledges_before_the_sync(bench: Bench) -> None:
    bench.simulated.hold_syncs()
    await bench.space.thread("a").save({"n": 1}, durability="memory")
    lost = bench.crashed()
    with pytest.raises(ShoalError):
        await lost.space.thread("a").load()
    await lost.node.stop()
    bench.simulated.release_syncs()


async def reading(bench: Bench, read: Callable[[], Awaitable[object]]) -> None:
    """`read` waits for the sync that covers what it shows."""
    task = asyncio.ensure_future(read())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    bench.simulated.release_syncs()
    await task


@pytest.mark.answers("seed-1035")
async def test_a_refusal_waits_for_what_it_shows_and_counts_it_as_seen(bench: Bench) -> None:
    bench.simulated.hold_syncs()
    await bench.node.session().call(requests.Save("crew", "a", {"n": b"\x01"}, parent=None), durability="memory")
    bookmark = Bookmark()
    expecting_none = requests.Save("crew", "a", {"n": b"\x02"}, expect_head=requests.NO_HEAD)

    async def refused() -> None:
        with pytest.raises(HeadMoved):
            await bench.node.session(bookmark).call(expecting_none)

    await reading(bench, refused)
    assert bookmark


READS = ["load", "history", "heads", "journal", "counter", "register", "document", "items", "list", "spaces"]


@pytest.mark.answers("vectors-cover-durable-prefixes", "read-shows-data-that-is-not-yet-fsynced")
@pytest.mark.parametrize("read", READS)
async def test_a_read_waits_for_what_it_shows(bench: Bench, read: str) -> None:
    thread = bench.space.thread("a")
    writes: dict[str, Callable[[], Awaitable[object]]] = {
        "journal": lambda: thread.journal.append({"n": 1}, durability="memory"),
        "counter": lambda: bench.space.counter("a").add(1, durability="memory"),
        "register": lambda: bench.space.register("a").set(1, durability="memory"),
        "document": lambda: bench.node.session().call(requests.Update("crew", "a", b"\x00\x00"), durability="memory"),
        "items": lambda: bench.space.items.put(("a",), "k", 1, durability="memory"),
    }
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "load": lambda: bench.space.thread("a").load(),
        "history": lambda: bench.node.session().call(requests.History("crew", "a")),
        "heads": lambda: thread.heads(),
        "journal": lambda: bench.node.session().call(requests.ReadJournal("crew", "a")),
        "counter": lambda: bench.space.counter("a").value(),
        "register": lambda: bench.space.register("a").get(),
        "document": lambda: bench.node.session().call(requests.ReadDocument("crew", "a")),
        "items": lambda: bench.space.items.get(("a",), "k"),
        "list": lambda: bench.node.session().call(requests.ListObjects("crew", "thread")),
        "spaces": lambda: bench.node.session().call(requests.ListSpaces()),
    }
    bench.simulated.hold_syncs()
    await writes.get(read, lambda: thread.save({"n": 1}, durability="memory"))()
    await reading(bench, reads[read])


@pytest.mark.answers("one-lock-around-the-store-serialises-all-agents")
async def test_a_read_of_another_partition_does_not_wait(bench: Bench) -> None:
    await bench.space.counter("other").add(1)
    bench.simulated.hold_syncs()
    await bench.space.thread("a").save({"n": 1}, durability="memory")
    assert await asyncio.wait_for(bench.space.counter("other").value(), 30) == 1
    bench.simulated.release_syncs()


async def test_watchers_see_a_change_once_it_is_durable(bench: Bench) -> None:
    bench.simulated.hold_syncs()
    async with bench.node.session().subscribe(requests.Watch("crew")) as changes:
        saved = asyncio.create_task(bench.space.thread("a").save({"n": 1}))
        first = asyncio.ensure_future(anext(changes))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not first.done()
        bench.simulated.release_syncs()
        change = await first
        assert isinstance(change, requests.Change)
        assert (change.what, change.kind, change.name, change.id) == ("save", "thread", "a", (await saved).id)


async def test_a_watch_begins_once_all_that_was_written_before_it_is_durable(bench: Bench) -> None:
    """Else a change that is written before and durable after would be shown to nobody."""
    bench.simulated.hold_syncs()
    await bench.space.counter("n").add(1, durability="memory")
    begun = asyncio.Event()

    async def watch() -> None:
        async with bench.node.session().subscribe(requests.Watch("crew")):
            begun.set()

    watching = asyncio.create_task(watch())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not begun.is_set()
    bench.simulated.release_syncs()
    await watching


@pytest.mark.answers("slow-consumer-makes-memory-grow-without-bound")
async def test_a_slow_watcher_is_cut_off_and_told(open_bench: Opener) -> None:
    small = open_bench(subscription_bytes_max=1000)
    async with small.node.session().subscribe(requests.Watch("crew")) as changes:
        for _ in range(20):
            await small.space.counter("n").add(1)
        with pytest.raises(SlowConsumer):
            await anext(changes)
    assert await small.space.counter("n").value() == 20


async def test_a_failed_sync_tells_its_writers_that_the_outcome_is_unknown(bench: Bench) -> None:
    bench.storage.fail_next("sync")
    with pytest.raises(StorageFull) as failed:
        await bench.space.thread("a").save({"n": 1})
    assert failed.value.written == "unknown"


@pytest.mark.answers("error-while-writing-ends-a-room")
async def test_after_a_storage_failure_the_node_reads_and_refuses_writes(bench: Bench) -> None:
    saved = await bench.space.thread("a").save({"n": 1})
    bench.storage.fail_next("write")
    with pytest.raises(StorageFull):
        await bench.space.thread("b").save({"n": 2})
    with pytest.raises(ReadOnly, match="Nothing was written"):
        await bench.space.thread("c").save({"n": 3})
    assert (await bench.space.thread("a").load()).id == saved.id
    status = await bench.store.status()
    assert status.state == "read-only"
    assert status.reason


@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_a_node_that_turns_read_only_logs_it_at_once_and_once(
    operation: Literal["sync", "write"], bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.space.counter("n").add(1)
    bench.storage.fail_next(operation)
    with pytest.raises(StorageFull):
        await bench.space.counter("n").add(1)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 1
    status = await bench.store.status()
    assert f"this node is read-only from now on, because storage failed: {status.reason}" in told[0].getMessage()
    for _ in range(3):
        with pytest.raises(ReadOnly):
            await bench.space.counter("n").add(1)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def test_a_write_that_storage_refused_leaves_no_trace_in_memory(bench: Bench) -> None:
    doc = requests.Update("crew", "d", b"\x00\x00", {"m": "map"})
    bench.storage.fail_next("write")
    with pytest.raises(StorageFull):
        await bench.node.session().call(doc)
    state = await bench.node.session().call(requests.ReadDocument("crew", "d"))
    assert isinstance(state, requests.DocumentState)
    assert state.roots == {}


async def test_a_stopped_node_refuses_requests_and_ends_watches(open_bench: Opener) -> None:
    node = open_bench()
    await node.space.counter("n").add(1)
    async with node.node.session().subscribe(requests.Watch("crew")) as changes:
        await node.node.stop()
        with pytest.raises(ShuttingDown):
            await anext(changes)
    with pytest.raises(ShuttingDown, match="Nothing was written"):
        await node.space.counter("n").add(1)
