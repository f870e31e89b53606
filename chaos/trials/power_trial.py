"""The power-cut trial: a whole node, its disk taken away at any moment, opened again, judged.

Law: the history ends where the power does. The cut is made in one step of the
event loop, so that what was acknowledged or shown before it is in the history,
and nothing that came after it is.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

from chaos.trials.powercut import power_cut, synced_wal_bytes, unsynced_parts
from chaos.trials.trial import Judge, Tally
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.environment import Environment
from shoal.storage.commit import LoggedStorage
from shoal.storage.interface import MemoryStorage
from shoal.storage.rocks import RocksStorage
from simulation.judging.history import History
from simulation.workload.random_agents import note_origin, working
from simulation.world.environment import SimulatedEnvironment

T = TypeVar("T")

_SYNC_TURNS_MAX = 6


class Disk(Protocol):
    """A disk with one store on it, which is open."""

    @property
    def storage(self) -> LoggedStorage: ...

    def cut(self) -> Disk:
        """The disk as a power cut would leave it now, opened again. Blocks; awaits nothing.

        Raises:
            StoreCorrupt: what is left is refused.
        """
        ...

    def discard(self) -> None:
        """Free the space, once the node on it has stopped."""
        ...


class MemoryDisk:
    """Of the unsynced writes none, some or all survive."""

    def __init__(self, random: Random, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self._random = random

    def cut(self) -> MemoryDisk:
        return MemoryDisk(self._random, self.storage.crash(self._random.choice((0, 0, 1, 3, None))))

    def discard(self) -> None: ...


class RocksDisk:
    """Real files: the log is cut anywhere at or past its last synced byte."""

    def __init__(self, parent: Path, random: Random, config: Config, *, life: int = 0) -> None:
        self._parent = parent
        self._random = random
        self._config = config
        self._life = life
        self._directory = self._in_life(life)
        self.storage = RocksStorage.open(self._directory, config=config, now_ms=0)

    def cut(self) -> RocksDisk:
        power_cut(
            self._directory,
            self._in_life(self._life + 1),
            synced_wal_bytes=lambda: synced_wal_bytes(self.storage),
            cut=self._random.randint,
            unsynced=lambda: unsynced_parts(self.storage),
        )
        return RocksDisk(self._parent, self._random, self._config, life=self._life + 1)

    def discard(self) -> None:
        shutil.rmtree(self._directory)

    def _in_life(self, life: int) -> Path:
        return self._parent / f"life-{life}"


def slow_environment(random: Random) -> Environment:
    """A simulated one, whose syncs take a random number of turns of the loop."""
    simulated = SimulatedEnvironment(random.randrange(2**32)).environment

    async def run_blocking(function: Callable[[], T], /) -> T:
        for _ in range(random.randrange(_SYNC_TURNS_MAX)):
            await asyncio.sleep(0)
        return await simulated.run_blocking(function)

    return replace(simulated, run_blocking=run_blocking)


async def cut_power(
    disk: Disk,
    *,
    rounds: int,
    random: Random,
    environment: Callable[[], Environment],
    config: Config,
    agents: int = 8,
    acknowledgements_max: int = 300,
) -> Tally:
    """Let agents work, cut the power after some acknowledgements, open, judge; `rounds` times on one store.

    Raises:
        InvariantViolated: the store lost, invented or mixed up something.
        StoreCorrupt: it is refused after a cut.
    """
    judge = Judge(config=config, environment=environment)
    history = History()
    for _ in range(rounds):
        node = await judge.open(disk.storage, history)
        live = History(history.events)
        numbers = count(live.next_number)
        async with working(node.session(), agents=agents, numbers=numbers, note=live.note, random=random):
            await live.grown(1)
            await note_origin(node.session(), live.note)
            await live.grown(random.randint(1, acknowledgements_max))
            # The dots of what will be lost count, too: they must not come back with other payloads.
            judge.dots.check(disk.storage)
            history, after = History(live.events), disk.cut()
        with suppress(ShoalError):  # It has no disk any more.
            await node.stop()
        disk.discard()
        disk = after
    node = await judge.open(disk.storage, history)
    await node.stop()
    disk.discard()
    return judge.tally.plus(Tally(crashes=rounds))
