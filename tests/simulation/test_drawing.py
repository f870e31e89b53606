"""What is drawn: the same for one seed, as wide as the table of faults, and nothing that is not promised."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import get_args

import msgspec
import pytest

from shoal.config import Config, checked
from shoal.errors import InvalidValue
from simulation.composing import COMPOSITES, OF_ESCAPES, OF_LIVES, OF_MEMBERS, Composite
from simulation.composites.lives import born_apart
from simulation.composites.stage import Stage
from simulation.drawing import LAST_MOMENT_S, draw
from simulation.judging.obligations import FAR_MS
from simulation.parts.all import APART, FAMILIES
from simulation.parts.attic import Attic
from simulation.plan import (
    ActKind,
    AlterRow,
    Bucket,
    ClockJump,
    CorruptBlock,
    CrashAt,
    CrashPoint,
    Cut,
    Disown,
    Fault,
    Leave,
    Misroute,
    Plan,
    Relist,
    Replace,
    Restore,
    Ship,
    SpoilBucket,
    Trouble,
    Weather,
    Wipe,
    struck,
)
from simulation.profiles import PROFILES

MANY, ALL = range(400), range(800)


@cache
def drawn(profile: str, seeds: range = MANY) -> list[Plan]:
    """No test changes a plan."""
    return [draw(seed, profile=profile) for seed in seeds]


@pytest.fixture
def plans() -> list[Plan]:
    return drawn("default")


SHARES = [(MANY, 1), pytest.param(ALL, 2, marks=pytest.mark.thorough)]
"""Seeds, and how many times what is rare is drawn at least."""


def test_a_seed_gives_one_plan() -> None:
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]
    assert draw(1) != draw(2)
    assert draw(1) != draw(1, profile="storm")


@pytest.mark.parametrize(("seeds", "rare"), SHARES)
def test_every_class_of_fault_and_every_kind_of_act_is_drawn(seeds: range, rare: int) -> None:
    plans = drawn("default", seeds)
    classes = Counter(type(fault) for plan in plans for fault in plan.faults)
    assert set(classes) == set(get_args(Fault)) - {
        Leave,
        Replace,
        Disown,
        Ship,
        SpoilBucket,
        Bucket,
    }  # Other profiles have these.
    assert min(classes.values()) > rare
    kinds = {act.kind for plan in plans for act in plan.acts}
    assert kinds == {kind for kind in get_args(ActKind) if FAMILIES.get(kind) not in APART}


def test_every_crash_point_is_drawn(plans: list[Plan]) -> None:
    points = Counter(fault.point for plan in plans for fault in plan.faults if isinstance(fault, CrashAt))
    assert set(points) == set(get_args(CrashPoint))


def test_a_mixture_draws_the_plans_of_its_profiles() -> None:
    assert draw(7, profile="mixed") == draw(7, profile="members")
    assert [draw(seed, profile="mixed") for seed in range(7)] == [draw(seed) for seed in range(7)]


def test_each_seed_leaves_something_out(plans: list[Plan]) -> None:
    assert all(len({type(fault) for fault in plan.faults}) < len(get_args(Fault)) for plan in plans)
    assert any(not plan.faults for plan in plans)


@pytest.mark.parametrize("seeds", [MANY, pytest.param(ALL, marks=pytest.mark.thorough)], ids=len)
@pytest.mark.parametrize("profile", ["storm", "composed", "members"])
def test_disks_are_lost_on_a_minority_only(profile: str, seeds: range) -> None:
    for plan in drawn(profile, seeds):
        lost = {fault.node for fault in plan.faults if isinstance(fault, Wipe | Restore | CorruptBlock | Leave | Replace)}
        assert len(lost) * 2 < plan.nodes


@pytest.mark.answers("seed-2018")
@pytest.mark.parametrize("profile", ["default", "storm", "composed", "members", "lives", "escapes"])
def test_a_row_is_altered_while_a_majority_is_sound(profile: str) -> None:
    for plan in drawn(profile):
        for row in plan.faults:
            if isinstance(row, AlterRow):
                assert len(struck([row, *(fault for fault in plan.faults if fault.at >= row.at)])) * 2 < plan.nodes


def test_operators_change_the_members_in_plans_of_their_own() -> None:
    plans = drawn("members")
    found = [fault for plan in plans for fault in plan.faults if isinstance(fault, Leave | Replace | Disown)]
    kinds = {(type(fault), getattr(fault, "how", "")) for fault in found}
    removed = {(kind, how) for kind in (Leave, Replace) for how in ("drain", "forget")}
    assert kinds == {(Disown, ""), *removed}
    for profile in set(PROFILES) - {"members", "lives", "escapes", "cold-members"}:
        others = [draw(seed, profile=profile) for seed in range(50)]
        assert not any(isinstance(fault, Leave | Replace | Disown) for plan in others for fault in plan.faults)


def test_no_operator_puts_a_forgotten_disk_back_or_gives_nodes_lists_of_their_own() -> None:
    for plan in drawn("members"):
        for fault in plan.faults:
            if isinstance(fault, Leave | Replace | Disown):
                nodes = {fault.node, getattr(fault, "by", fault.node)}
                later = [each for each in plan.faults if isinstance(each, Restore) and each.node in nodes]
                assert all(each.at < fault.at for each in later)
                assert not any(isinstance(each, Relist) for each in plan.faults)


def test_no_disk_is_lost_where_the_list_of_members_changes() -> None:
    relisted = [plan for plan in drawn("composed") if any(isinstance(fault, Relist) for fault in plan.faults)]
    lost = [fault for plan in relisted for fault in plan.faults if isinstance(fault, Restore | CorruptBlock)]
    assert len(relisted) > 5
    assert lost == []


def test_a_plan_names_only_nodes_and_agents_that_it_has_at_times_within_it(plans: list[Plan]) -> None:
    for plan in plans:
        for fault in plan.faults:
            assert _named(fault) <= {*plan.names, "client"}
        assert all(act.agent < plan.agents for act in plan.acts)
        assert all(0 <= event.at <= plan.duration_s for event in (*plan.faults, *plan.acts))


def test_events_are_in_the_order_of_their_times(plans: list[Plan]) -> None:
    for plan in plans:
        for events in (plan.faults, plan.acts):
            times = [event.at for event in events]
            assert times == sorted(times)


def test_settings_are_such_as_a_node_takes(plans: list[Plan]) -> None:
    for plan in plans:
        checked(msgspec.convert(plan.settings, Config))
    assert len({name for plan in plans for name in plan.settings}) >= 10


def test_calm_seeds_have_no_faults_and_storms_more_than_usual() -> None:
    def faults(profile: str) -> int:
        return sum(len(draw(seed, profile=profile).faults) for seed in range(100))

    assert faults("calm") == 0
    assert faults("storm") > 2 * faults("default")
    own = {"escapes", "redacted", "shipped", "cold", "cold-members", "cold-shipped", "shelved", "told", "odd", "asking", "laid"}
    assert set(PROFILES) == {"default", "calm", "storm", "composed", "members", "lives"} | own


@pytest.mark.parametrize("composite", dict.fromkeys((*COMPOSITES, *OF_MEMBERS, *OF_LIVES, *OF_ESCAPES)))
@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_a_composite_strikes_and_has_acts_within_its_time(composite: Composite, nodes: int) -> None:
    names = [f"n{number + 1}" for number in range(nodes)]
    for seed in range(20):
        composed = composite(Stage(Random(seed), names, names[: (nodes - 1) // 2], nodes, 2.0))
        assert composed.faults
        assert composed.acts
        for fault in composed.faults:
            assert _named(fault) <= {*names, "client"}
        assert all(act.agent < nodes for act in composed.acts)
        if composite is not born_apart:  # Which is about the first moments.
            assert all(event.at >= 1.0 for event in (*composed.faults, *composed.acts))


@pytest.mark.parametrize(("seeds", "rare"), SHARES)
def test_composites_are_in_a_share_of_the_usual_seeds_and_in_each_composed_one(seeds: range, rare: int) -> None:
    def years_off(plans: list[Plan]) -> int:
        return sum(any(isinstance(fault, ClockJump) and abs(fault.by_ms) > FAR_MS for fault in plan.faults) for plan in plans)

    assert years_off(drawn("calm", seeds)) == 0
    assert (5 if rare > 1 else 1) < years_off(drawn("default", seeds)) < years_off(drawn("composed", seeds))


def test_a_profile_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidValue, match="no profile 'mild'"):
        draw(1, profile="mild")


def _named(fault: Fault) -> set[str]:
    match fault:
        case Cut() | Weather():
            return {*fault.sources, *fault.targets}
        case Misroute():
            return {fault.node, fault.name, fault.to}
        case Relist():
            return {fault.node, *fault.members}
        case Ship() | SpoilBucket():
            return set()
        case _:
            return {fault.node}


def test_some_plans_lose_a_minority_in_the_last_moment_and_never_more() -> None:
    seen = 0
    for plan in drawn("default")[:300]:
        at = round(plan.duration_s - LAST_MOMENT_S, 3)
        seen += any(isinstance(fault, Wipe) and fault.at == at for fault in plan.faults)
        lost = {fault.node for fault in plan.faults if isinstance(fault, Wipe | Restore | CorruptBlock)}
        assert len(lost) <= (plan.nodes - 1) // 2
    assert seen > 10


def test_threads_go_to_a_bucket_in_plans_of_their_own_alone(plans: list[Plan]) -> None:
    assert not {act.kind for plan in plans for act in plan.acts} & {*Attic.kinds}
    tiered = [draw(seed, profile="tiered") for seed in range(60)]
    assert {act.kind for plan in tiered for act in plan.acts} >= {*Attic.kinds}
    troubles = {fault.trouble for plan in tiered for fault in plan.faults if isinstance(fault, Bucket)}
    assert troubles == set(get_args(Trouble))
