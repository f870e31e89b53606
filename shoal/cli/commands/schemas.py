"""`shoal schema`: the JSON Schemas that the nodes of a space enforce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.absence import check_thread, print_names
from shoal.cli.arguments import json_of_file
from shoal.cli.command import Run, Work, in_store
from shoal.cli.derived import add_derived
from shoal.cli.ids import SHORT
from shoal.cli.options import PANEL, ThreadName
from shoal.cli.output import emit, line
from shoal.cli.terminal import Listing, show_value
from shoal.kinds.schema.handle import SchemaVersion

if TYPE_CHECKING:
    from shoal.client.store import Store

SchemaName = Annotated[str, typer.Argument(metavar="NAME", help="The schema's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help="Read and put the JSON Schemas that nodes enforce.")
    group.command("put")(put)
    group.command("show")(show)
    group.command("list")(list_)
    group.command("check")(check)
    add_derived(group, "schema")
    app.add_typer(group, name="schema", rich_help_panel=PANEL)


@in_store
def put(
    run: Run,
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
) -> Work:
    """Put a version of a schema: from now on nodes reject states that violate it.

    Example: shoal schema put plan plan.json --version 1 --threads 'planner-*' --url http://n1:7400 --space crew
    """
    schema = json_of_file(file, tagged=False)

    async def work(store: Store) -> None:
        found = await store.space(run.space).schemas.put(name, version, schema, threads=threads)
        emit(_described(found)) if run.json else _print(found)

    return work


@in_store
def show(
    run: Run,
    name: SchemaName,
) -> Work:
    """Print all versions of a schema, oldest first.

    Example: shoal schema show plan --data ./state --space crew
    """

    async def work(store: Store) -> None:
        for found in await store.space(run.space).schemas.versions(name):
            if run.json:
                emit(_described(found))
            else:
                _print(found)
                show_value(found.json)

    return work


@in_store
def list_(
    run: Run,
) -> Work:
    """List a space's schemas, one name per line.

    Example: shoal schema list --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await print_names(store.space(run.space).schemas.list(), store, run.space, what="schemas", json=run.json)

    return work


@in_store
def check(run: Run, thread: ThreadName) -> Work:
    """List violations of schemas by the heads of a thread; if there are any, the exit code is 1.

    Example: shoal schema check planner-1 --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_thread(store, run.space, thread)
        found = await store.space(run.space).thread(thread).violations()
        headings = ("branch", "checkpoint", "schema", "path", "why")
        with Listing(*headings, json=run.json, none=f"the heads of thread {thread!r} break no schema.") as rows:
            for broken in found:
                fields = {field: getattr(broken, field) for field in broken.__struct_fields__}
                schema, path = f"{broken.schema} version {broken.version}", broken.path or "/"
                text = f"{broken.branch} {broken.checkpoint}  {schema}  {path}: {broken.why}"
                rows.add(fields, text, broken.branch, broken.checkpoint[:SHORT], schema, path, broken.why)
        if found:
            raise typer.Exit(1)

    return work


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
