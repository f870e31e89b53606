"""Leases of a client: they renew themselves, end at its own clock, and their numbers travel with its writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from math import inf, nextafter
from typing import Any

import pytest

import shoal
from shoal.client.store import Store
from shoal.errors import InvalidInput, LeaseHeld, LeaseLost, NotFound
from shoal.kinds.lease.handle.leases import tenure_of
from shoal.kinds.lease.handle.tenure import Keeper, Tenure
from shoal.protocol.requests import AcquireLease, Append, Batch
from shoal.testing.machines import STEPS_MAX, run
from shoal.workflows.connection import threads_of
from simulation.world.fleet import Fleet
from tests.support.paces import USUAL

TTL_S = 4.0


def in_fleet(work: Callable[[Fleet], Awaitable[None]], *, steps_max: int = STEPS_MAX) -> None:
    async def main() -> None:
        async with Fleet("abc", quorum_timeout_s=1.0, quorum_register_retry_s=0.05, **USUAL) as nodes:
            await work(nodes)

    run(main(), steps_max=steps_max)


def thread_of(store: Store) -> shoal.Thread:
    return store.space("s").thread("t")


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_block_keeps_its_lease_for_as_long_as_it_takes() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = thread_of(nodes["a"].store()), thread_of(nodes["b"].store())
        async with one.lease(ttl=TTL_S) as lease:
            assert lease.fence == 1
            await one.save({"n": 1})
            await asyncio.sleep(5 * TTL_S)
            with pytest.raises(LeaseHeld, match="holds thread 't'"):
                async with two.lease(ttl=TTL_S):
                    pass
            with pytest.raises(LeaseHeld):
                await two.update({"n": 2})
            await two.inbox.send("do this next")
            await one.save({"n": 3})
            lease.check()
            assert 0 < lease.remaining_s <= TTL_S
        assert lease.ended.is_set()
        async with two.lease(ttl=TTL_S) as next_lease:
            assert next_lease.fence == 2
            assert (await two.load()).state == {"n": 3}
        await one.update({"n": 4})

    in_fleet(work)


def test_everything_that_a_store_writes_to_its_thread_carries_the_lease() -> None:
    async def work(nodes: Fleet) -> None:
        one = nodes["a"].store()
        thread = thread_of(one)
        seen: list[str] = []
        service = nodes["a"].node.service
        sound = service.call

        async def call(request: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(type(request).__name__)
            return await sound(request, *args, **kwargs)

        async with thread.lease(ttl=TTL_S):
            service.call = call  # type: ignore[method-assign]
            await thread.save({"n": 1})
            await thread.update({"n": 2})
            await thread.branch("b")
            await thread.journal.append({"n": 1})
            message = await thread.inbox.send("x")
            assert message
            await thread.step("s", call=lambda: 1)
            async with one.space("s").batch() as batch:
                batch.thread("t").journal.append({"n": 2})
            await thread.worklist("w").add(["k"])
            await thread.pause(reason="r")
            service.call = sound  # type: ignore[method-assign]
        assert set(seen) - {"Fenced"} <= {"Load", "ReadStanding", "Heads"}
        assert seen.count("Fenced") >= 9

    in_fleet(work)


def test_a_block_whose_lease_is_lost_is_cancelled_before_others_may_begin() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = thread_of(nodes["a"].store()), thread_of(nodes["b"].store())
        ended_s: list[float] = []

        async def hold() -> None:
            try:
                async with one.lease(ttl=TTL_S):
                    await nodes.isolate("a")
                    await asyncio.sleep(100)
            except LeaseLost:
                ended_s.append(now())
                raise

        holding = asyncio.ensure_future(hold())
        await asyncio.sleep(0.5)
        lease = await two.lease(ttl=TTL_S, wait=60).acquire()
        assert lease.fence == 2
        assert ended_s
        assert ended_s[0] < now()
        with pytest.raises(LeaseLost, match="because it was not renewed in time"):
            await holding

    in_fleet(work)


@pytest.mark.answers("leases-have-one-holder")
def test_a_process_that_stood_still_finds_out_at_its_next_write() -> None:
    async def work(nodes: Fleet) -> None:
        store = nodes["a"].store()
        thread = thread_of(store)
        lease = await thread.lease(ttl=TTL_S).acquire()
        await thread.save({"n": 1})
        skipped = now
        object.__setattr__(store.connection, "uptime", lambda: skipped() + 60)  # Its machine was suspended.
        with pytest.raises(LeaseLost, match="Nothing was written"):
            await thread.save({"n": 2})
        with pytest.raises(LeaseLost):
            lease.check()
        assert not await lease.release()

    in_fleet(work)


def test_a_lease_of_a_space_excludes_others_and_passes_to_those_that_wait() -> None:
    async def work(nodes: Fleet) -> None:
        order: list[str] = []

        async def take(name: str) -> None:
            async with nodes[name].store().space("s").lease("nightly", ttl=TTL_S, wait=60, holder=name):
                order.append(name)
                await asyncio.sleep(0.5)
                order.append(name)

        tasks = []
        for name in "abc":
            tasks.append(asyncio.ensure_future(take(name)))
            await asyncio.sleep(0.1)
        await asyncio.gather(*tasks)
        assert order == [*"aabbcc"]

    in_fleet(work)


def test_a_lease_that_was_waited_for_longer_than_its_ttl_is_held() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = thread_of(nodes["a"].store()), thread_of(nodes["b"].store())
        first = await one.lease(ttl=TTL_S).acquire()
        waiting = asyncio.ensure_future(two.lease(ttl=TTL_S, wait=60).acquire())
        await asyncio.sleep(1.5 * TTL_S)
        await first.release()
        second = await waiting
        await asyncio.sleep(0.1)
        second.check()
        await two.save({"n": 1}, overwrite=True)
        assert second.remaining_s > 0

    in_fleet(work)


@pytest.mark.answers("client-is-told-late-of-its-lease")
@pytest.mark.parametrize("wait", [0.0, 90.0])
def test_a_lease_that_ended_before_its_answer_came_is_not_held(wait: float) -> None:
    async def work(nodes: Fleet) -> None:
        one, two = thread_of(nodes["a"].store()), thread_of(nodes["b"].store())
        service = nodes["a"].node.service
        sound, others = service.call, list[shoal.Lease]()

        async def late(request: Any, *args: Any, **kwargs: Any) -> Any:
            reply = await sound(request, *args, **kwargs)
            if isinstance(request, AcquireLease) and not others:
                others.append(await two.lease(ttl=TTL_S, wait=60).acquire())
                asyncio.get_running_loop().call_later(3 * TTL_S, lambda: asyncio.ensure_future(others[0].release()))
            return reply

        service.call = late  # type: ignore[method-assign]
        if not wait:
            with pytest.raises(LeaseLost, match="was not renewed in time"):
                await one.lease(ttl=TTL_S).acquire()
            return
        lease = await one.lease(ttl=TTL_S, wait=wait).acquire()
        lease.check()
        assert (others[0].fence, lease.fence) == (2, 3)
        await one.save({"n": 1})

    in_fleet(work)


def test_a_lease_is_handed_over() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = nodes["a"].store().space("s"), nodes["b"].store().space("s")
        lease = await one.lease("l", ttl=TTL_S, holder="one").acquire()
        with pytest.raises(NotFound, match="nobody waits"):
            await lease.handover(to="two")
        waiting = asyncio.ensure_future(two.lease("l", ttl=TTL_S, wait=60, holder="two").acquire())
        await asyncio.sleep(0.5)
        await lease.handover(to="two")
        assert (await waiting).fence == 2
        assert lease.ended.is_set()

    in_fleet(work)


def test_a_watcher_sees_each_holder() -> None:
    async def work(nodes: Fleet) -> None:
        seen: list[str] = []

        async def watch() -> None:
            async with aclosing(nodes["c"].store().space("s").lease("l").watch()) as states:
                async for state in states:
                    seen.append(state.holder if state.held else "-")
                    if len(seen) == 5:
                        return

        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0.5)
        for name in "ab":
            async with nodes[name].store().space("s").lease("l", ttl=TTL_S, holder=name):
                await asyncio.sleep(1)
            await asyncio.sleep(1)
        await asyncio.wait_for(watching, 60)
        assert seen == ["-", "a", "-", "b", "-"]

    in_fleet(work)


def test_a_claim_that_is_cancelled_or_too_late_leaves_the_queue() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = nodes["a"].store().space("s"), nodes["b"].store().space("s")
        lease = await one.lease("l", ttl=TTL_S, holder="one").acquire()
        with pytest.raises(LeaseHeld):
            await two.lease("l", ttl=TTL_S, wait=1).acquire()
        claim = asyncio.ensure_future(two.lease("l", ttl=TTL_S, wait=60).acquire())
        await asyncio.sleep(0.5)
        assert len((await one.lease("l").state()).waiting) == 1
        claim.cancel()
        await asyncio.sleep(0.5)
        assert (await one.lease("l").state()).waiting == []
        assert [state.lease for state in await two.leases()] == ["l"]
        await lease.release()
        assert await two.leases() == []

    in_fleet(work)


def test_a_closed_store_gives_its_leases_up() -> None:
    async def work(nodes: Fleet) -> None:
        store = nodes["a"].store()
        await store.space("s").lease("l", ttl=TTL_S).acquire()
        await store.close()
        assert (await nodes["b"].store().space("s").lease("l", ttl=TTL_S).acquire()).fence == 2

    in_fleet(work)


def test_a_closed_store_gives_all_its_leases_up_at_once() -> None:
    async def work(nodes: Fleet) -> None:
        store = nodes["a"].store()
        for nth in range(10):
            await store.space("s").lease(f"l-{nth}", ttl=60).acquire()
        await nodes.isolate("a")
        began_s = now()
        await store.close()
        assert now() - began_s <= 2.0  # In virtual time. Each is answered after quorum_timeout_s.

    in_fleet(work)


def test_bad_arguments_are_refused() -> None:
    async def work(nodes: Fleet) -> None:
        space = nodes["a"].store().space("s")
        with pytest.raises(InvalidInput, match="a ttl must be 1 to 3600 seconds"):
            await space.lease("l", ttl=0.1).acquire()
        with pytest.raises(InvalidInput, match="times are numbers of seconds"):
            space.lease("l", wait=-1)

    in_fleet(work)


@pytest.mark.answers("seed-373366")
def test_a_rest_of_a_term_that_no_timer_can_show_does_not_keep_the_loop_busy() -> None:
    async def work(nodes: Fleet) -> None:
        store = nodes["a"].store()
        lease = await thread_of(store).lease(ttl=TTL_S).acquire()
        tenure = tenure_of(lease)
        await nodes.isolate("a")
        until_s, since_s = tenure._until_s, now()
        just_before = nextafter(until_s, 0.0)
        tenure._connection = replace(tenure._connection, uptime=lambda: just_before if now() < since_s + TTL_S else until_s)
        tenure.due_s = inf  # It is renewed no more.
        await lease.ended.wait()
        with pytest.raises(LeaseLost):
            lease.check()

    in_fleet(work, steps_max=100_000)


def test_a_lease_does_not_count_while_its_release_is_under_way() -> None:
    async def work(nodes: Fleet) -> None:
        store = nodes["a"].store()
        lease = await thread_of(store).lease(ttl=TTL_S).acquire()
        lease.check()
        releasing = asyncio.ensure_future(lease.release())
        await asyncio.sleep(0)
        with pytest.raises(LeaseLost, match="was released"):
            lease.check()
        assert lease.remaining_s == 0
        assert await releasing

    in_fleet(work)


def test_a_handover_that_is_refused_leaves_the_lease() -> None:
    async def work(nodes: Fleet) -> None:
        lease = await thread_of(nodes["a"].store()).lease(ttl=TTL_S).acquire()
        with pytest.raises(NotFound):
            await lease.handover(to="nobody")
        lease.check()
        assert lease.remaining_s > 0

    in_fleet(work)


def test_a_client_counts_on_a_term_from_when_its_renewal_was_sent() -> None:
    async def work(nodes: Fleet) -> None:
        lease = await thread_of(nodes["a"].store()).lease(ttl=TTL_S).acquire()
        tenure, sent_s = tenure_of(lease), now()
        drift = tenure._connection.config.lease_drift_max
        assert drift > 0
        await asyncio.sleep(TTL_S / 4)
        tenure.renewed(sent_s)
        assert tenure._until_s == pytest.approx(sent_s + TTL_S * (1 - drift))
        assert lease.remaining_s <= TTL_S * (3 / 4 - drift) + 1e-9

    in_fleet(work)


def test_the_terms_of_a_store_are_renewed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    sound = Keeper.renew

    async def renew(self: Keeper, leases: list[Tenure]) -> None:
        rounds.append(len(leases))
        await sound(self, leases)

    async def work(nodes: Fleet) -> None:
        space = nodes["a"].store().space("s")
        for name in ("x", "y", "z"):
            await space.lease(name, ttl=TTL_S).acquire()
        monkeypatch.setattr(Keeper, "renew", renew)
        await asyncio.sleep(3 * TTL_S)
        assert set(rounds[1:]) == {3}
        assert 8 <= len(rounds) <= 10

    in_fleet(work)


def test_a_batch_is_of_the_threads_of_its_parts() -> None:
    batch = Batch([Append("s", thread, b"\xc0") for thread in ("t", "u", "t")])
    assert threads_of(batch) == [("s", "t"), ("s", "u")]
