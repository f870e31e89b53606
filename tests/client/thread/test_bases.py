"""Nobody replaces what they have not seen, and changes that do not meet all succeed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.errors import HeadMoved, InvalidInput


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def space(store: Store) -> Space:
    return store.space("crew")


# ── a handle that has seen nothing ────────────────────────────────────────────


@pytest.mark.answers("restarted-agent-replaces-an-unloaded-state")
async def test_a_whole_state_does_not_replace_what_its_handle_has_not_seen(space: Space) -> None:
    first = await space.thread("p").save({"x": 1})
    with pytest.raises(HeadMoved, match=r"Load the branch first .* or pass overwrite=True") as refused:
        await space.thread("p").save({"x": 2})
    assert refused.value.written == "no"
    assert refused.value.detail["heads"] == [first.id]
    assert (await space.thread("p").load()).state == {"x": 1}


async def test_of_two_first_saves_at_once_one_is_refused(space: Space) -> None:
    made = await asyncio.gather(*(space.thread("p").save({"x": n}) for n in range(2)), return_exceptions=True)
    assert sorted(isinstance(outcome, HeadMoved) for outcome in made) == [False, True]


async def test_with_overwrite_it_replaces_the_winner(space: Space) -> None:
    first = await space.thread("p").save({"x": 1})
    assert (await space.thread("p").save({"x": 2}, overwrite=True)).parents == (first.id,)


async def test_overwrite_replaces_also_what_came_after_the_position(space: Space) -> None:
    handle = space.thread("p")
    await handle.save({"x": 1})
    later = await space.thread("p").update({"x": 2})
    assert (await handle.save({"x": 3}, overwrite=True)).parents == (later.id,)


async def test_overwrites_at_once_all_succeed(space: Space) -> None:
    await space.thread("p").save({"x": 0})
    await asyncio.gather(*(space.thread("p").save({"x": n}, overwrite=True) for n in range(10)))
    assert len([checkpoint async for checkpoint in space.thread("p").history()]) == 11


async def test_overwrite_begins_a_branch_too(space: Space) -> None:
    assert (await space.thread("p").save({"x": 1}, overwrite=True)).parents == ()


@pytest.mark.parametrize("other", [{"parent": shoal.NO_HEAD}, {"expect_head": shoal.NO_HEAD}, {"on_conflict": "fork"}])
async def test_overwrite_beside_what_it_contradicts_is_refused(space: Space, other: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="overwrite=True replaces"):
        await space.thread("p").save({"x": 1}, overwrite=True, **other)  # type: ignore[arg-type]


async def test_an_expected_head_is_enough(space: Space) -> None:
    first = await space.thread("p").save({"x": 1})
    assert (await space.thread("p").save({"x": 2}, expect_head=first.id)).parents == (first.id,)


async def test_a_fork_is_made_beside_what_was_not_seen(space: Space) -> None:
    await space.thread("p").save({"x": 1})
    forked = await space.thread("p").save({"x": 2}, on_conflict="fork")
    assert (forked.parents, forked.forked) == ((), True)


@pytest.mark.parametrize("change", ["append", "update"])
async def test_a_change_of_a_part_needs_no_load(space: Space, change: str) -> None:
    first = await space.thread("p").save({"x": 1, "log": []})
    handle = space.thread("p")
    saved = await (handle.append("log", "a") if change == "append" else handle.update({"y": 2}))
    assert saved.parents == (first.id,)


async def test_a_key_finds_its_first_outcome_whatever_its_handle_has_seen(space: Space) -> None:
    first = await space.thread("p").save({"x": 1}, key="start")
    await space.thread("p").append("log", "a")
    assert (await space.thread("p").save({"x": 1}, key="start")).id == first.id


async def test_a_thread_that_was_deleted_is_begun_anew(space: Space) -> None:
    handle = space.thread("p")
    await handle.save({"x": 1})
    await handle.delete()
    assert (await handle.save({"x": 2})).parents == ()


async def test_autosave_does_not_begin_on_what_its_handle_has_not_seen(space: Space) -> None:
    await space.thread("p").save({"x": 1})
    with pytest.raises(HeadMoved, match="Load it first"):
        async with space.thread("p").autosave(lambda: {"x": 2}):
            raise AssertionError("the block ran")
    handle = space.thread("p")
    await handle.load()
    async with handle.autosave(lambda: {"x": 3}):
        pass
    async with space.thread("p").autosave(lambda: {"x": 4}, overwrite=True):
        pass
    assert (await handle.load()).state == {"x": 4}


# ── batches ───────────────────────────────────────────────────────────────────


async def test_a_batch_does_not_replace_what_it_does_not_name(space: Space) -> None:
    first = await space.thread("p").save({"x": 1})
    with pytest.raises(HeadMoved, match="overwrite=True"):
        async with space.batch() as batch:
            batch.thread("p").journal.append("planned")
            batch.thread("p").save({"x": 2})
    assert [event async for event in space.thread("p").journal.read()] == []
    async with space.batch() as batch:
        named = batch.thread("p").save({"x": 2}, parent=first.id)
    async with space.batch() as batch:
        batch.thread("p").save({"x": 3}, overwrite=True)
    async with space.batch() as batch:
        batch.thread("p").append("log", "a")
    assert named.reply.parents == [first.id]
    assert (await space.thread("p").load()).state == {"x": 3, "log": ["a"]}


async def test_a_batch_builds_on_what_it_saved_itself(space: Space) -> None:
    async with space.batch() as batch:
        first = batch.thread("p").save({"x": 1})
        second = batch.thread("p").save({"x": 2})
    assert second.reply.parents == [first.reply.id]


async def test_a_change_in_a_batch_does_not_excuse_a_whole_state_after_it(space: Space) -> None:
    await space.thread("p").save({"x": 1})
    with pytest.raises(HeadMoved):
        async with space.batch() as batch:
            batch.thread("p").append("log", "a")
            batch.thread("p").save({"x": 2})


# ── changes that commute ──────────────────────────────────────────────────────


@pytest.mark.answers("restarted-agent-replaces-an-unloaded-state")
async def test_appends_of_many_fresh_handles_at_once_all_succeed(space: Space) -> None:
    await asyncio.gather(*(space.thread("p").append("log", n) for n in range(20)))
    assert sorted((await space.thread("p").load()).state["log"]) == list(range(20))
    assert not (await space.thread("p").load()).forked


async def test_appends_at_once_of_handles_that_have_loaded_all_succeed(space: Space) -> None:
    await space.thread("p").save({"log": []})
    handles = [space.thread("p") for _ in range(10)]
    await asyncio.gather(*(handle.load() for handle in handles))
    await asyncio.gather(*(handle.append("log", n, key=f"k{n}") for n, handle in enumerate(handles)))
    assert sorted((await space.thread("p").load()).state["log"]) == list(range(10))


async def test_updates_of_different_channels_at_once_all_succeed(space: Space) -> None:
    await space.thread("p").save({"a": 0, "b": 0})
    one, other = space.thread("p"), space.thread("p")
    await one.load()
    await other.load()
    await one.update({"a": 1})
    await other.update({"b": 2}, append={"log": ["x"]})
    assert (await one.load()).state == {"a": 1, "b": 2, "log": ["x"]}


@pytest.mark.parametrize("change", [{"changes": {"a": 2}}, {"remove": ["a"]}])
async def test_a_channel_that_was_changed_meanwhile_is_not_replaced(space: Space, change: dict[str, object]) -> None:
    await space.thread("p").save({"a": 0, "b": 0})
    one, other = space.thread("p"), space.thread("p")
    await one.load()
    await other.load()
    await one.update({"a": 1})
    with pytest.raises(HeadMoved, match="Nothing was written"):
        await other.update(**change)  # type: ignore[arg-type]
    assert (await one.load()).state == {"a": 1, "b": 0}


async def test_an_append_does_not_follow_a_rollback(space: Space) -> None:
    handle = space.thread("p")
    first = await handle.save({"log": []})
    await handle.append("log", "wrong")
    await space.thread("p").rollback(first.id)
    with pytest.raises(HeadMoved):
        await handle.append("log", "and so on")


async def test_an_append_on_an_old_checkpoint_that_was_loaded_is_not_made_of_the_newest(space: Space) -> None:
    first = await space.thread("p").save({"log": []})
    await space.thread("p").append("log", "a")
    handle = space.thread("p")
    await handle.load(first.id)
    with pytest.raises(HeadMoved):
        await handle.append("log", "b")
    assert (await handle.append("log", "b", on_conflict="fork")).parents == (first.id,)


async def test_an_append_that_names_its_parent_is_not_made_of_another(space: Space) -> None:
    first = await space.thread("p").save({"log": []})
    await space.thread("p").append("log", "a")
    for named in ({"parent": first.id}, {"expect_head": first.id}):
        with pytest.raises(HeadMoved):
            await space.thread("p").append("log", "b", **named)  # type: ignore[arg-type]


async def test_an_append_goes_on_on_the_head_that_descends_from_what_its_handle_saw(space: Space) -> None:
    root = await space.thread("p").save({"log": []})
    handle = space.thread("p")
    await handle.load()
    left = await space.thread("p").append("log", "left")
    await space.thread("p").save({"log": ["alone"]}, parent=shoal.NO_HEAD, on_conflict="fork")
    assert (await handle.append("log", "next")).parents == (left.id,)
    assert root.id != left.id


async def test_a_handle_moves_with_the_branch_that_it_moves(space: Space) -> None:
    thread = space.thread("p")
    first = await thread.save({"x": 1})
    await thread.save({"x": 2})
    await thread.rollback(first.id)
    assert (await thread.save({"x": 3})).parents == (first.id,)


async def test_reads_of_the_past_move_nothing(space: Space) -> None:
    thread = space.thread("p")
    for number in range(3):
        last = await thread.save({"x": number})
    assert len([each async for each in thread.history(states=True)]) == 3
    assert (await thread.save({"x": 9})).parents == (last.id,)
