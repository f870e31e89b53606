"""What clients did and saw: the history that the checkers judge a store by.

Laws:
- A write is noted before it is sent, its outcome after the answer. A write
  without an outcome is unknown, never failed: the process that waited for it,
  or the node that should have answered, is gone.
- A write's number is unique within a history and is the value that it writes,
  so that whatever is found in a store names the write that put it there.
- Values of one counter or register that were written by one writer only grow.
- A write that was sent again, with its key, by another session is one write with
  several attempts: one acknowledgement will do, and it takes as many refusals
  as attempts to say that nothing was written.
- Events are noted in the order in which the client learnt of them; a prefix of
  a history is the history as it was at that moment.
- A session that is named asks one thing at a time, but for its edits, whose
  outcome it never awaits before it reads another object: what it was told
  before a read is what the read has to show.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

import msgspec

from shoal.crdt.dot import VersionVector
from shoal.kinds.journal.state.journal import Cursor
from shoal.protocol.requests import Durability
from simulation.judging.amounts import counted, is_nth_amount

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
    """`over`, of an assignment, are the values that its writer had seen; None: it is the register's only writer.

    Of the adds or appends to one object with one `key`, one counts. `by` is what an add adds; 0: `amount(number)`.
    `batch` is the same for writes that were one request; 0: it was one by itself.
    """

    number: int
    kind: WriteKind
    name: str
    session: str = ""
    durability: Durability = "local"
    key: str = ""
    by: int = 0
    over: list[int] | None = None
    batch: int = 0

    @property
    def place(self) -> Place:
        return Place(self.kind, self.name)


class Resent(msgspec.Struct, frozen=True, tag="resent"):
    """The same request is sent again, with its key, by a session that does not know what came of it."""

    number: int


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    number: int
    id: str = ""  # Of the checkpoint or event.
    value: int = 0  # Of the counter, after an add.
    node: str = ""  # Who answered, as far as it is known.
    at_s: float = 0.0
    again: bool = False  # To whom it was resent by; not to the session that wrote it.


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
    at_s: float = 0.0

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


Event = Opening | Opened | Invoked | Resent | Acknowledged | Failed | Refused | Shown | LetGo | SeenId | SeenValue | SeenCursor

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
        self.answers: defaultdict[int, list[Acknowledged]] = defaultdict(list)  # Of each write, one by attempt.
        self.seen_ids: defaultdict[Place, set[str]] = defaultdict(set)
        self.seen_values: defaultdict[Place, int] = defaultdict(int)
        self.seen_sums: defaultdict[Place, set[int]] = defaultdict(set)  # Every value that a counter showed.
        self.seen_numbers: defaultdict[Place, set[int]] = defaultdict(set)
        self.seen_vectors: defaultdict[str, VersionVector] = defaultdict(VersionVector)  # By the journal's name.
        self.origins: list[str] = []
        self._attempts: Counter[int] = Counter()  # Those that were not refused with nothing written.
        self._shared: set[Place] = set()  # Registers with several writers.
        self._replacing: defaultdict[tuple[Place, int], list[int]] = defaultdict(list)  # By what they replace in a register.
        self._by_amount: defaultdict[Place, dict[int, int]] = defaultdict(dict)  # Adds to a counter: their numbers.
        self._inexact: set[Place] = set()  # Counters of which some adds have no amount of their own.
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
        return [write for number, write in self.writes.items() if number not in self.acknowledged and self._attempts[number]]

    @property
    def refused(self) -> list[Invoked]:
        """Writes of which every attempt ended with an error that says that nothing was written."""
        return [
            write for number, write in self.writes.items() if number not in self.acknowledged and not self._attempts[number]
        ]

    @property
    def next_number(self) -> int:
        return max(self.writes, default=0) + 1

    def note(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Invoked():
                self.writes[event.number] = event
                self._attempts[event.number] += 1
                if event.over is not None:
                    self._take_over(event, event.over)
                if event.kind == "add":
                    self._take_amount(event)
            case Resent():
                self._attempts[event.number] += 1
            case Acknowledged():
                self.acknowledged.setdefault(event.number, event)
                self.answers[event.number].append(event)
                self._wake()
            case Failed():
                self.failed[event.number] = event
                self._attempts[event.number] -= event.written == "no"
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

    def _take_over(self, write: Invoked, over: list[int]) -> None:
        self._shared.add(write.place)
        for number in over:
            self._replacing[write.place, number].append(write.number)

    def _take_amount(self, add: Invoked) -> None:
        if add.key or not is_nth_amount(add.by) or add.by in self._by_amount[add.place]:
            self._inexact.add(add.place)
        self._by_amount[add.place][add.by] = add.number

    def _see(self, shown: Shown) -> None:
        match shown.kind:
            case "save":
                self.seen_ids[shown.place].update(shown.ids)
            case "append" | "edit":
                self.seen_numbers[shown.place].update(shown.numbers)
            case "assign" if shown.place in self._shared:
                self.seen_numbers[shown.place].update(shown.numbers)
            case "assign":
                self._see_value(shown.place, max(shown.numbers, default=0))
            case "add":
                self._see_value(shown.place, shown.value)

    def _see_value(self, place: Place, value: int) -> None:
        self.seen_values[place] = max(self.seen_values[place], value)
        if place.kind == "add":
            self.seen_sums[place].add(value)

    def amount(self, number: int) -> int:
        """What an add adds."""
        return self.writes[number].by or amount(number)

    def adds_in(self, place: Place, value: int) -> dict[int, int] | None:
        """How often each add counts in a counter's value, by number; None: the value does not say.

        What nobody added counts under the number 0.
        """
        if place in self._inexact or place not in self._by_amount:
            return None
        times: Counter[int] = Counter()
        for added, count in counted(value):
            times[self._by_amount[place].get(added, 0)] += count
        return times

    def is_held(self, place: Place, number: int, held: Collection[int]) -> bool:
        """Whether a register that holds these values holds this one, or what replaced it.

        Values of a sole writer only grow. One that shares its register replaces what it had seen, and nothing else:
        then what replaced this value is there, or was replaced itself by what is there.
        """
        if place not in self._shared:
            return number in held or max(held, default=0) > number
        known, left = {number}, [number]
        while left:
            if (here := left.pop()) in held:
                return True
            left += [other for other in self._replacing[place, here] if other not in known]
            known.update(left)
        return False

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
