"""Every waiting call of the client, while the node that serves it is killed: each item comes once, and none is left out."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import pytest

import shoal
from chaos.ports import free_ports
from shoal.client.store import Space, Store
from shoal.client.watching import Change
from shoal.config import Config
from shoal.errors import Disconnected
from shoal.integrations.langgraph import ShoalStore
from shoal.kinds.document.handle.document import Document
from shoal.kinds.items.handle.items import Items
from shoal.kinds.journal.handle import Consumer, Journal
from shoal.kinds.presence.handle import Presence
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.worklist.handle.worklist import Inbox, Worklist
from tests.cli.conftest import PATIENCE_S, served

Numbers = AsyncIterator[int]
BEFORE, MEANWHILE, AFTER = range(3), range(3, 9), range(9, 12)
WARM = -1  # Tells that a stream has begun: one that tells what comes promises nothing before.


class Stream(NamedTuple):
    call: Callable[..., Any]  # Of the public client.
    read: Callable[[Space], Numbers]
    write: Callable[[Space, int], Awaitable[Any]]
    complete: bool = True  # Else what changed twice meanwhile may be told once.


async def space_watch(space: Space) -> Numbers:
    async with aclosing(space.watch(kinds=["counter"])) as changes:
        async for change in changes:
            assert isinstance(change, Change)
            yield int(change.name)


async def items_watch(space: Space) -> Numbers:
    async with aclosing(space.items.watch(("watched",))) as changes:
        async for change in changes:
            yield int(change.key)


async def graph_watch(space: Space) -> Numbers:
    store = ShoalStore(Store(space._connection, close=space._connection.session.close), space=space.name)
    async with aclosing(store.watch(("graph",))) as changes:
        async for change in changes:
            yield int(change.key)


async def journal_read(space: Space) -> Numbers:
    async with aclosing(space.thread("read").journal.read(follow=True)) as events:
        async for event in events:
            yield event.event


async def journal_wait(space: Space) -> Numbers:
    cursor = None
    while event := await space.thread("wait").journal.wait(after=cursor):
        cursor = event.cursor
        yield event.event


async def consumer_read(space: Space) -> Numbers:
    consumer = space.thread("consumed").journal.consumer("reader")
    async with aclosing(consumer.read()) as events:
        async for event in events:
            yield event.event
            await consumer.ack(event)


async def inbox_receive(space: Space) -> Numbers:
    async with aclosing(space.thread("receive").inbox.receive()) as messages:
        async for message in messages:
            yield message.value


async def inbox_next(space: Space) -> Numbers:
    inbox = space.thread("next").inbox
    while message := await inbox.next():
        await inbox.take(message, durability="quorum")
        yield message.value


async def worklist_pending(space: Space) -> Numbers:
    async with aclosing(space.thread("work").worklist("w").pending(follow=True)) as items:
        async for item in items:
            yield int(item.key)


async def thread_ready(space: Space) -> Numbers:
    await space.thread("held").ready()
    yield WARM
    while True:
        await space.thread("held").wait_for("paused")
        await space.thread("held").ready()
        yield AFTER[-1]
        await asyncio.Event().wait()


async def hold(space: Space, number: int) -> None:
    thread = space.thread("held")
    await (thread.approve() if number == AFTER[-1] else thread.pause())


async def thread_wait_for(space: Space) -> Numbers:
    yield WARM
    await space.thread("status").wait_for("done")
    yield AFTER[-1]
    await asyncio.Event().wait()


async def set_status(space: Space, number: int) -> None:
    thread = space.thread("status")
    await (thread.finish() if number == AFTER[-1] else thread.pause())


async def document_changes(space: Space) -> Numbers:
    async with await space.document("d") as document:
        async for change in document.changes():
            yield int(change.path[-1])


async def edit(space: Space, number: int) -> None:
    async with await space.document("d") as document:
        document.map("m")[str(number)] = True


async def presence_changes(space: Space) -> Numbers:
    async with aclosing(space.presence.changes()) as changes:
        async for change in changes:
            if change.kind != "left" and not change.member.mine:
                yield change.member.state["n"]


STREAMS = {
    "space": Stream(Space.watch, space_watch, lambda space, n: space.counter(str(n)).add(1)),
    "items": Stream(Items.watch, items_watch, lambda space, n: space.items.put(("watched", "below"), str(n), n)),
    "graph": Stream(ShoalStore.watch, graph_watch, lambda space, n: space.items.put(("graph",), str(n), {"n": n})),
    "read": Stream(Journal.read, journal_read, lambda space, n: space.thread("read").journal.append(n)),
    "wait": Stream(Journal.wait, journal_wait, lambda space, n: space.thread("wait").journal.append(n)),
    "consumer": Stream(Consumer.read, consumer_read, lambda space, n: space.thread("consumed").journal.append(n)),
    "receive": Stream(Inbox.receive, inbox_receive, lambda space, n: space.thread("receive").inbox.send(n)),
    "next": Stream(Inbox.next, inbox_next, lambda space, n: space.thread("next").inbox.send(n)),
    "pending": Stream(Worklist.pending, worklist_pending, lambda space, n: space.thread("work").worklist("w").add([str(n)])),
    "ready": Stream(Thread.ready, thread_ready, hold, complete=False),
    "wait_for": Stream(Thread.wait_for, thread_wait_for, set_status, complete=False),
    "document": Stream(Document.changes, document_changes, edit),
    "presence": Stream(Presence.changes, presence_changes, lambda space, n: space.presence.set({"n": n}), complete=False),
}


@pytest.mark.answers("waiting-call-ends-when-its-node-dies")
def test_every_call_with_a_timeout_is_on_the_list() -> None:
    listed = {stream.call for stream in STREAMS.values()}
    found = {
        call
        for kind in {Space, Items, Journal, Consumer, Inbox, Worklist, Thread, Document, Presence, ShoalStore, Store}
        for name, call in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and "timeout" in inspect.signature(call).parameters
    }
    assert {call.__qualname__ for call in listed} == {call.__qualname__ for call in found}


class Cluster(NamedTuple):
    processes: dict[str, Popen[str]]  # By URL.

    @property
    def urls(self) -> str:
        return ",".join(self.processes)

    async def kill_one_of(self, store: Store) -> list[str]:
        """Kill the node that serves it; the URLs of the others."""
        node = (await store.status()).node
        for url, process in self.processes.items():
            async with shoal.connect(url) as other:
                if (await other.status()).node == node:
                    await asyncio.to_thread(process.kill)
                    return [survivor for survivor in self.processes if survivor != url]
        raise AssertionError("nobody serves it")


@asynccontextmanager
async def cluster(directory: Path, size: int) -> AsyncIterator[Cluster]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
    join = ",".join(addresses)
    async with AsyncExitStack() as stack:
        begun = [
            stack.enter_context(served(directory / str(n), "--listen", address, "--join", join))
            for n, address in enumerate(addresses)
        ]
        yield Cluster({url: process for process, url in begun})


async def collect(stream: Stream, space: Space, into: list[int]) -> None:
    async for number in stream.read(space):
        into.append(number)  # noqa: PERF401


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.answers("waiting-call-ends-when-its-node-dies")
async def test_each_goes_on_with_another_node_and_gives_each_item_once(tmp_path: Path) -> None:
    got: dict[str, list[int]] = {name: [] for name in STREAMS}

    def have(last: int) -> Callable[[], bool]:
        return lambda: all(
            last in got[name] for name, stream in STREAMS.items() if stream.complete or last in (WARM, AFTER[-1])
        )

    async with cluster(tmp_path, 3) as nodes, shoal.connect(nodes.urls) as store:
        reading = [asyncio.create_task(collect(stream, store.space("crew"), got[name])) for name, stream in STREAMS.items()]
        try:
            async with shoal.connect(nodes.urls, durability="quorum") as other:
                space = other.space("crew")
                for name, stream in STREAMS.items():
                    # A watch tells what comes from then on: until it has begun, nothing is promised.
                    while WARM not in got[name]:
                        await stream.write(space, WARM)
                        await asyncio.sleep(0.05)
                await until(have(WARM))
                for number in BEFORE:
                    await asyncio.gather(*(stream.write(space, number) for stream in STREAMS.values()))
                await until(have(BEFORE[-1]))
            survivors = await nodes.kill_one_of(store)
            async with shoal.connect(",".join(survivors), durability="quorum") as other:
                for number in (*MEANWHILE, *AFTER):
                    await asyncio.gather(*(stream.write(other.space("crew"), number) for stream in STREAMS.values()))
                await until(have(AFTER[-1]))
        finally:
            for task in reading:
                task.cancel()
            ended = await asyncio.gather(*reading, return_exceptions=True)
    assert [end for end in ended if not isinstance(end, asyncio.CancelledError)] == []
    for name, stream in STREAMS.items():
        told = [number for number in got[name] if number != WARM]
        if stream.complete:
            assert sorted(told) == [*BEFORE, *MEANWHILE, *AFTER], name
        else:
            assert told == sorted(set(told)), name


async def test_the_blocking_face_goes_on_with_another_node(tmp_path: Path) -> None:
    got: list[int] = []

    def read(urls: str) -> None:
        with shoal.sync.connect(urls) as store:
            for event in store.space("crew").thread("t").journal.read(follow=True, limit=6):
                got.append(event.event)  # noqa: PERF401

    async with cluster(tmp_path, 3) as nodes, shoal.connect(nodes.urls, durability="quorum") as store:
        reader = threading.Thread(target=read, args=(nodes.urls,))
        reader.start()
        journal = store.space("crew").thread("t").journal
        for number in range(3):
            await journal.append(number)
        await until(lambda: len(got) == 3)
        await nodes.kill_one_of(store)
        for number in range(3, 6):
            await journal.append(number)
        await asyncio.to_thread(reader.join, PATIENCE_S)
    assert got == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["receive", "read", "consumer", "pending", "space", "items", "document", "presence"])
async def test_a_stream_ends_once_nothing_has_come_for_its_timeout(name: str, tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        space = store.space("crew")
        streams: dict[str, Callable[[], Any]] = {
            "receive": lambda: space.thread("t").inbox.receive(timeout=0.05),
            "read": lambda: space.thread("t").journal.read(follow=True, timeout=0.05),
            "consumer": lambda: space.thread("t").journal.consumer("c").read(timeout=0.05),
            "pending": lambda: space.thread("t").worklist("w").pending(follow=True, timeout=0.05),
            "space": lambda: space.watch(timeout=0.05),
            "items": lambda: space.items.watch(timeout=0.05),
            "presence": lambda: space.presence.changes(timeout=0.05),
        }
        async with asyncio.timeout(PATIENCE_S):
            if name == "document":
                async with await space.document("d") as document:
                    assert [change async for change in document.changes(timeout=0.05)] == []
            else:
                assert [item async for item in streams[name]()] == []


async def test_a_timeout_of_zero_takes_what_is_there(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("t")
        assert await thread.inbox.next(timeout=0) is None
        await thread.inbox.send("first")
        message = await thread.inbox.next(timeout=0)
        assert message is not None
        assert message.value == "first"


async def test_an_unmet_condition_is_named(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("t")
        await thread.pause()
        with pytest.raises(TimeoutError, match=r"thread 't' is paused after 0\.05 s"):
            await thread.ready(timeout=0.05)
        with pytest.raises(TimeoutError, match="is paused"):
            await thread.wait_for("done", timeout=0.05)


async def test_a_timeout_while_no_node_serves_is_no_quiet_end(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (process, url):
        async with shoal.connect(url, config=Config(failover_timeout_s=0.1)) as store:
            await store.status()  # It is connected.
            inbox = store.space("crew").thread("t").inbox
            async with asyncio.timeout(PATIENCE_S):
                while not await _is_quiet(inbox):
                    pass  # The machine did something else for longer than the timeout.
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.wait)
            with pytest.raises(Disconnected):
                await inbox.next(timeout=0.05)


async def _is_quiet(inbox: Inbox) -> bool:
    try:
        return await inbox.next(timeout=0.05) is None
    except Disconnected:
        return False


async def test_waiting_calls_end_when_their_store_is_closed(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        waiting = asyncio.create_task(store.space("crew").thread("t").inbox.next())
        while not (await store.status()).connections:
            await asyncio.sleep(0)
    with pytest.raises(shoal.errors.StoreClosed):
        await waiting
