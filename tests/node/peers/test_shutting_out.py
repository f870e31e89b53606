"""A member that lies in an honest one's name: what that one writes is taken all the same, by all who hear it from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal.cluster import messages, operation
from shoal.cluster.messages import Push, Shipment
from shoal.cluster.operation import Body, Tip, partition_of
from shoal.crdt.applier import NOTHING
from shoal.crdt.dot import Dot, Origin
from shoal.kinds.counter import state as counter
from shoal.node import mutation, transaction
from shoal.node.mutation import Mutation
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

N = partition_of("crew", "n")
NOBODY = b"\x00" * 15 + b"\x07"
QUARANTINE_S = 60.0


async def add(fleet: Fleet, name: str = "a", *, durability: Any = None) -> None:
    await fleet[name].store().space("crew").counter("n").add(1, durability=durability)


def value(fleet: Fleet, name: str) -> Any:
    return fleet[name].store().space("crew").counter("n").value()


def origin_of(fleet: Fleet, name: str) -> Origin:
    origin = fleet[name].node._incarnation.current
    assert origin is not None
    return origin


def forged(fleet: Fleet, name: str, *, after: int = 1, of: str = "b", is_chained: bool = True, **changes: Any) -> Shipment:
    """An operation in the name of a member, so many after the last that `of` holds of it."""
    origin = origin_of(fleet, name)
    tip: Tip = fleet[of].node._database.partitions.load(N).tip(origin)
    payload = mutation.encode([Mutation(Kind.COUNTER, "crew", "n", counter.Add(1000))])
    body = Body(tip.hlc + after, fleet[name].simulated.now_ms, [], None, payload)
    packed = operation.encode(msgspec.structs.replace(body, **changes))
    dot = Dot(origin, tip.sequence + after)
    chain = operation.chain(tip.chain if is_chained else b"?" * 32, N, dot, packed)
    besides = [] if changes.get("retires") else [NOTHING]
    return Shipment(N, *dot, chain, packed, transaction.pack_blobs(besides))


async def lie(fleet: Fleet, shipment: Shipment, *, liar: str = "c", target: str = "b") -> None:
    """Push this to a member, as another one."""
    replicator, identity = fleet[target].replicator, fleet[liar].identity()
    await replicator.received(identity, messages.stamped(messages.encode(Push([shipment])), identity.epoch))
    await fleet.until(lambda: not replicator._deliveries.is_ahead(identity.node), 5)


Rubbish = Callable[[Fleet], Shipment]


def garbled(fleet: Fleet) -> Shipment:
    return msgspec.structs.replace(forged(fleet, "a"), packed=b"\xc1")


def without_changes(fleet: Fleet) -> Shipment:
    return forged(fleet, "a", payload=b"\xc1")


def unchained(fleet: Fleet) -> Shipment:
    return forged(fleet, "a", is_chained=False)


def of_an_old_number(fleet: Fleet) -> Shipment:
    return forged(fleet, "a", after=0)


def of_no_time(fleet: Fleet) -> Shipment:
    return forged(fleet, "a", hlc=0)


def after_itself(fleet: Fleet) -> Shipment:
    return forged(fleet, "a", context=[(origin_of(fleet, "a"), 9)])


@pytest.mark.parametrize("rubbish", [garbled, without_changes, unchained, of_an_old_number, of_no_time, after_itself])
async def test_rubbish_in_an_honest_nodes_name_shuts_nobody_out(rubbish: Rubbish) -> None:
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await add(fleet, "c")
        await fleet.converged()
        await lie(fleet, rubbish(fleet))
        assert fleet["b"].replicator.quorum.view().quarantined
        await fleet.isolate("c")
        await add(fleet, durability="quorum")
        await fleet.until(lambda: fleet["a"].digest() == fleet["b"].digest(), 5)
        assert await value(fleet, "b") == 3


async def test_rubbish_again_and_again_shuts_nobody_out() -> None:
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await fleet.converged()
        for _ in range(5):
            await lie(fleet, garbled(fleet))
            await add(fleet, durability="all")
        assert await value(fleet, "b") == 6


async def test_a_lie_that_waits_gives_way_to_the_issuers_own() -> None:
    """It claims to follow what will never be, so it would wait."""
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await fleet.converged()
        await lie(fleet, forged(fleet, "a", context=[(NOBODY, 5)]))
        assert fleet["b"].replicator.early == 1
        await fleet.isolate("c")
        await add(fleet, durability="quorum")
        assert (fleet["b"].replicator.early, await value(fleet, "b")) == (0, 2)


async def test_an_issuers_own_operation_that_waits_stays() -> None:
    """b lacks what it follows; the liar's comes after it."""
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await fleet.converged()
        await fleet.cut("a", "b")
        await fleet.cut("c", "b")
        await fleet.cut("b", "c")
        await add(fleet)
        lost = fleet["a"].node._database.partitions.load(N).tip(origin_of(fleet, "a"))
        fleet.is_full = lambda message: isinstance(messages.decode(messages.unstamped(message)[1]), messages.Supply)
        fleet.link("a", "b")
        await add(fleet)
        await fleet.until(lambda: fleet["b"].replicator.early == 1, 5)
        await lie(fleet, forged(fleet, "a", after=2, context=[(NOBODY, 5)]))
        assert fleet["b"].replicator._protocol._delivery.waits(N, Dot(origin_of(fleet, "a"), lost.sequence + 1)) is not None
        fleet.is_full = lambda message: False
        await fleet.until(lambda: fleet["a"].digest() == fleet["b"].digest(), 5)
        assert await value(fleet, "b") == 3


async def test_a_lie_that_waits_is_asked_of_others() -> None:
    """a's own does not reach b; c, which is honest, has it."""
    async with Fleet("abcd", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await fleet.converged()
        await lie(fleet, forged(fleet, "a", context=[(NOBODY, 5)]), liar="d")
        await fleet.isolate("d")
        await fleet.cut("a", "b")
        await add(fleet)
        await fleet.until(lambda: fleet["c"].digest() == fleet["b"].digest() == fleet["a"].digest(), 5)
        assert await value(fleet, "b") == 2


async def test_one_that_waited_is_held_against_its_sender() -> None:
    """It follows what its issuer writes next, and becomes ready by that, as bad as it is."""
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await fleet.converged()
        await lie(fleet, forged(fleet, "a", after=2, is_chained=False))
        await fleet.isolate("c")
        await add(fleet, durability="quorum")
        await add(fleet, durability="quorum")
        assert await value(fleet, "b") == 3


async def test_rubbish_of_one_member_drops_nothing_of_others() -> None:
    """b keeps what waits of a, while rubbish of another origin in its partition is refused."""
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await add(fleet, "c")
        await fleet.converged()
        await fleet.cut("a", "b")
        await add(fleet)
        fleet.is_full = lambda message: isinstance(messages.decode(messages.unstamped(message)[1]), messages.Supply)
        fleet.link("a", "b")
        await add(fleet)
        await fleet.until(lambda: fleet["b"].replicator.early == 1, 5)
        await lie(fleet, msgspec.structs.replace(forged(fleet, "c"), packed=b"\xc1"))
        assert fleet["b"].replicator.early == 1


async def test_a_member_retires_no_other_ones_origin() -> None:
    async with Fleet("abc", quarantine_s=QUARANTINE_S) as fleet:
        await add(fleet)
        await add(fleet, "c")
        await fleet.converged()
        origin = origin_of(fleet, "a")
        held = fleet["b"].node._database.vector_of(N)[origin]
        await lie(fleet, forged(fleet, "c", payload=mutation.encode([]), retires=[(origin, held)]))
        assert "of another member" in fleet["b"].replicator.quorum.view().quarantined[0]
        await fleet.isolate("c")
        await add(fleet, durability="quorum")
        assert await value(fleet, "b") == 3
