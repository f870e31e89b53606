"""A person's change of a thread's newest state: new values of channels, or a JSON Patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal import values
from shoal.errors import Conflict, InvalidInput
from shoal.names import check_names
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.checkpoint import Checkpoint, encode_metadata
from shoal.workflows.checkpoints import ThreadCheckpoints
from shoal.workflows.undo import KEY, keyed


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
    state = before.state
    after = {**state, **patch} if isinstance(patch, Mapping) else _patched(before.state, patch)
    check_names("channel", after)
    changed = {
        name: values.encode(value, where=f"state[{name!r}]")
        for name, value in after.items()
        if name not in state or values.encode(value) != values.encode(state[name])
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


def _patched(state: dict[str, Any], patch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # Imported here, because few programs edit states by a patch, and it takes a tenth of the time to import Shoal.
    import jsonpatch
    import jsonpointer

    if not isinstance(patch, list | tuple) or not all(isinstance(operation, Mapping) for operation in patch):
        raise InvalidInput(
            'a change is a mapping of channels to values, or a JSON Patch as in [{"op": "replace", "path": "/a", "value": 1}]; '
            f"got {patch!r:.80}. Nothing was written."
        )
    try:
        after = jsonpatch.apply_patch(state, [dict(operation) for operation in patch], in_place=True)
    except jsonpatch.JsonPatchTestFailed as failed:
        raise Conflict(f"a test of the patch failed: {failed}. Nothing was written. Read the current state.") from None
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, ValueError, KeyError) as wrong:
        raise InvalidInput(f"the JSON Patch cannot be applied: {wrong}. Nothing was written.") from None
    if not isinstance(after, dict):
        raise InvalidInput("the JSON Patch does not result in a map of channels. Nothing was written.")
    return after
