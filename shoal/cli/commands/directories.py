"""`shoal verify` and `shoal encryption`: what is done with the directory of a store that no process has open."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shoal.audit.statements import read
from shoal.cli.execution import FAILED, Data, Json, check_store, encryption_key, failure
from shoal.cli.output import emit, line
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.verification.report import Report
from shoal.node.verification.verify import verify as check
from shoal.protocol.requests import Statement
from shoal.storage.opening import open_storage

PANEL = "Run"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(rich_help_panel=PANEL)(verify)
    group = typer.Typer(no_args_is_help=True, help="Make master keys for encryption at rest, and encrypted copies.")
    group.command("key")(make_key)
    group.command()(copy)
    app.add_typer(group, name="encryption", rich_help_panel=PANEL)


def verify(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The store's directory, like --data; no process may have it open.")
    ] = None,
    data: Data = None,
    statement: Annotated[
        list[Path] | None,
        typer.Option(
            "--statement", metavar="FILE", help="A statement from `shoal audit sign`: its rows are compared; repeatable."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check every row of a store: logs, hash chains, checkpoints, chunks and documents.

    A log that is complete is replayed, and must give the stored state byte for byte. Elsewhere the rows are checked alone, and
    it says whose word they rest on. The rows are compared with those of signed statements. The exit code is 1 on any damage.

    Example: shoal verify ./state --statement 2026-11.statement
    """
    directory = _named(directory, data)
    try:
        check_store(directory)
        report = _checked(directory, [read(file) for file in statement or ()])
    except ShoalError as error:
        raise failure(error.message) from None
    is_proved = report.sound and not report.trusted and not report.uncompared
    emit(asdict(report) | {"sound": is_proved}) if json else _print(report)
    if not report.sound:
        raise typer.Exit(FAILED)


def make_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make; only its owner may read it.")],
) -> None:
    """Make a master key. Keep a copy of it elsewhere: without it, nothing in an encrypted directory can be read.

    Example: shoal encryption key ./master.key
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as made:
            made.write(os.urandom(32).hex() + "\n")
            made.flush()
            os.fsync(made.fileno())
    except FileExistsError:
        raise failure(f"{file} exists already. Nothing was written. Name another file, or add a line to this one.") from None
    except OSError as error:
        raise failure(f"{file} cannot be written: {error.strerror}. Nothing was written.") from None
    line(f"made {file}. Use it with: shoal serve --encryption-key file:{file} …")


def copy(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The store to copy; no process may have it open.")],
    to: Annotated[Path, typer.Argument(metavar="NEW", help="The directory to make.")],
    new_key: Annotated[
        str, typer.Option("--new-key", metavar="SOURCE", help="The master key of the copy. \\[default: it is not encrypted]")
    ] = "",
    json: Json = False,
) -> None:
    """Copy a store into a new directory, encrypted or not. The key of the store itself is that of shoal --encryption-key.

    A node treats the copy as any copy of a directory: it has a new identity, and among peers it first fetches what they hold.
    Remove the old directory once the copy works: it still has everything in it.

    Example: shoal encryption copy ./state ./sealed --new-key file:./master.key
    """
    # Imported here, because no other command needs it, and all would start more slowly.
    from shoal.storage.encrypted.storage import copy as copied

    console = Console(stderr=True)
    try:
        check_store(source)
        with console.status("copying") as shown:
            rows = copied(
                source,
                to,
                config=Config(encryption_key=encryption_key.get()),
                encryption_key=new_key,
                now_ms=lambda: time.time_ns() // 1_000_000,
                entropy=os.urandom,
                progress=lambda count: shown.update(f"copying: {count:,} rows"),
            )
    except ShoalError as error:
        raise failure(error.message) from None
    if json:
        emit({"rows": rows, "encrypted": bool(new_key)})
    else:
        line(f"copied {rows:,} rows to {to}, {'encrypted' if new_key else 'not encrypted'}")


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


def _checked(directory: Path, statements: list[Statement]) -> Report:
    config = Config(encryption_key=encryption_key.get())
    storage = open_storage(directory, config=config, now_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)
    # On standard error, and only on a terminal.
    console = Console(stderr=True)
    with console.status("verifying") as shown:
        try:
            return check(
                storage,
                config=config,
                progress=lambda partition: shown.update(f"verifying partition {partition}"),
                statements=statements,
            )
        finally:
            storage.close()


def _print(report: Report) -> None:
    line(
        f"{report.operations:,} operations, {report.objects:,} objects, {report.checkpoints:,} checkpoints, "
        f"{report.files:,} files and {report.chunks:,} chunks in {report.partitions:,} partitions"
    )
    if report.truncated:
        line(f"{report.truncated:,} more operations are no longer in the log: what they made was checked without them")
    for problem in report.problems:
        line(f"  {problem}")
    if report.problem_count > len(report.problems):
        line(f"  … and {report.problem_count - len(report.problems):,} more")
    if report.statements:
        of = f"{report.statements:,} statement{'' if report.statements == 1 else 's'}"
        line(f"{report.rows:,} times a partition's rows were those that one of {of} covers")
    for told in report.trusted:
        line(f"  trusted: {told}")
    for told in report.uncompared:
        line(f"  not compared: {told}")
    if not report.sound:
        line(f"not sound: {report.problem_count:,} found. Nothing was changed.")
    elif report.trusted:
        line(
            f"no fault found. {report.folded:,} of {report.partitions:,} partitions were folded from their operations; the "
            "others could not be, and rest on the word of those that are named above."
        )
    elif report.uncompared:
        line("no fault found. All partitions were folded from their operations; what is named above was not compared.")
    else:
        line("sound")
