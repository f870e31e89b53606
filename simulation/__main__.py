"""`python -m simulation`: run seeds, replay one, shrink one.

Laws:
- Saved plans run first, always: what failed once is tried before anything new.
- A failure prints all that is needed to see it again, and ends the command with 1
  (2: the command line was wrong, nothing was run).
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import InvalidValue
from shoal.testing.machines import quiet, run
from simulation import liars, memberships, rebuilds
from simulation.batch import Case, cases_of, run_all
from simulation.drawing import draw
from simulation.execution import Outcome, execute
from simulation.judging.violation import Violation
from simulation.plan import Plan, from_json, to_json
from simulation.profiles import NAMES
from simulation.report import Failure, Figures, timeline, violations
from simulation.shrinking import RUNS_MAX, breaks, shrink
from simulation.year import GROWTH_MAX, WEEK, Sample, growth, year

PLANS = Path("tests/simulation/plans")
OF_MUTANTS = Path("tests/mutants/plans")
"""They find bugs that are planted (`tests/mutants`): the sound program must pass them."""

app = typer.Typer(
    name="simulation",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Run whole clusters of real nodes, with clients, through bad luck in virtual time.",
)

LIAR = "liar"
ProfileOption = Annotated[str, typer.Option("--profile", help=f"How plans are drawn: {', '.join(NAMES)}; to run: {LIAR}.")]
PlanArgument = Annotated[str, typer.Argument(metavar="SEED|FILE", help="A seed, or a file with a plan (-: standard input).")]
HowMany = Annotated[int, typer.Option("--seeds", min=0, help="How many.")]
First = Annotated[int, typer.Option("--from", help="The first of them.")]
PlansOption = Annotated[Path, typer.Option("--plans", metavar="DIR", help="Where plans are saved.")]
AllPlansOption = Annotated[list[Path], typer.Option("--plans", metavar="DIR", help="Where plans are saved (may be repeated).")]


@app.command("run")
def run_seeds(
    seeds: Annotated[int, typer.Option("--seeds", min=0, help="How many.")] = 200,
    first: Annotated[int, typer.Option("--from", help="The first of them.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 1,
    profile: ProfileOption = "default",
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run all, whatever fails; shrink nothing.")] = False,
    plans: AllPlansOption = [PLANS, OF_MUTANTS],  # noqa: B006 - It is only read.
) -> None:
    """Run all saved plans, then seeds. Plans of liars run alone: they are of another kind."""
    if profile == LIAR:
        _run_all(liars.run_plan, range(first, first + seeds))
    began_s = time.monotonic()
    figures = Figures()
    cases = chain(*map(saved, plans), _drawn(range(first, first + seeds), profile))
    with closing(run_all(cases, jobs=jobs)) as results:
        for result in results:
            figures.add(result.case.name, result.outcome)
            if result.outcome.violations:
                _tell(result.case, result.outcome, profile=profile, shrunken=not keep_going)
                if not keep_going:
                    break
    _say(figures.lines())
    typer.echo(f"{time.monotonic() - began_s:.0f} seconds")
    raise typer.Exit(1 if figures.failed else 0)


@app.command("members")
def change_members(seeds: HowMany = 100, first: First = 0) -> None:
    """Run plans that change the members of a cluster."""
    _run_all(memberships.run_plan, range(first, first + seeds))


@app.command("rebuilds")
def lose_majorities(seeds: HowMany = 100, first: First = 0) -> None:
    """Run plans in which a cluster loses its majority and is rebuilt, or all directories but copies."""
    _run_all(rebuilds.run_plan, range(first, first + seeds))


def _run_all(run_plan: Callable[[int], list[Violation]], seeds: range) -> None:
    logging.disable(logging.CRITICAL)  # Nodes warn of every fault that they meet.
    broken = 0
    for seed in seeds:
        found = run_plan(seed)
        broken += bool(found)
        _say(f"seed {seed}: invariant {violation.invariant}: {violation.text}" for violation in found)
    typer.echo(f"{len(seeds)} plans, {broken} of them broken")
    raise typer.Exit(1 if broken else 0)


@app.command()
def replay(
    what: PlanArgument,
    profile: ProfileOption = "default",
    with_timeline: Annotated[bool, typer.Option("--timeline", help="Print what happened, in order.")] = False,
    last: Annotated[int, typer.Option("--last", min=0, help="Print so many of the last events, messages and writes too.")] = 0,
) -> None:
    """Run one plan again."""
    outcome = execute(_plan(what, profile))
    if with_timeline:
        _say(timeline(outcome))
    _say(outcome.last[-last:] if last else [])
    _say(violations(outcome))
    figures = Figures()
    figures.add(what, outcome)
    _say(figures.lines())
    typer.echo(f"trace {outcome.digest}")
    raise typer.Exit(1 if outcome.violations else 0)


@app.command("shrink")
def shrink_plan(
    what: PlanArgument,
    profile: ProfileOption = "default",
    save: Annotated[str, typer.Option("--save", metavar="NAME", help="Save it among the plans that run first.")] = "",
    runs: Annotated[int, typer.Option("--runs", min=1, help="How often the plan may be run.")] = RUNS_MAX,
    plans: PlansOption = PLANS,
) -> None:
    """Find the smallest plan that breaks the same."""
    outcome = execute(_plan(what, profile))
    if not outcome.violations:
        raise _wrong(f"{what} breaks nothing: there is nothing to shrink.")
    smallest = _smallest(outcome, runs)
    _say(Failure(what, _options(what, profile), outcome, smallest).lines())
    if save:
        plans.mkdir(parents=True, exist_ok=True)
        (plans / f"{save}.json").write_bytes(to_json(smallest.plan))


@app.command("draw")
def draw_plan(seed: int, profile: ProfileOption = "default") -> None:
    """Print the plan of a seed, to be changed by hand or saved."""
    typer.echo(to_json(_plan(str(seed), profile)), nl=False)


@app.command()
def digest(what: PlanArgument, profile: ProfileOption = "default") -> None:
    """Run a plan, and print the hash of its trace alone."""
    typer.echo(execute(_plan(what, profile)).digest)


@app.command("year")
def simulate_year(
    days: Annotated[int, typer.Option("--days", min=WEEK + 1, help="How long.")] = 365,
    day_s: Annotated[float, typer.Option("--day", min=5.0, help="Virtual seconds of a day.")] = 20.0,
    every: Annotated[int, typer.Option("--every", min=1, help="Days between two lines.")] = 28,
    seed: Annotated[int, typer.Option("--seed", help="What is drawn.")] = 1,
) -> None:
    """Let a cluster run under steady load for a year, and print what grows. Ends with 1 if that is more than a fifth."""

    def told(sample: Sample) -> None:
        counts = "  ".join(f"{name} {number:,g}" for name, number in sample.figures().items())
        typer.echo(f"day {sample.day:3}  writes {sample.writes:,}  {counts}")

    with quiet():
        grown = growth(run(year(days, day_s=day_s, seed=seed, every=every, told=told)))
    _say(f"{name}: × {by:.2f} since the first week" for name, by in grown.items())
    raise typer.Exit(1 if max(grown.values()) > GROWTH_MAX else 0)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def mutants(context: typer.Context) -> None:
    """Plant bugs, and see that they are found; only in a checkout of Shoal. Options are those of `python -m tests.mutants`."""
    if not Path("tests/mutants").is_dir():
        raise _wrong("tests/mutants is not here: run this at the top of a checkout of Shoal. Nothing was run.")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "tests.mutants", *context.args], check=False).returncode)


def saved(plans: Path) -> Iterator[Case]:
    """The plans in a directory, by name."""
    for path in sorted(plans.glob("*.json")):
        yield Case(str(path), _read(path))


def _drawn(seeds: Iterable[int], profile: str) -> Iterator[Case]:
    try:
        yield from cases_of(seeds, profile=profile)
    except InvalidValue as error:
        raise _wrong(error.message) from None


def _plan(what: str, profile: str) -> Plan:
    try:
        return draw(int(what), profile=profile) if what.isdigit() else _read(Path("/dev/stdin" if what == "-" else what))
    except InvalidValue as error:
        raise _wrong(error.message) from None


def _read(path: Path) -> Plan:
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}. Nothing was run.") from None
    except InvalidValue as error:
        raise _wrong(f"{path}: {error.message}") from None


def _tell(case: Case, outcome: Outcome, *, profile: str, shrunken: bool) -> None:
    smallest = _smallest(outcome, RUNS_MAX) if shrunken else outcome
    _say(Failure(case.name, _options(case.name, profile), outcome, smallest).lines() if shrunken else _briefly(case, outcome))


def _briefly(case: Case, outcome: Outcome) -> Iterator[str]:
    yield f"FAILED: {case.name}"
    yield from violations(outcome)


def _smallest(outcome: Outcome, runs_max: int) -> Outcome:
    """What was broken first is what a smaller plan has to break."""
    wanted = frozenset({outcome.violations[0].invariant})
    return execute(shrink(outcome.plan, breaks(wanted), runs_max=runs_max))


def _options(what: str, profile: str) -> str:
    return f" --profile {profile}" if what.isdigit() and profile != "default" else ""


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _wrong(text: str) -> typer.Exit:
    typer.echo(f"python -m simulation: {text}", err=True)
    return typer.Exit(2)


if __name__ == "__main__":
    app()
