"""Indexes of items on one node: their rows, how they are built and erased, and the requests for them.

Index rows, which find the items whose field has some value. Each node keeps its own.

Laws:
- An item's row and its index rows are written in the same batch, because only `IndexedRows`
  writes an item's row. So the rows of a built index are a function of the items' rows. A
  search compares the items themselves, so an index changes no answer.
- A field has index rows here while it has an `IndexState`, whether or not it is still declared:
  declaring and dropping take effect in pieces.
- Index rows are derived: they are never sent, and may be deleted while no node has the store open.
- Each generation has index rows of its own. Those of an ended one are swept with its rows.

Rows (below the prefix of a generation's rows, but in the table of indexes; a path is that of `shoal.kinds.items.state`, a
value is in the form of `shoal.values.forms`):
    S field                      msgpack [form, built, path]: the index of a field, built up to a path
    V field₂₊ₙ value path        nothing: this item's field has this value

Builds indexes of items, and erases those that were dropped, in pieces.

Laws:
- A piece is read and written within one turn of the loop, so that no item changes in between.
  An item that changes later writes its own index rows, whether or not the index is built.
- Each piece is durable before the next one, and reads a bounded number of rows and bytes.
  While there is nothing to do, there is no task and no timer.
- Each piece records how far it came; the next incarnation continues there when the object is used.

Requests that declare and drop indexes of fields of items, and the list of them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from shoal.crdt import deletion
from shoal.crdt.rows import successor
from shoal.errors import InvalidInput, Overloaded, ShoalError, StoreCorrupt, TooLarge
from shoal.kinds.items import state as items
from shoal.kinds.items.serving.items import INDEX_BUILD_ROWS_MAX
from shoal.kinds.items.state import ITEM
from shoal.names import check_label, check_name
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Memory, Readers, Target, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX
from shoal.node.transaction import ObjectRows, Readable, Transaction
from shoal.node.turns import lasting
from shoal.protocol.requests import IndexItems, ItemIndex, ItemIndexes, ItemsIndexed, ListItemIndexes, UnindexItems
from shoal.storage import keys
from shoal.values.filtering import field_of
from shoal.values.forms import ordered

ITEM_INDEXES_MAX = 16  # Indexed fields of the items under one first label.

STANDING, VALUE = b"S", b"V"
FORM = 1  # The version of the rows' format. Rows of another form are erased and built again.

_OBJECTS_MAX = 65536  # Whose standings are remembered.


class IndexState(msgspec.Struct, array_like=True, frozen=True):
    """How far the index of a field is built: for all items (`built`), or for those up to `path`."""

    form: int
    built: bool
    path: bytes = b""


Standings = Mapping[str, IndexState]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(IndexState)
_NONE: Standings = {}


class Indexes(Memory):
    """The states of all indexes on this node.

    `due` is called with an object whose index rows are not as declared. `moved` is called with each written item of
    the objects that are in `watched` by then: those whose vectors are in memory.
    """

    def __init__(self, storage: Readable, *, due: Callable[[Target], None], moved: Callable[[Target, bytes], None]) -> None:
        self._storage = storage
        self._standings: OrderedDict[Target, Standings] = OrderedDict()
        self.due = due
        self.watched: set[Target] = set()
        self._moved = moved

    def rows(self, transaction: Transaction, target: Target, prefix: bytes) -> ObjectRows:
        """The rows of an object of items, which keep its indexes."""
        return IndexedRows(transaction, prefix, self, target)

    def written(self, target: Target, path: bytes) -> None:
        """An item was written."""
        if target in self.watched:
            self._moved(target, path)

    def of(self, target: Target) -> Standings:
        """The states of an object's indexes by field; the first call for an object reads them and may call `due`.

        Raises:
            StoreCorrupt: a state cannot be decoded.
        """
        found = self._standings.get(target)
        if found is None:
            transaction = Transaction(self._storage)
            prefix = prefix_of(transaction, target)
            found = self._standings[target] = standings(transaction, prefix) or _NONE
            if len(self._standings) > _OBJECTS_MAX:
                self._standings.popitem(last=False)
            if is_due(found, declared(transaction, prefix)):
                self.due(target)
        return found

    def forget_partition(self, number: int) -> None:
        """Forget what is known of the objects of a partition, because its rows were replaced."""
        for target in [target for target in self._standings if target.partition == number]:
            del self._standings[target]

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Forget the states of the indexes of an object whose generation ends."""
        self.moved(target)
        self.replaced(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Forget the states of an object's indexes once its rows are replaced."""
        transaction.when_written(lambda: self.moved(target))

    def moved(self, target: Target) -> None:
        """Forget the states of an object's indexes, because new ones were written or its generation ended."""
        self._standings.pop(target, None)


class IndexedRows(ObjectRows):
    """The rows of an object of items; a write of one also writes its index rows."""

    __slots__ = ("_indexes", "_target")

    def __init__(self, transaction: Transaction, prefix: bytes, indexes: Indexes, target: Target) -> None:
        super().__init__(transaction, prefix)
        self._indexes = indexes
        self._target = target

    def put(self, key: bytes, value: bytes, /) -> None:
        """Write a row, in place of any that has this key (`Rows.put`)."""
        self._follow(key, value)
        super().put(key, value)

    def delete(self, key: bytes, /) -> None:
        """Remove a row, if it exists (`Rows.delete`)."""
        self._follow(key, None)
        super().delete(key)

    def _follow(self, key: bytes, stored: bytes | None) -> None:
        if key.startswith(ITEM):
            self.transaction.when_written(partial(self._indexes.written, self._target, key[1:]))
            if fields := self._indexes.of(self._target):
                self._move(key, stored, fields)
        elif key.startswith(items.INDEX):
            self.transaction.when_written(lambda: self._indexes.due(self._target))

    def _move(self, key: bytes, stored: bytes | None, fields: Standings) -> None:
        path, before, prefix = key[1:], self.get(key), self.key(b"")
        for field in fields:
            old = None if before is None else value_row(prefix, field, path, before)
            new = None if stored is None else value_row(prefix, field, path, stored)
            if old != new:
                if old is not None:
                    self.transaction.delete(old)
                if new is not None:
                    self.transaction.put(new, b"")


def prefix_of(transaction: Transaction, target: Target) -> bytes:
    """The prefix of the rows of an object's current generation."""
    prefix = keys.object_rows(target.partition, *target)
    packed = transaction.get(prefix + deletion.ROW)
    return prefix if packed is None else prefix + deletion.prefix(deletion.unpack(packed).generation)


def declared(transaction: Transaction, prefix: bytes) -> set[str]:
    """The fields that are declared as indexed, as far as this node knows. `prefix` is that of a generation's rows."""
    return set(items.fields(ObjectRows(transaction, prefix)))


def standings(transaction: Transaction, prefix: bytes) -> Standings:
    """The stored states of a generation's indexes by field.

    Raises:
        StoreCorrupt: one cannot be decoded.
    """
    start = _below(prefix) + STANDING
    found = {key[len(start) :]: packed for key, packed in transaction.scan(start, successor(start))}
    try:
        return {field.decode(): _decoder.decode(packed) for field, packed in found.items()}
    except ValueError as error:  # msgspec's errors are ValueErrors, and so are those of text that is not UTF-8.
        name = keys.split_object(prefix)[3]
        raise StoreCorrupt(f"an index of items {name!r} cannot be decoded ({error}). Run `shoal verify`.") from None


def is_due(found: Standings, wanted: set[str]) -> bool:
    """Whether indexes must be built or erased; `wanted` are the declared fields."""
    return found.keys() != wanted or not all(standing.built and standing.form == FORM for standing in found.values())


def standing_row(prefix: bytes, field: str) -> bytes:
    """The key of the state of an index."""
    return _below(prefix) + STANDING + field.encode()


def packed(standing: IndexState) -> bytes:
    """The value of the row of an index's state."""
    return _encoder.encode(standing)


def values_of(prefix: bytes, field: str) -> bytes:
    """The prefix of an index's rows."""
    name = field.encode()
    return _below(prefix) + VALUE + len(name).to_bytes(2, "big") + name


def value_row(prefix: bytes, field: str, path: bytes, stored: bytes) -> bytes | None:
    """The key of an item's index row, given its path and its stored `I` row; None if the item has no such field.

    Raises:
        StoreCorrupt: the item cannot be decoded.
    """
    try:
        found = field_of(items.latest_of(stored), field)
    except ValueError as error:
        name = keys.split_object(prefix)[3]
        raise StoreCorrupt(f"an item of {name!r} cannot be decoded ({error}). Run `shoal verify`.") from None
    value = None if found is None else ordered(found)
    return None if value is None else values_of(prefix, field) + value + path


def range_of(start: bytes, stop: bytes) -> tuple[bytes, bytes]:
    """The key range of the index rows of an object's rows from `start` to `stop`."""
    return _below(start), _below(stop)


def _below(prefix: bytes) -> bytes:
    """The same key in the table of indexes."""
    return keys.INDEX + prefix[len(keys.OBJECT) :]


def flaws(prefix: bytes, stored: Mapping[bytes, bytes], rows: Mapping[bytes, bytes]) -> Iterator[str]:
    """The flaws of a generation's index rows, `stored` by their keys, compared with its own `rows`."""
    beginning = _below(prefix) + STANDING
    left = {key for key in stored if not key.startswith(beginning)}
    for key in sorted(stored.keys() - left):
        field = key[len(beginning) :].decode(errors="replace")
        standing = _standing(stored[key])
        if standing is None or standing.form > FORM:
            yield f"its index of {field!r} cannot be decoded"
            continue
        found = {row for row in left if row.startswith(values_of(prefix, field))}
        left -= found
        if standing.form == FORM:
            yield from _flaws_of(prefix, field, standing, found, rows)
    if left:
        yield f"{len(left)} index rows belong to no index"


def _flaws_of(prefix: bytes, field: str, standing: IndexState, found: set[bytes], rows: Mapping[bytes, bytes]) -> Iterator[str]:
    wanted = {
        row: key[1:]
        for key, stored in rows.items()
        if key.startswith(ITEM) and (row := value_row(prefix, field, key[1:], stored)) is not None
    }
    if strays := found - wanted.keys():
        yield f"{len(strays)} rows of its index of {field!r} are of no item"
    if missing := [row for row, path in wanted.items() if row not in found and (standing.built or path <= standing.path)]:
        yield f"{len(missing)} items are not in its index of {field!r}"


def _standing(packed: bytes) -> IndexState | None:
    try:
        return _decoder.decode(packed)
    except ValueError:
        return None


_DUE_MAX = 4096  # Objects that wait. One that is left out is noted again when it is next used.


class Indexer:
    """The background task that makes indexes match what is declared. `closed`: the partitions that are being replaced."""

    def __init__(self, context: NodeContext, indexes: Indexes) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._indexes = indexes
        self._closed = context.partitions.closed
        self._config = context.config
        self._due: dict[Target, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def stir(self, target: Target) -> None:
        """Note that the indexes of an object must be built or erased, and start the task."""
        if len(self._due) < _DUE_MAX:
            self._due[target] = None
        elif target not in self._due:
            self._indexes.moved(target)
        if self._task is None and not self._stopped:
            self._task = lasting(self._run(), "upkeep of indexes")

    async def stop(self) -> None:
        """Cancel the task; the next incarnation continues. Stopping twice is allowed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._due and not self._stopped:
                target = next(iter(self._due))
                try:
                    number = self._advance(target)
                except Overloaded:
                    await asyncio.sleep(self._config.sync_interval_s)
                    continue
                if number is None:
                    del self._due[target]
                await self._commit.wait_durable(number or 0)
                await asyncio.sleep(0)
        except ShoalError:
            for target in self._due:  # Storage failed or cannot be read: the next use of an object notes it again.
                self._indexes.moved(target)
            self._due.clear()
        finally:
            self._task = None

    def _advance(self, target: Target) -> int | None:
        """Build or erase one piece; returns the number of its write, or None if there is nothing to do."""
        if target.partition in self._closed:
            return None  # It is replaced, without its indexes: their next use makes them due.
        transaction = Transaction(self._storage)
        prefix = prefix_of(transaction, target)
        wanted, found = declared(transaction, prefix), standings(transaction, prefix)
        for field, standing in found.items():
            if field not in wanted or standing.form != FORM:
                return self._erase(target, prefix, field)
        for field in sorted(wanted):
            standing = found.get(field, IndexState(FORM, built=False))
            if not standing.built:
                return self._build(ObjectRows(transaction, prefix), target, field, standing)
        return None

    def _erase(self, target: Target, prefix: bytes, field: str) -> int:
        start = values_of(prefix, field)
        stop = successor(start)
        assert stop is not None  # It begins with the table's byte.
        number = self._commit.write({standing_row(prefix, field): None}, [(start, stop)])
        self._indexes.moved(target)
        return number

    def _build(self, of_items: ObjectRows, target: Target, field: str, standing: IndexState) -> int:
        rows: dict[bytes, bytes | None] = {}
        prefix = of_items.key(b"")
        path, size, looked_at = standing.path, 0, 0
        for path, stored in items.stored_after(of_items, standing.path):
            if (row := value_row(prefix, field, path, stored)) is not None:
                rows[row] = b""
            looked_at, size = looked_at + 1, size + len(stored)
            if looked_at == INDEX_BUILD_ROWS_MAX or size >= PAGE_BYTES_MAX:
                break
        else:
            standing = IndexState(FORM, built=True)
        if not standing.built:
            standing = IndexState(FORM, built=False, path=path)
        rows[standing_row(prefix, field)] = packed(standing)
        number = self._commit.write(rows)
        self._indexes.moved(target)
        return number


class Declaring:
    """The handler of `IndexItems`, `UnindexItems` and `ListItemIndexes`."""

    def __init__(self, standings: Indexes) -> None:
        self._standings = standings
        self.checks: Checks = {IndexItems: self._check, UnindexItems: self._check}
        self.writers: Writers = {IndexItems: self._index, UnindexItems: self._unindex}
        self.readers: Readers = {ListItemIndexes: self._list}

    def _check(self, request: IndexItems | UnindexItems) -> None:
        check_label(request.items)
        if not 1 <= len(request.fields) <= ITEM_INDEXES_MAX:
            raise InvalidInput(
                f"1 to {ITEM_INDEXES_MAX} fields can be indexed at once; got {len(request.fields)}. Nothing was written."
            )
        for field in request.fields:
            check_name("field", field)

    def _index(self, context: WriteContext, request: IndexItems) -> ItemsIndexed:
        """Declare indexes; the reply names the fields that were not indexed before. They are built in the background.

        Raises:
            TooLarge: more than `ITEM_INDEXES_MAX` fields would be indexed.
        """
        there = set(items.fields(context.rows))
        new = tuple(field for field in dict.fromkeys(request.fields) if field not in there)
        if len(there) + len(new) > ITEM_INDEXES_MAX:
            raise TooLarge(
                f"{len(there)} fields of the items under {request.items!r} are indexed; at most "
                f"{ITEM_INDEXES_MAX} can be. Nothing was written. Drop an index that no search uses."
            )
        if not new:
            return ItemsIndexed([])
        change = items.Declare(new)
        context.apply(change)
        return ItemsIndexed(list(new))

    def _unindex(self, context: WriteContext, request: UnindexItems) -> ItemsIndexed:
        named = [(field, items.seen(context.rows, field)) for field in dict.fromkeys(request.fields)]
        there = tuple((field, seen) for field, seen in named if seen)
        if not there:
            return ItemsIndexed([])
        change = items.Drop(there)
        context.apply(change)
        return ItemsIndexed([field for field, _ in there])

    def _list(self, view: View, request: ListItemIndexes) -> ItemIndexes:
        check_label(request.items)
        standings = self._standings.of(view.target)
        return ItemIndexes(
            [ItemIndex(field, field in standings and standings[field].built) for field in items.fields(view.rows)]
        )
