"""Going on after a crash: what is found, and on what grounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from shoal.client.connection import StoreConnection
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import Conflict, DriftRefused, InvalidInput, InvalidName, NotFound, TooLarge
from shoal.kinds.step.handle.resume import Resumption
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.node import Node
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

_seeds = count(50)


def space_on(node: Node, config: Config) -> Space:
    environment = SimulatedEnvironment(next(_seeds)).environment
    session = node.session()
    connection = StoreConnection(session, config, "local", environment.entropy)
    return Store(connection, close=session.close).space("crew")


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    one = Node(MemoryStorage(), config=Config(), environment=SimulatedEnvironment(1).environment)
    with altered(listing_scan_max=3):
        yield one
    await one.stop()


@pytest.fixture
def space(node: Node) -> Space:
    return space_on(node, Config())


async def test_a_thread_that_never_began_is_resumed_with_nothing(space: Space) -> None:
    found = await space.thread("t").resume()
    assert (found.checkpoint, found.state, found.at, found.stack, found.open, found.events) == (None, {}, None, [], (), ())
    assert found.reason.text == "branch 'main' has no checkpoint yet; nothing that a quorum has acknowledged is missing."


async def test_it_shows_the_newest_state_what_is_open_what_is_done_and_what_came_since(space: Space, node: Node) -> None:
    thread = space.thread("t")
    await thread.journal.append("before")
    await thread.step("bill", call=lambda: 7)
    saved = await thread.save({"due": 7}, metadata={"at": "draft", "stack": ["main", {"loop": 3}]})
    await thread.journal.append("after")
    beginning = thread.begin("send")
    await beginning.__aenter__()
    await beginning.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)

    found = await space_on(node, Config()).thread("t").resume()
    assert found.checkpoint is not None
    assert (found.checkpoint.id, found.state, found.at) == (saved.id, {"due": 7}, "draft")
    assert found.stack == ["main", {"loop": 3}]
    assert [record.key for record in found.open] == ["send"]
    assert "after" in [event.event for event in found.events]
    assert (found.reason.skipped, found.reason.unresolved, found.reason.quorum) == (("bill",), ("send",), True)
    assert found.reason.text == (
        f"at {saved.id} of branch 'main'; 1 steps are done and will not be called again: bill; "
        "1 steps are unresolved, and may have happened: send; nothing that a quorum has acknowledged is missing."
    )


async def test_only_what_came_since_the_checkpoint_is_listed() -> None:
    simulated = SimulatedEnvironment(1)
    node = Node(MemoryStorage(), config=Config(), environment=simulated.environment)
    thread = space_on(node, Config()).thread("t")
    await thread.journal.append("before")
    simulated.now_ms += 1000
    await thread.save({"n": 1})
    await thread.journal.append("after")
    assert [event.event for event in (await thread.resume()).events] == ["after"]
    await node.stop()


async def test_other_heads_are_named(space: Space, node: Node) -> None:
    one, other = space.thread("t"), space_on(node, Config()).thread("t")
    await one.save({"n": 0})
    await other.load()
    first = await one.save({"n": 1})
    second = await other.save({"n": 2}, on_conflict="fork")
    found = await space_on(node, Config()).thread("t").resume()
    assert {found.reason.head, *found.reason.other_heads} == {first.id, second.id}
    assert "1 other heads are left aside" in found.reason.text


async def test_hooks_are_awaited_in_order_with_what_was_found(space: Space) -> None:
    thread = space.thread("t")
    await thread.save({"n": 1})
    awaited: list[tuple[str, dict[str, Any]]] = []

    async def browser(found: Resumption) -> None:
        awaited.append(("browser", found.state))

    async def database(found: Resumption) -> None:
        awaited.append(("database", found.state))

    assert thread.on_rehydrate(browser) is browser  # It can decorate.
    thread.on_rehydrate(database)
    await thread.resume()
    assert awaited == [("browser", {"n": 1}), ("database", {"n": 1})]


async def test_an_agent_that_goes_on_elsewhere_finds_what_a_quorum_acknowledged() -> None:
    async with Fleet() as fleet:
        for wire in (("a", "c"), ("b", "c")):
            fleet.wires[wire].open.clear()
        thread = fleet["a"].store().space("crew").thread("t")
        await thread.save({"n": 1}, durability="quorum")
        await fleet.crash("a")
        fleet.wires["b", "c"].open.set()
        found = await fleet["c"].store().space("crew").thread("t").resume()
        assert found.state == {"n": 1}
        assert found.reason.quorum


async def test_without_a_quorum_it_says_what_may_be_missing() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("c")
        found = await fleet["c"].store().space("crew").thread("t").resume()
        assert not found.reason.quorum
        assert "without a:1 (linked last at" in found.reason.staleness
        assert found.reason.staleness in found.reason.text


def running(space: Space, *, model: str, sdk: str | None = "1.0") -> Thread:
    dependencies = None if sdk is None else {"sdk": sdk, "numpy": "2"}
    return space.thread("t", configuration={"model": model}, dependencies=dependencies)


async def test_differences_from_the_recorded_setting_are_told_or_refused(space: Space, node: Node) -> None:
    first = running(space, model="small")
    for number in range(3):  # It is recorded with the first of them.
        await first.save({"n": number})
    elsewhere = space_on(node, Config())
    assert (await running(elsewhere, model="small").resume(on_drift="refuse")).reason.differences == ()
    other = running(elsewhere, model="large", sdk="1.1")
    told = (await other.resume()).reason
    assert [text.split()[0] for text in told.differences] == ["configuration", "sdk"]
    assert "sdk 1.1 instead of 1.0" in told.text
    with pytest.raises(DriftRefused, match=r"sdk 1\.1 instead of 1\.0"):
        await other.resume(on_drift="refuse")


async def test_omitted_parts_of_a_setting_are_not_compared(space: Space, node: Node) -> None:
    await running(space, model="small").save({"n": 1})
    elsewhere = space_on(node, Config())
    assert (await running(elsewhere, model="small", sdk=None).resume(on_drift="refuse")).reason.differences == ()
    assert (await elsewhere.thread("t").resume(on_drift="refuse")).reason.differences == ()


# ── edits ─────────────────────────────────────────────────────────────────────


async def test_a_human_edits_channels_and_is_the_author(space: Space) -> None:
    thread = space.thread("t")
    before = await thread.save({"draft": "Dear", "due": 7})
    after = await thread.edit({"draft": "Dear Ana", "note": None}, by="ana")
    assert after.state == {"draft": "Dear Ana", "due": 7, "note": None}
    assert after.parents == (before.id,)
    # The handle goes on from there.
    assert (await thread.save({"n": 1})).parents == (after.id,)


async def test_a_json_patch_edits_within_a_channel_and_removes_one(space: Space) -> None:
    thread = space.thread("t")
    await thread.save({"messages": ["a", "b"], "due": 7, "gone": 1})
    after = await thread.edit(
        [
            {"op": "test", "path": "/due", "value": 7},
            {"op": "replace", "path": "/messages/1", "value": "c"},
            {"op": "remove", "path": "/gone"},
        ],
        by="ana",
    )
    assert after.state == {"messages": ["a", "c"], "due": 7}


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ([{"op": "test", "path": "/due", "value": 8}], Conflict),
        ([{"op": "replace", "path": "/absent/1", "value": 8}], InvalidInput),
        ([{"op": "perhaps", "path": "/due"}], InvalidInput),
        ([{"op": "replace", "path": "", "value": 5}], InvalidInput),
        ({"": 1}, InvalidName),
    ],
)
async def test_a_patch_that_does_not_fit_writes_nothing(space: Space, patch: Any, error: type[Exception]) -> None:
    thread = space.thread("t")
    saved = await thread.save({"due": 7})
    with pytest.raises(error):
        await thread.edit(patch)
    assert (await thread.load()).id == saved.id


async def test_copies_that_double_the_state_are_refused(space: Space) -> None:
    thread = space.thread("t")
    saved = await thread.save({"a": {"x": [1, 2, 3, 4]}})
    bomb = [{"op": "copy", "from": "/a", "path": f"/a/k{nth}"} for nth in range(26)]
    with pytest.raises(TooLarge, match="Nothing was written"):
        await thread.edit(bomb)
    assert (await thread.load()).id == saved.id
    assert (await thread.edit(bomb[:3])).state["a"]["k2"]["k1"]["k0"] == {"x": [1, 2, 3, 4]}


async def test_copies_in_an_edit_are_charged(space: Space) -> None:
    thread = space.thread("t")
    await thread.save({"long": "x" * 6_000_000})
    with pytest.raises(TooLarge, match="copy or read more"):
        await thread.edit([{"op": "copy", "from": "/long", "path": f"/copy{number}"} for number in range(3)])


async def test_a_copy_is_a_value_of_its_own(space: Space) -> None:
    thread = space.thread("t")
    await thread.save({"a": {"x": [1]}, "when": (1, 2)})
    patch: list[dict[str, Any]] = [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/x/-", "value": 2}]
    assert (await thread.edit(patch)).state == {"a": {"x": [1]}, "b": {"x": [1, 2]}, "when": (1, 2)}


async def test_operations_of_an_edit_are_bounded(space: Space) -> None:
    thread = space.thread("t")
    await thread.save({"due": 7})
    with pytest.raises(TooLarge, match="1000 are allowed"):
        await thread.edit([{"op": "test", "path": "/due", "value": 7}] * 1001)


async def test_a_thread_never_saved_cannot_be_edited(space: Space) -> None:
    with pytest.raises(NotFound):
        await space.thread("t").edit({"n": 1})


# ── listings ──────────────────────────────────────────────────────────────────


async def test_threads_are_listed_by_status_and_metadata(space: Space) -> None:
    for number in range(8):  # More than one page looks at.
        thread = space.thread(f"t{number}")
        await thread.save({"n": number}, metadata={"team": "red" if number % 2 else "blue", "n": number})
        if number in (1, 6, 7):
            await thread.pause()
        if number == 7:
            await thread.approve()
    await space.thread("event-only").journal.append("x")

    async def found(**options: Any) -> list[str]:
        return [name async for name in space.threads(**options)]

    assert await found(status="paused") == ["t1", "t6"]
    assert await found(status="paused", filter={"team": "red"}) == ["t1"]
    assert await found(filter={"team": "red", "n": 3}) == ["t3"]
    assert await found(status="running", prefix="t") == ["t0", "t2", "t3", "t4", "t5", "t7"]
    assert await found(status="running", prefix="e") == ["event-only"]
    assert await found(filter={"n": 3.5}) == []
    assert await found(filter={"n": {"$gte": 6}}) == ["t6", "t7"]
    assert await found(filter={"n": {"$gt": 1, "$lt": 6}, "team": {"$ne": "red"}}) == ["t2", "t4"]
    with pytest.raises(InvalidInput, match=r"'\$near' is not a filter operator; the operators are \$eq, \$ne"):
        await found(filter={"n": {"$near": 6}})
    with pytest.raises(InvalidInput, match="filter must be a mapping"):
        await found(filter=[("n", 3)])
    with pytest.raises(InvalidInput, match="a status must be one of"):
        await found(status="asleep")


async def test_a_checkpoint_that_was_loaded_before_is_taken_only_if_it_is_still_the_newest(space: Space) -> None:
    await space.thread("t").save({"n": 1})
    before = await space.thread("t").load()
    assert (await space.thread("t").resume(loaded=before)).state == {"n": 1}
    await space.thread("t").update({"n": 2})
    assert (await space.thread("t").resume(loaded=before)).state == {"n": 2}
