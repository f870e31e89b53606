"""The live mirror of a document, over a session that keeps the document in memory and fails on request."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pycrdt
import pytest

from shoal.client.document.changes import DocumentChange
from shoal.client.document.document import Document
from shoal.config import Config
from shoal.crdt.document.live import EMPTY, LiveDocument
from shoal.errors import (
    BookmarkLost,
    Disconnected,
    InvalidInput,
    InvalidName,
    InvalidValue,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    ReadOnly,
    RootConflict,
    SessionBehind,
    ShoalError,
    SlowConsumer,
    TooLarge,
)
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    DocumentState,
    Durability,
    Edit,
    Follow,
    Push,
    Request,
    Subscription,
    Update,
    Updated,
)

CONFIG = Config(reconnect_delay_s_max=0.001, request_timeout_s=0.05)


class FakeSession:
    """One document. `before` and `after` are errors to raise in turn, before or after a write is applied."""

    def __init__(self) -> None:
        self.bookmark = Bookmark()
        self.live = LiveDocument(bytes_max=1 << 24, roots_max=16)
        self.requests: list[Update] = []
        self.stale: list[bool] = []
        self.keys: list[str | None] = []
        self.follows: list[Follow] = []
        self.before: list[ShoalError] = []
        self.after: list[ShoalError] = []
        self.unreachable = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self._queues: list[asyncio.Queue[Push | ShoalError]] = []

    async def call(
        self, request: Request[Any], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Any:
        assert isinstance(request, Update)
        self.requests.append(request)
        self.keys.append(key)
        self.stale.append(stale)
        self.arrived.set()
        await self.gate.wait()
        if self.unreachable:
            raise Disconnected("no node")
        if self.before:
            raise self.before.pop(0)
        self.live.integrate(request.update, request.roots)
        self.push(Edit(request.update, request.roots, request.authors))
        if self.after:
            raise self.after.pop(0)
        return Updated()

    def push(self, what: Push | ShoalError) -> None:
        for queue in self._queues:
            queue.put_nowait(what)

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        assert isinstance(subscription, Follow)
        self.follows.append(subscription)
        if self.unreachable:
            raise Disconnected("no node")
        queue: asyncio.Queue[Push | ShoalError] = asyncio.Queue()
        queue.put_nowait(DocumentState(self.live.update_since(subscription.state), dict(self.live.roots)))
        self._queues.append(queue)
        try:
            yield self._pushes(queue)
        finally:
            self._queues.remove(queue)

    async def _pushes(self, queue: asyncio.Queue[Push | ShoalError]) -> AsyncIterator[Push]:
        while True:
            push = await queue.get()
            if isinstance(push, ShoalError):
                raise push
            yield push

    async def close(self) -> None:
        pass


Mirror = Callable[..., Any]


def map_update(client_id: int, entries: dict[str, Any]) -> bytes:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    doc.get("m", type=pycrdt.Map).update(entries)
    return doc.get_update()


@pytest.fixture
async def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
async def mirror(session: FakeSession) -> AsyncIterator[Mirror]:
    opened: list[Document] = []

    async def open_one(*, config: Config = CONFIG, **given: Any) -> Document:
        document = await Document.open(session, "s", "d", client_id=len(opened) + 1, config=config, **given)
        opened.append(document)
        return document

    yield open_one
    for document in opened:
        await document._stop()


async def settled() -> None:
    """Until everything that can run without waiting for time has run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0)


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


async def test_what_came_from_the_node_is_not_sent_back(session: FakeSession, mirror: Mirror) -> None:
    one, other = await mirror(), await mirror()
    one.map("m")["a"] = 1
    await one.flush()
    await until(lambda: bool(other.to_py()))
    await other.flush()
    assert len(session.requests) == 1


async def test_each_mirror_edits_under_the_client_id_it_was_given(mirror: Mirror) -> None:
    assert [(await mirror()).client_id, (await mirror()).client_id] == [1, 2]


async def test_text_positions_count_utf8_bytes(mirror: Mirror) -> None:
    text = (await mirror()).text("t")
    text.insert(0, "é😀b")
    assert len(text) == len("é😀b".encode())
    text.insert(len("é😀".encode()), "|")
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


# ── failures ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [OutcomeUnknown("?"), Disconnected("?"), Overloaded("?", retry_after_s=0.001)])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_broken_request_is_sent_again(session: FakeSession, mirror: Mirror, error: ShoalError, when: str) -> None:
    document = await mirror()
    document.text("t").insert(0, "a")
    await document.flush()
    getattr(session, when).append(error)
    document.text("t").insert(1, "b")
    await document.flush()
    assert session.live.to_py() == {"t": "ab"}


async def test_edits_that_could_not_be_sent_are_raised_once_and_sent_by_the_next_flush(
    session: FakeSession, mirror: Mirror
) -> None:
    document = await mirror()
    session.unreachable = True
    document.map("m")["a"] = 1
    with pytest.raises(Disconnected):
        await document.flush()
    document.map("m")["b"] = 2
    session.unreachable = False
    await document.flush()
    assert session.live.to_py() == {"m": {"a": 1, "b": 2}}


@pytest.mark.parametrize("error", [TooLarge("no"), RootConflict("no"), InvalidInput("no")])
async def test_a_refusal_is_raised_by_every_later_use(session: FakeSession, mirror: Mirror, error: ShoalError) -> None:
    document = await mirror()
    entries = document.map("m")
    session.before.append(error)
    entries["a"] = 1
    with pytest.raises(type(error)):
        await document.flush()
    with pytest.raises(type(error)):
        document.map("m")
    with pytest.raises(ExceptionGroup) as raised:  # The engine wraps what an observer raises.
        entries["b"] = 2
    assert raised.group_contains(type(error))
    with pytest.raises(type(error)):
        await document.close()


async def test_a_refusal_is_not_swallowed_without_a_flush(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before.append(TooLarge("no"))
    document.map("m")["a"] = 1
    await settled()
    with pytest.raises(TooLarge):
        document.map("m")


async def test_a_node_that_reads_only_is_not_pressed(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before.append(ReadOnly("disk"))
    document.map("m")["a"] = 1
    with pytest.raises(ReadOnly):
        await document.flush()
    assert len(session.requests) == 1
    await document.flush()
    assert session.live.to_py() == {"m": {"a": 1}}


async def test_a_node_that_lost_what_it_acknowledged_is_sent_everything(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror(durability="memory")
    document.text("t").insert(0, "a")
    await document.flush()
    session.live = LiveDocument(bytes_max=1 << 24, roots_max=16, roots={"t": "text"})
    document.text("t").insert(1, "b")
    await document.flush()
    assert session.live.to_py() == {"t": "ab"}


async def test_an_update_that_stays_early_is_a_refusal(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before += [NotReady("early")] * 10_000
    document.text("t").insert(0, "a")
    with pytest.raises(NotReady):
        await document.flush()


async def test_a_node_that_lacks_what_others_edited_is_sent_that_too(session: FakeSession, mirror: Mirror) -> None:
    """It was seen through a node that died before it had passed it on."""
    document, other = await mirror(), await mirror()
    other.text("t").insert(0, "theirs ")
    await other.flush()
    await until(lambda: bool(document.to_py()))
    session.live = LiveDocument(bytes_max=1 << 24, roots_max=16)
    document.text("t").insert(len("theirs "), "ours")
    await document.flush()
    assert session.live.to_py() == {"t": "theirs ours"}
    assert session.requests[-1].roots == {"t": "text"}


@pytest.mark.parametrize("behind", [SessionBehind("behind"), BookmarkLost("lost")])
async def test_a_node_that_is_behind_is_brought_what_it_lacks_and_not_waited_for(
    session: FakeSession, mirror: Mirror, behind: ShoalError
) -> None:
    document = await mirror()
    session.before.append(behind)
    document.text("t").insert(0, "a")
    await document.flush()
    assert session.stale == [False, True]
    assert session.follows[-1].stale
    assert session.live.to_py() == {"t": "a"}


async def test_a_node_that_died_while_it_was_asked_what_it_lacks_is_no_refusal(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before += [NotReady("early"), Disconnected("gone"), NotReady("early")]
    document.text("t").insert(0, "a")
    await document.flush()
    assert session.live.to_py() == {"t": "a"}


async def test_only_the_first_following_waits_for_what_the_bookmark_names(session: FakeSession, mirror: Mirror) -> None:
    await mirror()
    session.push(Disconnected("gone"))
    await until(lambda: len(session.follows) == 2)
    assert [follow.stale for follow in session.follows] == [False, True]


@pytest.mark.parametrize("cut", [SlowConsumer("slow"), Disconnected("gone")])
async def test_a_subscription_that_was_cut_is_taken_up_where_it_ended(
    session: FakeSession, mirror: Mirror, cut: ShoalError
) -> None:
    document, other = await mirror(), await mirror()
    other.map("m")["a"] = 1
    await other.flush()
    await until(lambda: bool(document.to_py()))
    session.push(cut)
    await until(lambda: len(session.follows) == 4)
    other.map("m")["b"] = 2
    await other.flush()
    await until(lambda: bool(document.to_py() == {"m": {"a": 1, "b": 2}}))
    assert session.follows[2].state == session.follows[3].state != session.follows[0].state


async def test_a_node_that_cannot_be_reached_fails_the_opening(session: FakeSession, mirror: Mirror) -> None:
    session.unreachable = True
    with pytest.raises(Disconnected):
        await mirror()


async def test_a_root_of_another_kind_is_refused_here(session: FakeSession, mirror: Mirror) -> None:
    one = await mirror()
    one.map("m")["a"] = 1
    await one.flush()
    other = await mirror()
    for open_root in (one.text, one.array, other.text):
        with pytest.raises(RootConflict):
            open_root("m")
    with pytest.raises(InvalidName):
        one.map("")


async def test_a_root_that_another_declared_differently_first_is_a_refusal(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    document.map("r")
    session.push(Edit(EMPTY, {"r": "text"}))
    await settled()
    with pytest.raises(RootConflict):
        await document.flush()


async def test_an_unreadable_push_is_an_error_not_silence(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    changes = document.changes()
    session.push(Edit(b"garbage", {}))
    with pytest.raises(InvalidInput):
        await anext(changes)
    with pytest.raises(InvalidInput):
        await document.flush()


# ── changes ───────────────────────────────────────────────────────────────────


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


async def test_what_came_behind_an_edit_is_told_behind_it(session: FakeSession, mirror: Mirror) -> None:
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


async def test_who_edits_is_named_in_the_first_update_and_told_to_who_opens_later(session: FakeSession, mirror: Mirror) -> None:
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
    with pytest.raises(ExceptionGroup) as raised:
        entries["a"] = 1
    assert raised.group_contains(InvalidInput, match="closed")


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


async def test_a_root_that_the_next_node_never_heard_of_is_declared_again(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    document.map("m")["a"] = 1
    await document.flush()
    session.before.append(InvalidValue("the update uses the root 'm', which is not declared.", undeclared="m"))
    document.map("m")["b"] = 2
    await document.flush()
    assert session.requests[-1].roots == {"m": "map"}
    assert session.live.to_py() == {"m": {"a": 1, "b": 2}}


async def test_who_is_cancelled_does_not_wait_for_a_node_that_is_gone(session: FakeSession) -> None:
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


async def test_what_was_overwritten_unseen_is_told_wherever_it_was_lost(session: FakeSession, mirror: Mirror) -> None:
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


async def test_what_cannot_replace_leaves_the_mirror_as_it_is(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    with pytest.raises(InvalidValue):
        document.replace({"m": {"a": 1}, "x": 5})
    await document.flush()
    assert (document.roots, session.requests) == ({}, [])


# ── undo ──────────────────────────────────────────────────────────────────────


async def test_ones_own_edits_are_taken_back_and_others_stay(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(undo=10), await mirror()
    document.text("t").insert(0, "one")
    document.text("t").insert(3, " two")
    await document.flush()
    await until(lambda: bool(other.to_py() == document.to_py()))
    other.text("t").insert(0, "theirs ")
    other.map("m")["k"] = 1
    await other.flush()
    await until(lambda: bool(other.to_py() == document.to_py()))
    assert document.undo()
    assert document.to_py() == {"m": {"k": 1}, "t": "theirs one"}
    assert document.redo()
    assert document.undo()
    assert document.undo()
    assert not document.undo()
    await document.flush()
    await until(lambda: bool(other.to_py() == session.live.to_py() == {"m": {"k": 1}, "t": "theirs "}))


async def test_a_transaction_is_one_step(mirror: Mirror) -> None:
    document = await mirror(undo=10)
    document.map("m")
    document.list("l")
    with document.transaction():
        document.map("m")["a"] = 1
        document.text("new").insert(0, "x")
        document.array("l").append(2)
    document.map("m")["a"] = 3
    document.undo()
    assert document.to_py() == {"m": {"a": 1}, "l": [2], "new": "x"}
    document.text("new").insert(0, "y")
    document.undo()
    document.undo()
    assert document.to_py() == {"m": {}, "l": [], "new": ""}


async def test_the_oldest_steps_are_forgotten(mirror: Mirror) -> None:
    document = await mirror(undo=3)
    for number in range(20):
        document.array("l").append(number)
        await document.flush()
    taken = 0
    while document.undo():
        taken += 1
    assert 3 <= taken <= 6
    assert document.to_py() == {"l": [*range(20 - taken)]}


async def test_without_undo_there_is_none(mirror: Mirror) -> None:
    document = await mirror()
    with pytest.raises(InvalidInput, match="undo=100"):
        document.undo()


# ── XML ───────────────────────────────────────────────────────────────────────


def paragraph(*children: Any, **attributes: Any) -> dict[str, Any]:
    return {"tag": "paragraph", "attributes": attributes, "children": list(children)}


async def test_xml_is_edited_through_its_nodes_and_declared(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    body = document.xml("body")
    element = body.children.append(pycrdt.XmlElement("paragraph", {"align": "left"}, [pycrdt.XmlText("hello")]))
    element.children[0].insert(5, " world", {"strong": {}})
    await document.flush()
    assert session.requests[0].roots == {"body": "xml"}
    runs = [{"insert": "hello"}, {"insert": " world", "attributes": {"strong": {}}}]
    assert document.to_py() == {"body": [paragraph({"text": runs, "attributes": {}}, align="left")]}
    assert session.live.to_py() == document.to_py()
    with pytest.raises(RootConflict):
        document.text("body")


async def test_replacing_xml_edits_it_in_place(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    body = document.xml("body")
    document.replace({"body": [paragraph("one"), paragraph("two")]})
    first = body.children[0]
    await document.flush()
    document.replace({"body": [paragraph("one!", level=2), paragraph("two")]})
    assert str(first) == '<paragraph level="2">one!</paragraph>'
    await document.flush()
    assert session.live.to_py() == {"body": [paragraph("one!", level=2), paragraph("two")]}
    with pytest.raises(InvalidValue):
        document.replace({"body": [paragraph("none"), {"tag": 1}]})
    assert document.to_py() == session.live.to_py()


async def test_what_others_change_in_xml_is_told_and_ones_own_is_taken_back(session: FakeSession, mirror: Mirror) -> None:
    ours, theirs = await mirror(undo=10), await mirror(author="ada")
    ours.xml("body").children.append(pycrdt.XmlElement("paragraph"))
    await ours.flush()
    await until(lambda: theirs.to_py() == ours.to_py())
    changes = ours.changes()
    theirs.xml("body").children[0].children.append("hi")
    await theirs.flush()
    change = await anext(changes)
    assert (change.author, change.kind, change.path, change.new) == ("ada", "insert", ("body", 0, "children", 0), ["hi"])
    assert ours.undo()
    assert ours.to_py() == {"body": []}
    assert ours.redo()
