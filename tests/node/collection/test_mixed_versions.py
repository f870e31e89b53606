"""Threads that a node of an older version has pruned and swept: it marks no swept checkpoint, and no time of a prune."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shoal.client.store import Space
from shoal.cluster.handshake import PEER_PROTOCOL_OLDEST
from shoal.crdt.dot import DOT_BYTES
from shoal.errors import Pruned, Unavailable, Unsupported
from shoal.kinds.thread.handle.thread import Thread
from shoal.storage import keys
from shoal.storage.memory import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.collection.test_pruning import saved
from tests.node.writes.test_erasing import check_sound, swept


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(seed=1) as fleet:
        yield fleet


def marks(storage: MemoryStorage, table: bytes) -> dict[bytes, bytes]:
    """The marks of this table of pruned checkpoints."""
    found = [(key, keys.split_object(key)[4], value) for key, value in storage.scan(keys.OBJECT, b"P")]
    return {key: value for key, row, value in found if row[:1] == table and len(row) == 33}


def as_older(storage: MemoryStorage) -> None:
    """Leave the rows of pruned checkpoints as a version did that knew no rows W."""
    storage.write(dict.fromkeys(marks(storage, b"W")))
    storage.write({key: value[:DOT_BYTES] for key, value in marks(storage, b"T").items()})


@pytest.mark.parametrize("older", ["c", "bc", "abc"])
async def test_marks_of_an_older_version_stay_quiet(fleet: Fleet, older: str) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    last = await saved(thread, 4)
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    assert marks(fleet["c"].storage, b"W")
    for name in older:
        as_older(fleet[name].storage)
    await saved(thread, 2, start=4)
    await fleet.converged()
    await asyncio.sleep(120)
    for name in "abc":
        check_sound(fleet[name].storage)
        assert bool(marks(fleet[name].storage, b"W")) == (name not in older)
        assert fleet[name].node.service._replicas.mended.rows == 0
        with pytest.raises(Pruned):
            await fleet[name].store().space("crew").thread("agent").load(last[0])


@pytest.mark.parametrize("older", ["b", "c", "bc", "ab"])
async def test_a_repeated_save_is_no_head_for_long_beside_older_nodes(fleet: Fleet, older: str) -> None:
    """Rows of an older version do not tell that it was pruned; the log does, with which the scrub compares them."""
    thread = fleet["a"].store().space("crew").thread("agent")
    await saved(thread, 1)
    await fleet.converged()
    before = fleet["c"].storage.left_by_crash(None)
    again = await thread.save({"n": "again"}, key="k")
    last = await saved(thread, 3)
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    for name in older:
        as_older(fleet[name].storage)
    await fleet.set_back("c", before)
    there = fleet["c"].store().space("crew").thread("agent")
    await there.load()
    fleet["c"].simulated.now_ms += 1000
    assert (await there.save({"n": "again"}, key="k")).id == again.id
    fleet.link_all("c")
    await fleet.converged()
    await asyncio.sleep(300)
    for name in "abc":
        assert list((await fleet[name].store().space("crew").thread("agent").heads())["main"]) == [last[-1]]
        check_sound(fleet[name].storage)


async def erase(thread: Thread) -> None:
    async for event in thread.journal.read():
        await thread.journal.erase(event.id)


CHANGES: dict[str, Callable[[Space, Thread], Awaitable[object]]] = {
    "a branch's deletion": lambda _, thread: thread.delete_branch("side"),
    "a file": lambda _, thread: thread.put_file("a", b"text"),
    "an element of a list": lambda space, _: space.list("l").insert(0, 1),
    "an item that waits": lambda _, thread: thread.worklist("w").add({"do": "it"}, priority=7),
    "a swap": lambda space, _: space.register("r").compare_and_set(None, 2),
    "an erasure": lambda _, thread: erase(thread),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_an_older_node_is_sent_no_change_that_it_does_not_know(fleet: Fleet, name: str) -> None:
    space = fleet["a"].store().space("crew")
    thread = space.thread("t")
    await thread.save({"n": 1})
    await thread.branch("side")
    await thread.journal.append("event")
    await fleet.converged()
    older = fleet["b"].identity()._replace(protocol=PEER_PROTOCOL_OLDEST)
    fleet["a"].replicator.linked(older, fleet.wires["a", "b"])
    before = list(fleet["a"].storage.scan(keys.LOG, b"M"))
    with pytest.raises((Unavailable, Unsupported), match=r"older version|runs a version that knows no"):
        await CHANGES[name](space, thread)
    assert list(fleet["a"].storage.scan(keys.LOG, b"M")) == before
    await thread.update({"n": 2})
