"""The vector and the base of a partition, as they are in storage."""

from __future__ import annotations

import pytest

from shoal.cluster.operation import CHAIN_START, Tip
from shoal.crdt.dot import Dot, HybridClock, Origin, VersionVector
from shoal.errors import BadOperation
from shoal.node import partitions as retirement
from shoal.node.partitions import Ahead, Partitions
from shoal.node.retired import Retirement
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage

ONE, OTHER = Origin(b"1" * 16), Origin(b"2" * 16)


def tip(sequence: int) -> bytes:
    return Tip(sequence, sequence, CHAIN_START, logged=100 * sequence).pack()


def test_the_base_of_each_origin_is_loaded_with_its_partition() -> None:
    storage = MemoryStorage()
    storage.write({keys.vector(3, ONE): tip(9), keys.vector(3, OTHER): tip(4), keys.vector(4, ONE): tip(7)})
    storage.write({keys.base(3, ONE): tip(5), keys.base(4, ONE): tip(7)})
    partitions = Partitions(storage, HybridClock())
    assert partitions.load(3).base == VersionVector.of(Dot(ONE, 5))
    assert partitions.load(4).base == VersionVector.of(Dot(ONE, 7))
    assert not partitions.load(5).base


def test_truncating_raises_the_base_and_shrinks_the_log() -> None:
    storage = MemoryStorage()
    storage.write({keys.vector(3, ONE): tip(9), keys.base(3, ONE): tip(5)})
    partition = Partitions(storage, HybridClock()).load(3)
    assert partition.log_bytes == 400
    partition.truncate({ONE: Tip.unpack(tip(8))})
    assert (partition.base[ONE], partition.vector[ONE], partition.log_bytes) == (8, 9, 100)


def test_a_retired_origin_has_no_tip_and_no_base_and_is_covered() -> None:
    storage = MemoryStorage()
    storage.write({keys.vector(3, ONE): tip(9), keys.base(3, ONE): tip(5), keys.vector(3, OTHER): tip(4)})
    partition = Partitions(storage, HybridClock()).load(3)
    rows = {ONE: Retirement(Tip.unpack(tip(9)), 11, 0, is_logged=True)}
    storage.write({keys.retired(3, ONE): rows[ONE].pack()})
    summary = partition.retired.summary.retiring(Dot(OTHER, 4), 11, 0, rows.keys())
    partition.retire(Dot(OTHER, 4), rows.keys(), partition.retired.after(summary, rows))
    assert (partition.tip(ONE).sequence, ONE in partition.bases, ONE in dict(partition.vector.items())) == (0, False, False)
    assert partition.vector.covers(Dot(ONE, 9))


def test_an_origin_is_not_retired_at_another_operation_than_its_last() -> None:
    storage = MemoryStorage()
    storage.write({keys.vector(3, ONE): tip(9), keys.vector(3, OTHER): tip(4)})
    ahead = Ahead(Partitions(storage, HybridClock()).load(3))
    retirement.check(ahead, Dot(OTHER, 5), [(ONE, 9)], own=None)
    for sequence in (8, 10):
        with pytest.raises(BadOperation, match="two nodes have written under one origin"):
            retirement.check(ahead, Dot(OTHER, 5), [(ONE, sequence)], own=None)
