"""`ShoalMemoryService`: what the agents of an app remember of a user, on Shoal.

Laws:
- A memory is an item under the event's id. Adding a session again adds what is new in it; a memory that was deleted
  is marked, and does not come back.
- A search is by words: it reads all memories of the user, and returns those that share most words with the query.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.session import Session

from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import InvalidValue, ItemChanged
from shoal.integrations import contents
from shoal.integrations.adk.events import FORM, NAME, app_of, below, key_in, user_of
from shoal.integrations.base import Bridge, checked_store, pieces, settled
from shoal.integrations.contents import text_of
from shoal.kinds.items.handle.item import Namespace, put_request
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.raising import partly
from shoal.records import NamedTuple

RESULTS_MAX = 10  # Memories that a search returns: a tool of the ADK puts all of them into the prompt.
_KIND = "memories"
_WORD = re.compile(r"\w+")
_LATIN = "0-9A-Za-z_\u00c0-\u024f"


class _Memory(NamedTuple):
    namespace: Namespace
    key: str
    record: dict[str, Any]


class ShoalMemoryService(BaseMemoryService):
    """Keeps memories in one space. Its methods work on any event loop."""

    def __init__(self, store: Store, *, space: str = "adk", results_max: int = RESULTS_MAX) -> None:
        """A service on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalServices.open`.
        """
        self._connection = checked_store(store, "ShoalServices").connection
        self._space = store.space(space)
        self._bridge = Bridge()
        self._results_max = results_max

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the events of a session that are not there yet."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add events that are not there yet. Events without content are no memories."""
        entries = [
            MemoryEntry(
                id=event.id or sha256(event.model_dump_json().encode()).hexdigest(),  # Without one, all would be one memory.
                content=event.content,
                author=event.author,
                timestamp=datetime.fromtimestamp(event.timestamp, UTC).isoformat(),
                custom_metadata=dict(custom_metadata or {}),
            )
            for event in events
            if event.content and event.content.parts
        ]
        session = "" if session_id is None else text_of(session_id, "the id of a session")
        await self._add(_of_user(app_name, user_id, session), entries)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add memories; those without an id get one."""
        more = dict(custom_metadata or {})
        entries = [
            entry.model_copy(
                update={
                    "id": entry.id or platform_uuid.new_uuid(),
                    "custom_metadata": {**entry.custom_metadata, **more},
                }
            )
            for entry in memories
        ]
        await self._add(_of_user(app_name, user_id, ""), entries)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """The memories that share words with the query, those that share most first."""
        wanted = set(_WORD.findall(_folded(query)))
        if not wanted:
            return SearchMemoryResponse()
        of_user = _of_user(app_name, user_id)
        entries = await self._bridge.awaited(lambda: self._entries(of_user))
        scored = [(score, entry) for entry in entries if (score := _shared_words(wanted, entry))]
        scored.sort(key=lambda found: -found[0])
        return SearchMemoryResponse(memories=[entry for _, entry in scored[: self._results_max]])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete a memory. It does not come back when its session is added again."""
        if memory_id:
            of_user, memory = _of_user(app_name, user_id), text_of(memory_id, "the id of a memory")
            await settled(self._bridge.awaited(lambda: self._delete(of_user, memory)))

    # ── on the store's loop ───────────────────────────────────────────────────

    async def _add(self, namespace: Namespace, entries: Sequence[MemoryEntry]) -> None:
        """Add entries, each under its id.

        Raises:
            InvalidValue: one is no JSON; nothing was written.
            OutcomeUnknown: some are added; add them all again.
        """
        memories = {str(entry.id): _Memory(namespace, key_in(str(entry.id)), _record(entry)) for entry in entries}
        await settled(self._bridge.awaited(lambda: self._put_new(list(memories.values()))))

    async def _put_new(self, memories: list[_Memory]) -> None:
        pauses = contended(self._connection)
        while True:
            known = await self._space.items.get_many([(memory.namespace, memory.key) for memory in memories])
            new = [memory for memory, item in zip(memories, known, strict=True) if item is None]
            try:
                await self._put_all(new)
                return
            except ItemChanged:  # Somebody adds the same.
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    async def _put_all(self, memories: list[_Memory]) -> None:
        puts = [put_request(self._space.name, *memory, expect=NO_ITEM) for memory in memories]
        added = 0
        for piece in pieces(puts, lambda each: len(each.value), self._connection.config):
            with partly(added, f"{added} of {len(puts)} memories are added", "Add them all again."):
                await self._connection.write(requests.Batch([*piece]), key=None, durability=None)
            added += len(piece)

    async def _entries(self, namespace: Namespace) -> list[MemoryEntry]:
        found = []
        async for item in self._space.items.scan(namespace):
            record = contents.of_form(item.value, NAME, FORM)
            if record is not None and "entry" in record:
                found.append(MemoryEntry.model_validate(contents.shown(record["entry"])))
        return found

    async def _delete(self, namespace: Namespace, memory_id: str) -> None:
        async for item in self._space.items.scan(namespace):
            if item.key == key_in(memory_id):
                await self._space.items.put(item.namespace, item.key, {NAME: FORM})


def _of_user(app: object, user: object, *session: str) -> Namespace:
    """The memories of a user, or those of one session; of none, if its id is empty. Raises as `text_of`."""
    return below(app_of(app), _KIND, user_of(user), *session)


def _record(entry: MemoryEntry) -> dict[str, Any]:
    try:
        plain = entry.model_dump(mode="json", exclude_none=True)
    except ValueError as error:
        raise InvalidValue(f"the memory {entry.id!r} is no JSON: {error}. Nothing was written.") from None
    return {NAME: FORM, "entry": contents.stored(plain, "the memory")}


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()


def _shared_words(wanted: set[str], entry: MemoryEntry) -> int:
    """How many of the words stand in a memory. Languages without spaces are found within a run of letters."""
    text = _folded(" ".join(part.text for part in entry.content.parts or [] if part.text))
    return sum(_stands_in(word, text) for word in wanted)


def _stands_in(word: str, text: str) -> bool:
    if not re.search(f"[{_LATIN}]", word):
        return word in text
    return re.search(f"(?<![{_LATIN}]){re.escape(word)}(?![{_LATIN}])", text) is not None
