"""The checkpoints of a thread without a handle: the HTTP API reads and saves so."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Space, Store
from shoal.errors import HeadMoved, TooLarge
from shoal.kinds.thread.flows import checkpoints, merging
from shoal.kinds.thread.flows import merging as merges
from shoal.kinds.thread.flows import mutations as undo
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints
from shoal.kinds.thread.flows.merging import difference
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import Connection
from shoal.workflows.transfer.exporting import Wanted, export


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path) as store:
        yield store


@pytest.fixture
def space(store: Store) -> Space:
    return store.space("crew")


@pytest.fixture
def bare(store: Store) -> ThreadCheckpoints:
    return ThreadCheckpoints(store.connection, "crew", "t")


async def forked(space: Space) -> list[str]:
    """A thread with two heads, which share a base."""
    first, second = space.thread("t"), space.thread("t")
    await first.save({"a": 1, "b": 1})
    await second.load()
    one = await first.save({"a": 2, "b": 1})
    other = await second.save({"a": 1, "b": 3}, on_conflict="fork")
    return [one.id, other.id]


async def test_all_that_lead_to_heads_and_labels_come_once_and_children_first(space: Space, bare: ThreadCheckpoints) -> None:
    await forked(space)
    thread = space.thread("t")
    await thread.merge()
    found = [each async for each in bare.reachable()]
    assert len({each.id for each in found}) == len(found) == 4
    assert len(found[0].parents) == 2
    assert found[-1].parents == () or any(each.parents == () for each in found)


async def test_a_line_is_cut_at_the_given_length(space: Space, bare: ThreadCheckpoints) -> None:
    thread = space.thread("t")
    ids = [(await thread.save({"n": number})).id for number in range(5)]
    assert [each.id async for each in bare.reachable(line_max=2)] == ids[:2:-1]


async def test_of_given_starts_those_that_do_not_exist_are_left_out(space: Space, bare: ThreadCheckpoints) -> None:
    saved = await space.thread("t").save({"n": 1})
    assert [each.id async for each in bare.reachable(["f" * 64, saved.id])] == [saved.id]


@pytest.mark.answers("flow-that-exists-twice-drifts")
async def test_a_merge_makes_the_same_state_with_and_without_a_handle(space: Space, bare: ThreadCheckpoints) -> None:
    heads = await forked(space)
    joined = await merges.merge(bare, None, None, branch="main")
    assert set(joined.parents) == set(heads)
    assert (await space.thread("t").merge(heads)).state == {"a": 2, "b": 3} == (await bare.load()).state


async def test_a_merge_that_was_made_is_not_made_again(space: Space, bare: ThreadCheckpoints) -> None:
    heads = await forked(space)
    joined = await merges.merge(bare, heads, None, branch="main")
    assert (await merges.merge(bare, heads, None, branch="main")).id == joined.id


async def test_a_merge_of_one_schema_keeps_it(space: Space, bare: ThreadCheckpoints) -> None:
    plan = shoal.Schema("plan", version=2)
    first = await space.thread("t", schema=plan).save({"a": 1, "b": 1})
    await space.thread("t", schema=plan).save({"a": 2, "b": 1}, parent=first.id)
    await space.thread("t", schema=plan).save({"a": 1, "b": 3}, parent=first.id, on_conflict="fork")
    joined = await bare.read((await merges.merge(bare, None, None, branch="main")).id)
    assert (joined.schema, joined.schema_version) == ("plan", 2)


async def test_a_difference_hides_what_either_side_does(space: Space, bare: ThreadCheckpoints) -> None:
    before = await space.thread("t", schema=shoal.Schema("plan", secret={"a"})).save({"a": "old"})
    newer = space.thread("t", schema=shoal.Schema("plan", version=2, migrations={1: lambda state: state}))
    await newer.load()
    after = await newer.save({"a": "new"})
    assert after.secret == ()
    [change] = (await difference(bare, before.id, after.id, reveal=False)).channels["a"]
    assert (change.before, change.after) == ("«secret»", "«secret»")


async def test_an_undo_and_an_edit_build_on_the_winner(space: Space, bare: ThreadCheckpoints) -> None:
    thread = space.thread("t")
    await thread.save({"n": 1})
    await thread.save({"n": 2})
    await undo.undo(bare, 1, branch="main")
    edited = await merging.edit(bare, {"m": 7}, by="me", branch="main")
    assert (edited.state, edited.author) == ({"n": 1, "m": 7}, "me")


async def test_a_save_of_a_handle_that_has_not_seen_it_is_rejected(space: Space, bare: ThreadCheckpoints) -> None:
    thread = space.thread("t")
    await thread.save({"n": 1})
    await merging.edit(bare, {"n": 2}, by="me", branch="main")
    with pytest.raises(HeadMoved):
        await thread.save({"n": 3})


async def test_the_states_of_a_merge_are_bounded_as_they_are_read(
    space: Space, bare: ThreadCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = await space.thread("t").save({"large": "x" * 500, "n": 0})
    heads = []
    for nth in range(4):
        side = space.thread("t")
        await side.load(base.id)
        heads.append((await side.save({"large": "x" * 500, "n": nth}, on_conflict="fork")).id)
    monkeypatch.setattr(merges, "STATES_BYTES_MAX", 1700)
    states: list[str | None] = []
    read = bare.read

    async def counted(id: str | None, channels: list[str] | None = None, **how: Any) -> Any:
        states.extend([id] if channels is None else [])
        return await read(id, channels, **how)

    monkeypatch.setattr(bare, "read", counted)
    with pytest.raises(TooLarge, match="the states of the 4 heads take more than 1700 bytes together"):
        await merges.merge(bare, None, lambda _channel, _base, _sides: 1, branch="main")
    assert len(states) == 4  # With the base: the fourth is too much, and no fifth is read.
    states.clear()
    await merges.merge(bare, heads[:1], lambda _channel, _base, _sides: 1, branch="main")
    assert 2 <= len(states) <= 3


async def test_an_undo_is_made_on_what_it_has_read(
    space: Space, bare: ThreadCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = space.thread("t")
    await thread.save({"n": 1})
    await thread.save({"n": 2})
    sound = bare.save

    async def late(request: requests.Save, key: str | None, durability: Durability | None) -> Checkpoint:
        await thread.save({"n": 3})
        return await sound(request, key, durability)

    monkeypatch.setattr(bare, "save", late)
    with pytest.raises(HeadMoved):
        await undo.undo(bare, 1, branch="main")


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[requests.History]:
    """The pages of two checkpoints that were asked for."""
    asked, sound = list[requests.History](), Connection.read

    async def read(self: Connection, request: Any, *, stale: bool = False) -> Any:
        if isinstance(request, requests.History):
            asked.append(request)
        return await sound(self, request, stale=stale)

    monkeypatch.setattr(Connection, "read", read)
    monkeypatch.setattr(checkpoints, "PAGE", 2)
    return asked


async def test_a_page_is_read_when_it_is_needed(space: Space, bare: ThreadCheckpoints, pages: list[requests.History]) -> None:
    thread = space.thread("t")
    ids = [(await thread.save({"n": number})).id for number in range(5)]
    async for found in bare.pages():
        assert found.id == ids[-1]
        break
    assert len(pages) == 1
    assert [each.id async for each in bare.pages()] == ids[::-1]
    assert len(pages) == 1 + 3


async def test_a_record_is_exported_once_it_is_read(store: Store, space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[bool] = []
    read = Connection.read

    async def noted(self: Connection, request: Any, **manner: Any) -> Any:
        if isinstance(request, requests.Load):
            loads.append(request.channels is None)
        return await read(self, request, **manner)

    monkeypatch.setattr(Connection, "read", noted)
    thread = space.thread("t")
    for number in range(7):
        await thread.save({"n": number})
    async with aclosing(export(store.connection, Wanted("crew", "t"))) as lines:
        kinds = [json.loads(await anext(lines))["type"] for _ in range(4)]
    assert kinds == ["export", "space", "thread", "checkpoint"]
    assert loads == [False, True]  # One by itself, to find those below it; one with its state.
