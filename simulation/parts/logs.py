"""Journals that agents append to, trim, and read on from where they stopped.

Law: an agent gets each acknowledged event that was appended after its first read, whatever was trimmed, and wherever it reads;
or it is told that events were trimmed which it had not got (10). Then it begins again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random

from shoal import values
from shoal.client.thread.journal import Journal
from shoal.errors import JournalTrimmed, ShoalError
from shoal.protocol.requests import Append, ReadJournal
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_KEPT = 3  # Events, by each trim.


@dataclass(slots=True)
class Line:
    """An event. `told` is None if its append was not acknowledged."""

    number: int
    begun_s: float
    told: Told | None = None


@dataclass(slots=True)
class Reader:
    """What one agent got. The time is that of the first read, or of the last one that said that events were trimmed."""

    cursor: bytes | None = None
    got: set[int] = field(default_factory=set)
    since_s: float = float("inf")

    async def read(self, journal: Journal) -> None:
        try:
            await self._read_on(journal, skip_trimmed=False)
        except JournalTrimmed:
            self.since_s = _now()
            await self._read_on(journal, skip_trimmed=True)

    async def _read_on(self, journal: Journal, *, skip_trimmed: bool) -> None:
        async for event in journal.read(after=self.cursor, skip_trimmed=skip_trimmed):
            self.cursor = event.cursor
            self.got.add(event.event["number"])
            self.since_s = min(self.since_s, _now())


class Logs:
    """By journal; the readers by agent as well."""

    kinds: tuple[ActKind, ...] = ("write-log", "read-log", "trim-log")

    def __init__(self) -> None:
        self.lines: defaultdict[str, list[Line]] = defaultdict(list)
        self.readers: defaultdict[str, list[Reader]] = defaultdict(list)
        self.numbers = count()

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"write-log": agent.write, "read-log": agent.read, "trim-log": agent.trim}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name, readers in sorted(self.readers.items()):
            owed = [line for line in self.lines[name] if line.told is not None and line.told.is_owed(losses)]
            for reader in readers:
                if reader.cursor is None:
                    continue
                try:
                    got = reader.got | await _rest(session, name, reader.cursor)
                except JournalTrimmed:
                    continue
                if missed := [line.number for line in owed if line.begun_s > reader.since_s and line.number not in got]:
                    found.append(Violation("10", f"a reader of {name} was not given events {missed}, and told of no trim"))
        return found


class _Agent:
    def __init__(self, logs: Logs, bench: Bench) -> None:
        self._logs = logs
        self._bench = bench
        self._journal = bench.space.thread(bench.name).journal
        self._reader = Reader()
        logs.readers[bench.name].append(self._reader)

    async def write(self, act: Act, random: Random) -> None:
        line = Line(next(self._logs.numbers), _now())
        self._logs.lines[self._bench.name].append(line)

        async def send() -> None:
            await self._journal.append({"number": line.number}, durability=act.durability)
            line.told = line.told or self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, send, of=Append)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"append {line.number}")

    async def read(self, act: Act, random: Random) -> None:
        try:
            await self._reader.read(self._journal)
        except ShoalError as error:
            self._bench.refused(error)
            raise

    async def trim(self, act: Act, random: Random) -> None:
        try:
            await self._journal.trim(keep=_KEPT, durability=act.durability)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did("trim")


async def _rest(session: Session, thread: str, after: bytes) -> set[int]:
    """The events after a cursor, at the node of this session."""
    found: set[int] = set()
    more = True
    while more:
        page = await session.call(ReadJournal(SPACE, thread, after))
        found |= {values.decode(event.event)["number"] for event in page.events}
        after, more = page.cursor, page.more
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()
