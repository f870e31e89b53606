"""Journals over storage: appends, and pages of events."""

from __future__ import annotations

from hashlib import sha256

from shoal import values
from shoal.config import Config
from shoal.crdt.clock import COUNTER_BITS, END_MS
from shoal.crdt.thread import claims, journal
from shoal.errors import KeyReused
from shoal.names import check_key, check_name
from shoal.node.blobs import Blobs
from shoal.node.checks import check_size
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.implied_keys import users_key
from shoal.node.thread.retention import check_reach, trim_by_rule
from shoal.protocol import requests
from shoal.protocol.requests import Append, Appended, ReadJournal


class Journals:
    """The handler of a thread's journal."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Append: self._check}
        self.writers: Writers = {Append: self._append}
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
        if request.key is not None and (entry := claims.find(context.rows, request.key)) is not None:
            if entry.digest != digest:
                raise KeyReused(
                    f"key {request.key!r} belongs to another event in the journal of {request.thread!r}. Nothing was written. "
                    "Use a new key for a new event."
                )
            return Appended(id=entry.position.hex(), appended=False)
        change = journal.Append(digest, request.key or context.implied_key)
        id = context.stamp.pack_position().hex()
        context.apply(change, Blobs(request.event))
        trim_by_rule(context, self._config)
        return Appended(id=id, appended=True)

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
            bytes_max=self._config.page_bytes_max,
        )
        events = [
            requests.Event(event.position.hex(), users_key(event.key), event.wall_ms, event.payload, event.late, cursor.pack())
            for event, cursor in zip(page.events, page.cursors(), strict=True)
        ]
        return requests.Events(events, page.cursor.pack(), page.more)


def _floor_hlc(view: View, cursor: journal.Cursor, request: ReadJournal) -> int | None:
    """The HLC below which no event is scanned, because all are read already or older than `since_ms`."""
    read = view.floor_hlc(cursor.vector)
    return max(read or 0, min(request.since_ms, END_MS - 1) << COUNTER_BITS) if request.since_ms > 0 else read
