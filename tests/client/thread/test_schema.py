"""Threads that declare a schema: what they save, what they load, and what they leave alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shoal
from shoal import Schema, values
from shoal.client.store import Space
from shoal.errors import InvalidInput, MigrationFailed, NotFound, SchemaMismatch, SchemaTooNew, SchemaViolation
from shoal.kinds.thread.handle.thread import Thread


class Task(msgspec.Struct):
    title: str


class Plan(msgspec.Struct):
    tasks: list[Task]
    budget: int = 0


class Plan3(msgspec.Struct):
    tasks: list[Task]
    budget: int = 0
    owner: str = ""


V1 = Schema("plan", version=1)
V2 = Schema("plan", version=2, model=Plan, migrations={1: lambda state: {"tasks": [{"title": t} for t in state["todo"]]}})
V3 = Schema("plan", version=3, model=Plan3, readable_from=2, migrations={2: lambda state: {**state, "owner": "nobody"}})
V4 = Schema("plan", version=4, readable_from=4)


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[Space]:
    async with shoal.open(tmp_path / "s") as store:
        yield store.space("crew")


async def stored(space: Space, name: str = "t", **options: Any) -> dict[str, Any]:
    return (await space.thread(name).load(**options)).state


async def test_a_state_that_breaks_the_schema_is_refused_and_nothing_is_written(space: Space) -> None:
    thread = space.thread("t", schema=V2)
    with pytest.raises(SchemaViolation) as refused:
        await thread.save({"tasks": [{"title": 1}]})
    assert refused.value.detail["path"] == "/tasks/0/title"
    assert await thread.heads() == {}
    saved = await thread.save({"tasks": [{"title": "a"}]})
    assert (saved.schema, saved.schema_version) == ("plan", 2)
    again = await space.thread("t").load()
    assert (again.schema, again.schema_version, again.readable_from) == ("plan", 2, 2)


async def test_a_change_is_judged_by_the_state_that_it_makes(space: Space) -> None:
    def few(state: dict[str, Any]) -> str | None:
        return None if len(state["tasks"]) <= 2 else "too many tasks"

    thread = space.thread("t", schema=Schema("plan", version=2, model=Plan, invariants=[few]))
    await thread.save({"tasks": [{"title": "a"}]})
    await thread.append("tasks", {"title": "b"})
    with pytest.raises(SchemaViolation, match="too many tasks"):
        await thread.append("tasks", {"title": "c"})
    with pytest.raises(SchemaViolation) as refused:
        await thread.update({"budget": "much"})
    assert refused.value.detail["path"] == "/budget"
    with pytest.raises(SchemaViolation):
        await thread.update(remove=["tasks"])
    with pytest.raises(InvalidInput, match="no channel 'nothing'"):
        await thread.update(remove=["nothing"])
    last = await thread.update({"budget": 3})
    assert (last.schema, last.schema_version) == ("plan", 2)
    assert await stored(space) == {"tasks": [{"title": "a"}, {"title": "b"}], "budget": 3}


async def test_an_old_checkpoint_is_read_as_the_new_version_and_stays_as_it_was(space: Space) -> None:
    old = await space.thread("t", schema=V1).save({"todo": ["a"]})
    thread = space.thread("t", schema=V2)
    assert (await thread.load()).state == {"tasks": [{"title": "a"}]}
    assert (await thread.load(channels=["tasks"])).state == {"tasks": [{"title": "a"}]}
    with pytest.raises(NotFound, match="todo"):
        await thread.load(channels=["todo"])
    assert [found.state async for found in thread.history(states=True)] == [{"tasks": [{"title": "a"}]}]
    assert await stored(space) == {"todo": ["a"]}
    await thread.save((await thread.load()).state)
    assert await stored(space) == {"tasks": [{"title": "a"}]}
    assert (await thread.load(old.id)).state == {"tasks": [{"title": "a"}]}


async def test_a_change_on_an_old_checkpoint_brings_the_whole_state_up(space: Space) -> None:
    await space.thread("t", schema=V1).save({"todo": ["a"]})
    await space.thread("t", schema=V2).append("tasks", {"title": "b"})
    found = await space.thread("t").load()
    assert (found.state, found.schema_version) == ({"tasks": [{"title": "a"}, {"title": "b"}]}, 2)


async def test_a_failing_migration_leaves_the_handle_and_the_checkpoint_where_they_are(space: Space) -> None:
    await space.thread("t", schema=V1).save({"something": "else"})
    thread = space.thread("t", schema=V2)
    with pytest.raises(MigrationFailed, match="from version 1 to 2"):
        await thread.load()
    with pytest.raises(MigrationFailed):
        await thread.append("tasks", {"title": "b"})
    assert await stored(space) == {"something": "else"}


# ── a rollout ─────────────────────────────────────────────────────────────────


async def test_old_and_new_agents_work_on_one_thread(space: Space) -> None:
    await space.thread("t", schema=V3).save({"tasks": [{"title": "a", "points": 3}], "owner": "ada"})
    older = space.thread("t", schema=V2)
    state = (await older.load()).state
    state["budget"] = 7
    saved = await older.save(state)
    assert (saved.schema_version, saved.readable_from) == (
        3,
        2,
    )  # So the newer one's migration does not run over its own fields.
    newer = await space.thread("t", schema=V3).load()
    assert newer.state == {"tasks": [{"title": "a", "points": 3}], "owner": "ada", "budget": 7}


async def test_a_model_of_an_older_version_keeps_what_it_does_not_know(space: Space) -> None:
    await space.thread("t", schema=V3).save({"tasks": [{"title": "a", "points": 3}], "owner": "ada"})
    for older in (space.thread("t", schema=V2), space.thread("t", schema=V2)):
        plan = V2.parse((await older.load()).state)
        plan.budget += 5
        plan.tasks.append(Task("b"))
        await older.save(plan)
    assert await stored(space) == {
        "tasks": [{"title": "a", "points": 3}, {"title": "b"}, {"title": "b"}],
        "owner": "ada",
        "budget": 10,
    }


async def test_newer_files_are_neither_read_nor_overwritten(space: Space) -> None:
    await space.thread("t", schema=V4).save({"goals": ["x"]})
    thread = space.thread("t", schema=V2)
    for attempt in (
        thread.load(),
        thread.save({"tasks": []}, overwrite=True),
        thread.append("tasks", {"title": "a"}),
    ):
        with pytest.raises(SchemaTooNew, match="Nothing is lost"):
            await attempt
    assert await stored(space) == {"goals": ["x"]}


async def test_a_thread_of_another_schema_is_neither_read_nor_overwritten(space: Space) -> None:
    await space.thread("t", schema=Schema("other")).save({"a": 1})
    thread = space.thread("t", schema=V2)
    for attempt in (thread.load(), thread.save({"tasks": []}, overwrite=True)):
        with pytest.raises(SchemaMismatch):
            await attempt


async def test_a_schema_is_declared_later_too(space: Space) -> None:
    thread = space.thread("t")
    await thread.save({"todo": ["a"]})
    thread.declare(V2)
    assert thread.schema is V2
    with pytest.raises(SchemaViolation):
        await thread.save({"todo": ["a"]})
    await thread.save({"tasks": []})


# ── ephemeral and secret fields ───────────────────────────────────────────────

LOGIN = Schema("login", ephemeral={"scratch", "/messages/*/cache"}, secret={"/credentials/token"})


async def test_ephemeral_fields_are_never_stored(space: Space) -> None:
    thread = space.thread("t", schema=LOGIN)
    state = {"scratch": object(), "messages": [{"text": "a", "cache": object()}], "kept": 1}
    await thread.save(state)
    await thread.update({"scratch": 1, "kept": 2}, append={"messages": [{"text": "b", "cache": 1}]})
    assert await stored(space) == {"messages": [{"text": "a"}, {"text": "b"}], "kept": 2}
    assert "scratch" in state


async def test_secret_fields_are_hidden_from_who_shows_a_state(space: Space) -> None:
    thread = space.thread("t", schema=LOGIN)
    first = await thread.save({"credentials": {"token": "hunter2", "user": "ada"}})
    second = await thread.save({"credentials": {"token": "hunter3", "user": "ada"}})
    found = await space.thread("t").load()
    assert found.redacted == {"credentials": {"token": "«secret»", "user": "ada"}}
    assert found.state["credentials"]["token"] == "hunter3"
    assert "hunter" not in repr(found) + repr(thread)
    diff = await space.thread("t").diff(first.id, second.id)
    (change,) = diff.channels["credentials"]
    assert (change.path, change.before, change.after) == ("/token", "«secret»", "«secret»")
    shown = (await space.thread("t").diff(first.id, second.id, reveal=True)).channels["credentials"][0]
    assert (shown.before, shown.after) == ("hunter2", "hunter3")


async def test_a_secret_within_what_was_added_is_hidden_in_a_diff(space: Space) -> None:
    thread = space.thread("t", schema=LOGIN)
    first = await thread.save({"a": 1})
    second = await thread.save({"a": 1, "credentials": {"token": "hunter2", "user": "ada"}})
    (change,) = (await thread.diff(first.id, second.id)).channels["credentials"]
    assert change.after == {"token": "«secret»", "user": "ada"}


# ── what is broken all the same ───────────────────────────────────────────────


async def test_violations_lists_what_forks_and_merges_break(space: Space) -> None:
    def matching(state: dict[str, Any]) -> str | None:
        return None if state["spent"] <= state["budget"] else "more is spent than there is"

    schema = Schema("money", invariants=[matching])
    one, other = space.thread("t", schema=schema), space.thread("t", schema=schema)
    await one.save({"spent": 5, "budget": 10})
    await other.load()
    await one.save({"spent": 9, "budget": 10})
    await other.save({"spent": 5, "budget": 6}, on_conflict="fork")
    assert await one.violations() == []
    with pytest.raises(SchemaViolation, match="more is spent"):
        await one.merge()
    merged = await space.thread("t").merge()  # By one that has not declared the schema.
    assert merged.state == {"spent": 9, "budget": 6}
    (found,) = await one.violations()
    assert (found.checkpoint, found.branch, found.why) == (
        merged.id,
        "main",
        "invariant matching does not hold: more is spent than there is",
    )


async def test_violations_lists_what_the_space_requires_too(space: Space) -> None:
    await space.thread("t").save({"a": 1})
    await space.schemas.put("plan", 1, {"required": ["tasks"]}, threads="*")
    (found,) = await space.thread("t").violations()
    assert (found.schema, found.version, found.path) == ("plan", 1, "")


async def test_the_same_holds_for_the_blocking_store(tmp_path: Path) -> None:
    def run() -> None:
        with shoal.sync.open(tmp_path / "sync") as store:
            thread = store.space("crew").thread("t", schema=V2)
            with pytest.raises(SchemaViolation):
                thread.save({"tasks": 1})
            thread.save({"tasks": []})
            assert thread.violations() == []
            store.space("crew").schemas.put("plan", 2, True)
            assert list(store.space("crew").schemas.list()) == ["plan"]

    import asyncio

    await asyncio.to_thread(run)


async def test_a_thread_without_a_schema_stays_as_it_is(space: Space) -> None:
    thread: Thread = space.thread("t")
    saved = await thread.save({"a": (1, 2)})
    assert (saved.schema, saved.schema_version, saved.secret) == ("", 0, ())
    assert values.encode((await thread.load()).state["a"]) == values.encode((1, 2))
