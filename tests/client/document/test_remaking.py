"""A mirror whose characters another editor cuts: it shows what Yjs shows, and goes on."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pycrdt
import pytest

from shoal.errors import InvalidInput
from shoal.kinds.document.handle.content import Content, Transacted
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state.live import LiveDocument
from shoal.protocol.requests import Edit
from tests.client.document.conftest import FakeSession, Mirror, until
from tests.clients.js.conftest import needs_node
from tests.support.histories import ROOTS, A, B, deleted, delivered, generated, shown_by, shuffled, typed
from tests.support.histories import document as live

pytestmark = pytest.mark.virtual_time

BASE = typed("x😀y", 0, client=A)
CUT = typed("|", 0, origin=(A, 1), right=(A, 2))


async def push(session: FakeSession, update: bytes) -> None:
    """An update of another editor."""
    session.live.merge(update)
    session.push(Edit(update, {}, {}))
    await until(lambda: session._queues[0].empty())


@pytest.fixture
async def document(session: FakeSession, mirror: Mirror) -> Document:
    session.live.integrate(BASE, {"t": "text"})
    opened: Document = await mirror(undo=10)
    return opened


class Reader:
    """The owner of a content that is only read."""

    def __init__(self) -> None:
        self.content = Content(client_id=1, edited=self.edited)
        self.content.settle(ROOTS)

    def edited(self, made: Transacted) -> None:
        pytest.fail("nothing was edited here")


# ── what is shown ─────────────────────────────────────────────────────────────


@pytest.mark.answers("edit-between-two-utf-16-units")
@needs_node
@pytest.mark.parametrize(("seed", "count"), [(0, 100), pytest.param(1000, 5000, marks=pytest.mark.thorough)])
def test_a_mirror_shows_what_yjs_shows(seed: int, count: int) -> None:
    for history in generated(seed, count):
        reader, node = Reader(), live()
        reader.content.trace()

        def take(update: bytes, reader: Reader = reader, node: LiveDocument = node) -> None:
            node.merge(update)  # It refuses what is not ready.
            reader.content.take(update, {})

        delivered(shuffled(history.updates, Random(history.seed)), take)
        assert shown_by(reader.content.to_py()) == history.shown, history.seed


async def test_a_root_that_is_held_leads_on(session: FakeSession, document: Document) -> None:
    text = document.text("t")
    await push(session, CUT)
    assert str(text) == "x\ufffd|\ufffdy"
    text.insert(0, "ä")
    await document.flush()
    assert session.live.to_py()["t"] == str(text) == "äx\ufffd|\ufffdy"


async def test_a_mirror_keeps_its_client_id(session: FakeSession, document: Document) -> None:
    """Its author is recorded under this id, and a later mirror continues with it."""
    before = document._mirror.content.doc
    await push(session, CUT)
    assert document.to_py() == {"t": "x\ufffd|\ufffdy"}
    made = document._mirror.content.doc
    assert made is not before
    assert made.client_id == before.client_id


async def test_edits_that_wait_are_sent(session: FakeSession, document: Document) -> None:
    session.gate.clear()
    document.text("t").insert(0, "a")
    await push(session, CUT)
    session.gate.set()
    await document.flush()
    assert session.live.to_py() == document.to_py() == {"t": "ax\ufffd|\ufffdy"}


async def test_an_own_character_is_cut(session: FakeSession, document: Document) -> None:
    document.text("t").insert(0, "😀")
    await document.flush()
    await push(session, deleted(1, 1, 1))
    assert document.to_py() == session.live.to_py() == {"t": "\ufffdx😀y"}


async def test_a_part_that_is_held_raises(session: FakeSession, document: Document) -> None:
    document.map("m")["notes"] = pycrdt.Text("a")
    await document.flush()
    notes = document.map("m")["notes"]
    await push(session, CUT)
    with pytest.raises(InvalidInput, match="from its root again"):
        notes.insert(0, "b")
    with pytest.raises(InvalidInput, match="from its root again"):
        str(notes)
    document.map("m")["notes"].insert(0, "b")
    await document.flush()
    assert session.live.to_py()["m"] == {"notes": "ba"}


async def test_observers_of_a_root_go_on(session: FakeSession, document: Document) -> None:
    text = document.text("t")
    told: list[object] = []
    subscription = text.observe(lambda event: told.append(event.delta))  # type: ignore[attr-defined]
    await push(session, CUT)
    await push(session, deleted(A, 3, 1))
    await push(session, typed("😀", 1, origin=(B, 0), right=(A, 2)))
    await push(session, deleted(B, 1, 1))
    assert told == [
        [{"retain": 2}, {"insert": "|"}],
        [{"retain": 4}, {"delete": 1}],
        [{"retain": 3}, {"insert": "😀"}],
        [{"retain": 3}, {"delete": 1}],
    ]
    text.unobserve(subscription)
    text.insert(0, "a")
    assert len(told) == 4


async def test_an_observer_that_fails_ends_no_mirror(session: FakeSession, document: Document) -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: failed.append(told))
    text = document.text("t")
    told: list[Any] = []
    error = ValueError("boo")

    def fail(event: Any) -> None:
        raise error

    text.observe(fail)
    text.observe(lambda event: told.append(event.delta))  # type: ignore[attr-defined]
    await push(session, CUT)
    await push(session, deleted(A, 3, 1))
    assert [each["exception"] for each in failed] == [error, error]
    with pytest.raises(ExceptionGroup):
        text.insert(0, "a")
    await document.flush()
    assert str(text) == session.live.to_py()["t"] == "ax\ufffd|\ufffd"
    assert len(told) == 3


async def test_changes_are_told(session: FakeSession, document: Document) -> None:
    changes = document.changes()
    await push(session, CUT)
    told = [await anext(changes) for _ in range(2)]
    assert [(change.kind, change.path, change.old, change.new) for change in told] == [
        ("set", ("t",), "x😀y", "x\ufffd\ufffdy"),
        ("insert", ("t", told[1].path[1]), None, "|"),
    ]


async def test_steps_to_undo_are_forgotten(session: FakeSession, document: Document) -> None:
    text = document.text("t")
    text.insert(0, "a")
    await document.flush()
    await push(session, CUT)
    assert not document.undo()
    text.insert(0, "b")
    assert document.undo()
    assert str(text) == "ax\ufffd|\ufffdy"
