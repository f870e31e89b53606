"""The live mirror of a document: convergence, sending, replacing, closing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pycrdt
import pytest

from shoal.config import Config
from shoal.errors import (
    InvalidInput,
    InvalidValue,
    Overloaded,
)
from shoal.kinds.document.handle.changes import DocumentChange
from shoal.kinds.document.handle.document import Document
from tests.client.document.conftest import CONFIG, FakeSession, Mirror, settled, until

pytestmark = pytest.mark.virtual_time

# ── convergence ───────────────────────────────────────────────────────────────


async def test_two_mirrors_converge(session: FakeSession, mirror: Mirror) -> None:
    one, other = await mirror(), await mirror()
    one.map("m")["a"] = 1
    other.map("m")["b"] = [1, b"x"]
    other.text("t").insert(0, "hé")
    one.array("l").append(pycrdt.Map({"x": None}))
    await one.flush()
    await other.flush()
    await until(lambda: bool(one.to_json() == other.to_json() == session.live.to_json()))
    assert one.to_py() == {"m": {"a": 1, "b": [1, b"x"]}, "t": "hé", "l": [{"x": None}]}
    assert one.roots == other.roots == {"m": "map", "t": "text", "l": "array"}


async def test_a_mirror_opens_with_what_there_is(session: FakeSession, mirror: Mirror) -> None:
    first = await mirror()
    first.map("m")["a"] = 1
    await first.flush()
    assert (await mirror()).to_py() == {"m": {"a": 1}}


async def test_updates_from_the_node_are_not_sent_back(session: FakeSession, mirror: Mirror) -> None:
    one, other = await mirror(), await mirror()
    one.map("m")["a"] = 1
    await one.flush()
    await until(lambda: bool(other.to_py()))
    await other.flush()
    assert len(session.requests) == 1


async def test_each_mirror_edits_under_the_client_id_it_was_given(mirror: Mirror) -> None:
    assert [(await mirror()).client_id, (await mirror()).client_id] == [1, 2]


async def test_text_positions_count_characters(mirror: Mirror) -> None:
    text = (await mirror()).text("t")
    text.insert(0, "é😀b")
    assert len(text) == 3
    text.insert(2, "|")
    assert str(text) == "é😀|b"


# ── sending ───────────────────────────────────────────────────────────────────


async def test_edits_of_one_tick_are_one_request(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    for number in range(100):
        document.map("m")[f"k{number}"] = number
    await document.flush()
    assert len(session.requests) == 1
    assert session.requests[0].roots == {"m": "map"}
    assert len(session.live.to_py()["m"]) == 100


async def test_edits_behind_a_request_under_way_leave_as_one(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.gate.clear()
    for number in range(5):
        document.map("m")[f"k{number}"] = number
        await settled()
    session.gate.set()
    await document.flush()
    assert len(session.requests) == 2
    assert session.requests[1].roots == {}
    assert session.live.to_py() == document.to_py()


async def test_flush_waits_until_the_node_has_answered(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.gate.clear()
    document.map("m")["a"] = 1
    flushing = asyncio.ensure_future(document.flush())
    await session.arrived.wait()
    await settled()
    assert not flushing.done()
    session.gate.set()
    await flushing


async def test_flush_without_edits_returns_at_once(session: FakeSession, mirror: Mirror) -> None:
    await (await mirror()).flush()
    assert session.requests == []


async def test_a_transaction_is_one_update_for_others(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(), await mirror()
    changes = other.changes()
    with document.transaction():
        document.map("m")["a"] = 1
        with document.transaction():
            document.text("t").insert(0, "x")
    await document.flush()
    assert [(await anext(changes)).path for _ in range(2)] == [("m", "a"), ("t", 0)]
    assert len(session.requests) == 1
    assert other.to_py() == {"m": {"a": 1}, "t": "x"}


async def test_nothing_arrives_within_a_transaction(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(), await mirror()
    other.map("m")["a"] = 1
    with document.transaction():
        await other.flush()
        await settled()
        assert document.to_py() == {}
    await until(lambda: bool(document.to_py()))


async def test_each_request_has_a_key_of_its_own(session: FakeSession, mirror: Mirror) -> None:
    keys = iter(["one", "two"])
    document = await mirror(key_of=lambda: next(keys))
    document.map("m")["a"] = 1
    await document.flush()
    document.map("m")["a"] = 2
    await document.flush()
    assert session.keys == ["one", "two"]


@pytest.mark.answers("queues-are-bounded")
async def test_unsent_edits_are_bounded_and_none_is_lost(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror(config=Config(request_bytes_max=2000))
    session.gate.clear()
    entries = document.map("m")
    with pytest.raises(Overloaded) as raised:
        for number in range(1000):
            document.map("m")[f"k{number}"] = "x" * 100
    assert raised.value.detail["retry_after_s"]
    assert len(entries) < 30
    entries["also"] = 1  # Through a root that is held, an edit still works: the document keeps it.
    session.gate.set()
    await document.flush()
    assert session.live.to_py() == document.to_py()
    document.map("m")["later"] = 1


# ── closing ───────────────────────────────────────────────────────────────────


async def test_closing_flushes(session: FakeSession, mirror: Mirror) -> None:
    async with await mirror() as document:
        document.map("m")["a"] = 1
    assert session.live.to_py() == {"m": {"a": 1}}
    await document.close()


async def test_an_edit_after_closing_raises(mirror: Mirror) -> None:
    document = await mirror()
    entries = document.map("m")
    await document.close()
    with pytest.raises(InvalidInput, match="closed"):
        document.map("m")
    with pytest.raises(InvalidInput, match="closed"):
        entries["a"] = 1


def edit(document: Document) -> None:
    document.map("m")["a"] = 1


def edit_and_take_back(document: Document) -> None:
    document.map("m")["a"] = 1
    assert document.undo()


def edit_and_be_told(document: Document) -> None:
    document.changes()
    document.map("m")["a"] = 1


def edit_and_give_up(document: Document) -> None:
    with suppress(RuntimeError), document.transaction():
        document.map("m")["a"] = 1
        raise RuntimeError


@pytest.mark.parametrize("use", [edit, edit_and_take_back, edit_and_be_told, edit_and_give_up])
async def test_a_closed_document_is_freed(session: FakeSession, use: Callable[[Document], None]) -> None:
    document = await Document.open(session, "s", "d", client_id=1, config=CONFIG, undo=10)
    use(document)
    await document.close()
    # The engine's part is most of it, and what the engine holds the collector does not see.
    watched, engine = weakref.ref(document), weakref.ref(document._mirror.content.doc)
    del document
    await asyncio.sleep(0)  # The loop forgets the tasks that have ended.
    gc.collect()
    assert watched() is None
    assert engine() is None


async def test_an_opening_that_is_cancelled_leaves_no_task(session: FakeSession) -> None:
    before = asyncio.all_tasks()
    opening = asyncio.ensure_future(Document.open(session, "s", "d", client_id=1, config=CONFIG))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert asyncio.all_tasks() == before


@pytest.mark.answers("seed-5005")
async def test_a_root_that_the_next_node_never_heard_of_is_declared_again(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    document.map("m")["a"] = 1
    await document.flush()
    session.before.append(InvalidValue("the update uses the root 'm', which is not declared.", undeclared="m"))
    document.map("m")["b"] = 2
    await document.flush()
    assert session.requests[-1].roots == {"m": "map"}
    assert session.live.to_py() == {"m": {"a": 1, "b": 2}}


async def test_a_cancelled_call_does_not_wait_for_lost_nodes(session: FakeSession) -> None:
    config = msgspec.structs.replace(CONFIG, failover_timeout_s=0.01)
    editing = asyncio.Event()

    async def edit() -> None:
        async with await Document.open(session, "s", "d", client_id=1, config=config) as document:
            session.gate.clear()
            document.map("m")["a"] = 1
            editing.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(edit())
    await editing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task  # It would never end.
    session.gate.set()


async def test_values_overwritten_unseen_are_told_everywhere(session: FakeSession, mirror: Mirror) -> None:
    """Of two clients the one with the greater id wins: bob's value stands, on both mirrors."""
    ada, bob = await mirror(author="ada"), await mirror(author="bob")
    told = [ada.changes(), bob.changes()]
    ada.map("m")["k"], bob.map("m")["k"] = 1, 2
    await asyncio.gather(ada.flush(), bob.flush())
    await until(lambda: bool(ada.to_py() == bob.to_py() == {"m": {"k": 2}}))
    assert [await anext(told[0]) for _ in range(3)] == [
        DocumentChange("local", "ada", "add", ("m", "k"), None, 1),
        DocumentChange("remote", "bob", "set", ("m", "k"), 1, 2),
        DocumentChange("remote", "bob", "conflict", ("m", "k"), 1, 2, "ada"),
    ]
    assert [await anext(told[1]) for _ in range(2)] == [
        DocumentChange("local", "bob", "add", ("m", "k"), None, 2),
        DocumentChange("remote", "bob", "conflict", ("m", "k"), 1, 2, "ada"),
    ]
    ada.map("m")["k"] = 3
    await ada.flush()
    assert await anext(told[1]) == DocumentChange("remote", "ada", "set", ("m", "k"), 2, 3)


async def test_replacing_edits_in_place_and_as_one_update(session: FakeSession, mirror: Mirror) -> None:
    one, other = await mirror(), await mirror()
    one.replace({"m": {"a": {"n": 1}}, "l": [1, 2], "t": "one two"})
    await one.flush()
    await until(lambda: bool(one.to_py() == other.to_py()))
    one.replace({"m": {"a": {"n": 2}}, "l": [0, 1, 2], "t": "ONE two"})
    other.map("m")["a"]["x"] = 1
    other.text("t").insert(7, "!")
    await asyncio.gather(one.flush(), other.flush())
    await until(lambda: bool(one.to_py() == other.to_py() == {"m": {"a": {"n": 2, "x": 1}}, "l": [0, 1, 2], "t": "ONE two!"}))
    assert len(session.requests) == 3
    assert session.requests[0].roots == {"m": "map", "l": "array", "t": "text"}


async def test_a_failed_replacement_leaves_the_mirror(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    with pytest.raises(InvalidValue):
        document.replace({"m": {"a": 1}, "x": 5})
    await document.flush()
    assert (document.roots, session.requests) == ({}, [])
