"""`shoal file put|get|list|delete`: files of a space or a thread, streamed from and to this machine.

A file that could not be fetched whole leaves nothing under the name that it should get.
"""

from __future__ import annotations

import mimetypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.arguments import PANEL
from shoal.cli.command import Run, Work, in_store
from shoal.cli.derived import group_of
from shoal.cli.execution import agreed, failure
from shoal.cli.output import Listing, moment

if TYPE_CHECKING:
    from shoal.client.store import Space, Store
    from shoal.kinds.thread.handle.thread import Thread

OfThread = Annotated[
    str | None, typer.Option("--thread", metavar="NAME", help="A thread's files. \\[default: the space's]", show_default=False)
]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    files = group_of("file")
    for command in (put, get, delete):
        files.command()(command)
    files.command("list")(listing)
    app.add_typer(files, name="file", rich_help_panel=PANEL)


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
        none = f"no files in space {run.space!r}."
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
