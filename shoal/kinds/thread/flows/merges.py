"""Merge the heads of a branch, or given checkpoints, into one.

Laws:
- The sides have the same order on every node, so that two merges of the same heads make the same state.
- If all sides were saved under one version of a schema, so is the result. A path that is secret in one side stays secret.
- If the heads are already merged, a repeated merge writes nothing.
- The states of all sides together are bounded, and counted as they are read: many heads that share a large state cost little
  to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import NotFound, TooLarge
from shoal.kinds.thread.flows.checkpoint import Checkpoint, encode_channels, encode_metadata
from shoal.kinds.thread.flows.checkpoints import ThreadCheckpoints
from shoal.kinds.thread.flows.merging import Resolver, merged
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.records import NamedTuple

STATES_BYTES_MAX = 128 * 1024 * 1024  # Of all sides and their base: as much as eight saves of the largest size.


class Sides(NamedTuple):
    """The inputs of a merge."""

    base_id: str | None  # The nearest common ancestor; None if there is none.
    ordered: tuple[str, ...]  # The ids of the sides, oldest first; the same order on every node.
    base: dict[str, Any]
    states: list[dict[str, Any]]  # In that order.
    schema: str  # The schema of all sides; empty if they differ.
    schema_version: int
    readable_from: int
    secret: list[str]  # Of all sides.
    hides: list[
        str
    ]  # Those, and those of the ancestor: a side under a newer version of the schema may have declared them open.


async def sides(checkpoints: ThreadCheckpoints, heads: Sequence[str] | None, *, branch: str) -> Sides:
    """Read the inputs that `merge` would have with the same arguments.

    Raises:
        NotFound: there is no such branch or checkpoint.
        TooLarge: their states are larger together than one merge may read.
    """
    return await _sides(checkpoints, _wanted(checkpoints, heads, (await checkpoints.heads()).get(branch, []), branch))


async def merge(
    checkpoints: ThreadCheckpoints,
    heads: Sequence[str] | None,
    resolver: Resolver | None,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
    key: str | None = None,
    durability: Durability | None = None,
) -> Checkpoint:
    """Save the merge of all heads of a branch, or of the given checkpoints, on the branch. With one head, load it.

    Raises:
        MergeConflict: channels are in conflict, and no resolver decides them.
        HeadMoved: the branch moved meanwhile; merge again.
        NotFound: there is no such branch or checkpoint.
        TooLarge: their states are larger together than one merge may read.
    """
    there = (await checkpoints.heads()).get(branch, [])
    wanted = _wanted(checkpoints, heads, there, branch)
    if len(wanted) == 1 or await _joined_already(checkpoints, there, wanted):
        return await checkpoints.load(wanted[0], branch=branch)
    joined = await _sides(checkpoints, wanted)
    state = await merged(joined.base, joined.states, resolver)
    parent = next((id for id in there if id in joined.ordered), joined.ordered[0])
    request = requests.Save(
        checkpoints.space,
        checkpoints.thread,
        encode_channels(state),
        encode_metadata(metadata),
        branch,
        parent,
        schema=joined.schema,
        schema_version=joined.schema_version,
        readable_from=joined.readable_from,
        secret=joined.secret,
        merged=[id for id in joined.ordered if id != parent],
    )
    return await checkpoints.save(request, key, durability)


def _wanted(checkpoints: ThreadCheckpoints, heads: Sequence[str] | None, there: Sequence[str], branch: str) -> list[str]:
    wanted = list(dict.fromkeys([*there[:1], *heads] if heads is not None else there))
    if not wanted:
        raise NotFound(f"thread {checkpoints.thread!r} has no branch {branch!r} to merge. Nothing was written.")
    return wanted


async def _joined_already(checkpoints: ThreadCheckpoints, there: Sequence[str], wanted: list[str]) -> bool:
    """Whether the branch's only head already merges the others, because the answer to an earlier call was lost."""
    return list(there) == wanted[:1] and set(wanted[1:]) <= set((await checkpoints.read(wanted[0], [])).parents)


async def _sides(checkpoints: ThreadCheckpoints, wanted: list[str]) -> Sides:
    asked = await checkpoints.connection.read(requests.CommonAncestor(checkpoints.space, checkpoints.thread, wanted))
    base, *found = await _read(checkpoints, [asked.id, *asked.ordered])
    claims = {(side.schema, side.schema_version) for side in found}
    schema, version = claims.pop() if len(claims) == 1 else ("", 0)
    secret = {pointer for side in found for pointer in side.secret}
    return Sides(
        asked.id,
        tuple(asked.ordered),
        {} if base is None else checkpoints.state_of(base),
        [checkpoints.state_of(side) for side in found],
        schema,
        version,
        max(side.readable_from for side in found) if schema else 0,
        sorted(secret),
        sorted(secret if base is None else secret.union(base.secret)),
    )


async def _read(checkpoints: ThreadCheckpoints, ids: Sequence[str | None]) -> list[Any]:
    """These checkpoints with their states; None for None."""
    found: list[requests.Checkpoint | None] = []
    left = STATES_BYTES_MAX
    for id in ids:
        one = None if id is None else await checkpoints.read(id)
        found.append(one)
        left -= 0 if one is None else sum(map(len, one.channels.values()))
        if left < 0:
            raise TooLarge(
                f"the states of the {len(ids) - 1} heads take more than {STATES_BYTES_MAX} bytes together. "
                "Nothing was written. Merge fewer of them at a time: name them in `heads`."
            )
    return found
