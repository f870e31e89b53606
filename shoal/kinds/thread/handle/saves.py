"""Saving a thread's state: as a whole, in parts, by a function of the newest state, and automatically.

Laws of `modify`:
- The function gets the newest state, and its result is saved on exactly that state, so that no
  other save is lost.
- If the function raises, nothing is changed, and the handle does not move.
- With a key, a repeated call returns the checkpoint of the first call: the key is stored in that
  checkpoint's metadata, and searched among about the last hundred checkpoints.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, get_args

from shoal.client.arguments import named
from shoal.client.connection import contended
from shoal.errors import HeadMoved, InvalidInput, KeyReused, NotFound
from shoal.kinds.thread.flows.checkpoints import Checkpoint, encode_appended, encode_channels, encode_metadata, shown_checkpoint
from shoal.kinds.thread.flows.mutations import KEY, keyed
from shoal.kinds.thread.handle.autosave import Autosave
from shoal.kinds.thread.handle.checkout import Checkout, crowded
from shoal.kinds.worklist.handle.worklist import Message
from shoal.protocol import requests
from shoal.protocol.conformance import check_word
from shoal.protocol.requests import NO_HEAD, Durability

Outcome = Mapping[str, Any] | None
Modify = Callable[[dict[str, Any]], Outcome | Awaitable[Outcome]]
"""(state) → the new state, or None if it changed the given one. It may be asynchronous."""


OnConflict = Literal["refuse", "fork"]
_ON_CONFLICT = get_args(OnConflict)
"""How to treat a save whose branch has moved on."""


class ChangeOptions(TypedDict, total=False):
    """The options of `Thread.update`."""

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
    """The options of `Thread.save`."""

    overwrite: bool


@named
class ThreadSaves:
    """The part of a thread's handle for saving."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout

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

        It builds on the checkpoint that the handle last saved or loaded on `branch`, or on `parent`
        (NO_HEAD: on no checkpoint). A handle that has done neither can start a new branch, but its
        save is rejected if the branch exists: load first, or pass `overwrite=True`, which replaces the
        branch's winner. A new branch starts at `parent`, or without a parent. If the branch has
        moved on, `on_conflict="fork"` adds a head beside the others.

        `take` takes messages of this thread's inbox together with the save, all or none.

        `expect_head` is the id that must be the branch's only head, or NO_HEAD for a
        branch that must not exist yet. `label` is a name for this checkpoint, unique
        within its thread; a checkpoint that had the label loses it. If any client repeats the same save
        with the same `key`, it gets the checkpoint of the first.

        Raises:
            InvalidValue: a value cannot be serialised; the message shows the line that registers its type.
            SchemaViolation: the state violates the declared schema, or one of the space.
            HeadMoved: `expect_head` does not hold, the branch has moved on, or the handle has not seen it.
            InvalidInput: `overwrite` is combined with `parent`, `expect_head` or a fork.
            Taken: another agent has taken one of the messages.
            OutcomeUnknown: no reply came; it is safe to repeat the save with the same key.
        """
        check_overwrite(overwrite, parent=parent, expect_head=expect_head, on_conflict=on_conflict)
        checkout, carry = self._checkout, False
        if checkout.declared is not None:
            state, carry = checkout.declared.schema.plain(state)
            state = self._stored(state)
        request = save_request(
            checkout.space,
            checkout.thread,
            state,
            metadata=metadata,
            branch=branch,
            parent=parent,
            expect_head=expect_head,
            on_conflict=on_conflict,
            label=label,
        )
        return await checkout.save(request, key, durability, take, carry=carry, overwrite=overwrite)

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
        request = update_request(
            self._checkout.space,
            self._checkout.thread,
            self._stored(changes or {}),
            append=self._stored(append or {}),
            remove=remove,
            metadata=metadata,
            branch=branch,
            parent=parent,
            expect_head=expect_head,
            on_conflict=on_conflict,
            label=label,
        )
        return await self._checkout.save(request, key, durability, take)

    async def append(self, channel: str, element: Any, **options: Unpack[ChangeOptions]) -> Checkpoint:
        """Append an element to the list of a channel and save: see `update`."""
        return await self.update(append={channel: [element]}, **options)

    async def extend(self, channel: str, elements: Iterable[Any], **options: Unpack[ChangeOptions]) -> Checkpoint:
        """Append elements to the list of a channel and save: see `update`."""
        return await self.update(append={channel: elements}, **options)

    async def modify(
        self,
        fn: Modify,
        *,
        metadata: Mapping[str, Any] | None = None,
        branch: str = "main",
        label: str = "",
        take: Sequence[Message] = (),
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Load the newest state of `branch`, let `fn` change it, and save it; retry if another save came first.

        `fn(state)` returns the new state, or changes the given one and returns None. It may be
        asynchronous; a synchronous function runs on the event loop. A branch that does not exist
        yet has the state `{}`. `fn` is called again for each attempt, up to `SAVE_ATTEMPTS_MAX`
        times, so it must have no other effect.

        On a forked branch it changes the winner; the other heads stay, and the checkpoint has
        `forked` set. The rest is as in `save`. With a `key`, repeating the call, even in another
        process, returns the checkpoint of the first call.

        Raises:
            HeadMoved: another save came first at every attempt. Nothing was written.
            InvalidInput: `fn` is not a function of one argument.
            InvalidValue, SchemaViolation, Taken, KeyReused, OutcomeUnknown: as `save`.
            Exception: an error of `fn`. Nothing was written.
        """
        if not _takes_a_state(fn):
            raise InvalidInput(f"fn must be a function of the state, not {fn!r:.100}. Nothing was written.", field="fn")
        if key is not None and (sent := self._checkout.bases.unsettled(branch, key)) is not None:
            return await self._checkout.save(sent, key, durability, take)
        told = metadata if key is None else {**(metadata or {}), KEY: key}
        pauses = contended(self._checkout.connection)
        reused: KeyReused | None = None
        while True:
            parent, state = await self._newest(branch)
            if key is not None and parent and (done := await keyed(self._checkout, parent, key)) is not None:
                return await self._checkout.load(done.id, branch=branch)
            if reused is not None:
                raise reused
            made = fn(state)
            made = await made if inspect.isawaitable(made) else made
            try:
                return await self.save(
                    state if made is None else made,
                    metadata=told,
                    branch=branch,
                    parent=parent,
                    label=label,
                    take=take,
                    key=key,
                    durability=durability,
                )
            except HeadMoved as moved:
                if (pause := next(pauses, None)) is None:
                    raise crowded(moved, self._checkout.connection) from None
                await asyncio.sleep(pause)
            except KeyReused as refused:
                reused = refused  # Either this very change was already saved elsewhere, or the key belongs to another one.

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
                await self._checkout.bases.check_seen(options.get("branch", "main"))

        return Autosave(save, state, begin=begin, every=every, on_change=on_change, on_sigterm=on_sigterm)

    def _stored(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state without the channels that the schema declares ephemeral."""
        declared = self._checkout.declared
        if declared is None or not declared.schema.ephemeral or not isinstance(state, Mapping):
            return state
        return declared.schema.stored(state)

    async def _newest(self, branch: str) -> tuple[str, dict[str, Any]]:
        """The branch's winner and its state. The handle does not move."""
        declared = self._checkout.declared
        try:
            found = await self._checkout.read(None, branch=branch)
        except NotFound:
            return NO_HEAD, {}
        shown = found if declared is None else declared.loaded(found)
        return found.id, shown_checkpoint(shown, channels=True).state


def _takes_a_state(fn: object) -> bool:
    if not callable(fn):
        return False
    try:
        inspect.signature(fn).bind({})
    except ValueError:  # Some built-in functions have no signature.
        return True
    except TypeError:
        return False
    return True


def forks(on_conflict: str) -> bool:
    """Whether `on_conflict` asks for a fork.

    Raises:
        InvalidInput: it is neither "refuse" nor "fork".
    """
    if on_conflict not in _ON_CONFLICT:
        check_word(on_conflict, get_args(OnConflict), "on_conflict")
    return on_conflict == "fork"


def check_overwrite(overwrite: bool, *, parent: str | None, expect_head: str | None, on_conflict: str) -> None:
    """Check that `overwrite` is not combined with an argument that contradicts it.

    Raises:
        InvalidInput: it is.
    """
    if overwrite and (parent is not None or expect_head is not None or forks(on_conflict)):
        raise InvalidInput(
            "overwrite=True replaces any state of the branch; it contradicts parent, expect_head and a fork. "
            "Nothing was written. Use one of them."
        )


def save_request(
    space: str,
    thread: str,
    state: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    branch: str = "main",
    parent: str | None = None,
    expect_head: str | None = None,
    on_conflict: OnConflict = "refuse",
    label: str = "",
) -> requests.Save:
    """The request that saves a whole state."""
    channels, packed, fork = encode_channels(state), encode_metadata(metadata), forks(on_conflict)
    return requests.Save(space, thread, channels, packed, branch, parent, expect_head, fork=fork, label=label)


def update_request(
    space: str,
    thread: str,
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
) -> requests.Save:
    """The request that saves changes to parts of a state."""
    return requests.Save(
        space,
        thread,
        encode_channels(changes or {}),
        encode_metadata(metadata),
        branch,
        parent,
        expect_head,
        delta=True,
        appended=encode_appended(append or {}),
        removed=list(remove),
        fork=forks(on_conflict),
        label=label,
    )
