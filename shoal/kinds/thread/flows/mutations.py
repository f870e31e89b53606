"""The mutation log of a thread's state: each change with its place, author and time.

Law: the log is not stored. It is computed from the differences between successive checkpoints of a branch,
along first parents. So it is complete, and costs nothing until it is read. Reading a list that only grew
costs what was appended, not its length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from shoal import values
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints, decoded
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD
from shoal.records import NamedTuple
from shoal.schemas.pointers import hidden
from shoal.values.difference import Change, channel_differences
from shoal.workflows.moments import moment


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
