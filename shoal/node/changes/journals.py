"""Changes of a thread's journal."""

from __future__ import annotations

from hashlib import sha256

from shoal import values
from shoal.crdt import consumers, journal, places, reductions, retention, trimming
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, InvalidValue, StoreCorrupt
from shoal.names import check_key, check_name
from shoal.node.attached import ERASED, Attached, is_gone
from shoal.node.changes.handling import Handling, Handlings
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: journal.Append, attached: Attached) -> None:
    if not is_gone(attached):  # What it made was trimmed by an operation that is still to come.
        journal.apply(rows, stamp, change, attached.content)


def _receive(rows: Rows, stamp: Stamp, change: journal.Append, attached: Attached) -> None:
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its event does not match its hash", reason="content")
    _apply(rows, stamp, change, attached)


def _event_of(rows: Rows, stamp: Stamp, change: journal.Append) -> Attached:
    payload = journal.payload_of(rows, stamp, change)
    if payload is None:
        return ERASED
    if sha256(payload).digest() != change.digest:
        raise StoreCorrupt(f"event {stamp.pack_position().hex()} is damaged. Run `shoal verify`.")
    return Attached(payload)


def _ack(rows: Rows, stamp: Stamp, change: consumers.Ack, _attached: Attached) -> None:
    consumers.apply(rows, stamp, change)


def _receive_ack(rows: Rows, stamp: Stamp, change: consumers.Ack, _attached: Attached) -> None:
    check_name("consumer", change.consumer)
    try:
        cursor = journal.Cursor.unpack(change.cursor)
    except InvalidValue:
        raise BadOperation("its cursor cannot be read", reason="content") from None
    if not 0 <= change.generation <= consumers.GENERATION_MAX or journal.clipped(cursor, stamp.context) != cursor:
        raise BadOperation("its cursor claims what its origin had not applied", reason="content")
    consumers.apply(rows, stamp, change)


def _reduce(rows: Rows, stamp: Stamp, change: reductions.Reduce, _attached: Attached) -> None:
    reductions.apply(rows, stamp, change)


def _receive_reduce(rows: Rows, stamp: Stamp, change: reductions.Reduce, _attached: Attached) -> None:
    check_name("reducer", change.reducer)
    try:
        reductions.check(change)
        values.check(change.value)
    except (ValueError, InvalidValue) as error:
        raise BadOperation(f"its snapshot cannot be read ({error})", reason="content") from None
    reductions.apply(rows, stamp, change)


def _reach(rows: Rows, stamp: Stamp, change: places.Reach, _attached: Attached) -> None:
    places.apply(rows, stamp, change)


def _receive_reach(rows: Rows, stamp: Stamp, change: places.Reach, _attached: Attached) -> None:
    check_key("loop key", change.key)
    if not (0 <= change.generation <= places.NUMBER_MAX and 0 <= change.place <= places.NUMBER_MAX):
        raise BadOperation("its place is none", reason="content")
    places.apply(rows, stamp, change)


def _trim(rows: Rows, stamp: Stamp, change: trimming.Trim, _attached: Attached) -> None:
    trimming.apply(rows, stamp, change)


def _receive_trim(rows: Rows, stamp: Stamp, change: trimming.Trim, _attached: Attached) -> None:
    try:
        trimming.check(change, stamp.context)
    except ValueError as error:
        raise BadOperation(f"its trim cannot be applied ({error})", reason="content") from None
    trimming.apply(rows, stamp, change)


def _retain(rows: Rows, stamp: Stamp, change: retention.Retain, _attached: Attached) -> None:
    retention.apply(rows, stamp, change)


def _receive_retain(rows: Rows, stamp: Stamp, change: retention.Retain, _attached: Attached) -> None:
    try:
        retention.check(change)
    except ValueError as error:
        raise BadOperation(f"its retention is none ({error})", reason="content") from None
    retention.apply(rows, stamp, change)


HANDLINGS: Handlings = {
    journal.Append: Handling(Kind.THREAD, _apply, _receive, _event_of),
    consumers.Ack: Handling(Kind.THREAD, _ack, _receive_ack),
    reductions.Reduce: Handling(Kind.THREAD, _reduce, _receive_reduce),
    places.Reach: Handling(Kind.THREAD, _reach, _receive_reach),
    trimming.Trim: Handling(Kind.THREAD, _trim, _receive_trim),
    retention.Retain: Handling(Kind.THREAD, _retain, _receive_retain),
}
