"""The changes of a thread's state, one by one; undo and redo.

The mutation log of a thread's state: each change with its place, author and time.

Law: the log is not stored. It is computed from the differences between successive checkpoints of a branch,
along first parents. So it is complete, and costs nothing until it is read. Reading a list that only grew
costs what was appended, not its length.

Undo and redo of a thread's checkpoints.

Laws:
- An undo is a new checkpoint that reverts the changes of one or more others, and names them. It
  removes nothing from the history. It is rejected if a later checkpoint changed the same places.
- An undo can be redone until something else is saved on the branch.
- An undo or redo that is repeated with the same key returns the first one's checkpoint, which
  has the key in its metadata; it is searched among about the last `PAGE` checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from shoal import values
from shoal.errors import InvalidInput, NotFound, UndoConflict
from shoal.kinds.thread.flows.checkpoints import (
    PAGE,
    Checkpoint,
    ThreadCheckpoints,
    decoded,
    encode_channels,
    encode_metadata,
    shown_checkpoint,
)
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, Durability
from shoal.records import NamedTuple
from shoal.schemas.secret_fields import hidden
from shoal.values.difference import Change, Owned, applied, channel_differences, differences
from shoal.workflows.connection import moment


class Mutation(Struct, frozen=True):
    """One change of one place in the state."""

    id: str  # Continue after it with `after`.
    checkpoint: str
    channel: str
    op: Literal["add", "remove", "replace"]
    path: str  # A JSON pointer within the channel; empty for the channel itself.
    before: Any  # None if it was added.
    after: Any  # None if it was removed.
    author: str
    time: datetime


async def mutations(
    checkpoints: ThreadCheckpoints, head: str, *, after: str | None, limit: int | None, reveal: bool
) -> AsyncIterator[Mutation]:
    """The mutations up to `head`, oldest first.

    Raises:
        InvalidInput: `after` is not the id of a mutation or a checkpoint.
        NotFound: `after` is in no checkpoint that `head` descends from.
    """
    if head == NO_HEAD:
        return
    stop, _, skipped = (after or "").partition("/")
    if skipped and not skipped.isdecimal():
        raise InvalidInput("this is not the id of a mutation. Use an id of an earlier mutation unchanged.")
    ids = await _ids(checkpoints, head, stop if not skipped else None, through=stop if skipped else None)
    given = 0
    found: requests.Checkpoint | None = None
    for id in ids:
        found, changes, secret, _ = await changes_of(checkpoints, id, parent=found)
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


class CheckpointChanges(NamedTuple):
    """The changes of a checkpoint relative to its first parent."""

    checkpoint: requests.Checkpoint
    changes: list[tuple[str, Change]]  # With the channel of each.
    secret: set[str]  # The secret paths of both.
    channels: list[str]  # All channels that differ, also those whose changes are hidden from this reader.


async def changes_of(
    checkpoints: ThreadCheckpoints, id: str, *, parent: requests.Checkpoint | None = None
) -> CheckpointChanges:
    """The changes of a checkpoint. `parent`: its first parent, with any of its channels, if it is at hand."""
    delta = await checkpoints.connection.read(requests.ReadDelta(checkpoints.space, checkpoints.thread, id))
    found = delta.checkpoint
    if not found.parents:
        parent = None
    elif parent is None or parent.id != found.parents[0]:
        parent = await checkpoints.read(found.parents[0], [])
    before = {} if parent is None else parent.hashes
    # Of a channel that is not shown in full the hash always differs: the delta says whether the channel does.
    changed = found.channels.keys() | delta.appended.keys()
    names = [name for name in {**before, **found.hashes} if name not in found.hashes or name in changed]
    old: dict[str, Any] = {}
    if parent is not None:
        whole = [name for name in names if name in before and name not in delta.appended]
        held = {name: parent.channels[name] for name in whole if name in parent.channels}
        old = {name: values.decode_channel(packed, parent.schema) for name, packed in held.items()}
        old |= await checkpoints.states(parent.id, [name for name in whole if name not in held])
    differing = channel_differences(old, decoded(found))
    for name, more in delta.appended.items():
        elements = values.decode_channel(more.elements, found.schema)
        differing[name] = [Change("add", f"/{more.at + nth}", after=element) for nth, element in enumerate(elements)]
    changes = [(name, change) for name in names for change in differing.get(name, ())]
    return CheckpointChanges(found, changes, {*found.secret, *(() if parent is None else parent.secret)}, names)


async def _ids(checkpoints: ThreadCheckpoints, head: str, stop: str | None, *, through: str | None) -> list[str]:
    """The first parents up to `head`, oldest first: from the root, after `stop`, or from `through` on."""
    ids: list[str] = []
    async for found in checkpoints.first_parents(head):
        if found.id == stop:
            return ids[::-1]
        ids.append(found.id)
        if found.id == through:
            return ids[::-1]
    if stop or through:
        raise NotFound(f"checkpoint {stop or through} is not in the history of {head}. Begin without `after`.")
    return ids[::-1]


UNDOES, REDOES = "shoal.undoes", "shoal.redoes"  # In a checkpoint's metadata: ids of checkpoints.
_TURN = 200  # Changes after which others get a turn: some milliseconds.
KEY = "shoal.key"  # In the metadata of an undo, a redo or an edit: the caller's key.


async def undo(
    checkpoints: ThreadCheckpoints,
    count: int,
    *,
    branch: str,
    checkpoint: str | None = None,
    key: str | None = None,
    durability: Durability | None = None,
) -> Checkpoint:
    """Revert the changes of the branch's last `count` checkpoints, or of the given one, in a new checkpoint.

    Raises:
        InvalidInput: both a count and a checkpoint are given.
        NotFound: there are fewer.
        UndoConflict: later checkpoints changed the same places.
        HeadMoved: another save came first.
    """
    _check_count(count)
    if checkpoint is not None and count != 1:
        raise InvalidInput(
            "give either the number of changes to undo or a checkpoint, not both. Nothing was written.", field="count"
        )
    head = await checkpoints.newest(branch)
    if key is not None and (done := await keyed(checkpoints, head, key)) is not None:
        return shown_checkpoint(done, channels=False)
    # The id itself is recorded, also if a label was given.
    ids = [(await checkpoints.read(checkpoint, [])).id] if checkpoint is not None else await _undoable(checkpoints, head, count)
    return await _reverted(checkpoints, head, ids, branch, {UNDOES: ids}, key, durability)


async def redo(
    checkpoints: ThreadCheckpoints, count: int, *, branch: str, key: str | None = None, durability: Durability | None = None
) -> Checkpoint:
    """Revert the last `count` undos.

    Raises:
        NotFound: there are fewer since something else was saved.
        HeadMoved: another save came first.
    """
    _check_count(count)
    head = await checkpoints.newest(branch)
    if key is not None and (done := await keyed(checkpoints, head, key)) is not None:
        return shown_checkpoint(done, channels=False)
    ids = await _redoable(checkpoints, head, count)
    return await _reverted(checkpoints, head, ids, branch, {REDOES: ids}, key, durability)


async def keyed(checkpoints: ThreadCheckpoints, head: str, key: str) -> requests.Checkpoint | None:
    """The checkpoint that was made under this key, if it is among about the last `PAGE`; else None."""
    looked = 0
    async for found in checkpoints.first_parents(head):
        if values.decode(found.metadata).get(KEY) == key:
            return found
        if (looked := looked + 1) > PAGE:
            break
    return None


async def _undoable(checkpoints: ThreadCheckpoints, head: str, count: int) -> list[str]:
    """The last `count` checkpoints that are not undone, newest first.

    Raises:
        NotFound: there are fewer.
    """
    undone: set[str] = set()
    void: set[str] = set()
    ids: list[str] = []
    async for found in checkpoints.first_parents(head):
        metadata = values.decode(found.metadata)
        void.update(_named(metadata, REDOES))
        if undoes := _named(metadata, UNDOES):
            if found.id not in void:
                undone.update(undoes)
        elif REDOES not in metadata and found.id not in undone:
            ids.append(found.id)
            if len(ids) == count:
                return ids
    raise NotFound(f"there is nothing more to undo: {len(ids)} of {count} changes. Nothing was written.")


async def _redoable(checkpoints: ThreadCheckpoints, head: str, count: int) -> list[str]:
    """The last `count` undos, newest first, if nothing else was saved after them.

    Raises:
        NotFound: there are fewer.
    """
    void: set[str] = set()
    ids: list[str] = []
    async for found in checkpoints.first_parents(head):
        metadata = values.decode(found.metadata)
        redoes = _named(metadata, REDOES)
        void.update(redoes)
        if _named(metadata, UNDOES):
            if found.id not in void:
                ids.append(found.id)
            if len(ids) == count:
                return ids
        elif not redoes:
            break
    raise NotFound(
        f"there is nothing more to redo: {len(ids)} of {count} undos. Nothing was written. "
        "An undo can be redone until something else is saved."
    )


async def _reverted(
    checkpoints: ThreadCheckpoints,
    head: str,
    ids: list[str],
    branch: str,
    told: dict[str, Any],
    key: str | None,
    durability: Durability | None,
) -> Checkpoint:
    """Save the state at `head` without the changes of these checkpoints, which are newest first.

    Raises:
        UndoConflict: later checkpoints changed the same places.
    """
    state: dict[str, Any] = {}
    loaded: set[str] = set()
    owned: Owned = {}
    present = await checkpoints.read(head, [])
    for id in ids:
        made = await changes_of(checkpoints, id)
        names = set(made.channels) - loaded
        state.update(await checkpoints.states(head, [name for name in names if name in present.hashes]))
        loaded |= names
        for nth, (channel, change) in enumerate(reversed(made.changes)):
            _revert(state, channel, change, owned, checkpoint=id)
            if nth % _TURN == _TURN - 1:
                await asyncio.sleep(0)
    request = requests.Save(
        checkpoints.space,
        checkpoints.thread,
        encode_channels({name: value for name, value in state.items() if name in loaded}),
        encode_metadata(told if key is None else {**told, KEY: key}),
        branch,
        parent=head,
        delta=True,
        removed=[name for name in loaded if name not in state and name in present.hashes],
        schema=present.schema,
        schema_version=present.schema_version,
        readable_from=present.readable_from,
        secret=present.secret,
    )
    return await checkpoints.save(request, key, durability)


def _check_count(count: int) -> None:
    if count < 1:
        raise InvalidInput(f"the number of changes to take back must be at least 1; got {count}. Nothing was written.")


def _named(metadata: Any, field: str) -> list[str]:
    found = metadata.get(field) if isinstance(metadata, Mapping) else None
    return [id for id in found if isinstance(id, str)] if isinstance(found, list) else []


_INVERSE: dict[str, Literal["add", "remove", "replace"]] = {"add": "remove", "remove": "add", "replace": "replace"}
_ABSENT = object()


def _revert(state: dict[str, Any], channel: str, change: Change, owned: Owned, *, checkpoint: str) -> None:
    """Revert one change of a channel in `state`.

    Raises:
        UndoConflict: the value is not the one that the change made.
    """
    now = state.get(channel, _ABSENT) if not change.path else _at(state.get(channel, _ABSENT), change.path)
    made = _ABSENT if change.op == "remove" else change.after
    # After a removal from a list, another element may be in its place.
    if not _same(now, made) and not (change.op == "remove" and _is_in_list(state.get(channel), change.path)):
        raise _conflict(channel, change, checkpoint)
    inverse = Change(_INVERSE[change.op], change.path, change.after, change.before)
    if not change.path and change.op == "add":
        del state[channel]
    elif not change.path:
        state[channel] = change.before
    else:
        try:
            state[channel] = applied(state[channel], [inverse], owned)
        except (InvalidInput, KeyError):
            raise _conflict(channel, change, checkpoint) from None


def _conflict(channel: str, change: Change, checkpoint: str) -> UndoConflict:
    return UndoConflict(
        f"checkpoint {checkpoint} changed channel {channel!r} at {change.path or 'its root'!r}, which has been changed since. "
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
    """Whether `path` is an index within a list of the channel, or its end."""
    steps = _steps(path)
    if not steps:
        return False
    within = _at(channel, path.rpartition("/")[0]) if len(steps) > 1 else channel
    return isinstance(within, (list, tuple)) and steps[-1].isdecimal() and int(steps[-1]) <= len(within)
