"""Nodes that hold the same operations compare their rows, name what differs, and replace what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.node.verification.verify import verify
from shoal.storage import keys
from shoal.storage.memory import MemoryStorage
from simulation.world.fleet import Fleet

SETTINGS: dict[str, Any] = {"scrub_interval_s": 0.02, "scrub_bytes_per_s": 1 << 30, "rights_spread_s": 1e6}
WAIT_S = 30.0


async def _written(fleet: Fleet) -> None:
    """Objects of every kind."""
    space = fleet["a"].store().space("crew")
    thread = space.thread("t")
    await thread.save({"messages": [f"message {number} " * 20 for number in range(200)], "plan": {"x": 1}}, label="first")
    await thread.save({"messages": ["another"], "plan": {"x": 2}})
    await thread.branch("what-if", at=(await thread.load()).id)
    await thread.journal.append({"kind": "note"}, key="k1")
    await thread.inbox.send({"task": 1})
    await space.counter("tokens").add(512)
    await space.set("urls").add("http://one")
    await space.register("goal").set({"aim": "high"})
    await space.map("settings").set("colour", "red")
    await space.budget("money").grant(100)
    await space.items.put(("memory", "user-1"), "likes", {"tea": True})
    async with await space.document("plan") as document:
        document.map("tasks")["t1"] = {"done": False}
    await fleet.converged()


async def _equal(fleet: Fleet) -> None:
    """Wait until all nodes have the same rows, and nothing is reported any more."""
    async with asyncio.timeout(WAIT_S):
        while len({str(sorted(_objects(fleet, name).items())) for name in fleet.members}) > 1 or any(
            fleet[name].replicator.scrubber.told for name in fleet.members
        ):
            await asyncio.sleep(0.01)


def _objects(fleet: Fleet, name: str) -> dict[bytes, bytes]:
    return dict(fleet[name].storage.scan(keys.OBJECT, successor(keys.OBJECT)))


def _altered(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1]) if value else b"\x00"


async def test_a_row_that_was_altered_silently_is_found_named_and_replaced_whatever_it_holds() -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        await _written(fleet)
        before = _objects(fleet, "b")
        kinds = {(keys.split_object(key)[1], keys.split_object(key)[4][:2]): key for key in before}
        missed = []
        for number, key in enumerate(kinds.values(), 1):
            fleet["b"].storage.write({key: _altered(before[key])})
            try:
                async with asyncio.timeout(WAIT_S):
                    while fleet["b"].replicator.scrubber.replaced < number:
                        await asyncio.sleep(0.005)
            except TimeoutError:
                missed.append((key, fleet["b"].replicator.scrubber.told))
                break
            await _equal(fleet)
            assert _objects(fleet, "b") == before
        assert not missed
        assert [fleet[name].replicator.scrubber.replaced for name in "ac"] == [0, 0]
        for name in "abc":
            assert verify(fleet[name].storage, config=Config()).problems == []


async def test_what_differed_from_a_directory_that_was_replaced_is_no_longer_reported() -> None:
    async with Fleet("abc", **SETTINGS | {"scrub_interval_s": 1e6}) as fleet:
        await fleet["a"].store().space("crew").counter("tokens").add(1)
        await fleet.converged()
        key = next(iter(_objects(fleet, "a")))
        node, scrubber = fleet["c"].identity().node, fleet["a"].replicator.scrubber
        piece = scrubber._database.evidence.next(int.from_bytes(key[1:3], "big"), b"")
        assert piece is not None
        assert scrubber._differences.compare(node, piece, {}, now=0.0)
        await fleet.crash("c")
        assert len(scrubber.told) == 1
        fleet.start("c", MemoryStorage())
        async with asyncio.timeout(WAIT_S):
            while scrubber.told:
                await asyncio.sleep(0.01)
