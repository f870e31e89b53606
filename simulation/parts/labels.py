"""Notes that agents write beside labels, and drop with them, as a graph does with its pending writes.

Laws:
- A note that was acknowledged is beside its label until somebody drops the label (3). What is read was written (10).
- What an agent dropped is not read again, whatever came late, and no disk keeps a row of it, once all hold that (15).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random

from shoal.errors import ShoalError
from shoal.kinds.label.state import Note
from shoal.protocol import requests
from shoal.protocol.requests import Annotate, Unlabel
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_WRITTEN_MAX = 4  # Notes beside a label; then the agent goes on with another one.


@dataclass(slots=True)
class Label:
    """A label of one agent, who alone writes beside it. `notes` are by number; None: it may not have been written."""

    thread: str
    name: str
    notes: dict[int, Told | None] = field(default_factory=dict)
    is_doubtful: bool = False  # One of its writes may have left twice: a node may have it after the label was dropped.
    is_dropped: bool = False  # Or may have been.
    dropped: Told | None = None


class Labels:
    kinds: tuple[ActKind, ...] = ("annotate", "unlabel")

    def __init__(self) -> None:
        self.labels: list[Label] = []
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"annotate": agent.annotate, "unlabel": agent.unlabel}

    def erased(self, losses: Losses) -> Collection[bytes]:
        """Labels beside which no disk may hold a note."""
        return [label.name.encode() for label in self.labels if _is_gone(label, losses)]

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for label in self.labels:
            shown = await _read(session, label)
            lost = [number for number, told in label.notes.items() if told is not None and told.is_owed(losses)]
            if not label.is_dropped and not shown.issuperset(lost):
                found.append(Violation("3", f"notes {lost} of {label.name} were acknowledged, and {sorted(shown)} are there"))
            if not shown <= label.notes.keys():
                found.append(Violation("10", f"{label.name} shows what nobody wrote: {sorted(shown)}"))
            if shown and _is_gone(label, losses):
                found.append(Violation("15", f"{label.name} was dropped, and shows {sorted(shown)}"))
        return found


def _is_gone(label: Label, losses: Losses) -> bool:
    return label.dropped is not None and label.dropped.is_owed(losses) and not label.is_doubtful


async def _read(session: Session, label: Label) -> set[int]:
    """The notes beside a label, which can be read as long as it names a checkpoint."""
    page = await session.call(requests.ReadLabels(SPACE, label.thread, label=label.name, notes=True))
    return {int(note.name) for item in page.items for note in item.notes if note.value == _value(int(note.name))}


def _value(number: int) -> bytes:
    return b"note %d" % number


class _Agent:
    def __init__(self, labels: Labels, bench: Bench) -> None:
        self._labels = labels
        self._bench = bench
        self._name = f"{bench.name}/{bench.client.name}"
        self._thread = bench.space.thread(self._name)
        self._label: Label | None = None

    async def annotate(self, act: Act, random: Random) -> None:
        label = self._label or await self._begun(act)
        if len(label.notes) >= _WRITTEN_MAX:
            self._label = None  # The next one is beside another label.
        number = next(self._labels.numbers)
        label.notes[number] = None
        request = Annotate(SPACE, label.thread, label.name, [Note(b"%d" % number, _value(number))])
        key = f"note-{number}"

        async def send() -> None:
            await self._bench.client.session.call(request, key=key, durability=act.durability)
            label.notes[number] = self._bench.told(act.durability)

        try:
            label.is_doubtful |= not await self._bench.send(act, random, send, of=Annotate)
        except ShoalError as error:
            label.is_doubtful = True
            self._bench.refused(error)
            raise
        self._bench.did(f"note {number} beside {label.name}")

    async def unlabel(self, act: Act, random: Random) -> None:
        mine = [label for label in self._labels.labels if label.thread == self._name and not label.is_dropped]
        if not mine:
            return
        label = random.choice(mine)
        label.is_dropped = True
        if label is self._label:
            self._label = None

        async def send() -> None:
            await self._bench.client.session.call(
                Unlabel(SPACE, label.thread, [label.name]), key=f"drop-{label.name}", durability=act.durability
            )
            label.dropped = self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, send, of=Unlabel)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._bench.did(f"drop {label.name} and {len(label.notes)} notes")

    async def _begun(self, act: Act) -> Label:
        """A label of a new checkpoint."""
        name = f"label-{next(self._labels.numbers):06}"  # None is a part of another.
        try:
            await self._thread.save({"label": name}, label=name, durability=act.durability)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self._label = Label(self._name, name)
        self._labels.labels.append(self._label)
        return self._label
