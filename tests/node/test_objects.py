"""Counters, registers, journals, batches and listings, through the whole node."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import InvalidInput, InvalidName, KeyReused, SpansPartitions, TooLarge, TooManySiblings
from shoal.protocol import requests
from tests.node.conftest import Bench, Opener


async def test_a_counter_adds_up(bench: Bench) -> None:
    counter = bench.space.counter("tokens")
    await asyncio.gather(*(counter.add(n) for n in range(100)))
    assert await counter.add(-50) == await counter.value() == 4900


async def test_one_key_counts_once(bench: Bench) -> None:
    counter = bench.space.counter("tokens")
    assert await counter.add(5, key="k") == 5
    assert await counter.add(5, key="k") == 5
    with pytest.raises(KeyReused):
        await counter.add(6, key="k")
    assert await counter.value() == 5


async def test_a_counter_key_counts_once_across_a_crash(bench: Bench) -> None:
    await bench.space.counter("tokens").add(5, key="k")
    again = bench.crashed()
    assert await again.space.counter("tokens").add(5, key="k") == 5
    await again.node.stop()


@pytest.mark.parametrize("amount", [2**63, -(2**63), 10**30])
async def test_an_amount_past_64_bits_is_refused(bench: Bench, amount: int) -> None:
    with pytest.raises(InvalidInput, match="64 bits"):
        await bench.space.counter("n").add(amount)


async def test_a_sum_past_64_bits_is_refused_and_changes_nothing(bench: Bench) -> None:
    counter = bench.space.counter("n")
    assert await counter.add(2**63 - 1) == 2**63 - 1
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await counter.add(2**63 - 1)
    assert await counter.value() == 2**63 - 1
    assert await counter.add(-1) == 2**63 - 2


async def test_a_register_keeps_concurrent_values_until_a_write_has_seen_them(bench: Bench) -> None:
    one, other = bench.space.register("goal"), bench.space.register("goal")
    await one.set("start")
    await one.get()
    await other.get()
    await one.set("left")
    await other.set("right")
    assert await bench.space.register("goal").siblings() == ["right", "left"]
    await other.siblings()
    await other.set("both seen")
    assert await bench.space.register("goal").siblings() == ["both seen"]


async def test_a_blind_set_replaces_what_the_node_shows(bench: Bench) -> None:
    await bench.space.register("goal").set("old")
    await bench.space.register("goal").set("new")
    assert await bench.space.register("goal").siblings() == ["new"]


@pytest.mark.answers("sibling-explosion")
async def test_siblings_are_capped_with_a_typed_error(open_bench: Opener) -> None:
    small = open_bench(siblings_max=3)
    handles = [small.space.register("goal") for _ in range(4)]
    for handle in handles:
        await handle.get()
    for handle in handles[:3]:
        await handle.set("x")
    with pytest.raises(TooManySiblings, match="Nothing was written"):
        await handles[3].set("x")
    assert len(await small.space.register("goal").siblings()) == 3


async def test_a_register_context_must_be_one(bench: Bench) -> None:
    with pytest.raises(InvalidInput):
        await bench.node.session().call(requests.Assign("crew", "r", b"\x01", b"garbage"))


async def test_a_journal_reads_in_order_and_goes_on_from_a_cursor(bench: Bench) -> None:
    journal = bench.space.thread("a").journal
    for n in range(25):
        await journal.append({"n": n})
    first = [event async for event in journal.read(limit=10)]
    rest = [event async for event in journal.read(after=first[-1].cursor)]
    assert [event.event["n"] for event in first + rest] == list(range(25))
    assert not any(event.late for event in first + rest)
    await journal.append({"n": 25})
    assert [event.event["n"] async for event in journal.read(after=rest[-1].cursor)] == [25]


async def test_a_cursor_in_the_middle_of_a_page_goes_on_right_after_its_event(bench: Bench) -> None:
    journal = bench.space.thread("a").journal
    for n in range(10):
        await journal.append(n)
    events = [event async for event in journal.read()]
    for n, event in enumerate(events):
        assert [later.event async for later in journal.read(after=event.cursor)] == list(range(n + 1, 10))


async def test_an_event_key_appends_once(bench: Bench) -> None:
    journal = bench.space.thread("a").journal
    first = await journal.append({"order": 17}, key="order-17")
    again = await journal.append({"order": 17}, key="order-17")
    assert (again.id, first.appended, again.appended) == (first.id, True, False)
    with pytest.raises(KeyReused):
        await journal.append({"order": 18}, key="order-17")
    assert len([event async for event in journal.read()]) == 1


async def test_a_bad_cursor_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput):
        await bench.node.session().call(requests.ReadJournal("crew", "a", b"nonsense"))


async def test_a_batch_is_one_operation(bench: Bench) -> None:
    async with bench.space.batch() as batch:
        saved = batch.thread("{crew-7}/planner").save({"n": 1})
        added = batch.counter("{crew-7}/tokens").add(512)
        appended = batch.thread("{crew-7}/planner").journal.append({"event": 1}, key="e1")
        batch.register("{crew-7}/goal").set("ship")
    assert (await bench.store.status()).operations == 1
    assert added.reply.value == 512
    assert appended.reply.appended
    assert (await bench.space.thread("{crew-7}/planner").load()).id == saved.reply.id


async def test_a_batch_sees_its_own_writes(bench: Bench) -> None:
    async with bench.space.batch() as batch:
        first = batch.thread("{t}").save({"n": 1})
        second = batch.thread("{t}").save({"n": 2})
        batch.counter("{t}").add(1, key="k")
        repeated = batch.counter("{t}").add(1, key="k")
    assert second.reply.parents == [first.reply.id]
    assert not repeated.reply.added
    assert (await bench.space.thread("{t}").load()).state == {"n": 2}


async def test_a_batch_is_refused_as_a_whole(bench: Bench) -> None:
    await bench.space.counter("{t}").add(1, key="k")
    with pytest.raises(KeyReused):
        async with bench.space.batch() as batch:
            batch.thread("{t}").save({"n": 1})
            batch.counter("{t}").add(2, key="k")
    assert [name async for name in bench.space.threads()] == []
    assert await bench.space.counter("{t}").value() == 1


async def test_a_batch_across_partitions_is_refused(bench: Bench) -> None:
    with pytest.raises(SpansPartitions, match="common tag"):
        async with bench.space.batch() as batch:
            batch.counter("a").add(1)
            batch.counter("b").add(1)
    assert [name async for name in bench.space.counters()] == []


async def test_a_batch_whose_block_raises_writes_nothing(bench: Bench) -> None:
    with pytest.raises(RuntimeError):
        async with bench.space.batch() as batch:
            batch.counter("a").add(1)
            raise RuntimeError
    assert await bench.space.counter("a").value() == 0


async def test_a_batch_that_is_too_long_is_refused(open_bench: Opener) -> None:
    small = open_bench(batch_writes_max=2)
    with pytest.raises(TooLarge):
        async with small.space.batch() as batch:
            for _ in range(3):
                batch.counter("a").add(1)


@pytest.mark.answers("writes-stored-before-or-after-their-checkpoint")
async def test_a_power_cut_leaves_a_batch_whole_or_absent(bench: Bench) -> None:
    bench.simulated.hold_syncs()
    async with bench.space.batch(durability="memory") as batch:
        batch.counter("{t}a").add(1)
        batch.counter("{t}b").add(1)
    for keep in (0, 1):
        after = bench.crashed(keep)
        assert {await after.space.counter("{t}a").value(), await after.space.counter("{t}b").value()} == {keep}
        await after.node.stop()
    bench.simulated.release_syncs()


async def test_listings_are_in_byte_order_and_by_prefix(bench: Bench) -> None:
    for name in ("b", "a", "ab", "é", "a/b", "z" * 300):
        await bench.space.counter(name).add(1)
    assert [name async for name in bench.space.counters()] == ["a", "a/b", "ab", "b", "z" * 300, "é"]
    assert [name async for name in bench.space.counters("a")] == ["a", "a/b", "ab"]
    assert [name async for name in bench.space.threads()] == []


async def test_listings_page(open_bench: Opener) -> None:
    small = open_bench(page_items_max=3)
    for n in range(10):
        await small.space.counter(f"c{n}").add(1)
        await small.store.space(f"space-{n}").counter("c").add(1)
    assert [name async for name in small.space.counters()] == [f"c{n}" for n in range(10)]
    assert [name async for name in small.store.spaces()] == ["crew", *(f"space-{n}" for n in range(10))]


async def test_spaces_are_isolated(bench: Bench) -> None:
    await bench.store.space("one").counter("n").add(1)
    await bench.store.space("two").counter("n").add(2)
    assert await bench.store.space("one").counter("n").value() == 1


async def test_watch_shows_every_change_of_its_space_in_order(bench: Bench) -> None:
    async with bench.node.session().subscribe(requests.Watch("crew", None, "a")) as changes:
        await bench.space.counter("a1").add(1)
        await bench.space.counter("b").add(1)
        await bench.store.space("other").counter("a").add(1)
        await bench.space.thread("a2").journal.append(1)
        seen = [await anext(changes), await anext(changes)]
    assert [(change.name, change.what) for change in seen if isinstance(change, requests.Change)] == [
        ("a1", "add"),
        ("a2", "append"),
    ]


async def test_editors_of_a_document_are_kept_by_least_dot(bench: Bench) -> None:
    async with await bench.space.document("d", author="ada") as document:
        document.map("m")["a"] = 1
        client = document.client_id
    session = bench.node.session()
    await session.call(requests.Update("crew", "d", b"\x00\x00", {}, {client: "eve", 7: "bob"}))
    shown = await session.call(requests.ReadDocument("crew", "d"))
    assert isinstance(shown, requests.DocumentState)
    assert shown.authors == {client: "ada", 7: "bob"}


@pytest.mark.parametrize("authors", [{-1: "a"}, {2**53: "a"}, {1: ""}, {1: "a\nb"}, dict.fromkeys(range(1025), "a")])
async def test_authors_that_cannot_be_are_refused(bench: Bench, authors: dict[int, str]) -> None:
    with pytest.raises(InvalidInput):
        await bench.node.session().call(requests.Update("crew", "d", b"\x00\x00", {}, authors))
    assert [name async for name in bench.space.documents()] == []


async def test_lost_values_name_their_author_latest_first(open_bench: Opener) -> None:
    bench = open_bench(document_conflicts_max=2)
    async with await bench.space.document("d", author="ada") as one, await bench.space.document("d", author="bob") as other:
        for key in "abc":
            one.map("m")[key], other.map("m")[key] = "one", "other"
            await asyncio.gather(one.flush(), other.flush())
        found = await one.conflicts()
        assert [conflict.path for conflict in found] == [("m", "c"), ("m", "b")]
        for conflict in found:
            stands = (await bench.space.document("d")).to_py()["m"][conflict.path[1]]
            assert conflict.stands == stands != conflict.lost
            assert (conflict.stands_by, conflict.lost_by) == (("ada", "bob") if stands == "one" else ("bob", "ada"))
    async with await bench.space.document("absent") as absent:
        assert await absent.conflicts() == []


async def test_a_read_of_a_name_that_cannot_be_is_refused(bench: Bench) -> None:
    for name in ("", "a/b\n", "x" * 2000):
        with pytest.raises(InvalidName):
            await bench.node.session().call(requests.ReadCounter("crew", name))
