"""What a client finds in a store, read through its door: the other half of what the checkers judge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from shoal import values
from shoal.protocol import requests
from shoal.protocol.requests import ObjectKind
from shoal.protocol.session import Session
from shoal.testing.agents import SPACE, channels_of, event_of, numbers_of, written_in
from shoal.testing.history import Place

DAMAGED = -1
"""Stands for the number of an entry whose content is not what any write would have written."""


@dataclass(slots=True)
class Found:
    threads: dict[str, dict[str, int]] = field(default_factory=dict)  # Name → checkpoint id → number.
    journals: dict[str, dict[str, int]] = field(default_factory=dict)  # Name → event id → number.
    counters: dict[str, int] = field(default_factory=dict)
    registers: dict[str, list[int]] = field(default_factory=dict)
    documents: dict[str, list[int]] = field(default_factory=dict)

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
        found.threads[name] = {point.id: _number_of(point.channels) async for point in _checkpoints(session, name)}
        found.journals[name] = await _journal(session, name)
    for name in await _names(session, "counter"):
        total = await session.call(requests.ReadCounter(SPACE, name))
        assert isinstance(total, requests.CounterValue)
        found.counters[name] = total.value
    for name in await _names(session, "register"):
        found.registers[name] = numbers_of(await session.call(requests.ReadRegister(SPACE, name)))
    for name in await _names(session, "document"):
        state = await session.call(requests.ReadDocument(SPACE, name))
        assert isinstance(state, requests.DocumentState)
        found.documents[name] = written_in(state.update)
    return found


async def _names(session: Session, kind: ObjectKind) -> list[str]:
    page = await session.call(requests.ListObjects(SPACE, kind))
    assert isinstance(page, requests.Names)
    assert not page.more, "a trial has few objects"
    return page.names


async def _checkpoints(session: Session, thread: str) -> AsyncIterator[requests.Checkpoint]:
    """All that descend into a head, on every branch; those below a fork come more than once."""
    branches = await session.call(requests.Heads(SPACE, thread))
    assert isinstance(branches, requests.Branches)
    for head in {head for heads in branches.branches.values() for head in heads}:
        newest = await session.call(requests.Load(SPACE, thread, head))
        assert isinstance(newest, requests.Checkpoint)
        yield newest
        before, more = head, True
        while more:
            page = await session.call(requests.History(SPACE, thread, before=before, limit=500, channels=True))
            assert isinstance(page, requests.Checkpoints)
            for older in page.items:
                yield older
                before = older.id
            more = page.more


async def _journal(session: Session, thread: str) -> dict[str, int]:
    events: dict[str, int] = {}
    cursor, more = b"", True
    while more:
        page = await session.call(requests.ReadJournal(SPACE, thread, cursor))
        assert isinstance(page, requests.Events)
        for event in page.events:
            number = values.decode(event.event)["number"]
            events[event.id] = number if event.event == event_of(number) else DAMAGED
        cursor, more = page.cursor, page.more
    return events


def _number_of(channels: Mapping[str, bytes]) -> int:
    number = values.decode(channels["step"]) if "step" in channels else DAMAGED
    return number if channels == channels_of(number) else DAMAGED
