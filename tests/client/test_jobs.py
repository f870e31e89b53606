"""Jobs: items that are claimed by one worker at a time, on all nodes, until they are completed or dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import InvalidInput, LeaseHeld, LeaseLost, NoQuorum, NotFound, OutcomeUnknown, Taken, TooLarge
from shoal.kinds.worklist.handle.queues import complete_request
from shoal.kinds.worklist.handle.worklist import Worklist
from shoal.protocol.requests import ClaimItem, CompleteItem, RenewLeases
from shoal.testing.machines import run
from simulation.world.fleet import Fleet
from tests.support.paces import USUAL

TTL_S = 4.0


def in_fleet(work: Callable[[Fleet], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Fleet("abc", quorum_timeout_s=1.0, quorum_register_retry_s=0.05, **USUAL, **settings) as nodes:
            await work(nodes)

    run(main())


def at(nodes: Fleet, name: str) -> Worklist:
    return nodes[name].store().space("s").thread("t").worklist("w")


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.answers("items-have-one-worker")
def test_an_item_has_one_worker_on_all_nodes() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = at(nodes, "a"), at(nodes, "b")
        await one.add({"x": 1, "y": 2})
        await nodes.converged()
        first = await one.claim(ttl=TTL_S)
        second = await two.claim(ttl=TTL_S)
        assert first is not None
        assert second is not None
        assert (first.item, first.value, first.attempt) == ("x", 1, 1)
        assert (second.item, second.value, second.attempt) == ("y", 2, 1)
        assert second.fence > first.fence
        assert await at(nodes, "c").claim(ttl=TTL_S) is None
        await first.complete({"ok": True})
        await second.complete()
        await nodes.converged()
        done = [item async for item in two.finished()]
        assert [(item.key, item.done[0].result) for item in done] == [("x", {"ok": True}), ("y", None)]
        assert await at(nodes, "c").claim(ttl=TTL_S) is None

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_the_item_of_a_dead_worker_is_handed_out_again_and_its_completion_is_refused() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = at(nodes, "a"), at(nodes, "b")
        await one.add(["x"])
        first = await one.claim(ttl=TTL_S, holder="one")
        assert first is not None
        begun = now()
        await nodes.converged()
        second = await two.claim(ttl=TTL_S, wait=60, holder="two")
        assert second is not None
        assert TTL_S * 0.9 < now() - begun < TTL_S * 1.01 + 1
        assert (second.item, second.attempt) == ("x", 2)
        assert second.fence > first.fence
        with pytest.raises(LeaseLost, match="Nothing was written"):
            await first.complete(1)
        tokens = first._tenure.term
        raw = CompleteItem("s", "t", "w", first.id, first.fence, tokens.token)
        for name in "abc":
            with pytest.raises(LeaseLost, match="'two' holds it now") as lost:
                await nodes[name].node.session().call(raw)
            assert lost.value.written == "no"
        await second.complete(2)
        item = await two.find("x")
        assert item is not None
        assert [finish.result for finish in item.done] == [2]

    in_fleet(work)


def test_a_block_renews_its_claim_and_completes_once() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = at(nodes, "a"), at(nodes, "b")
        await one.add(["x"])
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        async with job:
            await asyncio.sleep(5 * TTL_S)
            assert await two.claim(ttl=TTL_S, wait=TTL_S) is None
            await job.complete(1)
            with pytest.raises(Taken, match="already completed under this claim"):
                await job.complete(2)
        with pytest.raises(Taken, match=r"already completed under this claim\. Nothing was written"):
            await job.complete(2)
        assert job.ended.is_set()
        item = await one.find("x")
        assert item is not None
        assert [finish.result for finish in item.done] == [1]

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_a_second_completion_at_another_node_is_refused() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x"])
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        term = job._tenure.term
        await nodes["b"].node.session().call(RenewLeases([term]))
        await job.complete(1)
        for name in "bac":
            request = CompleteItem("s", "t", "w", job.id, job.fence, term.token)
            with pytest.raises((Taken, LeaseLost)) as refused:
                await nodes[name].node.session().call(request)
            assert refused.value.written == "no"

    in_fleet(work)


def test_a_block_that_raises_gives_its_item_back_and_after_the_last_attempt_it_is_a_dead_letter() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = at(nodes, "a"), at(nodes, "b")
        await one.add(["x"], attempts_max=3)
        for attempt, worklist in enumerate((one, two, one), start=1):
            job = await worklist.claim(ttl=TTL_S, wait=60)
            assert job is not None
            assert job.attempt == attempt
            with suppress(ValueError):
                async with job:
                    raise ValueError(f"no {attempt}")
        await nodes.converged()
        assert await two.claim(ttl=TTL_S, wait=3 * TTL_S) is None
        [letter] = [item async for item in two.dead()]
        assert letter.key == "x"
        assert letter.tried is not None
        assert (letter.tried.attempt, letter.tried.reason) == (3, "ValueError: no 3")
        progress = await two.progress()
        assert (progress.pending, progress.done, progress.dead, progress.total) == (0, 0, 1, 1)
        await two.revive("x")
        with pytest.raises(NotFound, match="no dead letter"):
            await two.revive("x")
        job = await two.claim(ttl=TTL_S)
        assert job is not None
        assert job.attempt == 1
        await job.complete()
        assert [item async for item in two.dead()] == []

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_an_item_whose_workers_all_die_becomes_a_dead_letter() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x"], attempts_max=2)
        for _ in range(2):
            assert await one.claim(ttl=1.0, wait=60, holder="w1") is not None
        assert await one.claim(ttl=1.0, wait=10) is None
        [letter] = [item async for item in one.dead()]
        assert letter.tried is not None
        assert letter.tried.reason == "attempt 2, by 'w1', ended without an outcome"

    in_fleet(work)


def test_priority_comes_first_and_of_a_group_only_so_many_are_handed_out() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["a1", "a2", "a3"], group="a", group_max=2)
        await one.add(["b1"])
        await one.add(["c1"], priority=5)
        jobs = [await one.claim(ttl=TTL_S) for _ in range(5)]
        assert [job and job.item for job in jobs] == ["c1", "a1", "a2", "b1", None]
        assert jobs[1] is not None
        await jobs[1].complete()
        last = await one.claim(ttl=TTL_S, wait=10)
        assert last is not None
        assert last.item == "a3"

    in_fleet(work)


def test_an_item_that_is_delayed_or_to_be_retried_later_waits() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["later"], delay=100)
        await one.add(["x"])
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        assert job.item == "x"
        assert await job.fail("busy", retry_in=50) is False
        assert await one.claim(ttl=TTL_S, wait=5) is None
        nodes["a"].simulated.now_ms += 60_000
        again = await one.claim(ttl=TTL_S)
        assert again is not None
        assert (again.item, again.attempt) == ("x", 2)
        nodes["a"].simulated.now_ms += 60_000
        later = await one.claim(ttl=TTL_S)
        assert later is not None
        assert later.item == "later"

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_a_completion_and_a_checkpoint_are_written_together_or_not_at_all() -> None:
    async def work(nodes: Fleet) -> None:
        store = nodes["a"].store()
        thread = store.space("s").thread("t")
        one = thread.worklist("w")
        await one.add(["x", "y"])
        job, other = await one.claim(ttl=TTL_S), await one.claim(ttl=TTL_S)
        assert job is not None
        assert other is not None
        async with job, store.space("s").batch() as batch:
            batch.thread("t").save({"n": 1})
            batch.thread("t").complete(job, "done")
        assert (await thread.load()).state == {"n": 1}
        item = await one.find("x")
        assert item is not None
        assert item.done[0].result == "done"
        await asyncio.sleep(2 * TTL_S)
        await one.claim(ttl=TTL_S)
        with pytest.raises(LeaseLost, match="Nothing was written"):
            async with store.space("s").batch() as batch:
                batch.thread("t").update({"n": 2})
                batch.thread("t").complete(other)
        assert (await thread.load()).state == {"n": 1}

    in_fleet(work)


def test_a_worker_that_waits_gets_what_is_added_at_another_node() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = at(nodes, "a"), at(nodes, "b")
        waiting = asyncio.create_task(two.claim(ttl=TTL_S, wait=300))
        await asyncio.sleep(25)
        begun = now()
        await one.add(["x"])
        job = await waiting
        assert job is not None
        assert now() - begun < 2

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_without_a_quorum_nothing_is_handed_out_and_nothing_completed() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x", "y"])
        await nodes.converged()
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        await nodes.isolate("a")
        request = CompleteItem("s", "t", "w", job.id, job.fence, job._tenure.term.token)
        with pytest.raises(NoQuorum, match="Nothing was written"):
            await nodes["a"].node.session().call(request)
        claim = ClaimItem("s", "t", "w", 4000)
        with pytest.raises((NoQuorum, OutcomeUnknown)):
            await nodes["a"].node.session().call(claim)
        other = await at(nodes, "b").claim(ttl=TTL_S)
        assert other is not None
        assert other.item == "y"

    in_fleet(work)


def test_bad_input_is_refused_and_writes_nothing() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x"])
        for ttl in (0.5, 4000.0, -1, "60", float("nan")):
            with pytest.raises(InvalidInput, match="Nothing was written"):
                await one.claim(ttl=ttl)  # type: ignore[arg-type]
        bads: tuple[dict[str, Any], ...] = (
            {"priority": 10},
            {"delay": -1},
            {"group": "a"},
            {"group_max": 2},
            {"attempts_max": -1},
        )
        for bad in bads:
            with pytest.raises(InvalidInput, match="Nothing was written"):
                await one.add(["y"], **bad)
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        with pytest.raises(TooLarge, match="a result"):
            await job.complete("x" * 9_000_000)
        with pytest.raises(InvalidInput, match="is of thread 't'"):
            complete_request("s", "other", job)
        foreign = CompleteItem("s", "t", "w", job.id, 77, "0" * 32)
        with pytest.raises(LeaseLost, match="fencing number 77"):
            await nodes["a"].node.session().call(foreign)
        await job.complete("ok")

    in_fleet(work, request_bytes_max=4_000_000)


def test_a_claim_can_be_extended_and_is_lost_if_it_is_not_renewed() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x"])
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        await job.extend(10 * TTL_S)
        await asyncio.sleep(5 * TTL_S)
        assert await at(nodes, "b").claim(ttl=TTL_S) is None
        await job.extend()
        assert job.remaining_s > 9 * TTL_S
        await asyncio.sleep(11 * TTL_S)
        with pytest.raises(LeaseLost, match=r"claim of an item of worklist 'w' of thread 't' .* has ended"):
            job.check()

    in_fleet(work)


def test_messages_of_an_inbox_are_claimed_too() -> None:
    async def work(nodes: Fleet) -> None:
        one = nodes["a"].store().space("s").thread("t").inbox
        await one.send("do", by="boss")
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        assert (job.value, job.by, job.item) == ("do", "boss", job.id)
        assert await nodes["b"].store().space("s").thread("t").inbox.claim(ttl=TTL_S) is None
        await job.complete()
        assert [message.value async for message in one.taken()] == ["do"]

    in_fleet(work)


async def test_an_embedded_store_hands_out_alone_and_again_after_a_restart(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        work = store.space("s").worklist("pages")
        await work.add(["x"])
        first = await work.claim(ttl=3600)
        assert first is not None
        assert await work.claim(ttl=3600) is None
    async with shoal.open(tmp_path / "state") as store:
        work = store.space("s").worklist("pages")
        again = await work.claim(ttl=3600)
        assert again is not None
        assert (again.item, again.attempt) == ("x", 2)
        assert again.fence > first.fence
        await again.complete("done")
        assert (await work.progress()).is_complete


def test_of_many_workers_at_three_nodes_each_gets_another_item() -> None:
    async def work(nodes: Fleet) -> None:
        await at(nodes, "a").add([f"item-{number}" for number in range(60)])
        await nodes.converged()

        async def worker(name: str) -> list[str]:
            items, done = at(nodes, name), []
            while (job := await items.claim(ttl=30)) is not None:
                async with job:
                    await job.complete(name)
                done.append(job.item)
            return done

        done = await asyncio.gather(*(worker("abc"[nth % 3]) for nth in range(12)))
        keys = [key for each in done for key in each]
        assert sorted(keys) == sorted(f"item-{number}" for number in range(60))
        items = [item async for item in at(nodes, "b").finished()]
        assert all(len(item.done) == 1 and item.tried is not None and item.tried.attempt == 1 for item in items)

    in_fleet(work)


def test_a_lock_waits_for_the_one_that_has_it() -> None:
    async def work(nodes: Fleet) -> None:
        held: list[str] = []

        async def hold(name: str) -> None:
            async with nodes[name].store().space("s").lock("deploy", ttl=TTL_S):
                held.append(name)
                await asyncio.sleep(30)
                assert held[-1] == name

        await asyncio.gather(*map(hold, "abc"))
        assert sorted(held) == ["a", "b", "c"]

    in_fleet(work)


def test_a_worker_that_gives_up_before_the_answer_keeps_no_item() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x"], attempts_max=1000)
        begun = now()
        for turns in range(0, 200, 5):
            claiming = asyncio.create_task(one.claim(ttl=1000))
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            claiming.cancel()
            with suppress(asyncio.CancelledError):
                job = await claiming
                if job is not None:
                    await job.fail("given up")
            await asyncio.sleep(1)
        job = await at(nodes, "b").claim(ttl=TTL_S)
        assert job is not None
        assert now() - begun < 500

    in_fleet(work)


@pytest.mark.answers("client-is-told-late-of-its-lease")
@pytest.mark.parametrize("wait", [0.0, 90.0])
def test_a_claim_that_ended_before_its_answer_came_is_none(wait: float) -> None:
    async def work(nodes: Fleet) -> None:
        one, two = at(nodes, "a"), at(nodes, "b")
        await one.add(["x"])
        await nodes.converged()
        service = nodes["a"].node.service
        sound, others = service.call, list[Any]()

        async def late(request: Any, *args: Any, **kwargs: Any) -> Any:
            reply = await sound(request, *args, **kwargs)
            if isinstance(request, ClaimItem) and not others:
                others.append(await two.claim(ttl=TTL_S, wait=60))
                asyncio.get_running_loop().call_later(TTL_S / 2, lambda: asyncio.ensure_future(others[0].fail("given back")))
            return reply

        service.call = late  # type: ignore[method-assign]
        job = await one.claim(ttl=TTL_S, wait=wait)
        if not wait:
            assert job is None
            return
        assert job is not None
        assert (job.item, job.attempt) == ("x", 3)
        await job.complete()

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_an_item_that_is_claimed_is_not_done_by_others_on_any_node() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x", "y"])
        job = await one.claim(ttl=TTL_S, holder="one")
        assert job is not None
        await nodes.converged()
        for name in "abc":
            with pytest.raises(LeaseHeld, match="'one' has claimed entry") as refused:
                await at(nodes, name).done("x", result="mine")
            assert refused.value.detail["fence"] == job.fence
            with pytest.raises(LeaseHeld):
                async with nodes[name].store().space("s").batch() as batch:
                    batch.thread("t").done("w", "x")
            with pytest.raises(LeaseHeld):
                await at(nodes, name).done("x", durability="quorum")
        assert (await at(nodes, "b").done("y")).first
        await job.complete("theirs")
        assert not (await one.done("x")).first
        assert (await one.done("x")).result == "theirs"

    in_fleet(work)


def test_an_item_whose_claim_has_ended_may_be_done() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x", "y"])
        assert await one.claim(ttl=TTL_S) is not None
        given_back = await one.claim(ttl=TTL_S)
        assert given_back is not None
        await given_back.fail("no answer")
        await nodes.converged()
        assert (await at(nodes, "b").done(given_back.item)).first
        with pytest.raises(LeaseHeld):
            await at(nodes, "b").done("x")
        await asyncio.sleep(2 * TTL_S)
        assert (await at(nodes, "b").done("x", result=7)).first
        await nodes.converged()
        assert (await one.done("x")).result == 7

    in_fleet(work)


def test_a_worker_finishes_its_own_item_by_its_key() -> None:
    async def work(nodes: Fleet) -> None:
        one = at(nodes, "a")
        await one.add(["x"])
        job = await one.claim(ttl=TTL_S)
        assert job is not None
        async with job:
            assert (await one.done("x", result=3, by="me")).result == 3
        found = await one.find("x")
        assert found is not None
        assert [(finish.by, finish.result) for finish in found.done] == [("me", 3)]
        assert not (await one.done("x")).first

    in_fleet(work)


def test_a_message_that_is_claimed_is_not_taken_by_others() -> None:
    async def work(nodes: Fleet) -> None:
        inbox = nodes["a"].store().space("s").thread("t").inbox
        await inbox.send("hello")
        message = await inbox.next()
        assert message is not None
        assert await inbox.claim(ttl=TTL_S) is not None
        with pytest.raises(LeaseHeld):
            await inbox.take(message)

    in_fleet(work)
