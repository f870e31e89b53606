"""A budget: an amount that is never overspent, although a spend asks no other node.

Laws (the bounded counter, Balegas et al. 2015, with a pool and one account per origin):
- The *pool* is the amount that was granted and not drawn. Each origin has an *account*, whose *rights* are the amounts
  that it drew and was given, less those that it gave and spent. An origin spends its own rights only.
- Only its origin takes rights from an account, and it knows all that it took before; operations that it does not
  know of yet can only add rights. So if it spends within its rights as it knows them, they never fall below 0.
- Two exceptions need agreement, which the node reaches (`shoal/node/peers/rights.py`): a draw from the
  pool, and a draw from the account of an opening that is over. Here they only add and subtract.
- A grant and a spend may have a key. If several have one key, the one with the least dot counts, as in a
  counter. A spend that loses gives its rights back to its own account, for good: it cannot win again.

So all rows except those of keys are sums, and any order of the operations gives the same.

Rows:
    G row                        the grants: a counter's rows
    S row                        the spends: a counter's rows, whose totals by origin are those of the accounts
    A origin₁₆                   node₁₆ balance: the amounts it drew and was given, less those it gave; may be negative
    P                            the amount that was drawn from the pool; no row if it is 0
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.crdt.dot import ORIGIN_BYTES, Origin
from shoal.crdt.rows import Rows, Stamp, Within
from shoal.crdt.values import counter

GRANT, SPEND, ACCOUNT, POOL = b"G", b"S", b"A", b"P"
THE_POOL = b""
"""As the source of a draw."""


class Grant(msgspec.Struct, array_like=True, frozen=True, tag="grant"):
    """A mutation: adds an amount to the pool."""

    amount: int
    key: str | None = None


class Spend(msgspec.Struct, array_like=True, frozen=True, tag="spend"):
    """A mutation: spends rights of the issuer's account."""

    amount: int
    key: str | None = None


class Draw(msgspec.Struct, array_like=True, frozen=True, tag="draw-rights"):
    """A mutation: moves rights to the issuer's account; a negative amount puts them back."""

    source: bytes  # `THE_POOL`, or the origin whose account they come from.
    amount: int
    node: bytes  # The issuer's.


class Transfer(msgspec.Struct, array_like=True, frozen=True, tag="transfer-rights"):
    """A mutation: gives rights of the issuer's account to another account."""

    to: bytes  # The origin of the other account.
    node: bytes  # Its node.
    amount: int


Change = Grant | Spend | Draw | Transfer


class Account(NamedTuple):
    """What one origin may still spend."""

    origin: Origin
    node: bytes
    rights: int


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """Apply a mutation of any kind. Whether the rights suffice is checked when it is issued, not here."""
    match change:
        case Grant(amount, key):
            counter.apply(grants(rows), stamp, counter.Add(amount, key))
        case Spend(amount, key):
            counter.apply(spends(rows), stamp, counter.Add(amount, key))
        case Draw(source, amount, node):
            if source == THE_POOL:
                _put(rows, _drawn(rows) + amount)
            else:
                _move(rows, source, b"", -amount)
            _move(rows, stamp.dot.origin, node, amount)
        case Transfer(to, node, amount):
            _move(rows, stamp.dot.origin, b"", -amount)
            _move(rows, to, node, amount)


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
    """What the account of `origin` may still spend; 0 if there is no such account."""
    stored = rows.get(ACCOUNT + origin)
    balance = 0 if stored is None else counter.unpack(stored[ORIGIN_BYTES:])
    return balance - counter.total(spends(rows), Origin(origin))


def accounts(rows: Rows) -> list[Account]:
    """All accounts, by origin."""
    found: list[Account] = []
    for row, stored in rows.scan(ACCOUNT):
        origin = Origin(row[1:])
        found.append(Account(origin, stored[:ORIGIN_BYTES], rights(rows, origin)))
    return found


def _move(rows: Rows, origin: bytes, node: bytes, amount: int) -> None:
    # An empty account stays: it says whose it was.
    row = ACCOUNT + origin
    stored = rows.get(row) or bytes(ORIGIN_BYTES) + counter.pack(0)
    balance = counter.unpack(stored[ORIGIN_BYTES:]) + amount
    rows.put(row, max(stored[:ORIGIN_BYTES], node) + counter.pack(balance))


def _drawn(rows: Rows) -> int:
    stored = rows.get(POOL)
    return 0 if stored is None else counter.unpack(stored)


def _put(rows: Rows, drawn: int) -> None:
    if drawn:
        rows.put(POOL, counter.pack(drawn))
    else:
        rows.delete(POOL)
