"""Reads of several objects of one partition, as of one moment: `async with space.read() as read:`.

    async with space.read() as read:
        plan = read.thread("{crew-7}/planner").load()
        tokens = read.counter("{crew-7}/tokens").value()
    plan.value.state, tokens.value

Laws:
- All reads see one vector of the partition, with no operation between them, so the writes of one batch are
  seen all or not at all.
- Nothing is requested before the block ends. A read that fails raises when its value is taken; the others have values.
- The handles here have no position, and do not change that of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput, ShoalError, from_wire
from shoal.kinds.items.handle.item import Item, shown, split
from shoal.kinds.journal.flows import Event, shown_event
from shoal.kinds.list.handle import ListItem, shown_element
from shoal.kinds.list.requests import ReadList
from shoal.kinds.map.handle import Entry
from shoal.kinds.step.flows import StepRecord, record_of
from shoal.kinds.step.handle.resume import Standing, standing_of
from shoal.kinds.thread.flows.checkpoints import Checkpoint, shown_checkpoint
from shoal.kinds.worklist.handle.worklist import Message, WorklistItem, WorklistProgress, shown_item, shown_message
from shoal.kinds.worklist.state import INBOX
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests.families import PartRead

R = TypeVar("R")


class Found(Generic[R]):
    """The result of a read, available after the block has ended."""

    def __init__(self, decode: Callable[[Any], R]) -> None:
        self._decode = decode
        self._reply: object = None

    @property
    def value(self) -> R:
        """The result, decoded anew at each access.

        Raises:
            InvalidInput: the block has not ended.
            ShoalError: the error that this read alone would have raised.
        """
        if self._reply is None:
            raise InvalidInput("nothing has been read yet: take the value after `async with space.read()`.")
        if isinstance(self._reply, ShoalError):
            raise self._reply
        return self._decode(self._reply)

    def settle(self, reply: object) -> None:
        """Set the read's reply, or its error."""
        refused = isinstance(reply, requests.Refused)
        self._reply = from_wire(reply.code, reply.message, reply.detail, "no") if refused else reply  # type: ignore[attr-defined]


@named
class Reading:
    """Collects reads and sends all of them at the end of the block."""

    def __init__(self, connection: StoreConnection, space: str, *, stale: bool) -> None:
        self._connection = connection
        self._space = space
        self._stale = stale
        self._reads: list[PartRead] = []
        self._found: list[Found[Any]] = []

    async def __aenter__(self) -> Reading:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.ask()

    def thread(self, name: str) -> ThreadReading:
        """Read from a thread."""
        return ThreadReading(self, self._space, name)

    def counter(self, name: str) -> CounterReading:
        """Read a counter."""
        return CounterReading(self, self._space, name)

    def register(self, name: str) -> RegisterReading:
        """Read a register."""
        return RegisterReading(self, self._space, name)

    def list(self, name: str) -> ListReading:
        """Read a list."""
        return ListReading(self, self._space, name)

    def map(self, name: str) -> MapReading:
        """Read from a map."""
        return MapReading(self, self._space, name)

    def remaining(self, budget: str) -> Found[int]:
        """The amount of a budget that is not spent yet."""
        return self.add(requests.ReadBudget(self._space, budget), lambda reply: int(reply.remaining))

    def set(self, name: str) -> SetReading:
        """Read from a set."""
        return SetReading(self, self._space, name)

    def document(self, name: str) -> Found[Any]:
        """The document as JSON values; NotFound if there is none."""
        return self.add(requests.ReadDocumentJson(self._space, name), lambda reply: msgspec.json.decode(reply.json))

    @property
    def items(self) -> ItemsReading:
        """Read memory items."""
        return ItemsReading(self, self._space)

    def add(self, read: PartRead, decode: Callable[[Any], R]) -> Found[R]:
        """Add a read; `decode` converts its reply to the value."""
        self._reads.append(read)
        self._found.append(Found(decode))
        return self._found[-1]

    async def ask(self) -> None:
        """Send the collected reads; if there are none, do nothing.

        Raises:
            SpansPartitions: the objects do not share a partition.
            TooLarge: the results do not fit one answer.
        """
        if not self._reads:
            return
        reads, found = self._reads, self._found
        self._reads, self._found = [], []
        reply = await self._connection.read(requests.MultiRead(reads), stale=self._stale)
        for each, answer in zip(found, reply.replies, strict=True):
            each.settle(answer)


@named
class ThreadReading:
    """The reads of a thread that can be part of a `Reading`."""

    def __init__(self, reading: Reading, space: str, name: str) -> None:
        self._reading, self._space, self._name = reading, space, name

    def load(
        self,
        checkpoint: str | None = None,
        *,
        branch: str = "main",
        label: str | None = None,
        channels: Iterable[str] | None = None,
    ) -> Found[Checkpoint]:
        """A checkpoint by id or label, or the branch's winner; NotFound if there is none."""
        named = None if channels is None else list(channels)
        request = requests.Load(self._space, self._name, checkpoint, branch, channels=named, label=label)
        return self._reading.add(request, lambda reply: shown_checkpoint(reply, channels=True))

    def heads(self) -> Found[dict[str, list[str]]]:
        """Branch name → ids of its heads, the winner first."""
        return self._reading.add(requests.Heads(self._space, self._name), lambda reply: dict(reply.branches))

    def events(self, *, after: bytes | None = None, limit: int = 1000) -> Found[list[Event]]:
        """The first `limit` events of the journal that `after` does not cover."""
        request = requests.ReadJournal(self._space, self._name, after or b"", limit)
        return self._reading.add(
            request,
            lambda reply: [shown_event(event) for event in reply.events],
        )

    def steps(self, *, open: bool = False, limit: int = 1000) -> Found[list[StepRecord]]:
        """The first `limit` steps; only open ones if `open`."""
        request = requests.ListSteps(self._space, self._name, open, limit=limit)
        return self._reading.add(request, lambda reply: [record_of(step) for step in reply.items])

    def status(self) -> Found[Standing]:
        """The status of the thread."""
        return self._reading.add(requests.ReadStanding(self._space, self._name), standing_of)

    def inbox(self, *, limit: int = 1000) -> Found[list[Message]]:
        """The first `limit` waiting messages."""
        request = requests.ReadQueue(self._space, self._name, INBOX, limit=limit)
        return self._reading.add(request, lambda reply: [shown_message(entry) for entry in reply.entries])

    def worklist(self, name: str) -> WorklistReading:
        """Read from a worklist of the thread."""
        return WorklistReading(self._reading, self._space, self._name, name)


@named
class WorklistReading:
    """The reads of a worklist that can be part of a `Reading`."""

    def __init__(self, reading: Reading, space: str, thread: str, name: str) -> None:
        self._reading, self._space, self._thread = reading, space, thread
        self._name = check_name("worklist", name)

    def pending(self, *, limit: int = 1000) -> Found[list[WorklistItem]]:
        """The first `limit` items that are to be done."""
        request = requests.ReadQueue(self._space, self._thread, self._name, limit=limit)
        return self._reading.add(request, lambda reply: [shown_item(entry) for entry in reply.entries])

    def progress(self) -> Found[WorklistProgress]:
        """How many items are pending and done."""
        request = requests.ReadQueue(self._space, self._thread, self._name, limit=1)
        return self._reading.add(request, lambda reply: WorklistProgress(reply.pending, reply.finished))


@named
class CounterReading:
    """The read of a counter."""

    def __init__(self, reading: Reading, space: str, name: str) -> None:
        self._reading, self._space, self._name = reading, space, name

    def value(self) -> Found[int]:
        """The counter's value."""
        return self._reading.add(requests.ReadCounter(self._space, self._name), lambda reply: int(reply.value))


@named
class RegisterReading:
    """The read of a register."""

    def __init__(self, reading: Reading, space: str, name: str) -> None:
        self._reading, self._space, self._name = reading, space, name

    def get(self) -> Found[Any]:
        """The latest value, or None."""
        return self._reading.add(
            requests.ReadRegister(self._space, self._name),
            lambda reply: values.decode(reply.siblings[0].value) if reply.siblings else None,
        )

    def siblings(self) -> Found[list[Any]]:
        """All concurrent values, the latest first."""
        return self._reading.add(
            requests.ReadRegister(self._space, self._name),
            lambda reply: [values.decode(sibling.value) for sibling in reply.siblings],
        )


@named
class SetReading:
    """The reads of a set that can be part of a `Reading`."""

    def __init__(self, reading: Reading, space: str, name: str) -> None:
        self._reading, self._space, self._name = reading, space, name

    def members(self, *, limit: int = 1000) -> Found[list[Any]]:
        """The first `limit` members, in the order of their bytes; `size` counts all."""
        request = requests.ReadSet(self._space, self._name, limit=limit)
        return self._reading.add(request, lambda reply: [values.decode(member) for member in reply.members])

    def size(self) -> Found[int]:
        """The number of members."""
        return self._reading.add(requests.ReadSet(self._space, self._name, limit=1), lambda reply: int(reply.size))


@named
class ListReading:
    """The reads of a list that can be part of a `Reading`."""

    def __init__(self, reading: Reading, space: str, name: str) -> None:
        self._reading, self._space, self._name = reading, space, name

    def items(self, *, start: int = 0, limit: int = 1000) -> Found[list[ListItem]]:
        """The first `limit` elements from an index on."""
        request = ReadList(self._space, self._name, start, limit=limit)
        return self._reading.add(request, lambda reply: [shown_element(element) for element in reply.elements])

    def size(self) -> Found[int]:
        """The number of elements."""
        return self._reading.add(ReadList(self._space, self._name, limit=1), lambda reply: int(reply.size))


@named
class MapReading:
    """The reads of a map that can be part of a `Reading`."""

    def __init__(self, reading: Reading, space: str, name: str) -> None:
        self._reading, self._space, self._name = reading, space, name

    def entry(self, key: str) -> Found[Entry | None]:
        """The values of the key, or None."""
        request = requests.ReadMap(self._space, self._name, [key])
        return self._reading.add(request, lambda reply: Entry.of(reply.entries[0]) if reply.entries else None)

    def entries(self, prefix: str = "", *, limit: int = 1000) -> Found[list[Entry]]:
        """The first `limit` entries, in the order of their keys."""
        request = requests.ReadMap(self._space, self._name, prefix=prefix, limit=limit)
        return self._reading.add(request, lambda reply: [Entry.of(entry) for entry in reply.entries])


@named
class ItemsReading:
    """The reads of memory items that can be part of a `Reading`."""

    def __init__(self, reading: Reading, space: str) -> None:
        self._reading, self._space = reading, space

    def get(self, namespace: Sequence[str], key: str) -> Found[Item | None]:
        """The item, or None if it does not exist or has expired."""
        label, rest = split(namespace)
        request = requests.GetItems(self._space, label, [(rest, key)])
        return self._reading.add(request, lambda reply: None if reply.items[0] is None else shown(reply.items[0]))
