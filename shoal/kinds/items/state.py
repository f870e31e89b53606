"""Items, values under a namespace and a key; and the fields of items that are indexed.

Items: values under a namespace and a key, one object for each first label.

Laws (observed-remove, with causal delivery in place of tombstones):
- A put, a delete and an expiry name the dots of the entries that they replace:
  those which their origin showed. Causal delivery has brought these to every
  replica before; so an entry is live if no operation names it, and the live
  entries are all the state there is.
- So adding wins: a put that a delete has not seen stays. Concurrent puts all
  stay; the greatest (HLC, dot) is the item's value, the others are its siblings,
  until a put or delete that has seen them. If one request was sent to several
  nodes, the entry with the least dot is shown.
- An item is shown until the last of its entries expires; an entry without a time
  to live never does. A refresh moves the expiry of the entries that it names, to
  the greatest time that any refresh gave. It adds nothing: a delete or an expiry of
  the entry removes it even if it has not seen the refresh.
- Nothing here reads a clock: the caller passes `now_ms`, which decides what is
  expired. Expired rows are erased by an operation like any other.

Rows (a *path* is each label after the first with a 0 byte behind it, one more 0
byte, and the key; so paths are in the order of (namespace, key), and everything below a
namespace is one range. No label holds a 0 byte or is empty):
    I path                       msgpack [[position₃₄, wall_ms, created_ms, ttl_ms, expires_ms, key, value], …], by position
    T expires_ms₈ path           nothing: when the item expires (derived)
    E path 00 position₃₄         msgpack [vector, …]: those of the entry at this position, if it has any

The fields of items that are indexed: declared once for all replicas, within the items' own object.

A second engine for indexes beside RocksDB would be a second durable state, to be committed together with the first. As rows
of the object they would have to be equal on all nodes, and be built within the operation that declares them.

Laws (observed-remove, as for items):
- A field is indexed while a declaration of it is live: one that no drop has named. So a
  declaration that a drop has not seen stays, and concurrent declarations all stay until a
  drop that has seen them.
- A declaration changes no item and no answer. Each node builds and keeps its own index
  (`shoal/kinds/items/serving/indexes.py`).

Rows (beside the items'):
    X field      the dots of its live declarations, in order: 24 bytes each
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.records import NamedTuple

ITEM, EXPIRY, VECTORS = b"I", b"T", b"E"
NEVER = 0  # As a time to live, or as the time of an expiry.

Rest = tuple[str, ...]
"""A namespace less its first label, which names the object."""

Seen = tuple[tuple[bytes, int], ...]
"""The dots of entries: origin and sequence."""


class Put(msgspec.Struct, array_like=True, frozen=True, tag="put-item"):
    """A mutation: puts a value under a namespace and a key, in place of the entries in `seen`."""

    rest: Rest
    key: str
    value: bytes
    seen: Seen
    created_ms: int  # Of the item that it replaces; this put's own time if there was none.
    ttl_ms: int = NEVER
    expires_ms: int = NEVER
    request: str | None = None  # The request's own key.
    vectors: tuple[bytes, ...] = ()  # For searches by similarity, in the form of `shoal.values.forms`.


class Delete(msgspec.Struct, array_like=True, frozen=True, tag="delete-item"):
    """A mutation, and a part of `Expire`: removes the entries in `seen`."""

    rest: Rest
    key: str
    seen: Seen


class Refreshed(msgspec.Struct, array_like=True, frozen=True):
    """The new expiry of one item's entries."""

    rest: Rest
    key: str
    seen: Seen
    expires_ms: int


class Refresh(msgspec.Struct, array_like=True, frozen=True, tag="refresh-items"):
    """A mutation: moves the expiry of these items."""

    items: tuple[Refreshed, ...]


class Expire(msgspec.Struct, array_like=True, frozen=True, tag="expire-items"):
    """A mutation: erases items that had expired when it was issued."""

    items: tuple[Delete, ...]


class StoredItem(msgspec.Struct, array_like=True, frozen=True):
    """A live entry: the result of one put."""

    position: bytes
    wall_ms: int
    created_ms: int
    ttl_ms: int
    expires_ms: int
    request: str | None
    value: bytes

    @property
    def dot(self) -> Dot:
        """The operation that put it."""
        return Dot.unpack(self.position[8 : 8 + DOT_BYTES])


class Item(NamedTuple):
    """An item as its rows show it, expired or not."""

    rest: Rest
    key: str
    entries: list[StoredItem]  # The latest first; one for each request.
    seen: Seen  # All live entries. A put or delete that is based on this read replaces them.
    expires_ms: int  # When the last entry expires, or NEVER.

    @property
    def latest(self) -> StoredItem:
        """The entry that is the item's value; the others are its siblings."""
        return self.entries[0]

    @property
    def version(self) -> str:
        """32 hex digits, which differ if the values differ; a refresh does not change them."""
        return sha256(b"".join(entry.position for entry in self.entries)).hexdigest()[:32]

    def is_expired(self, now_ms: int) -> bool:
        """Whether the last entry has expired at `now_ms`, milliseconds since 1970."""
        return self.expires_ms != NEVER and self.expires_ms <= now_ms


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[StoredItem])
_vectors = msgspec.msgpack.Decoder(tuple[bytes, ...])
_address = msgspec.json.Decoder(list[str])


# ── changes ───────────────────────────────────────────────────────────────────


def apply_put(rows: Rows, stamp: Stamp, put: Put) -> None:
    """Put the entry, and remove the entries that it has seen."""
    path = path_of(put.rest, put.key)
    before = _entries(rows, path)
    entry = StoredItem(stamp.pack_position(), stamp.wall_ms, put.created_ms, put.ttl_ms, put.expires_ms, put.request, put.value)
    _store(rows, path, before, [*_unseen(before, put.seen, stamp), entry])
    if put.vectors:
        rows.put(_vectors_row(path, entry.position), _encoder.encode(put.vectors))


def apply_delete(rows: Rows, stamp: Stamp, delete: Delete) -> None:
    """Remove the entries that it has seen."""
    path = path_of(delete.rest, delete.key)
    before = _entries(rows, path)
    _store(rows, path, before, _unseen(before, delete.seen, stamp))


def apply_refresh(rows: Rows, stamp: Stamp, refresh: Refresh) -> None:
    """Move the expiry of the entries that it has seen to a later time; entries without a time to live stay as they are."""
    del stamp  # The outcome does not depend on the issuer or the time.
    for refreshed in refresh.items:
        path = path_of(refreshed.rest, refreshed.key)
        before = _entries(rows, path)
        _store(rows, path, before, [_refreshed(entry, refreshed) for entry in before])


def apply_expire(rows: Rows, stamp: Stamp, expire: Expire) -> None:
    """Remove the entries that it has seen of each item."""
    for erased in expire.items:
        apply_delete(rows, stamp, erased)


def _unseen(entries: list[StoredItem], seen: Seen, stamp: Stamp) -> list[StoredItem]:
    """The entries that stay: neither named, nor put before by the same operation."""
    return [entry for entry in entries if entry.dot not in seen and entry.dot != stamp.dot]


def _refreshed(entry: StoredItem, refreshed: Refreshed) -> StoredItem:
    if entry.ttl_ms == NEVER or entry.dot not in refreshed.seen or refreshed.expires_ms <= entry.expires_ms:
        return entry
    return msgspec.structs.replace(entry, expires_ms=refreshed.expires_ms)


# ── reads ─────────────────────────────────────────────────────────────────────


def find(rows: Rows, rest: Sequence[str], key: str) -> Item | None:
    """The item, expired or not; None if there is none."""
    path = path_of(rest, key)
    entries = _entries(rows, path)
    return _item(path, entries) if entries else None


def below(rows: Rows, rest: Sequence[str], *, after: bytes = b"") -> Iterator[tuple[bytes, int, Item]]:
    """Path, bytes and item of all items in a namespace and below it, in order, expired or not; `after` is a path, exclusive."""
    for path, stored in stored_below(rows, rest, after=after):
        yield path, len(stored), of_row(path, stored)


def stored_after(rows: Rows, path: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Path and `I` row of every item after a path, expired or not. An empty path is before all items."""
    for row, stored in rows.scan(ITEM, after=ITEM + path if path else None):
        yield row[1:], stored


def with_vectors(
    rows: Rows, rest: Sequence[str], *, after: bytes = b""
) -> Iterator[tuple[bytes, dict[bytes, tuple[bytes, ...]]]]:
    """The items in a namespace and below it that have vectors, by path: the path, and the vectors by their entries' positions.

    `after` is a path, exclusive.
    """
    last, found = b"", dict[bytes, tuple[bytes, ...]]()
    for row, stored in rows.scan(VECTORS + labels_of(rest), after=VECTORS + after + b"\x01" if after else None):
        path, position = row[1 : -POSITION_BYTES - 1], row[-POSITION_BYTES:]
        if path != last and found:
            yield last, found
            found = {}
        last = path
        found[position] = _vectors.decode(stored)
    if found:
        yield last, found


def vectors_of(rows: Rows, path: bytes, entry: StoredItem) -> tuple[bytes, ...]:
    """The vectors of one entry; none if it was put without."""
    stored = rows.get(_vectors_row(path, entry.position))
    return () if stored is None else _vectors.decode(stored)


def stored_below(rows: Rows, rest: Sequence[str], *, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Path and `I` row of all items in a namespace and below it, as `below`."""
    for row, stored in rows.scan(ITEM + labels_of(rest), after=ITEM + after if after else None):
        yield row[1:], stored


def past(rest: Sequence[str], *, deeper: bool) -> bytes:
    """A place to continue after, so as to skip the items of a namespace; with `deeper` also those of the namespaces below it.

    No path is equal to it: a label holds no byte 1, which is a control character.
    """
    return (labels_of(rest)[:-1] if deeper else labels_of(rest)) + b"\x01"


def expired(rows: Rows, before_ms: int, *, limit: int) -> list[Item]:
    """Up to `limit` items that expired before a time, the longest expired first."""
    found: list[Item] = []
    for row, _ in rows.scan(EXPIRY, limit=limit):
        if int.from_bytes(row[1:9], "big") >= before_ms:
            break
        path = row[9:]
        found.append(_item(path, _entries(rows, path)))
    return found


# ── rows ──────────────────────────────────────────────────────────────────────


def path_of(rest: Sequence[str], key: str) -> bytes:
    """The path of an item, as the module's text describes it."""
    return labels_of(rest) + b"\x00" + key.encode()


def of_row(path: bytes, stored: bytes) -> Item:
    """The item of an `I` row."""
    return _item(path, _decoder.decode(stored))


def latest_of(stored: bytes) -> bytes:
    """The value that an `I` row shows."""
    return _shown(_decoder.decode(stored))[0].value


def value_of(stored: bytes, now_ms: int) -> bytes | None:
    """The value that an `I` row shows; None if the item has expired. It takes less than `of_row`."""
    entries = _decoder.decode(stored)
    expires_ms = _expiry(entries)
    return None if NEVER != expires_ms <= now_ms else _shown(entries)[0].value


def split_path(path: bytes) -> tuple[Rest, str]:
    """The labels after the first, and the key."""
    labels: list[str] = []
    while (end := path.index(b"\x00")) > 0:
        labels.append(path[:end].decode())
        path = path[end + 1 :]
    return tuple(labels), path[1:].decode()


def address(first: str, rest: Sequence[str], key: str) -> str:
    """An item's whole name as text, for watchers: a JSON array of its labels and its key."""
    return msgspec.json.encode([first, *rest, key]).decode()


def split_address(address: str) -> tuple[tuple[str, ...], str]:
    """The whole namespace and the key of an `address`."""
    *labels, key = _address.decode(address)
    return tuple(labels), key


def labels_of(rest: Sequence[str]) -> bytes:
    """The common beginning of the paths of a namespace and of those below it."""
    return b"".join(label.encode() + b"\x00" for label in rest)


def _entries(rows: Rows, path: bytes) -> list[StoredItem]:
    stored = rows.get(ITEM + path)
    return [] if stored is None else _decoder.decode(stored)


def _store(rows: Rows, path: bytes, before: list[StoredItem], after: list[StoredItem]) -> None:
    if after == before:
        return
    kept = {entry.position for entry in after}
    for entry in before:
        if entry.position not in kept and rows.get(row := _vectors_row(path, entry.position)) is not None:
            rows.delete(row)
    due, due_now = _expiry(before), _expiry(after)
    if due != due_now and due != NEVER:
        rows.delete(_expiry_row(due, path))
    if due_now not in (due, NEVER):
        rows.put(_expiry_row(due_now, path), b"")
    if after:
        rows.put(ITEM + path, _encoder.encode(sorted(after, key=lambda entry: entry.position)))
    else:
        rows.delete(ITEM + path)


def _expiry(entries: list[StoredItem]) -> int:
    """When the last of them expires; NEVER if one does not, or if there is none."""
    times = [entry.expires_ms for entry in entries]
    return NEVER if NEVER in times else max(times, default=NEVER)


def _vectors_row(path: bytes, position: bytes) -> bytes:
    return VECTORS + path + b"\x00" + position


def _expiry_row(expires_ms: int, path: bytes) -> bytes:
    return EXPIRY + expires_ms.to_bytes(8, "big") + path


def _item(path: bytes, entries: list[StoredItem]) -> Item:
    rest, key = split_path(path)
    seen = tuple(sorted(entry.dot for entry in entries))
    return Item(rest, key, _shown(entries), seen, _expiry(entries))


def _shown(entries: list[StoredItem]) -> list[StoredItem]:
    """The latest first; of those that one request made, the least dot's alone."""
    if len(entries) == 1:
        return entries
    least: dict[str, StoredItem] = {}
    for entry in entries:
        if entry.request is not None and entry.dot < least.setdefault(entry.request, entry).dot:
            least[entry.request] = entry
    shown = [entry for entry in entries if entry.request is None or least[entry.request] is entry]
    return sorted(shown, key=lambda entry: entry.position, reverse=True)


INDEX = b"X"

"""The dots of declarations: origin and sequence."""


class Declare(msgspec.Struct, array_like=True, frozen=True, tag="declare-index"):
    """A mutation: index these fields."""

    fields: tuple[str, ...]


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop-index"):
    """A mutation: removes declarations of these fields, as far as the issuer had seen them."""

    fields: tuple[tuple[str, Seen], ...]


def apply_declare(rows: Rows, stamp: Stamp, declare: Declare) -> None:
    """Add a live declaration of each field."""
    for field in declare.fields:
        _store_index(rows, field, {*seen(rows, field), stamp.dot})


def apply_drop(rows: Rows, stamp: Stamp, drop: Drop) -> None:
    """Remove the declarations that the drop names, and those of its own operation before it."""
    for field, named in drop.fields:
        # A declaration of the same operation is removed too: it comes before the drop.
        _store_index(rows, field, {dot for dot in seen(rows, field) if dot not in named and dot != stamp.dot})


def seen(rows: Rows, field: str) -> tuple[Dot, ...]:
    """The live declarations of a field. A drop that is based on this read names them."""
    packed = rows.get(INDEX + field.encode()) or b""
    return tuple(Dot.unpack(packed[at : at + DOT_BYTES]) for at in range(0, len(packed), DOT_BYTES))


def fields(rows: Rows) -> Iterator[str]:
    """The fields that are indexed, in the order of their bytes."""
    for row, _ in rows.scan(INDEX):
        yield row[1:].decode()


def _store_index(rows: Rows, field: str, live: set[Dot]) -> None:
    row = INDEX + field.encode()
    if live:
        rows.put(row, b"".join(dot.pack() for dot in sorted(live)))
    elif rows.get(row) is not None:
        rows.delete(row)


HIDDEN: dict[int, int] = {}
"""Where content begins in the keys of rows, by their first byte: nowhere."""
