"""A Yjs client that makes two edits with the same clocks, one for each of two nodes: all show the one that counts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.config import Config
from shoal.node.verification.verify import verify
from shoal.protocol.requests import ReadDocumentJson, Updates
from simulation.world.fleet import Fleet
from tests.support.histories import A, B, typed

SETTINGS: dict[str, Any] = {"scrub_interval_s": 1e6, "rights_spread_s": 1e6}


async def shown(fleet: Fleet, name: str) -> bytes:
    return (await fleet[name].node.session().call(ReadDocumentJson("crew", "plan"))).json


async def sent(fleet: Fleet, name: str, update: bytes) -> None:
    await fleet[name].node.session().call(Updates("crew", "plan", [update]))


@pytest.mark.parametrize(("first", "second"), [("hello", "abc"), ("abc", "hello"), ("abc", "xyz")])
async def test_nodes_show_the_first_of_two_edits(first: str, second: str) -> None:
    async with Fleet("abc", **SETTINGS) as fleet:
        await sent(fleet, "a", typed("-", 0, client=B))
        await fleet.converged()
        await shown(fleet, "c")  # It is open there, too.
        await fleet.isolate("b")
        await sent(fleet, "a", typed(first, 0, client=A))
        fleet["b"].simulated.now_ms += 1000  # So a's is the first by its stamp, whatever either node stamped before.
        await sent(fleet, "b", typed(second, 0, client=A))
        await sent(fleet, "b", typed("!", 1, client=B, origin=(B, 0)))  # An honest client goes on beside it.
        fleet.link_all("b")
        await fleet.converged()
        expected = first + second[len(first) :]
        [content] = {await shown(fleet, name) for name in "abc"}
        assert expected.encode() in content
        for name in "abc":
            report = verify(fleet[name].storage.left_by_crash(None), config=Config())
            assert report.sound, report.problems
        fleet.start("b", await fleet.crash("b", None))
        fleet.link_all("b")
        await fleet.converged()
        assert await shown(fleet, "b") == content


async def test_an_edit_that_came_over_two_nodes_counts_once() -> None:
    """An honest client sends again what nobody acknowledged, to another node."""
    async with Fleet("ab", **SETTINGS) as fleet:
        await fleet.isolate("b")
        for name in "ab":
            await sent(fleet, name, typed("hello", 0, client=A))
        fleet.link_all("b")
        await fleet.converged()
        assert {await shown(fleet, name) for name in "ab"} == {b'{"t":"hello"}'}
