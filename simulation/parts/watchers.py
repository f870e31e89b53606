"""Agents that watch a journal, leave, and go on where they were, on whatever node answers.

Laws (invariant 18: a watcher is told each durable change once, and nothing else):
- Over all that an agent took, before and after it lost its connection or its node, no event comes twice, and
  none after one that builds on it; each was appended, just so, and is durable.
- Once all hold the same, a watch that goes on after an agent's bookmark, on any node, tells of every event that was
  acknowledged and that the agent was not told of.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from random import Random

from shoal.client.watching import Reset
from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.position import Position
from shoal.protocol.requests import Append, Change
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

WATCHED = "18"
_QUIET_S = 0.5  # Nothing more comes.


@dataclass(slots=True)
class Watching:
    """What one agent was told of one journal."""

    name: str
    bookmark: str = field(default_factory=lambda: Position().text())  # From the first event on.
    told: Counter[str] = field(default_factory=Counter)  # By id, in the order of the first time.
    reset: bool = False


class Watchers:
    kinds: tuple[ActKind, ...] = ("tell", "watch")

    def __init__(self) -> None:
        self.appended: defaultdict[str, dict[str, Told]] = defaultdict(dict)  # By journal, and by id.
        self.watching: dict[tuple[str, str], Watching] = {}  # By agent and journal.
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"tell": agent.tell, "watch": agent.watch}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for (agent, name), watching in sorted(self.watching.items()):
            told = watching.told + await _rest(session, watching)
            for id, times in sorted(told.items()):
                if times > 1:
                    found.append(Violation(WATCHED, f"{agent} was told {times} times of event {id[:16]} of {name}"))
            for id, acknowledged in self.appended[name].items():
                if not told[id] and not watching.reset and acknowledged.is_owed(losses):
                    found.append(Violation(WATCHED, f"{agent} was not told of event {id[:16]} of {name}"))
        return found


class _Agent:
    def __init__(self, watchers: Watchers, bench: Bench) -> None:
        self._watchers = watchers
        self._bench = bench

    async def tell(self, act: Act, random: Random) -> None:
        bench = self._bench
        number = next(self._watchers.numbers)

        async def append() -> None:
            appended = await bench.space.thread(bench.name).journal.append({"number": number}, durability=act.durability)
            self._watchers.appended[bench.name][appended.id] = bench.told(act.durability)
            bench.did(f"append event {number}")

        try:
            await bench.send(act, random, append, of=Append)
        except ShoalError as error:
            bench.refused(error)
            raise

    async def watch(self, act: Act, random: Random) -> None:
        """For a moment, or a few changes; then the watch is left."""
        bench = self._bench
        seconds, limit = random.uniform(0.01, 1.0), random.choice((1, 3, 1000))
        watching = self._watchers.watching.setdefault((bench.client.name, bench.name), Watching(bench.name))
        if act.repeat:
            await bench.client.leave()
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(bench.space.watch(prefix=bench.name, after=watching.bookmark)) as found,
            ):
                async for change in found:
                    watching.bookmark = change.bookmark
                    if isinstance(change, Reset):
                        watching.reset = True
                    elif (change.kind, change.name, change.what) != ("thread", bench.name, "append"):
                        bench.violated(WATCHED, f"{change.what} of {change.kind} {change.name} is told, which nobody did")
                    elif watching.told[change.id]:
                        watching.told[change.id] += 1
                        bench.violated(WATCHED, f"event {change.id[:16]} is told again")
                    else:
                        bench.writer.assurance.told(bench.client, change, list(watching.told))
                        watching.told[change.id] += 1
                    limit -= 1
                    if not limit:
                        break
        except TimeoutError:
            pass
        except ShoalError as error:
            bench.refused(error)
            raise
        bench.did(f"watch, {watching.told.total()} events by now,")


async def _rest(session: Session, watching: Watching) -> Counter[str]:
    """What a watcher that goes on here is told."""
    told: Counter[str] = Counter()
    after = Position.parse(watching.bookmark).pack()
    async with session.subscribe(requests.Watch(SPACE, prefix=watching.name, after=after)) as pushes:
        while True:
            try:
                async with asyncio.timeout(_QUIET_S):
                    push = await anext(pushes)
            except TimeoutError:
                return told
            if isinstance(push, requests.Reset):
                watching.reset = True  # So much was written since that it is told to read anew.
            if isinstance(push, Change) and push.what == "append":
                told[push.id] += 1
