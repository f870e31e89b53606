"""One agent on one machine: how its function is called, stopped and started again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

import shoal
from shoal.access.grants import Rights, parsed
from shoal.crew.declaration import CrewRecord, Declared, restarted
from shoal.crew.driving import Driving, Stage
from shoal.crew.seat import Record
from shoal.protocol.requests import Load
from tests.crew.machines import SPACE, TTL_S, Ground, now, on_ground


def test_an_agent_that_never_saves_is_cancelled_after_the_grace_period() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        seen: list[str] = []

        @process.crew.agent("idle", ttl=TTL_S)
        async def idle(ctx: shoal.CrewContext) -> None:
            seen.append("begun")
            try:
                await ctx.draining.wait()
                seen.append("draining")
                await asyncio.sleep(1000)
            finally:
                seen.append("cancelled")

        process.start(grace_s=4.0)
        await ground.until(lambda: bool(seen))
        drained_s = now()
        process.crew.drain()
        assert process.task is not None
        await process.task
        assert seen == ["begun", "draining", "cancelled"]
        assert 4.0 <= now() - drained_s < 6.0
        assert await ground.nodes["b"].store().space(SPACE).leases() == []

    on_ground(work)


def test_without_a_grace_period_a_function_still_has_time_to_unwind() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=1).start(grace_s=0.0)
        await ground.until(lambda: bool(ground.saved))
        process.crew.drain()
        assert process.task is not None
        await process.task
        assert process.ended == 0

    on_ground(work)


def test_a_function_that_returns_while_draining_is_not_finished() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)

        @process.crew.agent("polite", ttl=TTL_S)
        async def polite(ctx: shoal.CrewContext) -> None:
            await ctx.draining.wait()

        process.start()
        await asyncio.sleep(2)
        process.crew.drain()
        assert process.task is not None
        await process.task
        [agent] = [agent for agent in (await ground.status()).agents if agent.name == "polite-1"]
        assert agent.state == "waiting"

    on_ground(work)


def test_an_agent_that_raises_is_tried_again_and_then_has_failed_until_it_is_restarted() -> None:
    async def work(ground: Ground) -> None:
        began: list[float] = []
        for name in ("one", "two"):
            process = ground.process(name, count=0)

            @process.crew.agent("bad", ttl=TTL_S, tries=3)
            async def bad(ctx: shoal.CrewContext) -> None:
                began.append(now())
                raise ValueError("no such page")

            process.start()
        await ground.until(lambda: len(began) == 3)
        await asyncio.sleep(5)
        assert len(began) == 3
        assert began[1] - began[0] >= 1.0
        assert began[2] - began[1] >= 2.0
        [agent] = [agent for agent in (await ground.status()).agents if agent.name == "bad-1"]
        assert (agent.state, agent.tries, agent.error, agent.machine) == ("failed", 3, "ValueError: no such page", "")
        await shoal.Crew(ground.nodes["c"].store(), SPACE).restart("bad-1")
        await ground.until(lambda: len(began) == 4)

    on_ground(work)


def test_an_error_of_the_cluster_is_no_try() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        began: list[float] = []

        @process.crew.agent("a", ttl=TTL_S, tries=1)
        async def a(ctx: shoal.CrewContext) -> None:
            began.append(now())
            if len(began) < 4:
                raise shoal.errors.NoQuorum("too few nodes")

        process.start(until_finished=True)
        assert process.task is not None
        await process.task
        assert len(began) == 4

    on_ground(work)


def test_a_swallowed_cancellation_ends_the_process_after_the_grace_period() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        swallowed: list[float] = []

        @process.crew.agent("deaf", ttl=TTL_S)
        async def deaf(ctx: shoal.CrewContext) -> None:
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    swallowed.append(now())
                if process.ended:
                    return

        process.start(grace_s=2.0)
        await asyncio.sleep(2)
        stopped_s = now()
        process.stand_still()
        await ground.until(lambda: process.ended == 1)
        assert len(swallowed) == 1
        assert swallowed[0] - stopped_s < TTL_S
        assert 2.0 <= now() - swallowed[0] < 2.5

    on_ground(work)


def test_the_lease_of_a_function_that_cannot_be_stopped_is_not_released() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        asked: list[float] = []
        over = asyncio.Event()

        @process.crew.agent("deaf", ttl=TTL_S)
        async def deaf(ctx: shoal.CrewContext) -> None:
            while not over.is_set():
                with suppress(asyncio.CancelledError):
                    await over.wait()

        process.start(grace_s=1.0, end=lambda: asked.append(now()))
        await asyncio.sleep(2)
        process.crew.drain()
        await ground.until(lambda: bool(asked))
        await asyncio.sleep(3 * TTL_S)
        leases = await ground.nodes["b"].store().space(SPACE).leases()
        assert [(lease.lease, lease.holder) for lease in leases] == [("deaf-1", "one")]
        over.set()

    on_ground(work)


def test_an_agent_gets_its_state_its_parameters_and_its_open_steps() -> None:
    async def work(ground: Ground) -> None:
        seen: list[tuple[Any, ...]] = []
        for name in ("one", "two"):
            process = ground.process(name, count=0)

            @process.crew.agent("r", count=1, ttl=TTL_S, params={"topic": "tea"})
            async def r(ctx: shoal.CrewContext) -> None:
                seen.append((ctx.name, ctx.number, ctx.params, ctx.state, [step.key for step in ctx.open_steps], ctx.machine))
                await ctx.checkpoint({"n": len(seen)})
                message = await ctx.inbox.send("hello")
                assert message
                await ctx.thread.step("pay", call=lambda: asyncio.sleep(1000))

        ground.processes["one"].start()
        await ground.until(lambda: len(seen) == 1)
        ground.processes["two"].start()
        await asyncio.sleep(1)
        ground.processes["one"].kill()
        await ground.until(lambda: len(seen) == 2)
        assert seen == [
            ("r-1", 1, {"topic": "tea"}, {}, [], "one"),
            ("r-1", 1, {"topic": "tea"}, {"n": 1}, ["pay"], "two"),
        ]

    on_ground(work)


def test_a_standby_takes_over_without_loading_the_state() -> None:
    async def work(ground: Ground) -> None:
        seen: list[tuple[str, int]] = []
        for name in ("one", "two"):
            process = ground.process(name, count=0)

            @process.crew.agent("large", ttl=TTL_S, standby=1)
            async def large(ctx: shoal.CrewContext) -> None:
                seen.append((ctx.machine, ctx.state.get("n", 0)))
                await ctx.checkpoint({"n": ctx.state.get("n", 0) + 1, "data": "x" * 100_000})
                await asyncio.sleep(1000)

        ground.processes["one"].start()
        await ground.until(lambda: len(seen) == 1)
        two = ground.processes["two"].start()
        await asyncio.sleep(3)
        loads = two.session.counting(Load, "large-1")
        ground.processes["one"].kill()
        await ground.until(lambda: len(seen) == 2)
        assert seen == [("one", 0), ("two", 1)]
        assert [load.channels for load in loads] == [[]]

    on_ground(work)


def test_a_machine_that_stood_still_when_its_function_returned_does_not_record_it() -> None:
    async def work(ground: Ground) -> None:
        runs: list[str] = []
        for name in ("one", "two"):
            process = ground.process(name, count=0)

            @process.crew.agent("a", ttl=TTL_S)
            async def a(ctx: shoal.CrewContext) -> None:
                runs.append(ctx.machine)
                if ctx.machine == "one":
                    ground.processes["one"].stand_still()
                    return
                await asyncio.sleep(1000)

        ground.processes["one"].start()
        await ground.until(lambda: runs == ["one"])
        ground.processes["two"].start()
        await ground.until(lambda: runs == ["one", "two"])
        ground.processes["one"].go_on()
        await asyncio.sleep(2 * TTL_S)
        [agent] = [agent for agent in (await ground.status()).agents if agent.name == "a-1"]
        assert (agent.state, agent.machine) == ("running", "two")

    on_ground(work)


def test_an_agent_that_has_finished_is_not_started_by_a_machine_that_does_not_know_it() -> None:
    async def work(ground: Ground) -> None:
        called: list[str] = []

        async def function(ctx: shoal.CrewContext) -> None:
            called.append(ctx.name)

        ground.process("one", count=1, goal=1).start(until_finished=True)
        await ground.until(lambda: bool(ground.saved))
        await asyncio.sleep(1)
        store = ground.nodes["c"].store()
        space = store.space(SPACE)
        record = Record(store, space, holder="two")
        known = await record.settled()
        record.read = lambda: _soon(restarted(known, "w-1"))  # type: ignore[method-assign]
        stage = Stage(store.connection, space, record, "two", 1.0, lambda: None)
        settled = record.settled
        record.settled = lambda: Record(store, space, holder="two").settled()  # type: ignore[method-assign]
        await Driving(stage, "w-1", function, 1).run()
        assert called == []
        assert "w-1" not in [lease.lease for lease in await space.leases()]
        record.settled = settled  # type: ignore[method-assign]
        await asyncio.wait_for(_first(Driving(stage, "w-1", function, 1).run(), lambda: bool(called)), 30)
        assert called == ["w-1"]

    on_ground(work)


def test_an_end_that_was_not_recorded_is_not_run_again() -> None:
    async def work(ground: Ground) -> None:
        called: list[str] = []

        async def function(ctx: shoal.CrewContext) -> None:
            called.append(ctx.name)

        ground.process("one", count=1, goal=1).start(until_finished=True)
        await ground.until(lambda: bool(ground.saved))
        await asyncio.sleep(1)
        store = ground.nodes["c"].store()
        space = store.space(SPACE)
        record = Record(store, space, holder="two")

        async def unrecorded(known: CrewRecord) -> CrewRecord:
            return replace(known, outcomes={})

        await record.change(unrecorded)  # As if the machine had died between the two writes.
        stage = Stage(store.connection, space, record, "two", 1.0, lambda: None)
        await asyncio.wait_for(Driving(stage, "w-1", function, 1).run(), 30)
        assert called == []
        assert (await record.settled()).has_ended("w-1")
        events = [event.event async for event in space.thread("w-1").journal.read()]
        assert [event["status"] for event in events if event.get("kind") == "status"] == ["done"]

    on_ground(work)


def test_an_older_program_that_acquires_the_lease_of_a_newer_agent_does_not_start_it() -> None:
    async def work(ground: Ground) -> None:
        called: list[str] = []

        async def function(ctx: shoal.CrewContext) -> None:
            called.append(ctx.name)

        store = ground.nodes["a"].store()
        space = store.space(SPACE)
        record = Record(store, space, holder="old")
        newer = Declared(count=1, initial=1, version=2, ttl=TTL_S, tries=1)
        await record.change(lambda _: CrewRecord(agents={"w": newer}))
        stage = Stage(store.connection, space, record, "old", 1.0, lambda: None)
        await Driving(stage, "w-1", function, 1).run()
        assert called == []
        await Driving(stage, "w-1", function, 2).run()
        assert called == ["w-1"]

    on_ground(work)


async def _soon(record: CrewRecord) -> CrewRecord:
    return record


async def _first(run: Any, holds: Any) -> None:
    task = asyncio.ensure_future(run)
    while not holds():
        await asyncio.sleep(0.02)
    task.cancel()


def test_a_crew_runs_with_a_token_that_may_name_nobody_else() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=1, goal=3)
        rights, sound = Rights("fleet", [parsed("s:read,write")]), process.session.call

        async def call(request: Any, /, **options: Any) -> Any:
            return await sound(rights.check(request), **options)

        process.session.call = call  # type: ignore[method-assign]
        process.start(until_finished=True)
        assert process.task is not None
        await process.task
        assert [saved.n for saved in ground.saved] == [1, 2, 3]
        thread = ground.nodes["b"].store().space(SPACE).thread("w-1")
        assert ((await thread.load()).author, (await thread.status()).status) == ("", "done")

    on_ground(work)
