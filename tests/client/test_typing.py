"""What a caller's own types say is not lost: mypy checks this module, and here it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypedDict, assert_type

import pytest

import shoal
from shoal.client.batch import Pending
from shoal.client.store import Space
from shoal.errors import InvalidInput
from shoal.kinds.journal.flows import Event
from shoal.kinds.step.handle.steps import Step
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.protocol import requests


class Bill(TypedDict):
    due: int


@pytest.fixture
async def space(tmp_path: Path) -> AsyncIterator[Space]:
    async with shoal.open(tmp_path) as store:
        yield store.space("crew")


async def fetch_bill() -> Bill:
    return {"due": 120}


def fetch_at_once() -> Bill:
    return {"due": 80}


async def fetch_knowing(step: Step) -> list[str]:
    return [step.key]


async def test_a_step_has_the_type_of_what_its_call_returns(space: Space) -> None:
    thread = space.thread("t")
    assert assert_type(await thread.step("a", call=fetch_bill), Bill)["due"] == 120
    assert assert_type(await thread.step("b", key="b", call=fetch_at_once), Bill)["due"] == 80
    assert assert_type(await thread.step("c", call=fetch_knowing), list[str]) == ["c"]
    assert assert_type(await thread.step("d", call=lambda: 7), int) == 7
    assert assert_type(await thread.step("e", call=lambda: fetch_bill()), Bill) == {"due": 120}


async def test_a_replay_has_the_type_of_its_initial_value(space: Space) -> None:
    def total(sum: int, event: Event) -> int:
        return sum + len(event.key or "")

    journal = space.thread("t").journal
    await journal.append("ordered", key="order")
    assert assert_type(await journal.replay(total, initial=0), int) == 5
    assert assert_type(await journal.replay(lambda _, event: event.id), str | None)


async def test_a_loop_yields_what_it_was_given(space: Space) -> None:
    rows = [assert_type(row, int) async for row in space.thread("t").iterate(range(2), key="k")]
    assert rows == [0, 1]


async def test_a_modification_takes_functions_of_either_kind(space: Space) -> None:
    async def slowly(state: dict[str, object]) -> dict[str, object]:
        return {**state, "n": 1}

    def at_once(state: dict[str, object]) -> None:
        state["m"] = 2

    assert_type(await space.thread("t").modify(slowly), Checkpoint)
    assert assert_type(await space.thread("t").modify(at_once), Checkpoint).state == {"n": 1, "m": 2}


async def test_a_write_of_a_batch_has_the_arguments_of_the_handles_and_the_type_of_its_reply(space: Space) -> None:
    async with space.batch() as batch:
        saved = assert_type(batch.thread("{c}t").save({"n": 1}, label="first"), Pending[requests.Saved])
        changed = assert_type(batch.thread("{c}t").update({"n": 2}, label="second"), Pending[requests.Saved])
        added = assert_type(batch.counter("{c}n").add(2, key="k"), Pending[requests.Added])
        put = assert_type(batch.map("{c}m").set("key", 1), Pending[requests.EntryPut])
        with pytest.raises(InvalidInput, match="consumer must be a Consumer; got 'billing'"):
            batch.thread("{c}t").ack("billing", "event")  # type: ignore[arg-type]
    assert (added.reply.value, len(put.reply.version) > 0) == (2, True)
    assert [label async for label, _ in space.thread("{c}t").labels()] == ["first", "second"]
    assert saved.reply.id in changed.reply.parents
