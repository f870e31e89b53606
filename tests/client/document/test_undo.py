"""A mirror takes back its own edits."""

from __future__ import annotations

import pytest

from shoal.errors import (
    InvalidInput,
)
from tests.client.document.conftest import FakeSession, Mirror, until

pytestmark = pytest.mark.virtual_time


async def test_ones_own_edits_are_taken_back_and_others_stay(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(undo=10), await mirror()
    document.text("t").insert(0, "one")
    document.text("t").insert(3, " two")
    await document.flush()
    await until(lambda: bool(other.to_py() == document.to_py()))
    other.text("t").insert(0, "theirs ")
    other.map("m")["k"] = 1
    await other.flush()
    await until(lambda: bool(other.to_py() == document.to_py()))
    assert document.undo()
    assert document.to_py() == {"m": {"k": 1}, "t": "theirs one"}
    assert document.redo()
    assert document.undo()
    assert document.undo()
    assert not document.undo()
    await document.flush()
    await until(lambda: bool(other.to_py() == session.live.to_py() == {"m": {"k": 1}, "t": "theirs "}))


async def test_a_transaction_is_one_step(mirror: Mirror) -> None:
    document = await mirror(undo=10)
    document.map("m")
    document.list("l")
    with document.transaction():
        document.map("m")["a"] = 1
        document.text("new").insert(0, "x")
        document.array("l").append(2)
    document.map("m")["a"] = 3
    document.undo()
    assert document.to_py() == {"m": {"a": 1}, "l": [2], "new": "x"}
    document.text("new").insert(0, "y")
    document.undo()
    document.undo()
    assert document.to_py() == {"m": {}, "l": [], "new": ""}


async def test_the_oldest_steps_are_forgotten(mirror: Mirror) -> None:
    document = await mirror(undo=3)
    for number in range(20):
        document.array("l").append(number)
        await document.flush()
    taken = 0
    while document.undo():
        taken += 1
    assert 3 <= taken <= 6
    assert document.to_py() == {"l": [*range(20 - taken)]}


async def test_without_undo_there_is_none(mirror: Mirror) -> None:
    document = await mirror()
    with pytest.raises(InvalidInput, match="undo=100"):
        document.undo()
