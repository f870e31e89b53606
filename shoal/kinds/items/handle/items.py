"""The handle of memory items: values under a namespace and a key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import msgspec

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.client.watching import pushed
from shoal.errors import InvalidInput, SlowConsumer
from shoal.kinds.items.handle.item import (
    Embed,
    Embedding,
    Explanation,
    Item,
    ItemChange,
    Namespace,
    delete_request,
    matching,
    only,
    packed_filter,
    put_request,
    shown,
    split,
)
from shoal.kinds.items.state import split_address
from shoal.names import check_label, check_name
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.raising import partly
from shoal.values.forms import pack
from shoal.workflows.connection import moment


@named
class Items:
    """All items of a space. Those whose namespaces begin with the same label are one object, in one partition."""

    def __init__(self, connection: StoreConnection, space: str, embedding: Embedding | None = None) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self._embedding = embedding

    def __repr__(self) -> str:
        return f"Items({self.space!r})"

    def embedded(self, embed: Embed, *, fields: Sequence[str] | None = None) -> Items:
        """A handle that finds items by meaning: it embeds the values that it puts, and its `search` takes a `query`.

        `embed` turns texts into vectors of one length; it may be a coroutine function. `fields` name the texts of a value
        (`"user.about"` for a nested field), each of which gets a vector; without them the whole value is one text.
        """
        return Items(self._connection, self.space, Embedding(embed, fields))

    async def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: timedelta | float | None = None,
        expect: str | None = None,
        vectors: Sequence[Sequence[float]] | None = None,
        idempotency_key: str | None = None,
        durability: Durability | None = None,
    ) -> str:
        """Put `value`, replacing the values that the node shows, and return the item's version.

        After `ttl` it expires. `expect` is the version that it must have, NO_ITEM if it must not exist. The serving
        node decides: two nodes that cannot reach each other can both accept, and then both values stay.
        `search(vector=)` compares `vectors`; without them a handle that embeds makes its own.

        Raises:
            InvalidName, InvalidValue, InvalidInput, TooLarge: a label, the key, the value or `ttl` is not legal.
            ItemChanged: it has another version; nothing was written.
        """
        if vectors is None:
            vectors = await self._embedding.of_value(value) if self._embedding is not None else ()
        request = put_request(self.space, namespace, key, value, ttl=ttl, expect=expect, vectors=vectors)
        reply = await self._connection.write(request, key=idempotency_key, durability=durability)
        return reply.version

    async def get(self, namespace: Sequence[str], key: str, *, stale: bool = False) -> Item | None:
        """The item, or None if it does not exist or has expired. `stale`: see `Store`."""
        return (await self.get_many([(namespace, key)], stale=stale))[0]

    async def get_many(self, names: Sequence[tuple[Sequence[str], str]], *, stale: bool = False) -> list[Item | None]:
        """The items of several namespaces and keys, in their order; one request for each first label."""
        by_label: dict[str, list[int]] = {}
        for at, (namespace, _) in enumerate(names):
            by_label.setdefault(split(namespace)[0], []).append(at)
        found: list[Item | None] = [None] * len(names)
        for label, places in by_label.items():
            while places:
                asked = places[: self._connection.config.page_items_max]
                paths = [(list(names[at][0])[1:], names[at][1]) for at in asked]
                reply = await self._connection.read(requests.GetItems(self.space, label, paths), stale=stale)
                for at, item in zip(asked, reply.items, strict=False):
                    found[at] = None if item is None else shown(item)
                places = places[len(reply.items) :]
        return found

    async def delete(
        self,
        namespace: Sequence[str],
        key: str,
        *,
        expect: str | None = None,
        idempotency_key: str | None = None,
        durability: Durability | None = None,
    ) -> bool:
        """Delete the item's values on the node; False if there were none. Concurrently put values stay.

        Raises:
            ItemChanged: it has another version than `expect`; nothing was written.
        """
        request = delete_request(self.space, namespace, key, expect=expect)
        reply = await self._connection.write(request, key=idempotency_key, durability=durability)
        return reply.deleted

    async def delete_all(self, namespace: Sequence[str], *, durability: Durability | None = None) -> int:
        """Delete all items of a namespace and those below it, and return how many there were.

        Of a namespace with several labels, the items that the node shows are deleted, some at a time: items that are put
        meanwhile stay. With the first label alone, all its items are deleted as one, with their indexes: an item
        that is put without knowing of the deletion is deleted too, even if it arrives later.

        Raises:
            OutcomeUnknown: some items are deleted; delete again to delete the rest.
        """
        label, rest = split(namespace)
        request = requests.DeleteItems(self.space, label, rest)
        return (await self._connection.write(request, key=None, durability=durability)).deleted

    async def search(
        self,
        namespace: Sequence[str] = (),
        *,
        filter: Mapping[str, Any] | None = None,
        query: str | None = None,
        vector: Sequence[float] | None = None,
        prefix: Sequence[str] | None = None,
        suffix: Sequence[str] | None = None,
        limit: int = 100,
        offset: int = 0,
        stale: bool = False,
    ) -> list[Item]:
        """Items of a namespace and those below it (of all, if it is empty), in the order of (namespace, key).

        `prefix` and `suffix`: only items whose namespace begins, or ends, with these labels; `"*"` is any label.

        `filter` maps fields of the value (`"user.age"` for a nested field) to a value that they must equal, or to
        operators: `{"age": {"$gte": 18, "$ne": 21}}`, of `$eq $ne $gt $gte $lt $lte`. A missing field counts as None.

        With a `vector`, or with a `query` that a handle with an embedding turns into one, the items with vectors of its
        length are ranked by the cosine, the nearest first, each with its `score`.

        Raises:
            InvalidInput: the filter or a bound is not legal, or there is a `query` and this handle does not embed.
            Unsupported: the node lacks NumPy, which it needs to compare vectors.
        """
        if limit < 0 or offset < 0:
            raise InvalidInput(f"limit and offset must be at least 0; got {limit} and {offset}.")
        if query is not None and vector is None:
            if self._embedding is None:
                raise InvalidInput(
                    "a text query needs an embedding, and these items have none: use "
                    "`items.embedded(embed).search(…, query=…)`, or give the `vector`."
                )
            vector = await self._embedding.of_query(query)
        if vector is not None:
            ranking = requests.RankItems(
                self.space, "", [], pack(vector), packed_filter(filter), matches=matching(prefix, suffix)
            )
            return await self._nearest(namespace, ranking, skip=offset, limit=limit, stale=stale)
        found = self._found(namespace, filter, matching(prefix, suffix), skip=offset, stale=stale, page=limit)
        items: list[Item] = []
        if limit:
            async for item in found:
                items.append(item)
                if len(items) == limit:
                    break
            await found.aclose()
        return items

    async def _nearest(
        self, namespace: Sequence[str], ranking: requests.RankItems, *, skip: int, limit: int, stale: bool
    ) -> list[Item]:
        found: list[Item] = []
        async for label, rest in self._roots(namespace):
            own: list[Item] = []
            more = limit > 0
            while more and len(own) < skip + limit:
                left = min(skip + limit - len(own), self._connection.config.page_items_max)
                request = msgspec.structs.replace(ranking, items=label, rest=rest, limit=left, skip=len(own))
                reply = await self._connection.read(request, stale=stale)
                own += [shown(ranked.item, ranked.score) for ranked in reply.items]
                more = reply.more or len(reply.items) == left
            found += own
        found.sort(key=lambda item: (-(item.score or 0.0), item.namespace, item.key))
        return found[skip : skip + limit]

    def scan(
        self,
        namespace: Sequence[str] = (),
        *,
        filter: Mapping[str, Any] | None = None,
        prefix: Sequence[str] | None = None,
        suffix: Sequence[str] | None = None,
        stale: bool = False,
    ) -> AsyncGenerator[Item, None]:
        """Yield all items that `search` would find, page by page."""
        return self._found(namespace, filter, matching(prefix, suffix), skip=0, stale=stale, page=1000)

    async def explain(
        self, namespace: Sequence[str], *, filter: Mapping[str, Any] | None = None, limit: int = 100, stale: bool = False
    ) -> Explanation:
        """How `search` finds these items on the serving node. If one page was scanned, the answer is a scan."""
        if limit < 1:
            raise InvalidInput(f"limit must be at least 1; got {limit}.")
        label, rest = split(namespace)
        packed, left, cursor, more = packed_filter(filter), limit, b"", True
        plans: list[requests.SearchPlan] = []
        while more and left > 0:
            request = requests.SearchItems(self.space, label, rest, packed, left, 0, cursor, explain=True)
            reply = await self._connection.read(request, stale=stale)
            assert reply.plan is not None
            plans.append(reply.plan)
            left, cursor, more = left - len(reply.items), reply.cursor, reply.more
        worst = next((plan for plan in plans if plan.how == "scan"), plans[-1])
        index_rows, item_rows = sum(plan.index_rows for plan in plans), sum(plan.item_rows for plan in plans)
        return Explanation(worst.how, worst.field or None, index_rows, item_rows)

    async def _found(
        self,
        namespace: Sequence[str],
        filter: Mapping[str, Any] | None,
        matches: list[tuple[requests.Match, list[str]]],
        *,
        skip: int,
        stale: bool,
        page: int,
    ) -> AsyncGenerator[Item, None]:
        packed = packed_filter(filter)
        async for label, rest in self._roots(namespace):
            cursor, more = b"", True
            while more:
                request = requests.SearchItems(self.space, label, rest, packed, page, skip, cursor, matches=matches)
                reply = await self._connection.read(request, stale=stale)
                for item in reply.items:
                    yield shown(item)
                skip, cursor, more = skip - reply.skipped, reply.cursor, reply.more

    async def namespaces(
        self,
        *,
        prefix: Sequence[str] | None = None,
        suffix: Sequence[str] | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
        stale: bool = False,
    ) -> list[Namespace]:
        """Namespaces that hold items, in order, cut at `max_depth`. `"*"` in `prefix` or `suffix` is any label."""
        return await self.matching(matching(prefix, suffix), max_depth=max_depth, limit=limit, offset=offset, stale=stale)

    async def matching(
        self,
        matches: Sequence[tuple[requests.Match, Sequence[str]]],
        *,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
        stale: bool = False,
    ) -> list[Namespace]:
        """As `namespaces`, for any number of prefixes and suffixes, all of which must match."""
        if limit < 0 or offset < 0:
            raise InvalidInput(f"limit and offset must be at least 0; got {limit} and {offset}.")
        found: list[Namespace] = []
        firsts = {labels[0] for match, labels in matches if match == "prefix" and labels and labels[0] != "*"}
        if len(firsts) > 1 or limit == 0:
            return []
        async for label, _ in self._roots(tuple(firsts)):
            cursor, more = b"", True
            while more:
                request = requests.ListNamespaces(
                    self.space,
                    label,
                    [(match, list(labels)) for match, labels in matches],
                    max_depth,
                    limit + offset - len(found),
                    cursor,
                )
                reply = await self._connection.read(request, stale=stale)
                found += map(tuple, reply.namespaces)
                if len(found) >= limit + offset:
                    return found[offset : offset + limit]
                cursor, more = reply.cursor, reply.more
        return found[offset:]

    async def refresh(self, namespace: Sequence[str], keys: Sequence[str], *, durability: Durability | None = None) -> int:
        """Restart the time to live of these items, and return how many expiries moved."""
        label, rest = split(namespace)
        refreshed, page = 0, self._connection.config.page_items_max
        for start in range(0, len(keys), page):
            request = requests.RefreshItems(self.space, label, [(rest, key) for key in keys[start : start + page]])
            with partly(start, f"{refreshed} items are refreshed", "Refresh them again."):
                reply = await self._connection.write(request, key=None, durability=durability)
            refreshed += reply.refreshed
        return refreshed

    async def sweep(self, label: str) -> int:
        """Erase the items below a first label that expired more than `item_expiry_grace_s` ago, and return how many.

        Puts below the label also do this, a few items at a time.
        """
        erased, more = 0, True
        while more:
            with partly(erased, f"{erased} items are erased", "Sweep again to erase the rest."):
                reply = await self._connection.write(requests.SweepItems(self.space, label), key=None, durability=None)
            erased, more = erased + reply.erased, reply.more
        return erased

    async def index(self, namespace: Sequence[str], *fields: str, durability: Durability | None = None) -> list[str]:
        """Index `fields` of all items below a first label, and return the fields that were not indexed before.

        A field is named as in a filter (`"user.age"` for a nested field). Every node builds the index from the items
        that it holds, in the background. A search whose filter bounds the field by a number or a text then reads only
        the items that the index lists. `namespace` is the first label alone.

        Raises:
            InvalidInput: the namespace has more than one label.
            TooLarge: the maximum number of fields is indexed.
        """
        request = requests.IndexItems(self.space, only(namespace), list(fields))
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.changed

    async def unindex(self, namespace: Sequence[str], *fields: str, durability: Durability | None = None) -> list[str]:
        """Drop the indexes of `fields` on every node, and return those that existed."""
        request = requests.UnindexItems(self.space, only(namespace), list(fields))
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.changed

    async def indexes(self, namespace: Sequence[str], *, stale: bool = False) -> dict[str, bool]:
        """The indexed fields, and whether the serving node has built each index."""
        reply = await self._connection.read(requests.ListItemIndexes(self.space, only(namespace)), stale=stale)
        return {index.field: index.built for index in reply.indexes}

    async def watch(
        self,
        namespace: Sequence[str] = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[ItemChange, None]:
        """Yield every durable put and delete in a namespace and those below it once, from now on.
        Expiry is not reported. If all items below a first label are deleted at once, one change says so: `what` is
        "delete", its namespace is the label, and its key is empty.

        After a disconnect it continues by itself, with another node if there is one. With a `timeout` it ends when
        nothing has come for so many seconds. To stop early, close it (`contextlib.aclosing`), which ends its
        subscription at once.

        Raises:
            SlowConsumer: too many changes waited; search, then watch again.
            Disconnected: no node could be reached for `request_timeout_s`; search, then watch again.
        """
        wanted = tuple(map(check_label, namespace))
        watch = requests.Watch(self.space, "items", wanted[0] if wanted else "")

        def is_about(change: requests.Change) -> bool:
            if change.what == "delete":
                return change.name == watch.prefix or not wanted
            return bool(change.id) and split_address(change.id)[0][: len(wanted)] == wanted

        async with aclosing(pushed(self._connection, watch, is_about=is_about, timeout=timeout)) as pushes:
            async for push, _ in pushes:
                if isinstance(push, requests.Reset):
                    raise SlowConsumer(f"some changes cannot be delivered: {push.reason}. Search again, then watch again.")
                changed, key = split_address(push.id) if push.id else ((push.name,), "")
                yield ItemChange(changed, key, push.what, moment(push.wall_ms))

    async def _roots(self, namespace: Sequence[str]) -> AsyncIterator[tuple[str, list[str]]]:
        """The first label and the rest of a namespace; for the empty namespace, of all that exist."""
        if namespace:
            yield split(namespace)
            return
        after: str | None = None
        while True:
            page = await self._connection.read(requests.ListObjects(self.space, "items", after=after))
            for name in page.names:
                yield name, []
            if not page.more:
                return
            after = page.names[-1]
