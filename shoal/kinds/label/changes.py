"""Changes of a thread's labels, notes and owner."""

from __future__ import annotations

from contextlib import suppress

from shoal.crdt.applier import (
    ERASED,
    VECTOR_BYTES_MAX,
    Applier,
    Appliers,
    Blobs,
    Effects,
    Erased,
    Sweep,
    What,
    bare,
    check_content,
    intact,
    is_gone,
    position_of,
)
from shoal.crdt.dot import NOTHING_SEEN, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, InvalidValue
from shoal.kinds import Kind
from shoal.kinds.label import asks
from shoal.kinds.label import state as labels


def _apply(rows: Rows, stamp: Stamp, change: labels.Annotate, attached: Blobs) -> None:
    if not is_gone(attached):  # If they are gone, a cut that will arrive later has taken them elsewhere.
        labels.apply_note(rows, stamp, change, attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: labels.Annotate, attached: Blobs) -> Blobs:
    if is_gone(attached):
        return attached
    check_content(attached, change.digest, "its notes do not match their hash")
    try:
        labels.unpack(attached.content)
    except InvalidValue as error:
        raise BadOperation(error.message, reason="content") from None
    return attached


def _notes_of(rows: Rows, stamp: Stamp, change: labels.Annotate) -> Blobs:
    content = labels.content_of(rows, stamp, change)
    return ERASED if content is None else intact(content, change.digest, f"the row of notes {stamp.pack_position().hex()}")


def _check_cut(_stamp: Stamp, change: labels.Cut) -> None:
    if len(change.known) > VECTOR_BYTES_MAX:
        raise BadOperation(f"its cut has a vector of more than {VECTOR_BYTES_MAX} bytes", reason="content")
    try:
        VersionVector.unpack(change.known)
    except ValueError:
        raise BadOperation("its cut has no valid vector", reason="content") from None


def _check_mark(_stamp: Stamp, change: labels.LeaseMark | labels.TimedMark) -> None:
    if not 0 < change.fence <= labels.FENCE_MAX:
        raise BadOperation("its fencing number is out of range", reason="content")


def _is_cut(_rows: Rows, stamp: Stamp, change: labels.Annotate, erased: Erased) -> bool:
    return erased.notes.get(change.label, NOTHING_SEEN).covers(stamp.dot)


def _erases(change: labels.Cut, erased: Erased) -> None:
    with suppress(ValueError):
        known = VersionVector.unpack(change.known)
        erased.notes[change.label] = erased.notes.get(change.label, NOTHING_SEEN).join(known)


def _asks(_rows: Rows, change: labels.Annotate, beside: Blobs) -> bool | None:
    return asks.may_ask(change.label, beside.content) if change.label.startswith(asks.ROOT) else None


def _may_ask_less(_rows: Rows, change: labels.Cut | labels.Release, _beside: Blobs) -> bool | None:
    return True if change.label.startswith(asks.ROOT) else None


APPLIERS: Appliers = {
    labels.Release: bare(Kind.THREAD, labels.apply_label, effects=Effects(asks=_may_ask_less)),
    labels.Annotate: Applier(
        Kind.THREAD, _apply, _check, _notes_of, id_of=position_of, effects=Effects(erased_by=_is_cut, asks=_asks)
    ),
    labels.Cut: bare(
        Kind.THREAD,
        labels.cut,
        _check_cut,
        effects=Effects(sweeps=Sweep(What.NOTES, lambda _stamp, cut: labels.pack_cut(cut)), erases=_erases, asks=_may_ask_less),
    ),
    labels.TakeOwnership: bare(Kind.THREAD, labels.apply),
    labels.LeaseMark: bare(Kind.THREAD, labels.apply_mark, _check_mark, effects=Effects(marks_lease=True)),
    labels.TimedMark: bare(Kind.THREAD, labels.apply_term, _check_mark, effects=Effects(marks_lease=True), since=lambda _: 7),
}
