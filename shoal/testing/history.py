"""What clients did and saw: the history that the checkers judge a store by.

Laws:
- A write is noted before it is sent, its outcome after the answer. A write
  without an outcome is unknown, never failed: the process that waited for it,
  or the node that should have answered, is gone.
- A write's number is unique within a history and is the value that it writes,
  so that whatever is found in a store names the write that put it there.
- Values of one counter or register that were written by one writer only grow.
- Events are noted in the order in which the client learnt of them; a prefix of
  a history is the history as it was at that moment.
- A session that is named asks one thing at a time, but for its edits, whose
  outcome it never awaits before it reads another object: what it was told
  before a read is what the read has to show.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from shoal.crdt.dot import VersionVector
from shoal.crdt.journal import Cursor

WriteKind = Literal["save", "append", "add", "assign", "edit"]


class Place(NamedTuple):
    """An object by the kind of write that changes it: a thread's journal is not its checkpoints."""

    kind: WriteKind
    name: str


class Opening(msgspec.Struct, frozen=True, tag="opening"):
    """A store is about to be opened."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """An opening wrote under `origin` (hex)."""

    origin: str


class Invoked(msgspec.Struct, frozen=True, tag="invoked"):
    number: int
    kind: WriteKind
    name: str
    session: str = ""

    @property
    def place(self) -> Place:
        return Place(self.kind, self.name)


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    number: int
    id: str = ""  # Of the checkpoint or event.
    value: int = 0  # Of the counter, after an add.
    node: str = ""  # Who answered, as far as it is known.


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """`written` is what the error claimed: "no" is a promise, "unknown" is not."""

    number: int
    written: Literal["no", "yes", "unknown"]
    code: str
    node: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A read ended with an error."""

    session: str
    name: str
    code: str
    node: str = ""


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    """What one read showed a session.

    `ids` are a thread's heads, `value` is a counter's, `numbers` are a register's
    values, a document's entries, or events: all that there are if `whole`, else
    those that the session's earlier reads had not shown.
    """

    session: str
    kind: WriteKind
    name: str
    ids: list[str] = []
    numbers: list[int] = []
    value: int = 0
    whole: bool = True
    node: str = ""

    @property
    def place(self) -> Place:
        return Place(self.kind, self.name)


class LetGo(msgspec.Struct, frozen=True, tag="let-go"):
    """A session chose to go on from older state, of all objects that share a partition with `name`."""

    session: str
    name: str
    code: str  # Why it had to.


class SeenId(msgspec.Struct, frozen=True, tag="seen-id"):
    """A checkpoint or an event was shown, by a read or by a watch."""

    kind: Literal["save", "append"]
    name: str
    id: str


class SeenValue(msgspec.Struct, frozen=True, tag="seen-value"):
    """A counter's value, a register's, or the greatest number in a document was shown."""

    kind: Literal["add", "assign", "edit"]
    name: str
    value: int


class SeenCursor(msgspec.Struct, frozen=True, tag="seen-cursor"):
    """A journal's reader was told what it has got."""

    name: str
    cursor: bytes


Event = Opening | Opened | Invoked | Acknowledged | Failed | Refused | Shown | LetGo | SeenId | SeenValue | SeenCursor

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def to_line(event: Event) -> bytes:
    return _encoder.encode(event) + b"\n"


def read_line(line: bytes) -> Event:
    """
    Raises:
        msgspec.DecodeError: the line is no event.
    """
    event: Event = _decoder.decode(line)
    return event


def amount(number: int) -> int:
    """What the write `number` adds to a counter: never 0, and never the same for all."""
    return 1 + number % 7


class History:
    """Events in order, and what follows from them."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self.writes: dict[int, Invoked] = {}
        self.acknowledged: dict[int, Acknowledged] = {}
        self.failed: dict[int, Failed] = {}
        self.seen_ids: defaultdict[Place, set[str]] = defaultdict(set)
        self.seen_values: defaultdict[Place, int] = defaultdict(int)
        self.seen_numbers: defaultdict[Place, set[int]] = defaultdict(set)
        self.seen_vectors: defaultdict[str, VersionVector] = defaultdict(VersionVector)  # By the journal's name.
        self.origins: list[str] = []
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        for event in events:
            self.note(event)

    @property
    def seen(self) -> int:
        """How many things were shown: ids, numbers, and the last value of each counter, register and document."""
        shown = sum(map(len, self.seen_ids.values())) + sum(map(len, self.seen_numbers.values()))
        return shown + len(self.seen_values)

    @property
    def unknown(self) -> list[Invoked]:
        """Writes that may or may not have happened."""
        failed = {number for number, failure in self.failed.items() if failure.written == "no"}
        return [write for number, write in self.writes.items() if number not in self.acknowledged and number not in failed]

    @property
    def next_number(self) -> int:
        return max(self.writes, default=0) + 1

    def note(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Invoked():
                self.writes[event.number] = event
            case Acknowledged():
                self.acknowledged[event.number] = event
                self._wake()
            case Failed():
                self.failed[event.number] = event
            case SeenId():
                self.seen_ids[Place(event.kind, event.name)].add(event.id)
            case SeenValue():
                self._see_value(Place(event.kind, event.name), event.value)
            case Shown():
                self._see(event)
            case SeenCursor():
                vector = Cursor.unpack(event.cursor).vector
                self.seen_vectors[event.name] = self.seen_vectors[event.name].join(vector)
            case Opened():
                self.origins.append(event.origin)

    def _see(self, shown: Shown) -> None:
        match shown.kind:
            case "save":
                self.seen_ids[shown.place].update(shown.ids)
            case "append" | "edit":
                self.seen_numbers[shown.place].update(shown.numbers)
            case "assign":
                self._see_value(shown.place, max(shown.numbers, default=0))
            case "add":
                self._see_value(shown.place, shown.value)

    def _see_value(self, place: Place, value: int) -> None:
        self.seen_values[place] = max(self.seen_values[place], value)

    async def grown(self, acknowledgements: int) -> None:
        """Return once that many more writes were acknowledged."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((len(self.acknowledged) + acknowledgements, future))
        self._wake()
        await future

    def _wake(self) -> None:
        waiting, self._awaited = self._awaited, []
        for count, future in waiting:
            if count > len(self.acknowledged):
                self._awaited.append((count, future))
            elif not future.done():
                future.set_result(None)
