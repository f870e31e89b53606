"""A person's change of a thread's newest state: new values of channels, or a JSON Patch.

Law: what a patch copies is charged before it is copied (`shoal.values.work`), and others get a turn between its operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from shoal import values
from shoal.errors import Conflict, InvalidInput, TooLarge
from shoal.kinds.thread.flows.checkpoints import Checkpoint, ThreadCheckpoints, encode_metadata
from shoal.kinds.thread.flows.mutations import KEY, keyed
from shoal.names import check_names
from shoal.protocol import requests
from shoal.protocol.requests import Durability
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
