"""The objects that a space's agents share, and the parts of threads: derived commands, and beside them what is edited in place,
followed, or found by conditions: `doc get|edit|watch`, `items search|namespaces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal import values
from shoal.cli.arguments import PANEL, By, Limit, LimitOrAll, Run, Work, fields_of, file_text, in_store, json_of, json_of_file
from shoal.cli.derived import add_commands, derived_commands, group_of
from shoal.cli.finding import check_there
from shoal.cli.output import Listing, ago, emit, show_value, to_text
from shoal.kinds import KINDS
from shoal.protocol import requests

if TYPE_CHECKING:
    from shoal.client.store import Store
    from shoal.kinds.document.handle.changes import DocumentChange
    from shoal.kinds.items.handle.item import Item

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    add_commands(app, "labels", "unlabel", "append", "event", "consumers", "trim", "retain", "retained", "inbox")
    add_commands(app, "steps", "step", "pause", "approve", "prune", "delete", "spaces", "summaries", "work", "search")
    documents = group_of("doc")
    for command in (get, edit, watch):
        documents.command()(command)
    app.add_typer(documents, name="doc", rich_help_panel=PANEL)
    groups = {cli.command.partition(" ")[0] for _, cli in derived_commands()}
    add_commands(app, *(kind for kind in KINDS if kind in groups - {"items", "schema"}))
    items = group_of("items")
    for command in (search, namespaces):
        items.command()(command)
    app.add_typer(items, name="items", rich_help_panel=PANEL)
    add_commands(app, "schema")


@in_store
def get(run: Run, name: Name) -> Work:
    """Print a document as JSON.

    Example: shoal doc get plan --data ./state --space crew
    """

    async def work(store: Store) -> None:
        await check_there(store, run.space, "document", name)
        reply = await store.connection.read(requests.ReadDocumentJson(run.space, name))
        content = values.from_json(loads(reply.json))
        emit(content) if run.json else show_value(content)

    return work


@in_store
def edit(
    run: Run,
    name: Name,
    source: Annotated[Path, typer.Argument(metavar="FILE", help="JSON; - is standard input.", show_default=False)],
    patch: Annotated[bool, typer.Option("--patch", help="FILE is a JSON Patch (RFC 6902).")] = False,
    by: By = "",
) -> Work:
    """Edit a document in place until it equals FILE, with small changes, and print it. --patch only changes the named places.

    Example: shoal doc edit plan plan.json --url http://127.0.0.1:7400
    """
    given: Any = file_text(source) if patch else json_of_file(source)

    async def work(store: Store) -> None:
        if patch:
            request = requests.Patch(run.space, name, given.encode(), by)
            reply = await store.connection.write(request, key=None, durability=None)
            content = values.from_json(loads(reply.json))
        else:
            async with await store.space(run.space).document(name, author=by) as document:
                document.replace(given)
                await document.flush()
                content = document.to_py()
        emit(content) if run.json else show_value(content)

    return work


@in_store
def watch(
    run: Run,
    name: Name,
    limit: LimitOrAll = None,
) -> Work:
    """Print the changes of a document and their authors from now on, until Ctrl-C.

    Example: shoal doc watch plan --url http://127.0.0.1:7400
    """

    async def work(store: Store) -> None:
        async with await store.space(run.space).document(name) as document:
            shown = 0
            async for change in document.changes():
                run.show({**asdict(change), "path": list(change.path)}, _told(change))
                shown += 1
                if shown == limit:
                    return

    return work


def _told(change: DocumentChange) -> str:
    told = {"delete": [change.old], "set": [change.old, change.new], "conflict": [change.old, change.new]}
    what = " → ".join(map(to_text, told.get(change.kind, [change.new])))
    lost = f" (lost: {change.lost_by})" if change.lost_by else ""
    return f"{change.kind} /{'/'.join(map(str, change.path))}  {what}  {change.author}{lost}".rstrip()


@in_store
def search(
    run: Run,
    namespace: Annotated[
        str, typer.Argument(metavar="[NAMESPACE]", help="Its labels, joined by periods; by default all.", show_default=False)
    ] = "",
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="KEY=VALUE|JSON", help="Only those with these fields and values; may be repeated."),
    ] = None,
    limit: Limit = 100,
    vector: Annotated[
        str | None,
        typer.Option("--vector", metavar="JSON", help="A vector, as a list of numbers: list the nearest items first."),
    ] = None,
    suffix: Annotated[
        str,
        typer.Option(
            "--suffix", metavar="LABELS", help="Only namespaces that end with these labels; * is any label.", show_default=False
        ),
    ] = "",
    explain: Annotated[bool, typer.Option("--explain", help="Show how they are found instead.")] = False,
) -> Work:
    """List items of a namespace and those below it.

    Example: shoal items search memory --filter colour=blue --filter '{"age": {"$gte": 18}}' --data ./state
    """
    wanted = fields_of(filter) if filter else None
    nearest = None if vector is None or explain else json_of(vector, "--vector")

    async def work(store: Store) -> None:
        items = store.space(run.space).items
        if explain:
            plan = await items.explain(_labels(namespace), filter=wanted, limit=limit)
            how = plan.how if plan.field is None else f"{plan.how} of the index of {plan.field}"
            run.show(asdict(plan), f"{how}: {plan.index_rows} index rows, {plan.item_rows} items")
            return
        ending = _labels(suffix)
        found = await items.search(_labels(namespace), filter=wanted, vector=nearest, suffix=ending, limit=limit)
        none = f"no such items in space {run.space!r}."
        with Listing("namespace", "key", "value", "updated", json=run.json, none=none) as rows:
            for item in found:
                place, value = ".".join(item.namespace), to_text(item.value)
                rows.add(_described(item), f"{place}  {item.key}  {value}", place, item.key, value, ago(item.updated))

    return work


@in_store
def namespaces(
    run: Run,
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Labels joined by periods; * is any label.", show_default=False)
    ] = "",
    depth: Annotated[int | None, typer.Option("--depth", min=1, metavar="N", help="Cut namespaces to so many labels.")] = None,
    limit: Limit = 100,
) -> Work:
    """List namespaces that hold items.

    Example: shoal items namespaces memory --depth 2 --data ./state
    """

    async def work(store: Store) -> None:
        found = await store.space(run.space).items.namespaces(prefix=_labels(prefix), max_depth=depth, limit=limit)
        with Listing("namespace", json=run.json, none=f"no such namespaces in space {run.space!r}.") as rows:
            for labels in found:
                rows.add(list(labels), ".".join(labels), ".".join(labels))

    return work


def _labels(namespace: str) -> Sequence[str]:
    return tuple(namespace.split(".")) if namespace else ()


def _described(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "version": item.version,
        "created": item.created.isoformat(),
        "updated": item.updated.isoformat(),
        "expires": None if item.expires is None else item.expires.isoformat(),
        "siblings": item.siblings,
        **({} if item.score is None else {"score": item.score}),
    }
