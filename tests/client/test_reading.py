"""`space.read()`: several objects as of one moment."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal
from shoal.client.store import Store
from shoal.errors import InvalidInput, NotFound, SpansPartitions


async def fill(store: Store) -> None:
    space = store.space("crew")
    thread = space.thread("{c}/planner")
    await thread.save({"step": 1, "log": ["a"]}, label="first")
    await thread.journal.append({"n": 1})
    await thread.step("charge", call=lambda: 7)
    await thread.inbox.send({"review": 17}, by="editor")
    worklist = thread.worklist("pages")
    await worklist.add({"a": 1, "b": 2})
    await worklist.done("a")
    await thread.pause("too dear", by="ana")
    await space.counter("{c}/tokens").add(512)
    await space.register("{c}/goal").set("ship")
    await space.set("{c}/urls").add("u1", "u2")
    await space.map("{c}/board").set("k", 7)
    await space.budget("{c}/euros").grant(10)
    await space.budget("{c}/euros").spend(3)
    await space.items.put(("{c}", "notes"), "k", {"likes": 1})
    async with await space.document("{c}/plan") as document:
        document.map("tasks")["t1"] = {"done": False}


async def test_each_read_finds_what_its_own_handle_would(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await fill(store)
        async with store.space("crew").read() as read:
            planner = read.thread("{c}/planner")
            loaded, labelled = planner.load(), planner.load(label="first", channels=["step"])
            heads, events, steps, status = planner.heads(), planner.events(), planner.steps(), planner.status()
            tokens, goal, siblings = (
                read.counter("{c}/tokens").value(),
                read.register("{c}/goal").get(),
                read.register("{c}/goal").siblings(),
            )
            inbox, pages = planner.inbox(), planner.worklist("pages")
            pending, progress = pages.pending(), pages.progress()
            urls, size = read.set("{c}/urls").members(), read.set("{c}/urls").size()
            board = read.map("{c}/board")
            entry, none, entries, left = board.entry("k"), board.entry("x"), board.entries(), read.remaining("{c}/euros")
            never = read.register("{c}/never").get()
            item, absent = read.items.get(("{c}", "notes"), "k"), read.items.get(("{c}", "notes"), "no")
            document, thread = read.document("{c}/plan"), read.thread("{c}/none").load()
            with pytest.raises(InvalidInput, match="nothing has been read yet"):
                _ = tokens.value
        assert loaded.value.state == {"step": 1, "log": ["a"]}
        assert (labelled.value.id, labelled.value.state) == (loaded.value.id, {"step": 1})
        assert heads.value == {"main": [loaded.value.id]}
        assert [event.event for event in events.value if "n" in event.event] == [{"n": 1}]
        assert [step.result for step in steps.value] == [7]
        assert (status.value.status, status.value.by) == ("paused", "ana")
        assert [(message.value, message.by) for message in inbox.value] == [({"review": 17}, "editor")]
        assert [(item.key, item.value) for item in pending.value] == [("b", 2)]
        assert (progress.value.done, progress.value.total) == (1, 2)
        assert (tokens.value, goal.value, siblings.value, never.value) == (512, "ship", ["ship"], None)
        assert (sorted(urls.value), size.value) == (["u1", "u2"], 2)
        assert (entry.value and entry.value.value, none.value, left.value) == (7, None, 7)
        assert [each.key for each in entries.value] == ["k"]
        assert (item.value and item.value.value, absent.value) == ({"likes": 1}, None)
        assert document.value == {"tasks": {"t1": {"done": False}}}
        with pytest.raises(NotFound):
            _ = thread.value


async def test_objects_of_two_partitions_are_refused(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        space = store.space("crew")
        with pytest.raises(SpansPartitions):
            async with space.read() as read:
                read.counter("a").value()
                read.counter("b").value()
        async with space.read():
            pass
        async with store.space("crew", colocated=True).read() as read:
            a, b = read.counter("a").value(), read.counter("b").value()
        assert (a.value, b.value) == (0, 0)


def test_it_blocks_in_the_blocking_store(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        space = store.space("crew")
        space.counter("{c}/tokens").add(5)
        with space.read() as read:
            tokens = read.counter("{c}/tokens").value()
        assert tokens.value == 5
