"""What a node shows its peers of its rows: what is durable, in bounded pieces, and nothing that expires."""

from __future__ import annotations

from shoal.crdt.dot import Dot, HybridClock, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.node.collection.expiring import range_end
from shoal.node.partitions import Partitions
from shoal.node.verification.evidence import Evidence, object_of
from shoal.protocol import requests
from shoal.protocol.session import RANDOM_BYTES, make_key
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.bounds import altered
from tests.node.conftest import Bench

ROWS = {keys.object_rows(3, Kind.COUNTER, "crew", f"n{n}") + b"\x00": b"x" * 100 for n in range(8)}


def evidence(storage: MemoryStorage) -> tuple[Evidence, Partitions]:
    partitions = Partitions(storage, HybridClock())
    return Evidence(storage, partitions), partitions


def test_nothing_is_shown_while_some_is_not_durable() -> None:
    made, partitions = evidence(MemoryStorage(ROWS))
    piece = made.next(3, b"")
    assert piece is not None
    assert len(piece.rows) == len(ROWS)
    partition = partitions.load(3)
    partition.vector = VersionVector.of(Dot(Origin(b"1" * 16), 1))
    assert made.next(3, b"") is None
    partition.durable = partition.vector
    assert made.next(3, b"") is not None


def test_a_piece_is_bounded_and_holds_one_row_at_least() -> None:
    for bound, count in (
        ({"scrub_piece_rows": 3}, 3),
        ({"scrub_piece_bytes": 250}, 2),
        ({"scrub_piece_bytes": 1}, 1),
    ):
        made, _ = evidence(MemoryStorage(ROWS))
        with altered(**bound):
            piece = made.next(3, b"")
        assert piece is not None
        assert (len(piece.rows), piece.stop) == (count, sorted(ROWS)[count])


async def test_expiring_rows_are_not_compared(bench: Bench) -> None:
    key = make_key(bench.simulated.now_ms, bytes(RANDOM_BYTES))
    await bench.node.session().call(requests.Add("crew", "n", 1), key=key)
    rows = [key for key, _ in bench.storage.scan(keys.OBJECT, successor(keys.OBJECT))]
    expiring = {key for key in rows if range_end(object_of(key), key) is not None}
    assert expiring
    number = int.from_bytes(rows[0][1:3], "big")
    piece = evidence(bench.storage)[0].next(number, b"")
    assert piece is not None
    assert {key for _, key, _ in piece.rows} == set(rows) - expiring
