"""`ShoalCheckpointStorage`: checkpoints of workflows on Shoal.

Laws:
- A checkpoint is two items, written at once: what lists it, and its content. So listing ids reads no content.
- Its content is the framework's encoding, stored as it is. Parts of that are pickled by the framework, so it is decoded
  only with its allow-list: its own types, and those that the caller names.
- A checkpoint that could not be decoded again is not saved. One that cannot be decoded is an error, and is never left out:
  else the latest would be an older one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from agent_framework import WorkflowCheckpoint
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
from agent_framework.exceptions import WorkflowCheckpointException

from shoal.client.store import Store
from shoal.integrations import escaping
from shoal.integrations.base import Bridge, checked_store, settled
from shoal.kinds.items.handle.item import delete_request, put_request
from shoal.protocol import requests

NAME = "microsoft"
FORM = 1
"""The version of the form in which records are stored."""
_TAG = escaping.tag("checkpoints")
_LISTED = (_TAG, "listed")
_CONTENTS = (_TAG, "contents")
_UNSAFE = escaping.unsafe()


class ShoalCheckpointStorage:
    """Keeps the checkpoints of workflows in one space. Its methods work on any event loop."""

    def __init__(self, store: Store, *, space: str = NAME, allowed_checkpoint_types: Iterable[str] = ()) -> None:
        """A storage on a store that is open on the running loop, and that the caller closes.

        `allowed_checkpoint_types`: types of yours that checkpoints hold, as "module:qualname".

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalState.open`.
        """
        self._connection = checked_store(store, "ShoalState").connection
        self._space = store.space(space)
        self._bridge = Bridge()
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, and return its id. One with the same id is replaced.

        Raises:
            WorkflowCheckpointException: it could not be loaded again, for example because it holds a type that is not
                allowed; nothing was written.
            TooLarge: it is larger than a request may be; nothing was written.
            InvalidName: its id is longer than a name; nothing was written.
        """
        key, encoded = _key(checkpoint.checkpoint_id), self._encoded(checkpoint)
        listed = {NAME: FORM, "id": checkpoint.checkpoint_id, "workflow": checkpoint.workflow_name}
        listed["timestamp"] = checkpoint.timestamp
        writes: list[requests.BatchWrite] = [
            put_request(self._space.name, _LISTED, key, listed),
            put_request(self._space.name, _CONTENTS, key, {NAME: FORM, "checkpoint": encoded}),
        ]
        await settled(self._bridge.awaited(lambda: self._write(writes)))
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """A checkpoint by its id.

        Raises:
            WorkflowCheckpointException: there is none, or it holds a type that is not allowed.
            SchemaTooNew: a newer version of Shoal wrote it.
        """
        (found,) = await self._loaded([checkpoint_id])
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return found

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """All checkpoints of a workflow, the oldest first. Raises as `load`."""
        found = await self._loaded(await self.list_checkpoint_ids(workflow_name=workflow_name))
        return [each for each in found if each is not None]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; False if there is none."""
        key = _key(checkpoint_id)
        writes: list[requests.BatchWrite] = [
            delete_request(self._space.name, namespace, key) for namespace in (_LISTED, _CONTENTS)
        ]
        reply = await settled(self._bridge.awaited(lambda: self._write(writes)))
        return any(getattr(each, "deleted", False) for each in reply.replies)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The checkpoint of a workflow with the latest time; None if it has none. Raises as `load`."""
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        return await self.load(ids[-1]) if ids else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """The ids of all checkpoints of a workflow, the oldest first."""
        listed = await self._bridge.awaited(lambda: self._listed(workflow_name))
        listed.sort(key=lambda record: datetime.fromisoformat(record["timestamp"]))
        return [record["id"] for record in listed]

    # ── reading and writing ───────────────────────────────────────────────────

    async def _write(self, writes: list[requests.BatchWrite]) -> requests.BatchReply:
        return await self._connection.write(requests.Batch(writes), key=None, durability=None)

    async def _listed(self, workflow: str) -> list[Any]:
        found = []
        async for item in self._space.items.scan(_LISTED, filter={"workflow": workflow}):
            record = escaping.of_form(item.value, NAME, FORM)
            if record is not None:
                found.append(record)
        return found

    async def _loaded(self, ids: list[str]) -> list[WorkflowCheckpoint | None]:
        names = [(_CONTENTS, _key(id)) for id in ids]
        items = await self._bridge.awaited(lambda: self._space.items.get_many(names))
        records = [None if item is None else escaping.of_form(item.value, NAME, FORM) for item in items]
        return [None if record is None else self._decoded(record["checkpoint"]) for record in records]

    def _encoded(self, checkpoint: WorkflowCheckpoint) -> Any:
        try:
            encoded = escaping.stored(encode_checkpoint_value(checkpoint.to_dict()), "the checkpoint")
            self._decoded(encoded)
        except Exception as error:
            raise WorkflowCheckpointException(
                f"Checkpoint {checkpoint.checkpoint_id} could not be loaded again: {error}. Nothing was written."
            ) from error
        return encoded

    def _decoded(self, encoded: Any) -> WorkflowCheckpoint:
        decoded = decode_checkpoint_value(escaping.shown(encoded), allowed_types=self._allowed)
        return WorkflowCheckpoint.from_dict(decoded)


def _key(checkpoint_id: str) -> str:
    return escaping.name_of(checkpoint_id, _UNSAFE)
