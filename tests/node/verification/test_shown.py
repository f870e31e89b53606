"""The part of a log that has left a node is believed once it ends in the chain hash that the node kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shoal.cluster import operation
from shoal.cluster.messages import Range, Shipment, Supply
from shoal.cluster.operation import Body, Tip, partition_of
from shoal.config import Config
from shoal.crdt.applier import NOTHING
from shoal.crdt.dot import HORIZON, Dot, Origin
from shoal.kinds.counter import state as counter
from shoal.node import mutation, transaction
from shoal.node.retired import Summary
from shoal.node.verification.evidence import Shown, shown_by
from shoal.node.verification.report import ObjectPlace
from shoal.storage import keys
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

ORIGIN = Origin(b"o" * 16)
PLACE = ObjectPlace(partition_of("crew", "n"), Kind.COUNTER, "crew", "n")


def logged(count: int, *, by: int = 1) -> list[Shipment]:
    """So many operations of one origin, each an add to the counter."""
    made: list[Shipment] = []
    for sequence in range(1, count + 1):
        payload = mutation.encode([mutation.Mutation(Kind.COUNTER, "crew", "n", counter.Add(by))])
        packed = operation.encode(Body(sequence, sequence, [], None, payload))
        chain = operation.chain(made[-1].chain if made else operation.CHAIN_START, PLACE[0], Dot(ORIGIN, sequence), packed)
        made.append(Shipment(PLACE[0], ORIGIN, sequence, chain, packed, transaction.pack_blobs([NOTHING])))
    return made


class Peer:
    """Answers each question with so many of these operations, after some time."""

    def __init__(self, log: Sequence[Shipment], *, at_once: int = 512, after_s: float = 0.0) -> None:
        self._log, self._at_once, self._after_s = log, at_once, after_s
        self.asked = 0

    async def ask(self, _peer: bytes, ranges: list[Range]) -> Supply | None:
        self.asked += 1
        assert self.asked < 100
        await asyncio.sleep(self._after_s)
        first = ranges[0][2]
        return Supply(self.asked, [each for each in self._log if each.sequence >= first][: self._at_once])


async def read(peer: Peer, log: Sequence[Shipment], config: Config | None = None) -> Shown | None:
    base = Tip(len(log), len(log), log[-1].chain)
    return await shown_by(b"peer", PLACE, {ORIGIN: base}, ask=peer.ask, config=config or Config())


async def test_a_log_is_shown_in_several_answers() -> None:
    log = logged(20)
    shown = await read(Peer(log, at_once=7), log)
    assert shown is not None
    assert [entry.logged.dot.sequence for entry in shown.entries] == list(range(1, 21))


async def test_another_log_of_the_same_length_shows_nothing() -> None:
    log = logged(3)
    assert await read(Peer(logged(3, by=2)), log) is None


async def test_an_answer_without_news_ends_it() -> None:
    peer = Peer([])
    assert (await read(peer, logged(3)), peer.asked) == (None, 1)


async def test_a_log_that_trickles_in_is_given_up() -> None:
    log = logged(50)
    assert await read(Peer(log, at_once=1, after_s=4.9), log) is None


async def test_a_log_of_too_many_bytes_is_given_up() -> None:
    log = logged(50)
    assert await read(Peer(log, at_once=10), log, Config(rebuild_bytes_max=200)) is None


async def test_no_log_shows_what_a_forgotten_origin_wrote() -> None:
    async with Fleet("a") as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        rebuilder = fleet["a"].node._database.exchange.rebuilder
        before = rebuilder.left(PLACE.partition)
        fleet["a"].storage.write({keys.retired(PLACE.partition, HORIZON): Summary(forgotten=1, forgotten_hlc=1).pack()})
        assert (before, rebuilder.left(PLACE.partition)) == ({}, None)
