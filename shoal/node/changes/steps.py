"""Changes of a thread's ledger and of its status."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt import ledger, standing
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.node.attached import NOTHING, Attached
from shoal.node.changes.applier import Applier, Appliers, bare
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: ledger.Intend | ledger.Result, attached: Attached) -> ledger.Entry:
    return ledger.apply(rows, stamp, change, attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: ledger.Intend | ledger.Result, attached: Attached) -> Attached:
    if change.digest and sha256(attached.content).digest() != change.digest:
        raise BadOperation("its value does not match its hash", reason="content")
    return attached


def _content_of(rows: Rows, _stamp: Stamp, change: ledger.Intend | ledger.Result) -> Attached:
    if not change.digest:
        return NOTHING
    content = ledger.content(rows, change.step, change.digest)
    if sha256(content).digest() != change.digest:
        raise StoreCorrupt(f"value {change.digest.hex()} of step {change.step!r} is damaged. Run `shoal verify`.")
    return Attached(content)


_WITH_CONTENT = Applier(Kind.THREAD, _apply, _check, _content_of)

APPLIERS: Appliers = {
    ledger.Intend: _WITH_CONTENT,
    ledger.Result: _WITH_CONTENT,
    ledger.Progress: bare(Kind.THREAD, ledger.apply),
    ledger.End: bare(Kind.THREAD, ledger.apply),
    ledger.Decide: bare(Kind.THREAD, ledger.apply),
    standing.Move: bare(Kind.THREAD, standing.apply),
}
