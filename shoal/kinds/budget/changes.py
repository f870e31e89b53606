"""Changes of budgets. A peer's change is checked, so that no negative amount reverses its effect."""

from __future__ import annotations

from shoal.crdt.dot import ORIGIN_BYTES
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.kinds.budget import state as budget
from shoal.node.appliers.applier import Appliers, bare
from shoal.node.naming import check as check_implied
from shoal.storage.keys import Kind


def _check(_stamp: Stamp, change: budget.Change) -> None:
    match change:
        case budget.Grant(amount, key):
            check_implied(key)
            sound = amount > 0
        case budget.Spend(amount, node, key):
            check_implied(key)
            sound = amount > 0 and len(node) == ORIGIN_BYTES
        case budget.Draw(source, amount, node, holder):
            sound = amount != 0 and len(source) == len(holder) in (0, ORIGIN_BYTES) and len(node) == ORIGIN_BYTES
        case budget.Transfer(to, holder, amount, node):
            sound = amount > 0 and len(to) == len(holder) == len(node) == ORIGIN_BYTES
    if not sound:
        raise BadOperation("a change of a budget contains impossible values. Nothing of it was written.", reason="content")


APPLIERS: Appliers = {
    change: bare(Kind.BUDGET, budget.apply, _check) for change in (budget.Grant, budget.Spend, budget.Draw, budget.Transfer)
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    budget.remaining(rows)
    budget.accounts(rows)
