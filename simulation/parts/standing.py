"""Threads under a standing rule of retention, which agents set, change and unset while others save.

Laws:
- Nothing goes that each rule keeps: no head, no labelled checkpoint, and none of the last ones of a branch, as many as the
  least of all rules that anybody tried to set (15).
- A thread of which something was acknowledged is there: no rule here lets whole threads go (3).
- Nothing that is due stays for ever: once all nodes are back, the node in charge lets it go within some looks (15).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from random import Random

from shoal.cluster.operation import partition_of
from shoal.errors import NotFound, Pruned, ShoalError
from shoal.kinds.retention.state import RULES
from shoal.names import RESERVED
from shoal.protocol import requests
from shoal.protocol.requests import PutEntry, ReadRules, Save
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

RETAINED = "15"
_RULES = partition_of(RESERVED, RULES)
_LASTS = (2, 3, 5)
_LOOKS = 30  # Seconds for which a node is given time to let go what is due: of the checks, not of the promise.


@dataclass(slots=True)
class Saved:
    parent: str | None
    label: str
    told: Told


@dataclass(slots=True)
class Ruled:
    """One thread; `least` is of the rules that anybody tried to set for it."""

    saved: dict[str, Saved] = field(default_factory=dict)
    on: Counter[str] = field(default_factory=Counter)  # Saves that were sent on a checkpoint, refused ones too.
    least: int | None = None

    def line(self, head: str, count: int) -> Iterator[str]:
        """The last checkpoints up to a head, as far as one has followed another alone."""
        id: str | None = head
        while id in self.saved and count > 0 and (id == head or self.on[id] == 1):
            yield id
            id, count = self.saved[id].parent, count - 1


class Standing:
    kinds: tuple[ActKind, ...] = ("save-ruled", "label-ruled", "set-rule", "unset-rule")

    def __init__(self) -> None:
        self.threads: defaultdict[str, Ruled] = defaultdict(Ruled)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self.threads[bench.name], bench)
        return {"save-ruled": agent.save, "label-ruled": agent.label, "set-rule": agent.set, "unset-rule": agent.unset}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.threads):
            thread = self.threads[name]
            if thread.least is None:
                continue
            heads = await _heads(session, name)
            if not heads and any(saved.told.is_owed(losses) for saved in thread.saved.values()):
                found.append(Violation("3", f"no rule lets thread {name} go, and it is gone"))
            kept = {id for head in heads for id in thread.line(head, thread.least)}
            kept |= {id for id, saved in thread.saved.items() if saved.label}
            gone = [id for id in sorted(kept) if await _is_pruned(session, name, id)]
            found += [Violation(RETAINED, f"every rule keeps checkpoint {id[:8]} of {name}, and it is gone") for id in gone]
            found += await self._due(session, name, thread)
        return found

    async def _due(self, session: Session, name: str, thread: Ruled) -> list[Violation]:
        """What the rule in force lets go, and the node in charge has not let go for long."""
        due: set[str] = set()
        for _ in range(_LOOKS):
            view = await session.call(ReadRules(SPACE))
            rules = [rule for rule in view.rules if rule.prefix == name and rule.keep_last is not None]
            if not rules or "owners" in view.waits_for or "clock" in view.waits_for:
                return []
            keep_last = rules[0].keep_last or 0
            heads = await _heads(session, name)
            due = set[str]()
            for head in heads:
                kept = set(thread.line(head, keep_last))
                due |= {id for id in thread.line(head, len(thread.saved)) if id not in kept and not thread.saved[id].label}
            due = {id for id in sorted(due) if not await _is_pruned(session, name, id)}
            if not due:
                return []
            await asyncio.sleep(1.0)
        return [Violation(RETAINED, f"the rule lets checkpoint {id[:8]} of {name} go, and it stays") for id in sorted(due)]


class _Agent:
    def __init__(self, thread: Ruled, bench: Bench) -> None:
        self._thread = thread
        self._bench = bench
        self._handle = bench.space.thread(bench.name)

    async def save(self, act: Act, random: Random) -> None:
        await self._save(act, random, "")

    async def label(self, act: Act, random: Random) -> None:
        await self._save(act, random, f"label {random.getrandbits(64):016x}")

    async def _save(self, act: Act, random: Random, label: str) -> None:
        parent: str | None = None
        try:
            parent = (await self._handle.load()).id
        except NotFound:
            pass
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._thread.on[parent or ""] += 1
        state = {"number": random.getrandbits(64)}

        async def send() -> None:
            saved = await self._handle.save(
                state, parent=parent or requests.NO_HEAD, label=label, on_conflict="fork", durability=act.durability
            )
            self._thread.saved[saved.id] = Saved(parent, label, self._bench.told(act.durability))

        try:
            await self._bench.send(act, random, send, of=Save)
        except ShoalError as error:
            self._bench.did(f"not save on {(parent or '')[:8]}: {error.code},")
            if not isinstance(error, NotFound | Pruned):
                self._bench.refused(error)
                raise
            return
        self._bench.did(f"save on {(parent or '')[:8]}")

    async def set(self, act: Act, random: Random) -> None:
        keep_last = random.choice(_LASTS)
        self._thread.least = min(keep_last, self._thread.least or keep_last)

        async def send() -> None:
            await self._bench.space.retention.set(
                prefix=self._bench.name, keep_last=keep_last, yes=True, durability=act.durability
            )

        await self._sent(act, random, send, f"keep the last {keep_last}")

    async def unset(self, act: Act, random: Random) -> None:
        async def send() -> None:
            await self._bench.space.retention.unset(self._bench.name, durability=act.durability)

        await self._sent(act, random, send, "keep all")

    async def _sent(self, act: Act, random: Random, send: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            await self._bench.at(_RULES).send(act, random, send, of=(PutEntry, requests.RemoveEntry))
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(what)


async def _heads(session: Session, name: str) -> list[str]:
    try:
        found = await session.call(requests.Heads(SPACE, name))
    except NotFound:
        return []
    return [head for heads in found.branches.values() for head in heads]


async def _is_pruned(session: Session, name: str, id: str) -> bool:
    try:
        await session.call(requests.Load(SPACE, name, id))
    except Pruned:
        return True
    except ShoalError:
        return False
    return False
