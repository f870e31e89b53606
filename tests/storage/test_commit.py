from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import TypeVar

import pytest

from shoal.errors import Overloaded, ReadOnly, ShuttingDown, StorageFull
from shoal.storage.commit import WOKEN_PER_TURN, GroupCommit
from shoal.storage.interface import LARGE_BYTES_MIN, MemoryStorage

T = TypeVar("T")


class Gate:
    """A `run_blocking` whose calls wait until the test lets them go, one by one: before they run, or `after`."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.names: list[str] = []
        self.open = False
        self.after = False

    async def __call__(self, call: Callable[[], T], /) -> T:
        self.names.append(call.__name__)
        if self.after:
            result = call()
            await self._pass()
            return result
        await self._pass()
        return call()

    async def _pass(self) -> None:
        if not self.open:
            gate = asyncio.get_running_loop().create_future()
            self.waiting.append(gate)
            await gate

    async def let_one_go(self) -> None:
        await settle()
        self.waiting.pop(0).set_result(None)
        await settle()

    def let_all_go(self) -> None:
        self.open = True
        for gate in self.waiting:
            if not gate.done():
                gate.set_result(None)
        self.waiting.clear()


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


class Bench:
    """A group commit over memory, its gate, and what it said."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.gate = Gate()
        self.now = 0.0
        self.durable: list[int] = []
        self.commit = GroupCommit(
            self.storage,
            run_blocking=self.gate,
            writes_pending_max=4,
            on_durable=self.durable.append,
            now=lambda: self.now,
            witness_interval_s=3600.0,
        )

    def write(self, key: bytes = b"a") -> int:
        return self.commit.write({key: b"1"})

    def waiter(self, number: int) -> asyncio.Task[None]:
        async def wait() -> None:
            await self.commit.wait_durable(number)

        return asyncio.create_task(wait())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.gate.let_all_go()
    await made.commit.close()


@pytest.mark.answers("acknowledged-then-lost")
async def test_a_write_is_covered_only_after_its_sync(bench: Bench) -> None:
    waiter = bench.waiter(bench.write())
    await settle()
    assert not waiter.done()
    await bench.gate.let_one_go()
    assert waiter.done()
    assert bench.storage.crash(0).get(b"a") == b"1"


LARGE = b"1" * LARGE_BYTES_MIN


async def test_within_laying_a_value_is_durable(bench: Bench) -> None:
    async def put() -> None:
        async with bench.commit.laying([LARGE], bytes):
            bench.commit.write({b"a": LARGE})
        bench.storage.sync()

    putting = asyncio.create_task(put())
    await settle()
    assert bench.storage.get(b"a") is None
    await bench.gate.let_one_go()
    await putting
    assert bench.storage.left_by_crash(0).get(b"a") == LARGE


async def test_a_crash_takes_what_was_not_laid_down(bench: Bench) -> None:
    # What the test above relies on: a write that does not wait for it loses it.
    bench.storage.begin_laying([LARGE], bytes)
    bench.storage.write({b"a": LARGE})
    bench.storage.sync()
    assert bench.storage.left_by_crash(None).get(b"a") == LARGE
    assert bench.storage.left_by_crash(0).get(b"a") == bytes(LARGE_BYTES_MIN)


async def test_a_small_value_is_not_laid_down(bench: Bench) -> None:
    async with bench.commit.laying([LARGE[1:]], bytes):
        assert bench.gate.names == []


async def test_a_full_disk_refuses_what_is_laid_down_and_all_after(bench: Bench) -> None:
    bench.storage.fail_next("write")
    bench.gate.open = True
    with pytest.raises(StorageFull):
        async with bench.commit.laying([LARGE], bytes):
            pass
    with pytest.raises(ReadOnly):
        bench.write()
    with pytest.raises(ReadOnly):
        async with bench.commit.laying([LARGE], bytes):
            pass


async def test_a_cancelled_write_leaves_nothing_laid_down(bench: Bench) -> None:
    async def put() -> None:
        async with bench.commit.laying([LARGE], bytes):
            raise AssertionError("it was cancelled before")

    putting = asyncio.create_task(put())
    await settle()
    putting.cancel()
    await settle()
    bench.gate.let_all_go()
    await settle()
    assert bench.storage._laid == {}


async def test_a_write_not_awaited_tells_when_it_is_durable(bench: Bench) -> None:
    told: list[StorageFull | None] = []
    number = bench.write()
    bench.commit.when_durable(number, told.append)
    await settle()
    assert told == []
    await bench.gate.let_one_go()
    assert told == [None]
    bench.commit.when_durable(number, told.append)
    assert told == [None, None]


async def test_a_write_not_awaited_tells_a_failed_sync(bench: Bench) -> None:
    told: list[StorageFull | None] = []
    bench.storage.fail_next("sync")
    number = bench.write()
    bench.commit.when_durable(number, told.append)
    await settle()
    await bench.gate.let_one_go()
    bench.commit.when_durable(number, told.append)
    assert ["not known to be durable" in str(error) for error in told] == [True, True]


async def test_durable_writes_are_covered_at_once(bench: Bench) -> None:
    number = bench.write()
    await bench.gate.let_one_go()
    bench.write()
    await bench.commit.wait_durable(number)
    await bench.commit.wait_durable(0)


async def test_waiting_for_a_write_that_was_not_made_is_a_mistake(bench: Bench) -> None:
    with pytest.raises(ValueError, match="write 1 was not made"):
        await bench.commit.wait_durable(1)


async def test_a_write_becomes_durable_though_nobody_waits(bench: Bench) -> None:
    bench.write()
    await bench.gate.let_one_go()
    assert bench.commit.durable == bench.commit.written == 1


@pytest.mark.answers("one-lock-around-the-store-serialises-all-agents")
async def test_writes_of_one_tick_share_one_sync(bench: Bench) -> None:
    waiters = [bench.waiter(bench.write()) for _ in range(3)]
    await bench.gate.let_one_go()
    assert all(waiter.done() for waiter in waiters)
    assert bench.commit.cycles == 1


async def test_one_sync_is_under_way_at_a_time(bench: Bench) -> None:
    for _ in range(3):
        bench.write()
        await settle()
    assert len(bench.gate.waiting) == 1


@pytest.mark.answers("one-lock-around-the-store-serialises-all-agents")
async def test_writes_during_a_sync_belong_to_the_next(bench: Bench) -> None:
    bench.gate.after = True
    early = bench.waiter(bench.write())
    await settle()
    late = bench.waiter(bench.write(b"late"))
    await bench.gate.let_one_go()
    assert early.done()
    assert not late.done()
    await bench.gate.let_one_go()
    assert late.done()


async def test_readers_are_told_before_waiters_wake(bench: Bench) -> None:
    heard: list[list[int]] = []

    async def wait(number: int) -> None:
        await bench.commit.wait_durable(number)
        heard.append(list(bench.durable))

    waiting = asyncio.create_task(wait(bench.write()))
    await bench.gate.let_one_go()
    await waiting
    assert heard == [[1]]


async def test_a_cancelled_waiter_disturbs_nobody(bench: Bench) -> None:
    number = bench.write()
    cancelled, other = bench.waiter(number), bench.waiter(number)
    await settle()
    cancelled.cancel()
    await bench.gate.let_one_go()
    assert cancelled.cancelled()
    assert other.done()
    assert other.exception() is None


@pytest.mark.answers("queues-are-bounded")
async def test_past_its_bound_a_write_is_refused_with_a_time_to_retry(bench: Bench) -> None:
    for _ in range(4):
        bench.write()
    with pytest.raises(Overloaded) as refused:
        bench.write(b"fifth")
    assert refused.value.detail["retry_after_s"] == 0.01
    assert bench.storage.get(b"fifth") is None


async def test_the_time_to_retry_is_that_of_the_last_sync(bench: Bench) -> None:
    bench.write()
    await settle()
    bench.now = 0.5
    await bench.gate.let_one_go()
    for _ in range(4):
        bench.write()
    with pytest.raises(Overloaded) as refused:
        bench.write()
    assert refused.value.detail["retry_after_s"] == 0.5


async def test_a_sync_makes_room_for_writes_again(bench: Bench) -> None:
    for _ in range(4):
        bench.write()
    await bench.gate.let_one_go()
    assert bench.write() == 5


async def test_a_failed_sync_tells_every_waiter_that_the_outcome_is_unknown(bench: Bench) -> None:
    bench.storage.fail_next("sync")
    waiters = [bench.waiter(bench.write()) for _ in range(3)]
    await bench.gate.let_one_go()
    errors = [waiter.exception() for waiter in waiters]
    assert all(isinstance(error, StorageFull) and error.written == "unknown" for error in errors)
    assert len({id(error) for error in errors}) == 3, "one exception raised in many tasks mixes their tracebacks"


async def test_a_failed_sync_is_never_repeated(bench: Bench) -> None:
    bench.storage.fail_next("sync")
    number = bench.write()
    await bench.gate.let_one_go()
    with pytest.raises(StorageFull):
        await bench.commit.wait_durable(number)
    with pytest.raises(ReadOnly, match="the disk was full at a sync"):
        bench.write()
    await settle()
    assert bench.gate.names == ["sync"]
    assert bench.durable == []


async def test_durable_writes_stay_covered_after_a_failure(bench: Bench) -> None:
    number = bench.write()
    await bench.gate.let_one_go()
    bench.storage.fail_next("sync")
    bench.write()
    await bench.gate.let_one_go()
    await bench.commit.wait_durable(number)


async def test_an_unexpected_error_of_the_sync_is_not_lost(bench: Bench) -> None:
    def broken() -> int:
        raise RuntimeError("cannot schedule new futures after shutdown")

    bench.storage.sync = broken  # type: ignore[method-assign]
    waiter = bench.waiter(bench.write())
    await bench.gate.let_one_go()
    error = waiter.exception()
    assert isinstance(error, StorageFull)
    assert isinstance(error.__cause__, RuntimeError)
    assert "cannot schedule new futures" in str(error)


async def test_a_failed_write_is_told_to_its_writer_and_later_ones_are_refused(bench: Bench) -> None:
    bench.storage.fail_next("write")
    with pytest.raises(StorageFull):
        bench.write()
    with pytest.raises(ReadOnly):
        bench.write()


async def test_a_failed_write_ends_the_wait_of_those_before_it(bench: Bench) -> None:
    waiter = bench.waiter(bench.write())
    await settle()
    bench.storage.fail_next("write")
    with pytest.raises(StorageFull):
        bench.write()
    await settle()
    assert isinstance(waiter.exception(), StorageFull)


async def test_a_rotation_covers_what_was_written_during_the_sync(bench: Bench) -> None:
    def rotate() -> bool:
        bench.storage.sync()
        return True

    bench.storage.rotate_if_due = rotate  # type: ignore[method-assign]
    bench.write()
    await settle()
    late = bench.waiter(bench.write())
    await bench.gate.let_one_go()
    assert late.done()
    assert bench.gate.names == ["sync"]


async def test_a_failed_rotation_fails_the_store(bench: Bench) -> None:
    def rotate() -> bool:
        raise StorageFull("no log can be begun")

    bench.storage.rotate_if_due = rotate  # type: ignore[method-assign]
    number = bench.write()
    await bench.gate.let_one_go()
    await bench.commit.wait_durable(number)
    with pytest.raises(ReadOnly, match="no log can be begun"):
        bench.write()


async def test_close_waits_for_the_last_sync(bench: Bench) -> None:
    bench.write()
    closing = asyncio.create_task(bench.commit.close())
    await settle()
    assert not closing.done()
    await bench.gate.let_one_go()
    assert closing.done()
    assert bench.commit.durable == 1


async def test_after_close_writes_are_refused(bench: Bench) -> None:
    await bench.commit.close()
    with pytest.raises(ShuttingDown):
        bench.write()


async def test_the_witness_follows_a_commit_but_never_holds_it_up(bench: Bench) -> None:
    bench.now = 3600.0
    waiter = bench.waiter(bench.write())
    await bench.gate.let_one_go()
    assert waiter.done()
    await bench.gate.let_one_go()
    assert bench.gate.names == ["sync", "write_witness"]


async def test_the_witness_is_written_once_for_all_commits_of_an_interval(bench: Bench) -> None:
    for _ in range(3):
        bench.write()
        await bench.gate.let_one_go()
    assert bench.gate.names == ["sync"] * 3


async def test_a_failed_witness_fails_the_store(bench: Bench) -> None:
    def broken() -> bool:
        raise StorageFull("the witness cannot be written")

    bench.storage.write_witness = broken  # type: ignore[method-assign]
    bench.now = 3600.0
    bench.write()
    await bench.gate.let_one_go()
    await settle()
    assert bench.commit.failed is None
    bench.gate.let_all_go()
    await settle()
    assert bench.commit.failed == "the witness cannot be written"


async def test_it_runs_over_a_thread() -> None:
    loop = asyncio.get_running_loop()

    def run_blocking(call: Callable[[], T], /) -> Awaitable[T]:
        return loop.run_in_executor(None, call)

    commit = GroupCommit(MemoryStorage(), run_blocking=run_blocking, writes_pending_max=64, on_durable=None, now=loop.time)

    async def save(number: int) -> None:
        await commit.wait_durable(commit.write({b"%d" % number: b""}))

    await asyncio.gather(*(save(number) for number in range(50)))
    await commit.close()
    assert commit.durable == commit.written == 50


async def test_lag_is_the_age_of_the_oldest_write_that_is_not_durable(bench: Bench) -> None:
    bench.gate.after = True
    assert bench.commit.lag_s == 0.0
    bench.write()
    bench.now = 2.0
    await settle()
    assert bench.commit.lag_s == 2.0
    bench.write(b"b")  # While the first sync is under way, which began at 2.
    bench.now = 5.0
    await bench.gate.let_one_go()
    assert bench.commit.lag_s == 3.0
    await bench.gate.let_one_go()
    assert bench.commit.lag_s == 0.0


async def test_many_waiters_wake_over_several_turns_of_the_loop() -> None:
    storage, gate = MemoryStorage(), Gate()
    commit = GroupCommit(
        storage, run_blocking=gate, writes_pending_max=1000, on_durable=None, now=lambda: 0.0, witness_interval_s=3600.0
    )
    woken: list[int] = []

    async def wait(number: int) -> None:
        await commit.wait_durable(number)
        woken.append(number)

    tasks = [asyncio.create_task(wait(commit.write({b"%d" % n: b""}))) for n in range(3 * WOKEN_PER_TURN)]
    await settle()
    gate.waiting.pop(0).set_result(None)
    seen = []
    while len(woken) < len(tasks):
        await asyncio.sleep(0)
        seen.append(len(woken))
    gate.let_all_go()
    await commit.close()
    assert woken == sorted(woken)
    assert max(after - before for before, after in pairwise([0, *seen])) <= WOKEN_PER_TURN


async def test_waiters_of_spaces_wake_in_turn() -> None:
    storage, gate = MemoryStorage(), Gate()
    commit = GroupCommit(
        storage, run_blocking=gate, writes_pending_max=1000, on_durable=None, now=lambda: 0.0, witness_interval_s=3600.0
    )
    woken: list[str] = []
    for n in range(5 * WOKEN_PER_TURN):
        commit.when_durable(commit.write({b"%d" % n: b""}), lambda _: woken.append("busy"), "busy")
    commit.when_durable(commit.write({b"q": b""}), lambda _: woken.append("quiet"), "quiet")
    gate.let_all_go()
    await commit.close()
    while len(woken) < 5 * WOKEN_PER_TURN + 1:
        await asyncio.sleep(0)
    assert woken.index("quiet") == 1


async def test_nothing_is_synced_that_was_not_written(bench: Bench) -> None:
    await settle()
    assert bench.gate.names == []
