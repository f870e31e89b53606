"""Handles over an embedded node with a real store on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pycrdt
import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.client.watching import Change
from shoal.config import Config
from shoal.errors import (
    Disconnected,
    HeadMoved,
    InvalidInput,
    InvalidName,
    InvalidValue,
    NotFound,
    OutcomeUnknown,
    SpansPartitions,
    StoreClosed,
)
from shoal.kinds.document.handle.document import Document
from shoal.kinds.journal.flows import Event

PATIENCE_S = 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture
def space(store: Store) -> Space:
    return store.space("crew")


async def subscribers(store: Store, count: int) -> None:
    """Until so many subscriptions are there: a change before one is no change from then on."""
    async with asyncio.timeout(PATIENCE_S):
        while (await store.status()).connections != count:
            await asyncio.sleep(0)


# ── closing ───────────────────────────────────────────────────────────────────


async def test_a_closing_store_writes_the_edits_of_open_documents(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        for name in ("one", "other"):
            document = await store.space("crew").document(name)
            document.map("m")["k"] = name
    async with shoal.open(tmp_path / "state") as store:
        for name in ("one", "other"):
            async with await store.space("crew").document(name) as document:
                assert document.to_json() == {"m": {"k": name}}


async def test_a_store_closes_although_edits_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Document) -> None:
        raise Disconnected("no node")

    opening = shoal.open(tmp_path / "state")
    store = await opening
    document = await store.space("crew").document("plan")
    document.map("m")["k"] = 1
    monkeypatch.setattr(Document, "flush", fail)
    with pytest.raises(Disconnected, match="no node"):
        await store.close()
    async with shoal.open(tmp_path / "state"):  # Its directory is free.
        pass


async def test_edits_that_wait_for_a_node_do_not_hold_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_: Document) -> None:
        await asyncio.Event().wait()

    store = await shoal.open(tmp_path / "state", config=Config(failover_timeout_s=0.01))
    document = await store.space("crew").document("plan")
    document.map("m")["k"] = 1
    monkeypatch.setattr(Document, "flush", wait)
    with pytest.raises(OutcomeUnknown, match="document 'plan' was closed with its store before its last edits"):
        await store.close()


async def test_a_closed_document_is_forgotten_by_its_store(store: Store) -> None:
    before = len(store.connection.closing)
    async with await store.space("crew").document("plan"):
        assert len(store.connection.closing) == before + 1
    assert len(store.connection.closing) == before


def test_an_object_asked_of_a_store_is_found_in_a_space(store: Store) -> None:
    with pytest.raises(
        AttributeError, match=r"a store has no 'thread'. Objects are in a space: store.space\(\"crew\"\).thread\(…\)."
    ):
        store.thread("t")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a store has no 'thraed'\.$"):
        store.thraed  # type: ignore[attr-defined]  # noqa: B018


# ── threads ───────────────────────────────────────────────────────────────────


async def test_each_access_to_a_state_makes_a_fresh_one(space: Space) -> None:
    saved = await space.thread("t").save({"messages": ["one"]}, metadata={"tags": ["a"]})
    for checkpoint in (saved, await space.thread("t").load()):
        checkpoint.state["messages"].append("mine")
        checkpoint.metadata["tags"].append("b")
        assert (checkpoint.state, checkpoint.metadata) == ({"messages": ["one"]}, {"tags": ["a"]})


async def test_a_state_changed_after_its_save_does_not_change_the_checkpoint(space: Space) -> None:
    state = {"messages": ["one"]}
    saved = await space.thread("t").save(state)
    state["messages"].append("two")
    assert saved.state == (await space.thread("t").load()).state == {"messages": ["one"]}


async def test_a_checkpoint_tells_when_it_was_saved(space: Space) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    saved = await space.thread("t").save({})
    assert before <= saved.time <= datetime.now(UTC)
    assert (await space.thread("t").load()).time == saved.time


async def test_a_loaded_checkpoint_is_where_the_next_save_builds_on(space: Space) -> None:
    thread = space.thread("t")
    first = await thread.save({"n": 0})
    await thread.save({"n": 1})
    await thread.load(first.id)
    with pytest.raises(HeadMoved):
        await thread.save({"n": 2})
    other = await thread.save({"n": 2}, on_conflict="fork")
    assert other.parents == (first.id,)
    assert other.forked


async def test_positions_are_kept_per_branch(space: Space) -> None:
    thread = space.thread("t")
    main = await thread.save({"n": 0})
    side = await thread.save({"n": 1}, branch="side")
    assert (await thread.save({"n": 2})).parents == (main.id,)
    assert (await thread.save({"n": 3}, branch="side")).parents == (side.id,)


async def test_loading_by_id_moves_the_position_on_the_branch_of_that_checkpoint(space: Space) -> None:
    thread = space.thread("t")
    first = await thread.save({"n": 0}, branch="side")
    await thread.save({"n": 1}, branch="side")
    await thread.load(first.id)
    assert (await thread.save({"n": 2}, branch="side", on_conflict="fork")).parents == (first.id,)


async def test_a_failed_save_does_not_move_the_position(space: Space) -> None:
    thread = space.thread("t")
    first = await thread.save({"n": 0})
    with pytest.raises(InvalidValue):
        await thread.save({"n": object()})
    with pytest.raises(NotFound):
        await thread.load("ab" * 32)
    assert (await thread.save({"n": 1})).parents == (first.id,)


async def test_history_pages_through_more_than_one_answer(space: Space) -> None:
    thread = space.thread("t")
    saved = [await thread.save({"n": n}, durability="memory") for n in range(205)]
    found = [checkpoint async for checkpoint in thread.history(states=True)]
    assert [(c.id, c.state["n"]) for c in found] == [(c.id, n) for n, c in reversed(list(enumerate(saved)))]


# ── journal ───────────────────────────────────────────────────────────────────


async def test_a_journal_that_is_followed_shows_what_is_appended_later(store: Store, space: Space) -> None:
    journal = space.thread("t").journal
    await journal.append(0)
    async with aclosing(journal.read(follow=True)) as events:
        assert (await anext(events)).event == 0
        waiting = asyncio.ensure_future(anext(events))
        await subscribers(store, 1)
        await space.thread("t").save({"not": "an event"})
        await space.thread("t2").journal.append("of another thread")
        await journal.append(1)
        assert (await waiting).event == 1
        for n in (2, 3, 4):
            await journal.append(n)
        assert [(await anext(events)).event for _ in range(3)] == [2, 3, 4]


async def test_following_ends_at_its_limit_and_goes_on_from_a_cursor(space: Space) -> None:
    journal = space.thread("t").journal
    for n in range(5):
        await journal.append(n)
    first = [event async for event in journal.read(follow=True, limit=2)]
    rest = [event.event async for event in journal.read(after=first[-1].cursor, follow=True, limit=3)]
    assert ([event.event for event in first], rest) == ([0, 1], [2, 3, 4])


async def test_a_reader_that_stops_following_leaves_no_subscription(store: Store, space: Space) -> None:
    await space.thread("t").journal.append(0)
    async with aclosing(space.thread("t").journal.read(follow=True)) as events:
        await anext(events)
        await subscribers(store, 1)
    await subscribers(store, 0)


async def test_following_ends_with_an_error_when_the_store_closes(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "other") as store:
        following = asyncio.ensure_future(_all(store.space("s").thread("t").journal.read(follow=True)))
        await subscribers(store, 1)
    with pytest.raises(StoreClosed):
        await following


async def _all(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


async def test_an_event_is_decoded_anew_at_each_access(space: Space) -> None:
    await space.thread("t").journal.append({"tags": ["a"]}, key="k")
    (event,) = [event async for event in space.thread("t").journal.read()]
    event.event["tags"].append("b")
    assert (event.event, event.key, event.late) == ({"tags": ["a"]}, "k", False)
    assert abs(event.time - datetime.now(UTC)) < timedelta(hours=1)


async def test_appending_with_a_key_again_names_the_first_event(space: Space) -> None:
    journal = space.thread("t").journal
    first, again = [await journal.append(1, key="k") for _ in range(2)]
    assert (first.appended, again.appended, first.id) == (True, False, again.id)


# ── watching ──────────────────────────────────────────────────────────────────


async def test_a_watch_sees_what_changes_from_then_on_and_leaves_nothing_behind(store: Store, space: Space) -> None:
    await space.counter("before").add(1)
    async with aclosing(space.watch()) as changes:
        first = asyncio.ensure_future(anext(changes))
        await subscribers(store, 1)
        saved = await space.thread("t").save({})
        change = await first
        assert isinstance(change, Change)
        assert (change.kind, change.name, change.what, change.id) == ("thread", "t", "save", saved.id)
    await subscribers(store, 0)


async def test_a_watch_that_is_cancelled_leaves_nothing_behind(store: Store, space: Space) -> None:
    watching = asyncio.ensure_future(_changes(space, 1))
    await subscribers(store, 1)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    await subscribers(store, 0)


async def test_a_watch_is_narrowed_by_kind_and_prefix(store: Store, space: Space) -> None:
    watching = asyncio.ensure_future(_changes(space, 2))
    await subscribers(store, 1)
    await space.register("a-1").set(1)
    await space.counter("b-1").add(1)
    await space.counter("a-1").add(1)
    await store.space("other").counter("a-2").add(1)
    await space.counter("a-3").add(1)
    assert [change.name for change in await watching] == ["a-1", "a-3"]


async def _changes(space: Space, count: int) -> list[Change]:
    found: list[Change] = []
    async with aclosing(space.watch(kinds=["counter"], prefix="a-")) as changes:
        async for change in changes:
            assert isinstance(change, Change)
            found.append(change)
            if len(found) == count:
                break
    return found


async def test_a_kind_that_does_not_exist_is_refused(space: Space) -> None:
    with pytest.raises(InvalidInput, match=r"kinds must be a list of some of thread, .*; got \['step'\]"):
        await anext(space.watch(kinds=["step"]))  # type: ignore[list-item]


# ── registers ─────────────────────────────────────────────────────────────────


async def test_a_set_replaces_what_its_handle_has_read_and_nothing_else(space: Space) -> None:
    one, other = space.register("r"), space.register("r")
    await one.set("start")
    await one.get()
    await other.get()
    await one.set("one")
    await other.set("other")
    assert set(await space.register("r").siblings()) == {"one", "other"}
    await one.siblings()
    await one.set("both seen")
    assert await space.register("r").siblings() == ["both seen"]


async def test_a_handle_that_sets_again_replaces_its_own_value(space: Space) -> None:
    one, other = space.register("r"), space.register("r")
    await one.get()
    await other.set("other")
    await one.set(1)
    await one.set(2)
    found = await space.register("r").siblings()
    assert "other" in found
    assert found[0] == 2


async def test_a_register_never_set_gives_the_default(space: Space) -> None:
    assert (await space.register("r").get(), await space.register("r").get("none"), await space.register("r").siblings()) == (
        None,
        "none",
        [],
    )


# ── documents ─────────────────────────────────────────────────────────────────


async def test_documents_of_two_handles_converge_and_are_there_after_reopening(tmp_path: Path) -> None:
    config = Config(document_snapshot_updates=2)
    async with shoal.open(tmp_path / "state", config=config) as store:
        space = store.space("s")
        async with await space.document("d") as one, await space.document("d") as other:
            one.map("tasks")["shared"] = pycrdt.Map({"n": 1})
            await one.flush()
            seen = other.changes()
            other.map("tasks")["mine"] = [1, 2]
            one.text("notes").insert(0, "hé")
            other.text("notes").insert(0, "wörld ")
            await asyncio.gather(one.flush(), other.flush())
            async with asyncio.timeout(PATIENCE_S):
                while one.to_py() != other.to_py():
                    await anext(seen)
            final = one.to_py()
    assert final["tasks"] == {"shared": {"n": 1}, "mine": [1, 2]}
    assert sorted(final["notes"]) == sorted("wörld hé")
    async with shoal.open(tmp_path / "state", config=config) as store, await store.space("s").document("d") as again:
        assert again.to_py() == final


@pytest.mark.answers("two-yjs-documents-share-a-client-id-and-diverge")
async def test_each_mirror_has_a_client_id_of_its_own(space: Space) -> None:
    async with await space.document("d") as one, await space.document("d") as other:
        assert one.client_id != other.client_id
        assert max(one.client_id, other.client_id) < 2**53


# ── names and listings ────────────────────────────────────────────────────────


async def test_spaces_and_objects_are_listed_past_one_page(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state", config=Config(page_items_max=2)) as store:
        for name in ("e", "d", "c", "b", "a"):
            await store.space(f"space-{name}").counter("n").add(1)
            await store.space("space-a").counter(f"n-{name}").add(1)
        assert [name async for name in store.spaces()] == [f"space-{name}" for name in "abcde"]
        assert [name async for name in store.space("space-a").counters("n-")] == [f"n-{name}" for name in "abcde"]


async def test_each_kind_has_its_own_names(space: Space) -> None:
    await space.thread("x").save({})
    await space.counter("x").add(1)
    await space.register("x").set(1)
    async with await space.document("x") as document:
        document.map("m")["a"] = 1
    for listing in (space.threads, space.counters, space.registers, space.documents):
        assert [name async for name in listing()] == ["x"]


async def test_nothing_is_listed_in_an_empty_store(store: Store, space: Space) -> None:
    assert [name async for name in store.spaces()] == []
    assert [name async for name in space.threads()] == []


@pytest.mark.parametrize("name", ["", "\x00", ".", "..", "x" * 1025, "a\nb"])
async def test_an_illegal_name_is_refused_before_anything_is_asked(store: Store, space: Space, name: str) -> None:
    for make in (store.space, space.thread, space.counter, space.register):
        with pytest.raises(InvalidName):
            make(name)
    with pytest.raises(InvalidName):
        await space.document(name)


async def test_a_handle_shows_what_it_stands_for(space: Space) -> None:
    assert [repr(handle) for handle in (space, space.thread("t"), space.counter("c"), space.register("r"))] == [
        "Space('crew')",
        "Thread('crew', 't')",
        "Counter('crew', 'c')",
        "Register('crew', 'r')",
    ]


async def test_status_tells_what_this_opening_did(store: Store, space: Space) -> None:
    before = await store.status()
    assert (before.state, before.origin, before.operations, before.spaces) == ("ready", "", 0, 0)
    await space.counter("n").add(1)
    after = await store.status()
    assert (after.node, after.operations, after.spaces) == (before.node, 1, 1)
    assert len(after.origin) == 32


async def test_a_colocated_space_takes_any_of_its_objects_in_one_batch(store: Store) -> None:
    crew = store.space("crew", colocated=True)
    async with crew.batch() as batch:
        batch.thread("planner").save({"step": 1})
        batch.counter("tokens").add(512)
        batch.register("goal").set("ship")
    assert crew.name == "{crew}"
    assert (await store.space("{crew}").thread("planner").load()).state == {"step": 1}
    assert await crew.counter("tokens").value() == 512
    assert await store.space("crew").counter("tokens").value() == 0


async def test_a_space_is_not_opened_against_what_its_name_says(store: Store) -> None:
    with pytest.raises(InvalidInput, match="is colocated"):
        store.space("{crew}", colocated=False)
    assert store.space("{crew}", colocated=True).name == "{crew}"
    assert store.space("crew", colocated=False).name == "crew"


async def test_a_batch_over_partitions_explains_tags_and_colocated_spaces(store: Store) -> None:
    batch = store.space("crew").batch()
    batch.counter("a").add(1)
    batch.counter("b").add(1)
    with pytest.raises(SpansPartitions, match=r"\{crew-7\}/planner.*colocated=True"):
        await batch.commit()
    assert await store.space("crew").counter("a").value() == 0


async def test_an_opening_that_is_cancelled_leaves_the_directory_to_others(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(shoal.open(tmp_path / "state").__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with shoal.open(tmp_path / "state") as store:
        await store.space("crew").counter("n").add(1)
