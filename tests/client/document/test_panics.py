"""A mirror whose engine failed says so, can be closed, and is followed by one that works."""

from __future__ import annotations

import pycrdt
import pytest

from shoal.errors import EngineFailed, InvalidValue
from tests.client.document.conftest import FakeSession, Mirror, settled

pytestmark = pytest.mark.virtual_time


async def test_a_failed_engine_ends_the_mirror_and_no_other(session: FakeSession, mirror: Mirror) -> None:
    document, other = await mirror(), await mirror()
    entries = document.map("m")
    entries["a"] = 1
    await document.flush()
    entries["b"] = 2
    with pytest.raises(EngineFailed):
        pycrdt.Map._set(entries, "k", 2**70)
    await settled()
    with pytest.raises(EngineFailed, match="the last edit made here is not written"):
        await document.flush()
    with pytest.raises(EngineFailed):
        document.text("t")
    with pytest.raises(EngineFailed):
        await document.close()
    other.map("m")["c"] = 3
    await other.flush()
    anew = await mirror()
    anew.map("m")["d"] = 4
    await anew.close()
    assert session.live.to_py() == {"m": {"a": 1, "c": 3, "d": 4}}


async def test_a_failed_engine_ends_undo(mirror: Mirror) -> None:
    document = await mirror(undo=5)
    text = document.text("t")
    text.insert(0, "a")
    with pytest.raises(EngineFailed):
        pycrdt.Text.__delitem__(text, 99)
    with pytest.raises(EngineFailed):
        document.undo()


async def test_a_value_that_is_refused_leaves_the_mirror_at_work(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    for value in ({1: 2}, 2**70, "\ud800", [object()]):
        with pytest.raises(InvalidValue):
            document.map("m")["k"] = value
    with pytest.raises(IndexError):
        document.text("t").insert(5, "x")
    document.map("m")["k"] = 1
    await document.close()
    assert session.live.to_py() == {"m": {"k": 1}, "t": ""}
