"""Planted bugs are found by the plans that found them before: the suite notices when the simulator goes blind.

`make test` plants one of each kind, and `make sim` all of them; it also runs all of these plans without the bugs: the
sound program must pass them.

`python -m tests.mutants` looks for all of them anew, from seed 0; `--save` saves the plans.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import __main__ as simulation
from simulation.composing import COMPOSITES, OF_ESCAPES, OF_LIVES, OF_MEMBERS
from simulation.drawing import composites_of
from simulation.execution import execute
from simulation.plan import Plan, from_json, to_json
from tests.mutants import __main__ as command
from tests.mutants import hunting
from tests.mutants.catalogue import ALL, MODULES, PLANS
from tests.mutants.hunting import EVENTS_MAX, finds, hunt, hunt_near, in_turn
from tests.mutants.mutant import Mutant
from tests.mutants.neighbours import near, neighbours


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The sound program."""


def sound(*invariants: str) -> Mutant:
    return Mutant(nothing, "nothing", invariants)


def saved(name: str) -> Plan:
    return from_json((PLANS / f"{name}.json").read_bytes())


FIRST = [next(iter(module.MUTANTS)).name for module in MODULES]
"""One of each kind of bug."""

NEIGHBOURS = 40
"""So many plans near the saved one are tried, as `make sim` does: a change of the program moves what chance decides."""


def test_every_bug_can_still_be_planted() -> None:
    for mutant in ALL.values():
        with mutant.planted():
            pass


@pytest.mark.parametrize("name", FIRST)
def test_a_planted_bug_is_found_by_its_plan(name: str) -> None:
    assert hunt_near(ALL[name], saved(name), NEIGHBOURS).found is not None


@pytest.mark.parametrize("name", FIRST)
def test_the_sound_program_is_not_blamed(name: str) -> None:
    """Shown for a plan of each kind of bug; `make sim` runs them all."""
    assert execute(saved(name)).violations == []


def test_make_sim_runs_the_plans_of_all_mutants() -> None:
    assert {Path(case.name).stem for case in simulation.saved(simulation.OF_MUTANTS)} >= set(ALL)


def test_the_plans_are_small_enough_to_be_understood() -> None:
    assert {name: events for name in ALL if (events := len(saved(name).acts) + len(saved(name).faults)) > EVENTS_MAX} == {}


def test_a_bug_is_not_in_the_program_any_more_once_its_context_is_left() -> None:
    mutant = ALL["acknowledged-before-the-fsync"]
    with mutant.planted():
        pass
    assert not finds(sound(*mutant.invariants), saved(mutant.name))


def test_a_plan_that_breaks_the_sound_program_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = ALL["acknowledged-before-the-fsync"]
    monkeypatch.setattr(hunting, "draw", lambda seed, profile: saved(mutant.name))
    with mutant.planted():  # As if the bug were not planted, but there.
        assert hunt(sound(*mutant.invariants), range(1)).found is None


def test_a_mutant_that_is_missed_is_reported_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_hunts", lambda names, seeds, near, jobs: [hunt(sound("3"), range(0))])
    assert command.main([]) == 1
    assert "**missed**" in capsys.readouterr().out


def test_plans_that_have_a_composite_of_the_mutant_are_run_first_and_then_all_others() -> None:
    mutant = sound("3")._replace(profile="composed", composites=frozenset({"stale_copy"}))
    having = [seed for seed in range(30) if "stale_copy" in composites_of(seed, profile="composed")]
    order = list(in_turn(mutant, range(30)))
    assert order[: len(having)] == having
    assert sorted(order) == list(range(30))
    assert having
    assert list(in_turn(sound("3"), range(3))) == [0, 1, 2]


def test_the_composites_that_mutants_name_are_drawn() -> None:
    drawn = {"truncated", "refilled"} | {composite.__name__ for composite in (*COMPOSITES, *OF_MEMBERS, *OF_LIVES, *OF_ESCAPES)}
    assert {name for mutant in ALL.values() for name in mutant.composites} <= drawn


def test_a_plan_is_its_first_neighbour_and_the_others_have_its_events_at_other_times() -> None:
    plan = saved("acknowledged-before-the-fsync")
    first, *others = neighbours(plan, 20)
    assert first == plan
    for other in others:
        assert from_json(to_json(other)) == other == near(plan, others.index(other) + 1)
        assert len(other.acts) == len(plan.acts)
        assert len(other.faults) == len(plan.faults)
        assert [act.at for act in other.acts] == sorted(act.at for act in other.acts)
        assert all(act.agent < other.agents for act in other.acts)
    assert len({to_json(other) for other in others}) > len(others) / 2


def test_a_bug_that_its_plan_lost_is_found_by_a_neighbour() -> None:
    mutant = ALL["acknowledged-before-the-fsync"]
    plan = saved(mutant.name)
    lost = next(other for other in neighbours(plan, 100) if not finds(mutant, other))
    found = hunt_near(mutant, lost, 100).found
    assert found is not None
    assert found.plan != lost
    assert finds(mutant, found.plan)
