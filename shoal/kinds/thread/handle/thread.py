"""The handle of a thread, the durable state of one agent.

It is made of parts. `Checkout` remembers the checkpoint that the handle's next save builds on; the other parts use it
or, if they need no position, the connection alone. No part knows another one or the handle.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from shoal.client.arguments import named_method, of_part
from shoal.client.connection import StoreConnection
from shoal.kinds.journal.handle import Journal, Loop
from shoal.kinds.lease.handle.leases import Leasing
from shoal.kinds.step.handle.resume import ThreadControl, ThreadResume
from shoal.kinds.step.handle.steps import StepLog, ThreadSteps
from shoal.kinds.thread.flows.checkpoints import Provenance
from shoal.kinds.thread.handle.checkout import Checkout
from shoal.kinds.thread.handle.history import ThreadBranches, ThreadHistory, ThreadInspection, ThreadSchema
from shoal.kinds.thread.handle.saves import ThreadSaves
from shoal.kinds.worklist.handle.worklist import Inbox, Worklist, WorklistProgress
from shoal.names import check_name
from shoal.protocol.requests import Durability, ListWorklists
from shoal.schemas import Schema

if TYPE_CHECKING:
    from shoal.kinds.file.handle import FileListing, FileStream, Source, ThreadFiles
    from shoal.values.registry import FileRef

R = TypeVar("R")
T = TypeVar("T")


class Thread:
    """A handle on a thread, with a position of its own on each branch. Made by `Space.thread`."""

    def __init__(
        self,
        connection: StoreConnection,
        space: str,
        name: str,
        *,
        author: str = "",
        configuration: Mapping[str, Any] | None = None,
        dependencies: Mapping[str, str] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self.space = check_name("space", space)
        self.name = check_name("thread", name)
        self.journal = Journal(connection, space, name)
        self.inbox = Inbox(connection, space, name)
        self._connection = connection
        provenance = Provenance(connection, author, configuration=configuration, dependencies=dependencies)
        self._checkout = Checkout(connection, space, name, provenance)
        self._saves = ThreadSaves(self._checkout)
        self._branches = ThreadBranches(self._checkout)
        self._history = ThreadHistory(self._checkout)
        self._inspection = ThreadInspection(connection, space, name)
        self._schema = ThreadSchema(self._checkout)
        self._control = ThreadControl(connection, space, name)
        self._steps = ThreadSteps(StepLog(connection, space, name, self._control.ready))
        self._resume = ThreadResume(self._checkout)
        if schema is not None:
            self.declare(schema)

    def __repr__(self) -> str:
        return f"Thread({self.space!r}, {self.name!r})"

    # ── saving and loading ────────────────────────────────────────────────────

    save = of_part("_saves", ThreadSaves.save)
    update = of_part("_saves", ThreadSaves.update)
    append = of_part("_saves", ThreadSaves.append)
    extend = of_part("_saves", ThreadSaves.extend)
    modify = of_part("_saves", ThreadSaves.modify)
    autosave = of_part("_saves", ThreadSaves.autosave)
    load = of_part("_checkout", Checkout.load)

    # ── branches ──────────────────────────────────────────────────────────────

    heads = of_part("_branches", ThreadBranches.heads)
    branches = of_part("_branches", ThreadBranches.branches)
    branch = of_part("_branches", ThreadBranches.branch)
    rollback = of_part("_branches", ThreadBranches.rollback)
    delete_branch = of_part("_branches", ThreadBranches.delete_branch)
    diff = of_part("_branches", ThreadBranches.diff)
    merge = of_part("_branches", ThreadBranches.merge)
    sides = of_part("_branches", ThreadBranches.sides)

    # ── history ───────────────────────────────────────────────────────────────

    history = of_part("_history", ThreadHistory.history)
    labels = of_part("_history", ThreadHistory.labels)
    unlabel = of_part("_history", ThreadHistory.unlabel)
    mutations = of_part("_history", ThreadHistory.mutations)
    undo = of_part("_history", ThreadHistory.undo)
    redo = of_part("_history", ThreadHistory.redo)
    audit = of_part("_history", ThreadHistory.audit)
    timeline = of_part("_history", ThreadHistory.timeline)
    prune = of_part("_history", ThreadHistory.prune)
    delete = of_part("_history", ThreadHistory.delete)
    verify = of_part("_inspection", ThreadInspection.verify)
    why = of_part("_inspection", ThreadInspection.why)

    # ── files ─────────────────────────────────────────────────────────────────

    async def put_file(
        self, name: str, source: Source, *, type: str | None = None, durability: Durability | None = None
    ) -> FileRef:
        """Store a file of any size under a name, and return a reference to it, which can be part of a state.

        It is read and sent piece by piece. Chunks that the thread has already are not sent, so a file that was cut off is put
        again and goes on where it was. Another file of this name is replaced; references to it go on to hold it.

        Args:
            source: a path, the bytes themselves, an open binary file, or an iterable of bytes, asynchronous or not.
            type: the media type; by default the one that the name's ending stands for.

        Raises:
            InvalidInput: the source is none, cannot be read, or gives something else than bytes.
            Overloaded: the quota of the space is reached.
            FileIncomplete: parts of the file went while it was being put, and the source cannot be read again.
        """
        return await self._files.put_file(name, source, type=type, durability=durability)

    def open_file(self, file: str | FileRef, *, stale: bool = False) -> FileStream:
        """`async with thread.open_file("page.png") as stream:` reads a file, by its name or by a reference to it.

        Raises, when the block is entered:
            NotFound: the thread has no such file.
        """
        return self._files.open_file(file, stale=stale)

    async def file(self, name: str, *, stale: bool = False) -> FileRef:
        """A reference to the file that a name holds now.

        Raises:
            NotFound: it holds none.
        """
        return await self._files.file(name, stale=stale)

    def files(self, *, stale: bool = False) -> FileListing:
        """The files by name: `await` it for a list, or use `async for`."""
        return self._files.files(stale=stale)

    async def delete_file(self, name: str, *, durability: Durability | None = None) -> bool:
        """Delete a file on every node. False if there was none.

        Its bytes go once no checkpoint, event or step of the thread refers to it.
        """
        return await self._files.delete_file(name, durability=durability)

    @property
    def _files(self) -> ThreadFiles:
        from shoal.kinds.file.handle import ThreadFiles  # Few threads have files: the others do not load their code.

        return ThreadFiles(self._connection, self.space, self.name)

    # ── schemas ───────────────────────────────────────────────────────────────

    declare = of_part("_schema", ThreadSchema.declare)
    violations = of_part("_schema", ThreadSchema.violations)

    @property
    def schema(self) -> Schema | None:
        """The schema that `declare` has set, or None."""
        return None if self._checkout.declared is None else self._checkout.declared.schema

    # ── steps ─────────────────────────────────────────────────────────────────

    @overload
    async def step(
        self,
        name: str,
        *,
        call: Callable[..., Awaitable[R]],
        key: str | None = None,
        arguments: Any = None,
        attempts: int | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        durability: Durability | None = None,
    ) -> R: ...
    @overload
    async def step(
        self,
        name: str,
        *,
        call: Callable[..., R],
        key: str | None = None,
        arguments: Any = None,
        attempts: int | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        durability: Durability | None = None,
    ) -> R: ...
    @named_method
    async def step(
        self,
        name: str,
        *,
        call: Callable[..., Any],
        key: str | None = None,
        arguments: Any = None,
        attempts: int | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        durability: Durability | None = None,
    ) -> Any:
        """Run an effect once: write the intent, call `call`, write the result, and return it. If
        the step is done, return its stored result without a call.

        `call` may be synchronous (it then runs on the event loop) or asynchronous; it gets the `Step`
        if it takes an argument. Without a `key` the name is the key, so that it runs once per thread.
        Concurrent calls of one key on this handle wait for the first. While the thread is paused or
        waiting, this waits.

        Args:
            arguments: Recorded with the intent; a call with other arguments under the same key is rejected.
            attempts: After so many failures `StepFailed` is raised. The default is the node's bound.
            idempotent: Call it again even if an earlier attempt may have happened.
            compensate: The function that undoes it (`thread.compensate`), recorded by its name.
            durability: The durability of the intent. The default is `quorum`, or `all` if that is the store's.

        Raises:
            StepUnresolved: an attempt has not ended: it may have happened, or is in progress elsewhere.
            ResultNotKept: it was called, now or before, and its result cannot be stored; it was written as text.
            StepFailed: it has failed as often as allowed.
            StepAbandoned: a person decided that it must not be done.
            KeyReused: the key belongs to a step of another name or with other arguments.
            NoQuorum: too few owners can be reached to know what was done. Nothing was called.
            InvalidValue: `arguments` cannot be stored. Nothing was called.
            InvalidInput: `call` is not a function. Nothing was written.
            Exception: the error of `call`, after it was recorded.
        """
        beginning = self.begin(
            name,
            key=key,
            arguments=arguments,
            attempts=attempts,
            idempotent=idempotent,
            compensate=compensate,
            durability=durability,
        )
        return await self._steps.run(beginning, call)

    begin = of_part("_steps", ThreadSteps.begin)
    steps = of_part("_steps", ThreadSteps.steps)
    unresolved = of_part("_steps", ThreadSteps.unresolved)
    resolve = of_part("_steps", ThreadSteps.resolve)
    compensate = of_part("_steps", ThreadSteps.compensate)

    # ── status ────────────────────────────────────────────────────────────────

    status = of_part("_control", ThreadControl.status)
    pause = of_part("_control", ThreadControl.pause)
    request_approval = of_part("_control", ThreadControl.request_approval)
    approve = of_part("_control", ThreadControl.approve)
    finish = of_part("_control", ThreadControl.finish)
    fail = of_part("_control", ThreadControl.fail)
    ready = of_part("_control", ThreadControl.ready)
    wait_for = of_part("_control", ThreadControl.wait_for)

    # ── the lease ─────────────────────────────────────────────────────────────

    @named_method
    def lease(self, *, ttl: float = 30.0, wait: float = 0.0, holder: str | None = None) -> Leasing:
        """`async with thread.lease(ttl=30):` only this store drives the thread, on all nodes, until the block is left.

        Writes of this store to the thread carry the lease's fencing number, also in batches, and are held by a quorum before
        they are acknowledged, unless they name another durability. Other stores' saves, moves, steps and deletions raise
        `LeaseHeld` meanwhile; they may still append to its journal and send to its inbox. If the lease is lost, its block is
        cancelled and raises `LeaseLost`, and so do writes. For the arguments see `Space.lease`.

        Raises:
            LeaseHeld: somebody else holds it, and `wait` is over.
        """
        return Leasing(self._checkout.connection, self.space, self.name, thread=True, ttl=ttl, wait=wait, holder=holder)

    # ── resuming ──────────────────────────────────────────────────────────────

    on_rehydrate = of_part("_resume", ThreadResume.on_rehydrate)
    resume = of_part("_resume", ThreadResume.resume)
    edit = of_part("_resume", ThreadResume.edit)

    @named_method
    def worklist(self, name: str) -> Worklist:
        """A list of work items by key: those to do and those done."""
        return Worklist(self._checkout.connection, self.space, self.name, name)

    @named_method
    async def worklists(self, *, stale: bool = False) -> dict[str, WorklistProgress]:
        """The progress of each of the thread's worklists, by name. `stale`: see `Store`."""
        request = ListWorklists(self.space, self.name)
        reply = await self._checkout.connection.read(request, stale=stale)
        return {each.name: WorklistProgress(each.pending, each.finished) for each in reply.items}

    @named_method
    def iterate(
        self, rows: Iterable[T] | AsyncIterable[T], *, key: str, every: int = 1000, restart: bool = False
    ) -> AsyncGenerator[T, None]:
        """`async for row in thread.iterate(rows, key="import")`: a loop that continues where its last run ended.

        Its position is stored under `key` every `every` rows and at the end. A row counts as
        finished when the next one is requested. If you may leave the loop early, close it
        (`contextlib.aclosing`): that stores the position at once. `rows` must be the same in
        each run; of a sequence, the rows before the position are not read again. `restart`
        starts from the beginning.
        """
        return Loop(self._checkout.connection, self.space, self.name, key).rows(rows, every=every, restart=restart)
