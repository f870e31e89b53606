"""A node that was replaced a partition shows what a fresh opening of its directory shows: no cache outlives the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal.client.connection import StoreConnection
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import CatchingUp, SchemaViolation, SlowConsumer
from shoal.node.snapshots import switching
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.snapshots.conftest import NUMBER, SPACE, Filled
from tests.node.snapshots.test_switching import pieces_of

Look = Callable[[Space], Awaitable[Any]]


async def write(space: Space, nth: int) -> None:
    """Write one of each kind, so that what two nodes wrote has the same names and differs everywhere."""
    await space.schemas.put("row", nth, {"type": "object", "maxProperties": nth})
    thread = space.thread("one")
    for step in range(nth):
        await thread.save({"n": nth, "step": step, "notes": [f"of {nth}"] * nth}, label=f"label {nth}")
    for name in ["one", f"only of {nth}"][: 3 - nth]:
        await space.thread(f"status of {name}").save({"n": nth})
        await space.thread(f"status of {name}").pause(reason=f"by {nth}")
    for _ in range(nth):
        await thread.journal.append({"event": nth})
        await thread.worklist("jobs").add([f"job {nth}"])
    await space.counter("count").add(nth)
    await space.register("goal").set(nth)
    await space.set("urls").add(f"url {nth}", "both")
    await space.map("facts").set("k", nth)
    await space.map("sums").add("k", nth)
    await space.budget("money").grant(10 * nth)
    await space.budget("money").spend(nth)
    await space.items.index(("memory",), "n" if nth == 1 else "m")
    for item in range(nth):
        await space.items.put(("memory",), f"key {item}", {"n": nth, "m": nth}, vectors=[[float(nth), 1.0]])
    async with await space.document("page", initial={"title": {"a": nth}}) as page:
        await page.flush()
    if nth == 1:
        await space.counter("gone").add(1)
    else:
        await space.counter("gone").add(1)
        await space.counter("gone").delete()
        await space.counter("gone").add(7)


async def _load(space: Space) -> Any:
    return (await space.thread("one").load()).state


async def _labels(space: Space) -> Any:
    return [label async for label, _ in space.thread("one").labels()]


async def _statuses(space: Space) -> Any:
    return [name async for name in space.threads(status="paused")]


async def _threads(space: Space) -> Any:
    return [name async for name in space.threads()]


async def _journal(space: Space) -> Any:
    return [event.id async for event in space.thread("one").journal.read()]


async def _counter(space: Space) -> Any:
    return [await space.counter("count").value(), await space.counter("gone").value()]


async def _register(space: Space) -> Any:
    return await space.register("goal").get()


async def _set(space: Space) -> Any:
    return await space.set("urls").members()


async def _map(space: Space) -> Any:
    return [await space.map("facts").get("k"), await space.map("sums").get("k")]


async def _budget(space: Space) -> Any:
    return await space.budget("money").remaining()


async def _schema(space: Space) -> Any:
    return [version.json for version in await space.schemas.versions("row")]


async def _items(space: Space) -> Any:
    return [item.value for item in await space.items.get_many([(("memory",), f"key {nth}") for nth in range(3)]) if item]


async def _indexes(space: Space) -> Any:
    async with asyncio.timeout(30.0):
        while not all((found := await space.items.indexes(("memory",))).values()):
            await asyncio.sleep(0.01)  # It is being built.
    return found


async def _search(space: Space) -> Any:
    return [[(each.key, each.value) for each in await space.items.search(("memory",), filter={field: 2})] for field in "nm"]


async def _nearest(space: Space) -> Any:
    return [(each.key, each.score) for each in await space.items.search(("memory",), vector=[1.0, 2.0])]


async def _document(space: Space) -> Any:
    async with await space.document("page") as page:
        return page.to_json()


LOOKS: list[Look] = [
    _load, _labels, _statuses, _threads, _journal, _counter, _register, _set, _map, _budget, _schema, _items, _indexes,
    _search, _nearest, _document,
]  # fmt: skip


def replace(node: Filled, pieces: list[list[tuple[bytes, bytes]]]) -> None:
    """What a node does with a snapshot that it may take."""
    database, storage = node.node._database, node.storage
    database.partitions.close(NUMBER)
    before = database.before_switch(NUMBER)
    storage.write(*switching.at_once(switching.writes(storage, NUMBER, pieces)))
    storage.write(before.transaction.rows)
    storage.sync()
    database.after_switch(NUMBER, before)


def newcomer(node: Filled) -> Space:
    """The space as a client sees it that has seen nothing of what was replaced."""
    entropy = node.simulated.environment.entropy
    connection = StoreConnection(node.node.session(), Config(), "local", entropy)
    return Store(connection, close=node.node.stop).space(SPACE)


@pytest.mark.answers("memory-shows-a-replaced-partition")
@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__.strip("_"))
async def test_a_node_after_a_switch_shows_a_fresh_opening(look: Look) -> None:
    sender, node = Filled(1), Filled(2)
    await write(sender.space, 2)
    await write(node.space, 1)
    old = await look(node.space)
    assert old == await look(node.space), "it is told the same twice, so a cache may have it"
    replace(node, pieces_of(sender.rows()))
    fresh = Filled(3, MemoryStorage(node.rows()))
    shown, expected = await look(newcomer(node)), await look(fresh.space)
    assert shown == expected == await look(sender.space) != old
    for each in (sender, node, fresh):
        await each.node.stop()


@pytest.mark.answers("join-rewrites-all-files")
@pytest.mark.parametrize("had", [False, True])
async def test_a_pass_over_the_files_follows_a_switch_only_if_it_replaced_something(had: bool) -> None:
    sender, node = Filled(1), Filled(2)
    await write(sender.space, 1)
    if had:
        await node.space.counter("old").add(1)
    assert node.storage.get(keys.meta("erasing")) is None
    replace(node, pieces_of(sender.rows()))
    assert (node.storage.get(keys.meta("erasing")) is not None) == had
    for each in (sender, node):
        await each.node.stop()


@pytest.mark.answers("memory-shows-a-replaced-partition")
async def test_writes_after_a_switch_build_on_the_new_rows() -> None:
    sender, node = Filled(1), Filled(2)
    await write(sender.space, 2)
    await write(node.space, 1)
    replace(node, pieces_of(sender.rows()))
    space = newcomer(node)
    await space.counter("count").add(1)
    await space.thread("one").append("notes", "more")
    assert await space.counter("count").value() == 3
    assert (await space.thread("one").load()).state == {"n": 2, "step": 1, "notes": ["of 2", "of 2", "more"]}
    for each in (sender, node):
        await each.node.stop()


@pytest.mark.answers("memory-shows-a-replaced-partition")
async def test_an_object_created_after_a_switch_is_listed() -> None:
    sender, node = Filled(1), Filled(2)
    await write(sender.space, 2)
    await node.space.counter("only here").add(1)
    replace(node, pieces_of(sender.rows()))
    space = newcomer(node)
    assert "only here" not in [name async for name in space.counters()]
    await space.counter("only here").add(1)
    assert "only here" in [name async for name in space.counters()]
    for each in (sender, node):
        await each.node.stop()


@pytest.mark.answers("memory-shows-a-replaced-partition")
async def test_saves_after_a_switch_are_checked_by_the_schemas_that_it_brought() -> None:
    sender, node = Filled(1), Filled(2)
    await node.space.schemas.put("form", 1, {"type": "object", "required": ["old"]}, threads="checked")
    await node.space.thread("checked").save({"old": 1})
    await sender.space.schemas.put("form", 1, {"type": "object", "required": ["new"]}, threads="checked")
    replace(node, pieces_of(sender.rows()))
    thread = newcomer(node).thread("checked")
    with pytest.raises(SchemaViolation):
        await thread.save({"old": 1})
    await thread.save({"new": 1})
    for each in (sender, node):
        await each.node.stop()


@pytest.mark.answers("memory-shows-a-replaced-partition")
async def test_a_watcher_of_a_space_that_a_switch_replaced_is_told_to_start_again() -> None:
    sender, node = Filled(1), Filled(2)
    await write(sender.space, 2)
    await write(node.space, 1)
    async with asyncio.timeout(30.0), node.node.session().subscribe(requests.Watch(SPACE)) as pushes:
        told = asyncio.ensure_future(anext(pushes))
        while not told.done():
            await node.space.counter("count").add(1)
            await asyncio.sleep(0.01)
        replace(node, pieces_of(sender.rows()))
        with pytest.raises(SlowConsumer, match="subscribe again"):
            while True:
                await anext(pushes)
    for each in (sender, node):
        await each.node.stop()


@pytest.mark.answers("snapshot-is-sent-before-it-is-durable")
async def test_a_partition_is_neither_read_nor_written_while_it_is_replaced() -> None:
    node = Filled(1)
    await write(node.space, 1)
    partitions = node.node.service._database.partitions
    partitions.close(NUMBER)
    with pytest.raises(CatchingUp):
        await node.space.counter("count").value()
    with pytest.raises(CatchingUp):
        await node.space.counter("count").add(1)
    partitions.reopen(NUMBER)
    assert await node.space.counter("count").add(1) == 2
    await node.node.stop()
