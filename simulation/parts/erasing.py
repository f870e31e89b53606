"""Threads that are deleted, begun anew, and pruned.

Laws (invariant 15: what was erased stays erased, and nothing else is):
- What its own session saved before a deletion, or was told is pruned, no node shows
  again, whatever came late; of what was deleted no disk holds a row, once all hold the deletion.
- What was saved with knowledge of the last deletion is there, as it was saved, unless a
  prune that anybody sent may have named it. So is what copies acknowledged after copies had
  acknowledged all deletions, whoever knew of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from shoal import values
from shoal.errors import NotFound, ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import DeleteThread
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told, outlives
from simulation.parts.saves import Author, Books
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

ERASED = "15"
_BRANCH = "main"


@dataclass(slots=True)
class Deletion:
    """`told` is None where its end is not known; then it may end whatever comes later."""

    session: str
    begun_s: float
    mine: set[str]  # What its session had saved before it.
    ended_s: float = float("inf")
    told: Told | None = None


@dataclass(slots=True)
class Pruned:
    ids: set[str]
    told: Told


@dataclass(slots=True)
class Thread:
    deletions: list[Deletion] = field(default_factory=list)
    pruned: list[Pruned] = field(default_factory=list)
    maybe_pruned: bool = False  # By a prune of which nobody knows what it named.


class Erasing:
    kinds: tuple[ActKind, ...] = ("save-erasably", "load-erasably", "prune", "delete")

    def __init__(self, books: Books | None = None) -> None:
        self.books = books or Books()
        self.threads: defaultdict[str, Thread] = defaultdict(Thread)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"save-erasably": agent.save, "load-erasably": agent.load, "prune": agent.prune, "delete": agent.delete}

    def erased(self, losses: Losses) -> Collection[bytes]:
        """Ids of checkpoints that no disk may hold."""
        gone = {id for thread in self.threads.values() for id in _deleted(thread, losses)}
        return sorted(bytes.fromhex(id) for id in gone)

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.books.saved):
            thread = self.threads[name]
            gone = _deleted(thread, losses).union(*(each.ids for each in thread.pruned if each.told.is_owed(losses)))
            maybe = set().union(*(each.ids for each in thread.pruned))
            for saved in self.books.saved[name]:
                state = await _state(session, name, saved.at.id)
                if state is not None and saved.at.id in gone:
                    found.append(Violation(ERASED, f"save {saved.at.number} of {name} was erased, and is shown"))
                if state is not None and not self.books.shows(state):
                    found.append(Violation("10", f"save {saved.at.number} of {name} is not shown as it was saved"))
                kept = saved.at.id not in maybe and not thread.maybe_pruned and saved.told.is_owed(losses)
                lives = outlives(saved.session, saved.begun_s, saved.told, thread.deletions, losses)
                if state is None and kept and lives:
                    found.append(Violation("3", f"save {saved.at.number} of {name} was erased by nobody, and is not there"))
        return found


def _deleted(thread: Thread, losses: Losses) -> set[str]:
    return set().union(*(each.mine for each in thread.deletions if each.told is not None and each.told.is_owed(losses)))


class _Agent:
    def __init__(self, erasing: Erasing, bench: Bench) -> None:
        self._thread = erasing.threads[bench.name]
        self._bench = bench
        self._author = Author(erasing.books, bench)
        self._books = erasing.books

    async def save(self, act: Act, random: Random) -> None:
        await self._author.save(act, random, _BRANCH, asyncio.get_running_loop().time)

    async def load(self, act: Act, random: Random) -> None:
        await self._author.load(_BRANCH)

    async def prune(self, act: Act, random: Random) -> None:
        keep_last = random.choice((1, 2, 5))
        try:
            report = await self._author.thread.prune(keep_last=keep_last, durability=act.durability)
        except ShoalError as error:
            self._thread.maybe_pruned |= error.written != "no"
            self._bench.refused(error)
            raise
        self._thread.pruned.append(Pruned(set(report.gone), self._bench.told(act.durability)))
        self._bench.did(f"prune away {report.count}, keeping {sum(report.stays.values())}")

    async def delete(self, act: Act, random: Random) -> None:
        who, now = self._author.session, asyncio.get_running_loop().time
        saved = self._books.saved.get(self._bench.name, [])
        deletion = Deletion(who, now(), {each.at.id for each in saved if each.session == who})
        self._thread.deletions.append(deletion)

        async def send() -> None:
            await self._author.thread.delete(durability=act.durability)
            deletion.told = self._bench.told(act.durability)

        try:
            left_once = await self._bench.send(act, random, send, of=DeleteThread)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        deletion.ended_s = now() if left_once else float("inf")
        self._author.at.clear()
        self._bench.did(f"delete, with {len(deletion.mine)} saves of its own")


async def _state(session: Session, thread: str, id: str) -> dict[str, object] | None:
    try:
        shown = await session.call(requests.Load(SPACE, thread, id))
    except NotFound:
        return None
    assert isinstance(shown, requests.Checkpoint)
    return {name: values.decode(packed) for name, packed in shown.channels.items()}
