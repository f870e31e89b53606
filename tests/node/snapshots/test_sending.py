"""What a node answers to peers that ask for snapshots of its partitions."""

from __future__ import annotations

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.config import Config
from shoal.node.snapshots.sending import SnapshotSender
from tests.node.snapshots.conftest import NUMBER, Filled

PEER = bytes(16)


async def test_a_piece_for_which_the_queue_has_no_room_is_asked_for_again_soon(filled: Filled) -> None:
    taken: list[SnapshotPiece] = []
    room = 0

    def offer(_peer: bytes, message: SnapshotPiece) -> bool:
        if len(message.rows) > room:
            return False
        taken.append(message)
        return True

    database = filled.node.service._database
    sender = SnapshotSender(
        filled.storage,
        database._commit,
        partitions=database.partitions,
        offer=offer,
        is_behind=lambda _: False,
        environment=filled.simulated.environment,
        config=Config(snapshot_piece_bytes=500),
    )
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1))
    (refusal,) = taken
    assert (refusal.rows, refusal.partition, refusal.attempt, refusal.id) == (b"", NUMBER, 1, b"")
    assert refusal.reason
    assert 0 < refusal.retry_after_ms < 1000
    room = 100_000
    await sender.asked(PEER, SnapshotRequest(NUMBER, 2))
    room = 0
    await sender.asked(PEER, SnapshotRequest(NUMBER, 2, taken[1].id, 1))
    room = 100_000
    await sender.asked(PEER, SnapshotRequest(NUMBER, 2, taken[1].id, 1))
    assert [(piece.piece, piece.id, bool(piece.rows)) for piece in taken[1:]] == [
        (0, taken[1].id, True),
        (1, taken[1].id, False),
        (1, taken[1].id, True),
    ]
    sender.stop()
