"""An owner says what it holds durably, and is asked until it can."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest

from shoal.cluster.comparing import Roots, RootsMessage, RootsRequest
from shoal.config import Config
from shoal.node.environment import Environment
from shoal.node.snapshots.checking import vector_root
from shoal.node.snapshots.witnessing import Others, Owners, Witnesses
from shoal.storage import keys
from tests.node.snapshots.conftest import NUMBER, Filled
from tests.node.snapshots.test_checking import checked
from tests.node.snapshots.test_switching import pieces_of

SENDER, WITNESS = b"s" * 16, b"w" * 16
CONFIG = Config(quorum_timeout_s=1.0)


class Witnessing:
    """The witnesses of a filled store, and all that they send."""

    def __init__(self, filled: Filled, environment: Environment | None = None, *, unsure: tuple[bytes, ...] = ()) -> None:
        database = filled.node.service._database
        self.vector = vector_root(database.partitions.load(NUMBER).tips)
        self.sent: list[RootsMessage] = []
        others = Others(
            owners=lambda: Owners([SENDER, WITNESS], 2, 2, [], [SENDER, WITNESS], learns=False),
            named=lambda node: node.decode(),
            is_removed=lambda _node: False,
            unsure=lambda _number: unsure,
        )
        context = dataclasses.replace(
            filled.node._context, environment=environment or filled.simulated.environment, config=CONFIG
        )
        self.witnesses = Witnesses(context, others, send=lambda _peer, message: self.sent.append(message))

    def ask(self, id: int = 1) -> None:
        self.witnesses.heard(SENDER, RootsRequest(id, NUMBER, self.vector, b"", 0))

    @property
    def answers(self) -> dict[int, bool]:
        """By question, whether it was answered with roots."""
        return {sent.id: bool(sent.roots) for sent in self.sent if isinstance(sent, Roots)}


@pytest.fixture
async def unsynced(filled: Filled) -> AsyncIterator[Filled]:
    """A store whose last write is not durable yet."""
    filled.simulated.hold_syncs()
    await filled.space.counter("n").add(1, durability="memory")
    yield filled
    filled.simulated.release_syncs()


async def test_a_witness_tells_nothing_before_it_is_durable(unsynced: Filled) -> None:
    witnessing = Witnessing(unsynced)
    witnessing.ask()
    await asyncio.sleep(1)
    assert witnessing.answers == {}
    unsynced.simulated.release_syncs()
    await asyncio.sleep(1)
    assert witnessing.answers == {1: True}


async def test_a_witness_answers_a_bounded_number_at_once(unsynced: Filled) -> None:
    witnessing = Witnessing(unsynced)
    for id in range(CONFIG.snapshots_open_max + 1):
        witnessing.ask(id)
    assert witnessing.answers == {CONFIG.snapshots_open_max: False}


async def test_a_witness_reads_in_steps(filled: Filled) -> None:
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    witnessing = Witnessing(filled, dataclasses.replace(filled.simulated.environment, pause=pause))
    witnessing.ask()
    await asyncio.sleep(1)
    assert witnessing.answers == {1: True}
    assert pauses > 1


async def test_an_owner_at_another_vector_is_asked_again(filled: Filled) -> None:
    loop = asyncio.get_running_loop()
    environment = dataclasses.replace(filled.simulated.environment, monotonic=loop.time)
    witnessing = Witnessing(filled, environment)
    pieces = pieces_of(filled.rows())
    believing = loop.create_task(witnessing.witnesses.believe(SENDER, NUMBER, checked(pieces), lambda: pieces))
    began = loop.time()
    while not believing.done():
        asked = len(witnessing.sent)
        await asyncio.sleep(0.01)
        if len(witnessing.sent) > asked:
            witnessing.witnesses.heard(WITNESS, Roots(1, NUMBER))
    assert "did not confirm them" in (await believing).doubt
    assert len(witnessing.sent) > 2
    assert 1.0 <= loop.time() - began < 2.0


async def test_an_object_unsure_to_the_witness_is_not_compared(filled: Filled) -> None:
    name = next(keys.object_of(key) for key in filled.rows() if key[:1] == keys.OBJECT)
    unsure, sure = Witnessing(filled, unsure=(name,)), Witnessing(filled)
    pieces = pieces_of(filled.rows())
    believing = asyncio.create_task(sure.witnesses.believe(SENDER, NUMBER, checked(pieces), lambda: pieces))
    unsure.ask()
    await asyncio.sleep(0.01)
    [answer] = unsure.sent
    sure.witnesses.heard(WITNESS, answer)
    assert (await believing).doubt == ""
