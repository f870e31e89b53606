"""A crew on three nodes: each agent runs once, on some machine, whatever happens to machines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import shoal
from shoal.crew.seat import THREAD
from shoal.errors import CrewConflict, InvalidInput, InvalidName, NotFound
from shoal.protocol.requests import AcquireLease
from tests.crew.machines import SPACE, TTL_S, Ground, Saved, now, on_ground

AGENTS = {f"w-{number}" for number in range(1, 7)}


async def three(ground: Ground, **options: Any) -> None:
    for name in ("one", "two", "three"):
        ground.process(name, **options).start()
    await ground.until(lambda: ground.at_work(0.0) == AGENTS)


def test_machines_share_the_agents_and_each_runs_once() -> None:
    async def work(ground: Ground) -> None:
        await three(ground)
        await ground.even()
        since_s = now()
        await asyncio.sleep(12)
        assert ground.spread(since_s) == {"one": 2, "two": 2, "three": 2}
        status = await ground.status()
        assert [(agent.name, agent.state, agent.version) for agent in status.agents] == [
            (name, "running", 1) for name in sorted(AGENTS)
        ]
        assert [(machine.name, machine.alive, machine.agents) for machine in status.machines] == [
            ("one", True, 2), ("three", True, 2), ("two", True, 2)
        ]  # fmt: skip

    on_ground(work)


@pytest.mark.answers("agents-have-one-driver")
def test_the_agents_of_a_killed_machine_go_on_elsewhere_within_their_ttl_and_two_seconds() -> None:
    async def work(ground: Ground) -> None:
        await three(ground)
        await ground.even()
        since_s = now()
        await asyncio.sleep(1)
        ground.processes["one"].kill()
        killed_s = now()
        lost = ground.agents_of("one", since_s)
        assert lost
        took_s = await ground.until(lambda: lost <= ground.at_work(killed_s + 0.5))
        assert took_s < TTL_S + 2
        assert not ground.agents_of("one", killed_s + 0.1)
        assert all(len(ground.agents_of(name, killed_s)) == 3 for name in ("two", "three"))

    on_ground(work)


def test_a_machine_that_dies_with_its_node_is_replaced_too() -> None:
    async def work(ground: Ground) -> None:
        await three(ground)
        await asyncio.sleep(5)
        ground.processes["one"].kill()
        await ground.nodes.crash("a")
        killed_s = now()
        took_s = await ground.until(lambda: ground.at_work(killed_s + 1.0) == AGENTS)
        assert took_s < TTL_S + 2

    on_ground(work)


@pytest.mark.answers("agents-have-one-driver")
def test_a_machine_that_stands_still_loses_its_agents_and_takes_part_again() -> None:
    async def work(ground: Ground) -> None:
        await three(ground)
        await asyncio.sleep(5)
        ground.processes["one"].stand_still()
        await asyncio.sleep(3 * TTL_S)
        assert ground.at_work(now() - 1.0) == AGENTS
        ground.processes["one"].go_on()
        went_on_s = now()
        await ground.until(lambda: len(ground.agents_of("one", went_on_s)) == 2)

    on_ground(work)


def test_a_machine_that_is_started_again_under_its_name_waits_for_the_name_and_takes_part() -> None:
    async def work(ground: Ground) -> None:
        first = ground.process("one", count=2).start()
        await ground.until(lambda: len(ground.at_work(0.0)) == 2)
        first.kill()
        killed_s = now()
        ground.process("one", count=2, node="b").start()
        await ground.until(lambda: len(ground.at_work(killed_s + 0.5)) == 2)
        assert now() - killed_s < 2.5 * TTL_S

    on_ground(work)


def test_two_processes_of_one_name_are_told() -> None:
    async def work(ground: Ground) -> None:
        ground.process("one", count=1).start()
        await ground.until(lambda: bool(ground.saved))
        twin = ground.process("one", count=1, node="b").start()
        assert twin.task is not None
        with pytest.raises(CrewConflict, match="another process runs this crew as machine 'one'"):
            await twin.task

    on_ground(work)


@pytest.mark.answers("agents-have-one-driver")
def test_drain_hands_each_agent_over_after_its_next_save() -> None:
    async def work(ground: Ground) -> None:
        await three(ground)
        await ground.even()
        one = ground.processes["one"]
        drained_s = now()
        one.crew.drain()
        assert one.task is not None
        await one.task
        assert now() - drained_s < 1.0
        await ground.until(lambda: ground.at_work(drained_s + 1.0) == AGENTS)
        assert now() - drained_s < 3.0
        assert [machine.name for machine in (await ground.status()).machines] == ["three", "two"]

    on_ground(work)


def test_scale_changes_the_count_and_outlives_the_programs() -> None:
    async def work(ground: Ground) -> None:
        one = ground.process("one", count=2).start()
        await ground.until(lambda: len(ground.at_work(0.0)) == 2)
        crew = shoal.Crew(ground.nodes["b"].store(), SPACE)
        await crew.scale("w", 4)
        await ground.until(lambda: len(ground.at_work(0.0)) == 4)
        await crew.scale("w", 1)
        await asyncio.sleep(1)
        scaled_s = now()
        await asyncio.sleep(1)
        assert ground.at_work(scaled_s) == {"w-1"}
        one.crew.drain()
        assert one.task is not None
        await one.task
        again_s = now()
        ground.process("two", count=2).start()
        await asyncio.sleep(5)
        assert ground.at_work(again_s) == {"w-1"}

    on_ground(work)


def test_a_moved_agent_goes_on_there_and_a_drained_machine_is_emptied() -> None:
    async def work(ground: Ground) -> None:
        await three(ground)
        await ground.even()
        crew = shoal.Crew(ground.nodes["b"].store(), SPACE)
        [mine, _] = sorted(ground.agents_of("one", now() - 1))
        await crew.move(mine, to="two")
        moved_s = now()
        await ground.until(lambda: mine in ground.agents_of("two", moved_s))
        await crew.drain_machine("two")
        await asyncio.sleep(5)
        assert not ground.agents_of("two", now() - 1)
        assert ground.at_work(now() - 1) == AGENTS
        await crew.drain_machine("two", undo=True)
        await ground.until(lambda: mine in ground.agents_of("two", moved_s + 5))
        with pytest.raises(NotFound, match="no machine 'nine'"):
            await crew.move(mine, to="nine")
        ground.processes["three"].kill()
        await asyncio.sleep(2 * TTL_S)
        with pytest.raises(NotFound, match="machine 'three' does not run at the moment"):
            await crew.move(mine, to="three")

    on_ground(work)


@pytest.mark.answers("agents-have-one-driver")
def test_a_newer_version_takes_over_at_saves_and_an_older_program_does_not_take_back() -> None:
    async def work(ground: Ground) -> None:
        ground.process("old", count=3).start()
        await ground.until(lambda: len(ground.at_work(0.0)) == 3)
        new = ground.process("new", count=3, version=2).start()
        began_s = now()
        await ground.until(lambda: len(ground.agents_of("new", began_s)) == 3)
        await asyncio.sleep(15)
        assert not ground.agents_of("old", now() - 2)
        new.kill()
        await asyncio.sleep(3 * TTL_S)
        assert ground.at_work(now() - 2) == set()
        assert {agent.state for agent in (await ground.status()).agents} == {"waiting"}

    on_ground(work)


def test_two_programs_that_declare_an_agent_differently_are_told() -> None:
    async def work(ground: Ground) -> None:
        ground.process("one", count=1).start()
        await ground.until(lambda: bool(ground.saved))
        other = ground.process("two", count=2).start()
        assert other.task is not None
        with pytest.raises(
            CrewConflict, match="agent 'w' is declared already with version 1, and differs: count is 1, here it is 2"
        ):
            await other.task
        assert [machine.name for machine in (await ground.status()).machines] == ["one"]

    on_ground(work)


@pytest.mark.answers("agents-have-one-driver")
def test_finished_agents_are_not_started_again_and_run_returns_when_all_are() -> None:
    async def work(ground: Ground) -> None:
        for name in ("one", "two"):
            ground.process(name, count=3, goal=5).start(until_finished=True)
        await asyncio.gather(*(process.task for process in ground.processes.values() if process.task))
        assert sorted((each.agent, each.n) for each in ground.saved) == [(f"w-{a}", n) for a in (1, 2, 3) for n in range(1, 6)]
        status = await ground.status()
        assert {agent.state for agent in status.agents} == {"finished"}
        assert status.machines == []

    on_ground(work)


def test_a_run_that_is_cancelled_leaves_no_function_and_no_lease_behind() -> None:
    async def work(ground: Ground) -> None:
        one = ground.process("one", count=2).start()
        await ground.until(lambda: len(ground.at_work(0.0)) == 2)
        assert one.task is not None
        one.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one.task
        ended_s = now()
        await asyncio.sleep(2)
        assert ground.at_work(ended_s) == set()
        assert await ground.nodes["b"].store().space(SPACE).leases() == []

    on_ground(work)


@pytest.mark.answers("agents-have-one-driver")
def test_changes_of_the_record_are_not_lost_when_machines_start_at_once() -> None:
    async def work(ground: Ground) -> None:
        for number in range(6):
            ground.process(f"m{number}", count=6).start()
        await ground.until(lambda: ground.at_work(0.0) == AGENTS)
        async with asyncio.timeout(60):
            while len((await ground.status()).machines) < 6:
                await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert len((await ground.status()).machines) == 6

    on_ground(work)


def test_a_machine_that_joins_slowly_does_not_remove_one_that_has_joined_meanwhile() -> None:
    async def work(ground: Ground) -> None:
        slow = ground.process("slow", count=1)
        go_on, call = asyncio.Event(), slow.session.call

        async def late(request: Any, /, **options: Any) -> Any:
            if isinstance(request, AcquireLease) and request.lease == THREAD:
                await go_on.wait()
            return await call(request, **options)

        slow.session.call = late  # type: ignore[method-assign]
        slow.start()
        await asyncio.sleep(1)
        ground.process("quick", count=1).start()
        await ground.until(lambda: bool(ground.saved))
        go_on.set()
        await asyncio.sleep(2)
        assert [machine.name for machine in (await ground.status()).machines] == ["quick", "slow"]

    on_ground(work)


def test_a_machine_without_its_own_lease_takes_no_agents() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)

        @process.crew.agent("a", count=0, ttl=TTL_S)
        async def a(ctx: shoal.CrewContext) -> None:
            ground.saved.append(Saved(ctx.name, ctx.machine, ctx.lease.fence, 1, now()))
            await asyncio.sleep(1000)

        process.start()
        await asyncio.sleep(1)
        machine = process.crew._machine
        assert machine is not None
        lease, machine._lease = machine._lease, None
        await shoal.Crew(ground.nodes["b"].store(), SPACE).scale("a", 1)
        await asyncio.sleep(10)
        assert ground.saved == []
        machine._lease = lease
        await ground.until(lambda: bool(ground.saved))

    on_ground(work)


def test_without_a_quorum_nothing_is_started_and_agents_end() -> None:
    async def work(ground: Ground) -> None:
        ground.process("one", count=2).start()
        await ground.until(lambda: len(ground.at_work(0.0)) == 2)
        await ground.nodes.isolate("a")
        await asyncio.sleep(2 * TTL_S)
        cut_s = now()
        await asyncio.sleep(2)
        assert ground.at_work(cut_s) == set()
        ground.nodes.link_all("a")
        await ground.until(lambda: len(ground.at_work(cut_s)) == 2)

    on_ground(work)


def test_a_crew_works_in_an_embedded_store(tmp_path: Any) -> None:
    async def main() -> list[int]:
        done: list[int] = []
        async with shoal.open(tmp_path / "state") as store:
            crew = shoal.Crew(store, "survey")

            @crew.agent("a", count=3, ttl=10)
            async def a(ctx: shoal.CrewContext) -> None:
                await ctx.checkpoint({"n": ctx.number})
                done.append(ctx.number)

            await crew.run(until_finished=True)
            assert {agent.state for agent in (await shoal.Crew(store, "survey").status()).agents} == {"finished"}
        return done

    assert sorted(asyncio.run(main())) == [1, 2, 3]


def test_bad_input_is_refused_before_anything_is_started() -> None:
    async def work(ground: Ground) -> None:
        crew = shoal.Crew(ground.nodes["a"].store(), SPACE)
        with pytest.raises(InvalidInput, match="the crew has no agents"):
            await crew.run()
        for arguments, message in (
            ({"count": -1}, "count must be a whole number from 0 to 512"),
            ({"count": True}, "count must be a whole number"),
            ({"count": 513}, "count must be"),
            ({"ttl": 0.5}, "a ttl must be 1 to 3600 seconds"),
            ({"ttl": float("nan")}, "a ttl must be"),
            ({"version": 0}, "version must be a whole number from 1"),
            ({"tries": 0}, "tries must be a whole number from 1"),
            ({"standby": 2}, "standby must be a whole number from 0 to 1"),
            ({"params": {"f": object()}}, "params must be JSON"),
            ({"params": {"f": "x" * 20_000}}, "params may have 16384 bytes as JSON"),
            ({"labels": "gpu"}, "labels must be a set"),
        ):
            with pytest.raises(InvalidInput, match=message):
                crew.agent("a", **arguments)
        for name in ("", "a/b", "x" * 201, "a\x00b"):
            with pytest.raises((InvalidInput, InvalidName)):
                crew.agent(name)
        with pytest.raises(InvalidInput, match=r'Write `@crew\.agent\("researcher"\)` before the function'):
            crew.agent(print)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="must be declared with `async def`"):
            crew.agent("a")(lambda ctx: None)  # type: ignore[type-var]

        @crew.agent("a", ttl=TTL_S)
        async def a(ctx: shoal.CrewContext) -> None: ...

        with pytest.raises(InvalidInput, match="agent 'a' is declared twice"):
            crew.agent("a")(a)
        for arguments, message in (
            ({"capacity": -1}, "capacity must be a whole number"),
            ({"grace_s": -1.0}, "grace_s must be 0 to 3600 seconds"),
            ({"name": "a/b"}, "at most 200 bytes and no /"),
        ):
            with pytest.raises(InvalidInput, match=message):
                await crew.run(**arguments)
        await crew.run(until_finished=True, signals=False)
        with pytest.raises(InvalidInput, match="this crew runs already, or has run"):
            await crew.run()
        with pytest.raises(InvalidInput, match="there is no blocking crew"):
            shoal.Crew(shoal.sync, SPACE)  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="there is no crew in space 'empty'"):
            await shoal.Crew(ground.nodes["a"].store(), "empty").status()

    on_ground(work)
