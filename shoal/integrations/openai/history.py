"""The history of one conversation, as the branches of a thread.

Laws:
- A conversation is a thread, a branch of it a branch. The channel `items` has the items, `times` when each was
  added, `usage` the tokens of each turn, and `run_state` a run that waits for a person.
- New items are appended to the newest state, so that two writers lose nothing. Whatever else changes a
  branch names the checkpoint that it was decided on, and is rejected (`HeadMoved`) or decided anew if that has moved.
- A text of more than `LARGE_CHARACTERS` is a file of the thread (`shoal.integrations.openai.large`).
- A deleted branch does not exist any more. Whoever still works on it goes on in `main`, unless its name is taken again. Earlier
  versions marked it, and kept its name.
- If two nodes that could not reach each other both added items, both additions are kept, and merged when it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from shoal.client.connection import StoreConnection, contended
from shoal.client.store import Space
from shoal.errors import HeadMoved, MergeConflict, NotFound
from shoal.integrations import escaping
from shoal.integrations.contents import Contents
from shoal.integrations.openai.large import Large
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.thread import Thread
from shoal.outcomes import partly
from shoal.protocol.requests import NO_HEAD
from shoal.records import NamedTuple

FORM = 1
"""The version of the form in which conversations are stored."""
NAME = "openai"
MAIN = "main"
READS_MAX = 3  # Of a conversation whose files go while it is read.
_DELETED = "deleted"
T = TypeVar("T")
_UNSAFE = escaping.unsafe()


class Branch(NamedTuple):
    """A branch as it was read."""

    id: str
    head: str  # The checkpoint, or NO_HEAD if the branch does not exist yet.
    items: Sequence[Any] = ()
    times: Sequence[str | None] = ()
    usage: Mapping[str, Any] = MappingProxyType({})
    run_state: Any = None
    deleted: bool = False
    created: str | None = None  # When its first item was added.

    @property
    def channels(self) -> dict[str, Any]:
        """Its channels, to save it changed."""
        return channels(self.items, self.times, self.usage, self.run_state)


def name_of(id: str) -> str:
    """The name of the thread of a session, or of a branch."""
    return escaping.name_of(id, _UNSAFE)


def channels(
    items: Sequence[Any], times: Sequence[str | None], usage: Mapping[str, Any], run_state: Any = None
) -> dict[str, Any]:
    """The channels of a branch."""
    state = {"items": [escaping.stored(item, f"items[{nth}]") for nth, item in enumerate(items)], "times": list(times)}
    return state | ({"usage": dict(usage)} if usage else {}) | ({} if run_state is None else {"run_state": run_state})


def now() -> str:
    """The time for items that are added, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class History:
    """Reads and writes the branches of one conversation. All of it runs on the store's loop."""

    def __init__(self, space: Space, connection: StoreConnection, session_id: str) -> None:
        self._space = space
        self._connection = connection
        self.thread_name = space.thread(name_of(session_id)).name
        self._large = Large(Contents(connection, space.name), self.thread_name)
        self._is_checked = False  # Whether the newest state was seen in a form that this version writes.

    @property
    def thread(self) -> Thread:
        """A handle without a position, so that nothing but `expect_head` decides what a write builds on."""
        return self._space.thread(self.thread_name)

    async def read(self, id: str = MAIN, *, bare: bool = False) -> Branch:
        """A branch; an empty one without a head if it does not exist. `bare`: with references where large texts are files.

        Raises:
            SchemaTooNew: a newer version of Shoal wrote it.
            MergeConflict: two nodes that could not reach each other did more than add items, such as remove some.
        """
        for _ in range(READS_MAX - 1):
            with suppress(NotFound):  # It was changed while it was read, and its files went.
                return await self._read(id, bare=bare)
        return await self._read(id, bare=bare)

    async def _read(self, id: str, *, bare: bool) -> Branch:
        name = name_of(id)
        thread = self.thread
        try:
            found = await thread.load(branch=name)
        except NotFound:
            return Branch(id, NO_HEAD)
        self._check(found)
        if found.forked:
            found = await thread.merge(resolver=_resolved, branch=name, metadata=found.metadata)
        self._is_checked = True
        state = found.state
        times = state.get("times", [])
        items, run_state = state.get("items", []), state.get("run_state")
        if not bare:
            items, run_state = await self._large.read([items, run_state])
        return Branch(
            id,
            found.id,
            [escaping.shown(item) for item in items],
            times,
            state.get("usage", {}),
            run_state,
            deleted=bool(found.metadata.get(_DELETED)),
            created=times[0] if times else None,
        )

    async def add(self, items: list[Any], id: str = MAIN) -> str:
        """Append items to the branch, whatever its newest state is; to `main` if the branch was deleted. Return which it was.

        Raises:
            InvalidValue: an item is no JSON; nothing was written.
        """
        added = [escaping.stored(item, f"items[{nth}]") for nth, item in enumerate(items)]
        times: list[str | None] = [now()] * len(added)

        async def append(stored: list[Any]) -> None:
            await self.thread.update(append={"items": stored, "times": times}, metadata=_metadata())

        if id == MAIN:
            if not self._is_checked:
                await self._check_newest()
            await self._large.written(added, append)
            return id

        async def append_where_it_is() -> str:
            branch = await self.living(id)
            if branch.id == MAIN:
                await self._large.written(added, append)
            else:  # It may be deleted meanwhile.
                await self.extend(branch, added, times, run_state=branch.run_state)
            return branch.id

        return await self.retried(append_where_it_is)

    async def living(self, id: str) -> Branch:
        """A branch, or `main` if it was deleted."""
        branch = await self.read(id)
        return await self.read() if id != MAIN and (branch.deleted or branch.head == NO_HEAD) else branch

    async def rewrite(self, branch: Branch, state: Mapping[str, Any], *, label: str = "") -> None:
        """Replace a branch, if it is as it was read.

        Raises:
            HeadMoved: it is not; nothing was written.
        """

        async def save(stored: dict[str, Any]) -> None:
            await self.thread.save(
                stored, branch=name_of(branch.id), expect_head=branch.head, metadata=_metadata(), label=label
            )

        await self._large.written(dict(state), save)

    async def extend(
        self, branch: Branch, stored: list[Any], times: list[str | None], *, run_state: Any, label: str = ""
    ) -> None:
        """Append stored items to a branch and set or remove the run that waits, if the branch is as it was read.

        Raises:
            HeadMoved: it is not; nothing was written.
        """

        async def update(parts: list[Any]) -> None:
            items, run = parts
            await self.thread.update(
                {} if run is None else {"run_state": run},
                append={"items": items, "times": times},
                remove=["run_state"] if run is None and branch.run_state is not None else [],
                branch=name_of(branch.id),
                expect_head=branch.head,
                metadata=_metadata(),
                label=label,
            )

        await self._large.written([stored, run_state], update)

    async def delete(self, id: str) -> None:
        """Delete a branch. Items that a node adds to it without knowledge of that stay, and with them the branch."""
        await self.thread.delete_branch(name_of(id))

    async def change(self, id: str, fn: Callable[[Branch], Mapping[str, Any] | None]) -> Branch:
        """Save what `fn` makes of a branch, on exactly that; again if somebody was faster. If it makes None, nothing is saved.

        Returns the branch that `fn` was given last.
        """

        async def changed() -> Branch:
            branch = await self.living(id)
            state = fn(branch)
            if state is not None:
                await self.rewrite(branch, state)
            return branch

        return await self.retried(changed)

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call it again as long as somebody else was faster.

        Raises:
            HeadMoved: somebody was, `SAVE_ATTEMPTS_MAX` times.
        """
        pauses = contended(self._connection)
        while True:
            try:
                return await call()
            except HeadMoved:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    async def branches(self) -> list[Branch]:
        """All branches that are not deleted, those that are older first; with references where large texts are files."""
        found = [await self.read(escaping.id_of(name), bare=True) for name in await self._names()]
        return sorted((each for each in found if not each.deleted), key=lambda each: (each.created or "~", each.id != MAIN))

    async def clear(self) -> None:
        """Empty `main` and delete all other branches, as one write, and free what only they had.

        Raises:
            OutcomeUnknown: more branches than one batch can hold were not deleted at once, and the rest failed. Clear again.
        """
        await self.retried(self._cleared)
        with partly(True, "the conversation is empty", "Its old items are freed when it is cleared again."):
            try:
                await self.thread.prune(keep_last=1)
            except NotFound:
                return

    async def _cleared(self) -> None:
        main = await self.read()
        names = [name for name in await self._names() if name != MAIN or main.head != NO_HEAD]
        names.sort(key=lambda name: name != MAIN)
        most = self._connection.config.batch_writes_max
        for start in range(0, len(names), most):
            with partly(start, f"{start} branches are cleared", "Clear the session again."):
                async with self._space.batch() as batch:
                    thread = batch.thread(self.thread_name)
                    for name in names[start : start + most]:
                        if name == MAIN:
                            thread.save(channels([], [], {}), branch=MAIN, expect_head=main.head, metadata=_metadata())
                        else:
                            thread.delete_branch(name)

    async def _names(self) -> list[str]:
        """The names of all branches as they are stored."""
        try:
            return list(await self.thread.heads())
        except NotFound:
            return []

    async def labelled(self, label: str) -> bool:
        """Whether a checkpoint has this label."""
        try:
            await self.thread.load(label=label, channels=[])
        except NotFound:
            return False
        return True

    async def _check_newest(self) -> None:
        try:
            self._check(await self.thread.load(channels=[]))
        except NotFound:
            return
        self._is_checked = True

    def _check(self, found: Checkpoint) -> None:
        escaping.of_form(found.metadata, NAME, FORM)


def _metadata() -> dict[str, Any]:
    return {NAME: FORM}


def _resolved(channel: str, base: Any, sides: Sequence[Any]) -> Any:
    """Join the tokens of the turns; items and runs that differ are for a person."""
    if channel == "usage":
        return {turn: used for side in sides for turn, used in (side or {}).items()}
    raise MergeConflict(
        f"two nodes that could not reach each other changed {channel!r} of the conversation differently. Nothing was written. "
        "Look at both with thread.sides(), and decide with thread.merge(resolver=…)."
    )
