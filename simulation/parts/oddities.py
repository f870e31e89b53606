"""Documents whose content JSON does not tell: bytes, numbers that are not finite, formats, embedded objects.

Law: in the end each node shows the same, also of what JSON does not tell, in whatever order the engine writes it.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from math import inf, nan
from random import Random
from typing import Any

import pycrdt

from shoal.errors import NotFound, ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import Updates
from shoal.protocol.session import Session
from simulation.judging.found import rebuilt
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

FAMILY = "oddities"
_ALIKE = "4"
_MAP, _LIST, _TEXT = "m", "l", "t"


class Oddities:
    """All by name: the hash of what the first node showed that was asked."""

    kinds: tuple[ActKind, ...] = ("edit-odd",)

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.forms: dict[str, str] = {}
        self.clients = 0

    def deeds(self, bench: Bench) -> Deeds:
        return {"edit-odd": _Agent(self, bench).edit}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name in sorted(self.names):
            try:
                state = await session.call(requests.ReadDocument(SPACE, name))
            except NotFound:
                continue
            form = sha256(rebuilt(state).canonical()).hexdigest()
            if form != self.forms.setdefault(name, form):
                found.append(Violation(_ALIKE, f"document {name} is not the same on each node, where JSON does not tell"))
        return found


class _Agent:
    def __init__(self, oddities: Oddities, bench: Bench) -> None:
        oddities.clients += 1
        self._bench = bench
        self._oddities = oddities
        self._doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=oddities.clients)
        self._sent = self._doc.get_state()

    async def edit(self, act: Act, random: Random) -> None:
        self._oddities.names.add(self._bench.name)
        _edit(self._doc, random)
        connection = self._bench.space._connection

        async def send() -> None:
            request = Updates(SPACE, self._bench.name, [self._doc.get_update(self._sent)])
            taken = await connection.write(request, key=None, durability=act.durability)
            if taken.early:  # As a client that is asked for what the node lacks.
                await connection.write(
                    Updates(SPACE, self._bench.name, [self._doc.get_update()]), key=None, durability=act.durability
                )

        try:
            await self._bench.send(act, random, send, of=Updates)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._sent = self._doc.get_state()
        self._bench.did("odd edit")


def _edit(doc: pycrdt.Doc[Any], random: Random) -> None:
    odd = random.choice((b"\x01\x02", nan, inf, -0.0, [b"\x03", 1.5], {"b": b"\x04", "a": inf, "c": {"z": nan, "y": b""}}))
    match random.randrange(4):
        case 0:
            doc.get(_MAP, type=pycrdt.Map)[random.choice("abc")] = odd
        case 1:
            items = doc.get(_LIST, type=pycrdt.Array)
            items.insert(random.randrange(len(items) + 1), odd)
            items.extend([1, odd, "x"])
        case 2:
            items = doc.get(_LIST, type=pycrdt.Array)
            if len(items):
                del items[random.randrange(len(items))]
        case _:
            text = doc.get(_TEXT, type=pycrdt.Text)
            text.insert(0, "abc")
            text.format(random.randrange(2), 3, {"size": random.random()})
            text.insert_embed(1, {"at": random.random()})
