"""Kills and power cuts, judged by the checkers of the testing kit. A lost write ends the run, with its details."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import uvloop

from benchmarks.figures import Effort, Figure, Section, Target
from chaos.trials.kill_trial import kill_servers, kill_workers
from chaos.trials.power_trial import RocksDisk, cut_power
from chaos.trials.trial import Tally
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.environment import system_environment
from shoal.transport.session import RemoteSession, SessionContext
from simulation.judging.checkers import InvariantViolated

_STORE_CRASHES = 10  # Of one store, before another is begun.
_SEED = 20

Trial = Callable[[Path, int, Random], Awaitable[Tally]]


class Campaign:
    """A trial, repeated on one store after another."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.tally = Tally()
        self.violations: list[str] = []

    async def run(self, crashes: int, seed: int) -> None:
        while crashes > 0:
            rounds = min(crashes, _STORE_CRASHES)
            with tempfile.TemporaryDirectory() as directory:
                try:
                    self.tally = self.tally.plus(await self._trial(Path(directory), rounds, Random(seed)))
                except (InvariantViolated, ShoalError) as violation:
                    self.violations.append(f"seed {seed}: {violation}")
            crashes, seed = crashes - rounds, seed + 1


def run(effort: Effort) -> Section:
    workers, servers, cuts = Campaign(_kill_workers), Campaign(_kill_servers), Campaign(_cut_power)

    async def campaigns() -> None:
        # Two at a time: they wait for processes to start most of the time.
        await asyncio.gather(
            workers.run(effort.crashes - effort.crashes // 2, _SEED), servers.run(effort.crashes // 2, 2 * _SEED)
        )
        await cuts.run(effort.crashes, 3 * _SEED)

    uvloop.run(campaigns())
    kills = workers.tally.plus(servers.tally)
    violations = [*workers.violations, *servers.violations, *cuts.violations]
    figures = [
        *_figures("kill -9", kills, len(workers.violations) + len(servers.violations), effort),
        *_figures("power cut", cuts.tally, len(cuts.violations), effort),
    ]
    return Section("Crashes", "\n\n".join([_METHOD, *violations]), figures)


def _figures(name: str, tally: Tally, violations: int, effort: Effort) -> list[Figure]:
    shown = [
        Figure(f"{name}: crashes", "", (tally.crashes,), Target("≥", effort.crashes)),
        Figure(f"{name}: anything acknowledged or shown lost, or not sound", "", (violations,), Target("=", 0)),
        Figure(f"{name}: writes acknowledged before, all there after", "", (tally.acknowledged,)),
        Figure(f"{name}: things shown before, all there after", "", (tally.seen,)),
        Figure(f"{name}: unanswered writes that the crash took", "", (tally.lost,)),
    ]
    return (
        shown
        if not tally.while_opening
        else [*shown, Figure(f"{name}: of the crashes, while opening", "", (tally.while_opening,))]
    )


_METHOD = (
    "Eight agents save, append to journals, add to a counter, set registers and edit documents as fast as they can, "
    "read, and watch. Kills: real processes on real files, SIGKILL after a random number of acknowledgements, or in the "
    "middle of an opening; half of them hit an embedded store, whose process tells what it was told through a pipe that "
    "outlives it, half hit `shoal serve` under clients that live on and send again what was not answered, at the end of "
    "which no outcome is unknown. Power cuts: a whole node on RocksDB; its files are copied in one step of the event loop, "
    f"with the log cut anywhere at or past its last fsynced byte. Each store is crashed up to {_STORE_CRASHES} times in a "
    "row; after each crash everything ever acknowledged or shown must be there, refused writes must not, counters "
    "must add up, vectors have no holes, no dot name two payloads, and the whole log, folded again, give the stored state "
    "(`simulation.judging.checkers`, `shoal.node.verification.verify`). A page cache survives `kill -9`, so only the power "
    "cuts take unanswered writes with them: that some are taken shows that the cuts cut."
)


async def _kill_workers(directory: Path, rounds: int, random: Random) -> Tally:
    return await kill_workers(directory, rounds=rounds, random=random)


async def _kill_servers(directory: Path, rounds: int, random: Random) -> Tally:
    environment = system_environment()

    def connect(url: str) -> RemoteSession:
        config = Config(reconnect_delay_s_max=0.1)
        return RemoteSession(url, config=config, context=SessionContext(environment.now_ms, environment.entropy), wait_s=30.0)

    try:
        return await kill_servers(directory, rounds=rounds, random=random, connect=connect)
    finally:
        environment.close()


async def _cut_power(directory: Path, rounds: int, random: Random) -> Tally:
    disk = RocksDisk(directory, random, Config())
    return await cut_power(disk, rounds=rounds, random=random, environment=system_environment, config=Config())
