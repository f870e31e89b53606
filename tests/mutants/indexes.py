"""Bugs in the indexes of items, in their vectors, and in the catalog's list of threads with an open step."""

from __future__ import annotations

import pytest

from shoal.kinds.items.serving.indexes import IndexedRows
from shoal.kinds.items.serving.ranking import Rankings
from shoal.node.catalog import Catalog, standing
from shoal.node.handler import Target
from shoal.node.snapshots import switching
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage import keys
from tests.mutants.mutant import Mutant
from tests.mutants.snapshots import REFILLED


def an_index_row_stays_after_a_delete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexedRows, "delete", ObjectRows.delete)


def an_index_row_of_the_last_value_stays(patch: pytest.MonkeyPatch) -> None:
    sound = Transaction.delete

    def delete(self: Transaction, key: bytes) -> None:
        if not key.startswith(keys.INDEX):
            sound(self, key)

    patch.setattr(Transaction, "delete", delete)


def vectors_in_memory_miss_what_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rankings, "moved", lambda self, target, path: None)


def a_thread_stays_listed_when_its_step_has_ended(patch: pytest.MonkeyPatch) -> None:
    sound = Catalog.set_standing

    def set_standing(self: Catalog, transaction: Transaction, target: Target, after: bytes) -> None:
        if after:
            sound(self, transaction, target, after)

    patch.setattr(Catalog, "set_standing", set_standing)


def a_snapshot_lists_no_open_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switching, "standing", lambda status, _oldest: standing(status, None))


MUTANTS = (
    Mutant(an_index_row_stays_after_a_delete, "an index keeps the row of an item that was deleted", ("4",)),
    Mutant(an_index_row_of_the_last_value_stays, "an index keeps the row of a value that was replaced", ("4",)),
    Mutant(a_thread_stays_listed_when_its_step_has_ended, "a thread is listed by a step that has ended", ("4",)),
    Mutant(a_snapshot_lists_no_open_step, "a snapshot lists no thread by its open step", ("4",), composites=REFILLED),
    Mutant(vectors_in_memory_miss_what_is_written, "vectors in memory are not those of what was written since", ("10",)),
)
