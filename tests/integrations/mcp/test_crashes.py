"""A server that is killed again and again, in the middle of writes, and a client that repeats what it was not answered."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.integrations.mcp.conftest import answer, client

KILLS = 25
SEED = 18


async def test_a_killed_server_loses_and_doubles_nothing(target: list[str], tmp_path: Path, record_property: Any) -> None:
    chance, done, lives = random.Random(SEED), 0, 0
    while lives < KILLS:
        lives += 1
        pid = tmp_path / f"pid-{lives}"
        async with client(*target, pid=pid) as made:
            done = await written_until_killed(made, done, int(pid.read_text()), chance)
    async with client(*target) as made:
        await turn(made, done)  # Repeats the last one, if it was not answered.
        wanted = list(range(done + 1))
        events = (await answer(made, "read_journal", thread="t", limit=1000))["events"]
        assert [each["event"] for each in events] == wanted[:1000]
        assert (await answer(made, "load_thread", thread="t"))["state"] == {"log": wanted}
        assert (await answer(made, "read_value", kind="counter", name="n"))["value"] == len(wanted)
    record_property("kills", lives)


async def written_until_killed(made: Any, first: int, pid: int, chance: random.Random) -> int:
    """Write turns until the server is killed; the first one that was not answered in full."""
    number = first
    killing = asyncio.get_running_loop().call_later(chance.random() * 0.3, os.kill, pid, signal.SIGKILL)
    try:
        while True:
            await turn(made, number)
            number += 1
    except MCPError:
        return number
    finally:
        killing.cancel()


async def turn(made: Any, number: int) -> None:
    """One turn: three writes, each with a key that names the turn."""
    await answer(made, "append_journal", thread="t", event=number, idempotency_key=f"event-{number}")
    await answer(made, "edit_thread", thread="t", append={"log": [number]}, idempotency_key=f"edit-{number}")
    await answer(made, "write_value", kind="counter", name="n", add=1, idempotency_key=f"add-{number}")


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_turn_that_was_cut_off_is_completed_once(at: int, tmp_path: Path) -> None:
    target = ["--data", str(tmp_path / "state")]
    writes: list[tuple[str, dict[str, Any]]] = [
        ("append_journal", {"thread": "t", "event": 0, "idempotency_key": "event-0"}),
        ("edit_thread", {"thread": "t", "append": {"log": [0]}, "idempotency_key": "edit-0"}),
        ("write_value", {"kind": "counter", "name": "n", "add": 1, "idempotency_key": "add-0"}),
    ]
    async with client(*target) as made:
        for tool, arguments in writes[:at]:
            await answer(made, tool, **arguments)
    async with client(*target) as made:
        await turn(made, 0)
        assert (await answer(made, "load_thread", thread="t"))["state"] == {"log": [0]}
        assert (await answer(made, "read_value", kind="counter", name="n"))["value"] == 1
        assert len((await answer(made, "read_journal", thread="t"))["events"]) == 1
