"""How the rights to spend a budget are spread over nodes, ahead of need. Every node decides for itself, from its own knowledge.

A draw needs every replica, so what is in the pool when a node dies cannot be spent until it is back. Drawing with a
majority would be unsafe while a disk may be lost, so rights are distributed early instead.

Laws:
- The shares of all nodes add up to the rights that they have together. Nodes that know the same compute the same shares.
- A node takes rights up to its share, and only if it has much less. It gives only the rights that it has beyond its share
  and beyond those that it was told to keep. So moves come to an end, and a budget costs a number of moves that grows with
  the logarithm of its amount.
- If the amount cannot be divided evenly, the budget decides which nodes have one right more: the rights to many budgets
  of 1 are at many nodes.

Nothing here moves rights. A move is a `budget.Draw` or a `budget.Transfer`, which the node
decides on (`shoal/kinds/budget/peers/rights.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from shoal.records import NamedTuple


class Spread(NamedTuple):
    """A node's knowledge of a budget. Nodes that it cannot reach are left out, with their rights."""

    own: bytes
    held: Mapping[bytes, int]  # Node → its rights; this node is among them.
    pool: int  # What can be drawn from the pool now: 0 unless every owner is reached.
    past: int  # What can be drawn now from the accounts of earlier openings of this node's directory.
    budget: bytes  # Its name.
    kept: int = 0  # Rights that this node was told to have, and keeps.


def share(spread: Spread) -> int:
    """The rights that this node should have."""
    total = max(0, sum(spread.held.values()) + spread.pool + spread.past)
    order = sorted(spread.held, key=lambda node: sha256(spread.budget + node).digest())
    return total // len(order) + (order.index(spread.own) < total % len(order))


def to_draw(spread: Spread) -> int | None:
    """The rights that this node should have after a draw; None if it should not draw."""
    mine, due = spread.held[spread.own], share(spread)
    if spread.past > 0 or (spread.pool > 0 and _is_short(mine, due)):
        return due
    return None


def to_ask(spread: Spread) -> tuple[int, dict[bytes, int]]:
    """How many rights to ask for, and the nodes to ask, each with its rights beyond an even part; (0, {}) for none."""
    mine, due = spread.held[spread.own], share(spread)
    if not _is_short(mine, due):
        return 0, {}
    others = {node: spare for node, held in spread.held.items() if node != spread.own and (spare := held - due) > 0}
    return (due - mine, others) if others else (0, {})


def to_give(spread: Spread, asked: int) -> int:
    """The rights that this node gives to a node that asks for `asked` ahead of need."""
    return max(0, min(asked, spread.held[spread.own] - max(share(spread), spread.kept)))


def to_give_in_need(held: int, asked: int) -> int:
    """The rights that a node gives to one that cannot spend: all that it asks for, and half of its own if that is more."""
    return max(0, min(held, max(asked, held // 2)))


def _is_short(mine: int, due: int) -> bool:
    # With a quarter to spare, so that small grants and spends do not move rights one by one.
    return 4 * mine < 3 * due
