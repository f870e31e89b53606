"""Memory items over storage: writes, reads by name, lists of namespaces, and the sweep of expired items.

Laws:
- A write replaces the entries that this replica shows, and names them in its change.
- A page of namespaces reads a bounded number of rows and bytes, and says where the next page begins.
- This node's clock decides whether an item is expired. Only a sweep erases it,
  `item_expiry_grace_s` later. A put that finds expired items requests a sweep (`chores`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from shoal import values
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, ItemChanged, TooLarge
from shoal.kinds.items import state as items
from shoal.kinds.items.state import NEVER
from shoal.names import check_label, check_name
from shoal.node.handler import Checks, Maintainers, Piece, Readers, Upkeep, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size, implied_key
from shoal.protocol import requests
from shoal.protocol.base import FILTER_TERMS_MAX
from shoal.protocol.requests import (
    NO_ITEM,
    DeleteItem,
    DeleteItems,
    DiscardItems,
    EndItems,
    GetItems,
    ItemDeleted,
    ItemPut,
    ItemsDeleted,
    ItemsDiscarded,
    ItemsFound,
    ItemsRefreshed,
    ItemsSwept,
    ListNamespaces,
    Namespaces,
    PutItem,
    RefreshItems,
    SweepItems,
)
from shoal.values import forms as vectors

INDEX_BUILD_ROWS_MAX = 256  # Items processed in one step of building an index.
ITEM_SCAN_ROWS_MAX = 2000  # Items examined for one page of a search, so that it does not delay other work.
ITEM_LABELS_MAX = 32  # Labels in one namespace.
VECTORS_MAX = 16  # Vectors of one item.
ITEMS_EXPIRED_MAX = 64  # Expired items erased by one operation.
ITEMS_DELETED_MAX = 256  # Items deleted by one operation, when all items of a namespace are deleted.

_TTL_MS_MAX = 1000 * 366 * 24 * 3600 * 1000  # A thousand years.
_CHORES_MAX = 256


class Items:
    """The handler of items. `chores` are sweeps that puts found due; the database issues them."""

    def __init__(self, config: Config, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self.chores: deque[SweepItems] = deque(maxlen=_CHORES_MAX)  # A dropped one is noted again by a later put.
        self.checks: Checks = {
            PutItem: self._check_put,
            DeleteItem: self._check_name,
            RefreshItems: self._check_paths,
            SweepItems: self._check_object,
            DeleteItems: self._check_namespace,
            DiscardItems: self._check_namespace,
        }
        self.writers: Writers = {
            PutItem: self._put,
            DeleteItem: self._delete,
            DiscardItems: self._discard,
            RefreshItems: self._refresh,
            SweepItems: self._sweep,
        }
        self.readers: Readers = {GetItems: self._get, ListNamespaces: self._namespaces}
        self.maintenance: Maintainers = {DeleteItems: self._delete_all}

    # ── checks ────────────────────────────────────────────────────────────────

    def _check_object(self, request: SweepItems) -> None:
        check_label(request.items)

    def _check_namespace(self, request: DeleteItems | DiscardItems) -> None:
        check_namespace(request.items, request.rest)

    def _check_name(self, request: PutItem | DeleteItem) -> None:
        check_namespace(request.items, request.rest)
        check_name("key", request.key)

    def _check_put(self, request: PutItem) -> None:
        self._check_name(request)
        values.check(request.value)
        check_size(self._config, len(request.value) + sum(map(len, request.vectors)), "an item")
        if len(request.vectors) > VECTORS_MAX:
            raise TooLarge(
                f"an item has at most {VECTORS_MAX} vectors; this one has {len(request.vectors)}. Nothing was written."
            )
        for vector in request.vectors:
            check_vector(vector)
        if request.ttl_ms is not None and not 1 <= request.ttl_ms <= _TTL_MS_MAX:
            raise InvalidInput(
                f"a time to live must be 1 to {_TTL_MS_MAX} ms; got {request.ttl_ms}. Nothing was written. Use None "
                "for items that never expire."
            )

    def _check_paths(self, request: RefreshItems) -> None:
        if len(request.paths) > self._config.page_items_max:
            raise TooLarge(
                f"one request refreshes at most {self._config.page_items_max} items; this one names {len(request.paths)}. "
                "Nothing was written. Send several requests."
            )
        for rest, key in request.paths:
            check_namespace(request.items, rest)
            check_name("key", key)

    # ── writes ────────────────────────────────────────────────────────────────

    def _put(self, context: WriteContext, request: PutItem) -> ItemPut:
        """Put an item.

        Raises:
            ItemChanged: `expect` is not its version here.
        """
        stamp, rest = context.stamp, tuple(request.rest)
        there = items.find(context.rows, rest, request.key)
        shown = self._shown(there)
        _check_expected(request, shown)
        created_ms = min(entry.created_ms for entry in shown.entries) if shown is not None else stamp.wall_ms
        seen, key = there.seen if there is not None else (), implied_key(context.key, "0")
        if context.imported is not None:  # It was written without knowledge of what is here.
            created_ms, seen = min(request.created_ms or stamp.wall_ms, stamp.wall_ms), ()
            if there is not None and any(entry.request == key for entry in there.entries):
                return ItemPut(there.version)
        ttl_ms = request.ttl_ms or NEVER
        change = items.Put(
            rest,
            request.key,
            request.value,
            seen=seen,
            created_ms=created_ms,
            ttl_ms=ttl_ms,
            expires_ms=stamp.wall_ms + ttl_ms if ttl_ms != NEVER else NEVER,
            # Not the mutation's number, because a later put of the same item in this operation replaces this one.
            request=key,
            vectors=tuple(request.vectors),
        )
        context.apply(change)
        if self._due(context.rows, 1):
            chore = SweepItems(request.space, request.items)
            context.transaction.when_written(lambda: self.chores.append(chore))
        now = items.find(context.rows, rest, request.key)
        assert now is not None
        return ItemPut(now.version)

    def _delete(self, context: WriteContext, request: DeleteItem) -> ItemDeleted:
        """Delete an item. Deleting one that does not exist succeeds.

        Raises:
            ItemChanged: `expect` is not its version here.
        """
        rest = tuple(request.rest)
        there = items.find(context.rows, rest, request.key)
        shown = self._shown(there)
        _check_expected(request, shown)
        if there is None:
            return ItemDeleted(deleted=False)
        change = items.Delete(rest, request.key, there.seen)
        context.apply(change)
        return ItemDeleted(deleted=shown is not None)

    def _delete_all(self, rows: Callable[[], Rows], request: DeleteItems) -> Upkeep:
        """Delete the items of a namespace in pieces; of a first label alone, count them and end the object's generation."""
        deleted, cursor, more = 0, b"", True
        if not request.rest:
            while more:
                count, cursor, more = self._counted(rows(), cursor)
                deleted += count
                yield None
            ended = yield Piece(EndItems(request.space, request.items))
            return ItemsDeleted(deleted if ended.existed else 0)
        while more:
            piece = DiscardItems(request.space, request.items, request.rest, cursor)
            reply = yield Piece(piece, f"{deleted} items are deleted" if deleted else "")
            deleted, cursor, more = deleted + reply.deleted, reply.cursor, reply.more
        return ItemsDeleted(deleted)

    def _counted(self, rows: Rows, after: bytes) -> tuple[int, bytes, bool]:
        """How many of the next items are shown, the path of the last one, and whether there may be more."""
        found = list(islice(items.below(rows, (), after=after), INDEX_BUILD_ROWS_MAX))
        count = sum(self._shown(item) is not None for _, _, item in found)
        return count, found[-1][0] if found else after, len(found) == INDEX_BUILD_ROWS_MAX

    def _discard(self, context: WriteContext, request: DiscardItems) -> ItemsDiscarded:
        bound = ITEMS_DELETED_MAX
        found = list(islice(items.below(context.rows, request.rest, after=request.after), bound))
        for _, _, item in found:
            context.apply(items.Delete(item.rest, item.key, item.seen))
        cursor = found[-1][0] if found else request.after
        return ItemsDiscarded(sum(self._shown(item) is not None for _, _, item in found), cursor, more=len(found) == bound)

    def _refresh(self, context: WriteContext, request: RefreshItems) -> ItemsRefreshed:
        found: list[items.Refreshed] = []
        for rest, key in request.paths:
            shown = self._shown(items.find(context.rows, rest, key))
            if shown is not None and shown.expires_ms != NEVER:
                expires_ms = context.stamp.wall_ms + max(entry.ttl_ms for entry in shown.entries)
                if expires_ms > shown.expires_ms:
                    found.append(items.Refreshed(tuple(rest), key, shown.seen, expires_ms))
        if not found:
            return ItemsRefreshed(0)
        change = items.Refresh(tuple(found))
        context.apply(change)
        return ItemsRefreshed(len(found))

    def _sweep(self, context: WriteContext, _request: SweepItems) -> ItemsSwept:
        bound = ITEMS_EXPIRED_MAX
        due = self._due(context.rows, bound)
        if not due:
            return ItemsSwept(0, more=False)
        change = items.Expire(tuple(items.Delete(item.rest, item.key, item.seen) for item in due))
        context.apply(change)
        return ItemsSwept(len(due), more=len(due) == bound)

    def _due(self, rows: Rows, limit: int) -> list[items.Item]:
        return items.expired(rows, self._now_ms() - int(self._config.item_expiry_grace_s * 1000), limit=limit)

    def _shown(self, item: items.Item | None) -> items.Item | None:
        return None if item is None or item.is_expired(self._now_ms()) else item

    # ── reads ─────────────────────────────────────────────────────────────────

    def _get(self, view: View, request: GetItems) -> ItemsFound:
        found: list[requests.Item | None] = []
        size = 0
        for rest, key in request.paths[: self._config.page_items_max]:
            check_namespace(request.items, rest)
            check_name("key", key)
            if size >= PAGE_BYTES_MAX:
                break
            item = self._shown(items.find(view.rows, rest, key))
            found.append(None if item is None else told(request.items, item))
            size += 0 if item is None else sum(len(entry.value) for entry in item.entries)
        return ItemsFound(found)

    def _namespaces(self, view: View, request: ListNamespaces) -> Namespaces:
        """A page of namespaces, cut to `depth_max` labels.

        Raises:
            InvalidInput: a label or the depth is not legal.
        """
        check_namespace(request.items, [])
        check_matches(request.matches)
        if request.depth_max is not None and request.depth_max < 1:
            raise InvalidInput(f"the maximum depth of a namespace must be at least 1; got {request.depth_max}.")
        limit = min(max(1, request.limit), self._config.page_items_max)
        found: list[list[str]] = []
        cursor, size = request.after, 0
        for _ in range(ITEM_SCAN_ROWS_MAX):
            path, stored, item = next(items.below(view.rows, (), after=cursor), (b"", 0, None))
            if item is None:
                return Namespaces(found, cursor, more=False)
            if len(found) == limit or size >= PAGE_BYTES_MAX:
                break
            size += stored
            if item.is_expired(self._now_ms()):
                cursor = path
                continue
            namespace = [request.items, *item.rest]
            if not fits(namespace, request.matches):
                cursor = items.past(item.rest, deeper=False)
                continue
            cut = namespace[: request.depth_max]
            found.append(cut)
            if len(cut) == len(namespace) and request.depth_max != len(cut):
                cursor = items.past(item.rest, deeper=False)
            elif len(cut) == 1:
                return Namespaces(found, cursor, more=False)  # All others begin with this label, too.
            else:
                cursor = items.past(cut[1:], deeper=True)
        return Namespaces(found, cursor, more=True)


def check_namespace(first: str, rest: Sequence[str]) -> None:
    """Check the labels of a namespace: the first, which names the object, and the rest.

    Raises:
        InvalidName, InvalidInput: a label is not legal, or there are too many.
    """
    if len(rest) >= ITEM_LABELS_MAX:
        raise InvalidInput(
            f"a namespace has at most {ITEM_LABELS_MAX} labels; this one has {1 + len(rest)}. Nothing was written."
        )
    for label in (first, *rest):
        check_label(label)


def check_vector(vector: bytes) -> None:
    """Check a packed vector.

    Raises:
        InvalidValue: it is not a vector.
        TooLarge: it has more than `vectors.VECTOR_DIMS_MAX` numbers.
    """
    if len(vector) > vectors.VECTOR_DIMS_MAX * vectors.FLOAT_BYTES:
        raise TooLarge(f"a vector has at most {vectors.VECTOR_DIMS_MAX} numbers; this one has more. Nothing was written.")
    vectors.check(vector)


def _check_expected(request: PutItem | DeleteItem, shown: items.Item | None) -> None:
    version = NO_ITEM if shown is None else shown.version
    if request.expect is not None and request.expect != version:
        raise ItemChanged(
            f"item {request.key!r} of {'.'.join([request.items, *request.rest])!r} "
            f"{f'has version {version}' if version else 'does not exist'}, but "
            f"{f'version {request.expect}' if request.expect else 'no item'} was expected. Nothing was written. Read it again.",
            version=version,
        )


def told(first: str, item: items.Item) -> requests.Item:
    """An item as clients get it; `first` is the first label of its namespace."""
    latest = item.latest
    return requests.Item(
        [first, *item.rest],
        item.key,
        latest.value,
        item.version,
        min(entry.created_ms for entry in item.entries),
        latest.wall_ms,
        item.expires_ms if item.expires_ms != NEVER else None,
        [requests.ItemSibling(entry.value, entry.wall_ms) for entry in item.entries[1:]],
    )


def check_matches(matches: Sequence[tuple[requests.Match, Sequence[str]]]) -> None:
    """Check the prefixes and suffixes of a search.

    Raises:
        InvalidName: a label is not legal.
        TooLarge: there are more than `FILTER_TERMS_MAX`.
    """
    if len(matches) > FILTER_TERMS_MAX:
        raise TooLarge(f"a search names at most {FILTER_TERMS_MAX} prefixes and suffixes; this one has {len(matches)}.")
    for _, labels in matches:
        for label in labels:
            check_label(label)


def fits(namespace: Sequence[str], matches: Sequence[tuple[requests.Match, Sequence[str]]]) -> bool:
    """Whether the namespace has all these prefixes and suffixes; "*" is any label."""
    return all(_fits(namespace, match, labels) for match, labels in matches)


def _fits(namespace: Sequence[str], match: requests.Match, labels: Sequence[str]) -> bool:
    """Whether the namespace begins, or ends, with these labels; "*" is any label."""
    if len(labels) > len(namespace):
        return False
    part = namespace[: len(labels)] if match == "prefix" else namespace[len(namespace) - len(labels) :]
    return all(wanted in ("*", label) for wanted, label in zip(labels, part, strict=True))
