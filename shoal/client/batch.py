"""A batch: writes to objects of one partition, as one operation, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Never, TypeVar

from msgspec.structs import replace

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.client.items.item import delete_request, put_request
from shoal.client.thread.consumers import Consumer
from shoal.client.thread.inbox import Message, take_request
from shoal.client.thread.saves import OnConflict, check_overwrite, forks
from shoal.client.thread.step_log import Step
from shoal.client.thread.worklist import WorklistItem, done_request
from shoal.client.values.maps import Entry
from shoal.client.values.maps import put_request as map_put_request
from shoal.client.values.scalars import RegisterState
from shoal.client.values.sets import alter_request, packed_elements
from shoal.crdt.thread.queue import INBOX
from shoal.errors import InvalidInput
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, BatchWrite, Durability
from shoal.workflows.checkpoint import encode_appended, encode_channels, encode_metadata
from shoal.workflows.events import Event

R = TypeVar("R")


class Pending(Generic[R]):
    """A reply that is available when the batch is durable."""

    def __init__(self, settled: Callable[[R], None] | None = None) -> None:
        self._reply: R | None = None
        self._settled = settled

    @property
    def reply(self) -> R:
        """The reply to this write.

        Raises:
            InvalidInput: the batch is not committed.
        """
        if self._reply is None:
            raise InvalidInput("the batch is not committed. Read the reply after `async with space.batch()`.")
        return self._reply

    def settle(self, reply: Any) -> None:
        """Set the write's reply."""
        self._reply = reply
        if self._settled is not None:
            self._settled(reply)


@named
class Batch:
    """`async with space.batch() as b:` commits at the end of the block. If the block raises, nothing is written."""

    def __init__(self, connection: StoreConnection, space: str, *, key: str | None, durability: Durability | None) -> None:
        self._connection = connection
        self._space = space
        self._key = key
        self._durability = durability
        self._writes: list[BatchWrite] = []
        self._pending: list[Pending[Any]] = []
        self._begun: set[tuple[str, str]] = set()  # Threads and branches whose whole state this batch has saved.

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            await self.commit()

    def thread(self, name: str) -> BatchThread:
        """Write to a thread within this batch."""
        return BatchThread(self, self._space, name)

    def counter(self, name: str) -> BatchCounter:
        """Write to a counter within this batch."""
        return BatchCounter(self, self._space, name)

    def register(self, name: str) -> BatchRegister:
        """Write to a register within this batch."""
        return BatchRegister(self, self._space, name)

    def set(self, name: str) -> BatchSet:
        """Write to a set within this batch."""
        return BatchSet(self, self._space, name)

    def map(self, name: str) -> BatchMap:
        """Write to a map within this batch."""
        return BatchMap(self, self._space, name)

    def budget(self, name: str) -> BatchBudget:
        """Write to a budget within this batch."""
        return BatchBudget(self, self._space, name)

    @property
    def items(self) -> BatchItems:
        """Write to memory items within this batch."""
        return BatchItems(self, self._space)

    def add(self, write: BatchWrite, settled: Callable[[Any], None] | None = None) -> Pending[Any]:
        """Add a write; `settled` is called with its reply."""
        self._writes.append(write)
        self._pending.append(Pending(settled))
        return self._pending[-1]

    def add_whole(self, save: requests.Save, *, overwrite: bool) -> Pending[requests.Saved]:
        """Add a save of a whole state. Without a parent it builds on this batch's last save, or on no checkpoint."""
        place = save.thread, save.branch
        named = save.parent is not None or save.expect_head is not None
        if not (named or overwrite or place in self._begun):
            save = replace(save, parent=NO_HEAD)
        self._begun.add(place)
        return self.add(save)

    async def commit(self) -> None:
        """Commit the collected writes; an empty batch does nothing.

        Raises:
            SpansPartitions: the objects do not share a partition; nothing was written.
        """
        if not self._writes:
            return
        writes, pending = self._writes, self._pending
        self._writes, self._pending = [], []
        self._begun.clear()
        reply = await self._connection.write(requests.Batch(list(writes)), key=self._key, durability=self._durability)
        for waiting, answer in zip(pending, reply.replies, strict=True):
            waiting.settle(answer)


@named
class BatchThread:
    """The writes to a thread that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def save(
        self,
        state: Mapping[str, Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        branch: str = "main",
        parent: str | None = None,
        expect_head: str | None = None,
        on_conflict: OnConflict = "refuse",
        overwrite: bool = False,
    ) -> Pending[requests.Saved]:
        """Save a whole state, as `Thread.save` of a handle that has loaded nothing: it begins a branch.

        If the branch exists, name the checkpoint that the save builds on (`parent=cp.id` or
        `expect_head=cp.id`), or pass `overwrite=True`. Otherwise the batch is rejected (`HeadMoved`).
        """
        check_overwrite(overwrite, parent=parent, expect_head=expect_head, on_conflict=on_conflict)
        channels, packed, fork = encode_channels(state), encode_metadata(metadata), forks(on_conflict)
        save = requests.Save(self._space, self._name, channels, packed, branch, parent, expect_head, fork=fork)
        return self._batch.add_whole(save, overwrite=overwrite)

    def update(
        self,
        changes: Mapping[str, Any] | None = None,
        *,
        append: Mapping[str, Iterable[Any]] | None = None,
        remove: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        branch: str = "main",
        parent: str | None = None,
        expect_head: str | None = None,
        on_conflict: OnConflict = "refuse",
    ) -> Pending[requests.Saved]:
        """Save a change of the branch's winner, or of `parent` or `expect_head`; otherwise as `Thread.update`."""
        request = requests.Save(
            self._space,
            self._name,
            encode_channels(changes or {}),
            encode_metadata(metadata),
            branch,
            parent,
            expect_head,
            delta=True,
            appended=encode_appended(append or {}),
            removed=list(remove),
            fork=forks(on_conflict),
        )
        return self._batch.add(request)

    def append(self, channel: str, element: Any) -> Pending[requests.Saved]:
        """Append an element to the list of a channel: see `update`."""
        return self.update(append={channel: [element]})

    @property
    def journal(self) -> BatchJournal:
        """Append to the thread's journal within this batch."""
        return BatchJournal(self._batch, self._space, self._name)

    def ack(self, consumer: Consumer, event: Event) -> Pending[requests.ConsumerState]:
        """Acknowledge an event together with its effects: see `Journal.consumer`."""
        return self._batch.add(requests.Ack(self._space, self._name, consumer.name, event.cursor, consumer.generation))

    def send(self, message: Any, *, key: str | None = None, by: str = "") -> Pending[requests.Enqueued]:
        """Send a message to the thread's inbox."""
        item = requests.QueueItem(key, values.encode(message, where="message"))
        return self._batch.add(requests.Enqueue(self._space, self._name, INBOX, [item], by))

    def take(self, message: Message, *, by: str = "") -> Pending[requests.Dequeued]:
        """Take a message together with its effects; if another agent has already taken it, nothing of
        the batch is written.
        """
        return self._batch.add(take_request(self._space, self._name, message, by=by))

    def finish(self, step: Step, result: Any = None) -> Pending[requests.Step]:
        """Write the result of a step together with other writes; the block of `thread.begin`
        then writes nothing more.

        If the batch is rejected, the block writes the result alone, because the effect has happened.

        Raises:
            InvalidInput: the step belongs to another thread, or already has a result.
            InvalidValue: the result cannot be serialised.
        """
        return self._batch.add(step.result_request(self._space, self._name, result), step.settle)

    def done(self, worklist: str, item: WorklistItem | str, *, result: Any = None, by: str = "") -> Pending[requests.Dequeued]:
        """Mark an item of a worklist as done, together with its effects."""
        return self._batch.add(done_request(self._space, self._name, worklist, item, result=result, by=by))


@named
class BatchJournal:
    """The writes to a journal that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def append(self, event: Any, *, key: str | None = None) -> Pending[requests.Appended]:
        """Append an event: see `Journal.append`."""
        return self._batch.add(requests.Append(self._space, self._name, values.encode(event, where="event"), key))


@named
class BatchCounter:
    """The writes to a counter that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def add(self, amount: int = 1, *, key: str | None = None) -> Pending[requests.Added]:
        """Add to the counter: see `Counter.add`."""
        return self._batch.add(requests.Add(self._space, self._name, amount, key))


@named
class BatchRegister:
    """The writes to a register that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def set(self, value: Any, *, expect: RegisterState | str | None = None) -> Pending[requests.Assigned]:
        """Assign a value. If the register is not as `expect` says (see `Register.set`), nothing of the batch is written."""
        expected = expect.version if isinstance(expect, RegisterState) else expect
        packed = values.encode(value, where="value")
        return self._batch.add(requests.Assign(self._space, self._name, packed, None, expected))


@named
class BatchSet:
    """The writes to a set that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def add(self, *elements: Any) -> Pending[requests.SetAltered]:
        """Add elements: see `SharedSet.add`."""
        return self._batch.add(alter_request(self._space, self._name, add=elements))

    def remove(self, *elements: Any) -> Pending[requests.SetAltered]:
        """Remove elements: see `SharedSet.remove`."""
        return self._batch.add(alter_request(self._space, self._name, remove=elements))


@named
class BatchMap:
    """The writes to a map that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def set(self, key: str, value: Any, *, expect: Entry | str | None = None) -> Pending[requests.EntryPut]:
        """Assign a value to a key: see `SharedMap.set`."""
        return self._batch.add(map_put_request(self._space, self._name, key, value, expect=expect))

    def add(self, key: str, amount: int = 1) -> Pending[requests.EntryAdded]:
        """Add to the counter under a key: see `SharedMap.add`."""
        return self._batch.add(requests.AddEntry(self._space, self._name, key, amount))

    def include(self, key: str, *elements: Any) -> Pending[requests.SetAltered]:
        """Add elements to the set under a key: see `SharedMap.include`."""
        return self._batch.add(requests.AlterEntry(self._space, self._name, key, packed_elements(elements)))

    def exclude(self, key: str, *elements: Any) -> Pending[requests.SetAltered]:
        """Remove elements from the set under a key: see `SharedMap.exclude`."""
        return self._batch.add(requests.AlterEntry(self._space, self._name, key, [], packed_elements(elements)))

    def remove(self, key: str) -> Pending[requests.EntryRemoved]:
        """Remove a key: see `SharedMap.remove`."""
        return self._batch.add(requests.RemoveEntry(self._space, self._name, key))


@named
class BatchBudget:
    """The writes to a budget that can be part of a batch."""

    def __init__(self, batch: Batch, space: str, name: str) -> None:
        self._batch, self._space, self._name = batch, space, name

    def grant(self, amount: int, *, key: str | None = None) -> Pending[requests.Granted]:
        """Add to the amount that may be spent: see `Budget.grant`."""
        return self._batch.add(requests.Grant(self._space, self._name, amount, key))

    def spend(self, amount: int = 1, *, key: str | None = None) -> Pending[requests.Spent]:
        """Spend an amount. If it cannot be spent, nothing of the batch is written."""
        return self._batch.add(requests.Spend(self._space, self._name, amount, key))


@named
class BatchItems:
    """The writes to memory items that can be part of a batch. The first label has the tag: `("{crew-7}", "notes")`."""

    def __init__(self, batch: Batch, space: str) -> None:
        self._batch, self._space = batch, space

    def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: timedelta | float | None = None,
        expect: str | None = None,
        vectors: Sequence[Sequence[float]] = (),
    ) -> Pending[requests.ItemPut]:
        """Put an item: see `Items.put`."""
        request = put_request(self._space, namespace, key, value, ttl=ttl, expect=expect, vectors=vectors)
        return self._batch.add(request)

    def index(self, *_: object, **__: object) -> Never:
        """Indexes cannot be declared in a batch.

        Raises:
            InvalidInput: always, because each node builds an index in the background, after it was declared.
        """
        raise InvalidInput(
            "an index cannot be declared in a batch: every node builds it later, in the background, and no write waits for it. "
            "Nothing was written. Await space.items.index(…) beside the batch."
        )

    def delete(self, namespace: Sequence[str], key: str, *, expect: str | None = None) -> Pending[requests.ItemDeleted]:
        """Delete an item: see `Items.delete`."""
        return self._batch.add(delete_request(self._space, namespace, key, expect=expect))
