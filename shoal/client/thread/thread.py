"""A thread: one agent's line of work, as a handle.

Laws:
- What a save builds on is named in its request, so that a save that is sent again to
  another node builds on the same: see `positions`.
- If the node knows that the branch has moved on from that, the save is refused
  (`HeadMoved`), unless it asks for a fork; where the node cannot know, both stay as
  heads (`Checkpoint.forked`). No writer overwrites what it has not seen.
- A change that commutes with what came between is sent again on the new head, up to
  `save_attempts_max` times. An attempt that was refused wrote nothing, so that all have
  the same key.
- A refusal says nothing of an attempt that was made before: of a key whose outcome is
  unknown it is not taken for an answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args

from msgspec.structs import replace

from shoal.client.arguments import named
from shoal.client.connection import Connection
from shoal.client.retrying import contended
from shoal.client.thread.audit import ThreadAudit
from shoal.client.thread.autosave import Autosave
from shoal.client.thread.bases import Positions
from shoal.client.thread.branches import ThreadBranches
from shoal.client.thread.history import ThreadHistory
from shoal.client.thread.inbox import Inbox, Message, take_request
from shoal.client.thread.inspect import ThreadScrutiny
from shoal.client.thread.journal import Journal
from shoal.client.thread.loop import Loop
from shoal.client.thread.modify import ThreadModify, crowded
from shoal.client.thread.mutations import ThreadMutations
from shoal.client.thread.provenance import Author
from shoal.client.thread.resume import Hook, ThreadResume
from shoal.client.thread.schema import Declared, ThreadSchema, narrowed
from shoal.client.thread.status import ThreadStanding
from shoal.client.thread.step_log import Ledger
from shoal.client.thread.steps import ThreadSteps
from shoal.client.thread.worklist import Worklist
from shoal.errors import HeadMoved, InvalidInput, NotFound, OutcomeUnknown
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.schemas import Schema
from shoal.workflows.checkpoint import (
    Checkpoint,
    encode_appended,
    encode_channels,
    encode_metadata,
    saved_checkpoint,
    shown_checkpoint,
)
from shoal.workflows.moments import as_duration_ms, as_wall_ms

OnConflict = Literal["refuse", "fork"]
"""What becomes of a save where its branch has moved on."""


T = TypeVar("T")


class ChangeOptions(TypedDict, total=False):
    """What `Thread.update` takes beside the change."""

    metadata: Mapping[str, Any] | None
    branch: str
    parent: str | None
    expect_head: str | None
    on_conflict: OnConflict
    label: str
    take: Sequence[Message]
    key: str | None
    durability: Durability | None


class SaveOptions(ChangeOptions, total=False):
    """What `Thread.save` takes beside the state."""

    overwrite: bool


@named
class Thread(
    ThreadHistory,
    ThreadBranches,
    ThreadScrutiny,
    ThreadResume,
    ThreadAudit,
    ThreadSteps,
    ThreadStanding,
    ThreadMutations,
    ThreadModify,
    ThreadSchema,
):
    def __init__(
        self,
        connection: Connection,
        space: str,
        name: str,
        *,
        author: str = "",
        configuration: Mapping[str, Any] | None = None,
        dependencies: Mapping[str, str] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("thread", name)
        self.journal = Journal(connection, space, name)
        self._ledger = Ledger(connection, space, name, self.ready)
        self._hooks: list[Hook] = []
        self.inbox = Inbox(connection, space, name)
        self._author = Author(connection, author, configuration=configuration, dependencies=dependencies)
        self._positions = Positions(connection, space, name)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._declared: Declared | None = None
        if schema is not None:
            self.declare(schema)

    def __repr__(self) -> str:
        return f"Thread({self.space!r}, {self.name!r})"

    async def save(
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
        take: Sequence[Message] = (),
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Save `state` (channel name → value) as a checkpoint, and move the handle to it.

        It builds on what the handle last saved or loaded on `branch`, or on `parent`
        (NO_HEAD: on nothing). A handle that has done neither can start a new branch, but is
        rejected if the branch exists: load first, or pass `overwrite=True`, which replaces the
        branch's winner, whatever it is. A branch that does not exist yet starts at `parent`,
        or at nothing. If the branch has moved on, `on_conflict="fork"` adds a head beside the
        others.

        `take` takes messages of this thread's inbox together with the save, all or none.

        `expect_head` is the id that must be the branch's only head, or NO_HEAD for a
        branch that must not exist yet. `label` is a name to find this checkpoint by
        within its thread; a checkpoint that had the label loses it. If the same save is repeated
        with the same `key`, by anyone, it returns the checkpoint of the first.

        Raises:
            InvalidValue: a value cannot be serialised; the message shows the line that registers its type.
            SchemaViolation: the state violates the declared schema, or one of the space.
            HeadMoved: `expect_head` does not hold, the branch has moved on, or the handle has not seen it.
            InvalidInput: `overwrite` is combined with `parent`, `expect_head` or a fork.
            Taken: somebody else has taken one of the messages.
            OutcomeUnknown: no reply came; it is safe to repeat the save with the same key.
        """
        check_overwrite(overwrite, parent=parent, expect_head=expect_head, on_conflict=on_conflict)
        carry = False
        if self._declared is not None:
            state, carry = self._declared.schema.plain(state)
            state = self._stored(state)
        channels, packed, fork = encode_channels(state), encode_metadata(metadata), forks(on_conflict)
        request = requests.Save(self.space, self.name, channels, packed, branch, parent, expect_head, fork=fork, label=label)
        return await self._save(request, key, durability, take, carry=carry, overwrite=overwrite)

    async def update(
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
        label: str = "",
        take: Sequence[Message] = (),
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Save changes to parts of the state; everything else stays as it is. Otherwise like `save`.

        A handle that has not loaded changes the branch's winner. If another save comes first,
        the change is applied to that one, unless it changed a channel that this call sets or
        removes, or the branch was moved (`rollback`). With `parent` or `expect_head` the change
        is applied to exactly that checkpoint, or rejected.

        `changes` replaces whole channels; `append` adds elements to the end of a channel's list,
        which is created if it does not exist; `remove` names channels to delete. The cost does
        not grow with the state. The returned checkpoint has no state, as this process need not
        know it; use `load`.

        Raises:
            InvalidInput: it appends to a value that is not a list, removes a channel that does not exist,
                or names a channel twice.
            InvalidValue, HeadMoved, OutcomeUnknown: as `save`.
        """
        request = requests.Save(
            self.space,
            self.name,
            encode_channels(self._stored(changes or {})),
            encode_metadata(metadata),
            branch,
            parent,
            expect_head,
            delta=True,
            appended=encode_appended(self._stored(append or {})),
            removed=list(remove),
            fork=forks(on_conflict),
            label=label,
        )
        return await self._save(request, key, durability, take)

    async def append(self, channel: str, element: Any, **options: Unpack[ChangeOptions]) -> Checkpoint:
        """Append an element to the list of a channel and save: see `update`."""
        return await self.update(append={channel: [element]}, **options)

    async def extend(self, channel: str, elements: Iterable[Any], **options: Unpack[ChangeOptions]) -> Checkpoint:
        """Append elements to the list of a channel and save: see `update`."""
        return await self.update(append={channel: elements}, **options)

    async def _save(
        self,
        request: requests.Save,
        key: str | None,
        durability: Durability | None,
        take: Sequence[Message] = (),
        *,
        carry: bool = False,
        overwrite: bool = False,
    ) -> Checkpoint:
        async def attempt(parent: str | None) -> Checkpoint:
            placed = await self._claimed(replace(request, parent=parent), carry=carry)
            placed = self._author.signed(placed)
            saved = await self._sent(placed, key, durability, take)
            self._author.noted(placed, saved)
            return saved_checkpoint(saved, placed)

        # One save of a handle at a time and per branch: the next builds on this one.
        async with self._turns[request.branch]:
            if request.parent is not None or request.expect_head is not None:
                return await attempt(request.parent)
            anew = overwrite and self._positions.unsettled(request.branch, key) is None
            held = None if anew else self._positions.held(request.branch)
            if held is not None:
                return await attempt(held)
            basis = await self._positions.basis(request, overwrite=overwrite)
            pauses = contended(self._connection)
            while True:
                try:
                    return await attempt(basis)
                except HeadMoved as moved:
                    if request.fork or not (request.delta or overwrite):
                        raise
                    if (pause := next(pauses, None)) is None:
                        raise crowded(moved, self._connection) from None
                    await asyncio.sleep(pause)
                    basis = await self._positions.next_basis(request, moved, overwrite=overwrite)

    def worklist(self, name: str) -> Worklist:
        """A list of work items by key: those to do and those done."""
        return Worklist(self._connection, self.space, self.name, name)

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
        return Loop(self._connection, self.space, self.name, key).rows(rows, every=every, restart=restart)

    def autosave(
        self,
        state: Callable[[], Mapping[str, Any]],
        *,
        every: float | None = None,
        on_change: bool = True,
        on_sigterm: bool = False,
        **options: Unpack[SaveOptions],
    ) -> Autosave:
        """`async with thread.autosave(get_state, every=30):` saves the returned state every `every`
        seconds and at the end.

        With `on_change` it saves only if the state differs from the last one saved. With
        `on_sigterm`, SIGTERM ends the block, saves, and exits with 143. The rest is as in `save`.

        Raises:
            HeadMoved: at the beginning, if the branch exists and this handle has not loaded it.
        """

        def save(found: Mapping[str, Any]) -> Awaitable[Checkpoint]:
            return self.save(found, **options)

        async def begin() -> None:
            named = options.get("parent") is not None or options.get("expect_head") is not None
            if not (named or options.get("overwrite") or forks(options.get("on_conflict", "refuse"))):
                await self._positions.check_seen(options.get("branch", "main"))

        return Autosave(save, state, begin=begin, every=every, on_change=on_change, on_sigterm=on_sigterm)

    async def _sent(
        self, request: requests.Save, key: str | None, durability: Durability | None, take: Sequence[Message] = ()
    ) -> requests.Saved:
        takes = [take_request(self.space, self.name, message, by=request.author) for message in take]
        whole = requests.Batch([*takes, request]) if takes else request
        try:
            reply = await self._connection.write(whole, key=key, durability=durability)
        except OutcomeUnknown as unknown:
            self._positions.unknown(request, str(unknown.detail.get("key", key)))
            raise
        except HeadMoved as moved:
            if key is not None and self._positions.unsettled(request.branch, key) is not None:
                raise OutcomeUnknown(
                    f"an earlier attempt under the key {key} may or may not be applied, and the branch has moved on "
                    f"({moved.message.rstrip('.')}). Send it again with this key later, or load what is there.",
                    **{**moved.detail, "key": key},
                ) from None
            raise
        saved = reply.replies[-1] if isinstance(reply, requests.BatchReply) else reply
        assert isinstance(saved, requests.Saved)
        self._positions.saved(request.branch, saved.id)
        if self._declared is not None:
            self._declared.settled(saved.id, request)
        return saved

    async def load(
        self,
        checkpoint: str | None = None,
        *,
        branch: str | None = None,
        label: str | None = None,
        channels: Iterable[str] | None = None,
        as_of: datetime | float | None = None,
        stale: bool = False,
    ) -> Checkpoint:
        """Load a checkpoint by id or label, or the winner of `branch` ("main"), and move the handle to it.

        With `channels` its state has, and the node reads, only those.
        `as_of`: where the branch was at that time, by the clocks of the nodes that put it there; a datetime with a time zone,
        or seconds since 1970.

        What is loaded by id or label is built on in `branch`, or else in that which it was saved on.
        `stale`: see `Store`.

        Where a branch has none any more, as that of a deleted thread, the handle's next save begins it anew.

        Raises:
            NotFound: there is none, or it has no such channel.
            InvalidInput: `as_of` has no time zone, or is no time.
            SchemaTooNew, SchemaMismatch, MigrationFailed: the declared schema cannot read it. The handle stays where it was.
            SessionBehind, BookmarkLost: the node lacks what this store has written or seen.
        """
        if isinstance(channels, str):
            raise InvalidInput(f"channels is a list of names; got the text {channels!r}.")
        named = None if channels is None else list(channels)
        asked = named if self._declared is None else None  # To migrate a part, one needs the whole.
        request = requests.Load(
            self.space, self.name, checkpoint, branch or "main", channels=asked, label=label, as_of_ms=as_wall_ms(as_of)
        )
        try:
            found = await self._connection.read(request, stale=stale)
        except NotFound:
            # Otherwise it need not be the branch that is missing.
            if not stale and all(asked is None for asked in (checkpoint, label, as_of, channels)):
                self._positions.forget(branch or "main")
            raise
        assert isinstance(found, requests.Checkpoint)
        if self._declared is not None:
            found = narrowed(self._declared.loaded(found), named)
        on = branch or (found.branch if checkpoint is not None or label is not None else "main")
        self._positions.move(on, found.id, is_head=found.id in found.heads)
        return shown_checkpoint(found, channels=True)

    async def prune(
        self,
        *,
        keep_last: int | None = 10,
        older_than: timedelta | float | None = None,
        branch: str | None = None,
        dry_run: bool = False,
        durability: Durability | None = None,
    ) -> requests.PruneReport:
        """Prune old checkpoints: those that are neither among the last `keep_last` of a branch nor
        younger than `older_than`.

        Heads stay, and what has a label, and where lines part. With `branch` only what was saved on
        that one goes; with `dry_run` nothing does, and the report says what would. Histories
        end where they were pruned. Disk is freed on every node once all hold the prune.

        Raises:
            InvalidInput: neither `keep_last` nor `older_than` is given, or one is out of range.
        """
        age_ms = as_duration_ms(older_than, what="older_than")
        request = requests.Prune(self.space, self.name, keep_last, age_ms, branch, dry_run)
        return await self._connection.write(request, key=None, durability=durability)

    async def delete(self, *, key: str | None = None, durability: Durability | None = None) -> bool:
        """Delete the thread with its checkpoints, branches and journal, on every node. False: there was none.

        What other nodes write to it without knowing of this dies with it, also if it comes
        later. What is written with knowledge of it begins the thread anew.
        """
        reply = await self._connection.write(requests.DeleteThread(self.space, self.name), key=key, durability=durability)
        self._positions.clear()
        return reply.existed


def forks(on_conflict: str) -> bool:
    """
    Raises:
        InvalidInput: it is neither "refuse" nor "fork".
    """
    if on_conflict not in get_args(OnConflict):
        raise InvalidInput(f'on_conflict is "refuse" or "fork"; got {on_conflict!r}. Nothing was written.')
    return on_conflict == "fork"


def check_overwrite(overwrite: bool, *, parent: str | None, expect_head: str | None, on_conflict: str) -> None:
    """
    Raises:
        InvalidInput: it is said beside something that it contradicts.
    """
    if overwrite and (parent is not None or expect_head is not None or forks(on_conflict)):
        raise InvalidInput(
            "overwrite=True replaces whatever the branch has; parent, expect_head and a fork say otherwise. "
            "Nothing was written. Give one of them."
        )
