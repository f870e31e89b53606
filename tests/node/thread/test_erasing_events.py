"""Events that are erased one by one: on one node and among several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from shoal import values
from shoal.client.watching import Change
from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.errors import InvalidInput, KeyReused, NotFound, Unavailable
from shoal.kinds.journal.handle import Journal
from shoal.protocol import requests
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench
from tests.node.thread.test_trimming import kept_payloads, listed
from tests.node.writes.test_erasing import check_sound, swept

MARK = b"a-value-that-nothing-else-holds"
SECRET = {"about": MARK.decode()}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def journal_of(fleet: Fleet, node: str) -> Journal:
    return fleet[node].store().space("crew").thread("agent").journal


def holds_the_value(storage: MemoryStorage) -> bool:
    return any(MARK in key or MARK in value for key, value in storage.scan(b"", None))


async def test_an_erased_event_keeps_its_place_id_key_and_time(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    for number in range(3):
        await journal.append(SECRET if number == 1 else number, key=f"event-{number}")
    before = [event async for event in journal.read()]
    assert await journal.erase(before[1])
    after = [event async for event in journal.read()]
    assert [(each.id, each.key, each.time) for each in after] == [(each.id, each.key, each.time) for each in before]
    assert [(each.event, each.erased) for each in after] == [(0, False), (None, True), (2, False)]
    check_sound(bench.storage)


@pytest.mark.answers("erased-value-comes-back")
@pytest.mark.parametrize("key", [None, "k"])
async def test_no_row_holds_the_value_once_the_erasure_is_swept(bench: Bench, key: str | None) -> None:
    journal = bench.space.thread("agent").journal
    appended = await journal.append(SECRET, key=key)
    assert holds_the_value(bench.storage)
    assert await journal.erase(appended.id)
    await swept(bench.storage)
    assert not holds_the_value(bench.storage)
    assert kept_payloads(bench.storage) == 0
    check_sound(bench.storage)
    assert not await journal.erase(appended.id)


@pytest.mark.answers("event-is-called-erased-too-early")
async def test_an_event_that_is_not_known_is_not_found_and_a_trimmed_one_has_no_value(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    first = await journal.append(1)
    await journal.append(2)
    await journal.trim(keep=1)
    assert not await journal.erase(first.id)
    unknown = first.id[:16] + "ab" * 16 + first.id[48:]
    with pytest.raises(NotFound, match="Nothing was written"):
        await journal.erase(unknown)
    with pytest.raises(InvalidInput, match="68 hex digits"):
        await journal.erase("first")
    assert await listed(journal) == [2]


async def test_a_record_of_a_stream_is_not_erased_alone(bench: Bench) -> None:
    journal = bench.space.thread("stream/notes").journal
    appended = await journal.append(SECRET)
    with pytest.raises(InvalidInput, match="Delete the stream"):
        await journal.erase(appended.id)
    assert await listed(journal) == [SECRET]


async def test_the_same_append_by_its_key_is_answered_with_the_erased_event(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    first = await journal.append(SECRET, key="k")
    await journal.erase(first.id)
    again = await journal.append(SECRET, key="k")
    assert (again.id, again.appended) == (first.id, False)
    with pytest.raises(KeyReused):
        await journal.append("another", key="k")
    assert await listed(journal) == [None]
    await journal.append("last")
    await journal.trim(keep=1)
    with pytest.raises(KeyReused, match="was erased"):
        await journal.append(SECRET, key="k")
    assert (await journal.append("another", key="k")).appended
    check_sound(bench.storage)


async def test_consumers_go_on_and_followers_are_told(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    ids = [(await journal.append(number)).id for number in range(3)]
    consumer = journal.consumer("c")
    found = [event async for event in consumer.read(follow=False)]
    await consumer.ack(found[0])
    async with aclosing(bench.space.watch()) as changes:
        told = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await journal.erase(ids[1])
        change = await told
    assert isinstance(change, Change)
    assert (change.kind, change.name, change.what, change.id) == ("thread", "agent", "erase", ids[1])
    assert [(each.event, each.erased) for each in [event async for event in consumer.read(follow=False)]] == [
        (None, True),
        (2, False),
    ]


async def test_an_erased_event_can_be_trimmed_and_retained(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    await journal.retain(events=100)
    ids = [(await journal.append(SECRET, key=f"k{number}")).id for number in range(4)]
    await journal.erase(ids[0])
    await journal.erase(ids[3])
    await journal.trim(keep=2)
    await swept(bench.storage)
    assert [event.erased async for event in journal.read()] == [False, True]
    check_sound(bench.storage)


async def test_a_batch_erases_with_its_other_writes(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    appended = await journal.append(SECRET)
    async with bench.space.batch() as batch:
        erased = batch.thread("agent").journal.erase(appended.id)
        batch.thread("agent").journal.append("after")
    assert erased.reply == requests.EventErased(True)
    assert await listed(journal) == [None, "after"]


# ── among nodes ───────────────────────────────────────────────────────────────


async def test_a_node_that_was_away_shows_no_value_and_rows_agree(fleet: Fleet) -> None:
    journal = journal_of(fleet, "a")
    ids = [(await journal.append(SECRET, key=key)).id for key in (None, "k")]
    await fleet.converged()
    await fleet.isolate("c")
    for id in ids:
        assert await journal.erase(id)
    assert await listed(journal) == [None, None]
    assert await listed(journal_of(fleet, "c")) == [SECRET, SECRET]
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert [event.erased async for event in journal_of(fleet, name).read()] == [True, True]
        assert not holds_the_value(fleet[name].storage)
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


@pytest.mark.answers("erased-value-comes-back")
async def test_the_same_append_on_a_node_that_was_away_does_not_bring_the_value_back(fleet: Fleet) -> None:
    await fleet.isolate("c")
    first = await journal_of(fleet, "a").append(SECRET, key="k")
    await journal_of(fleet, "c").append(SECRET, key="k")
    assert await journal_of(fleet, "a").erase(first.id)
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert await listed(journal_of(fleet, name)) == [None]
        assert not holds_the_value(fleet[name].storage)
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


@pytest.mark.answers("erased-value-comes-back")
async def test_an_event_whose_key_is_that_of_its_request_is_erased_on_all_nodes(fleet: Fleet) -> None:
    request = requests.Append("crew", "agent", values.encode(SECRET))
    appended = await fleet["a"].store().connection.session.call(request, key="request-1")
    assert await journal_of(fleet, "a").erase(appended.id)
    await fleet.converged()
    assert [await listed(journal_of(fleet, name)) for name in "abc"] == [[None]] * 3
    await fleet["b"].store().connection.session.call(request, key="request-1")
    await fleet.converged()
    assert [await listed(journal_of(fleet, name)) for name in "abc"] == [[None]] * 3


async def test_a_disk_that_is_replaced_gets_the_erased_event(fleet: Fleet) -> None:
    journal = journal_of(fleet, "a")
    ids = [(await journal.append(number, key=f"k{number}")).id for number in range(3)]
    await journal.erase(ids[1])
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    await fleet.crash("c")
    fleet.start("c", MemoryStorage())
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    assert await listed(journal_of(fleet, "c")) == [0, None, 2]
    check_sound(fleet["c"].storage)
    assert fleet.rows("a") == fleet.rows("c")


async def test_an_older_node_is_sent_no_erasure(fleet: Fleet) -> None:
    journal = journal_of(fleet, "a")
    appended = await journal.append(SECRET)
    older = fleet["b"].identity()._replace(protocol=PEER_PROTOCOL - 1)
    fleet["a"].replicator.linked(older, fleet.wires["a", "b"])
    with pytest.raises(Unavailable, match="runs an older version"):
        await journal.erase(appended.id)
    assert await listed(journal) == [SECRET]
