"""Changes of a thread's journal."""

from __future__ import annotations

from hashlib import sha256

from shoal import values
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, InvalidValue, StoreCorrupt
from shoal.kinds.journal.state import events, journal, readers, trimming
from shoal.kinds.journal.state.events import ERASED as ERASED_VALUE
from shoal.names import check_key, check_name
from shoal.node.appliers.applier import Applier, Appliers, Effects, Erased, Sweep, What, bare, position_of
from shoal.node.transaction import ERASED, Blobs, ObjectRows, is_gone
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: journal.Append, attached: Blobs) -> None:
    # If its value is gone, an erasure or a trim that will arrive later has taken it elsewhere.
    journal.apply(rows, stamp, change, ERASED_VALUE if is_gone(attached) else attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: journal.Append, attached: Blobs) -> Blobs:
    if not is_gone(attached) and sha256(attached.content).digest() != change.digest:
        raise BadOperation("its event does not match its hash", reason="content")
    return attached


def _event_of(rows: Rows, stamp: Stamp, change: journal.Append) -> Blobs:
    payload = journal.payload_of(rows, stamp, change)
    if payload is None:
        return ERASED
    if sha256(payload).digest() != change.digest:
        raise StoreCorrupt(f"event {stamp.pack_position().hex()} is damaged. Run `shoal verify`.")
    return Blobs(payload)


def _check_erase(stamp: Stamp, change: journal.Erase) -> None:
    try:
        journal.check_erase(change, stamp.context)
    except ValueError as error:
        raise BadOperation(f"its erasure cannot be applied ({error})", reason="content") from None


def _erased_id(_name: str, _stamp: Stamp, change: journal.Erase) -> str:
    return change.position.hex()


def _check_ack(stamp: Stamp, change: readers.Ack) -> None:
    check_name("consumer", change.consumer)
    try:
        cursor = journal.Cursor.unpack(change.cursor)
    except InvalidValue:
        raise BadOperation("its cursor cannot be read", reason="content") from None
    if not 0 <= change.generation <= readers.GENERATION_MAX or journal.clipped(cursor, stamp.context) != cursor:
        raise BadOperation("its cursor claims operations that its origin had not applied", reason="content")


def _check_reduce(_stamp: Stamp, change: readers.Reduce) -> None:
    check_name("reducer", change.reducer)
    try:
        readers.check(change)
        values.check(change.value)
    except (ValueError, InvalidValue) as error:
        raise BadOperation(f"its snapshot cannot be read ({error})", reason="content") from None


def _check_reach(_stamp: Stamp, change: readers.Reach) -> None:
    check_key("loop key", change.key)
    if not (0 <= change.generation <= readers.NUMBER_MAX and 0 <= change.place <= readers.NUMBER_MAX):
        raise BadOperation("its place is not valid", reason="content")


def _check_trim(stamp: Stamp, change: trimming.Trim) -> None:
    try:
        trimming.check(change, stamp.context, stamp.hlc)
    except ValueError as error:
        raise BadOperation(f"its trim cannot be applied ({error})", reason="content") from None


def _check_retain(_stamp: Stamp, change: trimming.Retain) -> None:
    try:
        trimming.check_rule(change)
    except ValueError as error:
        raise BadOperation(f"its retention is not valid ({error})", reason="content") from None


def _late(rows: ObjectRows, stamp: Stamp, _change: journal.Append) -> bytes | None:
    """The value of an append that arrived after the erasure of its event."""
    position = stamp.pack_position()
    return position if rows.wrote(trimming.aside(position)) else None


def _is_erased(_rows: Rows, stamp: Stamp, change: journal.Append, erased: Erased) -> bool:
    return erased.events.covers(stamp.dot) or not journal.names_of(stamp, change).isdisjoint(erased.values)


def _kept_aside(rows: Rows, _stamp: Stamp, change: journal.Erase) -> bytes:
    return b"".join(journal.kept_aside(rows, change))


def _erases_values(change: journal.Erase, erased: Erased) -> None:
    erased.values.update((change.position, change.mark))


def _erases_events(change: trimming.Trim, erased: Erased) -> None:
    erased.events = erased.events.join(trimming.covered(change.ends))


APPLIERS: Appliers = {
    journal.Append: Applier(
        Kind.THREAD,
        _apply,
        _check,
        _event_of,
        id_of=position_of,
        effects=Effects(sweeps=Sweep(What.VALUES, lambda stamp, _append: stamp.pack_position(), _late), erased_by=_is_erased),
    ),
    journal.Erase: bare(
        Kind.THREAD,
        journal.apply_erase,
        _check_erase,
        _erased_id,
        effects=Effects(sweeps=Sweep(What.VALUES, None, _kept_aside), erases=_erases_values),
        since=lambda _: 7,
    ),
    readers.Ack: bare(Kind.THREAD, readers.apply_cursor, _check_ack),
    readers.Reduce: bare(Kind.THREAD, readers.apply_reduction, _check_reduce),
    readers.Reach: bare(Kind.THREAD, readers.apply_progress, _check_reach),
    trimming.Trim: bare(
        Kind.THREAD,
        trimming.apply,
        _check_trim,
        effects=Effects(
            sweeps=Sweep(What.EVENTS, lambda _stamp, trim: b"".join(trim.ends)),
            erases=_erases_events,
        ),
    ),
    trimming.Retain: bare(Kind.THREAD, trimming.apply_rule, _check_retain),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    for row, stored in rows.scan(events.EVENT):
        events.unpack(row[1:], stored)
