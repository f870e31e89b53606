"""Changes of a thread's step log and of its status."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds.step import state as step_log
from shoal.node.appliers.applier import Applier, Appliers, Effects, bare
from shoal.node.transaction import NOTHING, Blobs
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: step_log.Intend | step_log.Result, attached: Blobs) -> step_log.StepEntry:
    return step_log.apply_step(rows, stamp, change, attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: step_log.Intend | step_log.Result, attached: Blobs) -> Blobs:
    if change.digest and sha256(attached.content).digest() != change.digest:
        raise BadOperation("its value does not match its hash", reason="content")
    return attached


def _content_of(rows: Rows, _stamp: Stamp, change: step_log.Intend | step_log.Result) -> Blobs:
    if not change.digest:
        return NOTHING
    content = step_log.content(rows, change.step, change.digest)
    if sha256(content).digest() != change.digest:
        raise StoreCorrupt(f"value {change.digest.hex()} of step {change.step!r} is damaged. Run `shoal verify`.")
    return Blobs(content)


_LISTS = Effects(lists=True)
_WITH_CONTENT = Applier(Kind.THREAD, _apply, _check, _content_of, effects=_LISTS)

APPLIERS: Appliers = {
    step_log.Intend: _WITH_CONTENT,
    step_log.Result: _WITH_CONTENT,
    step_log.Progress: bare(Kind.THREAD, step_log.apply_step),
    step_log.End: bare(Kind.THREAD, step_log.apply_step, effects=_LISTS),
    step_log.Decide: bare(Kind.THREAD, step_log.apply_step, effects=_LISTS),
    step_log.Move: bare(Kind.THREAD, step_log.apply_status, effects=_LISTS),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    step_log.current(rows)
    for _, step in step_log.listing(rows, only_open=False):
        step_log.find(rows, step)
