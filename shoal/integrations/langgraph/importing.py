"""LangGraph's own savers and stores, read and imported: `shoal import langgraph sqlite:///path | postgresql://…`.

Laws:
- The source is only read: SQLite's file is opened so, and Postgres refuses anything else in each transaction. Nothing of the
  session is altered, because a pooler may hand it to others.
- Checkpoints are read by LangGraph's savers, one at a time, so that what they migrate of older formats is migrated. One and its
  pending writes are read as of one moment, because a graph may run meanwhile.
- An error of the source says how much is imported by then. What it says of the database has no password.
- Values are decoded by the strict serialiser: never pickle or LangChain's JSON, unless the caller trusts the source.
- Each checkpoint is read again from Shoal and compared with what the saver read. What is there already is not written again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.base import PutOp
from msgspec import Struct

from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidValue, ShoalError, Unavailable, Unsupported
from shoal.integrations.langgraph import encoding
from shoal.integrations.langgraph.encoding import AllowedTypes, StrictSerializer
from shoal.integrations.langgraph.saver import ShoalSaver
from shoal.integrations.langgraph.store import ShoalStore
from shoal.integrations.langgraph.writes import Large
from shoal.protocol.requests import Annotate, Note
from shoal.raising import after, why
from shoal.records import NamedTuple

PAGE_ROWS = 500  # Keys that are read at a time.
CONNECT_S = 10  # For a server of PostgreSQL to answer.
_SAID_CHARS_MAX = 300  # Of a database's own text.
_PARTS = ("v", "id", "ts", "channel_versions", "versions_seen")
TOLD_MAX = 100  # Checkpoints that a report names.

_CHECKPOINTS = "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints{after} ORDER BY 1, 2, 3 LIMIT {limit}"
_AFTER = " WHERE (thread_id, checkpoint_ns, checkpoint_id) > ({mark}, {mark}, {mark})"
_WRITES = (
    "SELECT task_id, {path}, idx, channel, type, {value} FROM {table} "
    "WHERE thread_id = {mark} AND checkpoint_ns = {mark} AND checkpoint_id = {mark} ORDER BY task_id, idx"
)
_ORPHANS = (
    "SELECT count(*) FROM {table} w WHERE NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.thread_id = w.thread_id "
    "AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)"
)
_ITEMS = "SELECT prefix, key, value FROM store{after} ORDER BY 1, 2 LIMIT {limit}"
_COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = ANY (current_schemas(false))"
_AFTER_ITEM = " WHERE (prefix, key) > ({mark}, {mark})"


class Graphs(Struct):
    """The report of an import."""

    threads: int = 0
    checkpoints: int = 0  # Read.
    written: int = 0  # Of them; the others were there.
    writes: int = 0  # Pending writes of them.
    items: int = 0  # Of the store.
    orphans: int = 0  # Pending writes of checkpoints that are not there, which are left out.
    differs: list[str] = []  # Checkpoints and items that are not as they were read, and why; at most 100.
    left: int = 0  # All of these.

    @property
    def whole(self) -> bool:
        """Whether all that was read is there now."""
        return not self.left


class PendingWrite(NamedTuple):
    """A row of the writes' table."""

    task_id: str
    task_path: str
    place: int
    channel: str
    kind: str
    value: bytes


class Source(NamedTuple):
    """A database of LangGraph's."""

    saver: Any  # LangGraph's own.
    rows: Callable[..., list[tuple[Any, ...]]]  # Runs a query.
    reading: Callable[[], AbstractContextManager[Any]]  # What is read within is of one moment.
    mark: str  # Of a parameter in it.
    table: str  # Of the pending writes,
    value: str  # and the column of their values.
    path: str  # An expression for the path of a task.
    has_checkpoints: bool
    has_items: bool

    def query(self, text: str, *given: Any, **more: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.reading():
            return self._rows(text, *given, **more)

    def checkpoint(self, config: Any) -> tuple[CheckpointTuple | None, list[PendingWrite]]:
        """A checkpoint as LangGraph's saver reads it, and its pending writes at the same moment."""
        named = config["configurable"]
        with self.reading():
            found = self.saver.get_tuple(config)
            rows = self._rows(_WRITES, named["thread_id"], named["checkpoint_ns"], named["checkpoint_id"])
        return found, [PendingWrite(*row) for row in rows]

    def _rows(self, text: str, *given: Any, **more: Any) -> list[tuple[Any, ...]]:
        named = {"mark": self.mark, "table": self.table, "value": self.value, "path": self.path}
        return self.rows(text.format(**named, **more), given)


@contextmanager
def opened(url: str, serde: SerializerProtocol) -> Iterator[Source]:
    """A source by its URL: `sqlite:///path` or `postgresql://…`.

    Raises:
        InvalidInput: it is neither, or cannot be opened.
        Unsupported: LangGraph's saver for it is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        with _sqlite(url, serde) as source:
            yield source
    elif scheme in ("postgresql", "postgres"):
        with _postgres(url, serde) as source:
            yield source
    else:
        raise InvalidInput(
            f"a source is sqlite:///path or postgresql://…; got one that begins with {scheme[:20]!r}. Nothing was written."
        )


def check(url: str) -> None:
    """Open a source, and close it.

    Raises:
        InvalidInput: it is none, cannot be opened, or has no tables of LangGraph.
        Unsupported: LangGraph's saver for it is not installed.
    """
    with opened(url, StrictSerializer(None)) as source:
        _check(source)


def _check(source: Source) -> None:
    if not (source.has_checkpoints or source.has_items):
        raise InvalidInput(
            "the database has no tables of LangGraph's savers or stores that its user may see. Nothing was written. Name the "
            "database of the graphs; if their tables are in another schema, add ?options=-csearch_path%3DNAME to the URL."
        )


@contextmanager
def _sqlite(url: str, serde: SerializerProtocol) -> Iterator[Source]:
    savers = _package("langgraph.checkpoint.sqlite", "langgraph-sqlite")
    path = Path(unquote(url.removeprefix("sqlite://").removeprefix("/") if "///" in url else ""))
    if not path.is_file():
        raise InvalidInput(f"there is no file {str(path)!r}. Nothing was written. A fourth / makes a path absolute.")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:

        def rows(text: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
            return connection.execute(text, given).fetchall()

        @contextmanager
        def reading() -> Iterator[None]:
            try:
                connection.execute("BEGIN")
                yield
            except sqlite3.Error as error:
                raise _unreadable(error) from None
            finally:
                connection.rollback()

        try:
            tables = {name for (name,) in rows("SELECT name FROM sqlite_master WHERE type = 'table'", ())}
            columns = {row[1] for row in rows("SELECT * FROM pragma_table_info('writes')", ())}
        except sqlite3.DatabaseError as error:
            raise InvalidInput(f"{str(path)!r} cannot be read as a database of SQLite: {error}. Nothing was written.") from None
        saver = savers.SqliteSaver(connection, serde=serde)
        saver.is_setup = True  # It would create tables.
        saver._has_task_path = "task_path" in columns
        task_path = "task_path" if "task_path" in columns else "''"
        yield Source(saver, rows, reading, "?", "writes", "value", task_path, "checkpoints" in tables, "store" in tables)
    finally:
        connection.close()


@contextmanager
def _postgres(url: str, serde: SerializerProtocol) -> Iterator[Source]:
    savers, psycopg = (_package(name, "langgraph-postgres") for name in ("langgraph.checkpoint.postgres", "psycopg"))
    shapes = import_module("psycopg.rows")
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
        is_url = "@" not in str(given.get("host") or "")
    except psycopg.Error:  # Its text repeats the URL, with the password.
        is_url = False
    if not is_url:
        raise InvalidInput(
            "this is no URL of PostgreSQL: postgresql://user:password@host:5432/database, where special characters of the "
            "password are written as %XX (an @ as %40). Nothing was written."
        )
    try:
        connection = psycopg.connect(
            **{"connect_timeout": CONNECT_S, **given},
            autocommit=True,
            prepare_threshold=None,  # A pooler need not know prepared statements.
            row_factory=shapes.dict_row,
        )
    except psycopg.Error as error:
        raise InvalidInput(
            f"the database cannot be opened: {_said(error)}. Nothing was written. Check its address, the user, the password "
            "and the database's name."
        ) from None
    with connection:
        connection.set_read_only(True)
        connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)

        def rows(text: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
            with connection.cursor(row_factory=shapes.tuple_row) as cursor:
                return list(cursor.execute(text, given).fetchall())

        @contextmanager
        def reading() -> Iterator[None]:
            try:
                with connection.transaction():
                    yield
            except psycopg.Error as error:
                raise _unreadable(error) from None

        with reading():
            found = rows(_COLUMNS, ())
        tables = {table for table, _ in found}
        path = "task_path" if ("checkpoint_writes", "task_path") in found else "''"
        saver = savers.PostgresSaver(connection, serde=serde)
        yield Source(saver, rows, reading, "%s", "checkpoint_writes", "blob", path, "checkpoints" in tables, "store" in tables)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:_SAID_CHARS_MAX] or type(error).__name__


def _unreadable(error: Exception) -> Unavailable:
    return Unavailable(
        f"the database of LangGraph cannot be read: {_said(error)}. Nothing was written. Look at its server, or at the rights "
        "of its user (SELECT on the tables of the saver and the store)."
    )


def _package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise Unsupported(
            f"LangGraph's saver for this database needs the package {name}, which is not installed here. Nothing was written. "
            f"Install it in a clone of Shoal: pip install '.[{extra}]'"
        ) from None


async def import_graphs(
    store: Store,
    url: str,
    *,
    space: str = "langgraph",
    allowed: AllowedTypes = None,
    trusted: bool = False,
    progress: Callable[[Graphs], None] = lambda _: None,
) -> Graphs:
    """Import all checkpoints, pending writes and items of a database into a space, and compare them.

    `allowed`: types of the graphs' states, as for `ShoalSaver`. `trusted`: decode pickle and LangChain's JSON too, which lets
    whoever wrote to the database run code here. `progress` is given the report as it is after each checkpoint.

    Raises:
        InvalidInput: the source is none, or cannot be opened.
        InvalidValue: a value may not be decoded, or cannot be. What comes before is imported.
        Unavailable: the source cannot be read, or the store cannot be written. Nothing was written.
        OutcomeUnknown: the same, once checkpoints were imported. The same call goes on.
    """
    serde = JsonPlusSerializer(pickle_fallback=True, allowed_msgpack_modules=True) if trusted else StrictSerializer(allowed)
    with opened(url, serde) as source:
        importing = _Importing(
            store,
            space,
            source,
            serde,
            progress,
            ShoalSaver(store, space=space, allowed_msgpack_modules=True if trusted else allowed),
        )
        _check(source)
        try:
            if source.has_checkpoints:
                await importing.checkpoints()
            if source.has_items:
                await importing.items()
        except InvalidValue:
            raise
        except ShoalError as error:
            if not importing.report.written or error.written != "no":
                raise
            done = f"{importing.report.written} checkpoints are imported"
            raise after(error, done, "Run the same command again: what is there is not written twice.") from None
        return importing.report


class _Importing:
    def __init__(
        self,
        store: Store,
        space: str,
        source: Source,
        serde: SerializerProtocol,
        progress: Callable[[Graphs], None],
        saver: ShoalSaver,
    ) -> None:
        self._store, self._space, self._source, self._serde, self._saver = store, space, source, serde, saver
        self._progress = progress
        self.report = Graphs()

    async def _query(self, text: str, *given: Any, **more: Any) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(self._source.query, text, *given, **more)

    async def checkpoints(self) -> None:
        """Import the checkpoints of all threads and namespaces, each after those with smaller ids."""
        after: tuple[Any, ...] = ()
        thread, count = "", 0
        while True:
            page = await self._query(
                _CHECKPOINTS, *after, after=_AFTER.format(mark=self._source.mark) if after else "", limit=PAGE_ROWS
            )
            for thread_id, namespace, id in page:
                if thread_id != thread:
                    await self._counted(thread, count)
                    thread, count = thread_id, 0
                    self.report.threads += 1
                count += await self._checkpoint({"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id})
            if len(page) < PAGE_ROWS:
                break
            after = page[-1]
        await self._counted(thread, count)
        [(self.report.orphans,)] = await self._query(_ORPHANS)

    async def _counted(self, thread: str, count: int) -> None:
        """Compare how many checkpoints a thread has, in all of its namespaces."""
        if not count:
            return
        there = 0
        async for _ in self._saver.alist({"configurable": {"thread_id": thread}}):
            there += 1
        if there != count:
            self._differs(f"thread {thread!r}: {count} checkpoints read, {there} there")

    async def _checkpoint(self, named: dict[str, str]) -> bool:
        """Import a checkpoint. False: it was deleted meanwhile."""
        config: Any = {"configurable": named}
        what = f"checkpoint {named['checkpoint_id']} of {named['checkpoint_ns'] or 'the root'} of thread {named['thread_id']!r}"
        try:
            read, writes = await asyncio.to_thread(self._source.checkpoint, config)
        except InvalidValue as error:
            by_then = f"{self.report.written} checkpoints before it are imported, and this one is not"
            how = "To decode it, allow its type (--allow MODULE.NAME), or trust whoever wrote to the database (--trust)"
            error.message = f"{what}: {why(error)}. {by_then}. {how}."
            error.args = (error.message,)
            raise
        if read is None:
            return False
        self.report.checkpoints += 1
        self.report.writes += len(writes)
        there = await self._saver.aget_tuple(config)
        if there is None or self._differences(read, there):
            if there is None:
                parent: Any = read.parent_config or {"configurable": {**named, "checkpoint_id": None}}
                versions = read.checkpoint["channel_versions"]
                await self._saver.aput(parent, read.checkpoint, read.metadata, versions)
                self.report.written += 1
            await self._pending(named, writes)
            there = await self._saver.aget_tuple(config)
        if there is None or (found := self._differences(read, there)):
            self._differs(f"{what}: {', '.join(found) if there is not None else 'it is not there'}")
        self._progress(self.report)
        return True

    async def _pending(self, named: dict[str, str], writes: list[PendingWrite]) -> None:
        notes = []
        for write in writes:
            value = self._serde.loads_typed((write.kind, bytes(write.value)))
            packed = encoding.pack_write(self._saver.serde, write.task_path, write.channel, value)
            notes.append(Note(encoding.pack_note_name(write.task_id, write.place), packed, write.place >= 0))
        if notes:
            label = encoding.label_of(named["checkpoint_ns"], named["checkpoint_id"])
            request = Annotate(self._space, encoding.name_of(named["thread_id"]), label, notes)
            request = await Large(self._store.connection, self._space).annotated(request)
            await self._store.connection.write(request, key=None, durability=None)

    def _differences(self, read: CheckpointTuple, there: CheckpointTuple) -> list[str]:
        """The parts in which two checkpoints differ."""
        pairs: dict[str, tuple[Any, Any]] = {
            "metadata": (read.metadata, there.metadata),
            "parent": (_id_of(read.parent_config), _id_of(there.parent_config)),
            "pending writes": (_listed(read), _listed(there)),
            **{part: (read.checkpoint.get(part), there.checkpoint.get(part)) for part in _PARTS},
        }
        values, others = read.checkpoint["channel_values"], there.checkpoint["channel_values"]
        for name in sorted(values.keys() | others.keys()):
            is_in_both = name in values and name in others
            pairs[f"channel {name!r}"] = (values[name], others[name]) if is_in_both else (True, False)
        return [part for part, (one, other) in pairs.items() if not self._same(one, other)]

    def _same(self, one: Any, other: Any) -> bool:
        """Whether two values are packed alike: values of a graph need not be comparable."""
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(self._same(one[key], other[key]) for key in one)
        return self._serde.dumps_typed(one) == self._serde.dumps_typed(other)

    def _differs(self, what: str) -> None:
        self.report.left += 1
        if len(self.report.differs) < TOLD_MAX:
            self.report.differs.append(what)

    async def items(self) -> None:
        """Import the items of LangGraph's store. Vectors are made anew by a store that has an index."""
        target = ShoalStore(self._store, space=self._space)
        after: tuple[Any, ...] = ()
        while True:
            page = await self._query(
                _ITEMS, *after, after=_AFTER_ITEM.format(mark=self._source.mark) if after else "", limit=PAGE_ROWS
            )
            for prefix, key, value in page:
                namespace = tuple(prefix.split("."))
                plain = value if isinstance(value, dict) else json.loads(value)
                there = await target.aget(namespace, key)
                if there is None:
                    await target.abatch([PutOp(namespace, key, plain)])
                    there = await target.aget(namespace, key)
                self.report.items += 1
                if there is None or there.value != plain:
                    self._differs(f"item {key!r} of {prefix}")
            if len(page) < PAGE_ROWS:
                return
            after = page[-1][:2]


def _listed(found: CheckpointTuple) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in found.pending_writes or ()]


def _id_of(config: Any) -> str:
    return "" if config is None else str(config["configurable"]["checkpoint_id"])
