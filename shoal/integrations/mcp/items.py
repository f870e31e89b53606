"""The tools of memory items: values under namespaces and keys, which an agent remembers across threads."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from shoal import values
from shoal.integrations.mcp.views import Answer, Arguments, Call, Limit, Writing, reads, writes
from shoal.kinds.items.handle.item import Item

Namespace = Annotated[list[str], Meta(min_length=1, description='Labels, the general one first: ["memory", "user-1"].')]
Key = Annotated[str, Meta(description="The item's key in its namespace.")]
Expect = Annotated[str | None, Meta(description='Only if this is its `version`; "" if it must not exist.')]


class PutItem(Writing):
    """An item."""

    namespace: Namespace
    key: Key
    value: Annotated[Any, Meta(description="What to remember: any JSON.")]
    ttl_s: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="It expires after so many seconds; left out: never.")
    ] = None
    expect_version: Expect = None


@writes(destructive=True)
async def put_item(call: Call, given: PutItem) -> Answer:
    """Remember a value under a namespace and a key, in place of the one that was there."""
    version = await call.space.items.put(
        given.namespace,
        given.key,
        values.from_json(given.value),
        ttl=given.ttl_s,
        expect=given.expect_version,
        idempotency_key=call.key,
    )
    return {"version": version}


class GetItem(Arguments):
    """Which item."""

    namespace: Namespace
    key: Key


@reads
async def get_item(call: Call, given: GetItem) -> Answer:
    """Get one remembered item; `item` is null if there is none."""
    found = await call.space.items.get(given.namespace, given.key)
    return {"item": None if found is None else _shown(found)}


class SearchItems(Arguments):
    """Which items."""

    namespace: Annotated[list[str], Meta(description="Labels: items there and below; left out: all.")] = field(
        default_factory=list
    )
    filter: Annotated[
        dict[str, Any], Meta(description='Fields that must match: {"user.age": {"$gte": 18}}; $eq $ne $gt $gte $lt $lte.')
    ] = field(default_factory=dict)
    limit: Limit = 50
    offset: Annotated[int, Meta(ge=0, description="Leave out so many.")] = 0


@reads
async def search_items(call: Call, given: SearchItems) -> Answer:
    """List remembered items of a namespace, all or those whose fields match a filter."""
    found = await call.space.items.search(
        given.namespace,
        filter=values.from_json(given.filter) or None,
        limit=given.limit,
        offset=given.offset,
    )
    return {"items": [_shown(each) for each in found]}


class DeleteItem(Writing):
    """Which item."""

    namespace: Namespace
    key: Key
    expect_version: Expect = None


@writes(destructive=True)
async def delete_item(call: Call, given: DeleteItem) -> Answer:
    """Forget an item. It is no error if there is none."""
    deleted = await call.space.items.delete(
        given.namespace,
        given.key,
        expect=given.expect_version,
        idempotency_key=call.key,
    )
    return {"deleted": deleted}


TOOLS = (put_item, get_item, search_items, delete_item)


def _shown(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": values.to_json(item.value),
        "version": item.version,
        "updated": item.updated.isoformat(),
    }
