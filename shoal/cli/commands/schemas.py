"""`shoal schema`: the JSON Schemas that the nodes of a space enforce."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.absence import check_thread, print_names
from shoal.cli.arguments import json_of_file
from shoal.cli.execution import execute
from shoal.cli.ids import SHORT
from shoal.cli.options import PANEL, ThreadName
from shoal.cli.output import emit, line
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import Listing, show_value
from shoal.client.schemas import SchemaVersion

SchemaName = Annotated[str, typer.Argument(metavar="NAME", help="The schema's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Read and put the JSON Schemas that nodes enforce.")
    group.command("put")(put)
    group.command("show")(show)
    group.command("list")(list_)
    group.command("check")(check)
    app.add_typer(group, name="schema", rich_help_panel=PANEL)


def put(
    name: SchemaName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A JSON Schema. - is standard input.", show_default=False)],
    version: Annotated[
        int,
        typer.Option("--version", metavar="N", help="The number of the version, which never changes.", show_default=False),
    ],
    threads: Annotated[
        str,
        typer.Option("--threads", metavar="NAME|PREFIX*", help="The threads whose saves must satisfy it, under any schema."),
    ] = "",
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Put a version of a schema: from now on nodes reject states that violate it.

    Example: shoal schema put plan plan.json --version 1 --threads 'planner-*' --url http://n1:7400 --space crew
    """
    target = chosen(data, url, environment=os.environ)
    execute(_put(target, space, name, json_of_file(file, tagged=False), version, threads, json=json))


async def _put(target: Target, space: str, name: str, schema: Any, version: int, threads: str, *, json: bool) -> None:
    async with opened(target) as store:
        found = await store.space(space).schemas.put(name, version, schema, threads=threads)
    emit(_described(found)) if json else _print(found)


def show(name: SchemaName, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
    """Print all versions of a schema, oldest first.

    Example: shoal schema show plan --data ./state --space crew
    """
    execute(_show(chosen(data, url, environment=os.environ), space, name, json=json))


async def _show(target: Target, space: str, name: str, *, json: bool) -> None:
    async with opened(target) as store:
        for found in await store.space(space).schemas.versions(name):
            if json:
                emit(_described(found))
            else:
                _print(found)
                show_value(found.json)


def list_(data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
    """List a space's schemas, one name per line.

    Example: shoal schema list --data ./state --space crew
    """
    execute(_list(chosen(data, url, environment=os.environ), space, json=json))


async def _list(target: Target, space: str, *, json: bool) -> None:
    async with opened(target) as store:
        await print_names(store.space(space).schemas.list(), store, space, what="schemas", json=json)


def check(thread: ThreadName, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
    """List violations of schemas by the heads of a thread; if there are any, the exit code is 1.

    Example: shoal schema check planner-1 --data ./state --space crew
    """
    if execute(_check(chosen(data, url, environment=os.environ), space, thread, json=json)):
        raise typer.Exit(1)


async def _check(target: Target, space: str, name: str, *, json: bool) -> int:
    async with opened(target) as store:
        await check_thread(store, space, name)
        found = await store.space(space).thread(name).violations()
    headings = ("branch", "checkpoint", "schema", "path", "why")
    with Listing(*headings, json=json, none=f"the heads of thread {name!r} break no schema.") as rows:
        for broken in found:
            fields = {field: getattr(broken, field) for field in broken.__struct_fields__}
            schema, path = f"{broken.schema} version {broken.version}", broken.path or "/"
            text = f"{broken.branch} {broken.checkpoint}  {schema}  {path}: {broken.why}"
            rows.add(fields, text, broken.branch, broken.checkpoint[:SHORT], schema, path, broken.why)
    return len(found)


def _print(found: SchemaVersion) -> None:
    rivals = f"  {found.rivals} rivals" if found.rivals else ""
    threads = f"  for {found.threads}" if found.threads else ""
    line(f"{found.name} version {found.version}  {found.time:%Y-%m-%d %H:%M:%S}Z{threads}{rivals}")


def _described(found: SchemaVersion) -> dict[str, Any]:
    return {
        "name": found.name,
        "version": found.version,
        "schema": found.json,
        "threads": found.threads,
        "time": found.time.isoformat(),
        "rivals": found.rivals,
    }
