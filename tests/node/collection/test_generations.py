"""A deletion is seen although the object was remembered as never deleted."""

from __future__ import annotations

import pytest

from shoal.crdt import deletion
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import Stamp
from shoal.kinds.items.serving.indexes import Indexes
from shoal.node.collection.entries import Generations
from shoal.node.handler import Target
from shoal.node.transaction import Transaction
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind

TARGET = Target(Kind.COUNTER, "crew", "n")
STAMP = Stamp(Dot(Origin(b"o" * 16), 1), 1, 1, NOTHING_SEEN, 0)


@pytest.mark.parametrize("looks_between", [False, True])
def test_a_deletion_is_seen_at_once_and_after_its_write(looks_between: bool) -> None:
    storage = MemoryStorage()
    generations = Generations(Indexes(storage, due=lambda _: None, moved=lambda *_: None), known_max=10)
    assert generations.current(Transaction(storage), TARGET).number == 0
    transaction = Transaction(storage)
    assert generations.delete(transaction, TARGET, STAMP, deletion.Delete(0))
    assert generations.current(transaction, TARGET).number == 1
    if looks_between:
        assert generations.current(Transaction(storage), TARGET).number == 0
    storage.write(transaction.rows)
    transaction.written()
    assert generations.current(Transaction(storage), TARGET).number == 1
