"""`ShoalStore`: LangGraph's long-term memory, as memory items of one Shoal space.

    async with ShoalStore.open("./state") as store:
        graph = builder.compile(store=store)

Laws:
- A batch's reads see the state before the batch. Of several puts of one item the last counts. Puts
  below one first label are one operation, all or none (in pieces, if they exceed the bounds of a batch).
- Namespaces and keys are any text that LangGraph allows; characters that are illegal in Shoal's names are
  percent-encoded (`shoal.integrations.langgraph.encoding`).
- Searches come in the order of (namespace, key), not of time. With an `index` a `query` ranks
  items by their vectors, the nearest first, and items without vectors come after them; without an
  `index` a `query` is ignored, as in LangGraph.

LangGraph's `index`: the texts of a value that are embedded, and the embedding.

Law: a put has one vector for each text that its fields name, as in InMemoryStore; they replace
the vectors of the put before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    validate_op_namespace,
)

from shoal import opening
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, Retryable, ShoalError, StorageError, TooLarge
from shoal.integrations.base import Bridge, Opening, checked_store
from shoal.integrations.langgraph.encoding import id_of, name_of
from shoal.kinds.items.handle import item as items
from shoal.kinds.items.handle.item import ItemChange
from shoal.kinds.items.handle.items import Items
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM, Durability
from shoal.protocol.session import Credential
from shoal.raising import partly

Vectors = Sequence[Sequence[float]]


class Embedding:
    """An `index` of LangGraph: its dimensions, its embedding and the fields of values that are embedded."""

    def __init__(self, index: IndexConfig) -> None:
        """
        Raises:
            InvalidInput: `index` has no dimensions or no embedding.
        """
        if not index.get("dims") or not index.get("embed"):
            raise InvalidInput("an `index` must have `dims`, of the vectors, and `embed`, for texts. Nothing was written.")
        self._dims = index["dims"]
        self._fields = index.get("fields") or ["$"]
        self._embeddings = ensure_embeddings(index["embed"])

    async def of_puts(self, puts: Sequence[PutOp]) -> list[Vectors]:
        """The vectors of each put. All different texts are embedded in one call."""
        texts = [self._texts(put) for put in puts]
        different = list(dict.fromkeys(text for of_put in texts for text in of_put))
        made = await self._embeddings.aembed_documents(different) if different else []
        if len(made) != len(different):
            raise InvalidInput(f"`embed` returned {len(made)} vectors for {len(different)} texts. Nothing was written.")
        vectors = dict(zip(different, map(self._checked, made), strict=True))
        return [[vectors[text] for text in of_put] for of_put in texts]

    async def of_query(self, query: str) -> Sequence[float]:
        """The vector of a query.

        Raises:
            InvalidInput: the embedding returned another number of dimensions.
        """
        return self._checked(await self._embeddings.aembed_query(query))

    def _checked(self, vector: Sequence[float]) -> Sequence[float]:
        if len(vector) != self._dims:
            raise InvalidInput(
                f"`embed` returned a vector of {len(vector)} numbers, but `dims` is {self._dims}. Nothing was written."
            )
        return vector

    def _texts(self, put: PutOp) -> list[str]:
        if put.value is None or put.index is False:
            return []
        fields = self._fields if put.index is None else put.index
        return list(dict.fromkeys(text for field in fields for text in get_text_at_path(put.value, field)))


Namespace = tuple[str, ...]


class VersionedItem(Item):
    """LangGraph's item with a version, for `compare_and_set`."""

    __slots__ = ("expires_at", "version")

    def __init__(self, found: items.Item) -> None:
        super().__init__(**_fields(found))
        self.version = found.version
        self.expires_at: datetime | None = found.expires


class VersionedSearchItem(SearchItem):
    """LangGraph's search item with a version. Its score is None unless a query ranked it."""

    __slots__ = ("expires_at", "version")

    def __init__(self, found: items.Item) -> None:
        super().__init__(**_fields(found), score=found.score)
        self.version = found.version
        self.expires_at: datetime | None = found.expires


class ShoalStore(BaseStore):
    """LangGraph's store. Asynchronous and blocking methods work in both cases, as in `ShoalSaver`.

    A read of an item with a time to live restarts that time, unless `refresh_on_read` or the call's
    `refresh_ttl` is false. If the node cannot write, the read is answered nevertheless.

    Errors are `ShoalError`s; an illegal namespace raises LangGraph's `InvalidNamespaceError`.
    """

    supports_ttl = True

    def __init__(
        self, store: Store, *, space: str = "langgraph", index: IndexConfig | None = None, ttl: TTLConfig | None = None
    ) -> None:
        """A LangGraph store on a Shoal store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store (pass a path to `ShoalStore.open` instead), or the `index` has no
                dimensions or no embedding.
        """
        checked_store(store, "ShoalStore")
        self._embedding = None if index is None else Embedding(index)
        self.ttl_config = ttl
        self._store = store
        self._space = check_name("space", space)
        self._items = Items(store.connection, space)
        self._bridge = Bridge()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        space: str = "langgraph",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        config: Config | None = None,
        durability: Durability = "local",
    ) -> Opening[ShoalStore]:
        """A LangGraph store on an embedded Shoal store: `async with` or `with`. It raises the errors of `shoal.open`.

        One process can open a directory only once. To use a saver too, open the store with `shoal.open` and create both on it.
        """
        return Opening(
            lambda: opening.open(directory, config=config, durability=durability),
            lambda store: cls(store, space=space, index=index, ttl=ttl),
        )

    @classmethod
    def connect(
        cls,
        urls: str | Sequence[str],
        *,
        token: Credential | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        space: str = "langgraph",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        config: Config | None = None,
        durability: Durability = "local",
        wait: float = 0.0,
    ) -> Opening[ShoalStore]:
        """A LangGraph store on a node, or on any of several: `async with` or `with`. See `shoal.connect`."""
        return Opening(
            lambda: opening.connect(urls, token=token, tls_ca=tls_ca, config=config, durability=durability, wait=wait),
            lambda store: cls(store, space=space, index=index, ttl=ttl),
        )

    # ── LangGraph's interface ─────────────────────────────────────────────────

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """The results of `ops`, in their order.

        Raises:
            InvalidInput: this is the loop that the store lives on; use `abatch` there.
            InvalidNamespaceError, ShoalError: see the class.
        """
        wanted = list(ops)
        return self._bridge.blocking(lambda: self._batch(wanted))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch`, on the store's loop or from any other."""
        wanted = list(ops)
        return await self._bridge.awaited(lambda: self._batch(wanted))

    # ── beyond it ─────────────────────────────────────────────────────────────

    async def acompare_and_set(
        self, namespace: Namespace, key: str, value: Mapping[str, Any] | None, *, expect: str | None, ttl: float | None = None
    ) -> str | None:
        """Put a value (None deletes) if the item has the version `expect`, None for no item; return its new version.

        The items that `get` and `search` return have versions. `ttl` is in minutes. The serving node decides: two nodes
        that cannot reach each other can both accept, and then the later value counts.

        Raises:
            ItemChanged: it has another version; nothing was written.
        """
        _check_writable(namespace)
        return await self._bridge.awaited(lambda: self._set(namespace, key, value, expect, ttl))

    def compare_and_set(
        self, namespace: Namespace, key: str, value: Mapping[str, Any] | None, *, expect: str | None, ttl: float | None = None
    ) -> str | None:
        """`acompare_and_set`, blocking."""
        _check_writable(namespace)
        return self._bridge.blocking(lambda: self._set(namespace, key, value, expect, ttl))

    async def watch(
        self,
        namespace: Namespace = (),
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[ItemChange, None]:
        """Yield every durable put and delete in a namespace and those below it, from now on. Only on the store's own loop.

        With a `timeout` it ends when nothing has come for so many seconds. To stop early, close it
        (`contextlib.aclosing`), which ends its subscription at once. See `Items.watch`.
        """
        async with aclosing(self._items.watch(tuple(map(name_of, namespace)), timeout=timeout)) as changes:
            async for change in changes:
                decoded = tuple(map(id_of, change.namespace))
                yield ItemChange(decoded, id_of(change.key), change.what, change.time)

    # ── on the store's own loop ───────────────────────────────────────────────

    async def _set(
        self, namespace: Namespace, key: str, value: Mapping[str, Any] | None, expect: str | None, ttl: float | None
    ) -> str | None:
        place, name, wanted = tuple(map(name_of, namespace)), name_of(key), NO_ITEM if expect is None else expect
        if value is None:
            await self._items.delete(place, name, expect=wanted)
            return None
        return await self._items.put(place, name, _value(value), ttl=_time_to_live(ttl), expect=wanted)

    async def _batch(self, ops: list[Op]) -> list[Result]:
        for op in ops:
            _check(op)
        puts = _last_puts(ops)
        vectors = [()] * len(puts) if self._embedding is None else await self._embedding.of_puts(puts)
        # Encode everything before the first request, so that a wrong value writes nothing.
        writes = [self._write(op, of_put) for op, of_put in zip(puts, vectors, strict=True)]
        gets = [at for at, op in enumerate(ops) if isinstance(op, GetOp) and op.namespace]
        reads = {at: read for at, op in enumerate(ops) if (read := self._read(op)) is not None}
        got, *others = await asyncio.gather(self._items.get_many([_name(ops[at]) for at in gets]), *reads.values())
        found: dict[int, Any] = {**dict(zip(gets, got, strict=True)), **dict(zip(reads, others, strict=True))}
        await self._refresh(ops, found)
        await self._commit(writes)
        return [_result(op, found.get(at)) for at, op in enumerate(ops)]

    def _read(self, op: Op) -> Coroutine[Any, Any, list[items.Item] | list[Namespace]] | None:
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            conditions = op.match_conditions or ()
            matches = [(condition.match_type, tuple(map(name_of, condition.path))) for condition in conditions]
            return self._items.matching(matches, max_depth=op.max_depth, limit=op.limit, offset=op.offset)
        return None

    async def _search(self, op: SearchOp) -> list[items.Item]:
        prefix = tuple(map(name_of, op.namespace_prefix))
        if not op.query or self._embedding is None:
            return await self._items.search(prefix, filter=op.filter, limit=op.limit, offset=op.offset)
        vector, wanted = await self._embedding.of_query(op.query), op.offset + op.limit
        ranked = await self._items.search(prefix, filter=op.filter, vector=vector, limit=wanted)
        found = ranked[op.offset :]
        if len(ranked) < wanted:  # All items with a vector are ranked; the others come after them.
            known = {(item.namespace, item.key) for item in ranked}
            others = await self._items.search(prefix, filter=op.filter, limit=len(ranked) + op.limit)
            found += [item for item in others if (item.namespace, item.key) not in known]
        return found[: op.limit]

    def _write(self, op: PutOp, vectors: Vectors) -> requests.PutItem | requests.DeleteItem:
        namespace, key = _name(op)
        if op.value is None:
            return items.delete_request(self._space, namespace, key, expect=None)
        value, ttl = _value(op.value), _time_to_live(op.ttl)
        request = items.put_request(self._space, namespace, key, value, ttl=ttl, expect=None, vectors=vectors)
        bytes_max = self._store.connection.config.request_bytes_max
        if len(request.value) > bytes_max:  # The node checks this too, but perhaps after an earlier piece was written.
            raise TooLarge(
                f"an item may have at most {bytes_max} bytes; this one has {len(request.value)}. Nothing was written."
            )
        return request

    async def _refresh(self, ops: list[Op], found: Mapping[int, Any]) -> None:
        due: dict[Namespace, set[str]] = {}
        for at, op in enumerate(ops):
            if isinstance(op, GetOp | SearchOp) and op.refresh_ttl:
                read = found.get(at)
                for item in read if isinstance(read, list) else () if read is None else (read,):
                    if item.expires is not None:
                        due.setdefault(item.namespace, set()).add(item.key)
        with suppress(Retryable, StorageError):
            for namespace, keys in due.items():
                # If a crash undoes it, the item expires at its earlier time.
                await self._items.refresh(namespace, sorted(keys), durability="memory")

    async def _commit(self, writes: list[requests.PutItem | requests.DeleteItem]) -> None:
        by_label: dict[str, list[requests.PutItem | requests.DeleteItem]] = {}
        for write in writes:
            by_label.setdefault(write.items, []).append(write)
        outcomes = await asyncio.gather(*map(self._commit_pieces, by_label.values()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, ShoalError) and len(outcomes) > 1:
                outcome.written = "unknown"
                outcome.add_note("What this batch puts below other first labels may be written, and can be put again.")
            if isinstance(outcome, BaseException):
                raise outcome

    async def _commit_pieces(self, writes: list[requests.PutItem | requests.DeleteItem]) -> None:
        connection = self._store.connection
        config = connection.config
        done = 0
        for piece in _pieces(writes, count_max=config.batch_writes_max, bytes_max=config.request_bytes_max // 2):
            request = requests.Batch(list(piece)) if len(piece) > 1 else piece[0]
            with partly(done, f"{done} items of this batch are put", "Put them again."):
                await connection.write(request, key=None, durability=None)
            done += len(piece)


def _check(op: Op) -> None:
    """Check an operation before any is carried out.

    Raises:
        InvalidNamespaceError, InvalidInput: it is not legal.
    """
    if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):
        raise InvalidInput(f"{type(op).__name__} is not an operation of a store. Nothing was written.")
    validate_op_namespace(op)
    if isinstance(op, PutOp):
        _check_writable(op.namespace)


def _check_writable(namespace: Namespace) -> None:
    validate_op_namespace(GetOp(namespace, ""))
    if not namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    if namespace[0] == "langgraph":
        raise InvalidNamespaceError(f'Root label for namespace cannot be "langgraph". Got: {namespace}')


def _last_puts(ops: list[Op]) -> list[PutOp]:
    """The last put of each item, in the order of the items' first puts."""
    last: dict[tuple[Namespace, str], PutOp] = {}
    for op in ops:
        if isinstance(op, PutOp):
            last[op.namespace, str(op.key)] = op
    return list(last.values())


def _pieces(
    writes: list[requests.PutItem | requests.DeleteItem], *, count_max: int, bytes_max: int
) -> Iterator[list[requests.PutItem | requests.DeleteItem]]:
    piece: list[requests.PutItem | requests.DeleteItem] = []
    size = 0
    for write in writes:
        more = len(write.value) if isinstance(write, requests.PutItem) else 0
        if piece and (len(piece) == count_max or size + more > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(write)
        size += more
    if piece:
        yield piece


def _name(op: Op) -> tuple[Namespace, str]:
    assert isinstance(op, GetOp | PutOp)
    return tuple(map(name_of, op.namespace)), name_of(str(op.key))


def _value(value: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValue(f"a store's values must be maps; got a {type(value).__name__}. Nothing was written.")
    return dict(value)


def _time_to_live(minutes: float | None) -> timedelta | None:
    try:
        return None if minutes is None else timedelta(minutes=minutes)
    except (OverflowError, ValueError):
        raise InvalidInput(f"{minutes} minutes is not a legal time to live. Nothing was written.") from None


def _result(op: Op, found: Any) -> Result:
    match op:
        case GetOp():
            return None if found is None else VersionedItem(found)
        case SearchOp():
            return list[SearchItem](map(VersionedSearchItem, found))
        case ListNamespacesOp():
            return [tuple(map(id_of, namespace)) for namespace in found]
        case _:
            return None


def _fields(found: items.Item) -> dict[str, Any]:
    return {
        "namespace": tuple(map(id_of, found.namespace)),
        "key": id_of(found.key),
        "value": found.value,
        "created_at": found.created,
        "updated_at": found.updated,
    }
