"""Inboxes, worklists, consumers and snapshots on three nodes: what is done on one is done on all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from shoal.errors import Taken
from shoal.kinds.thread.handle.thread import Thread
from simulation.world.fleet import Fleet
from tests.node.conftest import Opener


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def on(fleet: Fleet, name: str) -> Thread:
    """The thread, as who knows nothing sees it on that node."""
    return fleet[name].store().space("crew").thread("t")


async def waiting(thread: Thread) -> list[object]:
    return [message.value async for message in thread.inbox.pending()]


async def test_a_message_that_was_taken_anywhere_comes_to_nobody(fleet: Fleet) -> None:
    await on(fleet, "a").inbox.send("do", key="k")
    await fleet.converged()
    message = await on(fleet, "b").inbox.next()
    assert message is not None
    await on(fleet, "b").save({"done": 1}, take=[message])
    await fleet.converged()
    for name in "abc":
        assert await waiting(on(fleet, name)) == []
        with pytest.raises(Taken):
            await on(fleet, name).inbox.take(message)
        assert not (await on(fleet, name).inbox.send("do", key="k")).sent


async def test_two_that_take_one_message_apart_both_stay_visible_everywhere(fleet: Fleet) -> None:
    await on(fleet, "a").inbox.send("do")
    await fleet.converged()
    await fleet.isolate("c")
    for name in "bc":
        message = await on(fleet, name).inbox.next()
        assert message is not None
        await on(fleet, name).inbox.take(message, by=name)
    fleet.link_all("c")
    await fleet.converged()
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    [message] = [message async for message in on(fleet, "a").inbox.taken()]
    assert sorted(finish.by for finish in message.taken) == ["b", "c"]


async def test_a_key_that_was_sent_on_two_nodes_apart_is_one_message(fleet: Fleet) -> None:
    await fleet.isolate("c")
    for name in "ac":
        await on(fleet, name).inbox.send(f"from {name}", key="k")
        await on(fleet, name).worklist("w").add(["x", name])
    fleet.link_all("c")
    await fleet.converged()
    [message] = [message async for message in on(fleet, "b").inbox.pending()]
    assert {message.value, *message.others} == {"from a", "from c"}
    assert sorted([item.key async for item in on(fleet, "b").worklist("w").pending()]) == ["a", "c", "x"]
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_memory_forgotten_on_one_node_is_gone_everywhere(fleet: Fleet) -> None:
    work = on(fleet, "a").worklist("w")
    await work.add(["x", "y"])
    await work.done("x", result=1)
    await fleet.converged()
    assert await on(fleet, "b").worklist("w").forget(before=datetime(2200, 1, 1, tzinfo=UTC)) == 1
    await fleet.converged()
    assert await on(fleet, "c").worklist("w").find("x") is None
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_consumer_goes_on_at_another_node(fleet: Fleet) -> None:
    for number in range(4):
        await on(fleet, "a").journal.append(number)
    await fleet.converged()
    consumer = on(fleet, "b").journal.consumer("billing")
    async for event in consumer.read(follow=False):
        await consumer.ack(event)
        if event.event == 1:
            break
    await fleet.converged()
    again = on(fleet, "c").journal.consumer("billing")
    assert [event.event async for event in again.read(follow=False)] == [2, 3]


async def test_a_replay_uses_no_snapshot_that_lacks_an_event_that_came_late(fleet: Fleet) -> None:
    await fleet.isolate("c")
    await on(fleet, "c").journal.append("apart")
    for number in range(3):
        await on(fleet, "a").journal.append(number)
    nothing: list[object] = []
    made = await on(fleet, "a").journal.replay(lambda value, event: [*value, event.event], initial=nothing, name="all", every=1)
    assert made == [0, 1, 2]
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        journal = on(fleet, name).journal
        with_snapshot = await journal.replay(lambda value, event: [*value, event.event], initial=nothing, name="all")
        without = await journal.replay(lambda value, event: [*value, event.event], initial=nothing)
        assert with_snapshot == without
        assert sorted(map(str, without)) == ["0", "1", "2", "apart"]


async def test_a_taken_message_is_forgotten_after_a_while_by_those_taken_later(open_bench: Opener) -> None:
    bench = open_bench(inbox_taken_s=10)
    thread = bench.space.thread("t")
    for number in range(3):
        await thread.inbox.send(number, key=f"k{number}")
        await thread.inbox.take(await anext(thread.inbox.pending()))
    bench.simulated.now_ms += 11_000
    await thread.inbox.send("later", key="later")
    assert not (await thread.inbox.send(0, key="k0")).sent
    await thread.inbox.take(await anext(thread.inbox.pending()))
    assert [message.value async for message in thread.inbox.taken()] == ["later"]
    assert (await thread.inbox.send(0, key="k0")).sent


async def test_a_worklist_never_forgets_what_is_done(open_bench: Opener) -> None:
    bench = open_bench(inbox_taken_s=10)
    work = bench.space.thread("t").worklist("w")
    await work.add(["a", "b"])
    await work.done("a")
    bench.simulated.now_ms += 11_000
    await work.done("b")
    assert await work.add(["a", "b"]) == 0


async def test_a_threads_worklists_are_listed_with_how_far_they_have_come(fleet: Fleet) -> None:
    thread = on(fleet, "a")
    assert await thread.worklists() == {}
    await thread.worklist("pages").add(["x", "y"])
    await thread.worklist("calls").add(["z"])
    async for item in thread.worklist("pages").pending():
        await thread.worklist("pages").done(item)
        break
    await fleet.converged()
    found = await on(fleet, "b").worklists()
    assert {name: (at.pending, at.done) for name, at in found.items()} == {"calls": (1, 0), "pages": (1, 1)}
