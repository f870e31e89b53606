"""`shoal export`, `shoal import` and `shoal file put|get|list|delete`: what goes between a store and this machine, as lines or
as files.

A file that could not be fetched whole leaves nothing under the name that it should get.

Laws:
- An import prints what it read, what is there now, and what differs; if anything does, the exit code is 1.
"""

from __future__ import annotations

import mimetypes
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from shoal.cli.arguments import PANEL, Reveal, Run, Work, in_store
from shoal.cli.derived import group_of
from shoal.cli.execution import FAILED, Data, Json, SpaceName, Target, Url, agreed, chosen, ensured, execute, failure, opened
from shoal.cli.output import Listing, emit, line, moment, note, plain
from shoal.workflows.transfer.importing import Aim, Existing, ImportReport

if TYPE_CHECKING:
    from shoal.client.store import Space, Store
    from shoal.kinds.thread.handle.thread import Thread
    from shoal.workflows.transfer.exporting import Wanted

_TOLD_S = 5.0  # Between two lines that say how far an import is.

As = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Another name for the thread or space.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with objects that are there, as after an attempt that was cut.")]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.command(rich_help_panel=PANEL)(export)
    app.command("import", rich_help_panel=PANEL)(import_)
    files = group_of("file")
    for command in (put, get, delete):
        files.command()(command)
    files.command("list")(listing)
    app.add_typer(files, name="file", rich_help_panel=PANEL)


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
        if name is not None or resume or replace:
            raise typer.BadParameter(
                "--as, --resume and --replace are for a FILE. What langgraph imports keeps its names, and what is there stays."
            )
        _import_graphs(chosen(data, url, environment=os.environ), database, space or "langgraph", allow, trust, json)
        return
    if str(source) == "langgraph" and not source.exists():
        raise typer.BadParameter("name the DATABASE after langgraph: sqlite:///path or postgresql://user@host/name.")
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
    from shoal.integrations.langgraph.importing import Graphs, check, import_graphs

    allowed = [(module, name) for module, _, name in (each.rpartition(".") for each in allow or ())] or None

    check(database)  # Before a directory is made for what cannot be imported.
    told_at = time.monotonic()

    def told(found: Graphs) -> None:
        nonlocal told_at
        if (now := time.monotonic()) - told_at >= _TOLD_S and not json:
            told_at = now
            note(f"{found.checkpoints:,} checkpoints of {found.threads:,} threads read")

    async def work() -> Graphs:
        async with ensured(target) as store:
            return await import_graphs(store, database, space=space, allowed=allowed, trusted=trust, progress=told)

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


OfThread = Annotated[
    str | None, typer.Option("--thread", metavar="NAME", help="A thread's files. \\[default: the space's]", show_default=False)
]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@in_store
def put(
    run: Run,
    source: Annotated[str, typer.Argument(metavar="FILE", help="- is standard input.", show_default=False)],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name there. \\[default: FILE's]", show_default=False)
    ] = None,
    thread: OfThread = None,
    media_type: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="Its media type. \\[default: of its ending]", show_default=False),
    ] = None,
) -> Work:
    """Store a file of any size. One that was cut off goes on where it was.

    Example: shoal file put page.png --thread researcher-1 --data ./state --space crew
    """
    if source == "-" and not name:
        raise failure("standard input has no name. Nothing was written. Give one with --name.")
    stored_as = name or Path(source).name

    async def work(store: Store) -> None:
        kind = media_type or mimetypes.guess_type(stored_as)[0]
        given = sys.stdin.buffer if source == "-" else Path(source)
        ref = await _files(store, run.space, thread).put_file(stored_as, given, type=kind)
        run.show({"name": ref.name, "sha256": ref.sha256, "size": ref.size, "type": ref.type}, ref.sha256)

    return work


@in_store
def get(
    run: Run,
    name: Name,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[FILE]", help="Where to; - is standard output. By default its own name, here.", show_default=False
        ),
    ] = "",
    thread: OfThread = None,
) -> Work:
    """Fetch a file, and check that it is whole.

    Example: shoal file get page.png ./page.png --thread researcher-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        async with _files(store, run.space, thread).open_file(name) as stream:
            if target == "-":
                async for piece in stream:
                    sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
                return
            place = Path(target or Path(name).name)
            part = place.with_name(f".{place.name}.part")
            try:
                with part.open("wb") as file:
                    async for piece in stream:
                        file.write(piece)
                os.replace(part, place)
            except OSError as error:
                raise failure(f"{place} cannot be written: {error.strerror}.") from None
            finally:
                part.unlink(missing_ok=True)
            run.show({"name": name, "file": str(place), "size": stream.size}, f"{place}: {stream.size} bytes")

    return work


@in_store
def listing(run: Run, thread: OfThread = None) -> Work:
    """List the files of a space, or of a thread.

    Example: shoal file list --thread researcher-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        none = f"no files in {f'thread {thread!r} of ' if thread else ''}space {run.space!r}."
        with Listing("name", "bytes", "type", "stored", "sha256", json=run.json, none=none) as rows:
            async for file in _files(store, run.space, thread).files():
                stored = moment(file.stored)
                shown = {"name": file.name, "size": file.size, "type": file.media_type, "stored": stored, "sha256": file.sha256}
                rows.add(
                    shown,
                    "  ".join(map(str, shown.values())),
                    file.name,
                    str(file.size),
                    file.media_type,
                    stored,
                    file.sha256[:12],
                )

    return work


@in_store
def delete(
    run: Run,
    name: Name,
    thread: OfThread = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> Work:
    """Delete a file. Its bytes go once no checkpoint of its thread refers to it.

    Example: shoal file delete page.png --yes --thread researcher-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        agreed(f"Delete file {name}?", yes=yes)
        existed = await _files(store, run.space, thread).delete_file(name)
        run.show({"existed": existed}, "deleted" if existed else "there was no such file")

    return work


def _files(store: Store, space: str, thread: str | None) -> Space | Thread:
    found = store.space(space)
    return found if thread is None else found.thread(thread)
