"""The Microsoft Agent Framework on Shoal: checkpoints of workflows, and histories of agents.

async with ShoalState.open("./state") as shoal:
    workflow = WorkflowBuilder(name="refund", start_executor=first, checkpoint_storage=shoal.checkpoints).build()
    agent = Agent(client=client, context_providers=[shoal.history])

Laws:
- A checkpoint is two items, written at once: its entry in the list, and its content. So listing ids reads no content.
- Its content is the framework's encoding, stored as it is. Parts of that are pickled by the framework, so it is decoded
  only with its allow-list: its own types, and those that the caller names.
- A checkpoint that could not be decoded again is not saved. One that cannot be decoded is an error, and is never left out:
  else the latest would be an older one.
- A session is the journal of a thread. What is saved at once, which is all that one run said, is one write.
- Of two that save at once, one comes after the other, and both are there whole. Each is compared with what is there then:
  as in the framework's own providers, a transcript that is saved again adds only what is new in it.
"""

from __future__ import annotations

try:
    import agent_framework as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.microsoft needs the package agent-framework-core, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[microsoft]'",
        name=missing.name,
    ) from None

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from agent_framework import HistoryProvider, Message, WorkflowCheckpoint
from agent_framework._sessions import filter_new_messages
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
from agent_framework.exceptions import WorkflowCheckpointException

from shoal import values
from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import ItemChanged, NotFound
from shoal.integrations import contents
from shoal.integrations.base import Bridge, OnStore, checked_store, settled
from shoal.kinds.items.handle.item import delete_request, put_request
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.raising import partly

__all__ = [
    "ShoalCheckpointStorage",
    "ShoalHistoryProvider",
    "ShoalState",
]


NAME = "microsoft"
FORM = 1
"""The version of the form in which records are stored."""
_TAG = contents.tag("checkpoints")
_LISTED = (_TAG, "listed")
_CONTENTS = (_TAG, "contents")
_UNSAFE = contents.unsafe()


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
            record = contents.of_form(item.value, NAME, FORM)
            if record is not None:
                found.append(record)
        return found

    async def _loaded(self, ids: list[str]) -> list[WorkflowCheckpoint | None]:
        names = [(_CONTENTS, _key(id)) for id in ids]
        items = await self._bridge.awaited(lambda: self._space.items.get_many(names))
        records = [None if item is None else contents.of_form(item.value, NAME, FORM) for item in items]
        return [None if record is None else self._decoded(record["checkpoint"]) for record in records]

    def _encoded(self, checkpoint: WorkflowCheckpoint) -> Any:
        try:
            encoded = contents.stored(encode_checkpoint_value(checkpoint.to_dict()), "the checkpoint")
            self._decoded(encoded)
        except Exception as error:
            raise WorkflowCheckpointException(
                f"Checkpoint {checkpoint.checkpoint_id} could not be loaded again: {error}. Nothing was written."
            ) from error
        return encoded

    def _decoded(self, encoded: Any) -> WorkflowCheckpoint:
        decoded = decode_checkpoint_value(contents.shown(encoded), allowed_types=self._allowed)
        return WorkflowCheckpoint.from_dict(decoded)


def _key(checkpoint_id: str) -> str:
    return contents.name_of(checkpoint_id, _UNSAFE)


DEFAULT_SESSION = "default"
_IN_KEY = contents.unsafe()


class ShoalHistoryProvider(HistoryProvider):
    """Keeps the messages of sessions in one space. Its methods work on any event loop."""

    def __init__(
        self, store: Store, *, space: str = NAME, source_id: str = "shoal", skip_excluded: bool = False, **options: Any
    ) -> None:
        """A provider on a store that is open on the running loop, and that the caller closes.

        `skip_excluded` leaves out messages that a compaction has excluded; `options` are those of `HistoryProvider`.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalState.open`.
        """
        super().__init__(source_id, **options)
        self._connection = checked_store(store, "ShoalState").connection
        self._space = store.space(space)
        self._bridge = Bridge()
        self.skip_excluded = skip_excluded

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """The messages of a session, the oldest first; of the session "default" if none is named.

        Raises:
            SchemaTooNew: a newer version of Shoal wrote one.
            InvalidName: the id is longer than a name.
        """
        thread = _thread(session_id)
        messages = await self._bridge.awaited(lambda: self._read(thread))
        return [each for each in messages if not (self.skip_excluded and each.additional_properties.get("_excluded"))]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the messages that are not there yet, all or none.

        Raises:
            InvalidValue: a message is no JSON; nothing was written.
            TooLarge: there are more than one batch holds, or they are larger than a request; nothing was written.
            InvalidName: the id is longer than a name; nothing was written.
            OutcomeUnknown: they may be stored; save them again with their ids, or look at what is there.
        """
        thread, given = _thread(session_id), list(messages)
        for nth, message in enumerate(given):
            _packed(message, nth)
        if given:
            await settled(self._bridge.awaited(lambda: self._save(thread, given)))

    async def clear(self, session_id: str | None) -> None:
        """Delete the messages of a session, on every node. Messages that are saved later begin it anew."""
        thread = _thread(session_id)
        await settled(self._bridge.awaited(lambda: self._clear(thread)))

    # ── on the store's loop ───────────────────────────────────────────────────

    async def _read(self, thread: str) -> list[Message]:
        found = []
        async for event in self._space.thread(thread).journal.read():
            record = contents.of_form(event.event, NAME, FORM)
            if record is not None:  # Else an event of the node itself, such as a pause.
                found.append(Message.from_dict(contents.shown(record["message"])))
        return found

    async def _save(self, thread: str, messages: list[Message]) -> None:
        pauses = contended(self._connection)
        while True:
            # The item first: what is read later holds at least what its version says.
            item = await self._space.items.get(*_listed(thread))
            new = filter_new_messages(await self._read(thread), messages)
            if not new:
                return
            version = NO_ITEM if item is None else item.version
            namespace, key = _listed(thread)
            writes: list[requests.BatchWrite] = [
                put_request(self._space.name, namespace, key, {NAME: FORM}, expect=version),
                *(requests.Append(self._space.name, thread, _packed(each, nth)) for nth, each in enumerate(new)),
            ]
            try:
                await self._connection.write(requests.Batch(writes), key=None, durability=None)
                return
            except ItemChanged:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    async def _clear(self, thread: str) -> None:
        try:
            await self._space.thread(thread).delete()
        except NotFound:
            return
        with partly(True, "the messages are deleted", "Clear the session again."):
            await self._space.items.delete(*_listed(thread))


def _thread(session_id: str | None) -> str:
    return f"{contents.tag(DEFAULT_SESSION if session_id is None or session_id == '' else session_id)}/messages"


def _listed(thread: str) -> tuple[tuple[str, str], str]:
    """The item that changes with every write to a session."""
    return (thread.removesuffix("/messages"), "sessions"), "messages"


def _packed(message: Message, nth: int) -> bytes:
    where = f"messages[{nth}]"
    return values.encode({NAME: FORM, "message": contents.stored(message.to_dict(), where)}, where=where)


class ShoalState(OnStore):
    """The `checkpoints` of workflows and the `history` of agents in one space.

    For other options make a `ShoalCheckpointStorage` or a `ShoalHistoryProvider` on a store that is open.
    """

    SPACE = NAME

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalState.open`.
        """
        name = space or self.SPACE
        self.checkpoints = ShoalCheckpointStorage(store, space=name)
        self.history = ShoalHistoryProvider(store, space=name)
