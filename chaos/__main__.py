"""`python -m chaos run`, `judge DIR`, `crew`, `fuzz --frames N` and `upgrade --revision REV`.

Ends with 0 if every promise was kept, with 1 if one was broken, with 2 if it
was not understood, with 3 if this machine could not run the trial that was asked for.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console

from chaos import crews, processes
from chaos import evidence as archive
from chaos import upgrade as upgrading
from chaos.cluster import NodeFailed, last_words
from chaos.composed import FAULTS, GROUPS
from chaos.evidence import Evidence, Options
from chaos.faults import Backend, Kill
from chaos.judge import Verdict
from chaos.judge import judge as judged
from chaos.report import print_verdict, to_html
from chaos.run import run as run_trial
from shoal.cli.execution import FAILED, Commands, execute, interruptible
from simulation.judging.history import History

T = TypeVar("T")

NODES_MAX = 9
MAJORITY_MIN = 3
"""With fewer nodes no minority can be lost."""

Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html",
        dir_okay=False,
        callback=lambda report: _reachable(report),
        help="Write the verdict and its picture there, too.",
    ),
]

NOT_RUN = 3
"""The exit code of a trial that this machine could not run."""

app = typer.Typer(cls=Commands, help=__doc__, no_args_is_help=True, add_completion=False)


class Durability(StrEnum):
    local = "local"
    quorum = "quorum"
    all = "all"


class Runs(StrEnum):
    """What nodes run in."""

    process = "process"
    compose = "compose"


@app.command()
def run(
    backend: Annotated[
        Runs,
        typer.Option(help="Each node a process of this machine, or docker-compose.yml as it ships, on an engine of its own."),
    ] = Runs.process,
    nodes: Annotated[int, typer.Option(min=1, max=NODES_MAX, help="How many nodes; compose has three.")] = 3,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long agents work and strikes fall.")] = 1.0,
    faults: Annotated[str, typer.Option(metavar="NAME,…", help=f"Of: {', '.join((*FAULTS, *GROUPS))}.")] = "kill",
    seed: Annotated[int | None, typer.Option(help="Of all chance in the harness; drawn and told if it is not given.")] = None,
    agents: Annotated[int, typer.Option(min=1, max=1000, help="Clients, spread over the nodes.")] = 24,
    rate: Annotated[float, typer.Option(min=1, help="What all agents do in a second, reads and writes.")] = 500.0,
    workers: Annotated[int, typer.Option(min=0, max=1000, help="Clients with effects, budgets and worklists.")] = 6,
    durability: Annotated[
        Durability | None, typer.Option(help="Of the agents' writes: local, but quorum where faults take disks.")
    ] = None,
    kills: Annotated[int | None, typer.Option(min=1, help="Go on until so many strikes were made, however long.")] = None,
    report: Report = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep directories, logs and history, to be judged again; kept anyway if a promise was broken."
        ),
    ] = False,
) -> None:
    """Start nodes, load them, strike them, and judge what is left.

    Example: python -m chaos run --nodes 3 --minutes 1 --faults kill
    """
    chosen = _known(faults, nodes=nodes, backend=backend.value)
    options = Options(
        backend=backend.value,
        nodes=nodes,
        minutes=minutes,
        strikes=kills,
        faults=chosen,
        seed=SystemRandom().getrandbits(32) if seed is None else seed,
        agents=agents,
        rate=rate,
        workers=workers,
        durability=_durable(durability, chosen).value,
    )
    console = Console()
    console.print(f"seed {options.seed}", highlight=False)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    processes.mount_apart()
    directory, stays = Path(tempfile.mkdtemp(prefix="shoal-chaos-")), keep
    try:
        history, found = execute(interruptible(run_trial(options, directory, say=say, now_s=time.monotonic)))
        stays = True  # Whatever fails from here on: what was found can be judged again.
        archive.save(directory, history, found)
        verdict = _conclude(console, history, found, report, beside=directory / "report.html")
        stays = keep or bool(verdict.violations)
    finally:
        if stays:
            say(f"kept: {directory}, with report.html; judge it again with: python -m chaos judge {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if verdict.violations:
        for log in sorted(directory.glob("*.log")):
            say(f"{log.stem} said last:\n{last_words(log)}")
    _end(verdict)


@app.command()
def upgrade(
    revision: Annotated[
        str,
        typer.Option(help="The version from which the nodes are upgraded: any revision of git. Default: the last release."),
    ] = "",
    rate: Annotated[float, typer.Option(min=1, help="Writes a second, each through a quorum.")] = upgrading.RATE,
) -> None:
    """Replace three nodes of another version by nodes of this one, one after another, while clients of both write.

    The other version is built into a wheel. The last line has what clients felt.

    Example: python -m chaos upgrade --revision v0.1.0
    """
    with tempfile.TemporaryDirectory(prefix="shoal-upgrade-") as directory:
        nodes = Path(directory) / "nodes"
        nodes.mkdir()
        try:
            before = Path(directory) / "old"
            before.mkdir()
            old, new = upgrading.built(revision or upgrading.last_release(), before), upgrading.present()
            outcome = asyncio.run(upgrading.upgrade(old, new, nodes, say=typer.echo, now_s=time.monotonic, rate=rate))
        except (ValueError, NodeFailed) as error:
            typer.echo(f"chaos: {error}", err=True)
            raise typer.Exit(FAILED) from None
    for problem in outcome.problems:
        typer.echo(problem, err=True)
    typer.echo(outcome.figures)
    if outcome.problems:
        raise typer.Exit(FAILED)
    typer.echo(f"{outcome.acknowledged:,} writes were acknowledged, and each is on all nodes once")


@app.command()
def crew(
    kills: Annotated[int, typer.Option(min=1, help="How many machines are killed with -9, one after another.")] = 10,
    ttl: Annotated[float, typer.Option(min=1.0, help="Of the agents' leases, in seconds.")] = 5.0,
    agents: Annotated[int, typer.Option(min=1, max=100, help="How many agents there are.")] = 6,
    seed: Annotated[int | None, typer.Option(help="Of all chance in the harness; drawn and told if it is not given.")] = None,
) -> None:
    """Kill machines of a crew, some with their nodes: agents are at work elsewhere in time, and do nothing twice.

    Example: python -m chaos crew --kills 100
    """
    seed = SystemRandom().getrandbits(32) if seed is None else seed
    typer.echo(f"seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="shoal-crew-"))
    trial = crews.run(directory, kills=kills, seed=seed, ttl_s=ttl, agents=agents, say=typer.echo, now_s=time.monotonic)
    _tried(trial, directory, lines=crews.Verdict.lines, problems=lambda verdict: verdict.problems)


@app.command()
def fuzz(
    frames: Annotated[int, typer.Option(min=4, help="How many probes before a token is shown, and as many after.")] = 10_000,
    seed: Annotated[int | None, typer.Option(help="Of all probes; drawn and told if it is not given.")] = None,
    slow: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="An answer that takes longer, also alone, counts.")
    ] = 1.0,
    memory: Annotated[int, typer.Option(min=64, metavar="MB", help="The node may hold so much.")] = 1024,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="End after this time, with what was sent by then.")] = None,
) -> None:
    """Send a node anything: bytes, requests and frames that are nearly right. It answers, in time, and within its memory.

    Example: python -m chaos fuzz --frames 1000000
    """
    from chaos.fuzz import run as fuzzing  # Imported here, because it signs tokens, which takes an extra.

    options = fuzzing.FuzzOptions(
        frames=frames,
        seed=SystemRandom().getrandbits(32) if seed is None else seed,
        slow_s=slow,
        memory_mb=memory,
        minutes=minutes,
    )
    typer.echo(f"seed {options.seed}")
    directory = Path(tempfile.mkdtemp(prefix="shoal-fuzz-"))
    trial = fuzzing.run(options, directory, say=typer.echo)
    _tried(trial, directory, lines=lambda found: [fuzzing.told(found)], problems=lambda found: found.findings)


def _tried(
    trial: Coroutine[Any, Any, T],
    directory: Path,
    *,
    lines: Callable[[T], Iterable[str]],
    problems: Callable[[T], Sequence[object]],
) -> None:
    """Carry out a trial, and show its lines; its directory stays if there were problems, and the command fails."""
    is_sound = False
    try:
        found = execute(interruptible(trial))
        for line in lines(found):
            typer.echo(line)
        is_sound = not problems(found)
    except NodeFailed as failure:
        typer.echo(f"chaos: {failure}", err=True)
    finally:
        if is_sound:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            typer.echo(f"kept: {directory}")
    if not is_sound:
        raise typer.Exit(FAILED)


@app.command()
def judge(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What a trial with --keep has left.")],
    report: Report = None,
) -> None:
    """Judge a trial again, from its history and what was found.

    Example: python -m chaos judge /tmp/chaos-x1
    """
    try:
        history, found = archive.load(directory)
    except (OSError, msgspec.DecodeError) as error:
        typer.echo(
            f"chaos: {directory} holds no trial ({error}). Nothing was judged; name a directory that --keep kept.", err=True
        )
        raise typer.Exit(FAILED) from None
    _end(_conclude(Console(), history, found, report))


def _known(names: str, *, nodes: int, backend: Backend) -> list[str]:
    """
    Raises:
        typer.BadParameter: there is no such fault, or it takes more nodes.
    """
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if backend == "compose" and nodes != MAJORITY_MIN:
        raise typer.BadParameter(f"docker-compose.yml has {MAJORITY_MIN} nodes.", param_hint="--nodes")
    there = {name: [each for each in group if backend in FAULTS[each].backends] for name, group in GROUPS.items()}
    chosen = list(dict.fromkeys(each for name in asked for each in there.get(name, (name,))))
    for name in chosen:
        if name not in FAULTS:
            raise typer.BadParameter(f"{name!r} is no fault; there is: {', '.join((*FAULTS, *GROUPS))}.", param_hint="--faults")
        if backend not in FAULTS[name].backends:
            raise typer.BadParameter(f"{name!r} cannot be made with {backend}.", param_hint="--faults")
        if nodes < MAJORITY_MIN and FAULTS[name] is not Kill:
            raise typer.BadParameter(f"{name!r} takes {MAJORITY_MIN} nodes, so that a majority stays.", param_hint="--faults")
    if not chosen:
        raise typer.BadParameter(f"name at least one of: {', '.join((*FAULTS, *GROUPS))}.", param_hint="--faults")
    return chosen


def _durable(durability: Durability | None, faults: list[str]) -> Durability:
    """
    Raises:
        typer.BadParameter: what is acknowledged so may be lost with a disk.
    """
    takers = [name for name in faults if FAULTS[name].loses_disks]
    if durability is Durability.local and takers:
        raise typer.BadParameter(
            f"{takers[0]!r} takes disks, and local writes with them: quorum, or all.", param_hint="--durability"
        )
    return durability or (Durability.quorum if takers else Durability.local)


def _reachable(report: Path | None) -> Path | None:
    """
    Raises:
        typer.BadParameter: no file can be there. Better told before a trial than after it.
    """
    if report is None:
        return None
    if not report.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {report.parent}.", param_hint="--report")
    is_new = not report.exists()
    try:
        report.open("ab").close()
        if is_new:
            report.unlink()
    except OSError as error:
        raise typer.BadParameter(f"{report} cannot be written ({error.strerror}).", param_hint="--report") from None
    return report


def _conclude(
    console: Console, history: History, found: Evidence, report: Path | None, *, beside: Path | None = None
) -> Verdict:
    """Judge, and say so. The report is written `beside` what may be kept, too.

    Raises:
        typer.Exit: the report could not be written, which was said.
    """
    verdict = judged(history, found)
    print_verdict(console, verdict)
    html = to_html(verdict, found)
    try:
        if beside is not None:
            beside.write_text(html)
        if report is not None:
            report.write_text(html)
            console.print(f"report: {report}", highlight=False, soft_wrap=True, markup=False)
    except OSError as error:
        typer.echo(f"chaos: the report could not be written ({error}); the verdict above stands.", err=True)
        raise typer.Exit(FAILED) from None
    return verdict


def _end(verdict: Verdict) -> None:
    """
    Raises:
        typer.Exit: not every promise was kept, or none was tried.
    """
    if not verdict.kept:
        raise typer.Exit(NOT_RUN if verdict.not_run else FAILED)


if __name__ == "__main__":
    app()
