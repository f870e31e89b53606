"""Boards that standard Yjs clients edit: updates of several at once, of roots that nobody declared; and who is there.

An act is what the door for Yjs clients makes of a moment: it sends what two clients
of its node have edited as one write, and all of both where the node lacks something.

Laws:
- What was acknowledged is there (3), under the kind of root that it was edited as, and nothing that nobody wrote (10).
- Who left, and who did not renew what they said, is seen on no node any more.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection
from itertools import count
from random import Random
from typing import Any

import pycrdt

from shoal.config import Config
from shoal.errors import NotFound, ShoalError
from shoal.kinds.presence.state import GONE
from shoal.protocol import requests
from shoal.protocol.requests import Announce, Present, ReadPresence, Updates, UpdatesTaken
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_MAP, _LIST, _TEXT = "m", "l", "t"
_CLIENTS = 2  # Of each agent.
_AGED_OUT_S = 1.5 * Config().presence_timeout_s


class Boards:
    """All by name; numbers are written once."""

    kinds: tuple[ActKind, ...] = ("edit-board", "read-board", "show-up")

    def __init__(self) -> None:
        self.wrote: defaultdict[str, dict[int, Told | None]] = defaultdict(dict)
        self.left: set[int] = set()  # Clients that were there, and said that they leave.
        self.numbers = count(1)
        self.clients = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"edit-board": agent.edit, "read-board": agent.read, "show-up": agent.show_up}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name, wrote in sorted(self.wrote.items()):
            shown = await _numbers(session, name)
            if not wrote.keys() >= shown:
                found.append(Violation("10", f"board {name} shows what nobody wrote: {sorted(shown - wrote.keys())}"))
            lost = sorted(number for number, told in wrote.items() if told and told.is_owed(losses) and number not in shown)
            if lost:
                found.append(Violation("3", f"board {name} has lost {lost}"))
        if await self._back(session):
            # That it left was lost on the way: it ages out.
            await asyncio.sleep(_AGED_OUT_S)
        found += [
            Violation("10", f"board {name} shows client {client}, which left") for name, client in await self._back(session)
        ]
        return found

    async def _back(self, session: Session) -> list[tuple[str, int]]:
        """Who is seen though it left, and where."""
        seen: list[tuple[str, int]] = []
        for name in sorted(self.wrote):
            there = await session.call(ReadPresence(SPACE, name))
            seen += [(name, present.client) for present in there.entries if present.client in self.left]
        return seen


class _Agent:
    def __init__(self, boards: Boards, bench: Bench) -> None:
        self._boards = boards
        self._bench = bench
        self._docs = [pycrdt.Doc[Any](client_id=next(boards.clients)) for _ in range(_CLIENTS)]
        self._sent = [doc.get_state() for doc in self._docs]

    async def edit(self, act: Act, random: Random) -> None:
        wrote = [next(self._boards.numbers) for _ in self._docs]
        for doc, number in zip(self._docs, wrote, strict=True):
            self._boards.wrote[self._bench.name][number] = None
            _edit(doc, number, random.randrange(3))

        told: Told | None = None

        async def send() -> None:
            nonlocal told
            taken = await self._send([doc.get_update(sent) for doc, sent in zip(self._docs, self._sent, strict=True)], act)
            if taken.early:  # As a client that is asked for what the node lacks.
                taken = await self._send([doc.get_update() for doc in self._docs], act)
                assert not taken.early
            told = self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, send, of=Updates)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._sent = [doc.get_state() for doc in self._docs]
        self._boards.wrote[self._bench.name].update(dict.fromkeys(wrote, told))
        self._bench.did(f"edit in {wrote}")

    async def read(self, act: Act, random: Random) -> None:
        try:
            shown = await _numbers(self._bench.client.session, self._bench.name)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        unknown = shown - self._boards.wrote[self._bench.name].keys()
        if unknown:
            self._bench.violated("10", f"shows what nobody wrote: {sorted(unknown)}")

    async def show_up(self, act: Act, random: Random) -> None:
        """As a client of its own, which says something, and leaves."""
        client = next(self._boards.clients)
        try:
            for clock, state in ((1, b'"here"'), (2, b'"busy"'), (2, GONE)):
                await self._bench.client.session.call(Announce(SPACE, self._bench.name, [Present(client, clock, state)]))
                await asyncio.sleep(random.choice((0.0, 0.01)))
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._boards.left.add(client)
        self._bench.did(f"show up as {client}, and leave,")

    async def _send(self, updates: list[bytes], act: Act) -> UpdatesTaken:
        request = Updates(SPACE, self._bench.name, updates)
        return await self._bench.space._connection.write(request, key=None, durability=act.durability)


def _edit(doc: pycrdt.Doc[Any], number: int, how: int) -> None:
    if how == 0:
        doc.get(_MAP, type=pycrdt.Map)[str(number)] = number
    elif how == 1:
        doc.get(_LIST, type=pycrdt.Array).append(number)
    else:
        doc.get(_TEXT, type=pycrdt.Text).insert(0, f"<{number}>")


async def _numbers(session: Session, name: str) -> set[int]:
    """What a board shows, if its roots are what they were edited as."""
    try:
        shown = await session.call(requests.ReadDocumentJson(SPACE, name))
    except NotFound:
        return set()
    assert isinstance(shown, requests.DocumentJson)
    content = json.loads(shown.json)
    entries, listed, text = content.get(_MAP, {}), content.get(_LIST, []), content.get(_TEXT, "")
    found = set(entries.values()) if isinstance(entries, dict) else set()
    found |= set(listed) if isinstance(listed, list) else set()
    return found | {int(number) for number in text.replace(">", "").split("<") if number} if isinstance(text, str) else found
