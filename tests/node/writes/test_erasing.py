"""Deletion: what is deleted is gone everywhere, stays gone, and frees its rows once nobody can need them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from shoal.config import Config
from shoal.errors import NotFound
from shoal.node import transaction
from shoal.node.collection.entries import LIMBO
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

LARGE = [f"message {n} " * 60 for n in range(60)]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def rows(storage: MemoryStorage, name: str) -> list[bytes]:
    """The keys of rows of a thread in space crew, but for the one that says it was deleted."""
    found = [key for key, _ in storage.scan(keys.OBJECT, b"P") if keys.split_object(key)[3] == name]
    return [key for key in found if keys.split_object(key)[4] != b"\x00"]


def garbage(storage: MemoryStorage) -> int:
    return len(list(storage.scan(keys.GARBAGE, b"H")))


async def swept(*storages: MemoryStorage, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while any(garbage(storage) for storage in storages):
            await asyncio.sleep(0.002)


async def wiped(fleet: Fleet, name: str) -> None:
    """A node gets an empty disk; the others fill it again, and all sweep what they can."""
    await fleet.crash(name)
    fleet.start(name, MemoryStorage())
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))


def check_sound(storage: MemoryStorage) -> None:
    report = verify(storage.left_by_crash(None), config=Config())
    assert report.sound, report.problems


async def test_a_writer_on_a_deleted_thread_begins_it_anew(bench: Bench) -> None:
    thread, other = bench.space.thread("agent"), bench.space.thread("agent")
    await thread.save({"step": 1})
    await other.delete()
    with pytest.raises(NotFound):
        await thread.save({"step": 2})
    with pytest.raises(NotFound):
        await thread.load(as_of=datetime.now(UTC))
    with pytest.raises(NotFound):
        await thread.save({"step": 2})
    with pytest.raises(NotFound):
        await thread.load()
    assert (await thread.save({"step": 2})).parents == ()


async def test_a_deleted_thread_is_gone_and_its_rows_are_freed(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    await thread.save({"messages": LARGE})
    await thread.journal.append("event", key="once")
    assert await thread.delete()
    with pytest.raises(NotFound):
        await thread.load()
    assert [event async for event in thread.journal.read()] == []
    assert [name async for name in bench.space.threads()] == []
    await swept(bench.storage)
    assert rows(bench.storage, "agent") == []
    check_sound(bench.storage)


async def test_deleting_what_is_not_there_succeeds_and_writes_nothing(bench: Bench) -> None:
    assert not await bench.space.thread("agent").delete()
    assert list(bench.storage.scan(b"", None)) == []


async def test_saves_after_a_deletion_begin_anew(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    old = await thread.save({"n": 1})
    await thread.journal.append("old", key="k")
    await thread.delete()
    made = await thread.save({"n": 2})
    await thread.journal.append("new", key="k")
    assert made.parents == ()
    assert (await thread.load()).state == {"n": 2}
    assert [event.event async for event in thread.journal.read()] == ["new"]
    with pytest.raises(NotFound):
        await thread.load(old.id)
    await swept(bench.storage)
    assert (await thread.load()).state == {"n": 2}
    assert [name async for name in bench.space.threads()] == ["agent"]
    check_sound(bench.storage)


async def test_a_handle_of_before_is_told_that_its_checkpoint_is_gone(bench: Bench) -> None:
    thread, other = bench.space.thread("agent"), bench.space.thread("agent")
    await thread.save({"n": 1})
    await other.load()
    await thread.delete()
    with pytest.raises(NotFound):
        await other.save({"n": 2})
    assert rows(bench.storage, "agent") == [] or garbage(bench.storage)


async def test_a_deletion_sent_again_with_its_key_deletes_once(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    await thread.save({"n": 1})
    assert await thread.delete(key="d")
    await thread.save({"n": 2})
    assert await thread.delete(key="d")
    assert (await thread.load()).state == {"n": 2}


async def test_deleted_in_turn_again_and_again(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    for n in range(5):
        await thread.save({"n": n, "messages": LARGE[:n]})
        assert (await thread.load()).state["n"] == n
        await thread.delete()
    await swept(bench.storage)
    assert rows(bench.storage, "agent") == []
    check_sound(bench.storage)


async def test_a_crash_before_the_sweep_leaves_it_to_the_next_opening(open_bench: Opener) -> None:
    bench = open_bench()
    thread = bench.space.thread("agent")
    await thread.save({"messages": LARGE})
    await thread.delete()
    left = bench.storage.left_by_crash(0)
    assert garbage(left) == 1
    again = open_bench(left, seed=2)
    await swept(again.storage)
    assert rows(again.storage, "agent") == []
    with pytest.raises(NotFound):
        await again.space.thread("agent").load()
    check_sound(again.storage)


# ── with peers ────────────────────────────────────────────────────────────────


async def test_a_deletion_reaches_every_node_and_all_free_the_rows(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").thread("agent").save({"messages": LARGE})
    await fleet.converged()
    await fleet["b"].store().space("crew").thread("agent").delete()
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert rows(fleet[name].storage, "agent") == []
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_nothing_is_freed_while_an_owner_is_away_and_the_status_says_for_whom(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").thread("agent").save({"messages": LARGE})
    await fleet.converged()
    await fleet.isolate("c")
    await fleet["a"].store().space("crew").thread("agent").delete()
    async with asyncio.timeout(30):
        while (await status(fleet, "a")).garbage_waits_for != ["c:1"]:
            await asyncio.sleep(0.002)
    assert (await status(fleet, "a")).garbage == 1
    assert rows(fleet["a"].storage, "agent") != []
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    assert (await status(fleet, "a")).garbage_waits_for == []


async def status(fleet: Fleet, name: str) -> requests.NodeStatus:
    reply = await fleet[name].node.session().call(requests.Status())
    assert isinstance(reply, requests.NodeStatus)
    return reply


@pytest.mark.answers("replica-that-was-away-brings-tombstoned-data-back")
async def test_writes_made_meanwhile_die_with_the_thread(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").thread("agent").save({"n": 0})
    await fleet.converged()
    await fleet.isolate("c")
    late = fleet["c"].store().space("crew").thread("agent")
    await late.load()
    for n in range(3):
        await late.save({"late": n, "messages": LARGE})
    await late.journal.append("late", key="late")
    await fleet["a"].store().space("crew").thread("agent").delete()
    await fleet["b"].store().space("crew").counter("other").add(1)
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        with pytest.raises(NotFound):
            await fleet[name].store().space("crew").thread("agent").load()
        assert [thread async for thread in fleet[name].store().space("crew").threads()] == []
        assert rows(fleet[name].storage, "agent") == []
        check_sound(fleet[name].storage)
    assert [(await status(fleet, name)).died for name in "abc"] == [4, 4, 0]
    assert fleet.refusals == []


async def test_a_dead_change_keeps_its_bytes_for_peers(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").thread("agent").save({"n": 0})
    await fleet.converged()
    await fleet.isolate("c")
    late = fleet["c"].store().space("crew").thread("agent")
    await late.load()
    await late.save({"late": 1, "messages": LARGE})
    await fleet.isolate("b")
    await fleet["a"].store().space("crew").thread("agent").delete()
    for pair in (("a", "c"), ("c", "a")):
        fleet.link(*pair)
    await fleet.until(lambda: bool(buried(fleet["a"].storage)))
    [row] = buried(fleet["a"].storage)  # Neither b knows the deletion, nor is the save there: a can bring it both.
    kept = transaction.unpack_blobs(row)[0]
    assert (bool(kept.content), bool(kept.chunks), kept.erased) == (True, True, False)
    await fleet.dial()
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    assert [buried(fleet[name].storage) for name in "abc"] == [[], [], []]


def buried(storage: MemoryStorage) -> list[bytes]:
    """What is kept of changes that arrived after their generation had ended."""
    found = [(keys.split_object(key)[4], value) for key, value in storage.scan(keys.OBJECT, b"P")]
    return [value for row, value in found if row.startswith(LIMBO)]


async def test_two_concurrent_deletions_and_what_was_begun_after_one_of_them(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").thread("agent").save({"n": 0})
    await fleet.converged()
    await fleet.isolate("c")
    await fleet["a"].store().space("crew").thread("agent").delete()
    await fleet["a"].store().space("crew").thread("agent").save({"n": 1})
    await fleet["c"].store().space("crew").thread("agent").delete()
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert (await fleet[name].store().space("crew").thread("agent").load()).state == {"n": 1}
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_node_that_lost_its_disk_gets_what_is_left_and_nothing_that_was_erased(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    await thread.save({"messages": LARGE})
    await thread.delete()
    await thread.save({"n": 1})
    await fleet["b"].store().space("crew").thread("gone").save({"messages": LARGE})
    await fleet["b"].store().space("crew").thread("gone").delete()
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    await fleet.crash("c")
    fleet.start("c", MemoryStorage())
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    assert (await fleet["c"].store().space("crew").thread("agent").load()).state == {"n": 1}
    assert [name async for name in fleet["c"].store().space("crew").threads()] == ["agent"]
    assert rows(fleet["c"].storage, "gone") == []
    check_sound(fleet["c"].storage)
    assert fleet.rows("a") == fleet.rows("c")
