"""A run of a graph under the lease of its thread: one at a time, on all nodes, and never on a state that lags."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import shoal
from shoal.errors import InvalidInput, LeaseHeld, LeaseLost, NoQuorum
from shoal.integrations.langgraph import ShoalSaver
from shoal.integrations.langgraph.encoding import name_of
from shoal.testing.machines import run
from simulation.world.fleet import Fleet
from tests.cli.conftest import served
from tests.integrations.langgraph.worker import CONFIG, graph_on

TTL_S = 2.0


def in_fleet(work: Callable[[Fleet], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Fleet("abc", quorum_timeout_s=1.0, quorum_register_retry_s=0.05) as nodes:
            await work(nodes)

    run(main())


def savers(nodes: Fleet) -> tuple[ShoalSaver, ShoalSaver]:
    return ShoalSaver(nodes["a"].store()), ShoalSaver(nodes["b"].store())


async def counted(graph: Any) -> tuple[list[int], list[int]]:
    values = (await graph.aget_state(CONFIG)).values
    return values.get("begun", []), values.get("counted", [])


async def turns(graph: Any, upto: int) -> None:
    """Run the turns that the state lacks."""
    done = len((await counted(graph))[1])
    for turn in range(done, upto):
        await graph.ainvoke({"turn": turn}, CONFIG, durability="sync")


def test_without_a_lease_a_node_that_lags_begins_a_turn_again() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = (graph_on(saver) for saver in savers(nodes))
        await nodes.isolate("b")
        await turns(one, 1)
        lacking = len((await counted(two))[1])
        nodes.link_all("b")
        await nodes.converged()
        await two.ainvoke({"turn": lacking}, CONFIG, durability="sync")
        assert (await counted(two))[1] == [0, 0]

    in_fleet(work)


@pytest.mark.answers("graph-is-resumed-on-a-node-that-lags")
def test_under_a_lease_a_run_goes_on_with_all_that_was_acknowledged_elsewhere() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = savers(nodes)
        async with two.lease("trial", ttl=TTL_S):
            await turns(graph_on(two), 1)
        await nodes.isolate("b")
        async with one.lease("trial", ttl=TTL_S):
            await turns(graph_on(one), 3)
        with pytest.raises(NoQuorum):
            async with two.lease("trial", ttl=TTL_S):
                raise AssertionError
        nodes.link("c", "b")  # Of the first saver's node it hears nothing.
        nodes.link("b", "c")
        async with two.lease("trial", ttl=TTL_S, wait=10):
            assert len((await counted(graph_on(two)))[1]) == 3
            await turns(graph_on(two), 5)
        assert await counted(graph_on(two)) == (list(range(5)), list(range(5)))

    in_fleet(work)


@pytest.mark.answers("graph-is-resumed-on-a-node-that-lags")
def test_one_run_at_a_time() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = savers(nodes)
        async with one.lease("trial", ttl=TTL_S, holder="first") as lease:
            assert lease.fence == 1
            await turns(graph_on(one), 1)
            await nodes.converged()
            with pytest.raises(LeaseHeld, match="'first' holds thread 'trial'"):
                async with two.lease("trial", ttl=TTL_S):
                    raise AssertionError
            with pytest.raises(LeaseHeld):
                await graph_on(two).ainvoke({"turn": 1}, CONFIG, durability="sync")
            await lease.acheck()
        assert await counted(graph_on(two)) == ([0], [0])
        await turns(graph_on(two), 2)  # Nobody holds it: it is free to all, as before.

    in_fleet(work)


def test_a_run_that_lost_its_lease_is_cancelled_and_writes_nothing_more() -> None:
    async def work(nodes: Fleet) -> None:
        one, two = savers(nodes)
        with pytest.raises(LeaseLost):
            async with one.lease("trial", ttl=TTL_S):
                await turns(graph_on(one), 1)
                await nodes.isolate("a")
                await asyncio.sleep(10 * TTL_S)
                raise AssertionError("the block was not cancelled")
        async with two.lease("trial", ttl=TTL_S, wait=10 * TTL_S) as lease:
            assert lease.fence == 2
            await turns(graph_on(two), 2)
        nodes.link_all("a")
        await nodes.converged()
        assert await counted(graph_on(one)) == ([0, 1], [0, 1])

    in_fleet(work)


def test_the_escaped_name_of_the_thread_is_leased() -> None:
    async def work(nodes: Fleet) -> None:
        one, _ = savers(nodes)
        async with one.lease("größe/1 %", ttl=TTL_S):
            (held,) = await nodes["a"].store().space("langgraph").leases()
            assert held.lease == name_of("größe/1 %") != "größe/1 %"

    in_fleet(work)


# ── how a run that was cut off is recognised ──────────────────────────────────


class CutOff(BaseException):
    pass


def cut_off(saver: Any, puts: int) -> Any:
    """The saver, that dies instead of putting its next checkpoint but `puts`."""

    class Dying(type(saver)):  # type: ignore[misc]
        def put(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal puts
            puts -= 1
            if puts < 0:
                raise CutOff
            return super().put(*args, **kwargs)

    dying = copy.copy(saver)
    dying.__class__ = Dying
    return dying


@pytest.mark.parametrize("puts", range(4))
@pytest.mark.parametrize("kind", ["memory", "shoal"])
def test_a_run_that_was_cut_off_is_known_by_its_tasks(tmp_path: Path, kind: str, puts: int) -> None:
    """LangGraph's own rule, the same on each saver: a new input drops the writes of a task whose checkpoint was not put."""
    with ShoalSaver.open(tmp_path / "state") as opened:
        saver: Any = opened if kind == "shoal" else InMemorySaver()
        graph = graph_on(saver)
        graph.invoke({"turn": 0}, CONFIG, durability="sync")
        with pytest.raises(CutOff):
            graph_on(cut_off(saver, puts)).invoke({"turn": 1}, CONFIG, durability="sync")
        found = graph.get_state(CONFIG)
        if puts == 0:  # Its input was not put: it never was.
            assert not found.tasks
            return
        assert [task.name for task in found.tasks] == [["__start__"], ["begin"], ["count"]][puts - 1]
        assert found.next == ()  # Each has written.
        graph.invoke(None, CONFIG, durability="sync")
        values = graph.get_state(CONFIG).values
        assert (values["begun"], values["counted"]) == ([0, 1], [0, 1])


# ── from threads and other loops ──────────────────────────────────────────────


def test_a_blocking_run(tmp_path: Path) -> None:
    with ShoalSaver.open(tmp_path / "state") as saver:
        graph = graph_on(saver)
        with saver.lease("trial") as lease:
            graph.invoke({"turn": 0}, CONFIG)
            lease.check()
            with pytest.raises(LeaseHeld, match="Nothing was written"), saver.lease("trial"):
                raise AssertionError
            assert lease.fence == 1
        with pytest.raises(InvalidInput, match="is not held"):
            lease.check()
        with pytest.raises(ZeroDivisionError), saver.lease("trial") as again:
            assert again.fence == 2
            raise ZeroDivisionError
        with saver.lease("trial"):
            assert graph.get_state(CONFIG).values["counted"] == [0]


def test_a_run_on_another_loop(tmp_path: Path) -> None:
    async def elsewhere(saver: ShoalSaver) -> None:
        async with saver.lease("trial", ttl=TTL_S) as lease:
            await turns(graph_on(saver), 2)
            await lease.acheck()
            # One that is given up while it waits leaves the queue; the one after it gets the lease.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), saver.lease("trial", wait=60):
                    raise AssertionError
        async with saver.lease("trial", ttl=TTL_S):
            assert await counted(graph_on(saver)) == ([0, 1], [0, 1])

    with ShoalSaver.open(tmp_path / "state") as saver:
        asyncio.run(elsewhere(saver))


def test_a_lease_that_was_granted_to_somebody_who_was_cancelled_just_then_is_given_up(tmp_path: Path) -> None:
    async def elsewhere(saver: ShoalSaver) -> None:
        waiting = saver.lease("trial", wait=60)
        entered = threading.Event()
        sound = waiting._enter

        async def enter() -> None:
            await sound()
            entered.set()

        waiting._enter = enter  # type: ignore[method-assign]
        task = asyncio.create_task(waiting.__aenter__())
        await asyncio.sleep(0)
        assert entered.wait(30)  # This loop stands still: it has not heard of it.
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        async with saver.lease("trial", wait=20):
            pass

    with ShoalSaver.open(tmp_path / "state") as saver:
        asyncio.run(elsewhere(saver))


def test_bad_input(tmp_path: Path) -> None:
    with ShoalSaver.open(tmp_path / "state") as saver:
        for wrong in ({"ttl": -1}, {"ttl": "30"}, {"wait": float("nan")}, {"ttl": 0.5}, {"holder": 7}):
            with pytest.raises(InvalidInput), saver.lease("trial", **wrong):
                raise AssertionError
        with pytest.raises(InvalidInput), saver.lease("x" * 1025):
            raise AssertionError


async def test_a_store_that_is_closed_inside_the_block_hides_no_error(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url), pytest.raises(ZeroDivisionError):
        async with shoal.connect(url) as store:
            saver = ShoalSaver(store)
            async with saver.lease("trial", ttl=TTL_S):
                await store.close()
                raise ZeroDivisionError
