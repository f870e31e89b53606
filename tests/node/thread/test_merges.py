"""Merges and differences of checkpoints, as a node and its handles make them."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import HeadMoved, InvalidInput, MergeConflict, NotFound
from shoal.protocol import requests
from shoal.values.difference import Change
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench

ROOT = {"messages": ["hello"], "plan": {"step": 1}, "kept": list(range(50))}


async def fork(bench: Bench, *sides: dict[str, Any]) -> list[str]:
    """Heads beside each other on one root."""
    root = await bench.space.thread("a").save(ROOT)
    thread = bench.space.thread("a")
    return [(await thread.save({**ROOT, **side}, parent=root.id, on_conflict="fork")).id for side in sides]


async def test_all_heads_are_joined_in_one_checkpoint(bench: Bench) -> None:
    heads = await fork(bench, {"messages": ["hello", "left"]}, {"messages": ["hello", "right"], "plan": {"step": 2}})
    thread = bench.space.thread("a")
    made = await thread.merge(metadata={"why": "joined"})
    assert made.state == {"messages": ["hello", "left", "right"], "plan": {"step": 2}, "kept": list(range(50))}
    assert (set(made.parents), made.heads, made.metadata) == (set(heads), (made.id,), {"why": "joined"})
    assert (await bench.space.thread("a").load()).id == made.id
    assert (await thread.save({"on": 1})).parents == (made.id,)


async def test_three_heads_are_joined_at_once(bench: Bench) -> None:
    heads = await fork(bench, *({"messages": ["hello", n]} for n in range(3)))
    made = await bench.space.thread("a").merge()
    assert made.state["messages"] == ["hello", 0, 1, 2]
    assert set(made.parents) == set(heads)


async def test_a_conflict_names_the_channels_and_writes_nothing(bench: Bench) -> None:
    heads = await fork(bench, {"plan": {"step": 2}}, {"plan": {"step": 3}})
    with pytest.raises(MergeConflict) as conflict:
        await bench.space.thread("a").merge()
    assert conflict.value.detail["channels"] == ["plan"]
    assert set((await bench.space.thread("a").heads())["main"]) == set(heads)
    made = await bench.space.thread("a").merge(resolver=lambda channel, base, sides: max(sides, key=lambda side: side["step"]))
    assert made.state["plan"] == {"step": 3}


async def test_another_branchs_head_is_joined_when_it_is_named(bench: Bench) -> None:
    thread = bench.space.thread("a")
    root = await thread.save(ROOT)
    await thread.branch("side", at=root.id)
    side = await thread.save({**ROOT, "plan": {"step": 9}}, branch="side")
    head = await thread.save({**ROOT, "messages": ["hello", "main"]})
    made = await thread.merge([side.id])
    assert (made.parents, made.state["plan"], made.state["messages"]) == ((head.id, side.id), {"step": 9}, ["hello", "main"])
    assert (await thread.heads())["side"] == [side.id]


async def test_with_nothing_to_join_it_loads_what_is_there(bench: Bench) -> None:
    saved = await bench.space.thread("a").save(ROOT)
    assert (await bench.space.thread("a").merge()).id == saved.id
    with pytest.raises(NotFound, match="no branch 'x'"):
        await bench.space.thread("a").merge(branch="x")


async def test_a_branch_that_moves_while_it_is_merged_is_not_overwritten(bench: Bench) -> None:
    heads = await fork(bench, {"plan": 2}, {"plan": 3})

    async def meanwhile(channel: str, base: Any, sides: Any) -> Any:
        for head in heads:
            await bench.space.thread("a").save({"moved": head}, parent=head)
        return sides[0]

    with pytest.raises(HeadMoved):
        await bench.space.thread("a").merge(resolver=meanwhile)


async def test_a_join_needs_a_parent_that_exists(bench: Bench) -> None:
    [head] = await fork(bench, {"plan": 2})
    session = bench.node.session()
    with pytest.raises(InvalidInput, match="needs a parent"):
        await session.call(requests.Save("crew", "b", {}, parent="", merged=[head]))
    with pytest.raises(NotFound):
        await session.call(requests.Save("crew", "a", {}, parent=head, merged=["00" * 32]))


async def test_every_replica_joins_the_same_heads_in_the_same_way() -> None:
    async with Fleet() as fleet:
        threads = {name: fleet[name].store().space("crew").thread("t") for name in "abc"}
        await threads["a"].save({"m": [0]})
        await fleet.converged()
        for name in "bc":
            await threads[name].load()
        await fleet.isolate("c")
        await threads["b"].save({"m": [0, "b"]})
        await threads["c"].save({"m": [0, "c"]})
        fleet.link_all("c")
        await fleet.converged()
        merged = [(await threads[name].merge(key="merge-once")) for name in "ab"]
        assert merged[0].state == merged[1].state
        await fleet.converged()
        assert (await threads["c"].load()).heads == (merged[0].id,)


async def test_a_difference_is_per_channel_and_path(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.save(ROOT)
    second = await thread.save({**ROOT, "messages": ["hello", "hi"], "plan": {"step": 2}, "new": 1})
    found = await thread.diff(first.id)
    assert (found.before, found.after) == (first.id, second.id)
    assert found.channels == {
        "messages": [Change("add", "/1", after="hi")],
        "plan": [Change("replace", "/step", 1, 2)],
        "new": [Change("add", "", after=1)],
    }
    assert (await thread.diff(second.id, first.id)).channels["new"] == [Change("remove", "", before=1)]
    assert (await thread.diff(second.id)).channels == {}


async def test_branches_are_compared_by_name_and_the_handle_stays_where_it_is(bench: Bench) -> None:
    thread = bench.space.thread("a")
    first = await thread.save({"n": 1})
    await thread.branch("side", at=first.id)
    side = await thread.save({"n": 2}, branch="side")
    head = await thread.save({"n": 3})
    found = await thread.diff("main", "side")
    assert (found.before, found.after, found.channels) == (head.id, side.id, {"n": [Change("replace", "", 3, 2)]})
    await thread.diff(first.id, "side")
    assert (await thread.save({"n": 4})).parents == (head.id,)
    with pytest.raises(NotFound):
        await thread.diff("no-branch")
