"""What a mirror tells its readers of changes."""

from __future__ import annotations

import asyncio

import pycrdt
import pytest

from shoal.client.home import Home
from shoal.config import Config
from shoal.errors import (
    SlowConsumer,
)
from shoal.kinds.document.handle.changes import DocumentChange, Feed
from shoal.kinds.document.handle.content import Content
from shoal.protocol.requests import (
    Edit,
)
from tests.client.document.conftest import FakeSession, Mirror, map_update, settled, until

pytestmark = pytest.mark.virtual_time


async def test_changes_are_those_of_others_and_ones_own_once_durable(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(), await mirror()
    changes = document.changes()
    document.map("m")["a"] = 1
    await document.flush()
    other.map("m")["b"] = 2
    await other.flush()
    assert [await anext(changes), await anext(changes)] == [
        DocumentChange("local", "", "add", ("m", "a"), None, 1),
        DocumentChange("remote", "", "add", ("m", "b"), None, 2),
    ]


async def test_a_change_says_where_what_was_there_what_is_there_and_who_did_it(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(author="ada"), await mirror(author="bob")
    document.map("m")["t"] = pycrdt.Map({"done": False, "tags": pycrdt.Array(["x"])})
    document.text("t").insert(0, "hé")
    await document.flush()
    await until(lambda: bool(other.to_py() == document.to_py()))
    changes = document.changes()
    with other.transaction():
        other.map("m")["t"]["done"] = True
        other.map("m")["t"]["tags"].append({"k": 1})
    await other.flush()
    with other.transaction():
        del other.text("t")[1:3]
        del other.map("m")["t"]
    await other.flush()
    document.list("l").extend([1, 2])
    await document.flush()
    assert [await anext(changes) for _ in range(5)] == [
        DocumentChange("remote", "bob", "set", ("m", "t", "done"), False, True),
        DocumentChange("remote", "bob", "insert", ("m", "t", "tags", 1), None, [{"k": 1}]),
        DocumentChange("remote", "bob", "delete", ("m", "t"), {"done": True, "tags": ["x", {"k": 1}]}, None),
        DocumentChange("remote", "bob", "delete", ("t", 1), "é", None),
        DocumentChange("local", "ada", "insert", ("l", 0), None, [1, 2]),
    ]


async def test_a_change_after_an_edit_is_told_after_it(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(), await mirror()
    changes = document.changes()
    session.gate.clear()
    document.map("m")["a"] = 1
    await session.arrived.wait()
    session.live.integrate(update := map_update(5, {"b": 2}), {"m": "map"})
    session.push(Edit(update, {"m": "map"}, {5: "eve"}))
    await until(lambda: "b" in document.to_py()["m"])
    session.gate.set()
    await document.flush()
    assert [(await anext(changes)).path[1] for _ in range(2)] == ["a", "b"]
    await other.close()


async def test_editors_are_named_in_the_first_update(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror(author="ada")
    document.map("m")["a"] = 1
    await document.flush()
    assert session.requests[0].authors == {document.client_id: "ada"}


async def test_a_mirror_that_nobody_reads_traces_nothing(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    document.map("m")["a"] = 1
    assert document._mirror.content._traced is None
    document.changes()
    document._mirror.feed.end(None)
    await document.flush()
    session.push(Edit(map_update(5, {"b": 2}), {"m": "map"}))
    await until(lambda: document._mirror.content._traced is None)


async def test_a_change_is_not_shown_before_it_is_durable(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.gate.clear()
    waiting = asyncio.ensure_future(anext(document.changes()))
    document.map("m")["a"] = 1
    await session.arrived.wait()
    await settled()
    assert not waiting.done()
    session.gate.set()
    assert (await waiting).origin == "local"


@pytest.mark.answers("slow-consumer-makes-memory-grow-without-bound")
async def test_a_slow_reader_is_told_and_others_are_not_disturbed(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror(config=Config(subscription_bytes_max=200))
    slow, quick = document.changes(), document.changes()
    for number in range(5):
        document.map("m")["k"] = "x" * 100 + str(number)
        await document.flush()
        await anext(quick)
    with pytest.raises(SlowConsumer):
        await anext(slow)
    assert session.live.to_py() == document.to_py()


async def test_changes_end_when_the_document_closes(mirror: Mirror) -> None:
    document = await mirror()
    changes = document.changes()
    await document.close()
    assert [change async for change in changes] == []
    assert [change async for change in document.changes()] == []


async def test_arrivals_wait_behind_writes_that_are_not_durable() -> None:
    feed = Feed(1000, Home())
    reader = feed.reader()
    local, remote = (DocumentChange(kind, "", "add", ("m", kind), None, 1) for kind in ("local", "remote"))
    feed.edited(1, [local], 10)
    feed.arrived([remote], 10)
    assert not reader._waiting
    feed.written(1)
    assert [await anext(reader), await anext(reader)] == [local, remote]


async def test_without_a_reader_nothing_is_computed(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    document = await mirror()
    monkeypatch.setattr(Content, "_told", lambda *_: pytest.fail("it was computed"))
    document.map("m")["a"] = 1
    await document.flush()
