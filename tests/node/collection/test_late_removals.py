"""A removal that found nothing, and comes late to another node, removes nothing of what was made since."""

from __future__ import annotations

import pytest

from shoal import values
from shoal.config import Config
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from simulation.world.fleet import Fleet

ONE = values.encode(1)
REMOVALS: dict[str, tuple[requests.AnyWrite, requests.AnyWrite, requests.AnyRequest]] = {
    "a thread": (
        requests.DeleteThread("crew", "t"),
        requests.Save("crew", "t", {"x": ONE}),
        requests.Load("crew", "t"),
    ),
    "a document": (
        requests.DeleteDocument("crew", "t"),
        requests.Begin("crew", "t", b'{"x": [1]}'),
        requests.ReadDocumentJson("crew", "t"),
    ),
}


@pytest.mark.answers("deletion-takes-effect-late")
@pytest.mark.parametrize(("remove", "make", "read"), REMOVALS.values(), ids=REMOVALS)
async def test_registers_made_after_an_answered_removal_stay(
    remove: requests.AnyWrite, make: requests.AnyWrite, read: requests.AnyRequest
) -> None:
    async with Fleet() as fleet:
        session = fleet["b"].node.session()
        answer = await session.call(remove, key="k")
        await session.call(make)
        await fleet.converged()
        # The first attempt left for this node, which was slow.
        assert await fleet["a"].node.session().call(remove, key="k") == answer
        await fleet.converged()
        for name in "abc":
            assert await fleet[name].node.session().call(read)
            assert fleet.rows(name) == fleet.rows("a")
            report = verify(fleet[name].storage.left_by_crash(None), config=Config())
            assert report.sound, report.problems


OF_SETS: dict[str, tuple[requests.AnyWrite, requests.AnyWrite, requests.AnyRequest]] = {
    "an element": (
        requests.AlterSet("crew", "t", remove=[ONE]),
        requests.AlterSet("crew", "t", add=[ONE]),
        requests.ReadSet("crew", "t"),
    ),
    "all elements": (
        requests.ClearSet("crew", "t"),
        requests.AlterSet("crew", "t", add=[ONE]),
        requests.ReadSet("crew", "t"),
    ),
    "an element of a map's": (
        requests.AlterEntry("crew", "t", "k", remove=[ONE]),
        requests.AlterEntry("crew", "t", "k", add=[ONE]),
        requests.ReadMap("crew", "t"),
    ),
}


@pytest.mark.parametrize(("remove", "make", "read"), OF_SETS.values(), ids=OF_SETS)
async def test_members_added_after_an_answered_removal_stay(
    remove: requests.AnyWrite, make: requests.AnyWrite, read: requests.AnyRequest
) -> None:
    async with Fleet() as fleet:
        session = fleet["b"].node.session()
        answer = await session.call(remove, key="k")
        await session.call(make)
        await fleet.converged()
        assert await fleet["a"].node.session().call(remove, key="k") == answer
        await fleet.converged()
        for name in "abc":
            assert (await fleet[name].node.session().call(read)).size == 1
            assert fleet.rows(name) == fleet.rows("a")
