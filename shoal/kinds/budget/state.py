"""A budget, an amount that is never overspent, and how the rights to spend it are spread over nodes.

A budget: an amount that is never overspent, although a spend asks no other node.

Laws (the bounded counter, Balegas et al. 2015, with a pool and one account per origin):
- The *pool* is the amount that was granted and not drawn. Each origin has an *account*, whose *rights* are the amounts
  that it drew and was given, less those that it gave and spent. An origin spends its own rights only.
- Only its origin takes rights from an account, and it knows all that it took before; operations that it does not
  know of yet can only add rights. So if it spends within its rights as it knows them, they never fall below 0.
- Two exceptions need agreement, which the node reaches (`shoal/kinds/budget/peers.py`): a draw from the
  pool, and a draw from the account of an opening that is over. Here they only add and subtract.
- A grant and a spend may have a key. If several have one key, the one with the least dot counts, as in a
  counter. The rights of a spend that loses go to the pool, for good: it cannot win again.
- The rights that removed directories left are moved to one account, `REMOVED`. Whoever moves it may not know of other moves,
  so an account can fall below 0. What that account has is less by as much: no right is counted twice.
- An account without rights has no row, so past openings leave nothing. Each change names the node of each
  account that it changes; so whichever change makes the row, it is the same.

So all rows except those of keys are sums, and any order of the operations gives the same.

Rows:
    G row                        the grants: a counter's rows
    S row                        the spends: a counter's rows
    A origin₁₆                   node₁₆ rights: may be negative; no row if they are 0
    P                            the amount that was drawn from the pool; no row if it is 0

How the rights to spend a budget are spread over nodes, ahead of need. Every node decides for itself, from its own knowledge.

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
decides on (`shoal/kinds/budget/peers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from shoal.crdt.applier import Appliers, bare
from shoal.crdt.deletion import check_key
from shoal.crdt.dot import ORIGIN_BYTES, Origin
from shoal.crdt.rows import Rows, Stamp, Within
from shoal.errors import BadOperation
from shoal.kinds import Kind
from shoal.kinds.counter import state as counter
from shoal.records import NamedTuple

GRANT, SPEND, ACCOUNT, POOL = b"G", b"S", b"A", b"P"
THE_POOL = b""
"""As the source of a draw."""
REMOVED = Origin(b"\xff" * ORIGIN_BYTES)
"""No origin. Its account holds the rights that directories had when they were removed from the cluster."""


class Grant(msgspec.Struct, array_like=True, frozen=True, tag="grant"):
    """A mutation: adds an amount to the pool."""

    amount: int
    key: str | None = None


class Spend(msgspec.Struct, array_like=True, frozen=True, tag="spend"):
    """A mutation: spends rights of the issuer's account."""

    amount: int
    node: bytes  # The issuer's.
    key: str | None = None


class Draw(msgspec.Struct, array_like=True, frozen=True, tag="draw-rights"):
    """A mutation: moves rights to the issuer's account; a negative amount puts them back."""

    source: bytes  # `THE_POOL`, or the origin whose account they come from.
    amount: int
    node: bytes  # The issuer's.
    holder: bytes = b""  # The node of the source, if that is an account.


class Transfer(msgspec.Struct, array_like=True, frozen=True, tag="transfer-rights"):
    """A mutation: gives rights of the issuer's account to another account."""

    to: bytes  # The origin of the other account.
    holder: bytes  # Its node.
    amount: int
    node: bytes  # The issuer's.


Change = Grant | Spend | Draw | Transfer


class Account(NamedTuple):
    """The amount that one origin may still spend."""

    origin: Origin
    node: bytes
    rights: int


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """Apply a mutation of any kind. Whether the rights suffice is checked when it is issued, not here."""
    match change:
        case Grant(amount, key):
            counter.apply(grants(rows), stamp, counter.Add(amount, key))
        case Spend(amount, node, key):
            before = counter.value(spends(rows))
            counter.apply(spends(rows), stamp, counter.Add(amount, key))
            _move(rows, stamp.dot.origin, node, -amount)
            lost = amount - (counter.value(spends(rows)) - before)
            if lost:  # Of this spend, or of the one that it wins against.
                _put(rows, _drawn(rows) - lost)
        case Draw(source, amount, node, holder):
            if source == THE_POOL:
                _put(rows, _drawn(rows) + amount)
            else:
                _move(rows, source, holder, -amount)
            _move(rows, stamp.dot.origin, node, amount)
        case Transfer(to, holder, amount, node):
            _move(rows, stamp.dot.origin, node, -amount)
            _move(rows, to, holder, amount)


def grants(rows: Rows) -> Rows:
    """The rows of the grants, for `counter`."""
    return Within(rows, GRANT)


def spends(rows: Rows) -> Rows:
    """The rows of the spends, for `counter`."""
    return Within(rows, SPEND)


def remaining(rows: Rows) -> int:
    """The amount that was granted and not spent, whichever accounts hold the rights to it."""
    return counter.value(grants(rows)) - counter.value(spends(rows))


def pool(rows: Rows) -> int:
    """The amount that was granted and not drawn."""
    return counter.value(grants(rows)) - _drawn(rows)


def rights(rows: Rows, origin: bytes) -> int:
    """The amount that the account of `origin` may still spend; 0 if there is no such account."""
    stored = rows.get(ACCOUNT + origin)
    return 0 if stored is None else counter.unpack(stored[ORIGIN_BYTES:])


def accounts(rows: Rows) -> list[Account]:
    """All accounts whose rights are not 0, by origin."""
    return [
        Account(Origin(row[1:]), stored[:ORIGIN_BYTES], counter.unpack(stored[ORIGIN_BYTES:]))
        for row, stored in rows.scan(ACCOUNT)
    ]


def removed(rows: Rows) -> int:
    """The amount that may be drawn from the account `REMOVED`; below 0 if more was drawn than there was."""
    return rights(rows, REMOVED) + sum(min(0, account.rights) for account in accounts(rows) if account.origin != REMOVED)


def _move(rows: Rows, origin: bytes, node: bytes, amount: int) -> None:
    row = ACCOUNT + origin
    if left := rights(rows, origin) + amount:
        rows.put(row, node + counter.pack(left))
    else:
        rows.delete(row)


def _drawn(rows: Rows) -> int:
    stored = rows.get(POOL)
    return 0 if stored is None else counter.unpack(stored)


def _put(rows: Rows, drawn: int) -> None:
    if drawn:
        rows.put(POOL, counter.pack(drawn))
    else:
        rows.delete(POOL)


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


def _budget(row: bytes) -> int:
    if row[1:2] == b"X":
        return 2
    return 3 if row[1:3] == b"EX" else len(row)


HIDDEN = {ord("G"): _budget, ord("S"): _budget}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""


def _check(_stamp: Stamp, change: Change) -> None:
    """No negative amount of a peer reverses what its change does."""
    match change:
        case Grant(amount, key):
            check_key(key)
            sound = amount > 0
        case Spend(amount, node, key):
            check_key(key)
            sound = amount > 0 and len(node) == ORIGIN_BYTES
        case Draw(source, amount, node, holder):
            sound = amount != 0 and len(source) == len(holder) in (0, ORIGIN_BYTES) and len(node) == ORIGIN_BYTES
        case Transfer(to, holder, amount, node):
            sound = amount > 0 and len(to) == len(holder) == len(node) == ORIGIN_BYTES
    if not sound:
        raise BadOperation("a change of a budget contains impossible values. Nothing of it was written.", reason="content")


APPLIERS: Appliers = {change: bare(Kind.BUDGET, apply, _check) for change in (Grant, Spend, Draw, Transfer)}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    remaining(rows)
    accounts(rows)
