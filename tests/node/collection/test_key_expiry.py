"""Which keys of requests expire, and how many one call looks at."""

from __future__ import annotations

from shoal.cluster.operation import Body
from shoal.cluster.truncation import Holding
from shoal.config import Config
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.node.collection import answers
from shoal.node.collection.answers import Expiry
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage

ORIGIN = Origin(b"o" * 16)
CONFIG = Config(key_window_s=100, forget_after_s=1000.0)
HERE = Holding(VersionVector({ORIGIN: 999}), VersionVector({ORIGIN: 999}))


def holding(count: int) -> MemoryStorage:
    rows = {
        keys.request_key(3, f"k{number:04}"): answers.truncated(Dot(ORIGIN, number), Body(1, 0, (), None, b""))
        for number in range(1, count + 1)
    }
    return MemoryStorage(rows)


def test_a_key_waits_for_each_owner_or_to_be_forgotten() -> None:
    silent = Holding(VersionVector(), None)
    for owners, now_ms, expires in (
        ([HERE], 99_000, False),
        ([HERE], 101_000, True),
        ([HERE, silent], 101_000, False),
        ([HERE, silent], 1_000_001, True),
    ):
        expiry = Expiry(holding(1), CONFIG)
        assert bool(expiry.expired(3, owners, now_ms).rows) is expires


def test_one_call_looks_at_a_bounded_number_of_keys() -> None:
    expiry = Expiry(holding(600), CONFIG)
    counts = []
    more = True
    while more:
        rows, more = expiry.expired(3, [HERE], 200_000)
        counts.append(len(rows))
    assert counts == [256, 256, 88]
