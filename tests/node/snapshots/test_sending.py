"""What a node sends of its partitions, and how it makes room for its clients meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.config import Config
from shoal.node.snapshots.exchange import SnapshotSender
from simulation.bounds import altered
from tests.node.snapshots.conftest import NUMBER, Filled
from tests.support.pacing import LOOK_S

PEER = bytes(16)


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(snapshot_piece_bytes=500, snapshot_idle_s=10.0):
        yield


class Disk:
    """What the sender sees of the group commit."""

    written = 0
    is_awaited = False

    async def wait_durable(self, number: int) -> None:
        """It is."""


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the sender rests, each time."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def sending(filled: Filled, offer: Callable[[bytes, SnapshotPiece], bool], config: Config | None = None) -> SnapshotSender:
    context = replace(filled.node._context, config=config or Config())
    return SnapshotSender(context, filled.node._database.chunks, offer=offer, is_behind=lambda _: False)


@pytest.mark.answers("snapshots-hold-up-clients")
async def test_a_sender_rests_after_each_piece_only_while_requests_wait(filled: Filled, rests: list[float]) -> None:
    ticks, disk, sent = count(), Disk(), list[SnapshotPiece]()

    def offer(_peer: bytes, piece: SnapshotPiece) -> bool:
        sent.append(piece)
        return True

    context = replace(
        filled.node._context,
        commit=disk,  # type: ignore[arg-type]
        environment=replace(filled.simulated.environment, monotonic=lambda: next(ticks) / 100),
        config=Config(),
    )
    sender = SnapshotSender(context, filled.node._database.chunks, offer=offer, is_behind=lambda _: False)
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1))
    assert rests == [], "nobody waits"
    disk.is_awaited = True
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1, sent[0].id, 1))
    assert rests == [pytest.approx(0.08)], "a piece takes 0.01 s by this clock"
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1, b"x" * 16, 1))
    assert len(rests) == 1, "no piece was read"
    sender.stop()


async def test_a_piece_for_which_the_queue_has_no_room_is_asked_for_again_soon(filled: Filled) -> None:
    taken: list[SnapshotPiece] = []
    room = 0

    def offer(_peer: bytes, message: SnapshotPiece) -> bool:
        if len(message.rows) > room:
            return False
        taken.append(message)
        return True

    sender = sending(filled, offer, Config())
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


@pytest.mark.answers("snapshot-is-sent-before-it-is-durable")
async def test_nothing_is_sent_before_what_it_shows_is_durable(filled: Filled) -> None:
    sent: list[SnapshotPiece] = []

    def offer(_peer: bytes, piece: SnapshotPiece) -> bool:
        sent.append(piece)
        return True

    commit = filled.node._commit
    sender = sending(filled, offer)
    filled.simulated.hold_syncs()
    writing = asyncio.create_task(filled.space.counter("tokens").add(1))
    while commit.written == commit.durable:
        await asyncio.sleep(LOOK_S)
    asked = asyncio.create_task(sender.asked(PEER, SnapshotRequest(NUMBER, 1)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert sent == []
    filled.simulated.release_syncs()
    await asyncio.gather(writing, asked)
    assert sent[0].rows
    sender.stop()


async def test_no_more_snapshots_are_kept_than_may_be(filled: Filled) -> None:
    sent: list[SnapshotPiece] = []

    def offer(_peer: bytes, piece: SnapshotPiece) -> bool:
        sent.append(piece)
        return True

    config = Config(snapshots_open_max=2)
    sender = sending(filled, offer, config)
    for nth in range(3):
        await sender.asked(bytes([nth]) * 16, SnapshotRequest(NUMBER, 1))
    assert [bool(piece.rows) for piece in sent] == [True, True, False]
    now = filled.simulated.environment.monotonic()
    sender.tick(now + 9.0)
    await sender.asked(bytes([2]) * 16, SnapshotRequest(NUMBER, 2))
    assert not sent[-1].rows
    sender.tick(now + 11.0)  # Nobody has asked for theirs.
    await sender.asked(bytes([2]) * 16, SnapshotRequest(NUMBER, 3))
    assert sent[-1].rows
    sender.stop()


async def test_a_lost_piece_is_read_again_from_where_it_begins(filled: Filled) -> None:
    sent: list[SnapshotPiece] = []

    def offer(_peer: bytes, piece: SnapshotPiece) -> bool:
        sent.append(piece)
        return True

    sender = sending(filled, offer, Config())
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1))
    for nth in (1, 2, 1, 2, 1):
        await sender.asked(PEER, SnapshotRequest(NUMBER, 1, sent[0].id, nth))
    assert [piece.piece for piece in sent] == [0, 1, 2, 1, 2, 1]
    assert sent[1] == sent[3] == sent[5]
    assert sent[2] == sent[4] != sent[1]
    sender.stop()


async def test_a_peer_that_does_not_read_gets_nothing(filled: Filled) -> None:
    sent: list[SnapshotPiece] = []

    def offer(_peer: bytes, piece: SnapshotPiece) -> bool:
        sent.append(piece)
        return True

    sender = sending(filled, offer)
    sender._is_behind = lambda _: True
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1))
    assert (sent[0].rows, sent[0].reason) == (b"", "too many bytes wait to be sent to you")


async def test_a_partition_that_is_being_replaced_is_not_sent(filled: Filled) -> None:
    sent: list[SnapshotPiece] = []

    def offer(_peer: bytes, piece: SnapshotPiece) -> bool:
        sent.append(piece)
        return True

    partitions = filled.node.service._database.partitions
    sender = sending(filled, offer)
    partitions.close(NUMBER)
    await sender.asked(PEER, SnapshotRequest(NUMBER, 1))
    assert (sent[0].rows, sent[0].reason) == (b"", "this partition is being replaced")
    partitions.reopen(NUMBER)
    await sender.asked(PEER, SnapshotRequest(NUMBER, 2))
    assert sent[1].rows
