"""`shoal items get|put|search|delete|namespaces|index|unindex|indexes`: memory items, their namespaces written with periods."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from shoal.cli.arguments import age_of, fields_of, json_of
from shoal.cli.execution import execute
from shoal.cli.options import PANEL, Expect, Limit
from shoal.cli.output import emit, line, to_text
from shoal.cli.target import Data, Json, SpaceName, Target, Url, chosen, opened
from shoal.cli.terminal import Listing, ago, show_value
from shoal.client.items.item import Item
from shoal.errors import NotFound

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
def get(
    namespace: Namespace, key: Key, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False
) -> None:
    """Print an item's value as JSON; with --json also its version and times.

    Example: shoal items get memory.user-1 likes --data ./state
    """
    execute(_get(chosen(data, url, environment=os.environ), space, namespace, key, json=json))


async def _get(target: Target, space: str, namespace: str, key: str, *, json: bool) -> None:
    async with opened(target) as store:
        item = await store.space(space).items.get(_labels(namespace), key)
        if item is None:
            raise NotFound(f"there is no item {key!r} in {namespace!r} of space {space!r}, or it has expired.")
        emit(_described(item)) if json else show_value(item.value)


@group.command()
def put(
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
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Put an item, and print its version.

    Example: shoal items put memory.user-1 likes '{"colour": "blue"}' --url http://127.0.0.1:7400
    """
    target = chosen(data, url, environment=os.environ)
    vectors = [] if vector is None else [json_of(vector, "--vector")]
    lives = None if ttl is None else age_of(ttl)
    execute(_put(target, space, namespace, key, json_of(value, "the value"), lives, expect, vectors, json=json))


async def _put(
    target: Target,
    space: str,
    namespace: str,
    key: str,
    value: Any,
    ttl: timedelta | None,
    expect: str | None,
    vectors: list[Any],
    *,
    json: bool,
) -> None:
    async with opened(target) as store:
        items = store.space(space).items
        version = await items.put(_labels(namespace), key, value, ttl=ttl, expect=expect, vectors=vectors)
        emit({"version": version}) if json else line(version)


@group.command()
def delete(
    namespace: Namespace,
    key: Key,
    expect: Expect = None,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Delete an item.

    Example: shoal items delete memory.user-1 likes --data ./state
    """
    execute(_delete(chosen(data, url, environment=os.environ), space, namespace, key, expect, json=json))


async def _delete(target: Target, space: str, namespace: str, key: str, expect: str | None, *, json: bool) -> None:
    async with opened(target) as store:
        deleted = await store.space(space).items.delete(_labels(namespace), key, expect=expect)
        emit({"deleted": deleted}) if json else line("deleted" if deleted else "there was none")


@group.command()
def search(
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
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List items of a namespace and those below it.

    Example: shoal items search memory --filter colour=blue --filter '{"age": {"$gte": 18}}' --data ./state
    """
    wanted = fields_of(filter) if filter else None
    target = chosen(data, url, environment=os.environ)
    if explain:
        execute(_explain(target, space, namespace, wanted, limit, json=json))
    else:
        nearest = None if vector is None else json_of(vector, "--vector")
        execute(_search(target, space, namespace, wanted, nearest, suffix, limit, json=json))


async def _explain(target: Target, space: str, namespace: str, filter: Any, limit: int, *, json: bool) -> None:
    async with opened(target) as store:
        found = await store.space(space).items.explain(_labels(namespace), filter=filter, limit=limit)
        how = found.how if found.field is None else f"{found.how} of the index of {found.field}"
        emit(asdict(found)) if json else line(f"{how}: {found.index_rows} index rows, {found.item_rows} items")


async def _search(
    target: Target, space: str, namespace: str, filter: Any, vector: Any, suffix: str, limit: int, *, json: bool
) -> None:
    async with opened(target) as store:
        items = store.space(space).items
        ending = _labels(suffix)
        found = await items.search(_labels(namespace), filter=filter, vector=vector, suffix=ending, limit=limit)
    with Listing("namespace", "key", "value", "updated", json=json, none=f"no such items in space {space!r}.") as rows:
        for item in found:
            place, value = ".".join(item.namespace), to_text(item.value)
            rows.add(_described(item), f"{place}  {item.key}  {value}", place, item.key, value, ago(item.updated))


@group.command()
def index(
    label: Label,
    fields: Fields,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Index fields of all items below a first label.

    Example: shoal items index memory kind user.age --data ./state
    """
    execute(_index(chosen(data, url, environment=os.environ), space, label, fields, json=json))


async def _index(target: Target, space: str, label: str, fields: list[str], *, json: bool) -> None:
    async with opened(target) as store:
        changed = await store.space(space).items.index((label,), *fields)
        emit({"changed": changed}) if json else line(", ".join(changed) or "they were indexed already")


@group.command()
def unindex(
    label: Label,
    fields: Fields,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """Drop the indexes of fields.

    Example: shoal items unindex memory kind --data ./state
    """
    execute(_unindex(chosen(data, url, environment=os.environ), space, label, fields, json=json))


async def _unindex(target: Target, space: str, label: str, fields: list[str], *, json: bool) -> None:
    async with opened(target) as store:
        changed = await store.space(space).items.unindex((label,), *fields)
        emit({"changed": changed}) if json else line(", ".join(changed) or "they were not indexed")


@group.command()
def indexes(label: Label, data: Data = None, url: Url = None, space: SpaceName = "default", json: Json = False) -> None:
    """List the indexed fields.

    Example: shoal items indexes memory --data ./state
    """
    execute(_indexes(chosen(data, url, environment=os.environ), space, label, json=json))


async def _indexes(target: Target, space: str, label: str, *, json: bool) -> None:
    async with opened(target) as store:
        found = await store.space(space).items.indexes((label,))
    with Listing("field", "state", json=json, none=f"no fields below {label!r} are indexed in space {space!r}.") as rows:
        for field, built in found.items():
            state = "built" if built else "being built"
            rows.add({"field": field, "built": built}, f"{field}  {state}", field, state)


@group.command()
def namespaces(
    prefix: Annotated[
        str, typer.Argument(metavar="[PREFIX]", help="Labels joined by periods; * is any label.", show_default=False)
    ] = "",
    depth: Annotated[int | None, typer.Option("--depth", min=1, metavar="N", help="Cut namespaces to so many labels.")] = None,
    limit: Limit = 100,
    data: Data = None,
    url: Url = None,
    space: SpaceName = "default",
    json: Json = False,
) -> None:
    """List namespaces that hold items.

    Example: shoal items namespaces memory --depth 2 --data ./state
    """
    execute(_namespaces(chosen(data, url, environment=os.environ), space, prefix, depth, limit, json=json))


async def _namespaces(target: Target, space: str, prefix: str, depth: int | None, limit: int, *, json: bool) -> None:
    async with opened(target) as store:
        found = await store.space(space).items.namespaces(prefix=_labels(prefix), max_depth=depth, limit=limit)
    with Listing("namespace", json=json, none=f"no such namespaces in space {space!r}.") as rows:
        for labels in found:
            rows.add(list(labels), ".".join(labels), ".".join(labels))


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
