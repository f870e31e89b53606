"""Between any two steps of a heavy write something happens: it is made as a whole, or not at all, and its answer says which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import SchemaViolation, ShoalError, ShuttingDown, StorageFull
from shoal.node.verification.verify import verify
from shoal.node.writes import issuing
from shoal.protocol.requests import Assign, Batch, DeleteRegister, PutEntry, ReadRegister
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench

packed = msgspec.msgpack.encode

HEAVY, BEFORE, OTHER = packed("h" * 100), packed("before"), packed("other")
STEPS_MAX = 12
BATCH = Batch([Assign("crew", "{s}r", HEAVY), *(PutEntry("crew", "{s}m", str(nth), HEAVY) for nth in range(3))])

Event = Callable[[Bench], Awaitable[None]]


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    """Writes of more than 64 bytes are heavy."""
    with altered(heavy_bytes=64, heavy_step_bytes=64):
        yield


class Interrupted:
    """An event after the turn of this number of heavy writes; `is_over` once it came to pass."""

    def __init__(self, bench: Bench, nth: int, event: Event, patch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        self._bench, self._left, self._event = bench, nth, event
        patch.setattr(issuing, "turn", self._turn)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        self._left -= 1
        if self._left == 0:
            self.is_over = True
            await self._event(self._bench)


async def at_each_step(
    patch: pytest.MonkeyPatch, event: Event, request: Any, judge: Callable[[Bench, BaseException | None], Awaitable[int]]
) -> None:
    """Make a request on a new node for each step, with the event at it. What is left is as without the event, or nothing."""
    counts: list[int] = []
    for nth in range(1, STEPS_MAX):
        bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config())
        try:
            await bench.node.session().call(Assign("crew", "{s}r", BEFORE))
            with patch.context() as within:
                interrupted = Interrupted(bench, nth, event, within)
                error: BaseException | None = None
                try:
                    await (request(bench) if callable(request) else bench.node.session().call(request))
                except ShoalError as caught:
                    error = caught
            counts.append(await judge(bench, error))
        finally:
            await bench.node.stop()
        if not interrupted.is_over:
            assert nth > 4, "a heavy write has so many steps"
            assert set(counts) <= {0, counts[-1]}, "a part of it"
            return
    raise AssertionError("a heavy write has an end")


def found(storage: MemoryStorage, *, told: BaseException | None) -> int:
    """How many rows of objects the write has there; what is left verifies as sound, and is what was told."""
    report = verify(storage, config=Config())
    assert report.sound, report.problems
    count = sum(HEAVY in value for _, value in storage.scan(keys.OBJECT, successor(keys.OBJECT)))
    if told is None:
        assert count
    elif isinstance(told, ShoalError) and told.written == "no":
        assert not count
    return count


@pytest.mark.parametrize("request_", [Assign("crew", "{s}r", HEAVY), BATCH], ids=["one", "batch"])
@pytest.mark.parametrize("keep", [0, None], ids=["unsynced lost", "all kept"])
async def test_a_crash_leaves_all_or_nothing(monkeypatch: pytest.MonkeyPatch, request_: Any, keep: int | None) -> None:
    left: list[MemoryStorage] = []

    async def crash(bench: Bench) -> None:
        left.append(bench.storage.left_by_crash(keep))

    async def judge(bench: Bench, error: BaseException | None) -> int:
        assert error is None
        while left:
            storage = left.pop()
            assert not found(storage, told=ShuttingDown("it was not written yet"))
            assert any(BEFORE in value for _, value in storage.scan(keys.OBJECT, successor(keys.OBJECT)))
        return found(bench.storage.left_by_crash(0), told=None)

    await at_each_step(monkeypatch, crash, request_, judge)


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, operation: Any) -> None:
    async def fail(bench: Bench) -> None:
        bench.storage.fail_next(operation)

    async def judge(bench: Bench, error: BaseException | None) -> int:
        if error is not None:
            assert isinstance(error, ShoalError)
            assert isinstance(error, StorageFull)
        count = found(bench.storage.left_by_crash(None), told=error)
        assert operation == "sync" or bool(count) == (error is None)
        return count

    await at_each_step(monkeypatch, fail, BATCH, judge)


async def test_a_failure_of_another_write_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(bench: Bench) -> None:
        bench.storage.fail_next("sync")
        with pytest.raises(ShoalError):
            await bench.node.session().call(Assign("crew", "elsewhere", OTHER))

    async def judge(bench: Bench, error: BaseException | None) -> int:
        if error is not None:
            assert isinstance(error, ShoalError)
            assert error.written == "no", error
        return found(bench.storage.left_by_crash(None), told=error)

    await at_each_step(monkeypatch, fail, BATCH, judge)


async def test_a_node_that_stops_makes_it_or_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[asyncio.Task[None]] = []

    async def stop(bench: Bench) -> None:
        stops.append(asyncio.create_task(bench.node.stop()))
        await asyncio.sleep(0)

    async def judge(bench: Bench, error: BaseException | None) -> int:
        await asyncio.gather(*stops)
        stops.clear()
        return found(bench.storage.left_by_crash(0), told=error)

    await at_each_step(monkeypatch, stop, BATCH, judge)


async def test_an_object_deleted_meanwhile_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete(bench: Bench) -> None:
        bench.node._database.issue(DeleteRegister("crew", "{s}r"), None)

    async def judge(bench: Bench, error: BaseException | None) -> int:
        assert error is None
        shown = await bench.node.session().call(ReadRegister("crew", "{s}r"))
        assert [sibling.value for sibling in shown.siblings] == [HEAVY]
        return found(bench.storage.left_by_crash(0), told=None)

    await at_each_step(monkeypatch, delete, BATCH, judge)


async def test_a_space_deleted_meanwhile_takes_it_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    deletions: list[asyncio.Task[Any]] = []

    async def delete(bench: Bench) -> None:
        deletions.append(asyncio.create_task(bench.space.delete()))
        await asyncio.sleep(0)

    async def judge(bench: Bench, error: BaseException | None) -> int:
        await asyncio.gather(*deletions)
        deletions.clear()
        assert error is None
        report = verify(bench.storage.left_by_crash(None), config=Config())
        assert report.sound, report.problems
        return 1

    await at_each_step(monkeypatch, delete, BATCH, judge)


async def test_a_partition_replaced_meanwhile_is_written_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def switch(bench: Bench) -> None:
        partitions, number = bench.node._database.partitions, partition_of("crew", "{s}r")
        await bench.node._commit.wait_durable(bench.node._commit.written)
        partitions.load(number).closed = True
        partitions.closed.add(number)
        await asyncio.sleep(0)
        partitions.replaced(number)

    async def judge(bench: Bench, error: BaseException | None) -> int:
        return found(bench.storage.left_by_crash(None), told=error)

    await at_each_step(monkeypatch, switch, BATCH, judge)


async def test_a_schema_put_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is of another partition: no state that breaks it is written after it is acknowledged."""
    schema = {"type": "object", "properties": {"text": {"type": "integer"}}}
    put = [False]

    async def change(bench: Bench) -> None:
        await bench.space.schemas.put("shape", 1, schema, threads="*")
        put[0] = True

    async def save(bench: Bench) -> None:
        await bench.space.thread("agent").save({"text": "h" * 100})

    async def judge(bench: Bench, error: BaseException | None) -> int:
        assert isinstance(error, SchemaViolation) == put[0]
        put[0] = False
        return 1

    assert partition_of("crew", "agent") != partition_of("crew", "shape")
    await at_each_step(monkeypatch, change, save, judge)
