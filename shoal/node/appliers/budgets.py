"""Changes of budgets. A peer's change is checked, so that no negative amount reverses its effect."""

from __future__ import annotations

from shoal.crdt.dot import ORIGIN_BYTES
from shoal.crdt.rows import Stamp
from shoal.crdt.values import budget
from shoal.errors import BadOperation
from shoal.node.appliers.applier import Appliers, bare
from shoal.storage.keys import Kind


def _check(_stamp: Stamp, change: budget.Change) -> None:
    match change:
        case budget.Grant(amount) | budget.Spend(amount):
            sound = amount > 0
        case budget.Draw(source, amount, node):
            sound = amount != 0 and len(source) in (0, ORIGIN_BYTES) and len(node) == ORIGIN_BYTES
        case budget.Transfer(to, node, amount):
            sound = amount > 0 and len(to) == len(node) == ORIGIN_BYTES
    if not sound:
        raise BadOperation("a change of a budget contains impossible values. Nothing of it was written.", reason="content")


APPLIERS: Appliers = {
    change: bare(Kind.BUDGET, budget.apply, _check) for change in (budget.Grant, budget.Spend, budget.Draw, budget.Transfer)
}
