"""The mutation log of a thread's state, and undo and redo over it.

Laws:
- The log is not written anywhere: it is what differs from each checkpoint of a
  branch to the next, along first parents. So it is complete, and costs nothing
  until it is read.
- An undo is a new checkpoint, which takes back what one or more others changed, and
  names them; nothing is removed from the history. It is refused where what they
  changed has been changed again since.
- What was undone can be redone until something else is saved on the branch.
- A key makes the repetition of an undo or redo return the first one's checkpoint, which
  keeps the key beside what it undoes; it is looked for among the last `_PAGE` or so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import Connection
from shoal.client.thread.bases import Positions
from shoal.errors import InvalidInput, NotFound, UndoConflict
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.schemas.pointers import hidden
from shoal.values.difference import Change, applied, channel_differences, differences
from shoal.workflows.checkpoint import Checkpoint, encode_channels, encode_metadata, shown_checkpoint
from shoal.workflows.moments import moment

UNDOES, REDOES = "shoal.undoes", "shoal.redoes"  # In a checkpoint's metadata: ids of checkpoints.
KEY = "shoal.key"  # In the metadata of what is made of the newest state: the key that asked for it.
_PAGE = 100


class Mutation(Struct, frozen=True):
    """One change of one place in the state."""

    id: str  # To go on after it.
    checkpoint: str
    channel: str
    op: Literal["add", "remove", "replace"]
    path: str  # A JSON pointer within the channel; empty: the channel itself.
    before: Any  # None for what was added.
    after: Any  # None for what was removed.
    author: str
    time: datetime


class _Reverted(NamedTuple):
    changes: dict[str, Any]
    removed: list[str]
    present: requests.Checkpoint  # What they are changes of.


class MutationLog:
    """Reads a thread's history as changes. It moves no handle's position."""

    def __init__(self, connection: Connection, space: str, thread: str) -> None:
        self._connection = connection
        self._space, self._thread = space, thread

    async def mutations(self, head: str, *, after: str | None, limit: int | None, reveal: bool) -> AsyncIterator[Mutation]:
        """Oldest first, up to `head`.

        Raises:
            NotFound: `after` is in no checkpoint that `head` descends from.
        """
        stop, _, skipped = (after or "").partition("/")
        if skipped and not skipped.isdecimal():
            raise InvalidInput("a mutation's id is what an earlier one has. Give it back unchanged.")
        ids = await self._ids(head, stop if not skipped else None, through=stop if skipped else None)
        given = 0
        for id in ids:
            found = await self._checkpoint(id, [])
            changes, secret = await self._changes(found)
            for nth, (channel, change) in enumerate(changes):
                if id == stop and nth <= int(skipped):
                    continue
                if limit is not None and given >= limit:
                    return
                given += 1
                yield Mutation(
                    f"{id}/{nth}",
                    id,
                    channel,
                    change.op,
                    change.path,
                    change.before if reveal else hidden(secret, channel, change.path, change.before),
                    change.after if reveal else hidden(secret, channel, change.path, change.after),
                    found.author,
                    moment(found.wall_ms),
                )

    async def undoable(self, head: str, count: int) -> list[str]:
        """The last `count` checkpoints whose changes are still in place, the newest first.

        Raises:
            NotFound: there are not so many.
        """
        undone: set[str] = set()
        void: set[str] = set()
        found: list[str] = []
        async for item in self._history(head):
            metadata = values.decode(item.metadata)
            void.update(_named(metadata, REDOES))
            if undoes := _named(metadata, UNDOES):
                if item.id not in void:
                    undone.update(undoes)
            elif REDOES not in metadata and item.id not in undone:
                found.append(item.id)
                if len(found) == count:
                    return found
        raise NotFound(f"there is nothing more to undo: {len(found)} changes of {count}. Nothing was written.")

    async def redoable(self, head: str, count: int) -> list[str]:
        """The last `count` undos that nothing was saved after, the newest first.

        Raises:
            NotFound: there are not so many.
        """
        void: set[str] = set()
        found: list[str] = []
        async for item in self._history(head):
            metadata = values.decode(item.metadata)
            redoes = _named(metadata, REDOES)
            void.update(redoes)
            if _named(metadata, UNDOES):
                if item.id not in void:
                    found.append(item.id)
                if len(found) == count:
                    return found
            elif not redoes:
                break
        raise NotFound(
            f"there is nothing more to redo: {len(found)} undos of {count}. Nothing was written. "
            "What was undone can be redone until something else is saved."
        )

    async def reverted(self, head: str, ids: list[str]) -> _Reverted:
        """The state at `head` without the changes that these checkpoints made, the newest first.

        Raises:
            UndoConflict: what one of them changed has been changed since.
        """
        state: dict[str, Any] = {}
        loaded: set[str] = set()
        present = await self._checkpoint(head, [])
        for id in ids:
            changes, _ = await self._changes(await self._checkpoint(id, []))
            names = {channel for channel, _ in changes} - loaded
            here = [name for name in names if name in present.hashes]
            if here:
                state.update(_decoded(await self._checkpoint(head, here)))
            loaded |= names
            for channel, change in reversed(changes):
                _revert(state, channel, change, checkpoint=id)
        return _Reverted(
            {name: value for name, value in state.items() if name in loaded},
            [name for name in loaded if name not in state and name in present.hashes],
            present,
        )

    async def keyed(self, head: str, key: str) -> requests.Checkpoint | None:
        """The checkpoint that was made under this key, if it is one of the last."""
        looked = 0
        async for item in self._history(head):
            if values.decode(item.metadata).get(KEY) == key:
                return item
            if (looked := looked + 1) > _PAGE:
                break
        return None

    async def _changes(self, found: requests.Checkpoint) -> tuple[list[tuple[str, Change]], set[str]]:
        """What a checkpoint changed of its first parent, and what of either is secret."""
        parent = await self._checkpoint(found.parents[0], []) if found.parents else None
        before = {} if parent is None else parent.hashes
        names = [name for name in {**before, **found.hashes} if before.get(name) != found.hashes.get(name)]
        sides = []
        for side in (parent, found):
            held = [name for name in names if side is not None and name in side.hashes]
            sides.append(_decoded(await self._checkpoint(side.id, held)) if side is not None and held else {})
        differing = channel_differences(*sides)
        secret = {*found.secret, *(() if parent is None else parent.secret)}
        return [(channel, change) for channel, changes in differing.items() for change in changes], secret

    async def _ids(self, head: str, stop: str | None, *, through: str | None) -> list[str]:
        """From the root, or after `stop`, or from `through` on, to the head."""
        ids: list[str] = []
        async for item in self._history(head):
            if item.id == stop:
                return ids[::-1]
            ids.append(item.id)
            if item.id == through:
                return ids[::-1]
        if stop or through:
            raise NotFound(f"checkpoint {stop or through} is not in the history of {head}. Begin without `after`.")
        return ids[::-1]

    async def _history(self, head: str) -> AsyncIterator[requests.Checkpoint]:
        if not head:
            return
        yield await self._checkpoint(head, [])
        before = head
        while True:
            request = requests.History(self._space, self._thread, "main", before, _PAGE)
            page = await self._connection.read(request)
            for item in page.items:
                yield item
            if not page.more or not page.items:
                return
            before = page.items[-1].id

    async def _checkpoint(self, id: str, channels: list[str]) -> requests.Checkpoint:
        return await self._connection.read(requests.Load(self._space, self._thread, id, "main", channels))


def _decoded(found: requests.Checkpoint) -> dict[str, Any]:
    return {name: values.decode_channel(packed, found.schema) for name, packed in found.channels.items()}


def _named(metadata: Any, field: str) -> list[str]:
    found = metadata.get(field) if isinstance(metadata, Mapping) else None
    return [id for id in found if isinstance(id, str)] if isinstance(found, list) else []


_INVERSE: dict[str, Literal["add", "remove", "replace"]] = {"add": "remove", "remove": "add", "replace": "replace"}
_ABSENT = object()


def _revert(state: dict[str, Any], channel: str, change: Change, *, checkpoint: str) -> None:
    """Take back one change of a channel, in `state`.

    Raises:
        UndoConflict: what it made is not there as it made it.
    """
    now = state.get(channel, _ABSENT) if not change.path else _at(state.get(channel, _ABSENT), change.path)
    made = _ABSENT if change.op == "remove" else change.after
    # An element that was removed from a list may have another one in its place by now.
    if not _same(now, made) and not (change.op == "remove" and _is_in_list(state.get(channel), change.path)):
        raise _conflict(channel, change, checkpoint)
    inverse = Change(_INVERSE[change.op], change.path, change.after, change.before)
    if not change.path and change.op == "add":
        del state[channel]
    elif not change.path:
        state[channel] = change.before
    else:
        try:
            state[channel] = applied(state[channel], [inverse])
        except (InvalidInput, KeyError):
            raise _conflict(channel, change, checkpoint) from None


def _conflict(channel: str, change: Change, checkpoint: str) -> UndoConflict:
    return UndoConflict(
        f"what checkpoint {checkpoint} changed in channel {channel!r} at {change.path or 'its root'!r} has been changed since. "
        "Nothing was written. Undo the later change first, or save the state that you want.",
        channel=channel,
        path=change.path,
    )


def _same(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    return not differences(one, other)


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _at(value: Any, path: str) -> Any:
    for step in _steps(path):
        try:
            value = value[step] if isinstance(value, dict) else value[int(step)]
        except (KeyError, IndexError, ValueError, TypeError):
            return _ABSENT
    return value


def _is_in_list(channel: Any, path: str) -> bool:
    """Whether a place is within a list that reaches so far."""
    steps = _steps(path)
    if not steps:
        return False
    within = _at(channel, path.rpartition("/")[0]) if len(steps) > 1 else channel
    return isinstance(within, (list, tuple)) and steps[-1].isdecimal() and int(steps[-1]) <= len(within)


@named
class ThreadMutations:
    """What a `Thread` offers of its mutations."""

    space: str
    name: str
    _connection: Connection
    _positions: Positions

    if TYPE_CHECKING:

        async def _save(self, request: requests.Save, key: str | None, durability: Durability | None) -> Checkpoint: ...

    async def mutations(
        self, *, branch: str = "main", after: str | None = None, limit: int | None = None, reveal: bool = False
    ) -> AsyncIterator[Mutation]:
        """Yield the changes of the state, oldest first: each changed place, with its author and time.

        `after` is a mutation's id or a checkpoint's, and leaves out all up to it. Of secret
        fields it shows that they changed, and with `reveal` how.

        Raises:
            NotFound: `after` is not in the branch's history.
        """
        head = await self._positions.newest(branch)
        if head:
            async for mutation in self._log.mutations(head, after=after, limit=limit, reveal=reveal):
                yield mutation

    async def undo(
        self,
        n: int = 1,
        *,
        branch: str = "main",
        checkpoint: str | None = None,
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Revert the changes of the branch's last `n` checkpoints, or of one by its id, in a new checkpoint.

        Raises:
            NotFound: there are not so many.
            UndoConflict: what they changed has been changed since.
            HeadMoved: somebody saves at the same time; load, and try again.
        """
        _check_count(n)
        head = await self._positions.newest(branch)
        if key is not None and (done := await self._log.keyed(head, key)) is not None:
            return shown_checkpoint(done, channels=False)
        ids = [checkpoint] if checkpoint is not None else await self._log.undoable(head, n)
        return await self._reverted(head, ids, branch, {UNDOES: ids}, key, durability)

    async def redo(
        self, n: int = 1, *, branch: str = "main", key: str | None = None, durability: Durability | None = None
    ) -> Checkpoint:
        """Revert the last `n` undos.

        Raises:
            NotFound: there are not so many since something else was saved.
            HeadMoved: somebody saves at the same time; load, and try again.
        """
        _check_count(n)
        head = await self._positions.newest(branch)
        if key is not None and (done := await self._log.keyed(head, key)) is not None:
            return shown_checkpoint(done, channels=False)
        ids = await self._log.redoable(head, n)
        return await self._reverted(head, ids, branch, {REDOES: ids}, key, durability)

    @property
    def _log(self) -> MutationLog:
        return MutationLog(self._connection, self.space, self.name)

    async def _reverted(
        self, head: str, ids: list[str], branch: str, told: dict[str, Any], key: str | None, durability: Durability | None
    ) -> Checkpoint:
        changes, removed, present = await self._log.reverted(head, ids)
        request = requests.Save(
            self.space,
            self.name,
            encode_channels(changes),
            encode_metadata(told if key is None else {**told, KEY: key}),
            branch,
            parent=head,
            delta=True,
            removed=removed,
            schema=present.schema,
            schema_version=present.schema_version,
            readable_from=present.readable_from,
            secret=present.secret,
        )
        return await self._save(request, key, durability)


def _check_count(n: int) -> None:
    if n < 1:
        raise InvalidInput(f"at least one change is taken back; got {n}. Nothing was written.")
