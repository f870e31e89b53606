"""Changes of a thread's ledger and of its status."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt import ledger, standing
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.node.attached import NOTHING, Attached
from shoal.node.changes.handling import Handling, Handlings, bare
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: ledger.Intend | ledger.Result, attached: Attached) -> None:
    ledger.apply(rows, stamp, change, attached.content)


def _receive(rows: Rows, stamp: Stamp, change: ledger.Intend | ledger.Result, attached: Attached) -> None:
    if change.digest and sha256(attached.content).digest() != change.digest:
        raise BadOperation("its value does not match its hash", reason="content")
    _apply(rows, stamp, change, attached)


def _content_of(rows: Rows, _stamp: Stamp, change: ledger.Intend | ledger.Result) -> Attached:
    if not change.digest:
        return NOTHING
    content = ledger.content(rows, change.step, change.digest)
    if sha256(content).digest() != change.digest:
        raise StoreCorrupt(f"value {change.digest.hex()} of step {change.step!r} is damaged. Run `shoal verify`.")
    return Attached(content)


def _apply_bare(rows: Rows, stamp: Stamp, change: ledger.Progress | ledger.End | ledger.Decide) -> None:
    ledger.apply(rows, stamp, change)


_WITH_CONTENT = Handling(Kind.THREAD, _apply, _receive, _content_of)

HANDLINGS: Handlings = {
    ledger.Intend: _WITH_CONTENT,
    ledger.Result: _WITH_CONTENT,
    ledger.Progress: bare(Kind.THREAD, _apply_bare),
    ledger.End: bare(Kind.THREAD, _apply_bare),
    ledger.Decide: bare(Kind.THREAD, _apply_bare),
    standing.Move: bare(Kind.THREAD, standing.apply),
}
