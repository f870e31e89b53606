"""When a node has its storage erase what was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal.client.store import Space
from shoal.node.collection import answers
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench, Opener

PATIENCE_S = 30.0
SOON = 0.001
LATE = 3600.0


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node looks once a second whether a pass is due, or over."""
    monkeypatch.setattr(answers, "_LOOK_INTERVAL_S", 0.01)


async def settled(bench: Bench, *, passes: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while bench.node._database.erasure.passes < passes:
            await asyncio.sleep(0.01)


async def _prune(space: Space) -> None:
    thread = space.thread("t")
    for n in range(3):
        await thread.save({"n": n})
    await thread.prune(keep_last=1)


async def _delete_a_thread(space: Space) -> None:
    await space.thread("t").save({"n": 1})
    await space.thread("t").delete()


async def _trim(space: Space) -> None:
    journal = space.thread("t").journal
    for n in range(3):
        await journal.append(n)
    await journal.trim(keep=1)


async def _delete_an_item(space: Space) -> None:
    await space.items.put(("memory",), "k", 1)
    await space.items.delete(("memory",), "k")


async def _remove_a_member(space: Space) -> None:
    await space.set("s").add("m")
    await space.set("s").remove("m")


async def _remove_an_entry(space: Space) -> None:
    await space.map("m").set("k", 1)
    await space.map("m").remove("k")


@pytest.mark.parametrize("erase", [_prune, _delete_a_thread, _trim, _delete_an_item, _remove_a_member, _remove_an_entry])
async def test_a_pass_follows_what_erases(open_bench: Opener, erase: Callable[[Space], Awaitable[None]]) -> None:
    bench = open_bench(erase_within_s=SOON)
    await erase(bench.space)
    await settled(bench, passes=1)


async def test_nothing_waits_while_nothing_was_deleted(open_bench: Opener) -> None:
    bench = open_bench(erase_within_s=SOON)
    await bench.space.thread("t").save({"n": 1})
    await bench.space.set("s").add("m")
    assert not bench.node._database.erasure.is_due


async def test_the_mark_stays_while_the_log_holds_what_was_deleted(open_bench: Opener) -> None:
    bench = open_bench(erase_within_s=SOON)
    await _delete_an_item(bench.space)
    await settled(bench, passes=1)
    await bench.node._commit.wait_durable(bench.node._commit.written)
    assert bench.node._database.erasure.is_due
    assert bench.storage.get(keys.meta("erasing")) is not None


async def test_another_pass_follows_once_the_log_is_truncated(open_bench: Opener) -> None:
    bench = open_bench(erase_within_s=SOON)
    await _delete_an_item(bench.space)
    await settled(bench, passes=1)
    logged = {key: None for key, _ in bench.storage.scan(keys.LOG, b"M")}
    bench.node._commit.write(logged)
    await settled(bench, passes=2)
    async with asyncio.timeout(PATIENCE_S):
        while bench.node._database.erasure.is_due:
            await asyncio.sleep(0.01)
    assert bench.storage.get(keys.meta("erasing")) is None


async def test_a_deletion_during_a_pass_is_followed_by_another(open_bench: Opener) -> None:
    class Slow(MemoryStorage):
        def __init__(self) -> None:
            super().__init__()
            self.begun = asyncio.Event()
            self.is_over = False

        def begin_erasing(self) -> None:
            self.begun.set()

        def erase(self, age_s: float) -> bool:
            return self.is_over

    storage = Slow()
    bench = open_bench(storage, erase_within_s=SOON)
    await _delete_an_item(bench.space)
    await asyncio.wait_for(storage.begun.wait(), PATIENCE_S)
    await _remove_a_member(bench.space)
    storage.is_over = True
    await settled(bench, passes=2)


@pytest.mark.answers("deleted-data-can-still-be-read-in-the-files")
async def test_a_pass_that_a_crash_prevents_is_made_after_it(open_bench: Opener) -> None:
    bench = open_bench(erase_within_s=LATE)
    await _delete_an_item(bench.space)
    assert bench.node._database.erasure.is_due
    after = open_bench(bench.storage.left_by_crash(), erase_within_s=SOON)
    await settled(after, passes=1)


async def test_a_mark_outlives_a_write_that_was_not_made(open_bench: Opener) -> None:
    bench = open_bench(erase_within_s=LATE)
    await bench.space.set("s").add("m")
    bench.storage.fail_next("write")
    with pytest.raises(Exception, match="full"):
        await bench.space.set("s").remove("m")
    assert not bench.node._database.erasure.is_due
