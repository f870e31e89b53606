"""The mutation log, undo and redo, over an embedded node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import shoal
from shoal import Schema
from shoal.errors import InvalidInput, NotFound, UndoConflict
from shoal.kinds.thread.flows.mutations import Mutation
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.session import ServiceSession
from shoal.values import codec, difference


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[Thread]:
    async with shoal.open(tmp_path / "state") as store:
        yield store.space("crew").thread("t")


async def log(thread: Thread, **options: Any) -> list[Mutation]:
    return [mutation async for mutation in thread.mutations(**options)]


def shown(mutations: list[Mutation]) -> list[tuple[str, str, str, Any, Any]]:
    return [(one.op, one.channel, one.path, one.before, one.after) for one in mutations]


async def state(thread: Thread) -> dict[str, Any]:
    return (await thread.load()).state


async def test_the_log_tells_each_place_that_changed_oldest_first(thread: Thread) -> None:
    first = await thread.save({"plan": {"a": 1}, "log": ["x"]})
    second = await thread.save({"plan": {"a": 2, "b": 3}, "log": ["x", "y"]})
    found = await log(thread)
    assert shown(found) == [
        ("add", "plan", "", None, {"a": 1}),
        ("add", "log", "", None, ["x"]),
        ("replace", "plan", "/a", 1, 2),
        ("add", "plan", "/b", None, 3),
        ("add", "log", "/1", None, "y"),
    ]
    assert [one.checkpoint for one in found] == [first.id] * 2 + [second.id] * 3
    assert {one.time for one in found} == {first.time, second.time}


async def test_the_log_goes_on_after_a_mutation_or_a_checkpoint(thread: Thread) -> None:
    first = await thread.save({"a": 1, "b": 1})
    await thread.save({"a": 2, "b": 2})
    whole = await log(thread)
    for count in range(len(whole)):
        head = await log(thread, limit=count + 1)
        assert head == whole[: count + 1]
        assert await log(thread, after=head[-1].id) == whole[count + 1 :]
    assert await log(thread, after=first.id) == whole[2:]
    with pytest.raises(NotFound):
        await log(thread, after="0" * 64)
    with pytest.raises(InvalidInput):
        await log(thread, after=f"{first.id}/x")


@contextmanager
def cost(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of the replies, values that were compared, and requests."""
    counted = [0, 0, 0]
    call = ServiceSession.call

    async def counting_call(self: ServiceSession, *arguments: Any, **named: Any) -> Any:
        reply = await call(self, *arguments, **named)
        counted[2] += 1
        counted[0] += len(msgspec.msgpack.encode(reply))
        return reply

    def counting_encode(value: object) -> bytes:
        counted[1] += 1
        return codec.encode(value)

    with patch.context() as inner:
        inner.setattr(ServiceSession, "call", counting_call)
        inner.setattr("shoal.values.difference.encode", counting_encode)
        yield counted


@pytest.mark.answers("log-of-a-growing-list-costs-its-length")
async def test_the_log_of_a_list_that_grew_twice_as_long_costs_twice(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    costs: list[list[int]] = []
    for count in (100, 200):
        while len(messages) < count:
            messages.append(f"message {len(messages)} " + "x" * 100)
            await thread.save({"messages": messages, "n": len(messages)}, durability="memory")
        with cost(monkeypatch) as counted:
            assert len(await log(thread)) == 2 * count
        costs.append(counted)
        assert counted[2] < count + 10  # One for each checkpoint, and some for the history.
    assert all(after < 2.2 * before for before, after in zip(*costs, strict=True)), costs


@pytest.mark.answers("log-of-a-growing-list-costs-its-length")
async def test_the_log_of_lists_that_grow_is_what_the_states_differ_in(thread: Thread) -> None:
    random = Random(7)
    lists: dict[str, list[Any]] = {"a": [], "b": []}
    states: list[dict[str, Any]] = []
    for _ in range(80):
        for name in random.sample(["a", "b"], random.randrange(1, 3)):
            grown = [random.choice([1, 1.0, "x" * 500, None]) for _ in range(random.randrange(6))]
            cut = random.choice([0, 0, 0, 1])
            lists[name] = lists[name][: len(lists[name]) - cut] + grown
        states.append({**lists, "n": len(states) // 2})
        await thread.save(states[-1])
    expected = [
        (change.op, channel, change.path, change.before, change.after)
        for before, after in pairwise([{}, *states])
        for channel, changes in difference.channel_differences(before, after).items()
        for change in changes
    ]
    assert shown(await log(thread)) == expected


async def test_a_long_history_is_told_whole(thread: Thread) -> None:
    for number in range(205):
        await thread.save({"n": number})
    assert [one.after for one in await log(thread)] == list(range(205))


async def test_a_thread_without_checkpoints_has_no_mutations(thread: Thread) -> None:
    assert await log(thread) == []
    with pytest.raises(NotFound, match="nothing more to undo"):
        await thread.undo()


async def test_undo_takes_back_the_last_change_and_redo_brings_it_again(thread: Thread) -> None:
    states: list[dict[str, Any]] = [{"a": 1}, {"a": 2, "b": ["x"]}, {"b": ["x", "y"]}]
    for one in states:
        await thread.save(one)
    assert (await thread.undo()).parents == ((await thread.load()).parents[0],)
    assert await state(thread) == states[1]
    await thread.undo()
    assert await state(thread) == states[0]
    await thread.redo()
    assert await state(thread) == states[1]
    await thread.redo()
    assert await state(thread) == states[2]
    with pytest.raises(NotFound, match="nothing more to redo"):
        await thread.redo()
    await thread.undo(2)
    assert await state(thread) == states[0]
    await thread.undo()
    assert await state(thread) == {}
    with pytest.raises(NotFound, match="nothing more to undo"):
        await thread.undo()


async def test_an_undo_that_is_repeated_is_made_once(thread: Thread) -> None:
    for number in range(3):
        await thread.save({"n": number})
    undone = await thread.undo(key="k")
    assert (await thread.undo(key="k")).id == undone.id
    assert await state(thread) == {"n": 1}


async def test_an_undone_save_cannot_be_redone_after_another(thread: Thread) -> None:
    for number in range(3):
        await thread.save({"n": number})
    await thread.undo()
    await thread.save({"n": 1, "new": True})
    with pytest.raises(NotFound, match="nothing more to redo"):
        await thread.redo()
    await thread.undo(2)
    assert await state(thread) == {"n": 0}


async def test_a_change_that_others_came_after_is_undone_where_they_changed_something_else(thread: Thread) -> None:
    await thread.save({"plan": {"a": 1, "b": 1}, "log": ["x"]})
    mistake = await thread.save({"plan": {"a": 9, "b": 1}, "log": ["x"]})
    await thread.save({"plan": {"a": 9, "b": 2}, "log": ["x", "y"]})
    await thread.undo(checkpoint=mistake.id)
    assert await state(thread) == {"plan": {"a": 1, "b": 2}, "log": ["x", "y"]}


async def test_a_change_that_was_changed_again_is_not_undone(thread: Thread) -> None:
    await thread.save({"plan": {"a": 1}})
    mistake = await thread.save({"plan": {"a": 2}})
    last = await thread.save({"plan": {"a": 3}})
    with pytest.raises(UndoConflict, match="changed since") as refused:
        await thread.undo(checkpoint=mistake.id)
    assert (refused.value.detail["channel"], refused.value.detail["path"]) == ("plan", "/a")
    assert (await thread.load()).id == last.id


async def test_a_removed_key_that_came_back_is_not_undone_over_it(thread: Thread) -> None:
    await thread.save({"plan": {"a": 1, "b": 1}})
    removal = await thread.save({"plan": {"b": 1}})
    await thread.save({"plan": {"a": 5, "b": 1}})
    with pytest.raises(UndoConflict):
        await thread.undo(checkpoint=removal.id)


async def test_at_least_one_change_is_undone(thread: Thread) -> None:
    await thread.save({})
    with pytest.raises(InvalidInput, match="number of changes"):
        await thread.undo(0)


async def test_a_number_of_changes_and_a_checkpoint_are_not_undone_together(thread: Thread) -> None:
    saved = await thread.save({})
    with pytest.raises(InvalidInput, match="not both"):
        await thread.undo(2, checkpoint=saved.id)


async def test_the_log_hides_what_is_secret_and_undo_brings_it_back(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "s") as store:
        thread = store.space("crew").thread("t", schema=Schema("login", secret={"/credentials/token"}))
        await thread.save({"credentials": {"user": "ann", "token": "hunter1"}})
        await thread.save({"credentials": {"user": "ann", "token": "hunter2"}})
        assert "hunter" not in str(await log(thread))
        assert [one.path for one in await log(thread)] == ["", "/token"]
        assert await log(thread, reveal=True) != await log(thread)
        undone = await thread.undo()
        assert (await thread.load()).state == {"credentials": {"user": "ann", "token": "hunter1"}}
        assert (await thread.load(undone.id)).secret == ("/credentials/token",)


@pytest.mark.parametrize("seed", range(8))
async def test_any_number_of_changes_is_undone_and_redone(thread: Thread, seed: int) -> None:
    random = Random(seed)
    states = [drawn(random, 3) for _ in range(6)]
    for one in states:
        await thread.save(one)
    count = random.randrange(1, 5)
    await thread.undo(count)
    assert await state(thread) == states[-1 - count]
    await thread.redo()
    assert await state(thread) == states[-1]


def drawn(random: Random, depth: int) -> dict[str, Any]:
    def value(depth: int) -> Any:
        kind = random.randrange(3 if depth else 1)
        if kind == 1:
            return [value(depth - 1) for _ in range(random.randrange(4))]
        if kind == 2:
            return {random.choice("ab/~"): value(depth - 1) for _ in range(random.randrange(3))}
        return random.randrange(3)

    return {random.choice("xyz"): value(depth) for _ in range(random.randrange(1, 4))}
