"""The kill trials: a real process on real files, SIGKILL at any moment, opened again, judged.

Laws:
- What is judged is a copy, made between the kill and the next start: the next
  life recovers what the kill left, not what the judge has tidied up.
- Some kills fall into the recovery from the kill before.
- An embedded worker tells what it was told through a pipe that outlives it. The
  clients of a served node live on, and send again what was not answered.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from signal import SIGKILL

from chaos.ports import free_ports
from chaos.trials.trial import Judge, Tally
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.protocol.session import Session
from shoal.storage.rocks import RocksStorage
from simulation.judging.history import History, Opening, read_line
from simulation.workload.random_agents import note_origin, working

OPENING_KILLS = 0.25  # The share of kills that aim at an opening.
_OPENING_S_MAX = 0.03  # How long a store takes to open, about.
_START_S_MAX = 1.0  # How long `shoal serve` takes from nothing to open, about.


class KillTrial:
    """One store, and the lives it has seen. `tally` is complete after each judgement."""

    def __init__(self, directory: Path, *, random: Random, acknowledgements_max: int) -> None:
        self.store = directory / "store"
        self.history = History()
        self.random = random
        self._acknowledgements_max = acknowledgements_max
        self._judge = Judge(config=Config(), environment=system_environment)
        self._crashes = Tally()
        self._copy = directory / "copy"

    @property
    def tally(self) -> Tally:
        return self._crashes.plus(self._judge.tally)

    async def kill(self, process: Process, *, while_opening: bool) -> None:
        """Kill `process` and wait until it is gone."""
        process.kill()
        await process.wait()
        self._crashes.crashes += 1
        self._crashes.while_opening += while_opening

    async def judge(self) -> None:
        """Judge a copy of the store, which nobody has open.

        Raises:
            InvariantViolated: it lost, invented or mixed up something.
            StoreCorrupt: it cannot be opened.
        """
        if self.store.exists():
            shutil.copytree(self.store, self._copy)
        node = await self._judge.open(RocksStorage.open(self._copy, config=Config(), now_ms=0), self.history)
        await node.stop()
        shutil.rmtree(self._copy)

    async def grown(self) -> None:
        """Return after some more acknowledgements."""
        await self.history.grown(self.random.randint(1, self._acknowledgements_max))

    def aims_at_opening(self) -> bool:
        return self.random.random() < OPENING_KILLS

    async def moment(self, within_s: float) -> None:
        await asyncio.sleep(self.random.uniform(0, within_s))


# ── an embedded store ─────────────────────────────────────────────────────────


async def kill_workers(
    directory: Path, *, rounds: int, random: Random, agents: int = 8, acknowledgements_max: int = 300
) -> Tally:
    """Kill the process that has a store embedded, `rounds` times on one store.

    Raises:
        InvariantViolated: something acknowledged or shown was lost, or the like.
        ShoalError: the store could not be opened again.
    """
    trial = KillTrial(directory, random=random, acknowledgements_max=acknowledgements_max)
    for _ in range(rounds):
        await _one_life(trial, agents)
        await trial.judge()
    return trial.tally


async def _one_life(trial: KillTrial, agents: int) -> None:
    """Listen to a worker, kill it when it is time, and listen to what is left in the pipe."""
    arguments = [str(trial.store), str(trial.random.getrandbits(32)), str(trial.history.next_number), str(agents)]
    async with _started(sys.executable, "-m", "chaos.trials.worker", *arguments) as process:
        opening = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(_listen(trial.history, process, opening))
            await opening.wait()
            if while_opening := trial.aims_at_opening():
                await trial.moment(_OPENING_S_MAX)
            else:
                await trial.grown()
            await trial.kill(process, while_opening=while_opening)


async def _listen(history: History, process: Process, opening: asyncio.Event) -> None:
    """Note what a worker says until it is gone.

    Raises:
        ChildProcessError: nobody killed it.
    """
    assert process.stdout is not None
    async for line in process.stdout:
        if line.endswith(b"\n"):  # The last one may be cut off: then it was not told.
            history.note(event := read_line(line))
            if isinstance(event, Opening):
                opening.set()
    if await process.wait() != -SIGKILL:
        raise ChildProcessError(f"the worker ended by itself, with {process.returncode}")


# ── a served store ────────────────────────────────────────────────────────────


async def kill_servers(
    directory: Path,
    *,
    rounds: int,
    random: Random,
    connect: Callable[[str], Session],
    agents: int = 8,
    acknowledgements_max: int = 300,
) -> Tally:
    """Kill `shoal serve`, `rounds` times on one store, under clients that live on. At the end nothing is unknown to them.

    `connect` makes a session to a URL which sends again what was not answered.

    Raises:
        InvariantViolated: something acknowledged or shown was lost, or the like.
        ShoalError: the store could not be opened again, or a client gave up.
    """
    trial = KillTrial(directory, random=random, acknowledgements_max=acknowledgements_max)
    note = trial.history.note
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    session = connect(f"http://{address}")
    serve = (sys.executable, "-m", "shoal", "serve", "--data", str(trial.store), "--listen", address)
    async with working(session, agents=agents, numbers=count(1), note=note, random=random) as work:
        for _ in range(rounds):
            async with _started(*serve) as process:
                if while_opening := trial.aims_at_opening():
                    await trial.moment(_START_S_MAX)
                else:
                    await trial.grown()
                    await note_origin(session, note)
                await trial.kill(process, while_opening=while_opening)
            await trial.judge()
        async with _started(*serve):
            await work.finish()
            await note_origin(session, note)
    await session.close()
    assert not trial.history.unknown, "a client that lives on learns of every outcome"
    await trial.judge()
    return trial.tally


@asynccontextmanager
async def _started(*command: str) -> AsyncIterator[Process]:
    """A process that is killed at the end, if it still lives then."""
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
