"""Items whose fields agents have indexed, or not any more, and search by; and whose vectors they search by.

Laws:
- What a search shows matches its filter, whatever is written meanwhile; in the end it shows all
  that matches of what a scan of the same node shows, and the nearest of that (10). That index
  rows are those that the items make is judged with the rows of each disk (4).
- A note's vector turns towards `_NORTH` as its number grows. Without NumPy nothing is compared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from importlib.util import find_spec
from itertools import count
from random import Random
from typing import Any

from shoal import values
from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import DeleteItem, IndexItems, PutItem, UnindexItems, Write
from shoal.protocol.session import Session
from shoal.values.forms import pack
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_KEYS = 6
_COLOURS = ("red", "green", "blue")
_NORTH = (0.0, 1.0)
_NEAREST = 3
_COMPARES = find_spec("numpy") is not None


class Searches:
    kinds: tuple[ActKind, ...] = ("put-note", "index-notes", "search-notes", "delete-note")

    def __init__(self) -> None:
        self.labels: set[str] = set()
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "put-note": agent.put,
            "index-notes": agent.index,
            "search-notes": agent.search,
            "delete-note": agent.delete,
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for label in sorted(self.labels):
            everything = await _searched(session, label, {})
            numbers = sorted(note["number"] for note in everything.values())
            filters: list[dict[str, Any]] = [{"colour": colour} for colour in _COLOURS]
            filters += [{"number": {"$gte": numbers[len(numbers) // 2]}}] if numbers else []
            for filter in filters:
                shown, wanted = await _searched(session, label, filter), _matching(everything, filter)
                if shown != wanted:
                    text = f"a search of {label} for {filter} shows {sorted(shown)} of {sorted(wanted)}"
                    found.append(Violation("10", text))
            nearest = await _nearest(session, label) if _COMPARES else numbers[: -_NEAREST - 1 : -1]
            if nearest != numbers[: -_NEAREST - 1 : -1]:
                found.append(Violation("10", f"the nearest of {label} are said to be {nearest} of {numbers}"))
        return found


class _Agent:
    def __init__(self, searches: Searches, bench: Bench) -> None:
        self._searches = searches
        self._bench = bench
        self._handle = bench.space.items

    async def put(self, act: Act, random: Random) -> None:
        key, number = self._key(random), next(self._searches.numbers)
        note = {"number": number, "colour": random.choice(_COLOURS)}
        self._searches.labels.add(self._bench.name)

        async def send() -> None:
            vectors = [(1.0, number / 16)]  # Far enough apart for 32 bits.
            await self._handle.put((self._bench.name,), key, note, durability=act.durability, vectors=vectors)

        await self._write(act, random, send, PutItem)

    async def delete(self, act: Act, random: Random) -> None:
        key = self._key(random)

        async def send() -> None:
            await self._handle.delete((self._bench.name,), key, durability=act.durability)

        await self._write(act, random, send, DeleteItem)

    async def index(self, act: Act, random: Random) -> None:
        field, keep = random.choice(("colour", "number")), random.random() < 0.8

        async def send() -> None:
            declare = self._handle.index if keep else self._handle.unindex
            await declare((self._bench.name,), field, durability=act.durability)

        await self._write(act, random, send, IndexItems if keep else UnindexItems)

    async def search(self, act: Act, random: Random) -> None:
        filter, vector = {"colour": random.choice(_COLOURS)}, random.choice((None, _NORTH))
        try:
            found = await self._handle.search((self._bench.name,), filter=filter, vector=vector if _COMPARES else None)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        for item in found:
            if item.value["colour"] != filter["colour"]:
                self._bench.violated("10", f"a search for {filter} shows {item.value}")

    async def _write(self, act: Act, random: Random, send: Callable[[], Awaitable[None]], of: type[Write[Any]]) -> None:
        try:
            await self._bench.send(act, random, send, of=of)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(of.__name__)

    def _key(self, random: Random) -> str:
        return f"note-{random.randrange(_KEYS)}"


async def _searched(session: Session, label: str, filter: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By key, the notes that a node shows of those that match."""
    found: dict[str, dict[str, Any]] = {}
    cursor, more = b"", True
    while more:
        reply = await session.call(requests.SearchItems(SPACE, label, [], values.encode(filter), after=cursor))
        found |= {item.key: values.decode(item.value) for item in reply.items}
        cursor, more = reply.cursor, reply.more
    return found


async def _nearest(session: Session, label: str) -> list[int]:
    """The numbers of the nearest notes."""
    found: list[int] = []
    while len(found) < _NEAREST:
        request = requests.RankItems(SPACE, label, [], pack(_NORTH), limit=_NEAREST - len(found), skip=len(found))
        reply = await session.call(request)
        if not reply.items:
            break
        found += [values.decode(ranked.item.value)["number"] for ranked in reply.items]
    return found


def _matching(notes: dict[str, dict[str, Any]], filter: dict[str, Any]) -> dict[str, dict[str, Any]]:
    def matches(note: dict[str, Any]) -> bool:
        if "colour" in filter:
            return bool(note["colour"] == filter["colour"])
        return bool(note["number"] >= filter["number"]["$gte"])

    return {key: note for key, note in notes.items() if matches(note)}
