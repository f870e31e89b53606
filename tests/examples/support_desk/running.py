"""The example in a process of its own, as its first lines say, and what it tells."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment

ROOT = Path(__file__).parents[3]
PATIENCE_S = 300
NOTES = {
    "ticket-1": "Carla: a customer since 2019",
    "ticket-2": "Carla: asked last week, too",
    "ticket-3": "Carla: pays by invoice",
    "ticket-4": "Carla: has sent back six sofas",
}
ANSWERS = {
    "ticket-1": "Dear Ada, you get your 120 € back.",
    "ticket-2": "Dear Ben, your order is on its way, and there on Friday.",
    "ticket-3": "Dear Cem, you get your 12 € back.",
    "ticket-4": "Dear Dora, we are sorry, but we cannot take it back.",
}
TOLD = [f"{name}: {ANSWERS[name]} ({NOTES[name]})" for name in ANSWERS]
PAID = [{"amount": 12, "order": 19}, {"amount": 120, "order": 17}]


class Desk:
    """A desk that runs."""

    def __init__(self, process: asyncio.subprocess.Process, data: Path) -> None:
        self._process = process
        self._data = data
        self.lines: list[str] = []
        self.pids: dict[str, int] = {}  # Of the process that each party has now.

    async def until(self, text: str, times: int = 1) -> str:
        """Wait until so many lines with this text were told; the last of them."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := [line for line in self.lines if text in line]) < times:
                assert await self._read() is not None, f"the desk ended before {text!r}: {self.lines}"
        return found[times - 1]

    async def until_paid(self, order: int) -> None:
        """Return when the shop has paid, which may be before the agent has written that down."""
        async with asyncio.timeout(PATIENCE_S):
            while order not in [each["order"] for each in self.paid()]:
                await asyncio.sleep(0.01)

    async def kill(self, party: str) -> None:
        """Kill a party, and wait until it runs again."""
        os.kill(killed := self.pids[party], signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while self.pids[party] == killed:
                assert await self._read() is not None, f"the desk ended: {self.lines}"

    async def ended(self) -> list[str]:
        """The last lines, when the desk has ended by itself."""
        async with asyncio.timeout(PATIENCE_S):
            while await self._read() is not None:
                pass
            assert await self._process.wait() == 0, self.lines
        return self.lines[-len(TOLD) - 1 :]

    def paid(self) -> list[dict[str, int]]:
        """The shop's payments, by amount."""
        file = self._data / "payments.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return sorted(rows, key=lambda row: int(row["amount"]))

    async def _read(self) -> str | None:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        if not line:
            return None
        self.lines.append(line)
        if found := re.fullmatch(r"(\w+): process (\d+)", line):
            self.pids[found[1]] = int(found[2])
        return line


@asynccontextmanager
async def desk(data: Path, *options: str, how: signal.Signals = signal.SIGTERM) -> AsyncIterator[Desk]:
    """The example on a directory. It is ended by a signal, and ends all that it has started."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.support_desk", "--data", str(data), *options),
        cwd=ROOT,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    made = Desk(process, data)
    try:
        yield made
    finally:
        if process.returncode is None:
            process.send_signal(how)
            await process.communicate()
    for pid in made.pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
