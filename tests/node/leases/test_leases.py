"""Leases on real nodes, in virtual time: one holder, terms that end, and writes that are fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal import values
from shoal.errors import InvalidInput, LeaseHeld, LeaseLost, NoQuorum, NotFound, OutcomeUnknown, Overloaded
from shoal.kinds.label.state import Marked, marked
from shoal.kinds.lease.state.table import LeaseName
from shoal.node.handler import Target
from shoal.node.node import Node
from shoal.protocol import requests
from shoal.protocol.requests import (
    AcquireLease,
    EndLease,
    Fenced,
    LeaseGranted,
    ReadLease,
    ReleaseLease,
    RenewLease,
    RenewLeases,
    Term,
)
from shoal.protocol.session import Session
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from shoal.testing.machines import run
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet
from tests.support.paces import USUAL

TTL_MS = 4000


def in_fleet(work: Callable[[Fleet], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Fleet("abc", quorum_timeout_s=1.0, quorum_register_retry_s=0.05, **USUAL, **settings) as nodes:
            await work(nodes)

    run(main())


def at(nodes: Fleet, name: str) -> Session:
    return nodes[name].node.session()


def save(number: int) -> requests.Save:
    return requests.Save("s", "t", {"x": bytes([number])})


async def acquired(session: Session, holder: str = "", *, wait: int = 0, token: str = "") -> LeaseGranted:
    return await session.call(AcquireLease("s", "t", TTL_MS, holder, token, wait, thread=True))


def term(granted: LeaseGranted) -> Term:
    return Term("s", "t", True, granted.fence, granted.token)


def test_a_thread_has_one_holder_on_all_nodes() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        assert (granted.granted, granted.fence) == (True, 1)
        with pytest.raises(LeaseHeld, match="'one' holds thread 't'") as refused:
            await acquired(at(nodes, "b"), "two")
        assert refused.value.detail["holder"] == "one"
        assert refused.value.detail["fence"] == 1
        state = await at(nodes, "c").call(ReadLease("s", "t", thread=True))
        assert (state.held, state.holder, state.fence) == (True, "one", 1)

    in_fleet(work)


def test_writes_without_the_lease_are_refused_on_all_nodes_and_messages_are_not() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        await at(nodes, "a").call(Fenced([term(granted)], save(1)), durability="quorum")
        await nodes.converged()
        for name in "abc":
            with pytest.raises(LeaseHeld, match="'one' holds thread 't'"):
                await at(nodes, name).call(save(2))
            with pytest.raises(LeaseHeld):
                await at(nodes, name).call(requests.Batch([save(2)]))
            await at(nodes, name).call(requests.Append("s", "t", b"\x01"))
        assert await at(nodes, "a").call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))
        await nodes.converged()
        for name in "abc":
            await at(nodes, name).call(save(3))

    in_fleet(work)


def test_a_thread_whose_holder_died_takes_writes_without_a_lease_once_its_term_is_over() -> None:
    async def work(nodes: Fleet) -> None:
        await acquired(at(nodes, "a"), "one")
        await nodes.converged()
        with pytest.raises(LeaseHeld):
            await at(nodes, "b").call(save(1))
        await asyncio.sleep(2 * TTL_MS / 1000)
        await at(nodes, "b").call(save(1))

    in_fleet(work)


@pytest.mark.answers("leases-have-one-holder")
def test_a_dead_holder_is_superseded_and_its_write_is_refused_on_every_node() -> None:
    async def work(nodes: Fleet) -> None:
        first = await acquired(at(nodes, "a"), "one")
        begun = asyncio.get_running_loop().time()
        second = await acquired(at(nodes, "b"), "two", wait=9000)
        took_s = asyncio.get_running_loop().time() - begun
        assert second.fence == 2
        assert TTL_MS / 1000 * 0.9 < took_s < TTL_MS / 1000 * 1.1 + 1
        for name in "abc":
            with pytest.raises(LeaseLost, match=r"'two' holds it now \(fencing number 2\)\. Nothing was written") as lost:
                await at(nodes, name).call(Fenced([term(first)], save(1)), durability="quorum")
            assert lost.value.written == "no"
        await at(nodes, "c").call(Fenced([term(second)], save(2)), durability="quorum")

    in_fleet(work)


def test_a_holder_goes_on_through_another_node() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"))
        await at(nodes, "b").call(Fenced([term(granted)], save(1)), durability="quorum")
        await nodes.crash("a")
        await at(nodes, "b").call(Fenced([term(granted)], save(2)), durability="quorum")

    in_fleet(work)


def test_a_node_that_cannot_ask_refuses_a_write_of_a_term_that_may_have_ended() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"))
        await nodes.isolate("a")
        await at(nodes, "a").call(Fenced([term(granted)], save(1)))  # It knows that the term has not ended.
        await asyncio.sleep(TTL_MS / 1000)
        with pytest.raises(NoQuorum, match="Nothing was written"):
            await at(nodes, "a").call(Fenced([term(granted)], save(2)))

    in_fleet(work)


@pytest.mark.answers("leases-have-one-holder")
def test_a_write_that_is_copied_only_after_its_term_is_not_acknowledged() -> None:
    """The next holder may have begun without it."""

    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"))
        await nodes.converged()
        await nodes.isolate("a")
        nodes.link_all("a")
        hold = nodes["a"].simulated
        hold.hold_syncs()
        late = asyncio.ensure_future(at(nodes, "a").call(Fenced([term(granted)], save(1))))
        second = await acquired(at(nodes, "b"), "two", wait=9000)
        assert second.granted
        hold.release_syncs()
        with pytest.raises(LeaseLost, match="The write is recorded, but it is not acknowledged") as lost:
            await late
        assert lost.value.written == "unknown"

    in_fleet(work)


def test_a_new_holder_finds_what_a_quorum_had_acknowledged() -> None:
    async def work(nodes: Fleet) -> None:
        await at(nodes, "c").call(ReadLease("s", "t"))
        await nodes.cut("a", "c")
        await nodes.cut("b", "c")
        await nodes.cut("c", "a")
        await nodes.cut("c", "b")
        granted = await acquired(at(nodes, "a"))
        await at(nodes, "a").call(Fenced([term(granted)], save(7)), durability="quorum")
        await at(nodes, "a").call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))
        nodes.link_all("c")
        third = at(nodes, "c")
        await acquired(third, wait=9000)
        assert (await third.call(requests.Load("s", "t"))).channels == {"x": b"\x07"}

    in_fleet(work)


def test_those_that_wait_on_several_nodes_are_served_in_order() -> None:
    async def work(nodes: Fleet) -> None:
        served: list[str] = []

        async def hold(name: str, node: str) -> None:
            session = at(nodes, node)
            token = name.encode().hex().rjust(32, "0")
            while not (granted := await acquired(session, name, wait=5000, token=token)).granted:
                pass
            served.append(name)
            await session.call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))

        first = await acquired(at(nodes, "a"), "first")
        waiting = []
        for nth, node in enumerate("bcab"):
            waiting.append(asyncio.ensure_future(hold(f"w{nth}", node)))
            await asyncio.sleep(0.3)
        assert (await at(nodes, "c").call(ReadLease("s", "t", thread=True))).waiting == ["w0", "w1", "w2", "w3"]
        await at(nodes, "a").call(ReleaseLease("s", "t", first.fence, first.token, thread=True))
        await asyncio.gather(*waiting)
        assert served == ["w0", "w1", "w2", "w3"]

    in_fleet(work)


@pytest.mark.answers("stopping-node-waits-for-waiting-clients")
def test_a_node_that_is_about_to_stop_answers_those_that_wait() -> None:
    async def work(nodes: Fleet) -> None:
        loop, long_ms = asyncio.get_running_loop(), 600_000
        one = at(nodes, "b")
        await one.call(AcquireLease("s", "t", long_ms, "one", thread=True))
        acquiring = asyncio.ensure_future(one.call(AcquireLease("s", "t", long_ms, "two", wait=long_ms, thread=True)))
        await asyncio.sleep(10)
        state = await one.call(ReadLease("s", "t", thread=True))
        reading = asyncio.ensure_future(one.call(ReadLease("s", "t", thread=True, wait=long_ms, known=state.mark)))
        claiming = asyncio.ensure_future(one.call(requests.ClaimItem("s", "t", "pages", TTL_MS, "three", wait=long_ms)))
        waits: list[asyncio.Future[Any]] = [acquiring, reading, claiming]
        assert not (await asyncio.wait(waits, timeout=60))[0]
        began = loop.time()
        nodes["b"].node.leases.end_waits()
        lease, read, claimed = await asyncio.gather(*waits)
        assert (lease.granted, lease.holder, read.holder, claimed.claimed) == (False, "one", "one", False)
        assert loop.time() - began < 5  # In virtual time.

    in_fleet(work, lease_poll_s=3600.0)


def test_a_lease_is_handed_to_one_that_waits_and_kept_if_nobody_does() -> None:
    async def work(nodes: Fleet) -> None:
        first = await acquired(at(nodes, "a"), "one")
        release = ReleaseLease("s", "t", first.fence, first.token, thread=True, to="three")
        with pytest.raises(NotFound, match="no holder 'three' waits for thread 't': nobody waits"):
            await at(nodes, "a").call(release)
        await at(nodes, "a").call(Fenced([term(first)], save(1)))
        second = asyncio.ensure_future(acquired(at(nodes, "b"), "two", wait=5000))
        await asyncio.sleep(0.3)
        third = asyncio.ensure_future(acquired(at(nodes, "c"), "three", wait=5000))
        await asyncio.sleep(0.3)
        assert (await at(nodes, "a").call(release)).released
        assert (await third).fence == 2
        second.cancel()

    in_fleet(work)


def test_a_release_ends_the_term_for_writes_that_are_on_their_way() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"))
        await at(nodes, "a").call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))
        for name in "ab":
            with pytest.raises(LeaseLost, match="has ended"):
                await at(nodes, name).call(Fenced([term(granted)], save(1)))

    in_fleet(work)


def test_a_term_ends_before_its_release_is_stored() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"))
        for other in "bc":
            nodes.wires["a", other].open.clear()
        release = ReleaseLease("s", "t", granted.fence, granted.token, thread=True)
        releasing = asyncio.ensure_future(at(nodes, "a").call(release))
        await asyncio.sleep(0.01)
        with pytest.raises((LeaseLost, NoQuorum)):
            await at(nodes, "a").call(Fenced([term(granted)], save(1)))
        with pytest.raises(OutcomeUnknown):
            await releasing

    in_fleet(work)


@pytest.mark.answers("seed-390344")
def test_a_claim_that_is_given_up_marks_its_thread_with_the_fencing_number_that_it_was_granted() -> None:
    """A client that got no answer knows no fencing number: it releases whatever its token was granted."""

    async def work(nodes: Fleet) -> None:
        token = "ab" * 16
        await at(nodes, "c").call(AcquireLease("s", "another", TTL_MS))  # From here on two of the three nodes can vote.
        await nodes.isolate("c")
        granted = await acquired(at(nodes, "a"), "one", token=token)
        nodes.link_all("c")
        assert (await at(nodes, "c").call(ReleaseLease("s", "t", 0, token, thread=True))).released
        await nodes.converged()
        target = Target(Kind.THREAD, "s", "t")
        for member in nodes.members.values():
            assert marked(member.node._database._view(target).rows) == Marked(granted.fence, True, "")

    in_fleet(work)


@pytest.mark.answers("renewal-outlives-a-release")
def test_a_claim_that_is_given_up_ends_its_term_for_renewals_that_are_on_their_way() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), token="ab" * 16)
        renewed = at(nodes, "a").call(RenewLease("s", "t", granted.fence, granted.token, thread=True))
        released = at(nodes, "a").call(ReleaseLease("s", "t", 0, granted.token, thread=True))
        await asyncio.gather(renewed, released)
        with pytest.raises(LeaseLost, match="has ended"):
            await at(nodes, "a").call(Fenced([term(granted)], save(1)))

    in_fleet(work)


def test_a_release_that_arrives_again_does_not_revive_a_newer_term() -> None:
    async def work(nodes: Fleet) -> None:
        leases = nodes["a"].node.leases
        first = await acquired(at(nodes, "a"), token="1" * 32)
        release = ReleaseLease("s", "t", first.fence, first.token, thread=True)
        await at(nodes, "a").call(release)
        second = await acquired(at(nodes, "a"), token="2" * 32)
        name = LeaseName("s", "t", True)
        leases.end(name, second.fence)
        leases.end(name, first.fence)
        assert leases._ending[name] == second.fence

    in_fleet(work)


@pytest.mark.answers("leases-have-one-holder")
def test_fencing_numbers_grow_when_all_nodes_were_restarted() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"))
        await at(nodes, "a").call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))
        left = {name: await nodes.crash(name) for name in "abc"}
        for name, storage in left.items():
            nodes.start(name, storage)
        await nodes.admitted()
        again = await acquired(at(nodes, "b"), wait=9000)
        assert again.fence > granted.fence

    in_fleet(work)


def test_a_thousand_renewals_of_a_client_are_stored_together() -> None:
    async def work(nodes: Fleet) -> None:
        session = at(nodes, "a")
        names = [f"l{number}" for number in range(200)]
        granted = await asyncio.gather(*(session.call(AcquireLease("s", name, 60_000)) for name in names))
        terms = [Term("s", name, False, each.fence, each.token) for name, each in zip(names, granted, strict=True)]
        changes = 0
        sound = nodes["a"].node.register.exchange

        async def exchange(*args: Any, **kwargs: Any) -> Any:
            nonlocal changes
            changes += 1
            return await sound(*args, **kwargs)

        nodes["a"].node.register.exchange = exchange  # type: ignore[method-assign]
        renewed = await session.call(requests.RenewLeases(terms))
        assert (renewed.lost, renewed.unknown) == ([], [])
        assert changes == nodes["a"].config.lease_shards

    in_fleet(work)


def test_bad_requests_are_refused() -> None:
    async def work(nodes: Fleet) -> None:
        session = at(nodes, "a")
        with pytest.raises(InvalidInput, match="a ttl must be 1 to 3600 seconds"):
            await session.call(AcquireLease("s", "t", 10))
        with pytest.raises(InvalidInput, match="a token has 32 hex digits"):
            await session.call(AcquireLease("s", "t", 2000, token="x"))
        released = await session.call(ReleaseLease("s", "t", 7, "0" * 32))
        assert not released.released
        with pytest.raises(LeaseLost):
            await session.call(Fenced([Term("s", "t", True, 7, "0" * 32)], save(1)))

    in_fleet(work)


def test_a_full_table_and_a_full_queue_refuse_new_claims() -> None:
    async def work(nodes: Fleet) -> None:
        session = at(nodes, "a")
        await acquired(session)
        waiting = [asyncio.ensure_future(acquired(session, wait=4000)) for _ in range(2)]
        await asyncio.sleep(0.5)
        with pytest.raises(Overloaded, match="2 claims wait for thread 't' already"):
            await acquired(session, wait=4000)
        for each in waiting:
            each.cancel()
        with pytest.raises(Overloaded, match="no room for another lease"):
            for number in range(100):
                await session.call(AcquireLease("s", f"{number}" * 30, 60_000))

    in_fleet(work, quorum_register_value_bytes_max=1200, lease_waiters_max=2, lease_shards=1)


@pytest.mark.parametrize("is_embedded", [True, False])
def test_after_a_restart_an_embedded_store_waits_for_nobody(is_embedded: bool) -> None:
    """All holders ended with the process. Those of a served node may live on."""

    async def main() -> None:
        storage = MemoryStorage()
        environment = SimulatedEnvironment(1).environment
        from shoal.config import Config

        node = Node(storage, config=Config(), environment=environment, is_embedded=is_embedded)
        granted = await acquired(node.session())
        left = storage.crash(None)
        again = Node(left, config=Config(), environment=SimulatedEnvironment(2).environment, is_embedded=is_embedded)
        if is_embedded:
            assert (await acquired(again.session())).fence > granted.fence
        else:
            with pytest.raises(LeaseHeld):
                await acquired(again.session())
        await again.stop()

    run(main())


def test_those_that_wait_for_a_lease_wake_in_the_order_in_which_they_came() -> None:
    """Else a run in virtual time cannot be repeated."""

    async def work(nodes: Fleet) -> None:
        shard = nodes["a"].node.leases._shards[0]
        woken: list[int] = []

        async def wait(nth: int) -> None:
            await shard.stirred(60.0)
            woken.append(nth)

        waiting = [asyncio.create_task(wait(nth)) for nth in range(32)]
        await asyncio.sleep(0)
        shard.proposed(b"")
        await asyncio.gather(*waiting)
        assert woken == list(range(32))

    in_fleet(work)


@pytest.mark.parametrize("is_made", [False, True])
def test_a_decision_of_unknown_outcome_is_made_again(is_made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(nodes: Fleet) -> None:
        register = nodes["a"].node.register
        sound, forgotten = register.exchange, 3

        async def exchange(key: str, expected: int, content: bytes, *, id: bytes | None = None) -> Any:
            nonlocal forgotten
            found = await sound(key, expected, content, id=id) if is_made or not forgotten else None
            if forgotten:
                forgotten -= 1
                raise OutcomeUnknown("the key does not tell any more", version=124)
            return found

        monkeypatch.setattr(register, "exchange", exchange)
        granted = await acquired(at(nodes, "a"), "one")
        assert granted.granted
        forgotten = 1
        assert not (await at(nodes, "a").call(RenewLeases([term(granted)]))).lost
        with pytest.raises(LeaseHeld):
            await acquired(at(nodes, "b"), "two")
        forgotten = 1
        await at(nodes, "a").call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))
        assert (await acquired(at(nodes, "b"), "two", wait=2 * TTL_MS)).granted

    in_fleet(work)


def test_a_write_without_the_lease_is_told_what_to_do() -> None:
    async def work(nodes: Fleet) -> None:
        await acquired(at(nodes, "a"), "one")
        with pytest.raises(LeaseHeld, match=r"Nothing was written\..*gives the lease back"):
            await at(nodes, "a").call(save(1))

    in_fleet(work)


def test_a_lease_counts_where_a_thread_never_had_one() -> None:
    """Nodes remember threads without a lease; they hear of the first."""

    async def work(nodes: Fleet) -> None:
        for name in "ab":
            await at(nodes, name).call(save(0))
        await acquired(at(nodes, "a"), "one")
        await asyncio.sleep(1.0)
        for name in "ab":
            with pytest.raises(LeaseHeld):
                await at(nodes, name).call(save(1))

    in_fleet(work)


def test_decisions_of_one_moment_are_stored_together() -> None:
    async def work(nodes: Fleet) -> None:
        session = at(nodes, "a")
        await session.call(AcquireLease("s", "first", TTL_MS))
        register, exchanges = nodes["a"].node.register, 0
        sound = register.exchange

        async def exchange(*arguments: Any, **named: Any) -> Any:
            nonlocal exchanges
            exchanges += 1
            return await sound(*arguments, **named)

        register.exchange = exchange  # type: ignore[method-assign]
        await asyncio.gather(*(session.call(AcquireLease("s", f"l{number}", TTL_MS)) for number in range(20)))
        assert exchanges <= 2

    in_fleet(work, lease_shards=1)


def test_a_claim_that_waits_asks_the_register_for_nothing() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        register, asked = nodes["b"].node.register, 0
        sound = register.read

        async def read(key: str) -> Any:
            nonlocal asked
            asked += 1
            return await sound(key)

        register.read = read  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(acquired(at(nodes, "b"), "two", wait=9000))
        for _ in range(6):
            await asyncio.sleep(TTL_MS / 4000)
            await at(nodes, "a").call(RenewLeases([term(granted)]))
        assert asked <= 2
        waiting.cancel()

    in_fleet(work)


def test_a_claim_is_not_refused_for_what_the_register_held_before() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        with pytest.raises(LeaseHeld):
            await acquired(at(nodes, "b"), "two")
        await at(nodes, "a").call(ReleaseLease("s", "t", granted.fence, granted.token, thread=True))
        assert (await acquired(at(nodes, "b"), "two")).granted

    in_fleet(work)


def test_a_term_counts_from_before_its_grant_was_sent() -> None:
    async def work(nodes: Fleet) -> None:
        await at(nodes, "a").call(AcquireLease("s", "another", TTL_MS))
        for other in "bc":
            nodes.wires["a", other].open.clear()
        sent_s = asyncio.get_running_loop().time()
        acquiring = asyncio.ensure_future(at(nodes, "a").call(AcquireLease("s", "slow", TTL_MS)))
        await asyncio.sleep(0.5)
        for other in "bc":
            nodes.wires["a", other].open.set()
        assert (await acquiring).granted
        known = nodes["a"].node.leases._known[LeaseName("s", "slow")]
        assert known.until_s <= sent_s + TTL_MS / 1000

    in_fleet(work, lease_shards=1)


async def ended(session: Session, fence: int, to: str = "") -> bool:
    return (await session.call(EndLease("s", "t", fence, True, to, "ana", "it hangs"))).released


def test_an_operator_ends_a_lease_that_hangs() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        assert await ended(at(nodes, "b"), granted.fence)
        with pytest.raises(LeaseLost):
            await at(nodes, "a").call(RenewLease("s", "t", granted.fence, granted.token, thread=True))
        next_one = await acquired(at(nodes, "c"), "two", wait=2 * TTL_MS)
        assert (next_one.granted, next_one.fence > granted.fence) == (True, True)
        with pytest.raises(LeaseLost):
            await at(nodes, "a").call(Fenced([term(granted)], save(1)))
        await at(nodes, "c").call(Fenced([term(next_one)], save(2)))

    in_fleet(work)


def test_an_ended_lease_is_granted_once_its_term_is_over() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        assert await ended(at(nodes, "b"), granted.fence)
        with pytest.raises(LeaseHeld):
            await acquired(at(nodes, "b"), "two")

    in_fleet(work)


def test_an_ended_lease_goes_to_a_named_holder() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        waits = [asyncio.ensure_future(acquired(at(nodes, "a"), name, wait=4 * TTL_MS)) for name in ("two", "three")]
        await asyncio.sleep(1)
        with pytest.raises(NotFound, match="'four' waits"):
            await ended(at(nodes, "b"), granted.fence, "four")
        assert await ended(at(nodes, "b"), granted.fence, "three")
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert [each is waits[1] for each in done] == [True]
        for each in left:
            each.cancel()

    in_fleet(work)


def test_the_end_of_a_lease_is_in_the_journal() -> None:
    async def work(nodes: Fleet) -> None:
        granted = await acquired(at(nodes, "a"), "one")
        assert not await ended(at(nodes, "b"), granted.fence + 1)
        assert await ended(at(nodes, "b"), granted.fence)
        assert not await ended(at(nodes, "b"), granted.fence)
        told = await at(nodes, "b").call(requests.ReadJournal("s", "t"))
        assert [values.decode(each.event) for each in told.events] == [
            {"kind": "lease-ended", "holder": "one", "fence": granted.fence, "to": "", "by": "ana", "reason": "it hangs"}
        ]

    in_fleet(work)
