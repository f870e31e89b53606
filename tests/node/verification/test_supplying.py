"""A save on checkpoints that were pruned and swept everywhere else can be read on every node all the same."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Shipment, Supply
from shoal.cluster.scrub import UNSURE
from shoal.config import Config
from shoal.crdt.dot import Dot
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.verification import rebuilding
from shoal.node.verification.rebuilding import Supplied
from shoal.node.verification.report import ObjectPlace
from shoal.node.verification.scrubbing import Scrubber, place_of
from shoal.node.verification.verify import verify
from shoal.storage import keys
from simulation.world.fleet import Fleet

WAIT_S = 30.0


def _thread(fleet: Fleet, name: str) -> Thread:
    return fleet[name].store().space("crew").thread("t")


async def _swept(fleet: Fleet) -> None:
    async with asyncio.timeout(WAIT_S):
        while any(_garbage(fleet, name) for name in fleet.members):
            await asyncio.sleep(0.01)


def _garbage(fleet: Fleet, name: str) -> int:
    return sum(1 for _ in fleet[name].storage.scan(keys.GARBAGE, successor(keys.GARBAGE)))


def _objects(fleet: Fleet, name: str) -> dict[bytes, bytes]:
    return dict(fleet[name].storage.scan(keys.OBJECT, successor(keys.OBJECT)))


async def _saved_where_it_was_set_back(fleet: Fleet) -> str:
    """Node c is set back as a whole, which it cannot notice, and saves on what the others have pruned and swept."""
    await _thread(fleet, "a").save({"messages": [f"message number {number} " * 20 for number in range(3000)], "x": 1})
    await _thread(fleet, "a").append("messages", "two")
    await fleet.converged()
    copy = fleet["c"].storage.left_by_crash(0)
    await _thread(fleet, "a").save({"messages": ["all new"], "x": 2}, overwrite=True)
    await _thread(fleet, "a").save({"messages": ["all new", "newer"], "x": 3}, overwrite=True)
    await fleet.converged()
    await _thread(fleet, "a").prune(keep_last=1)
    await fleet.converged()
    await _swept(fleet)
    await fleet.set_back("c", copy)
    checkpoint = await _thread(fleet, "c").append("messages", "written on the node that was set back")
    return str(checkpoint.id)


@pytest.mark.answers("set-back-device-builds-on-pruned-data")
async def test_missing_chunks_come_from_the_node_that_saved() -> None:
    async with Fleet("abc", quorum_timeout_s=2.0) as fleet:
        id = await _saved_where_it_was_set_back(fleet)
        fleet.link_all("c")
        await fleet.converged(WAIT_S)
        async with asyncio.timeout(WAIT_S):
            while _garbage(fleet, "a") or len({str(sorted(_objects(fleet, name).items())) for name in "abc"}) > 1:
                await asyncio.sleep(0.01)
        for name in "abc":
            assert verify(fleet[name].storage, config=Config()).problems == []
        await fleet.crash("c")
        for name in "ab":
            loaded = await _thread(fleet, name).load(id)
            assert loaded.state["messages"][-1] == "written on the node that was set back"
            assert len(loaded.state["messages"]) == 3002


async def test_chunks_that_a_peer_altered_are_not_taken() -> None:
    async with Fleet("abc", quorum_timeout_s=2.0) as fleet:
        altered = 0

        def spoil(source: str, _target: str, message: bytes) -> bytes:
            nonlocal altered
            decoded = messages.decode(message)
            if source != "c" or not isinstance(decoded, Supply):
                return message
            shipments = []
            for shipment in decoded.operations:
                assert isinstance(shipment, Shipment)
                attached = shipment.attached.replace(b"message number 7 ", b"message number 8 ", 1)
                altered += attached != shipment.attached
                shipments.append(msgspec.structs.replace(shipment, attached=attached))
            return messages.encode(Supply(decoded.id, shipments))

        id = await _saved_where_it_was_set_back(fleet)
        fleet.spoil = spoil
        fleet.link_all("c")
        await fleet.converged(WAIT_S)
        await asyncio.sleep(10.0)
        assert altered
        for name in "ab":
            with pytest.raises(ShoalError):
                await _thread(fleet, name).load(id)


@pytest.mark.answers("peers-compare-too-early")
async def test_a_thread_that_still_lacks_what_a_save_needs_is_not_taken_for_one_whose_rows_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = Scrubber._fetch
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def fetch(self: Scrubber, partition: int, dots: list[Dot]) -> Supplied:
        if self._own == slow:
            asked.set()
            await may_answer.wait()
        return await sound(self, partition, dots)

    monkeypatch.setattr("shoal.node.verification.scrubbing.Scrubber._fetch", fetch)
    async with Fleet("abc", quorum_timeout_s=2.0, scrub_interval_s=0.02) as fleet:
        slow = fleet["b"].replicator.identity().node
        await _saved_where_it_was_set_back(fleet)
        fleet.link_all("c")
        async with asyncio.timeout(WAIT_S):
            await asked.wait()
        await fleet.converged(WAIT_S)
        scrubber = fleet["b"].replicator.scrubber
        (lacking,) = scrubber._dangling
        piece = scrubber._as_sure(scrubber._database.exchange.evidence.next(place_of(lacking).partition, b""))
        assert piece is not None
        assert piece.objects()[lacking] == UNSURE
        async with asyncio.timeout(WAIT_S):
            while fleet["a"].replicator.scrubber.incomplete != {lacking}:
                await asyncio.sleep(0.01)
        may_answer.set()
        async with asyncio.timeout(WAIT_S):
            while len({str(_thread_rows(fleet, name)) for name in "abc"}) > 1 or scrubber._dangling:
                await asyncio.sleep(0.01)
        assert scrubber.incomplete == {lacking}
        assert [name for name in "abc" if fleet[name].replicator.scrubber.noticed] == []


def _thread_rows(fleet: Fleet, name: str) -> list[tuple[bytes, bytes]]:
    return sorted(_objects(fleet, name).items())


@pytest.mark.answers("set-back-device-builds-on-pruned-data")
async def test_a_save_whose_base_nobody_has_any_more_is_listed_and_says_so_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0
    sound = rebuilding.Rebuilder.rebuild

    async def rebuild(self: rebuilding.Rebuilder, place: ObjectPlace, fetch: rebuilding.Fetch) -> rebuilding.Outcome:
        nonlocal looks
        outcome = await sound(self, place, fetch)
        looks += 1
        return outcome

    async def none(self: object, partition: int, dots: object) -> dict[object, object]:
        return {}

    monkeypatch.setattr("shoal.node.verification.scrubbing.Scrubber._fetch", none)
    monkeypatch.setattr("shoal.node.verification.rebuilding.Rebuilder.rebuild", rebuild)
    async with Fleet("abc", quorum_timeout_s=2.0, quarantine_s=0.02) as fleet:
        id = await _saved_where_it_was_set_back(fleet)
        fleet.link_all("c")
        await fleet.converged(WAIT_S)
        await fleet.crash("c")
        for name in "ab":
            async with asyncio.timeout(WAIT_S):
                while not fleet[name].replicator.scrubber.told:
                    await asyncio.sleep(0.01)
            assert fleet[name].replicator.scrubber.told == [f"thread 't' of space 'crew': {rebuilding.Outcome.DEAD.value}"]
            with pytest.raises(ShoalError, match="a checkpoint that it builds on is missing"):
                await _thread(fleet, name).load(id)
        seen = looks
        async with asyncio.timeout(WAIT_S):
            while looks < seen + 6:  # It is asked for again, and said once by each.
                await asyncio.sleep(0.01)
    assert len([text for text in caplog.messages if rebuilding.Outcome.DEAD.value in text]) == 2
