"""`ShoalHistoryProvider`: the messages of an agent's sessions on Shoal.

Laws:
- A session is the journal of a thread. What is saved at once, which is all that one run said, is one write.
- Of two that save at once, one comes after the other, and both are there whole. Each is compared with what is there then:
  as in the framework's own providers, a transcript that is saved again adds only what is new in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agent_framework import HistoryProvider, Message
from agent_framework._sessions import filter_new_messages

from shoal import values
from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import ItemChanged, NotFound
from shoal.integrations import escaping
from shoal.integrations.base import Bridge, checked_store, settled
from shoal.integrations.microsoft.checkpoints import FORM, NAME
from shoal.kinds.items.handle.item import put_request
from shoal.outcomes import partly
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM

DEFAULT_SESSION = "default"
_IN_KEY = escaping.unsafe()


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
            record = escaping.of_form(event.event, NAME, FORM)
            if record is not None:  # Else an event of the node itself, such as a pause.
                found.append(Message.from_dict(escaping.shown(record["message"])))
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
    return f"{escaping.tag(DEFAULT_SESSION if session_id is None or session_id == '' else session_id)}/messages"


def _listed(thread: str) -> tuple[tuple[str, str], str]:
    """The item that changes with every write to a session."""
    return (thread.removesuffix("/messages"), "sessions"), "messages"


def _packed(message: Message, nth: int) -> bytes:
    where = f"messages[{nth}]"
    return values.encode({NAME: FORM, "message": escaping.stored(message.to_dict(), where)}, where=where)
