"""A program that opens a store, forks, and says what the child is told: `python forked.py FACE WHERE`.

No child outlives its alarm.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import shoal
from shoal.errors import ShoalError

ALARM_S = 20


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def opened(where: str) -> Any:
    return shoal.connect(where) if where.startswith("http") else shoal.open(where)


def opened_blocking(where: str) -> Any:
    return shoal.sync.connect(where) if where.startswith("http") else shoal.sync.open(where)


def tell(name: str, use: Callable[[], Any]) -> None:
    """Print what a use raises, and whether it might be tried again."""
    try:
        use()
        say(name, "was served")
    except ShoalError as error:
        say(name, type(error).__name__, error.retryable, error.written)


def in_child(work: Callable[[], None]) -> None:
    """Do the work in a forked child, wait for it, and print how it ended."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(ALARM_S)
        try:
            work()
        except BaseException as error:
            say("the child failed with", repr(error))
        finally:
            os._exit(0)
    say("child ended with", os.waitpid(pid, 0)[1])


def on_a_new_loop(use: Callable[[], Awaitable[Any]]) -> Callable[[], Any]:
    """A blocking form of an asynchronous use: on another loop of another thread, as a worker that was forked would have it."""

    def call() -> None:
        raised: list[BaseException] = []

        async def awaited() -> None:
            await use()

        def run() -> None:
            try:
                asyncio.run(awaited())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    return call


async def asynchronous(where: str) -> None:
    """Every handle of the store, and what waited already when the process forked."""
    async with opened(where) as store:
        space = store.space("s")
        thread = space.thread("t")
        await thread.save({"n": 1})
        document = await space.document("d")
        changes = space.watch()
        waiting = asyncio.ensure_future(anext(changes))
        edits = document.changes()
        leasing = space.lease("l")
        lease = await leasing.__aenter__()
        await asyncio.sleep(0.2)
        crew = shoal.Crew(store, "c")

        @crew.agent("a")
        async def work(_: Any) -> None: ...

        async def first(source: Any) -> None:
            async for _ in source:
                return

        async def begin() -> None:
            await thread.step("effect", key="k", call=lambda: 1)

        async def enter() -> None:
            async with space.lease("other"):
                pass

        uses: dict[str, Callable[[], Awaitable[Any]]] = {
            "load": lambda: thread.load(),
            "save": lambda: thread.save({"n": 2}),
            "journal": lambda: thread.journal.append({"e": 1}),
            "step": begin,
            "inbox": lambda: thread.inbox.next(),
            "document": document.flush,
            "open document": lambda: space.document("e"),
            "document changes": lambda: first(edits),
            "counter": lambda: space.counter("n").add(1),
            "register": lambda: space.register("r").set(1),
            "set": lambda: space.set("x").add("y"),
            "map": lambda: space.map("m").set("k", 1),
            "items": lambda: space.items.put(("n",), "k", {"v": 1}),
            "watch": lambda: first(space.watch()),
            "lease": enter,
            "renewed lease": lambda: lease.release(),
            "worklist": lambda: space.worklist("w").claim(ttl=5, wait=1),
            "names": lambda: first(space.threads()),
            "status": lambda: store.status(),
            "crew": crew.run,
        }

        def child() -> None:
            for name, use in uses.items():
                tell(name, on_a_new_loop(use))
            tell("edit", lambda: document.map("m"))
            on_a_new_loop(store.close)()

        in_child(child)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await leasing.__aexit__(None, None, None)
        await document.close()
        await space.counter("alive").add(1)


def blocking(where: str) -> None:
    with opened_blocking(where) as store:
        space = store.space("s")
        thread = space.thread("t")
        thread.save({"n": 1})
        counter = space.counter("n")
        watch = iter(space.watch(timeout=0.2))
        list(watch)

        def child() -> None:
            for name, use in {
                "load": lambda: thread.load(),
                "save": lambda: thread.save({"n": 2}),
                "counter": lambda: counter.add(1),
                "handle": lambda: space.thread("u"),
                "watch": lambda: list(space.watch(timeout=0.1)),
                "attribute": lambda: store.bookmark,
            }.items():
                tell(name, use)
            store.close()

        in_child(child)
        counter.add(1)


def langgraph(where: str) -> None:
    from shoal.integrations.langgraph import ShoalSaver, ShoalStore

    way = "connect" if where.startswith("http") else "open"
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    with getattr(ShoalSaver, way)(where) as saver:
        in_child(lambda: told_of_saver(saver, config))
        saver.get_tuple(config)
    with getattr(ShoalStore, way)(where) as store:
        store.put(("a",), "k", {"v": 1})

        def child() -> None:
            tell("put", lambda: store.put(("a",), "k", {"v": 2}))
            tell("search", lambda: store.search(("a",)))
            tell("aget", on_a_new_loop(lambda: store.aget(("a",), "k")))

        in_child(child)
        assert store.get(("a",), "k").value == {"v": 1}


def told_of_saver(saver: Any, config: Any) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    tell("get_tuple", lambda: saver.get_tuple(config))
    tell("put", lambda: saver.put(config, empty_checkpoint(), {}, {}))
    tell("list", lambda: list(saver.list(config)))
    tell("aget_tuple", on_a_new_loop(lambda: saver.aget_tuple(config)))
    tell("delete_thread", lambda: saver.delete_thread("1"))


@contextmanager
def threads_that_write(space: Any) -> Iterator[None]:
    """Fork in the midst of writes: locks of the store may be held at that moment."""
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            space.counter("busy").add(1)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def ending(where: str) -> None:
    """Children that end in every way, while the parent writes; one of them forked by a thread."""
    with opened_blocking(where) as store:
        space = store.space("s")
        with threads_that_write(space):
            for way in ("return", "exit", "raise"):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(ALARM_S)
                    if way == "return":
                        return
                    if way == "exit":
                        sys.exit(0)
                    raise SystemExit(0)
                say(way, os.waitpid(pid, 0)[1])
            forking = threading.Thread(
                target=in_child, args=(lambda: tell("in a thread", lambda: space.counter("busy").value()),)
            )
            forking.start()
            forking.join()
        before = space.counter("busy").value()
        assert space.counter("busy").add(1) == before + 1
        say("parent goes on")


def own(where: str) -> None:
    """A child opens a directory of its own; that of its parent is open elsewhere."""
    with opened_blocking(where) as store:
        store.space("s").counter("n").add(1)

        def child() -> None:
            def another() -> None:
                with opened_blocking(where if where.startswith("http") else f"{where}-of-the-child") as mine:
                    mine.space("s").counter("of the child").add(1)

            tell("its own", another)
            tell("the parent's directory", lambda: opened_blocking(where))

        in_child(child)
        store.space("s").counter("n").add(1)


if __name__ == "__main__":
    face, place = sys.argv[1:]
    if face == "asynchronous":
        asyncio.run(asynchronous(place))
    else:
        {"blocking": blocking, "langgraph": langgraph, "ending": ending, "own": own}[face](place)
