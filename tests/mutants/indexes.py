"""Bugs in the indexes of items, and in their vectors."""

from __future__ import annotations

import pytest

from shoal.kinds.items.serving.indexes import IndexedRows
from shoal.kinds.items.serving.ranking import Rankings
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage import keys
from tests.mutants.mutant import Mutant


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


MUTANTS = (
    Mutant(an_index_row_stays_after_a_delete, "an index keeps the row of an item that was deleted", ("4",)),
    Mutant(an_index_row_of_the_last_value_stays, "an index keeps the row of a value that was replaced", ("4",)),
    Mutant(vectors_in_memory_miss_what_is_written, "vectors in memory are not those of what was written since", ("10",)),
)
