"""A node that began with an empty directory takes no sessions until it holds what its peers held when they met."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

import shoal
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.cluster import messages
from shoal.cluster.messages import Message, Shipment, Supply, Want
from shoal.config import Config
from shoal.errors import CatchingUp
from shoal.storage.interface import MemoryStorage
from shoal.transport.link import Link
from simulation.world.fleet import Fleet, Member
from tests.cli.conftest import PATIENCE_S


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


def takes_sessions(member: Member) -> bool:
    try:
        member.node.service.readiness.admit()
    except CatchingUp:
        return False
    return True


async def state(member: Member) -> str:
    return (await member.store().status()).state


def hold_supplies(fleet: Fleet) -> None:
    """What a node asks its peers for does not arrive."""
    fleet.spoil = lambda source, target, message: None if isinstance(messages.decode(message), Supply) else message


async def filled(fleet: Fleet) -> None:
    for n in range(50):
        await fleet["a"].store().space("s").counter(f"c{n}").add(1)
    await fleet.converged(PATIENCE_S)


@pytest.mark.answers("clients-connect-to-a-node-without-its-disk")
async def test_it_refuses_them_from_when_a_peer_tells_of_more_until_it_has_that(fleet: Fleet) -> None:
    await filled(fleet)
    await fleet.crash("c")
    hold_supplies(fleet)
    wiped = fleet.start("c", MemoryStorage())
    await until(lambda: not takes_sessions(wiped))
    assert await state(wiped) == "refilling"
    fleet.spoil = lambda source, target, message: message
    await until(lambda: takes_sessions(wiped))
    await fleet.admitted()  # Its sessions wait until it is durable that it holds all.
    assert await wiped.store().space("s").counter("c49").value() == 1
    assert await state(wiped) == "ready"


@pytest.mark.answers("node-that-is-refilled-receives-operations-twice")
async def test_each_operation_is_sent_to_it_once_though_two_peers_have_it() -> None:
    # No answer is late, however slow the machine is: a late one is asked for again.
    async with Fleet(quorum_timeout_s=600.0) as fleet:
        threads = [fleet["a"].store().space("s").thread(f"t{n}") for n in range(40)]
        for thread in threads:
            for n in range(8):
                await thread.append("messages", f"message {n} " + "x" * 1000, durability="memory")
        await fleet.converged(PATIENCE_S)
        await fleet.crash("c")
        sent: list[tuple[int, bytes, int]] = []

        def note(source: str, target: str, message: bytes) -> bytes:
            decoded = messages.decode(message)
            if isinstance(decoded, Supply):
                operations = [each for each in decoded.operations if isinstance(each, Shipment)]
                sent.extend((each.partition, each.origin, each.sequence) for each in operations)
            return message

        fleet.spoil = note
        fleet.start("c", MemoryStorage())
        await fleet.converged(PATIENCE_S)
        assert len(set(sent)) >= 320
        assert len(sent) == len(set(sent))


async def test_peers_that_go_on_writing_do_not_keep_it_from_them(fleet: Fleet) -> None:
    await filled(fleet)
    await fleet.crash("c")
    hold_supplies(fleet)
    wiped = fleet.start("c", MemoryStorage())
    await until(lambda: not takes_sessions(wiped))

    async def write() -> None:
        while True:
            await fleet["a"].store().space("s").counter("more").add(1)
            await asyncio.sleep(0.001)

    writing = asyncio.create_task(write())
    fleet.spoil = lambda source, target, message: message
    await until(lambda: takes_sessions(wiped))
    writing.cancel()


async def test_once_it_holds_that_it_takes_sessions_for_good(fleet: Fleet) -> None:
    await filled(fleet)
    await fleet.crash("c")
    wiped = fleet.start("c", MemoryStorage())
    await fleet.converged(PATIENCE_S)
    assert takes_sessions(wiped)
    hold_supplies(fleet)
    await fleet.isolate("c")
    for n in range(50):
        await fleet["a"].store().space("s").counter(f"d{n}").add(1)
    fleet.link_all("c")
    await until(lambda: any(member.lacks or member.ahead for member in wiped.replicator.quorum.view().members[1:]))
    assert takes_sessions(wiped)


@pytest.mark.answers("clients-connect-to-a-node-without-its-disk")
async def test_at_the_first_start_of_a_cluster_all_take_sessions(fleet: Fleet) -> None:
    assert all(takes_sessions(fleet[name]) for name in "abc")
    await filled(fleet)
    assert all(takes_sessions(fleet[name]) for name in "abc")
    assert [await state(fleet[name]) for name in "abc"] == ["ready"] * 3


async def test_a_node_that_comes_back_with_its_directory_takes_them_at_once(fleet: Fleet) -> None:
    await filled(fleet)
    left = await fleet.crash("c")
    for n in range(50):
        await fleet["a"].store().space("s").counter(f"d{n}").add(1)
    hold_supplies(fleet)
    back = fleet.start("c", left)
    await until(lambda: any(member.ahead for member in back.replicator.quorum.view().members[1:]))
    assert takes_sessions(back)


async def test_one_that_can_reach_nobody_any_more_answers_about_itself_alone(fleet: Fleet) -> None:
    await filled(fleet)
    await fleet.crash("c")
    hold_supplies(fleet)
    wiped = fleet.start("c", MemoryStorage())
    await until(lambda: not takes_sessions(wiped))
    await fleet.isolate("c")
    assert await state(wiped) == "refilling"
    with pytest.raises(CatchingUp):
        await wiped.store().space("s").counter("c1").value()


@asynccontextmanager
async def listening(member: Member) -> AsyncIterator[str]:
    admit = member.node.service.readiness.admit
    app = create_app(member.node.session, config=Config(), node="ab12", version="0", now_s=time.time, admit=admit)
    listener = Listener(app, config=Config(listen_port=0))
    await listener.start()
    yield listener.url
    await listener.stop()


@pytest.mark.real_time("over HTTP")
async def test_readyz_says_so_the_hello_is_refused_and_clients_go_elsewhere() -> None:
    fleet = Fleet()
    fleet.real_time = True
    async with fleet:
        await filled(fleet)
        await fleet.crash("c")
        hold_supplies(fleet)
        wiped = fleet.start("c", MemoryStorage())
        await until(lambda: not takes_sessions(wiped))
        async with listening(fleet["a"]) as whole, listening(wiped) as refilling:
            async with aiohttp.ClientSession() as http, http.get(f"{refilling}/readyz") as answer:
                assert answer.status == 503
                assert (await answer.json(content_type=None))["code"] == "catching-up"
            with pytest.raises(CatchingUp, match="began empty"):
                await Link.dial(refilling, config=Config(connect_timeout_s=PATIENCE_S))
            async with shoal.connect([refilling, whole], in_order=True) as store:
                assert await store.space("s").counter("c1").value() == 1


@pytest.mark.answers("seed-1166")
@pytest.mark.parametrize("kind", [Want, Supply])
async def test_a_full_queue_delays_a_fetch_by_moments(fleet: Fleet, kind: type[Message]) -> None:
    """Neither side waits until a question or an answer is overdue that its own queue did not take."""
    await filled(fleet)
    await fleet.isolate("c")
    await fleet["a"].store().space("s").counter("late").add(1)
    refused: list[bytes] = []

    def is_full(packed: bytes) -> bool:
        is_refused = len(refused) < 3 and isinstance(messages.decode(messages.unstamped(packed)[1]), kind)
        refused.extend([packed] * is_refused)
        return is_refused

    fleet.is_full = is_full
    fleet.link_all("c")
    async with asyncio.timeout(fleet["c"].config.quorum_timeout_s * 0.75):
        await until(lambda: len(refused) == 3 and fleet.rows("a") == fleet.rows("c"))
