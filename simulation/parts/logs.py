"""Journals that agents append to, trim, erase events of, and read on from where they stopped.

Laws:
- An agent gets each acknowledged event that was appended after its first read, whatever was trimmed, and wherever it reads;
  or it is told that events were trimmed which it had not got (10). Then it begins again.
- The value of an event that was erased is shown to the agent that erased it nowhere from then on, and in the end by no node;
  and no disk keeps it once all is swept (15).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random

from shoal import values
from shoal.errors import JournalTrimmed, ShoalError
from shoal.kinds.journal.handle import Journal
from shoal.kinds.journal.state import trimming
from shoal.protocol.requests import Append, EraseEvent, ReadJournal
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_KEPT = 3  # Events, by each trim.


@dataclass(slots=True)
class Line:
    """An event. `told` is None if its append was not acknowledged, and `erased` if its erasure was not."""

    number: int
    begun_s: float
    told: Told | None = None
    id: str = ""
    may_be_erased: bool = False
    erased: Told | None = None

    def is_gone(self, losses: Losses) -> bool:
        """Whether no node may show its value."""
        return self.erased is not None and self.erased.is_owed(losses)


@dataclass(slots=True)
class Reader:
    """What one agent got. The time is that of the first read, or of the last one that said that events were trimmed."""

    cursor: bytes | None = None
    got: set[int] = field(default_factory=set)
    since_s: float = float("inf")
    erased: set[int] = field(default_factory=set)  # What its agent has erased.
    wrong: set[int] = field(default_factory=set)  # What it was shown of that.

    async def read(self, journal: Journal) -> None:
        try:
            await self._read_on(journal, skip_trimmed=False)
        except JournalTrimmed:
            self.since_s = _now()
            await self._read_on(journal, skip_trimmed=True)

    async def _read_on(self, journal: Journal, *, skip_trimmed: bool) -> None:
        async for event in journal.read(after=self.cursor, skip_trimmed=skip_trimmed):
            self.cursor = event.cursor
            self.since_s = min(self.since_s, _now())
            if not event.erased:
                self.got.add(number := event.event["number"])
                self.wrong |= {number} & self.erased


class Logs:
    """By journal; the readers by agent as well."""

    kinds: tuple[ActKind, ...] = ("write-log", "read-log", "trim-log", "erase-log")

    def __init__(self) -> None:
        self.lines: defaultdict[str, list[Line]] = defaultdict(list)
        self.readers: defaultdict[str, list[Reader]] = defaultdict(list)
        self.numbers = count()

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"write-log": agent.write, "read-log": agent.read, "trim-log": agent.trim, "erase-log": agent.erase}

    def erased(self, losses: Losses) -> Collection[bytes]:
        lines = [line for lines in self.lines.values() for line in lines]
        return [trimming.aside(bytes.fromhex(line.id)) for line in lines if line.is_gone(losses)]

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name, lines in sorted(self.lines.items()):
            gone = {line.number for line in lines if line.is_gone(losses)}
            if gone and (shown := gone & await _rest(session, name, b"", skip_trimmed=True)):
                found.append(Violation("15", f"{name} shows the values of events {sorted(shown)}, which were erased"))
        for name, readers in sorted(self.readers.items()):
            kept = [line for line in self.lines[name] if line.told is not None and not line.may_be_erased]
            owed = [line for line in kept if line.told is not None and line.told.is_owed(losses)]
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
        self._mine: list[Line] = []  # What it has appended itself, so that any node that answers it knows of it.
        logs.readers[bench.name].append(self._reader)

    async def write(self, act: Act, random: Random) -> None:
        line = Line(next(self._logs.numbers), _now())
        self._logs.lines[self._bench.name].append(line)
        self._mine.append(line)

        async def send() -> None:
            appended = await self._journal.append({"number": line.number}, durability=act.durability)
            line.id = line.id or appended.id
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
        if self._reader.wrong:
            self._bench.violated("15", f"values of events {sorted(self._reader.wrong)} are shown, which this agent erased")
            self._reader.wrong.clear()

    async def erase(self, act: Act, random: Random) -> None:
        lines = [line for line in self._mine if line.id and not line.may_be_erased]
        if not lines:
            return
        line = random.choice(lines)
        line.may_be_erased = True

        async def send() -> None:
            if await self._journal.erase(line.id, durability=act.durability):
                line.erased = line.erased or self._bench.told(act.durability)
                self._reader.erased.add(line.number)

        try:
            await self._bench.send(act, random, send, of=EraseEvent)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"erase {line.number}")

    async def trim(self, act: Act, random: Random) -> None:
        try:
            await self._journal.trim(keep=_KEPT, durability=act.durability)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did("trim")


async def _rest(session: Session, thread: str, after: bytes, *, skip_trimmed: bool = False) -> set[int]:
    """The events after a cursor, at the node of this session.

    From the first on they are read with `skip_trimmed`: an event that came late may be older than some that were trimmed, and
    then the second page is refused.
    """
    found: set[int] = set()
    more = True
    while more:
        page = await session.call(ReadJournal(SPACE, thread, after, skip_trimmed=skip_trimmed))
        found |= {values.decode(event.event)["number"] for event in page.events if not event.erased}
        after, more = page.cursor, page.more
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()
