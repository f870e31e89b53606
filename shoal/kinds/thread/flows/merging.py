"""Merge the states of a thread's checkpoints, show what changed from one to another, and change the newest by hand.

A person's change of a thread's newest state: new values of channels, or a JSON Patch.

Law: what a patch copies is charged before it is copied (`shoal.values.work`), and others get a turn between its operations.

Three-way merges of states: several sides and their common base.

Laws:
- A merge depends only on the base and the sides in their order: merging the same heads makes the same state on every node.
- Per channel, sides that left the value unchanged do not count, and equal values count once.
- If every side that changed a list appended to it, the result is the base's elements and then each side's new ones,
  in the order of the sides.
- The resolver decides all other channels. Without one, or if it returns UNRESOLVED, the channel is in conflict.

Merge the heads of a branch, or given checkpoints, into one.

Laws:
- The sides have the same order on every node, so that two merges of the same heads make the same state.
- If all sides were saved under one version of a schema, so is the result. A path that is secret in one side stays secret.
- If the heads are already merged, a repeated merge writes nothing.
- The states of all sides together are bounded, and counted as they are read: many heads that share a large state cost little
  to make.

The changes from one checkpoint of a thread to another.

Law: a changed secret field is listed, but its values are hidden unless `reveal` is set.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from shoal import values
from shoal.errors import Conflict, InvalidInput, MergeConflict, NotFound, TooLarge
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints, encode_channels, encode_metadata, is_id
from shoal.kinds.thread.flows.mutations import KEY, keyed
from shoal.names import check_names
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.records import NamedTuple
from shoal.schemas.secret_fields import hidden
from shoal.values.difference import Change, channel_differences
from shoal.values.work import Allowance

OPERATIONS_MAX = 1000  # Of one patch, as of a document's.
_TURN = 50  # Operations after which others get a turn: some milliseconds.


async def edit(
    checkpoints: ThreadCheckpoints,
    patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    by: str,
    branch: str,
    key: str | None = None,
    durability: Durability | None = None,
) -> Checkpoint:
    """Apply a patch to the newest state, save it as a checkpoint of the author `by`, and load that.

    `patch` maps channels to their new values, or is a JSON Patch (RFC 6902) of the whole state.

    Raises:
        NotFound: the branch has no checkpoint.
        InvalidInput: it is not a patch, or it names a place that does not exist.
        Conflict: a `test` of the patch failed.
        HeadMoved: another save came first.
    """
    before = await checkpoints.load(branch=branch)
    if key is not None and (done := await keyed(checkpoints, before.id, key)):
        return await checkpoints.load(done.id, branch=branch)
    state, named = before.state, None
    if isinstance(patch, Mapping):
        after, named = {**state, **patch}, set(patch)
    else:
        after = await _patched(before.state, patch)
    check_names("channel", after)
    changed = {
        name: values.encode(value, where=f"state[{name!r}]")
        for name, value in after.items()
        if name not in state or ((named is None or name in named) and values.encode(value) != values.encode(state[name]))
    }
    request = requests.Save(
        checkpoints.space,
        checkpoints.thread,
        changed,
        encode_metadata(None if key is None else {KEY: key}),
        branch,
        before.id,
        delta=True,
        removed=[name for name in state if name not in after],
        author=by,
        schema=before.schema,
        schema_version=before.schema_version,
        readable_from=before.readable_from,
        secret=list(before.secret),
    )
    await checkpoints.commit(request, key, durability)
    return await checkpoints.load(branch=branch)


async def _patched(state: dict[str, Any], patch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not isinstance(patch, list | tuple) or not all(isinstance(operation, Mapping) for operation in patch):
        raise InvalidInput(
            'a change is a mapping of channels to values, or a JSON Patch as in [{"op": "replace", "path": "/a", "value": 1}]; '
            f"got {patch!r:.80}. Nothing was written."
        )
    if len(patch) > OPERATIONS_MAX:
        raise TooLarge(f"the patch has {len(patch)} operations; {OPERATIONS_MAX} are allowed. Nothing was written.")
    allowance, after = Allowance(), state
    for nth, operation in enumerate(patch):
        after = _applied(after, dict(operation), allowance)
        if nth % _TURN == _TURN - 1:
            await asyncio.sleep(0)
    if not isinstance(after, dict):
        raise InvalidInput("the JSON Patch does not result in a map of channels. Nothing was written.")
    return after


def _applied(state: Any, operation: dict[str, Any], allowance: Allowance) -> Any:
    # Imported here, because few programs edit states by a patch, and it takes a tenth of the time to import Shoal.
    import jsonpatch
    import jsonpointer

    try:
        if operation.get("op") == "copy" and isinstance(operation.get("from"), str):
            source = jsonpointer.JsonPointer(operation["from"]).resolve(state)
            allowance.charge(source)
            operation |= {"op": "add", "value": values.decode(values.encode(source))}  # Much faster than a deep copy.
        return jsonpatch.apply_patch(state, [operation], in_place=True)
    except jsonpatch.JsonPatchTestFailed as failed:
        raise Conflict(f"a test of the patch failed: {failed}. Nothing was written. Read the current state.") from None
    except InvalidInput:
        raise
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, ValueError, KeyError) as wrong:
        raise InvalidInput(f"the JSON Patch cannot be applied: {wrong}. Nothing was written.") from None


class Absent:
    """Stands for a channel that a side does not have; a resolver that returns it removes the channel."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class Unresolved:
    """A resolver returns this for a channel that it does not decide."""

    def __repr__(self) -> str:
        return "UNRESOLVED"


UNRESOLVED = Unresolved()

Resolver = Callable[[str, Any, Sequence[Any]], Any | Awaitable[Any]]
"""(channel, base, the sides' different values) → the merged value. It may be asynchronous."""


async def merged(
    base: Mapping[str, Any], sides: Sequence[Mapping[str, Any]], resolver: Resolver | None = None
) -> dict[str, Any]:
    """Merge several states into one.

    Raises:
        MergeConflict: channels are in conflict, and no resolver decides them; the error names them.
    """
    state: dict[str, Any] = {}
    conflicts: list[str] = []
    for name in dict.fromkeys(name for one in (base, *sides) for name in one):
        began, made = base.get(name, ABSENT), _changed(base.get(name, ABSENT), [side.get(name, ABSENT) for side in sides])
        await asyncio.sleep(0)  # Each channel was packed once for each side; others get a turn.
        if not made:
            value = began
        elif len(made) == 1:
            value = made[0]
        elif (grown := _grown(began, made)) is not None:
            value = grown
        elif resolver is not None:
            value = resolver(name, began, made)
            value = await value if inspect.isawaitable(value) else value
        else:
            value = UNRESOLVED
        if value is UNRESOLVED:
            conflicts.append(name)
        elif value is not ABSENT:
            state[name] = value
    if conflicts:
        raise MergeConflict(
            f"channels {', '.join(map(repr, conflicts))} were changed in conflicting ways. Nothing was written. "
            "Pass a resolver(channel, base, sides) -> value; over HTTP and in the shell, give the values themselves.",
            channels=conflicts,
        )
    return state


def _changed(began: Any, sides: list[Any]) -> list[Any]:
    """The distinct values of the sides, without those that left the value unchanged."""
    made: dict[bytes, Any] = {}
    for side in sides:
        made.setdefault(_packed(side), side)
    made.pop(_packed(began), None)
    return list(made.values())


def _grown(began: Any, made: list[Any]) -> list[Any] | None:
    """The base's elements and then all elements that the sides appended; None if a side did anything else."""
    first = [] if began is ABSENT else began
    if not isinstance(first, list) or not all(isinstance(side, list) and len(side) >= len(first) for side in made):
        return None
    prefix = [_packed(element) for element in first]
    if any([_packed(element) for element in side[: len(first)]] != prefix for side in made):
        return None
    return first + [element for side in made for element in side[len(first) :]]


def _packed(value: Any) -> bytes:
    # A packed value is never empty.
    return b"" if value is ABSENT else values.encode(value)


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
