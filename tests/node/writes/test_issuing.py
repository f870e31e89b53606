"""A request becomes one operation, in one write, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from shoal.cluster.operation import partition_of
from shoal.errors import KeyExpired, KeyReused, SpansPartitions
from shoal.node.collection import answers as erasing
from shoal.node.handler import Target
from shoal.node.writes import issuing
from shoal.node.writes.issuing import HEAVY_ATTEMPTS_MAX
from shoal.protocol.requests import Add, Added, AddEntry, AlterSet, Assign, Batch, ReadMap, ReadRegister, Watch
from shoal.protocol.session import make_key
from shoal.storage import keys
from simulation.bounds import altered
from tests.node.conftest import Bench

packed = msgspec.msgpack.encode


async def test_an_operation_is_one_write(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(Add("crew", "n", 1))
    written: list[set[bytes]] = []
    sound = bench.storage.write

    def write(rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        written.append({key[:1] for key in rows})
        return sound(rows, ranges)

    bench.storage.write = write  # type: ignore[method-assign]
    await session.call(Add("crew", "n", 1))
    assert [tables for tables in written if keys.LOG in tables] == written
    assert len(written) == 1
    assert {keys.LOG, keys.OBJECT, keys.VECTOR} <= written[0]


async def test_a_key_stands_for_one_request(bench: Bench) -> None:
    session = bench.node.session()
    assert await session.call(Add("crew", "n", 1), key="k") == Added(1, True)
    assert await session.call(Add("crew", "n", 1), key="k") == Added(1, True)
    with pytest.raises(KeyReused, match="Nothing was written"):
        await session.call(Add("crew", "n", 2), key="k")
    assert await session.call(Add("crew", "n", 1)) == Added(2, True)


async def test_an_old_key_is_refused(bench: Bench) -> None:
    session, now_ms = bench.node.session(), bench.simulated.environment.now_ms()
    window_ms = int(bench.config.key_window_s * 1000)
    assert await session.call(Add("crew", "n", 1), key=make_key(now_ms - window_ms // 2, b"k" * 10)) == Added(1, True)
    with pytest.raises(KeyExpired, match="older than"):
        await session.call(Add("crew", "n", 1), key=make_key(now_ms - 2 * window_ms, b"k" * 10))


async def test_a_batch_stays_in_one_partition(bench: Bench) -> None:
    batch = Batch([Add("crew", f"n{number}", 1) for number in range(9)])
    with pytest.raises(SpansPartitions, match="Nothing was written"):
        await bench.node.session().call(batch)
    assert await bench.node.session().call(Add("crew", "n0", 1)) == Added(1, True)


# ── heavy requests ────────────────────────────────────────────────────────────

HEAVY = packed("h" * 100)
LIGHT = packed("l")


@pytest.fixture
def tiny() -> Iterator[None]:
    """Writes of more than 64 bytes are heavy."""
    with altered(heavy_bytes=64, heavy_step_bytes=64):
        yield


async def heavy_under_way(bench: Bench, request: Assign | AlterSet | Batch) -> asyncio.Task[Any]:
    """A heavy request that has begun to be decided, and is not written."""
    await bench.node.session().call(Assign("crew", "first", LIGHT))
    task = asyncio.create_task(bench.node.session().call(request))
    for _ in range(3):  # It begins, after its check, and once it is decided.
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def values_of(bench: Bench, register: str) -> list[bytes]:
    found = await bench.node.session().call(ReadRegister("crew", register))
    return [sibling.value for sibling in found.siblings]


@pytest.mark.usefixtures("tiny")
async def test_a_heavy_write_gives_others_turns(bench: Bench) -> None:
    written = bench.node._database.issuer.operations
    await heavy_under_way(bench, Assign("crew", "r", HEAVY))
    assert bench.node._database.issuer.operations == written + 1  # The first one: it has not been written yet.


@pytest.mark.usefixtures("tiny")
async def test_a_heavy_batch_pauses_by_weight(bench: Bench) -> None:
    turns = 0
    batch = Batch([AlterSet("crew", f"{{s}}{nth}", [packed(nth)]) for nth in range(10)])
    await bench.node.session().call(Assign("crew", "first", LIGHT))
    task = asyncio.create_task(bench.node.session().call(batch))
    while bench.node._database.issuer.operations == 1:
        await asyncio.sleep(0)
        turns += 1
    await task
    assert turns >= 10 + 3  # One for each alteration; its check, its operation and its rows are steps of their own.


@pytest.mark.usefixtures("tiny")
async def test_a_crossed_write_is_decided_again(bench: Bench) -> None:
    heavy = await heavy_under_way(bench, Assign("crew", "r", HEAVY))
    bench.node._database.issue(Assign("crew", "r", LIGHT), None)
    await heavy
    assert await values_of(bench, "r") == [HEAVY]
    vector = bench.node._database.partitions.load(partition_of("crew", "r")).vector
    assert sum(sequence for _, sequence in vector.items()) == 2  # Each has a dot of its own.


@pytest.mark.usefixtures("tiny")
async def test_upkeep_of_the_partition_crosses_a_write(bench: Bench) -> None:
    heavy = await heavy_under_way(bench, Assign("crew", "r", HEAVY))
    before = bench.node._database.issuer.operations
    turns, row = 0, keys.index_rows(partition_of("crew", "r"), keys.Kind.REGISTER, "crew", "r")
    bench.node._database._commit.write({row: None})
    while bench.node._database.issuer.operations == before:
        await asyncio.sleep(0)
        turns += 1
    await heavy
    assert turns > 3  # It began anew.


@pytest.mark.usefixtures("tiny")
async def test_an_erasure_that_ends_meanwhile_is_begun_again(bench: Bench) -> None:
    member, erasure = packed("secret"), bench.node._database.erasure
    for freed in range(2):  # From the second on, the row that says that something is to be erased stands already.
        await bench.node.session().call(AlterSet("crew", "s", [member], []))
        if not freed:
            await bench.node.session().call(AlterSet("crew", "s", [], [member]))
    heavy = await heavy_under_way(bench, AlterSet("crew", "s", [], [member]))
    bench.node._database._commit.write({erasing.ROW: None})  # As at the end of its pass.
    erasure._mark = None
    await heavy
    assert bench.node._database._storage.get(erasing.ROW) is not None


@pytest.mark.usefixtures("tiny")
async def test_others_of_the_partition_wait_for_a_heavy_write(bench: Bench) -> None:
    heavy = await heavy_under_way(bench, Assign("crew", "r", HEAVY))
    light = asyncio.create_task(bench.node.session().call(Assign("crew", "r", LIGHT)))
    await asyncio.gather(heavy, light)
    assert await values_of(bench, "r") == [LIGHT]


@pytest.mark.usefixtures("tiny")
async def test_a_write_that_is_always_crossed_is_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.node.session().call(Assign("crew", "first", LIGHT))
    crossed = 0

    async def turn() -> None:
        nonlocal crossed
        crossed += 1
        bench.node._database.issue(Assign("crew", "r", LIGHT), None)

    monkeypatch.setattr(issuing, "turn", turn)
    await bench.node.session().call(Assign("crew", "r", HEAVY))
    assert await values_of(bench, "r") == [HEAVY]
    assert crossed == 4 * HEAVY_ATTEMPTS_MAX


@pytest.mark.usefixtures("tiny")
async def test_a_sum_read_meanwhile_gains_a_heavy_add(bench: Bench) -> None:
    session = bench.node.session()
    for nth in range(40):  # So many, with keys of their own, that their sum is remembered once it is read.
        await session.call(AddEntry("crew", "m", "k", 1), key=f"add-{nth}")
    sums, target = bench.node._database._kinds.maps.sums, Target(keys.Kind.MAP, "crew", "m")
    sums.forget_partition(target.partition)
    heavy = asyncio.create_task(session.call(Batch([AddEntry("crew", "m", "k", 1)] * 3), key="heavy"))
    while not bench.node._database.issuer._heavy:
        await asyncio.sleep(0)
    for _ in range(3):  # Its first adds are decided.
        await asyncio.sleep(0)
    read = ReadMap("crew", "m", ["k"])
    view = bench.node._database._view(target)
    assert sums.value(view.rows, target, "k") == 40
    await heavy
    assert len(sums) == 1
    assert (await session.call(read)).entries[0].count == 43


@pytest.mark.usefixtures("tiny")
async def test_a_repeated_heavy_write_counts_once(bench: Bench) -> None:
    first = await bench.node.session().call(Assign("crew", "r", HEAVY), key="k")
    before = bench.node._database.issuer.operations
    assert await bench.node.session().call(Assign("crew", "r", HEAVY), key="k") == first
    assert bench.node._database.issuer.operations == before


@pytest.mark.usefixtures("tiny")
async def test_a_watch_begun_meanwhile_sees_a_heavy_write(bench: Bench) -> None:
    heavy = await heavy_under_way(bench, Assign("crew", "r", HEAVY))
    async with bench.node.session().subscribe(Watch("crew")) as changes:
        await heavy
        assert "'r'" in repr(await anext(changes))
