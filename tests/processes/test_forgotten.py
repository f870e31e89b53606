"""A store that nobody closes: that is said, with its line, and does no harm."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

import shoal
from tests.processes.conftest import output_of

SAID = r"was never closed\. Every write that was acknowledged is safe on disk"


async def test_a_dropped_store_is_closed_and_told(tmp_path: Path) -> None:
    store = await shoal.open(tmp_path / "state")
    counter = store.space("s").counter("n")
    del store
    gc.collect()
    assert await counter.add(1) == 1  # A handle keeps it open.
    held = [counter]
    del counter
    with pytest.warns(ResourceWarning, match=SAID):
        held.clear()
    gc.collect()
    for _ in range(200):
        try:
            again = await shoal.open(tmp_path / "state")
        except shoal.errors.StoreLocked:
            await asyncio.sleep(0.02)
            continue
        assert await again.space("s").counter("n").value() == 1
        await again.close()
        return
    raise AssertionError("the directory is still locked")


@pytest.mark.parametrize("durability", ["local", "memory"])
@pytest.mark.parametrize("face", ["asynchronous", "blocking"])
def test_a_program_that_ends_without_closing_says_where(face: str, durability: str, tmp_path: Path) -> None:
    program = """
import asyncio, sys, shoal
async def main():
    global store
    store = await shoal.open(sys.argv[2], durability=sys.argv[3])
    await store.space("s").counter("n").add(1)
if sys.argv[1] == "asynchronous":
    asyncio.run(main())
else:
    store = shoal.sync.open(sys.argv[2], durability=sys.argv[3])
    store.space("s").counter("n").add(1)
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    _, errors = output_of(file, face, str(tmp_path / "state"), durability)
    line = 5 if face == "asynchronous" else 10
    assert f"{file}:{line}: ResourceWarning: the store opened at {file}:{line} was never closed." in errors
    with shoal.sync.open(tmp_path / "state") as store:
        assert store.space("s").counter("n").value() == 1
