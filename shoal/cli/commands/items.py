"""`shoal items get|put|search|delete|namespaces|index|unindex|indexes`: memory items, their namespaces written with periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.arguments import age_of, fields_of, json_of
from shoal.cli.command import Run, Work, in_store
from shoal.cli.options import PANEL, DryRun, Expect, Limit, Yes
from shoal.cli.output import emit, to_text
from shoal.cli.terminal import Listing, ago, show_value
from shoal.errors import NotFound
from shoal.kinds.items.handle.item import Item

if TYPE_CHECKING:
    from shoal.client.store import Store

Namespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Its labels, joined by periods: memory.user-1", show_default=False)
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="The first label of their namespaces.", show_default=False)]
Fields = Annotated[list[str], typer.Argument(metavar="FIELD...", help="As in a filter: kind, user.age", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]

group = typer.Typer(no_args_is_help=True, help="Read and write memory items: values under namespaces and keys.")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.add_typer(group, name="items", rich_help_panel=PANEL)


@group.command()
@in_store
def get(
    run: Run,
    namespace: Namespace,
    key: Key,
) -> Work:
    """Print an item's value as JSON; with --json also its version and times.

    Example: shoal items get memory.user-1 likes --data ./state
    """

    async def work(store: Store) -> None:
        item = await store.space(run.space).items.get(_labels(namespace), key)
        if item is None:
            raise NotFound(f"there is no item {key!r} in {namespace!r} of space {run.space!r}, or it has expired.")
        emit(_described(item)) if run.json else show_value(item.value)

    return work


@group.command()
@in_store
def put(
    run: Run,
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value, as JSON. - is standard input.", show_default=False)],
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="AGE", help="Expire after this time: 30d, 12h, 90m or 45s.")
    ] = None,
    expect: Expect = None,
    vector: Annotated[
        str | None, typer.Option("--vector", metavar="JSON", help="A vector for searches: a list of numbers.")
    ] = None,
) -> Work:
    """Put an item, and print its version.

    Example: shoal items put memory.user-1 likes '{"colour": "blue"}' --url http://127.0.0.1:7400
    """
    vectors = [] if vector is None else [json_of(vector, "--vector")]
    lives = None if ttl is None else age_of(ttl)
    value = json_of(value, "the value")

    async def work(store: Store) -> None:
        items = store.space(run.space).items
        version = await items.put(_labels(namespace), key, value, ttl=lives, expect=expect, vectors=vectors)
        run.show({"version": version}, version)

    return work


@group.command()
@in_store
def delete(
    run: Run,
    namespace: Namespace,
    key: Key,
    expect: Expect = None,
) -> Work:
    """Delete an item.

    Example: shoal items delete memory.user-1 likes --data ./state
    """

    async def work(store: Store) -> None:
        deleted = await store.space(run.space).items.delete(_labels(namespace), key, expect=expect)
        run.show({"deleted": deleted}, "deleted" if deleted else "there was none")

    return work


@group.command("delete-all")
@in_store
def delete_all(
    run: Run,
    namespace: Namespace,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> Work:
    """Delete all items of a namespace and those below it, and print their number. This cannot be undone.

    Example: shoal items delete-all memory.user-1 --yes --data ./state
    """
    if not yes and not dry_run:
        typer.confirm(f"Delete all items of {namespace} in space {run.space} on every node, for good?", abort=True, err=True)

    async def work(store: Store) -> None:
        items = store.space(run.space).items
        if dry_run:
            would = len([item async for item in items.scan(_labels(namespace))])
            run.show({"deleted": would}, str(would))
            return
        deleted = await items.delete_all(_labels(namespace))
        run.show({"deleted": deleted}, str(deleted))

    return work


@group.command()
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


@group.command()
@in_store
def index(
    run: Run,
    label: Label,
    fields: Fields,
) -> Work:
    """Index fields of all items below a first label.

    Example: shoal items index memory kind user.age --data ./state
    """

    async def work(store: Store) -> None:
        changed = await store.space(run.space).items.index((label,), *fields)
        run.show({"changed": changed}, ", ".join(changed) or "they were indexed already")

    return work


@group.command()
@in_store
def unindex(
    run: Run,
    label: Label,
    fields: Fields,
) -> Work:
    """Drop the indexes of fields.

    Example: shoal items unindex memory kind --data ./state
    """

    async def work(store: Store) -> None:
        changed = await store.space(run.space).items.unindex((label,), *fields)
        run.show({"changed": changed}, ", ".join(changed) or "they were not indexed")

    return work


@group.command()
@in_store
def indexes(
    run: Run,
    label: Label,
) -> Work:
    """List the indexed fields.

    Example: shoal items indexes memory --data ./state
    """

    async def work(store: Store) -> None:
        found = await store.space(run.space).items.indexes((label,))
        with Listing(
            "field", "state", json=run.json, none=f"no fields below {label!r} are indexed in space {run.space!r}."
        ) as rows:
            for field, built in found.items():
                state = "built" if built else "being built"
                rows.add({"field": field, "built": built}, f"{field}  {state}", field, state)

    return work


@group.command()
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
