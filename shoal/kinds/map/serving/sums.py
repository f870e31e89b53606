"""The counters of maps that were read last, so that a read of one does not add up all its adds again.

Laws:
- A sum is remembered only while it is known without reading the adds. An add that was issued here, or that arrived with a
  request key that no other operation has, changes it; any other change of its map's key drops it.
- It moves after the write that changes it was made. It is never stored.
- Sums of few adds are not remembered, since reading these is cheap.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from shoal.crdt.rows import Rows
from shoal.kinds.map import state as ormap
from shoal.node.handler import Applied, Memory
from shoal.node.implied_keys import is_of
from shoal.node.target import Place, Target
from shoal.node.transaction import Transaction

_ADDS_MIN = 32  # Adding these up takes about 0.1 ms.


class Sums(Memory):
    """At most `sums_max` counters; the one that was not read for longest is dropped first."""

    def __init__(self, sums_max: int) -> None:
        self._sums_max = sums_max
        self._known: OrderedDict[tuple[Target, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def value(self, rows: Rows, target: Target, key: str) -> int | None:
        """The counter of a map's key, as it is stored; None if nothing was added to it."""
        known = self._known.get((target, key))
        if known is not None:
            self._known.move_to_end((target, key))
            return known
        total, count = ormap.summed(rows, key)
        if count >= _ADDS_MIN:
            self._known[target, key] = total
            if len(self._known) > self._sums_max:
                self._known.popitem(last=False)
        return total if count else None

    def add(self, transaction: Transaction, target: Target, key: str, amount: int) -> None:
        """An add that counts is part of this write."""
        if (target, key) in self._known:
            transaction.when_written(partial(self._add, target, key, amount))

    def drop(self, transaction: Transaction, target: Target, key: str | None = None) -> None:
        """This write changes a key otherwise; with None it may change any key of the map."""
        transaction.when_written(partial(self._drop, target, key))

    def forget_partition(self, number: int) -> None:
        """Forget the sums of a partition's maps, because its rows were replaced."""
        for place in [place for place in self._known if place[0].partition == number]:
            del self._known[place]

    def applied(self, place: Place, applied: Applied) -> None:
        """A peer's add joins the sum; one that may not count, or a removal, drops it."""
        change = applied.change
        if isinstance(change, ormap.Add) and is_of(change.request, applied.fresh):
            self.add(place.transaction, place.target, change.key, change.amount)
        elif isinstance(change, ormap.Add | ormap.Remove):
            self.drop(place.transaction, place.target, change.key)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop all sums of a map that is deleted."""
        self.drop(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop all sums of a map whose rows are replaced."""
        self.drop(transaction, target)

    def _add(self, target: Target, key: str, amount: int) -> None:
        if (target, key) in self._known:
            self._known[target, key] += amount

    def _drop(self, target: Target, key: str | None) -> None:
        dropped = [(target, key)] if key is not None else [place for place in self._known if place[0] == target]
        for place in dropped:
            self._known.pop(place, None)
