"""Journals over storage: appends, and pages of events.

Events that a node appends to a thread's journal itself: who moved what, when and why.

Law: the event is a change of the same operation as the move that it describes. It is a
map whose `kind` says what happened, and has the implied key of its request, so that a
request that went to two nodes appends one event.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from shoal import values
from shoal.config import Config
from shoal.crdt.dot import COUNTER_BITS, END_MS
from shoal.errors import InvalidInput, KeyReused, NotFound
from shoal.kinds.journal.serving.retention import check_reach, trim_by_rule
from shoal.kinds.journal.state import events, journal
from shoal.kinds.journal.state.events import dot_of
from shoal.names import STREAMS, check_key, check_name
from shoal.node.blobs import Blobs
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size, position_of, users_key
from shoal.protocol import requests
from shoal.protocol.requests import Append, Appended, EraseEvent, EventErased, ReadJournal

_NIL = values.encode(None)


class Journals:
    """The handler of a thread's journal."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Append: self._check, EraseEvent: _check_erasure}
        self.writers: Writers = {Append: self._append, EraseEvent: self._erase}
        self.readers: Readers = {ReadJournal: self._read}

    def _check(self, request: Append) -> None:
        check_name("thread", request.thread)
        if request.key is not None:
            check_key("journal key", request.key)
        values.check(request.event)
        check_size(self._config, len(request.event), "an event")

    def _append(self, context: WriteContext, request: Append) -> Appended:
        """Append an event; a repeated key returns the id of the first event.

        Raises:
            KeyReused: the key belongs to another event.
        """
        digest = sha256(request.event).digest()
        if request.key is not None and (entry := events.find_claim(context.rows, request.key)) is not None:
            if entry.digest != digest:
                raise KeyReused(
                    f"key {request.key!r} belongs to another event in the journal of {request.thread!r}. Nothing was written. "
                    "Use a new key for a new event."
                )
            return Appended(id=entry.position.hex(), appended=False)
        if request.key is not None and events.is_erased(context.rows, request.key, digest):
            raise KeyReused(
                f"the event of key {request.key!r} in the journal of {request.thread!r} was erased, and trimmed. Nothing was "
                "written. Use a new key for a new event."
            )
        key = request.key or context.implied_key
        if context.imported is not None and key is not None and (entry := events.find_claim(context.rows, key)) is not None:
            return Appended(id=entry.position.hex(), appended=False)
        change = journal.Append(digest, key)
        id = context.stamp.pack_position().hex()
        context.apply(change, Blobs(request.event))
        trim_by_rule(context)
        return Appended(id=id, appended=True)

    def _erase(self, context: WriteContext, request: EraseEvent) -> EventErased:
        """Erase an event's value. Its place, id, key and time stay.

        Raises:
            NotFound: this node does not hold the operation that appended the event.
        """
        position = position_of(request.event)
        change = journal.erasure(context.rows, position)
        if change is not None:
            context.apply(change)
            return EventErased(True)
        dot = dot_of(position)
        if context.stamp.context.bound(dot.origin) < dot.sequence:
            raise NotFound(
                f"no event {request.event} of {request.thread!r} is known here. Nothing was written. If another node "
                "acknowledged it, erase it there, or here once this node has caught up."
            )
        return EventErased(False)

    def _read(self, view: View, request: ReadJournal) -> requests.Events:
        """A page of events after a cursor.

        Raises:
            InvalidValue: `after` is not a cursor.
            JournalTrimmed: events that the cursor does not cover were trimmed.
        """
        cursor = journal.Cursor.unpack(request.after)
        if not request.skip_trimmed:
            check_reach(view, cursor, request.thread)
        page = journal.read(
            view.rows,
            cursor,
            view.vector,
            floor_hlc=_floor_hlc(view, cursor, request),
            limit=min(max(1, request.limit), self._config.page_items_max),
            bytes_max=PAGE_BYTES_MAX,
        )
        found = [shown_event(event, cursor.pack()) for event, cursor in zip(page.events, page.cursors(), strict=True)]
        return requests.Events(found, page.cursor.pack(), page.more)


def shown_event(event: events.Event, cursor: bytes) -> requests.Event:
    """An event as clients are shown it, with the cursor right after it. An erased one has the value None."""
    value = _NIL if event.is_erased else event.payload
    id, key = event.position.hex(), users_key(event.key)
    return requests.Event(id, key, event.wall_ms, value, event.late, cursor, event.is_erased)


def _check_erasure(request: EraseEvent) -> None:
    check_name("thread", request.thread)
    position_of(request.event)
    if request.thread.startswith(STREAMS):
        raise InvalidInput(
            f"{request.thread!r} holds a durable stream, whose offsets count what its records hold: a record cannot be erased "
            "alone. Nothing was written. Delete the stream."
        )


def _floor_hlc(view: View, cursor: journal.Cursor, request: ReadJournal) -> int | None:
    """The HLC below which no event is scanned, because all are read already or older than `since_ms`."""
    read = view.floor_hlc(cursor.vector)
    return max(read or 0, min(request.since_ms, END_MS - 1) << COUNTER_BITS) if request.since_ms > 0 else read


def tell(context: WriteContext, kind: str, fields: dict[str, Any]) -> None:
    """Append an event with this `kind` and these fields, which must be values, to the thread's journal.

    Of a write that was made elsewhere before the journal was told there: the event is imported itself.
    """
    if context.imported is not None:
        return
    event = values.encode({"kind": kind} | fields)
    change = journal.Append(sha256(event).digest(), context.implied_key)
    context.apply(change, Blobs(event))
