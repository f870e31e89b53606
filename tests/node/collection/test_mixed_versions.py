"""A node beside one of an older version issues nothing that this one cannot apply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shoal.client.store import Space
from shoal.cluster.handshake import PEER_PROTOCOL_OLDEST
from shoal.errors import Unavailable, Unsupported
from shoal.kinds.thread.handle.thread import Thread
from shoal.storage import keys
from simulation.world.fleet import Fleet


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(seed=1) as fleet:
        yield fleet


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
