"""`shoal export` and `shoal import`: threads, spaces and stores as lines, and back.

Law: an import prints what it read, what is there now, and what differs; if anything does, the exit code is 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from shoal.cli.arguments import PANEL, Reveal
from shoal.cli.execution import FAILED, execute
from shoal.cli.output import emit, line, plain
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, ensured, opened
from shoal.workflows.transfer.importing import Aim, Existing, ImportReport

if TYPE_CHECKING:
    from shoal.workflows.transfer.exporting import Wanted

As = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Another name for the thread or space.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with objects that are there, as after an attempt that was cut.")]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(export)
    app.command("import", rich_help_panel=PANEL)(import_)


def export(
    thread: Annotated[str | None, typer.Argument(metavar="[THREAD]", help="The thread's name.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All objects of the space.")] = False,
    spaces: Annotated[bool, typer.Option("--all-spaces", help="All objects of all spaces.")] = False,
    reveal: Reveal = False,
    changes: Annotated[bool, typer.Option("--changes", help="States as changes of their parents', which takes less.")] = False,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Annotated[bool, typer.Option("--json", help="The output is always JSON lines.", rich_help_panel="Output")] = True,
) -> None:
    """Print a thread, a space or a whole store as JSON lines, which `shoal import` reads.

    Without --reveal secret fields are hidden: they are null where this is imported, and their checkpoints have other ids there.

    Example: shoal export researcher-1 --data ./state --space crew > researcher-1.jsonl
    """
    from shoal.workflows.transfer.exporting import Wanted

    if (thread is not None) + everything + spaces != 1:
        raise typer.BadParameter("give one of: a THREAD, --all, --all-spaces.")
    wanted = Wanted(None if spaces else space, thread, reveal, changes)
    execute(_export(chosen(data, url, environment=os.environ), wanted))


async def _export(target: Target, wanted: Wanted) -> None:
    async with opened(target) as store:
        await store.export_to(
            sys.stdout.buffer, space=wanted.space, thread=wanted.thread, reveal=wanted.reveal, changes=wanted.changes
        )
        sys.stdout.buffer.flush()


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file from `shoal export`; - for standard input; or the word langgraph.")
    ],
    database: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATABASE]",
            help="After langgraph: sqlite:///path or postgresql://…, which LangGraph's own savers and stores filled.",
            show_default=False,
        ),
    ] = None,
    name: As = None,
    resume: Resume = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="MODULE.NAME", help="A type of a graph's state; repeatable.", show_default=False),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Decode pickles too: whoever wrote to the database can run code here.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete objects that are there first.")] = False,
    data: Data = None,
    url: Url = None,
    space: Annotated[
        str | None,
        typer.Option(
            "--space",
            metavar="NAME",
            help="Where a thread goes. \\[default: the space that it comes from]",
            rich_help_panel="Which store",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Import what `shoal export` printed, or what LangGraph's savers hold, and compare it with what is there afterwards.

    Objects that are there already are left as they are. If anything is not as it was read, the exit code is 1.

    Example: shoal import researcher-1.jsonl --as researcher-2 --url http://n1:7400
    """
    if resume and replace:
        raise typer.BadParameter("--resume and --replace are both given. Remove one.")
    if database is not None:
        if str(source) != "langgraph":
            raise typer.BadParameter("one FILE, or langgraph and a DATABASE.")
        _import_graphs(chosen(data, url, environment=os.environ), database, space or "langgraph", allow, trust, json)
        return
    existing: Existing = "resume" if resume else "replace" if replace else "refuse"
    target = chosen(data, url, environment=os.environ)
    report = execute(_import(target, source, space, name, Aim(existing=existing)))
    if json:
        emit({**structs.asdict(report), "whole": report.whole})
    else:
        show_report(report)
    if not report.whole:
        raise typer.Exit(FAILED)


async def _import(target: Target, source: Path, space: str | None, name: str | None, aim: Aim) -> ImportReport:
    from shoal.workflows.transfer import importing

    named = aim._replace(space=space, name=name)
    if str(source) != "-":
        await importing.check(source)  # Before a directory is made for what cannot be imported.
    async with ensured(target) as store:
        return await importing.read(store.connection, sys.stdin.buffer if str(source) == "-" else source, named, checked=True)


def _import_graphs(target: Target, database: str, space: str, allow: list[str] | None, trust: bool, json: bool) -> None:
    from shoal.integrations.langgraph.importing import Graphs, import_graphs

    allowed = [(module, name) for module, _, name in (each.rpartition(".") for each in allow or ())] or None

    async def work() -> Graphs:
        async with ensured(target) as store:
            return await import_graphs(store, database, space=space, allowed=allowed, trusted=trust)

    report = execute(work())
    if json:
        emit({**structs.asdict(report), "whole": report.whole})
    else:
        found = f"{report.threads} threads, {report.checkpoints} checkpoints, {report.writes} pending writes"
        line(f"read    {found}, {report.items} items")
        line(f"written {report.written} checkpoints; the others were there")
        for each in report.differs:
            line(f"differs: {plain(each)}")
        if (more := report.left - len(report.differs)) > 0:
            line(f"and {more} more are not as they were read.")
        if report.orphans:
            line(f"left out: {report.orphans} pending writes of checkpoints that are not there.")
    if not report.whole:
        raise typer.Exit(FAILED)


def show_report(report: ImportReport) -> None:
    """Print what an import read, what is there, and what differs."""
    read = {kind: count for kind, count in report.read.items() if kind not in ("export", "space", "end")}
    line(f"read    {_listed(read)}")
    line(f"there   {_listed(report.objects)}")
    for each in report.there:
        line(f"left as it is: {plain(each)} was there. --resume goes on with it, --replace deletes it first.")
    for each in report.differs:
        line(f"differs: {plain(each)}")
    if (more := report.left - len(report.there) - len(report.differs)) > 0:
        line(f"and {more} more objects are not as they were read.")
    for kind, count in report.unknown.items():
        line(f"left out: {count} records of type {plain(kind)!r}, which this version does not know.")
    if report.hidden:
        line(f"{report.hidden} checkpoints came without their secret fields: these are null, and their ids are others.")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{plain(kind)} {count}" for kind, count in counts.items()) or "nothing"
