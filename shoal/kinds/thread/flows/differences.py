"""The changes from one checkpoint of a thread to another.

Law: a changed secret field is listed, but its values are hidden unless `reveal` is set.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from shoal.errors import NotFound
from shoal.kinds.thread.flows.checkpoint import is_id
from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints
from shoal.protocol import requests
from shoal.schemas.pointers import hidden
from shoal.values.difference import Change, channel_differences


class Difference(Struct, frozen=True):
    """The changes from the checkpoint `before` to the checkpoint `after`."""

    before: str
    after: str
    channels: dict[str, list[Change]]  # Only channels that differ.


async def difference(
    checkpoints: ThreadCheckpoints, before: str, after: str, *, reveal: bool, stale: bool = False
) -> Difference:
    """Compare two checkpoints, each given by its id, a branch's name or a label. Only channels whose hashes differ are read.

    Raises:
        NotFound: there is no such checkpoint, branch or label.
    """
    first, second = await _named(checkpoints, before, stale), await _named(checkpoints, after, stale)
    names = [name for name in {**first.hashes, **second.hashes} if first.hashes.get(name) != second.hashes.get(name)]
    sides = [
        await checkpoints.states(found.id, [name for name in names if name in found.hashes], stale=stale)
        for found in (first, second)
    ]
    changes = channel_differences(*sides)
    return Difference(first.id, second.id, changes if reveal else _hidden(changes, {*first.secret, *second.secret}))


async def _named(checkpoints: ThreadCheckpoints, place: str, stale: bool) -> requests.Checkpoint:
    """A checkpoint by its id, a branch's name or a label, without its channels."""
    if is_id(place):
        return await checkpoints.read(place, [], stale=stale)
    try:
        return await checkpoints.read(None, [], branch=place, stale=stale)
    except NotFound as missing:
        try:
            return await checkpoints.read(place, [], stale=stale)
        except NotFound:
            raise missing from None


def _hidden(changes: dict[str, list[Change]], secret: set[str]) -> dict[str, list[Change]]:
    """The changes with secret values hidden."""

    def shown(name: str, change: Change) -> Change:
        before, after = (hidden(secret, name, change.path, value) for value in (change.before, change.after))
        return replace(change, before=before, after=after)

    return {name: [shown(name, change) for change in found] for name, found in changes.items()}
