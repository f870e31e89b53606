"""Presence through the store, on one node and among several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, Overloaded, TooLarge
from shoal.kinds.presence.handle import Presence, PresenceChange, PresentMember
from shoal.protocol.requests import Presence as PresenceReply
from shoal.protocol.requests import Present, Push, Subscription
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener, bench, open_bench

pytestmark = pytest.mark.virtual_time

__all__ = ["bench", "open_bench"]


async def met(presence: Presence, *states: Any) -> None:
    """Wait until these are here, and no other."""
    while sorted(str(member.state) for member in await presence.members()) != sorted(map(str, states)):
        await asyncio.sleep(0.002)


async def test_presence_lasts_until_it_is_cleared(bench: Bench) -> None:
    presence = bench.space.presence
    assert await presence.members() == []
    await presence.set({"name": "planner", "step": 1})
    assert await presence.members() == [PresentMember(presence.id, {"name": "planner", "step": 1}, True)]
    await presence.set({"name": "planner", "step": 2})
    assert [member.state["step"] for member in await presence.members()] == [2]
    await presence.clear()
    assert await presence.members() == []


async def test_changes_begin_with_who_is_here(bench: Bench) -> None:
    one, other = bench.store.space("crew").presence, bench.store.space("crew").presence
    await one.set({"n": 1})
    async with aclosing(other.changes()) as changes:
        assert await anext(changes) == PresenceChange("joined", PresentMember(one.id, {"n": 1}, False))
        await one.set({"n": 1})
        await one.set({"n": 2})
        assert await anext(changes) == PresenceChange("changed", PresentMember(one.id, {"n": 2}, False))
        await one.clear()
        assert await anext(changes) == PresenceChange("left", PresentMember(one.id, {"n": 2}, False))


class Nodes:
    """Each subscription is served by the next node, which says who is there, and goes away."""

    def __init__(self, *there: list[Present]) -> None:
        self._there = iter(there)

    @asynccontextmanager
    async def subscribe(self, _: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        yield self._pushed(next(self._there))

    async def _pushed(self, there: list[Present]) -> AsyncIterator[Push]:
        yield PresenceReply(there)


async def test_a_member_unknown_to_the_next_node_left() -> None:
    here, lost = Present(1, 1, b'{"n":1}'), Present(2, 1, b'{"n":2}')
    session: Any = Nodes([here, lost], [here])
    presence = Presence(session, "crew", "", client_id=9, config=Config(reconnect_delay_s_max=0.001))
    async with aclosing(presence.changes()) as changes:
        told = [await anext(changes) for _ in range(3)]
    assert [(change.kind, change.member.id) for change in told] == [("joined", 1), ("joined", 2), ("left", 2)]


async def test_a_document_and_its_space_are_two_places(bench: Bench) -> None:
    async with await bench.space.document("plan") as document:
        await document.presence.set({"at": "plan"})
        assert await bench.space.presence.members() == []
        assert [member.id for member in await document.presence.members()] == [document.client_id]


async def test_a_client_that_closes_a_document_is_gone(bench: Bench) -> None:
    async with await bench.space.document("plan") as other:
        async with await bench.space.document("plan") as document:
            await document.presence.set({"n": 1})
            assert len(await other.presence.members()) == 1
        assert await other.presence.members() == []
        with pytest.raises(InvalidInput):
            await document.presence.set({"n": 2})


async def test_a_client_taken_for_gone_says_it_is_here(open_bench: Opener) -> None:
    bench = open_bench(presence_timeout_s=100.0)
    presence = bench.space.presence
    await presence.set({"n": 1})
    bench.simulated.now_ms += 101_000
    bench.node.service.presences._look()
    async with asyncio.timeout(10.0):  # Long before it is renewed.
        await met(bench.store.space("crew").presence, {"n": 1})


@pytest.mark.parametrize(
    ("state", "error"), [({"f": object()}, InvalidValue), ({"x": "y" * 20_000}, TooLarge)], ids=["no json", "too large"]
)
async def test_impossible_presence_is_refused(bench: Bench, state: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await bench.space.presence.set(state)
    assert await bench.space.presence.members() == []


async def test_too_many_are_refused(open_bench: Opener) -> None:
    bench = open_bench(presence_entries_max=2)
    for _ in range(2):
        await bench.store.space("crew").presence.set({})
    with pytest.raises(Overloaded):
        await bench.store.space("crew").presence.set({})


async def test_nothing_of_it_is_written(bench: Bench) -> None:
    written = bench.node.service._commit.written
    await bench.space.presence.set({"n": 1})
    assert bench.node.service._commit.written == written


# ── among nodes ───────────────────────────────────────────────────────────────


async def test_the_other_nodes_see_who_is_here_and_that_they_left() -> None:
    async with Fleet() as fleet:
        one = fleet["a"].store()
        seen = [fleet[name].store().space("crew").presence for name in "bc"]
        await one.space("crew").presence.set({"name": "planner"})
        for presence in seen:
            await met(presence, {"name": "planner"})
        await one.close()
        for presence in seen:
            await met(presence)


async def test_a_node_that_is_linked_later_is_told_who_is_here() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("c")
        await fleet["a"].store().space("crew").presence.set({"name": "planner"})
        await met(fleet["b"].store().space("crew").presence, {"name": "planner"})
        assert await fleet["c"].store().space("crew").presence.members() == []
        fleet.link_all("c")
        await met(fleet["c"].store().space("crew").presence, {"name": "planner"})


async def test_presence_at_a_cut_off_node_ages_out() -> None:
    async with Fleet(presence_timeout_s=0.3) as fleet:
        await fleet["a"].store().space("crew").presence.set({"name": "planner"})
        watcher = fleet["b"].store().space("crew").presence
        await met(watcher, {"name": "planner"})
        await fleet.isolate("a")
        await met(watcher)
        fleet.link_all("a")
        await met(watcher, {"name": "planner"})


async def test_set_presence_is_renewed_for_as_long() -> None:
    async with Fleet(presence_timeout_s=0.3) as fleet:
        await fleet["a"].store().space("crew").presence.set({"name": "planner"})
        watcher = fleet["b"].store().space("crew").presence
        await met(watcher, {"name": "planner"})
        async with aclosing(watcher.changes(timeout=3.0)) as changes:
            assert (await anext(changes)).kind == "joined"
            with pytest.raises(StopAsyncIteration):
                await anext(changes)
