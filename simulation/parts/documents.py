"""Documents that are patched, replaced in place, compacted, deleted and begun anew.

Laws:
- What was written with knowledge of the last deletion is there, and what copies acknowledged after copies had
  acknowledged all deletions (3). Nothing is shown that nobody wrote (10).
- What its own session wrote before a deletion no node shows again, whatever came late (15).
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from shoal.errors import GenerationEnded, NotFound, ShoalError
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state.live import EMPTY
from shoal.protocol import requests
from shoal.protocol.requests import DeleteDocument, Patch, Update, Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.compacting import compact
from simulation.parts.part import Bench, Deeds, Told, outlives
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_ROOT = "m"
_BEGUN_MAX = 8  # Deletions by others that one patch bears.


@dataclass(slots=True)
class Wrote:
    """A number, under a key of its own. `told` is None, and the end never, where the outcome is not known."""

    number: int
    session: str
    begun_s: float
    ended_s: float = float("inf")
    told: Told | None = None


@dataclass(slots=True)
class Deleted:
    session: str
    begun_s: float
    mine: set[int]  # What its session had written before it.
    ended_s: float = float("inf")
    told: Told | None = None


@dataclass(slots=True)
class Paper:
    wrote: list[Wrote] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)


class Papers:
    kinds: tuple[ActKind, ...] = ("patch-paper", "edit-paper", "read-paper", "delete-paper", "compact-paper")

    def __init__(self) -> None:
        self.papers: defaultdict[str, Paper] = defaultdict(Paper)
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "patch-paper": agent.patch,
            "edit-paper": agent.edit,
            "read-paper": agent.read,
            "delete-paper": agent.delete,
            "compact-paper": partial(compact, bench),
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.papers):
            paper, numbers = self.papers[name], await _numbers(session, name)
            if not {wrote.number for wrote in paper.wrote}.issuperset(numbers):
                found.append(Violation("10", f"document {name} shows what nobody wrote: {sorted(numbers)}"))
            owed = [each.mine for each in paper.deleted if each.told is not None and each.told.is_owed(losses)]
            gone = numbers.intersection(*[set().union(*owed)])
            if gone:
                found.append(Violation("15", f"document {name} was deleted, and shows {sorted(gone)}"))
            for wrote in paper.wrote:
                told = wrote.told
                if told is None or not told.is_owed(losses) or wrote.number in numbers:
                    continue
                if outlives(wrote.session, wrote.begun_s, told, paper.deleted, losses):
                    found.append(Violation("3", f"document {name} has lost {wrote.number}"))
        return found


class _Agent:
    def __init__(self, papers: Papers, bench: Bench) -> None:
        self._paper = papers.papers[bench.name]
        self._numbers = papers.numbers
        self._bench = bench
        self._mirror: Document | None = None

    @property
    def _session(self) -> str:
        return self._bench.client.name

    async def patch(self, act: Act, random: Random) -> None:
        wrote = Wrote(next(self._numbers), self._session, _now())
        entry = {"op": "add", "path": f"/{_ROOT}/{wrote.number}", "value": {"n": wrote.number}}
        self._paper.wrote.append(wrote)

        async def send() -> None:
            patch = Patch(SPACE, self._bench.name, json.dumps([entry]).encode())
            for last in (False,) * _BEGUN_MAX + (True,):
                try:
                    await self._write(patch, act)
                except ShoalError as error:
                    if last or "no root" not in error.message:
                        raise
                    # It was never begun, or was deleted since.
                    await self._write(Update(SPACE, self._bench.name, EMPTY, {_ROOT: "map"}), act)
                else:
                    return

        await self._carry_out(act, random, wrote, send, Patch)
        self._bench.did(f"patch in {wrote.number}")

    async def edit(self, act: Act, random: Random) -> None:
        """In a mirror that is kept, whatever becomes of the document meanwhile; every other edit in one that is closed then."""
        wrote = Wrote(next(self._numbers), self._session, _now())
        self._paper.wrote.append(wrote)
        is_kept = bool(wrote.number % 2)

        async def send() -> None:
            if not is_kept:
                async with await self._bench.space.document(self._bench.name) as mirror:
                    mirror.map(_ROOT)[str(wrote.number)] = {"n": wrote.number}
            else:
                if self._mirror is None:
                    self._mirror = await self._bench.space.document(self._bench.name)
                self._mirror.map(_ROOT)[str(wrote.number)] = {"n": wrote.number}
                await self._mirror.flush()
            wrote.told = self._bench.told()

        try:
            await self._bench.send(act, random, send, of=Update)
        except GenerationEnded:
            if is_kept and self._mirror is not None:
                await self._mirror.abandon()
                self._mirror = None
            self._bench.did("hear that it was deleted")
            return
        except ShoalError as error:
            self._bench.refused(error)
            raise
        wrote.ended_s = _now()
        self._bench.did(f"edit in {wrote.number}")

    async def delete(self, act: Act, random: Random) -> None:
        mine = {each.number for each in self._paper.wrote if each.session == self._session}
        deleted = Deleted(self._session, _now(), mine)
        self._paper.deleted.append(deleted)

        async def send() -> None:
            await self._write(DeleteDocument(SPACE, self._bench.name), act)

        await self._carry_out(act, random, deleted, send, DeleteDocument)
        self._bench.did(f"delete, with {len(mine)} of its own")

    async def read(self, act: Act, random: Random) -> None:
        try:
            numbers = await _numbers(self._bench.client.session, self._bench.name)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if not {wrote.number for wrote in self._paper.wrote}.issuperset(numbers):
            self._bench.violated("10", f"shows what nobody wrote: {sorted(numbers)}")

    async def _write(self, request: Patch | Update | DeleteDocument, act: Act) -> None:
        await self._bench.space._connection.write(request, key=None, durability=act.durability)

    async def _carry_out(
        self, act: Act, random: Random, what: Wrote | Deleted, send: Callable[[], Awaitable[None]], of: type[Write[Any]]
    ) -> None:
        async def sent() -> None:
            await send()
            what.told = self._bench.told(act.durability)

        try:
            left_once = await self._bench.send(act, random, sent, of=of)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        what.ended_s = _now() if left_once else float("inf")


async def _numbers(session: Session, name: str) -> set[int]:
    try:
        shown = await session.call(requests.ReadDocumentJson(SPACE, name))
    except NotFound:
        return set()
    assert isinstance(shown, requests.DocumentJson)
    return {entry["n"] for entry in json.loads(shown.json).get(_ROOT, {}).values()}


def _now() -> float:
    return asyncio.get_running_loop().time()
