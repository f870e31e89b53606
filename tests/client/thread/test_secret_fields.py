"""A secret field stays secret in all that is built on it, whoever builds it and however."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Schema, values
from shoal.client.store import Space
from shoal.errors import InvalidInput
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol.requests import Save

LOGIN = Schema("login", secret={"token", "/plan/key"})
SECRET = ("/plan/key", "token")
STATE = {"token": "hunter1", "plan": {"key": "hunter2", "n": 1}, "notes": []}


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[Space]:
    async with shoal.open(tmp_path / "state") as store:
        yield store.space("crew")


@pytest.fixture
async def first(space: Space) -> str:
    """The id of a checkpoint with secret fields, the only one of thread `t`."""
    return (await space.thread("t", schema=LOGIN).save(STATE)).id


async def update(_: Space, thread: Thread) -> None:
    await thread.update({"n": 1})


async def append(_: Space, thread: Thread) -> None:
    await thread.append("notes", "a")


async def save(_: Space, thread: Thread) -> None:
    await thread.save({**(await thread.load()).state, "n": 1})


async def overwrite(_: Space, thread: Thread) -> None:
    await thread.save({"token": "hunter3"}, overwrite=True)


async def modify(_: Space, thread: Thread) -> None:
    await thread.modify(lambda state: {**state, "n": 1})


async def edit(_: Space, thread: Thread) -> None:
    await thread.edit({"n": 1}, by="ana")


async def undo(_: Space, thread: Thread) -> None:
    await thread.update({"token": "hunter3"})
    await thread.undo()


async def redo(_: Space, thread: Thread) -> None:
    await undo(_, thread)
    await thread.redo()


async def rollback(_: Space, thread: Thread) -> None:
    before = (await thread.load()).id
    await thread.update({"n": 1})
    await thread.rollback(before)
    await thread.update({"n": 2})


async def branch(_: Space, thread: Thread) -> None:
    await thread.branch("other")
    await thread.update({"n": 1}, branch="other")
    await thread.rollback((await thread.load(branch="other")).id)


async def batch(space: Space, _: Thread) -> None:
    async with space.batch() as several:
        several.thread("t").update({"n": 1})


async def fork_and_merge(space: Space, thread: Thread) -> None:
    other = space.thread("t")
    await thread.load()
    await other.load()
    await thread.update({"n": 1})
    await other.save({**STATE, "m": 1}, on_conflict="fork")
    await thread.merge()


async def another_schema(space: Space, _: Thread) -> None:
    found = await space.thread("t").load()
    await space.thread("t", schema=Schema("login")).save(found.state, parent=found.id)


WAYS = [update, append, save, overwrite, modify, edit, undo, redo, rollback, branch, batch, fork_and_merge, another_schema]


@pytest.mark.answers("handle-without-a-schema-shows-secrets")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_no_way_of_saving_without_the_schema_opens_a_secret_field(
    space: Space, first: str, way: Callable[[Space, Thread], Awaitable[None]]
) -> None:
    await way(space, space.thread("t"))
    found = await space.thread("t").load()
    assert found.secret == SECRET
    assert found.id != first
    assert "hunter" not in str(found.redacted)


async def test_a_merge_keeps_what_is_secret_in_each_side(space: Space) -> None:
    first = await space.thread("t").save({"a": 1, "b": 1})
    one = await space.thread("t", schema=Schema("s", secret={"a"})).save({"a": 2, "b": 1}, parent=first.id)
    other = await space.thread("t").save({"a": 1, "b": 1, "c": 1}, parent=first.id, on_conflict="fork")
    assert (one.secret, other.secret) == (("a",), ())
    assert (await space.thread("t").merge()).secret == ("a",)


async def test_a_save_answers_with_the_secret_fields_that_it_kept(space: Space, first: str) -> None:
    thread = space.thread("t")
    saved = await thread.save({"token": "hunter3"}, parent=first)
    assert saved.secret == SECRET
    assert saved.redacted == {"token": "«secret»"}


async def test_a_whole_state_under_a_newer_version_of_the_schema_says_anew_what_is_secret(space: Space, first: str) -> None:
    newer = Schema("login", version=2, secret={"token"}, migrations={1: lambda state: state})
    thread = space.thread("t", schema=newer)
    await thread.load()
    assert (await thread.save(STATE)).secret == ("token",)


async def test_a_change_under_a_newer_version_keeps_what_it_did_not_send(space: Space, first: str) -> None:
    change = Save("crew", "t", {"n": values.encode(1)}, parent=first, schema="login", schema_version=2, delta=True)
    saved = await space._connection.write(change, key=None, durability=None)
    assert saved.secret == list(SECRET)


async def test_an_update_by_a_handle_with_a_newer_version_is_a_whole_state(space: Space, first: str) -> None:
    newer = Schema("login", version=2, migrations={1: lambda state: state})
    thread = space.thread("t", schema=newer)
    await thread.load()
    await thread.update({"n": 1})
    assert (await thread.load()).secret == ()
    assert (await space.thread("t").load(first)).secret == SECRET


@pytest.mark.answers("secrets-are-lost-by-a-save")
@pytest.mark.parametrize(
    "change",
    [
        {"changes": {"token": "«secret»"}},
        {"changes": {"plan": {"key": "«secret»", "n": 2}}},
    ],
)
async def test_a_placeholder_is_not_saved_over_a_secret(space: Space, first: str, change: dict[str, Any]) -> None:
    thread = space.thread("t")
    with pytest.raises(InvalidInput, match="stands for a value that was hidden") as caught:
        await thread.update(**change)
    assert caught.value.written == "no"
    found = await thread.load()
    assert found.id == first
    with pytest.raises(InvalidInput):
        await thread.save(found.redacted)


async def test_a_placeholder_may_stand_elsewhere(space: Space, first: str) -> None:
    saved = await space.thread("t").update({"n": "«secret»", "plan": {"key": "hunter3", "n": "«secret»"}})
    assert saved.id != first


async def test_an_element_of_a_secret_list_is_no_hidden_one(space: Space) -> None:
    thread = space.thread("t", schema=Schema("s", secret={"/messages/*/key"}))
    await thread.save({"messages": [{"key": "a"}]})
    with pytest.raises(InvalidInput, match="stands for a value that was hidden"):
        await space.thread("t").append("messages", {"key": "«secret»"})
    await space.thread("t").append("messages", {"key": "b"})
    assert (await space.thread("t").load()).redacted == {"messages": [{"key": "«secret»"}, {"key": "«secret»"}]}
