"""Each quota is reached, and left again; a record may say anything."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from msgspec import structs

from shoal import values
from shoal.errors import HeadMoved, InvalidInput, Overloaded, ShoalError
from shoal.names import RESERVED
from shoal.node.environment import turn
from shoal.node.spaces import usage
from shoal.node.spaces.quotas import parsed
from shoal.protocol.base import declaration_of
from shoal.protocol.requests import (
    QUOTAS,
    Ack,
    AcquireLease,
    Add,
    Announce,
    Dequeue,
    Follow,
    ObjectWrite,
    Present,
    PutEntry,
    Quota,
    QuotaView,
    ReadQueue,
    SetRetention,
    Watch,
)
from shoal.protocol.requests.families import operations
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.access.requests_of_each_kind import made
from tests.node.conftest import Bench, Opener

CONTENTS: dict[Any, dict[str, Any]] = {Ack: {"cursor": b""}, SetRetention: {"events": 5}}
"""Fields that only some values suit."""


async def counted(bench: Bench) -> QuotaView:
    """The quota, once everything is counted."""
    while not (found := await bench.space.quota()).is_counted:
        await asyncio.sleep(0)
    return found


async def swept(bench: Bench) -> None:
    """Return once what was deleted is gone."""
    while (await bench.store.status()).garbage:
        await asyncio.sleep(0.01)


async def refused(bench: Bench, name: str = "refused") -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        await bench.space.register(name).set("x" * 100)
    return caught.value


async def test_bytes_are_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(bytes=2000)
    await counted(bench)
    await bench.space.register("large").set("x" * 3000)
    error = await refused(bench)
    assert error.detail["quota"] == "bytes"
    assert error.detail["retry_after_s"]
    await bench.space.register("large").delete()
    await swept(bench)
    await bench.space.register("small").set(1)
    assert (await counted(bench)).used.bytes < 2000


async def test_objects_are_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(objects=3)
    await counted(bench)
    for n in range(3):
        await bench.space.counter(f"c{n}").add(1)
    assert (await refused(bench)).detail["quota"] == "objects"
    await bench.space.counter("c0").delete()
    await bench.space.counter("c3").add(1)
    assert (await counted(bench)).used.objects == 3


async def test_the_rate_of_writes_is_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(writes_per_s=5)
    for _ in range(5):
        await bench.space.counter("c").add(1)
    error = await refused(bench)
    assert error.detail["quota"] == "writes_per_s"
    wait_s = error.detail["retry_after_s"]
    assert isinstance(wait_s, float)
    bench.simulated.now_ms += int(wait_s * 1000) + 10
    await bench.space.register("r").set(1)


async def test_a_batch_counts_each_write(bench: Bench) -> None:
    await bench.space.set_quota(writes_per_s=5)
    async with bench.space.batch() as batch:
        for n in range(5):
            batch.counter(f"{{t}}{n}").add(1)
    assert (await refused(bench)).detail["quota"] == "writes_per_s"


async def test_watchers_are_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(watchers=2)
    session = bench.node.session()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(session.subscribe(Watch("crew")))
        with pytest.raises(Overloaded, match="watchers of 2"):
            await stack.enter_async_context(session.subscribe(Watch("crew")))
        await stack.enter_async_context(session.subscribe(Watch("another")))
    async with session.subscribe(Watch("crew")):
        assert (await bench.space.quota()).used.watchers == 1


async def test_a_burst_of_watches_stays_within_its_bound(bench: Bench) -> None:
    await bench.space.set_quota(watchers=10)
    session, opened, release = bench.node.session(), [0], asyncio.Event()

    async def watch() -> None:
        async with session.subscribe(Watch("crew")):
            opened[0] += 1
            await release.wait()

    tasks = [asyncio.create_task(watch()) for _ in range(1000)]
    await asyncio.sleep(0.1)
    assert opened == [10]
    release.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in outcomes) == 990
    assert (await bench.space.quota()).used.watchers == 0


async def test_open_documents_are_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(documents=1)
    session = bench.node.session()
    async with session.subscribe(Follow("crew", "a")):
        with pytest.raises(Overloaded, match="open documents of 1"):
            async with session.subscribe(Follow("crew", "b")):
                pass
    async with session.subscribe(Follow("crew", "b")):
        pass


async def test_a_quota_below_what_is_held_takes_deletions(bench: Bench) -> None:
    for n in range(5):
        await bench.space.counter(f"c{n}").add(1)
    await bench.space.set_quota(objects=2)
    await counted(bench)
    await refused(bench)
    for n in range(4):
        await bench.space.counter(f"c{n}").delete()
    await bench.space.counter("new").add(1)


async def test_a_reached_quota_stays_reached(bench: Bench) -> None:
    """Whatever removes, by its declaration, makes nothing of an object that is not there."""
    await bench.space.register("large").set("x" * 3000)
    await bench.space.set_quota(bytes=2000, objects=1)
    before = (await counted(bench)).used
    for kind in operations(ObjectWrite):
        if not declaration_of(kind).frees:
            continue
        names = {field.name: "absent" for field in structs.fields(kind) if field.type is str and field.name != "space"}
        write = structs.replace(made(kind, "crew"), **names, **CONTENTS.get(kind, {}))
        with suppress(ShoalError):
            await bench.node.session().call(write)
        assert (await counted(bench)).used == before, kind


async def test_large_results_are_refused_at_a_reached_quota(bench: Bench) -> None:
    worklist, session = bench.space.thread("t").worklist("todo"), bench.node.session()
    await worklist.add(["first"])
    [item] = (await session.call(ReadQueue("crew", "t", "todo"))).entries
    await bench.space.set_quota(bytes=1)
    await counted(bench)
    with pytest.raises(Overloaded):
        await session.call(Dequeue("crew", "t", "todo", item.id, result=values.encode("x" * 2000)))
    assert (await session.call(Dequeue("crew", "t", "todo", item.id, result=values.encode("done")))).first


async def test_repeated_writes_are_answered_again(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(Add("crew", "c", 1), key="once")
    await bench.space.set_quota(objects=1)
    await counted(bench)
    with pytest.raises(Overloaded):
        await session.call(Add("crew", "c", 1), key="twice")
    assert (await session.call(Add("crew", "c", 1), key="once")).value == 1


async def test_another_space_is_not_limited(bench: Bench) -> None:
    await bench.space.set_quota(writes_per_s=1)
    await bench.space.counter("c").add(1)
    for _ in range(5):
        await bench.store.space("another").counter("c").add(1)


async def test_the_configuration_holds_without_a_record(open_bench: Opener) -> None:
    bench = open_bench(quota_objects=1)
    await bench.space.counter("c").add(1)
    await counted(bench)
    await refused(bench)
    await bench.space.set_quota(objects=0)
    await bench.space.counter("d").add(1)
    assert (await bench.space.set_quota()).limits.objects == 1


async def test_nodes_go_on_in_their_own_space(open_bench: Opener) -> None:
    bench = open_bench(quota_objects=1, quota_writes_per_s=1.0)
    for n in range(5):
        await bench.store.space(RESERVED).counter(f"c{n}").add(1)
    with pytest.raises(InvalidInput):
        await bench.store.space(RESERVED).set_quota(objects=1)


async def test_counts_are_right_after_a_crash(bench: Bench) -> None:
    await bench.space.set_quota(bytes=10**9)
    await counted(bench)
    thread = bench.space.thread("t")
    for n in range(20):
        await thread.save({"n": n, "text": "x" * 100})
    await bench.space.counter("c").add(1)
    await bench.space.counter("c").delete()
    await bench.space.items.put(("memory",), "k", {"v": 1})
    before = (await counted(bench)).used
    again = bench.crashed()
    assert (await counted(again)).used == before
    await again.node.stop()


async def test_counts_follow_pruning(bench: Bench) -> None:
    await counted(bench)
    thread = bench.space.thread("t")
    for n in range(20):
        await thread.save({"n": n, "text": f"{n}" * 2000})
    before = (await counted(bench)).used.bytes
    await thread.prune(keep_last=1)
    await swept(bench)
    after = (await counted(bench)).used.bytes
    again = bench.crashed()
    assert after < before
    assert (await counted(again)).used.bytes == after
    await again.node.stop()


async def test_writes_while_a_space_is_counted_are_counted_once(bench: Bench) -> None:
    for n in range(2000):
        await bench.space.counter(f"c{n}").add(1, durability="memory")
    assert not (await bench.space.quota()).is_counted
    for n in range(0, 2500, 7):
        await bench.space.counter(f"c{n}").add(1, durability="memory")
        await asyncio.sleep(0)
    used = (await counted(bench)).used
    again = bench.crashed(None)
    assert (await counted(again)).used == used
    await again.node.stop()


@pytest.mark.parametrize(
    ("record", "limits"),
    [
        ({"bytes": 5, "future": {"x": 1}}, Quota(bytes=5, objects=7)),
        ({"bytes": -1, "objects": 3}, Quota(objects=3)),
        ({"bytes": "many", "objects": True}, Quota(objects=7)),
        ({"writes_per_s": float("nan")}, Quota(objects=7)),
        ({"writes_per_s": float("inf"), "watchers": 2**70}, Quota(objects=7)),
        ({"bytes": 1.5}, Quota(objects=7)),
        ([1, 2], Quota(objects=7)),
        (None, Quota(objects=7)),
    ],
)
def test_a_malformed_record_leaves_the_configuration(record: Any, limits: Quota) -> None:
    try:
        packed = values.encode(record)
    except ShoalError:  # This version would not write it.
        packed = b"\xc1"
    found = parsed(packed, Quota(objects=7))
    assert found.limits == limits


def test_undecodable_records_leave_the_configuration() -> None:
    assert parsed(b"\xc1\xff", Quota(objects=7)).limits == Quota(objects=7)
    assert parsed(b"", Quota(objects=7)).trouble


async def test_a_malformed_record_is_told(bench: Bench) -> None:
    await bench.node.session().call(PutEntry(RESERVED, QUOTAS, "crew", values.encode({"objects": "many"})))
    await bench.space.counter("c").add(1)
    assert "objects" in (await bench.space.quota()).trouble


@pytest.mark.parametrize("limit", [-1, True, 1.5, "many"])
async def test_a_wrong_limit_is_refused(bench: Bench, limit: Any) -> None:
    with pytest.raises(InvalidInput):
        await bench.space.set_quota(objects=limit)


async def test_a_status_names_reached_quotas(bench: Bench) -> None:
    await bench.space.set_quota(writes_per_s=1)
    await bench.space.counter("c").add(1)
    await refused(bench)
    status = await bench.store.status()
    assert status.quotas_reached == ["crew: writes_per_s"]
    assert status.quota_refusals == 1


async def test_a_quota_set_at_another_node_counts() -> None:
    async with Fleet() as fleet:
        a, b = fleet["a"].store(), fleet["b"].store()
        for n in range(5):
            await b.space("crew").counter(f"c{n}").add(1)
        await a.space("crew").set_quota(objects=3)
        await fleet.converged()
        assert (await b.space("crew").quota()).limits.objects == 3
        await settled(fleet, "b")
        with pytest.raises(Overloaded):
            await b.space("crew").counter("more").add(1)
        await a.space("crew").set_quota(objects=0)
        await fleet.converged()
        await b.space("crew").counter("more").add(1)


async def test_operations_of_peers_are_counted_and_never_refused() -> None:
    async with Fleet() as fleet:
        spaces = [fleet[name].store().space("crew") for name in "abc"]
        for space in spaces:
            await space.quota()
        await settled(fleet, "abc")
        await fleet.isolate("c")
        await spaces[0].set_quota(objects=1)
        await spaces[0].register("r-a").set("x" * 1000)
        for n in range(3):
            await spaces[2].register(f"r-c{n}").set("x" * 1000)
        fleet.link_all("c")
        await fleet.converged()
        uses = [(await space.quota()).used for space in spaces]
        assert uses[0] == uses[1] == uses[2]
        assert uses[0].objects == 4


async def settled(fleet: Fleet, names: str) -> None:
    """Return once these nodes have counted."""
    for name in names:
        while not (await fleet[name].store().space("crew").quota()).is_counted:
            await asyncio.sleep(0)


async def test_the_first_write_after_a_start_is_compared(bench: Bench) -> None:
    await bench.space.set_quota(objects=2)
    for n in range(2):
        await bench.space.counter(f"c{n}").add(1)
    again = bench.crashed()
    await refused(again)
    await again.node.stop()


async def test_a_write_that_is_decided_twice_counts_once(bench: Bench) -> None:
    await bench.space.set_quota(writes_per_s=10)
    thread = bench.space.thread("t")
    await thread.save({"n": 1})
    with pytest.raises(HeadMoved):
        await thread.save({"n": 2}, expect_head="0" * 64)
    assert (await bench.space.quota()).used.writes_per_s == 2


def row(n: int) -> bytes:
    """The key of a row of an object of space `crew`."""
    return keys.OBJECT + b"\x00\x01\x01" + keys.catalog_of("crew")[1:] + bytes([n])


async def test_a_range_that_is_too_long_to_look_through_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_RANGE_ROWS_MAX", 2)
    storage = MemoryStorage({row(n): b"x" * 10 for n in range(6)})
    counts = usage.Usage(storage, turn, wait_s=60)
    use = counts.of("crew")
    await counts.ready("crew")
    assert use.bytes == 6 * (len(row(0)) + 10)
    changes = counts.noting({}, [(row(0), row(5))])
    storage.write({}, [(row(0), row(5))])
    counts.noted(changes)
    while not use.is_counted:
        await asyncio.sleep(0)
    assert use.bytes == len(row(5)) + 10
    await counts.close()


def test_a_row_that_is_not_counted_yet_changes_nothing() -> None:
    use = usage.Use("crew")
    use.cursor = row(3)
    use.change(row(4), None, 10)
    assert use.bytes == 0
    use.change(row(2), None, 10)
    assert use.bytes == len(row(2)) + 10


def test_a_write_is_not_looked_at_as_long_as_nobody_asked() -> None:
    class Unread(dict[bytes, bytes | None]):
        def items(self) -> Any:
            raise AssertionError("nobody asked for a space")

    assert usage.Usage(MemoryStorage(), turn, wait_s=1.0).noting(Unread({row(1): b"x"}), []) == []


async def test_leases_are_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(leases=2)
    first = await bench.node.session().call(AcquireLease("crew", "a", 30_000))
    async with bench.space.lease("b"):
        with pytest.raises(Overloaded, match="leases and claims of 2") as caught:
            async with bench.space.lease("c"):
                pass
        assert (caught.value.detail["quota"], caught.value.detail["used"]) == ("leases", 2)
        repeated = AcquireLease("crew", "a", 30_000, token=first.token)
        assert (await bench.node.session().call(repeated)).granted, "a caller that got no answer asks again"
        assert (await bench.space.quota()).used.leases == 2
        async with bench.store.space("other").lease("c"):
            pass
    async with bench.space.lease("c"):
        pass  # Now that the second one has ended.


async def test_claims_of_work_count_as_leases(bench: Bench) -> None:
    await bench.space.set_quota(leases=1)
    pages = bench.space.worklist("pages")
    await pages.add(["first", "second"])
    job = await pages.claim(ttl=60)
    assert job is not None
    with pytest.raises(Overloaded, match="leases and claims of 1"):
        await pages.claim(ttl=60)
    await job.complete(None)
    assert await pages.claim(ttl=60) is not None


async def test_clients_that_are_present_are_reached_and_left(bench: Bench) -> None:
    await bench.space.set_quota(presences=2)
    session, other = bench.node.session(), bench.node.session()
    for client in (1, 2):
        await session.call(Announce("crew", "", [Present(client, 1, b"1")]))
    with pytest.raises(Overloaded, match="clients that are present of 2"):
        await other.call(Announce("crew", "plan", [Present(3, 1, b"1")]))
    await session.call(Announce("crew", "", [Present(1, 2, b"2"), Present(2, 2, b"null")]))
    await other.call(Announce("crew", "plan", [Present(3, 1, b"1")]))
    assert (await bench.space.quota()).used.presences == 2
    await session.close()
    await other.call(Announce("crew", "plan", [Present(4, 1, b"1")]))
