"""Threads by status: which are listed, and how much is read for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Literal

import pytest

from shoal import Thread
from shoal.config import Config
from shoal.errors import InvalidName
from shoal.kinds.step import state as steps
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.protocol.requests import ListThreads
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench, Opener
from tests.support.pacing import LOOK_S

MARK = keys.meta("standings/2")


class CountedStorage(MemoryStorage):
    """Counts the rows that are read."""

    reads = 0

    def get(self, key: bytes, /) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(start, stop, reverse=reverse, limit=limit):
            self.reads += 1
            yield row


class BuriedStorage(MemoryStorage):
    """Counts the deleted rows of open steps that scans pass: RocksDB passes them until they are compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self._buried: set[bytes] = set()

    def write(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        for key, value in rows.items():
            if key[:1] == keys.OBJECT and keys.split_object(key)[4].startswith(steps.OPEN):
                self._buried.discard(key) if value is not None else self._buried.add(key)
        return super().write(rows, ranges)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        last = stop
        for row in super().scan(start, stop, reverse=reverse, limit=limit):
            yield row
            last = row[0]
        self.passed += sum(1 for key in self._buried if start <= key and (last is None or key < last))


async def listed(bench: Bench, status: str, prefix: str = "") -> list[str]:
    return [name async for name in bench.space.threads(prefix, status=status)]  # type: ignore[arg-type]


async def begun(thread: Thread, key: str) -> None:
    """A step whose program died."""

    async def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await thread.step("fetch", key=key, call=die)


async def stuck(bench: Bench) -> list[str]:
    return [each.name async for each in bench.space.summaries(state="stuck", stuck_after=0)]


def problems(bench: Bench) -> list[str]:
    return verify(bench.storage, config=Config()).problems


async def made(bench: Bench, count: int) -> None:
    await asyncio.gather(*(bench.space.thread(f"t{n:03}").save({"n": n}) for n in range(count)))


def aged(bench: Bench) -> MemoryStorage:
    """The store as an older version would have left it: without statuses in the catalog."""
    storage = bench.storage.left_by_crash(None)
    rows: dict[bytes, bytes | None] = {key: None for key, _ in storage.scan(keys.STATUS, keys.STATUS + b"\xff")}
    rows |= dict.fromkeys([key for key, _ in storage.scan(keys.CATALOG, keys.CATALOG + b"\xff")], b"")
    storage.write({**rows, MARK: None})
    storage.sync()
    return storage


@pytest.mark.answers("search-for-a-rare-status-reads-every-thread")
async def test_a_search_by_status_reads_what_has_it_and_not_the_others(open_bench: Opener) -> None:
    reads: list[int] = []
    for count in (100, 200):
        storage = CountedStorage()
        bench = open_bench(storage, listing_scan_max=20)
        await made(bench, count)
        for n in (7, 50, 93):
            await bench.space.thread(f"t{n:03}").request_approval("?")
        assert await listed(bench, "failed") == []  # The first answer reads the vectors of all partitions.
        storage.reads = 0
        assert await listed(bench, "waiting") == ["t007", "t050", "t093"]
        reads.append(storage.reads)
        assert len(await listed(bench, "running")) == count - 3
    assert reads[0] == reads[1]


async def test_pages_by_status_list_each_thread_once(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=4, page_items_max=3)
    await made(bench, 30)
    for n in range(0, 30, 2):
        await bench.space.thread(f"t{n:03}").finish()
    assert await listed(bench, "done") == [f"t{n:03}" for n in range(0, 30, 2)]
    assert await listed(bench, "running") == [f"t{n:03}" for n in range(1, 30, 2)]
    assert await listed(bench, "done", "t01") == [f"t{n:03}" for n in range(10, 20, 2)]
    assert await listed(bench, "failed") == []


@pytest.mark.answers("search-for-a-rare-status-reads-every-thread")
@pytest.mark.parametrize("seed", range(5))
async def test_threads_are_always_listed_under_their_status(open_bench: Opener, seed: int) -> None:
    bench, random = open_bench(seed=seed + 1), Random(seed)
    for _ in range(60):
        thread = bench.space.thread(f"t{random.randrange(6)}")
        match random.randrange(6):
            case 0:
                await thread.delete()
            case 1:
                await thread.journal.append("event")
            case 2:
                await thread.pause()
            case 3:
                await thread.request_approval("?")
            case 4:
                await thread.approve()
            case 5:
                await thread.finish()
    names = [name async for name in bench.space.threads()]
    statuses = {name: (await bench.space.thread(name).status()).status for name in names}
    for status in ("running", "paused", "waiting", "done", "failed"):
        assert await listed(bench, status) == [name for name in names if statuses[name] == status]
    assert problems(bench) == []


@pytest.mark.answers("search-for-a-rare-status-reads-every-thread")
async def test_the_threads_of_an_old_directory_are_listed_at_once_and_indexed_soon(open_bench: Opener) -> None:
    bench = open_bench()
    await made(bench, 150)
    for n in range(0, 150, 3):
        await bench.space.thread(f"t{n:03}").finish()
    await bench.space.thread("t140").request_approval("?")
    await begun(bench.space.thread("t100"), "fetch")
    old = open_bench(aged(bench), seed=2)
    assert await listed(old, "waiting") == ["t140"]
    assert await stuck(old) == ["t100"]
    await old.space.thread("t001").finish()
    async with asyncio.timeout(30):
        while old.storage.get(MARK) is None:
            await asyncio.sleep(LOOK_S)
    assert await listed(old, "done") == sorted(["t001", *(f"t{n:03}" for n in range(0, 150, 3))])
    assert await listed(old, "waiting") == ["t140"]
    assert await stuck(old) == ["t100"] == [name for _, name in old.node._database.catalog.opened("crew", after=b"", limit=9)]
    assert problems(old) == []


@pytest.mark.parametrize("seed", range(5))
async def test_a_thread_that_runs_is_listed_by_its_oldest_open_step(open_bench: Opener, seed: int) -> None:
    bench, random = open_bench(seed=seed + 1), Random(seed)
    for number in range(80):
        bench.simulated.now_ms += random.randrange(200_000)
        thread = bench.space.thread(f"t{random.randrange(5)}")
        match random.randrange(7):
            case 0:
                await thread.delete()
            case 1 | 2 if (await thread.status()).status == "running":
                await begun(thread, f"k{number}")
            case 3 | 4:
                async for step in thread.steps(open=True):
                    how: Literal["result", "retry", "abandon"] = random.choice(("result", "retry", "abandon"))
                    await thread.resolve(step.key, how, value=1 if how == "result" else None)
                    break
            case 5:
                await thread.pause()
            case 6:
                await thread.approve()
    wanted: dict[str, int] = {}
    async for name in bench.space.threads():
        thread = bench.space.thread(name)
        begun_ms = [round(step.begun.timestamp() * 1000) async for step in thread.steps(open=True)]
        if begun_ms and (await thread.status()).status == "running":
            wanted[name] = begun_ms[0]
    found = [name for _, name in bench.node._database.catalog.opened("crew", after=b"", limit=9)]
    assert found == sorted(wanted, key=lambda name: (wanted[name] >> 16, name))
    assert problems(bench) == []


async def test_a_write_of_a_step_looks_at_no_step_that_is_settled(open_bench: Opener) -> None:
    """Whether one is open for long beside them, or none."""
    storage = BuriedStorage()
    bench = open_bench(storage)

    async def settled(thread: Thread, count: int) -> None:
        for number in range(count):
            await thread.step("fetch", key=f"{number}", call=nothing)

    async def nothing() -> None:
        return None

    open_long, alone = bench.space.thread("open long"), bench.space.thread("alone")
    await settled(open_long, 20)
    await begun(open_long, "long")
    storage.passed = 0
    await asyncio.gather(settled(open_long, 50), settled(alone, 50))
    assert storage.passed <= 200  # Each passes its own.
    assert problems(bench) == []


async def test_a_thread_that_is_not_listed_by_its_open_step_is_found_by_verify(bench: Bench) -> None:
    await begun(bench.space.thread("t"), "fetch")
    [row] = [key for key, _ in bench.storage.scan(keys.STATUS, keys.STATUS + b"\xff")]
    bench.storage.write({row: None})
    assert problems(bench) == ["thread 't' of space 'crew' is not listed as one with an open step"]


async def test_a_thread_that_is_listed_under_another_status_is_found_by_verify(bench: Bench) -> None:
    await bench.space.thread("t").finish()
    bench.storage.write({keys.status("crew", b"\x04", "t"): None, keys.status("crew", b"\x03", "t"): b""})
    assert problems(bench) == [
        "thread 't' of space 'crew' is wrongly listed under a status",
        "thread 't' of space 'crew' is not listed under a status",
    ]


async def test_an_answer_is_as_new_on_the_next_node_though_it_lists_nothing(bench: Bench) -> None:
    await bench.space.thread("t").request_approval("?")
    await bench.space.thread("t").approve()
    reader = bench.node.session()
    assert len(reader.bookmark) == 0
    await reader.call(ListThreads("crew", "waiting"))
    assert len(reader.bookmark) == 1


async def test_a_page_looks_at_no_more_threads_than_it_may(open_bench: Opener) -> None:
    bench = open_bench(listing_scan_max=3)
    await made(bench, 10)
    page = await bench.node.session().call(ListThreads("crew"))
    assert (page.names, page.after) == (["t000", "t001", "t002"], "t002")
    assert len([name async for name in bench.space.threads()]) == 10


async def test_no_space_comes_after_a_longer_name_than_any(bench: Bench) -> None:
    with pytest.raises(InvalidName):
        await bench.node.session().call(requests.ListSpaces(after="s" * 70_000))
