"""A batch: writes to objects of one partition, as one operation, all or none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, Never, ParamSpec, TypeVar

from msgspec.structs import replace

from shoal.client.arguments import named, named_method
from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput
from shoal.kinds.budget import handle as budgets
from shoal.kinds.counter import handle as counters
from shoal.kinds.items.handle.item import delete_request, put_request
from shoal.kinds.journal.handle import ack_request, append_request, erase_request
from shoal.kinds.list import handle as lists
from shoal.kinds.map import handle as maps
from shoal.kinds.register import handle as registers
from shoal.kinds.set import handle as sets
from shoal.kinds.step.handle.steps import Step
from shoal.kinds.thread.handle.history import delete_branch_request
from shoal.kinds.thread.handle.saves import OnConflict, check_overwrite, save_request, update_request
from shoal.kinds.worklist.handle.queues import Job, complete_request
from shoal.kinds.worklist.handle.worklist import done_request, send_request, take_request
from shoal.protocol import requests
from shoal.protocol.conformance import check_manner
from shoal.protocol.requests import NO_HEAD, BatchWrite, Durability, ObjectWrite, reply_of

P = ParamSpec("P")
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


def batched(build: Callable[Concatenate[str, str, P], ObjectWrite[R]], said: str) -> Callable[Concatenate[Any, P], Pending[R]]:
    """A method of an object's handle in a batch: it adds the request that `build` makes, of the space, the object's name and
    the arguments, as the method of the object's own handle does. `said` is its docstring.
    """
    return _method(build, 2, said)


def batched_in_space(
    build: Callable[Concatenate[str, P], ObjectWrite[R]], said: str
) -> Callable[Concatenate[Any, P], Pending[R]]:
    """The same for an object that the arguments name."""
    return _method(build, 1, said)


def _method(build: Callable[..., ObjectWrite[R]], places: int, said: str) -> Callable[..., Pending[R]]:
    def method(self: _Writes, /, *args: Any, **kwargs: Any) -> Pending[R]:
        return self._batch.add(build(*self._at, *args, **kwargs))

    of_object = inspect.signature(build)
    kind = getattr(requests, of_object.return_annotation.removeprefix("requests."))
    reply = reply_of(kind)
    own = list(of_object.parameters.values())[places:]
    handle = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__ = build.__name__.removesuffix("_request")
    method.__doc__ = said
    method.__module__ = build.__module__  # Where the annotations mean something.
    method.__annotations__ = {each.name: each.annotation for each in own} | {"return": Pending[reply]}  # type: ignore[valid-type]
    gives = f"Pending[{reply.__name__}]"
    method.__signature__ = of_object.replace(parameters=[handle, *own], return_annotation=gives)  # type: ignore[attr-defined]
    method.__wrapped__ = build  # type: ignore[attr-defined]
    return named_method(method)


@named
class Batch:
    """`async with space.batch() as b:` commits at the end of the block. If the block raises, nothing is written."""

    def __init__(self, connection: StoreConnection, space: str, *, key: str | None, durability: Durability | None) -> None:
        check_manner(key, durability, stale=False)
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

    def list(self, name: str) -> BatchList:
        """Write to a list within this batch."""
        return BatchList(self, self._space, name)

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


class _Writes:
    """The handle of an object within a batch."""

    def __init__(self, batch: Batch, *at: str) -> None:
        self._batch, self._at = batch, at  # The space, and the object's name.


@named
class BatchThread(_Writes):
    """The writes to a thread that can be part of a batch."""

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
        label: str = "",
    ) -> Pending[requests.Saved]:
        """Save a whole state, as `Thread.save` of a handle that has loaded nothing: it begins a branch.

        If the branch exists, name the checkpoint that the save builds on (`parent=cp.id` or
        `expect_head=cp.id`), or pass `overwrite=True`. Otherwise the batch is rejected (`HeadMoved`).
        """
        check_overwrite(overwrite, parent=parent, expect_head=expect_head, on_conflict=on_conflict)
        space, name = self._at
        save = save_request(
            space,
            name,
            state,
            metadata=metadata,
            branch=branch,
            parent=parent,
            expect_head=expect_head,
            on_conflict=on_conflict,
            label=label,
        )
        return self._batch.add_whole(save, overwrite=overwrite)

    update = batched(
        update_request,
        "Save a change of the branch's winner, or of `parent` or `expect_head`; otherwise as `Thread.update`.",
    )

    def append(self, channel: str, element: Any) -> Pending[requests.Saved]:
        """Append an element to the list of a channel: see `update`."""
        return self.update(append={channel: [element]})

    delete_branch = batched(delete_branch_request, "Delete a branch: see `Thread.delete_branch`.")

    @property
    def journal(self) -> BatchJournal:
        """Append to the thread's journal within this batch."""
        return BatchJournal(self._batch, *self._at)

    ack = batched(ack_request, "Acknowledge an event together with its effects: see `Journal.consumer`.")
    send = batched(send_request, "Send a message to the thread's inbox.")
    take = batched(
        take_request,
        "Take a message together with its effects; if another agent has already taken it, nothing of the batch is written.",
    )

    def finish(self, step: Step, result: Any = None) -> Pending[requests.Step]:
        """Write the result of a step together with other writes; the block of `thread.begin`
        then writes nothing more.

        If the batch is rejected, the block writes the result alone, because the effect has happened.

        Raises:
            InvalidInput: the step belongs to another thread, or already has a result.
            InvalidValue: the result cannot be serialised.
        """
        space, name = self._at
        return self._batch.add(step.result_request(space, name, result), step.settle)

    def complete(self, job: Job, result: Any = None) -> Pending[requests.ItemCompleted]:
        """Complete a claimed item together with its effects; if the claim has ended, nothing of the batch is written."""
        space, name = self._at
        return self._batch.add(complete_request(space, name, job, result), job.settle)

    done = batched(done_request, "Mark an item of a worklist as done, together with its effects.")


class BatchJournal(_Writes):
    """The writes to a journal that can be part of a batch."""

    append = batched(append_request, "Append an event: see `Journal.append`.")
    erase = batched(erase_request, "Erase the value of an event: see `Journal.erase`.")


class BatchCounter(_Writes):
    """The writes to a counter that can be part of a batch."""

    add = batched(counters.add_request, "Add to the counter: see `Counter.add`.")


class BatchRegister(_Writes):
    """The writes to a register that can be part of a batch."""

    set = batched(
        registers.set_request,
        "Assign a value. If `expect` does not hold (see `Register.set`), nothing of the batch is written.",
    )


class BatchSet(_Writes):
    """The writes to a set that can be part of a batch."""

    add = batched(sets.add_request, "Add elements: see `SharedSet.add`.")
    remove = batched(sets.remove_request, "Remove elements: see `SharedSet.remove`.")
    pop = batched(sets.pop_request, "Remove members and return them, packed: see `SharedSet.pop`.")


class BatchList(_Writes):
    """The writes to a list that can be part of a batch."""

    push = batched(lists.push_request, "Add values at the end: see `SharedList.push`.")
    insert = batched(lists.insert_request, "Insert values: see `SharedList.insert`.")
    remove = batched(lists.remove_request, "Remove elements and return their values, packed: see `SharedList.remove`.")
    move = batched(lists.move_request, "Move an element: see `SharedList.move`.")


class BatchMap(_Writes):
    """The writes to a map that can be part of a batch."""

    set = batched(maps.set_request, "Assign a value to a key: see `SharedMap.set`.")
    add = batched(maps.add_request, "Add to the counter under a key: see `SharedMap.add`.")
    include = batched(maps.include_request, "Add elements to the set under a key: see `SharedMap.include`.")
    exclude = batched(maps.exclude_request, "Remove elements from the set under a key: see `SharedMap.exclude`.")
    remove = batched(maps.remove_request, "Remove a key: see `SharedMap.remove`.")


class BatchBudget(_Writes):
    """The writes to a budget that can be part of a batch."""

    grant = batched(budgets.grant_request, "Add to the amount that may be spent: see `Budget.grant`.")
    spend = batched(budgets.spend_request, "Spend an amount. If it cannot be spent, nothing of the batch is written.")


@named
class BatchItems(_Writes):
    """The writes to memory items that can be part of a batch. The first label has the tag: `("{crew-7}", "notes")`."""

    put = batched_in_space(put_request, "Put an item: see `Items.put`.")

    def index(self, *_: object, **__: object) -> Never:
        """Indexes cannot be declared in a batch.

        Raises:
            InvalidInput: always, because each node builds an index in the background, after it was declared.
        """
        raise InvalidInput(
            "an index cannot be declared in a batch: every node builds it later, in the background, and no write waits for it. "
            "Nothing was written. Await space.items.index(…) beside the batch."
        )

    delete = batched_in_space(delete_request, "Delete an item: see `Items.delete`.")
