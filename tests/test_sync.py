"""The blocking facade, over a real store on disk and over a node."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pycrdt
import pytest

from shoal import sync
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.config import Config
from shoal.errors import (
    HeadMoved,
    InvalidInput,
    InvalidName,
    InvalidValue,
    KeyReused,
    OutcomeUnknown,
    RootConflict,
    StoreClosed,
    StoreLocked,
)
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.sync import Proxy


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with sync.open(tmp_path_factory.mktemp("sync") / "state") as opened:
        yield opened


@pytest.fixture
def space(store: Any, request: pytest.FixtureRequest) -> Any:
    return store.space(request.node.name)


def test_a_state_comes_back_as_it_was_saved(space: Any) -> None:
    thread = space.thread("a")
    saved = thread.save({"messages": ["hello"], "step": 1}, metadata={"by": "me"})
    loaded = space.thread("a").load()
    assert (loaded.id, loaded.state, loaded.metadata) == (saved.id, {"messages": ["hello"], "step": 1}, {"by": "me"})


def test_history_is_a_for_loop_and_heads_are_plain(space: Any) -> None:
    thread = space.thread("a")
    ids = [thread.save({"n": n}).id for n in range(5)]
    assert [checkpoint.id for checkpoint in thread.history(limit=3)] == ids[:1:-1]
    assert thread.heads() == {"main": [ids[-1]]}


def test_a_journal_is_read_as_a_for_loop(space: Any) -> None:
    journal = space.thread("a").journal
    assert journal.append({"n": 1}, key="k").appended
    assert not journal.append({"n": 1}, key="k").appended
    journal.append({"n": 2})
    first, second = journal.read()
    assert ([first.event, second.event], first.key) == ([{"n": 1}, {"n": 2}], "k")
    assert [event.event for event in journal.read(after=first.cursor)] == [{"n": 2}]


def test_counters_and_registers_return_plain_values(space: Any) -> None:
    counter, register = space.counter("c"), space.register("r")
    assert (counter.add(5), counter.add(-2), counter.value()) == (5, 3, 3)
    assert register.get("none yet") == "none yet"
    register.set({"goal": [1, 2]})
    assert (register.get(), register.siblings()) == ({"goal": [1, 2]}, [{"goal": [1, 2]}])


def test_items_are_indexed_embedded_and_found_without_a_loop(space: Any) -> None:
    notes = space.items.embedded(lambda texts: [[float(text.count("a")), 1.0] for text in texts], fields=["text"])
    notes.put(("notes",), "k", {"text": "aaa", "kind": "x"})
    assert space.items.index(("notes",), "kind") == ["kind"]
    assert list(space.items.indexes(("notes",))) == ["kind"]
    (found,) = notes.search(("notes",), query="aaaa", filter={"kind": "x"})
    assert (found.key, round(found.score, 2)) == ("k", 1.0)


def test_presence_is_seen_without_a_loop(space: Any) -> None:
    presence = space.presence
    presence.set({"name": "planner"})
    assert [(member.state, member.mine) for member in presence.members()] == [({"name": "planner"}, True)]
    assert next(iter(presence.changes())).kind == "joined"
    presence.clear()
    assert presence.members() == []


def test_documents_are_edited_through_item_access(space: Any) -> None:
    with space.document("plan") as document:
        tasks, items, text = document.map("tasks"), document.array("items"), document.text("text")
        tasks["t1"] = {"title": "write", "done": False}
        tasks["t2"] = 2
        del tasks["t2"]
        items.extend([1, 2, 3])
        del items[0]
        text += "hello"
        text.insert(5, " world")
        assert ("t1" in tasks, "t2" in tasks, len(items), str(text)) == (True, False, 2, "hello world")
        assert document.to_py() == {"items": [2, 3], "tasks": {"t1": {"title": "write", "done": False}}, "text": "hello world"}
    with space.document("plan") as again:
        assert again.to_py()["text"] == "hello world"


def test_positions_in_texts_are_characters(space: Any) -> None:
    with space.document("words") as document:
        text = document.text("t")
        text += "größe"
        text.insert(3, "|")
        del text[-1]
        with pytest.raises(IndexError, match="outside of the text"):
            text.insert(9, "x")
        assert (str(text), len(text), text[2:4]) == ("grö|ß", 5, "ö|")


def test_types_within_a_document_stay_on_the_loop_however_they_are_reached(space: Any) -> None:
    with space.document("plan") as document:
        root = document.map("root")
        root["inner"] = pycrdt.Map({"n": 1})
        ((name, by_items),) = root.items()
        (by_values,) = root.values()
        assert name == "inner"
        assert all(isinstance(found, Proxy) for found in (root["inner"], root.get("inner"), by_items, by_values))
        by_items["n"] = 2
        assert by_values["n"] == 2


def test_a_transaction_is_one_update_to_others(space: Any) -> None:
    with space.document("plan") as document, space.document("plan") as other:
        changes = iter(other.changes())
        with document.transaction():
            document.map("m")["a"] = 1
            document.map("m")["b"] = 2
            document.array("l").append(3)
        document.flush()
        next(changes)
        assert other.to_py() == {"l": [3], "m": {"a": 1, "b": 2}}


def test_a_batch_is_a_with_block_whose_replies_come_after_it(space: Any) -> None:
    with space.batch() as batch:
        saved = batch.thread("{t}/a").save({"step": 1})
        batch.counter("{t}/n").add(512)
    assert space.thread("{t}/a").load().id == saved.reply.id
    assert space.counter("{t}/n").value() == 512


def test_a_batch_whose_block_raises_writes_nothing_and_the_exception_comes_out(space: Any) -> None:
    with pytest.raises(ZeroDivisionError), space.batch() as batch:
        batch.counter("n").add(1)
        _ = 1 / 0
    assert space.counter("n").value() == 0


def test_watch_is_a_for_loop_that_sees_what_another_thread_writes(store: Any, space: Any) -> None:
    before = store.status().connections

    def seen() -> list[tuple[str, str]]:
        found = []
        for change in space.watch(kinds=["counter"]):
            found.append((change.name, change.what))
            if len(found) == 2:
                break
        return found

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(seen)
        while store.status().connections == before:  # A change before the subscription is no change from now on.
            pass
        space.counter("a").add(1)
        space.register("not a counter").set(1)
        space.counter("b").add(1)
        assert watching.result() == [("a", "add"), ("b", "add")]
    assert store.status().connections == before, "a loop that was left keeps no subscription"


def test_listings_are_for_loops(store: Any, space: Any) -> None:
    for name in ("b", "a", "ab"):
        space.counter(name).add(1)
    space.thread("t").save({})
    assert (list(space.counters()), list(space.counters("a")), list(space.threads())) == (["a", "ab", "b"], ["a", "ab"], ["t"])
    assert space.name in list(store.spaces())


def test_a_handle_is_true_and_an_empty_root_is_not(space: Any) -> None:
    assert space.thread("a")
    with space.document("d") as document:
        assert not document.map("m")


def test_errors_are_raised_as_they_are(store: Any, space: Any) -> None:
    thread = space.thread("a")
    thread.save({"n": 1})
    with pytest.raises(HeadMoved) as moved:
        thread.save({"n": 2}, expect_head="ab" * 32)
    assert moved.value.detail["heads"] == thread.heads()["main"]
    with pytest.raises(InvalidName):
        store.space("\x00")
    space.counter("c").add(1, key="k")
    with pytest.raises(KeyReused):
        space.counter("c").add(2, key="k")
    with space.document("d") as document:
        document.map("root")
        with pytest.raises(RootConflict):
            document.text("root")
    with pytest.raises(AttributeError):
        _ = space.no_such_thing


def test_one_store_serves_many_threads_at_once(space: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: space.counter("n").add(n), range(100)))
        list(pool.map(lambda n: space.thread(f"t{n % 8}").append("n", n), range(40)))
    assert space.counter("n").value() == sum(range(100))
    assert sum(len(list(space.thread(f"t{n}").history())) for n in range(8)) == 40


def test_a_blocking_call_on_the_loop_itself_is_refused_rather_than_waiting_for_itself(space: Any) -> None:
    refused = []
    with space.document("d") as document:

        def called_on_the_loop(event: object) -> None:
            try:
                space.counter("n").value()
            except InvalidInput as error:
                refused.append(str(error))

        root = document.map("m")
        subscription = root.observe(called_on_the_loop)
        root["a"] = 1
        root.unobserve(subscription)
    assert "where it would wait for itself" in refused[0]


# ── opening and closing ───────────────────────────────────────────────────────


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("shoal-")]


def test_closing_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = loops()
    with sync.open(tmp_path / "state") as store:
        store.space("s").counter("n").add(1)
        assert loops() != before
    assert loops() == before


def test_an_opening_that_fails_raises_its_own_error_and_leaves_no_thread_behind(tmp_path: Path) -> None:
    with sync.open(tmp_path / "state"):
        before = loops()
        with pytest.raises(StoreLocked), sync.open(tmp_path / "state"):
            pass
        assert loops() == before


@pytest.mark.parametrize("raised", [ZeroDivisionError, KeyboardInterrupt, StopIteration, asyncio.CancelledError])
def test_an_error_in_the_block_still_closes_the_store(tmp_path: Path, raised: type[BaseException]) -> None:
    # contextlib turns a StopIteration that leaves a generator into a RuntimeError, and says from what.
    with pytest.raises((raised, RuntimeError)) as found, sync.open(tmp_path / "state") as store:
        store.space("s").counter("n").add(1)
        raise raised
    assert isinstance(found.value, raised) or isinstance(found.value.__cause__, raised)
    with sync.open(tmp_path / "state") as store:
        assert store.space("s").counter("n").value() == 1


def test_after_closing_every_call_says_that_the_store_is_closed(tmp_path: Path) -> None:
    with sync.open(tmp_path / "state") as store:
        space = store.space("s")
        counter, events = space.counter("n"), space.thread("t").journal.read()
    for call in (lambda: counter.add(1), lambda: space.thread("t"), lambda: list(events), lambda: store.status()):
        with pytest.raises(StoreClosed, match="this store is closed"):
            call()


def test_an_iterator_that_was_left_open_is_closed_with_its_store(tmp_path: Path) -> None:
    with sync.open(tmp_path / "state") as store:
        journal = store.space("s").thread("t").journal
        for n in range(3):
            journal.append(n)
        events = iter(journal.read(follow=True))
        assert next(events).event == 0
    with pytest.raises(StoreClosed):
        next(events)


def test_a_thread_that_waits_while_the_store_closes_is_told_so(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with sync.open(tmp_path / "state") as store:
            journal = store.space("s").thread("t").journal
            waiting = pool.submit(lambda: list(journal.read(follow=True)))
            while store.status().connections == 0:
                pass
        with pytest.raises((StoreClosed, OutcomeUnknown)):
            waiting.result()


class Endless:
    """Interrupts the main thread while that waits for it."""

    def __init__(self) -> None:
        self.cancelled = False

    async def wait(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread only")
def test_an_interrupted_call_is_cancelled_and_the_store_is_closed(tmp_path: Path) -> None:
    endless = Endless()
    with pytest.raises(KeyboardInterrupt), sync.open(tmp_path / "state") as store:
        Proxy(cast(Proxy, store)._portal, endless).wait()
    assert endless.cancelled
    with sync.open(tmp_path / "state"):
        pass


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[str]:
    config = Config(listen_port=0)
    node = await open_node(directory, config=config, environment=system_environment())
    listener = Listener(create_app(node.session, config=config, node="n", version="0", now_s=time.time), config=config)
    await listener.start()
    yield listener.url
    await listener.stop()
    await node.stop()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    portal = sync.Portal()
    node = serving(directory)
    yield portal.run(node.__aenter__)
    portal.run(lambda: node.__aexit__(None, None, None))
    portal.close()


def test_connect_offers_the_same_over_a_node(tmp_path: Path) -> None:
    with served(tmp_path / "state") as url, sync.connect(url) as store:
        space = store.space("s")
        space.thread("t").save({"n": 1})
        space.counter("n").add(2, key="k")
        with space.document("d") as document:
            document.map("m")["a"] = 1
        assert (space.thread("t").load().state, space.counter("n").value()) == ({"n": 1}, 2)
        assert list(space.documents()) == ["d"]


def test_a_bookmark_is_handed_over_as_text_and_reads_can_be_stale(tmp_path: Path) -> None:
    with served(tmp_path / "state") as url, sync.connect(url) as one, sync.connect(url) as other:
        one.space("s").thread("t").save({"n": 1})
        other.observe(one.bookmark)
        assert type(one.bookmark) is str
        assert other.bookmark == one.bookmark
        assert other.space("s").thread("t").load(stale=True).state == {"n": 1}
        with pytest.raises(InvalidValue):
            other.observe("garbage")


def test_items_are_plain_and_searches_lists(space: Any) -> None:
    version = space.items.put(("memory", "u"), "k", {"n": 1})
    space.items.put(("memory", "v"), "k", {"n": 2})
    item = space.items.get(("memory", "u"), "k")
    assert (item.value, item.version) == ({"n": 1}, version)
    assert [found.key for found in space.items.search(("memory",), filter={"n": {"$gt": 1}})] == ["k"]
    assert [found.value["n"] for found in space.items.scan()] == [1, 2]
    assert space.items.namespaces() == [("memory", "u"), ("memory", "v")]
    with space.batch() as batch:
        batch.items.delete(("memory", "u"), "k")
    assert space.items.get(("memory", "u"), "k") is None


def test_a_step_is_called_once_and_its_context_takes_a_result(tmp_path: Path) -> None:
    with sync.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("t")
        assert [thread.step("bill", call=lambda: 7), thread.step("bill", call=lambda: 8)] == [7, 7]
        with thread.begin("pay", key="k") as step:
            assert not step.done
            step.result = "receipt"
        assert [(record.key, record.result) for record in thread.steps()] == [("bill", 7), ("k", "receipt")]
        assert thread.resume().reason.skipped == ("bill", "k")
