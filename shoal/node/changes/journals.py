"""Changes of a thread's journal."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt import journal
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.node.attached import Attached
from shoal.node.changes.handling import Handling, Handlings
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: journal.Append, attached: Attached) -> None:
    journal.apply(rows, stamp, change, attached.content)


def _receive(rows: Rows, stamp: Stamp, change: journal.Append, attached: Attached) -> None:
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its event does not match its hash", reason="content")
    _apply(rows, stamp, change, attached)


def _event_of(rows: Rows, stamp: Stamp, change: journal.Append) -> Attached:
    payload = journal.payload_of(rows, stamp, change)
    if sha256(payload).digest() != change.digest:
        raise StoreCorrupt(f"event {stamp.pack_position().hex()} is damaged. Run `shoal verify`.")
    return Attached(payload)


HANDLINGS: Handlings = {journal.Append: Handling(Kind.THREAD, _apply, _receive, _event_of)}
