"""`shoal verify`: check a whole store against itself, without changing it."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shoal.cli.execution import FAILED, failure
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, check_store
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.verification.report import Report
from shoal.node.verification.verify import verify as check
from shoal.storage.rocks import RocksStorage

PANEL = "Run"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(rich_help_panel=PANEL)(verify)


def verify(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The store's directory, like --data; no process may have it open.")
    ] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Check every row of a store: logs, hash chains, checkpoints, chunks and documents.

    A log that is complete is replayed, and must give the stored state byte for byte. Elsewhere the rows are checked alone.
    The exit code is 1 on any damage.

    Example: shoal verify ./state
    """
    directory = _named(directory, data)
    try:
        check_store(directory)
        report = _checked(directory)
    except ShoalError as error:
        raise failure(error.message) from None
    emit(asdict(report) | {"sound": report.sound}) if json else _print(report)
    if not report.sound:
        raise typer.Exit(FAILED)


def _named(directory: Path | None, data: Path | None) -> Path:
    """The directory, from the argument or from --data.

    Raises:
        typer.BadParameter: both or neither are given.
    """
    given = [path for path in (directory, data) if path is not None]
    if not given and os.environ.get("SHOAL_DATA"):
        given = [Path(os.environ["SHOAL_DATA"])]
    if len(given) != 1:
        raise typer.BadParameter("give the store's directory once: shoal verify DIR, or --data DIR (or set SHOAL_DATA).")
    return given[0]


def _checked(directory: Path) -> Report:
    config = Config()
    storage = RocksStorage.open(directory, config=config, now_ms=time.time_ns() // 1_000_000)
    # On standard error, and only on a terminal.
    console = Console(stderr=True)
    with console.status("verifying") as shown:
        try:
            return check(storage, config=config, progress=lambda partition: shown.update(f"verifying partition {partition}"))
        finally:
            storage.close()


def _print(report: Report) -> None:
    line(
        f"{report.operations:,} operations, {report.objects:,} objects, {report.checkpoints:,} checkpoints and "
        f"{report.chunks:,} chunks in {report.partitions:,} partitions"
    )
    if report.truncated:
        line(f"{report.truncated:,} more operations are no longer in the log: what they made was checked without them")
    for problem in report.problems:
        line(f"  {problem}")
    if report.problem_count > len(report.problems):
        line(f"  … and {report.problem_count - len(report.problems):,} more")
    line("sound" if report.sound else f"not sound: {report.problem_count:,} found. Nothing was changed.")
