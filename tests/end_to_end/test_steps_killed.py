"""Promise 1 for steps, with real processes: an effect with a counter outside, killed at each point, happens once."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

import shoal
from shoal.errors import StepUnresolved
from tests.support import forked

AGENT = """
import asyncio, os, signal, sys
from pathlib import Path
import shoal

store_path, outside, die_at = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

def pass_by(point):
    if point == die_at:
        os.kill(os.getpid(), signal.SIGKILL)

async def effect():
    pass_by("before the effect")
    with outside.open("a") as file:
        file.write("x")
    pass_by("after the effect")
    return "receipt"

async def main():
    async with shoal.open(store_path) as store:
        thread = store.space("crew").thread("t")
        pass_by("before the step")
        print(await thread.step("charge", key="order-1", call=effect))
        pass_by("after the step")

asyncio.run(main())
"""


def run(store: Path, outside: Path, die_at: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["-c", AGENT, str(store), str(outside), die_at], timeout=60)


@pytest.mark.parametrize(
    ("die_at", "happened", "unresolved"),
    [("before the step", 0, 0), ("before the effect", 0, 1), ("after the effect", 1, 1), ("after the step", 1, 0)],
)
async def test_a_process_that_is_killed_there_leaves_this_behind(
    tmp_path: Path, die_at: str, happened: int, unresolved: int
) -> None:
    store, outside = tmp_path / "state", tmp_path / "outside"
    outside.touch()
    assert run(store, outside, die_at).returncode == -signal.SIGKILL
    assert len(outside.read_text()) == happened

    again = run(store, outside, "never")
    assert len(outside.read_text()) == (happened if unresolved else 1)
    assert (again.returncode == 0) == (not unresolved)
    if unresolved:
        assert "StepUnresolved: step 'charge' (key 'order-1') was begun by" in again.stderr
    else:
        assert again.stdout == "receipt\n"

    async with shoal.open(store) as opened:
        thread = opened.space("crew").thread("t")
        listed = await thread.unresolved()
        assert [record.key for record in listed] == ["order-1"] * unresolved
        if unresolved:
            with pytest.raises(StepUnresolved):
                await thread.step("charge", key="order-1", call=lambda: None)
            await thread.resolve("order-1", "result" if happened else "retry", value="receipt", by="ana")
    last = run(store, outside, "never")
    assert last.stdout == "receipt\n"
    assert len(outside.read_text()) == 1
