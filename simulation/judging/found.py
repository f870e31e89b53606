"""What a client finds in a store, read through its door: the other half of what the checkers judge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pycrdt

from shoal import values
from shoal.kinds.document.state.live import Building, LiveDocument
from shoal.protocol import requests
from shoal.protocol.requests import ObjectKind
from shoal.protocol.session import Session
from simulation.judging.history import Place
from simulation.workload.random_agents import ROOT, SPACE, channels_of, event_of, numbers_of

LISTED, TOLD = "listed", "told"
"""The root array and the root text of a document in which each edit leaves its number as well."""

PART = "part/"
"""Begins the names of objects that parts of the workload have for themselves, and judge."""

DAMAGED = -1
"""Stands for the number of an entry whose content is not what any write would have written."""


@dataclass(slots=True)
class Found:
    threads: dict[str, dict[str, int]] = field(default_factory=dict)  # Name → checkpoint id → number.
    journals: dict[str, dict[str, int]] = field(default_factory=dict)  # Name → event id → number.
    counters: dict[str, int] = field(default_factory=dict)
    registers: dict[str, list[int]] = field(default_factory=dict)
    histories: dict[str, list[int]] = field(default_factory=dict)  # Of registers: the values they were set to last.
    documents: dict[str, list[int]] = field(default_factory=dict)
    heads: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # Thread → branch → ids.
    parents: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # Thread → checkpoint id → ids.
    forms: dict[str, str] = field(default_factory=dict)  # Document → SHA-256 of its canonical form.

    def places(self) -> list[Place]:
        """Where numbers are found; a counter holds their sum only."""
        return [
            *(Place("save", name) for name in self.threads),
            *(Place("append", name) for name in self.journals),
            *(Place("assign", name) for name in self.registers),
            *(Place("edit", name) for name in self.documents),
        ]

    def entries(self, place: Place) -> Mapping[str, int]:
        return (self.threads if place.kind == "save" else self.journals).get(place.name, {})

    def numbers(self, place: Place) -> list[int]:
        match place.kind:
            case "save" | "append":
                return list(self.entries(place).values())
            case "assign":
                return self.registers.get(place.name, [])
            case "edit":
                return self.documents.get(place.name, [])
            case "add":
                return []

    def greatest(self, place: Place) -> int:
        """The counter's value, or the greatest number."""
        return self.counters.get(place.name, 0) if place.kind == "add" else max(self.numbers(place), default=0)


async def find(session: Session) -> Found:
    """Read everything in the trial's space."""
    found = Found()
    for name in await _names(session, "thread"):
        await _find_thread(session, name, found)
        found.journals[name] = await _journal(session, name)
    for name in await _names(session, "counter"):
        total = await session.call(requests.ReadCounter(SPACE, name))
        found.counters[name] = total.value
    for name in await _names(session, "register"):
        found.registers[name] = numbers_of(await session.call(requests.ReadRegister(SPACE, name)))
        past = await session.call(requests.ReadRegisterHistory(SPACE, name))
        found.histories[name] = [values.decode(noted.value) for noted in past.values]
    for name in await _names(session, "document"):
        state = await session.call(requests.ReadDocument(SPACE, name))
        found.documents[name] = _written_in(state)
        found.forms[name] = sha256(rebuilt(state).canonical()).hexdigest()
    return found


async def _names(session: Session, kind: ObjectKind) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        page = await session.call(requests.ListObjects(SPACE, kind, after=names[-1] if names else None))
        names += page.names
        more = page.more
    return [name for name in names if not name.startswith(PART)]


async def _find_thread(session: Session, name: str, found: Found) -> None:
    branches = await session.call(requests.Heads(SPACE, name))
    found.heads[name] = branches.branches
    numbers, parents = found.threads.setdefault(name, {}), found.parents.setdefault(name, {})
    for head in [head for heads in branches.branches.values() for head in heads]:
        async for point in _line(session, name, head, known=numbers):
            numbers[point.id] = _number_of(point.channels)
            parents[point.id] = point.parents


async def _line(session: Session, thread: str, head: str, *, known: Mapping[str, int]) -> AsyncIterator[requests.Checkpoint]:
    """The head, and what it descends from, down to what is known: the lines of a fork share most of what is below them."""
    if head in known:
        return
    newest = await session.call(requests.Load(SPACE, thread, head))
    yield newest
    oldest, more = newest, True
    while more and not known.keys() & oldest.parents:
        page = await session.call(requests.History(SPACE, thread, before=oldest.id, limit=500, channels=True))
        for oldest in page.items:
            if oldest.id in known:
                return
            yield oldest
        more = page.more


async def _journal(session: Session, thread: str) -> dict[str, int]:
    events: dict[str, int] = {}
    cursor, more = b"", True
    while more:
        page = await session.call(requests.ReadJournal(SPACE, thread, cursor))
        for event in page.events:
            number = values.decode(event.event)["number"]
            events[event.id] = number if event.event == event_of(number) else DAMAGED
        cursor, more = page.cursor, page.more
    return events


def _number_of(channels: Mapping[str, bytes]) -> int:
    number = values.decode(channels["step"]) if "step" in channels else DAMAGED
    return number if channels == channels_of(number) else DAMAGED


def _written_in(state: requests.DocumentState) -> list[int]:
    """The numbers that a document holds."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    doc.apply_update(state.update)
    roots: dict[str, Any] = {
        ROOT: doc.get(ROOT, type=pycrdt.Map),
        LISTED: doc.get(LISTED, type=pycrdt.Array),
        TOLD: doc.get(TOLD, type=pycrdt.Text),
    }
    return numbers_in({name: root.to_py() for name, root in roots.items()})


def numbers_in(content: Mapping[str, Any]) -> list[int]:
    """The numbers in a document's content. If the array and the text are used they must hold the same: an edit is one."""
    numbers = _ints(content.get(ROOT) or ())
    listed = _ints(content.get(LISTED) or ())
    told = _ints((content.get(TOLD) or "").split(";")[:-1])
    if (listed or told) and not sorted(numbers) == sorted(listed) == sorted(told):
        numbers.append(DAMAGED)
    return numbers


def _ints(written: Iterable[Any]) -> list[int]:
    return [int(each) if isinstance(each, float) or str(each).isdigit() else DAMAGED for each in written]


def rebuilt(state: requests.DocumentState) -> LiveDocument:
    # Nothing is bounded here: what a node serves, its judge reads.
    return LiveDocument(bytes_max=1 << 40, roots_max=1 << 20, built=Building(state.update), roots=state.roots)
