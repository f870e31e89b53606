"""Bugs in deletions of budgets, of items at once, and of whole spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from shoal.crdt.rows import Rows
from shoal.kinds.budget.handler import Budgets
from shoal.kinds.items import state as items
from shoal.node.collection.entries import Generation, Generations, rows_of
from shoal.node.collection.garbage import Collector
from shoal.node.handler import Target
from shoal.node.transaction import Transaction
from shoal.storage.keys import Kind
from shoal.workflows import spaces
from tests.mutants.mutant import Mutant


def _outlives(patch: pytest.MonkeyPatch, kind: Kind) -> None:
    """A deletion leaves the rows of objects of a kind where the next generation finds them."""
    sound = Generations.current

    def current(self: Generations, transaction: Transaction, target: Target) -> Generation:
        found = sound(self, transaction, target)
        return Generation(found.number, rows_of(transaction, target, 0)) if target.kind is kind else found

    patch.setattr(Generations, "current", current)
    patch.setattr(Collector, "enter", lambda self, *given: None)  # Nor are they swept.


def a_budget_outlives_its_deletion(patch: pytest.MonkeyPatch) -> None:
    _outlives(patch, Kind.BUDGET)
    patch.setattr(Budgets, "ended", lambda self, transaction, target: None)


def items_outlive_their_label(patch: pytest.MonkeyPatch) -> None:
    _outlives(patch, Kind.ITEMS)


def a_space_keeps_its_maps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spaces, "DELETIONS", {kind: made for kind, made in spaces.DELETIONS.items() if kind != "map"})


def a_namespace_takes_its_neighbours(patch: pytest.MonkeyPatch) -> None:
    """Those whose labels begin like the one that is deleted."""

    def below(rows: Rows, rest: Sequence[str], *, after: bytes = b"") -> Iterator[tuple[bytes, int, items.Item]]:
        beginning = items.ITEM + b"\x00".join(label.encode() for label in rest)
        for row, stored in rows.scan(beginning, after=items.ITEM + after if after else None):
            yield row[1:], len(stored), items.of_row(row[1:], stored)

    patch.setattr(items, "below", below)


MUTANTS = (
    Mutant(a_budget_outlives_its_deletion, "a deletion of a budget leaves what was granted", ("15",)),
    Mutant(items_outlive_their_label, "a deletion of a label leaves its items", ("15",)),
    Mutant(a_space_keeps_its_maps, "the deletion of a space leaves its maps", ("15",)),
    Mutant(a_namespace_takes_its_neighbours, "the deletion of a namespace takes those whose names begin alike", ("3",)),
)
