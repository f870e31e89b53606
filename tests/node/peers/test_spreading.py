"""Rights to spend are spread over the nodes before anybody needs them. In virtual time: nothing here depends on speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from benchmarks.rights import Case, Outcome, one
from shoal.errors import ClockWrong, RightsElsewhere
from shoal.kinds.budget.handle import Budget
from shoal.node.handler import Target
from shoal.protocol.requests import ReleaseRights
from shoal.storage.keys import Kind
from shoal.testing.machines import run
from simulation.world.fleet import Fleet

PACE: dict[str, int | float] = {"rights_wait_s": 0.2, "tick_s": 0.05, "sync_interval_s": 0.2}
"""Not as fast as a fleet's nodes usually are: here minutes pass."""
Scene = Callable[[Fleet], Awaitable[None]]


def in_a_fleet(scene: Scene, **settings: int | float) -> None:
    async def main() -> None:
        async with Fleet("abc", seed=1, **(PACE | settings)) as fleet:
            await scene(fleet)

    run(main())


def of(fleet: Fleet, name: str, budget: str = "b") -> Budget:
    return fleet[name].store().space("crew").budget(budget)


async def rights(fleet: Fleet) -> list[int]:
    return [(await of(fleet, name).rights()).here for name in sorted(fleet.members)]


async def written(fleet: Fleet) -> int:
    return sum([(await fleet[name].store().status()).operations for name in sorted(fleet.members)])


async def settled(fleet: Fleet) -> None:
    """Long enough for every node to look a few times."""
    await fleet.converged()
    await asyncio.sleep(10.0)
    await fleet.converged()


def test_a_grant_is_spread_over_all_nodes_before_anybody_spends() -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(90)
        await settled(fleet)
        assert await rights(fleet) == [30, 30, 30]
        assert (await of(fleet, "a").rights()).pool == 0

    in_a_fleet(scene)


def test_a_budget_that_one_node_spends_is_left_at_the_others_too() -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(900)
        await settled(fleet)
        for _ in range(60):
            await of(fleet, "a").spend(10)
            await asyncio.sleep(1.0)
        await settled(fleet)
        assert sum(held := await rights(fleet)) == 300
        assert min(held) >= 75

    in_a_fleet(scene)


@pytest.mark.answers("one-dead-node-stops-the-spending-of-a-budget")
def test_with_any_one_node_dead_the_others_spend_their_shares() -> None:
    for dead in "abc":

        async def scene(fleet: Fleet, dead: str = dead) -> None:
            await of(fleet, "a").grant(90)
            await settled(fleet)
            await fleet.crash(dead)
            survivor = min(fleet.members)
            for _ in range(60):
                await of(fleet, survivor).spend(1)
            with pytest.raises(RightsElsewhere) as refused:
                await of(fleet, survivor).spend(1)
            assert refused.value.detail["unreachable"] == [f"{dead}:1"]
            assert refused.value.detail["holders"] == [f"{dead}:1: 30"]
            assert f"{dead}:1 has rights to 30 and cannot be reached. Nothing was written. " in refused.value.message
            assert f"once {dead}:1 can be reached" in refused.value.message

        in_a_fleet(scene)


def test_a_restarted_node_has_its_data_in_time() -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(90)
        await settled(fleet)
        for name in "abc":
            fleet.start(name, await fleet.crash(name))
        await settled(fleet)
        assert await rights(fleet) == [30, 30, 30]

    in_a_fleet(scene)


def test_requested_draws_stay_until_they_are_released() -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(90)
        await of(fleet, "a").draw(90)
        await settled(fleet)
        assert await rights(fleet) == [90, 0, 0]
        await of(fleet, "a").release(1)
        await settled(fleet)
        assert min(await rights(fleet)) >= 22

    in_a_fleet(scene)


def test_of_too_many_budgets_the_oldest_is_not_kept_any_more() -> None:
    async def scene(fleet: Fleet) -> None:
        for name in "xy":
            await of(fleet, "a", name).grant(90)
            await of(fleet, "a", name).draw(90)
        await settled(fleet)
        assert [(await of(fleet, "a", name).rights()).here for name in "xy"] == [30, 90]

    in_a_fleet(scene, rights_kept_max=1)


def test_while_an_owner_is_away_nothing_is_drawn_and_once_it_is_back_it_is() -> None:
    async def scene(fleet: Fleet) -> None:
        await fleet.isolate("c")
        await of(fleet, "a").grant(90)
        await asyncio.sleep(30.0)
        assert await rights(fleet) == [0, 0, 0]
        fleet.link_all("c")
        await settled(fleet)
        assert await rights(fleet) == [30, 30, 30]

    in_a_fleet(scene)


def test_once_rights_are_spread_nothing_is_written_and_nobody_looks() -> None:
    async def scene(fleet: Fleet) -> None:
        for number in range(20):
            await of(fleet, "a", f"b-{number}").grant(90)
        await settled(fleet)
        before = await written(fleet)
        await asyncio.sleep(60.0)  # A hundred looks, if anybody looked.
        assert await written(fleet) == before <= 20 * (1 + 3)
        assert all(fleet[name].node.service._spreading._task is None for name in "abc")

    in_a_fleet(scene)


@pytest.mark.parametrize("times", [40, pytest.param(100, marks=pytest.mark.thorough)])
def test_small_spends_and_grants_do_not_move_rights_one_by_one(times: int) -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(3000)
        await settled(fleet)
        before = await written(fleet)
        for _ in range(times):
            await of(fleet, "a").spend(1)
            await of(fleet, "a").grant(1)
            await asyncio.sleep(1.0)
        assert await written(fleet) == before + 2 * times

    in_a_fleet(scene)


def test_budgets_past_the_bound_wait_for_their_next_change() -> None:
    async def scene(fleet: Fleet) -> None:
        for name in "xyz":
            await of(fleet, "a", name).grant(30)
        await settled(fleet)
        assert sorted([(await of(fleet, "a", name).rights()).here for name in "xyz"])[0] == 0
        for name in "xyz":
            await of(fleet, "a", name).grant(30)
            await settled(fleet)
        assert [(await of(fleet, "a", name).rights()).here for name in "xyz"] == [20, 20, 20]

    in_a_fleet(scene, rights_due_max=1)


def test_spends_that_wait_for_an_owner_wait_at_the_same_time() -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(90)
        await fleet.converged()
        await fleet.crash("c")
        began = asyncio.get_running_loop().time()
        spends = [of(fleet, "a").spend(1) for _ in range(50)]
        found = await asyncio.gather(*spends, return_exceptions=True)
        assert {type(each) for each in found} == {RightsElsewhere}
        assert asyncio.get_running_loop().time() - began < 5.0

    in_a_fleet(scene, quorum_timeout_s=2.0)


@pytest.mark.answers("one-dead-node-stops-the-spending-of-a-budget")
@pytest.mark.parametrize(
    ("names", "seeds"),
    [("abc", 1), pytest.param("abc", 3, marks=pytest.mark.thorough), pytest.param("abcde", 1, marks=pytest.mark.thorough)],
)
def test_a_dead_node_hardly_ever_stops_a_spend_and_without_spreading_it_mostly_does(names: str, seeds: int) -> None:
    """The figures of docs/NATIVE.md, in small."""

    def refused(*, ahead: bool) -> float:
        cases = [Case(names, left, ahead) for left in (1.0, 0.2)]
        found: list[Outcome] = [run(one(case, seed, tick_s=PACE["tick_s"])) for case in cases for seed in range(seeds)]
        return sum(each.refused for each in found) / sum(each.tried for each in found)

    assert refused(ahead=True) < 0.02
    assert refused(ahead=False) > 0.5


@pytest.mark.answers("seed-380910")
def test_excess_draws_are_put_back_even_after_a_failure() -> None:
    async def scene(fleet: Fleet) -> None:
        await of(fleet, "a").grant(9)
        await settled(fleet)
        for name in "abc":
            await of(fleet, name).release(9)
        is_wrong = True
        for name in "abc":
            database = fleet[name].node.service._database
            sound = database.issue

            def issue(request: Any, key: str | None, sound: Any = sound, **more: Any) -> Any:
                if is_wrong and isinstance(request, ReleaseRights) and request.unsure:
                    raise ClockWrong("this node's clock is wrong. Nothing was written.")
                return sound(request, key, **more)

            database.issue = issue  # type: ignore[method-assign]
        await asyncio.gather(*(of(fleet, name).draw(9) for name in "abc"), return_exceptions=True)
        await fleet.converged()
        assert (await of(fleet, "a").rights()).pool < 0
        is_wrong = False
        await settled(fleet)
        assert (await of(fleet, "a").rights()).pool == 0
        assert await rights(fleet) == [3, 3, 3]

    in_a_fleet(scene)


def test_a_look_takes_a_bounded_number_of_budgets() -> None:
    async def scene(fleet: Fleet) -> None:
        spreading = fleet["a"].node.service._spreading
        spread: list[object] = []

        async def noted(target: object) -> bool:
            spread.append(target)
            return True

        spreading._rights.spread = noted  # type: ignore[method-assign]
        spreading._due = {Target(Kind.BUDGET, "crew", f"b-{number}"): None for number in range(9)}
        await spreading._look()
        assert len(spread) == 2

    in_a_fleet(scene, rights_spread_max=2)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_budget_that_waits_stays_due(is_done: bool) -> None:
    async def scene(fleet: Fleet) -> None:
        spreading = fleet["a"].node.service._spreading

        async def spread(_: object) -> bool:
            return is_done

        spreading._rights.spread = spread  # type: ignore[method-assign, assignment]
        target = Target(Kind.BUDGET, "crew", "b")
        spreading._due = {target: None}
        await spreading._look()
        assert (target in spreading._due) is not is_done
        spreading._due.clear()

    in_a_fleet(scene)


@pytest.mark.parametrize("is_unsettled", [True, False])
def test_rights_to_be_put_back_stay_due(is_unsettled: bool) -> None:
    async def scene(fleet: Fleet) -> None:
        spreading = fleet["a"].node.service._spreading

        async def spread(_: object) -> bool:
            raise ClockWrong("this node's clock is wrong. Nothing was written.")

        spreading._rights.spread = spread  # type: ignore[method-assign, assignment]
        spreading._rights.is_unsettled = lambda _: is_unsettled  # type: ignore[method-assign, assignment]
        target = Target(Kind.BUDGET, "crew", "b")
        spreading._due = {target: None}
        await spreading._look()
        assert (target in spreading._due) is is_unsettled
        spreading._due.clear()

    in_a_fleet(scene)
