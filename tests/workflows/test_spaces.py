"""The deletion of a space."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest

from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import OutcomeUnknown, Overloaded
from shoal.node.session import ServiceSession
from shoal.node.verification.verify import verify
from shoal.protocol.requests import Add, DeleteSet, ObjectKind
from shoal.storage import keys
from shoal.workflows.spaces import delete_space
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener, bench, open_bench

pytestmark = pytest.mark.virtual_time

__all__ = ["bench", "open_bench"]


async def _schema(space: Space) -> None:
    await space.schemas.put("plan", 1, {"type": "object"}, threads="bound-*")


async def _document(space: Space) -> None:
    async with await space.document("plan") as document:
        document.text("t").insert(0, "x")


async def _budget(space: Space) -> None:
    await space.budget("dollars").grant(5)


WRITES: dict[ObjectKind, Callable[[Space], Awaitable[Any]]] = {
    "thread": lambda space: space.thread("planner").save({"n": 1}),
    "document": _document,
    "counter": lambda space: space.counter("tokens").add(1),
    "register": lambda space: space.register("goal").set(1),
    "items": lambda space: space.items.put(("memory", "user-1"), "k", 1),
    "schema": _schema,
    "set": lambda space: space.set("urls").add("a"),
    "list": lambda space: space.list("plan").push("a"),
    "budget": _budget,
    "map": lambda space: space.map("settings").set("k", 1),
}


def test_every_kind_of_object_is_written_here() -> None:
    assert set(WRITES) == set(get_args(ObjectKind))


async def fill(space: Space) -> None:
    for write in WRITES.values():
        await write(space)


@pytest.mark.answers("spaces-deletion-leaves-something")
async def test_everything_in_a_space_is_deleted_and_counted(bench: Bench) -> None:
    await fill(bench.space)
    await bench.space.thread("other").journal.append(1)
    await bench.space.items.put(("notes",), "k", 1)
    await fill(bench.store.space("another"))
    found = await bench.space.delete()
    assert found.deleted == {kind: 2 if kind in ("thread", "items") else 1 for kind in WRITES}
    assert (found.total, found.left, found.more) == (12, 0, False)
    assert [name async for name in bench.store.spaces()] == ["another"]
    assert (await bench.store.space("another").register("goal").get()) == 1


async def test_a_space_that_was_deleted_can_be_deleted_again_and_used_again(bench: Bench) -> None:
    for _ in range(2):
        await fill(bench.space)
        assert (await bench.space.delete()).total == 10
        assert (await bench.space.delete()).total == 0
    await fill(bench.space)
    assert await bench.space.counter("tokens").value() == 1
    assert verify(bench.storage, config=Config()).problems == []


async def test_a_schema_that_was_deleted_binds_no_thread(bench: Bench) -> None:
    await bench.space.schemas.put("plan", 1, {"type": "object", "required": ["goal"]}, threads="bound-*")
    await bench.space.delete()
    await bench.space.thread("bound-1").save({"n": 1})
    await bench.space.schemas.put("plan", 1, {"type": "object", "required": ["n"]}, threads="bound-*")
    await bench.space.thread("bound-2").save({"n": 1})


async def test_more_objects_than_a_page_and_than_a_turn_are_deleted(open_bench: Opener) -> None:
    bench = open_bench(page_items_max=20)
    for n in range(50):
        await bench.space.counter(f"c{n}").add(1)
    assert (await bench.space.delete()).deleted == {"counter": 50}


async def test_a_bounded_deletion_says_that_there_is_more(bench: Bench) -> None:
    await fill(bench.space)
    rounds = [await delete_space(bench.store.connection, "crew", objects_max=4)]
    while rounds[-1].more:
        assert rounds[-1].left == 10 - sum(each.total for each in rounds)
        rounds.append(await delete_space(bench.store.connection, "crew", objects_max=4))
    assert [each.total for each in rounds] == [4, 4, 2]


@pytest.mark.answers("spaces-deletion-leaves-something")
async def test_writes_made_meanwhile_stay_and_are_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(bench.space)
    call = ServiceSession.call

    async def writes_before_sets(session: ServiceSession, request: Any, **options: Any) -> Any:
        if isinstance(request, DeleteSet):
            await call(session, Add("crew", "tokens", 7))
        return await call(session, request, **options)

    monkeypatch.setattr(ServiceSession, "call", writes_before_sets)
    found = await bench.space.delete()
    monkeypatch.undo()
    assert (found.total, found.left) == (10, 1)
    assert await bench.space.counter("tokens").value() == 7


@pytest.mark.answers("spaces-deletion-leaves-something")
async def test_a_deletion_that_fails_half_way_says_so_and_can_be_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(bench.space)
    call = ServiceSession.call

    async def refuses_sets(session: ServiceSession, request: Any, **options: Any) -> Any:
        if isinstance(request, DeleteSet):
            raise Overloaded("The disk is busy. Nothing was written.", retry_after_s=1.0)
        return await call(session, request, **options)

    monkeypatch.setattr(ServiceSession, "call", refuses_sets)
    with pytest.raises(OutcomeUnknown, match="5 objects of the space are deleted"):
        await bench.space.delete()
    monkeypatch.undo()
    assert (await bench.space.delete()).deleted.keys() == {"set", "list", "map", "budget", "schema"}


@pytest.mark.answers("spaces-deletion-leaves-something")
async def test_a_space_is_deleted_on_every_node_and_its_rows_are_swept() -> None:
    async with Fleet("abc", seed=3) as fleet:
        await fill(fleet["a"].store().space("crew"))
        await fleet.converged()
        assert (await fleet["b"].store().space("crew").delete()).total == 10
        await fleet.converged()
        for name in "abc":
            assert [space async for space in fleet[name].store().spaces()] == []
            async with asyncio.timeout(30):
                while fleet[name].node._database.garbage.count(1):
                    await asyncio.sleep(0.01)
            rows = dict(fleet[name].storage.scan(keys.OBJECT, b"P"))
            assert {keys.split_object(key)[4] for key in rows} == {b"\x00"}  # The deletions themselves.
            assert not list(fleet[name].storage.scan(keys.INDEX, b"Y"))
            assert not list(fleet[name].storage.scan(keys.SNAPSHOT, b"E"))
