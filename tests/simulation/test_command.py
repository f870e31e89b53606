"""The command: what it runs, in which order, what it prints of a failure, and how it ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from shoal.storage.commit import GroupCommit, Waiter
from simulation import __main__ as command
from simulation import batch, memberships
from simulation.batch import TWICE_EVERY, Case, cases_of, run_all, run_case
from simulation.drawing import draw
from simulation.execution import execute
from simulation.judging.violation import Violation
from simulation.plan import Act, Crash, Plan, from_json, to_json
from tests.terminal import SIZES, shoal_in_terminal

CALM = Plan(seed=5, duration_s=2.0, acts=[Act(at=1.0, agent=0, kind="add")])
LOSING = Plan(
    seed=1,
    duration_s=3.0,
    faults=[Crash(at=1.5, node="n1"), Crash(at=2.0, node="n2")],
    acts=[Act(at=1.0 + number / 50, agent=number % 3, kind="append") for number in range(60)],
)
"""Loses what was acknowledged, where that is said before the fsync."""


def sim(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(command.app, [str(argument) for argument in arguments])


def saved(path: Path, plan: Plan) -> Path:
    path.write_bytes(to_json(plan))
    return path


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that acknowledge before the fsync."""

    def when_durable(self: GroupCommit, number: int, waiter: Waiter, lane: str = "", /) -> None:
        waiter(None)

    monkeypatch.setattr(GroupCommit, "when_durable", when_durable)


def test_seeds_that_break_nothing_end_with_0_and_the_figures(tmp_path: Path) -> None:
    ended = sim("run", "--seeds", 2, "--from", 18, "--plans", tmp_path)
    assert ended.exit_code == 0, ended.output
    assert "2 runs" in ended.output
    assert "violated: none" in ended.output


def test_saved_plans_run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def noting(case: Case) -> batch.Result:
        ran.append(case.name)
        return run_case(dataclasses.replace(case, twice=False))

    monkeypatch.setattr(batch, "run_case", noting)
    first, second = saved(tmp_path / "a.json", CALM), saved(tmp_path / "b.json", CALM)
    assert sim("run", "--seeds", 1, "--from", 8, "--plans", tmp_path).exit_code == 0
    assert ran == [str(first), str(second), "8"]


@pytest.mark.usefixtures("hasty")
def test_a_failure_prints_how_to_see_it_again_the_smallest_plan_and_its_time_line(tmp_path: Path) -> None:
    path = saved(tmp_path / "losing.json", LOSING)
    ended = sim("run", "--seeds", 0, "--plans", tmp_path)
    assert ended.exit_code == 1
    assert f"python -m simulation replay {path} --timeline" in ended.output
    assert "shrunken from 62 events to" in ended.output
    shrunken = from_json(ended.output[ended.output.index("{\n") : ended.output.index("\n}\n") + 3].encode())
    assert len(shrunken.acts) + len(shrunken.faults) <= 10
    assert "seconds  who      what" in ended.output
    assert "violated" in ended.output


@pytest.mark.usefixtures("hasty")
def test_a_run_ends_at_the_first_failure_unless_it_is_to_keep_going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        saved(tmp_path / f"{name}.json", LOSING)
    monkeypatch.setattr(command, "RUNS_MAX", 1)
    assert "\n1 runs" in sim("run", "--seeds", 0, "--plans", tmp_path).output
    going_on = sim("run", "--seeds", 0, "--plans", tmp_path, "--keep-going")
    assert going_on.exit_code == 1
    assert "\n2 runs" in going_on.output


@pytest.mark.usefixtures("hasty")
def test_a_shrunken_plan_is_saved_and_fails_when_it_is_replayed(tmp_path: Path) -> None:
    path = saved(tmp_path / "losing.json", LOSING)
    plans = tmp_path / "plans"
    ended = sim("shrink", path, "--runs", 30, "--save", "small", "--plans", plans)
    assert ended.exit_code == 0, ended.output
    replayed = sim("replay", plans / "small.json", "--timeline")
    assert replayed.exit_code == 1
    assert "invariant" in replayed.output


def test_a_plan_that_breaks_nothing_is_not_shrunken(tmp_path: Path) -> None:
    ended = sim("shrink", saved(tmp_path / "calm.json", CALM))
    assert ended.exit_code == 2
    assert "breaks nothing" in ended.output


def test_a_seed_is_replayed_with_the_same_trace() -> None:
    ended = sim("replay", 8, "--timeline")
    assert ended.exit_code == 0, ended.output
    assert f"trace {execute(draw(8)).digest}" in ended.output


def test_a_drawn_plan_can_be_replayed_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "drawn.json"
    path.write_text(sim("draw", 8).output)
    assert sim("digest", path).output == sim("digest", 8).output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("replay", "absent.json"), "cannot be read"),
        (("replay", "1", "--profile", "mild"), "no profile"),
        (("run", "--profile", "mild"), "no profile"),
        (("mutants",), "checkout"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_that_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = sim(*arguments)
    assert ended.exit_code == 2
    assert told in ended.output
    assert "Nothing was run" in ended.output


def test_a_file_that_holds_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    ended = sim("run", "--seeds", 0, "--plans", tmp_path)
    assert ended.exit_code == 2
    assert "this is no plan" in ended.output


def test_plans_that_change_the_members_are_run_by_their_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    violation = Violation("9", "a change does not end")
    monkeypatch.setattr(memberships, "run_plan", lambda seed: [violation] if seed == 8 else [])
    ended = sim("members", "--seeds", 2, "--from", 7)
    assert ended.exit_code == 1
    assert "seed 8: invariant 9: a change does not end" in ended.output
    assert "2 plans, 1 of them broken" in ended.output
    assert sim("members", "--seeds", 1, "--from", 7).exit_code == 0


def test_one_seed_of_a_hundred_is_run_twice() -> None:
    twice = [case.name for case in cases_of(range(50, 350), profile="default") if case.twice]
    assert twice == ["50", "150", "250"]
    assert TWICE_EVERY == 100


def test_a_trace_that_differs_in_another_process_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "digest_elsewhere", lambda plan: "0" * 64)
    broken = run_case(Case("5", CALM, twice=True)).outcome.broken
    assert broken == {batch.NOT_REPEATED}
    monkeypatch.undo()
    assert run_case(Case("5", CALM, twice=True)).outcome.violations == []


def test_results_come_in_the_order_of_their_cases_from_any_number_of_processes() -> None:
    cases = [Case(str(seed), replace(CALM, seed=seed)) for seed in (3, 1, 2)]
    one, two = list(run_all(cases, jobs=1)), list(run_all(cases, jobs=2))
    assert [result.case.name for result in two] == ["3", "1", "2"]
    assert [result.outcome.digest for result in one] == [result.outcome.digest for result in two]


@pytest.mark.parametrize("columns", SIZES)
def test_a_run_in_a_terminal_tells_its_figures(tmp_path: Path, columns: int) -> None:
    saved(tmp_path / "calm.json", CALM)
    shown = shoal_in_terminal("run", "--seeds", "0", "--plans", tmp_path, module="simulation", columns=columns)
    assert (shown.code, "violated: none" in shown.lines) == (0, True), shown.text
