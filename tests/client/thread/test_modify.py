"""A state changed by a function is changed by all of them, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.client.store import Space
from shoal.errors import HeadMoved, InvalidInput, InvalidValue, KeyReused, NotFound, SchemaViolation
from simulation.bounds import altered

State = dict[str, Any]


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[Space]:
    async with shoal.open(tmp_path) as store:
        yield store.space("crew")


def more(state: State) -> None:
    state["n"] = state.get("n", 0) + 1


async def test_it_saves_what_the_function_makes_of_the_newest_state(space: Space) -> None:
    first = await space.thread("p").save({"n": 1, "kept": "x"})
    made = await space.thread("p").modify(lambda state: {**state, "n": 5}, metadata={"at": "five"}, label="five")
    assert (made.state, made.parents, made.metadata, made.label) == ({"n": 5, "kept": "x"}, (first.id,), {"at": "five"}, "five")


async def test_a_function_may_change_what_it_gets(space: Space) -> None:
    await space.thread("p").save({"n": 1})
    assert (await space.thread("p").modify(more)).state == {"n": 2}


async def test_a_function_may_be_asynchronous(space: Space) -> None:
    async def slowly(state: State) -> State:
        await asyncio.sleep(0)
        return {"n": 1}

    assert (await space.thread("p").modify(slowly)).state == {"n": 1}


async def test_a_new_thread_has_an_empty_state(space: Space) -> None:
    assert (await space.thread("p").modify(more)).parents == ()


async def test_it_changes_the_branch_that_is_named(space: Space) -> None:
    handle = space.thread("p")
    await handle.save({"n": 1})
    await handle.branch("side")
    await handle.modify(more, branch="side")
    assert (await handle.load(branch="side")).state == {"n": 2}
    assert (await handle.load()).state == {"n": 1}


@pytest.mark.answers("restarted-agent-replaces-an-unloaded-state")
async def test_none_of_many_at_once_is_lost(space: Space) -> None:
    await asyncio.gather(*(space.thread("p").modify(more) for _ in range(20)))
    assert (await space.thread("p").load()).state == {"n": 20}


async def test_the_function_is_called_again_with_what_somebody_faster_saved(space: Space) -> None:
    await space.thread("p").save({"n": 1})
    seen: list[State] = []

    async def slow(state: State) -> None:
        seen.append(dict(state))
        if len(seen) == 1:
            await space.thread("p").update({"n": 7})
        more(state)

    assert (await space.thread("p").modify(slow)).state == {"n": 8}
    assert seen == [{"n": 1}, {"n": 7}]


async def test_attempts_are_bounded(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "bounded") as store:
        thread = store.space("crew").thread("p")
        calls = 0

        async def never_alone(state: State) -> None:
            nonlocal calls
            calls += 1
            await store.space("crew").thread("p").append("log", calls)

        with altered(save_attempts_max=3), pytest.raises(HeadMoved, match="another save came first at each of 3 attempts"):
            await thread.modify(never_alone)
        assert calls == 3


async def test_the_handle_builds_on_what_was_made(space: Space) -> None:
    handle = space.thread("p")
    made = await handle.modify(more)
    assert (await handle.save({"n": 9})).parents == (made.id,)


async def test_a_function_that_raises_changes_nothing_and_the_handle_has_seen_nothing(space: Space) -> None:
    await space.thread("p").save({"n": 1})
    handle = space.thread("p")
    with pytest.raises(ZeroDivisionError):
        await handle.modify(lambda state: {"n": 1 // 0})
    with pytest.raises(HeadMoved):
        await handle.save({"n": 2})
    assert (await handle.load()).state == {"n": 1}


async def test_a_reducer_that_makes_no_state_is_refused(space: Space) -> None:
    with pytest.raises(InvalidInput, match="fn must be a function"):
        await space.thread("p").modify({"n": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="a state is a mapping"):
        await space.thread("p").modify(lambda state: 7)  # type: ignore[arg-type, return-value]
    with pytest.raises(NotFound):
        await space.thread("p").load()


async def test_under_one_key_a_change_is_made_once_by_whomever(space: Space) -> None:
    made = await space.thread("p").modify(more, key="k")
    await space.thread("p").append("log", "between")
    again = await space.thread("p").modify(more, key="k")
    assert again.id == made.id
    assert (await space.thread("p").load()).state == {"n": 1, "log": ["between"]}


async def test_under_one_key_at_once_a_change_is_made_once(space: Space) -> None:
    made = await asyncio.gather(*(space.thread("p").modify(more, key="k") for _ in range(5)))
    assert len({checkpoint.id for checkpoint in made}) == 1
    assert (await space.thread("p").load()).state == {"n": 1}


async def test_a_key_of_another_request_is_refused(space: Space) -> None:
    await space.thread("p").save({"n": 1}, key="k")
    with pytest.raises(KeyReused):
        await space.thread("p").modify(more, key="k")


async def test_on_a_fork_it_changes_the_winner_and_says_so(space: Space) -> None:
    await space.thread("p").save({"n": 1})
    await space.thread("p").save({"n": 10}, on_conflict="fork")
    made = await space.thread("p").modify(more)
    assert (made.state, made.forked) == ({"n": 11}, True)


async def test_derived_checkpoints_keep_the_schema(space: Space) -> None:
    schema = shoal.Schema("s", model={"type": "object", "properties": {"n": {"type": "integer"}}})
    handle = space.thread("p", schema=schema)
    await handle.modify(more)
    with pytest.raises(SchemaViolation):
        await handle.modify(lambda state: {"n": "x"})
    assert (await handle.load()).schema == "s"


def test_a_blocking_store_has_it_too(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path) as store:
        thread = store.space("crew").thread("p")
        thread.modify(more)
        thread.modify(more)
        assert thread.load().state == {"n": 2}
