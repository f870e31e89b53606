"""A write that dies because its object was deleted is not acknowledged by copies: its writer is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal import values
from shoal.cluster import messages
from shoal.cluster.messages import Digest, Have, Push
from shoal.errors import DeletedMeanwhile, NotFound
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.handler import target_of
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from simulation.world.fleet import Fleet, Spoil


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """`c` has the thread, and has not heard that it is deleted, and begun anew."""
    async with Fleet(quorum_timeout_s=30, sync_interval_s=0.2) as fleet:
        await thread(fleet, "a").save({"x": 1})
        await fleet.converged()
        fleet.spoil = deaf_until_it_writes()
        await thread(fleet, "a").delete(durability="quorum")
        await thread(fleet, "a").save({"x": "a new life"}, durability="quorum")
        yield fleet
        fleet.spoil = lambda source, target, message: message


def deaf_until_it_writes() -> Spoil:
    """`c` hears nothing but digests until what it writes has left, and no push after that."""
    written = False

    def spoil(source: str, target: str, message: bytes) -> bytes | None:
        nonlocal written
        written = written or (source == "c" and is_push(message))
        deaf = is_push(message) if written else not isinstance(messages.decode(message), Digest)
        return None if target == "c" and deaf else message

    return spoil


def is_push(message: bytes) -> bool:
    return isinstance(messages.decode(message), Push)


def thread(fleet: Fleet, name: str) -> Thread:
    return fleet[name].store().space("crew").thread("t")


SAVE = requests.Save("crew", "t", {"x": values.encode("paid invoice")})
WRITES: dict[str, requests.AnyWrite] = {
    "a save": SAVE,
    "an event": requests.Append("crew", "t", values.encode("paid")),
    "a message": requests.Enqueue("crew", "t", "", [requests.QueueItem("1", values.encode("pay"))]),
    "a batch": requests.Batch([SAVE, requests.Append("crew", "t", values.encode("paid"))]),
}


@pytest.mark.answers("save-that-all-nodes-acknowledged-is-dead")
@pytest.mark.parametrize("durability", ["quorum", "all"])
async def test_a_write_to_what_was_deleted_meanwhile_is_not_acknowledged(fleet: Fleet, durability: Durability) -> None:
    with pytest.raises(DeletedMeanwhile) as raised:
        await fleet["c"].node.session().call(SAVE, durability=durability)
    assert raised.value.written == "yes"
    assert raised.value.detail["objects"] == ["thread 't' of space 'crew'"]
    await fleet.converged()
    assert (await thread(fleet, "c").load()).state == {"x": "a new life"}


@pytest.mark.parametrize("durability", ["quorum", "all"])
async def test_nor_is_one_that_was_begun_without_a_task(fleet: Fleet, durability: Durability) -> None:
    told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    session = fleet["c"].node.session()
    assert session.begin(SAVE, told.set_result, durability=durability)
    assert isinstance(await told, DeletedMeanwhile)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_so_it_is_with_whatever_a_thread_holds(fleet: Fleet, write: requests.AnyWrite) -> None:
    with pytest.raises(DeletedMeanwhile):
        await fleet["c"].node.session().call(write, durability="all")


@pytest.mark.answers("save-that-all-nodes-acknowledged-is-dead")
@pytest.mark.parametrize("name", "abc")
async def test_a_retry_says_the_same_again_on_every_node(fleet: Fleet, name: str) -> None:
    with pytest.raises(DeletedMeanwhile):
        await fleet["c"].node.session().call(SAVE, key="k", durability="quorum")
    with pytest.raises(DeletedMeanwhile):
        await fleet[name].node.session().call(SAVE, key="k", durability="quorum")


async def test_a_retry_at_a_node_that_has_not_heard_of_the_deletion_says_so_too(fleet: Fleet) -> None:
    await fleet["c"].node.session().call(SAVE, key="k")  # Under `local`: it does not wait, and is not told.
    with pytest.raises(DeletedMeanwhile):
        await fleet["c"].node.session().call(SAVE, key="k", durability="quorum")


async def test_under_local_nothing_is_waited_for_and_it_is_counted_as_before(fleet: Fleet) -> None:
    saved = await fleet["c"].node.session().call(SAVE)
    assert isinstance(saved, requests.Saved)
    await fleet.converged()
    with pytest.raises(NotFound):
        await thread(fleet, "a").load(saved.id)
    assert await died(fleet, "a") == 1


@pytest.mark.answers("save-that-all-nodes-acknowledged-is-dead")
async def test_where_acknowledgements_are_lost_a_later_one_hides_nothing(fleet: Fleet) -> None:
    heard: list[str] = []  # From whom c was told.
    told = False

    def spoil(source: str, target: str, message: bytes) -> bytes | None:
        if target != "c":
            return message
        decoded = messages.decode(message)
        if not isinstance(decoded, Have):
            return None
        heard.append(source)
        return message if told else None

    async def heard_from_both() -> None:
        async with asyncio.timeout(30):
            while set(heard) < {"a", "b"}:
                await asyncio.sleep(0.002)

    fleet.spoil = spoil
    session = fleet["c"].node.session()
    dying = asyncio.create_task(session.call(SAVE, durability="all"))
    async with asyncio.timeout(30):
        while await died(fleet, "a") + await died(fleet, "b") < 2:
            await asyncio.sleep(0.002)
    told = True
    heard.clear()
    await session.call(requests.Add("crew", "after {t}", 1))
    await heard_from_both()
    await asyncio.sleep(0)
    assert not dying.done()
    fleet.spoil = lambda source, target, message: None if target == "c" and is_push(message) else message
    await fleet.isolate("c")  # It may have asked for operations whose answer was lost. With a new link, it asks again at once.
    fleet.link_all("c")
    with pytest.raises(DeletedMeanwhile):
        await dying


async def died(fleet: Fleet, name: str) -> int:
    status = await fleet[name].node.session().call(requests.Status())
    assert isinstance(status, requests.NodeStatus)
    return status.died


async def test_a_node_that_started_again_counts_all_that_it_held_among_its_deletions(fleet: Fleet) -> None:
    """Which of them were, it does not know any more."""
    fleet.start("b", await fleet.crash("b"))
    partition = target_of(SAVE).partition
    found = fleet["b"].replicator._database.partitions.load(partition)
    assert found.vector
    assert found.endings == found.vector.frontier


async def test_an_edit_of_a_document_that_was_deleted_is_not_acknowledged(fleet: Fleet) -> None:
    begin = requests.Begin("crew", "plan", b'{"tasks": []}')
    fleet.spoil = lambda source, target, message: message
    await fleet["a"].node.session().call(begin, durability="all")
    fleet.spoil = deaf_until_it_writes()
    await fleet["a"].node.session().call(requests.DeleteDocument("crew", "plan"), durability="quorum")
    patch = requests.Patch("crew", "plan", b'[{"op": "add", "path": "/tasks/-", "value": 1}]')
    with pytest.raises(DeletedMeanwhile):
        await fleet["c"].node.session().call(patch, durability="quorum")


async def test_a_write_whose_thread_lives_is_acknowledged_though_others_were_deleted(fleet: Fleet) -> None:
    saved = await fleet["c"].store().space("crew").thread("other {t}").save({"x": 1}, durability="all")
    assert (await fleet["a"].store().space("crew").thread("other {t}").load()).id == saved.id
