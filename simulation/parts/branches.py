"""Branches that agents save on, fork, move, roll back and delete, with whole states and with changes.

Laws:
- No head is lost: a save that was acknowledged is a head of its branch, or something
  that named it took its place (3); a save that was refused left nothing (13).
- A checkpoint shows what its author saved, on whatever node and however it was sent (10).
- A rollback is told once in the journal (6), and once at least if it was acknowledged (3).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection
from itertools import count
from random import Random
from typing import NamedTuple

from shoal import values
from shoal.errors import BranchTaken, NotFound, ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import BranchDeleted, DeleteBranch, Move, Moved
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.parts.saves import LOG, NOTES, NUMBER, Author, Books
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_BRANCHES = ("main", "main", "side")


class Branch(NamedTuple):
    thread: str
    name: str


class Lines:
    """`named` are, by branch, the checkpoints of which something that was sent took the place."""

    kinds: tuple[ActKind, ...] = ("save-on-branch", "load-branch", "move-branch")

    def __init__(self) -> None:
        self.books = Books()
        self.named: defaultdict[Branch, set[str]] = defaultdict(set)
        self.unsure: set[Branch] = set()  # What a move of it took the place of is not known.
        self.moves: defaultdict[str, dict[str, Told | None]] = defaultdict(dict)  # By thread and reason; None: unknown.
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"save-on-branch": agent.save, "load-branch": agent.load, "move-branch": agent.move}

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for thread in sorted(self.books.saved):
            heads = await session.call(requests.Heads(SPACE, thread))
            found += self._lost_heads(thread, heads.branches, losses)
            found += await self._unlike(session, thread, heads.branches, losses)
            found += await self._untold(session, thread, losses)
        return found

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    def _lost_heads(self, thread: str, heads: dict[str, list[str]], losses: Losses) -> list[Violation]:
        return [
            Violation("3", f"save {saved.at.number} of {thread} is no head of {saved.branch}, and nothing took its place")
            for saved in self.books.saved[thread]
            if saved.told.is_owed(losses)
            and saved.at.id not in heads.get(saved.branch, [])
            and saved.at.id not in self.named[Branch(thread, saved.branch)]
            and Branch(thread, saved.branch) not in self.unsure
        ]

    async def _unlike(self, session: Session, thread: str, heads: dict[str, list[str]], losses: Losses) -> list[Violation]:
        found = []
        owed = {saved.at.id for saved in self.books.saved[thread] if saved.told.is_owed(losses)}
        for id in sorted(owed.union(*heads.values())):
            try:
                shown = await session.call(requests.Load(SPACE, thread, id))
            except NotFound:
                found.append(Violation("3", f"checkpoint {id[:16]} of {thread} was acknowledged, and is not there"))
                continue
            assert isinstance(shown, requests.Checkpoint)
            state = {name: values.decode(packed) for name, packed in shown.channels.items()}
            if not self.books.shows(state):
                found.append(Violation("10", f"checkpoint {id[:16]} of {thread} is not as it was saved"))
            elif state[NUMBER] in self.books.refused.get(thread, ()):
                found.append(
                    Violation("13", f"save {state[NUMBER]} of {thread} was refused with nothing written, and is there")
                )
        return found

    async def _untold(self, session: Session, thread: str, losses: Losses) -> list[Violation]:
        told = Counter([reason async for reason in _rollbacks(session, thread)])
        found = [Violation("6", f"{reason} of {thread} is told {times} times") for reason, times in told.items() if times > 1]
        found += [
            Violation("3", f"{reason} of {thread} was acknowledged, and is not told")
            for reason, answer in self.moves[thread].items()
            if answer is not None and answer.is_owed(losses) and not told[reason]
        ]
        return found


class _Agent:
    def __init__(self, lines: Lines, bench: Bench) -> None:
        self._lines = lines
        self._bench = bench
        self._author = Author(lines.books, bench)

    async def save(self, act: Act, random: Random) -> None:
        branch = random.choice(_BRANCHES)
        named = self._lines.named[Branch(self._bench.name, branch)]
        await self._author.save(act, random, branch, asyncio.get_running_loop().time, builds_on=named.add)

    async def load(self, act: Act, random: Random) -> None:
        asked = random.choice((None, [NUMBER, LOG], [NUMBER, NOTES]))
        await self._author.load(random.choice(_BRANCHES), channels=asked)

    async def move(self, act: Act, random: Random) -> None:
        """Roll a branch back to whatever was saved, make one there, or delete one."""
        there = self._lines.books.saved.get(self._bench.name, [])
        if not there:
            return
        to, name, is_new = random.choice(there).at, random.choice(_BRANCHES), random.random() < 0.3
        if name != "main" and random.random() < 0.3:
            await self._delete(act, random, Branch(self._bench.name, name))
            return
        branch, reason = Branch(self._bench.name, name), f"move {next(self._lines.numbers)}"

        def learn(reply: object) -> None:
            assert isinstance(reply, Moved)
            self._lines.named[branch].update(reply.before)
            if not is_new and reply.before != [reply.to]:
                self._lines.moves[branch.thread][reason] = self._bench.told(act.durability)

        async def send() -> None:
            thread = self._author.thread
            if is_new:
                await thread.branch(name, at=to.id, durability=act.durability)
            else:
                await thread.rollback(to.id, branch=name, reason=reason, by="agent", durability=act.durability)

        try:
            left_once = await self._bench.send(act, random, send, of=Move, learn=learn)
        except BranchTaken:
            return  # A branch that is begun takes the place of no head.
        except NotFound:
            self._lines.unsure.add(branch)  # Another node, asked before, may have found it.
            return
        except ShoalError as error:
            self._lines.unsure.add(branch)
            self._author.at.pop(name, None)
            self._bench.refused(error)
            raise
        if not left_once:
            self._lines.unsure.add(branch)  # On another node it may have taken the place of other heads too.
        self._author.at[name] = to
        self._bench.did(f"{reason} of {name} to {to.id[:8]}")

    async def _delete(self, act: Act, random: Random, branch: Branch) -> None:
        def learn(reply: object) -> None:
            assert isinstance(reply, BranchDeleted)
            self._lines.named[branch].update(reply.before)

        async def send() -> None:
            await self._author.thread.delete_branch(branch.name, durability=act.durability)

        self._author.at.pop(branch.name, None)
        try:
            left_once = await self._bench.send(act, random, send, of=DeleteBranch, learn=learn)
        except ShoalError as error:
            self._lines.unsure.add(branch)
            self._bench.refused(error)
            raise
        if not left_once:
            self._lines.unsure.add(branch)
        self._bench.did(f"delete {branch.name}")


async def _rollbacks(session: Session, thread: str) -> AsyncIterator[str]:
    cursor, more = b"", True
    while more:
        page = await session.call(requests.ReadJournal(SPACE, thread, cursor))
        for event in page.events:
            told = values.decode(event.event)
            if told["kind"] == "rollback":
                yield told["reason"]
        cursor, more = page.cursor, page.more
