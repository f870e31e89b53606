"""Every key in the store, byte for byte, and the rows of the marks of peers. `docs/STORAGE.md` has the same as tables.

Laws:
- A key begins with its table's byte. Integers are big-endian and of fixed
  width, so that key order is number order.
- Each part of variable length except the last is preceded by its length (two
  bytes), so that no two tuples share a key and a scan of one object meets only
  that object's rows, whatever bytes its name holds.
- The last part runs to the end of the key, so that rows under one prefix are
  in the order of their last part: names list in byte order.

    M name                                            the store itself
    V partition₂ origin₁₆                             sequence, HLC, bytes and chain hash of an origin's log
    L partition₂ origin₁₆ sequence₈                   the operation log
    B partition₂ origin₁₆                             the same of the last operation that left an origin's log
    R partition₂ origin₁₆                             what is left of a retired origin; under zeros, a summary of all of them
    O partition₂ kind₁ space₂₊ₙ name₂₊ₙ row           an object's rows
    K partition₂ key                                  idempotency keys of requests
    C space₂₊ₙ kind₁ name                             catalog: which objects there are (derived)
    T space₂₊ₙ standing name                          threads by status, and by their oldest open step (derived)
    D partition₂ kind₁ space₂₊ₙ name₂₊ₙ               document snapshots (derived)
    X partition₂ kind₁ space₂₊ₙ name₂₊ₙ row           indexes of an object's fields (derived)
    G partition₂ origin₁₆ sequence₈ nth₂              garbage: what an operation erased, until it is gone
    E partition₂ kind₁ space₂₊ₙ name₂₊ₙ               the objects in the catalog that belong to a partition
    S partition₂ piece₄                               pieces of a peer's snapshot of a partition, until it is installed

The rows of the marks of peers (`shoal.cluster.peer_state`).

Laws:
- An entry never names a retired origin that this node has forgotten: the two go in one write
  (`shoal.node.collection.retiring`). Nobody could tell such an entry from one of an operation that this node never had.
- A node has entries only if its address is stored too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache

from shoal.crdt.dot import DOT_BYTES, HORIZON, ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.kinds import KINDS as KINDS
from shoal.kinds import Kind as Kind
from shoal.names import MEMOIZED_MAX
from shoal.storage.interface import Storage

_KIND_OF: dict[int, Kind] = {kind.value: kind for kind in Kind}

META = b"M"
VECTOR = b"V"
LOG = b"L"
BASE = b"B"
RETIRED = b"R"
OBJECT = b"O"
KEY = b"K"
CATALOG = b"C"
STATUS = b"T"
SNAPSHOT = b"D"
INDEX = b"X"
GARBAGE = b"G"
LISTED = b"E"
STAGED = b"S"

_SPACE_BEGINS = 6  # In a key with a partition and a kind, after the length of the space.

PARTITION_TABLES = (VECTOR, RETIRED, BASE, LISTED, OBJECT, LOG, KEY, GARBAGE)
"""The tables of which each row belongs to one partition, whose number follows the table's byte, and is not derived.

A snapshot of a partition holds its rows in these, in this order.
"""
DERIVED_TABLES = (SNAPSHOT, INDEX)
"""The same of derived rows: they are deleted when the partition is replaced, and made again when they are needed."""


def kind_of(number: int) -> Kind:
    """The kind of this number.

    Raises:
        ValueError: there is none.
    """
    return _KIND_OF.get(number) or Kind(number)  # An enum takes several calls to find a member.


def meta(name: str) -> bytes:
    """A row about the store itself, as the node's id or its origin."""
    return META + name.encode()


def vector(partition: int, origin: Origin | None = None) -> bytes:
    """The row of one origin, or with None the prefix of a partition's vector."""
    return VECTOR + partition.to_bytes(2, "big") + (origin or b"")


def log(partition: int, dot: Dot) -> bytes:
    """The log's row of one operation."""
    return LOG + partition.to_bytes(2, "big") + dot.pack()


def log_of(partition: int, origin: Origin | None = None) -> bytes:
    """The prefix of a partition's log, or of one origin's part of it."""
    return LOG + partition.to_bytes(2, "big") + (origin or b"")


def base(partition: int, origin: Origin | None = None) -> bytes:
    """The row of the last operation that left an origin's log, or with None the prefix of a partition's."""
    return BASE + partition.to_bytes(2, "big") + (origin or b"")


def retired(partition: int, origin: Origin | None = None) -> bytes:
    """The row of a retired origin, or with None the prefix of a partition's."""
    return RETIRED + partition.to_bytes(2, "big") + (origin or b"")


def retired_log(partition: int, time: int | None = None, origin: Origin = Origin(b"")) -> bytes:
    """The row that queues the log of an origin that was retired at a time, or with None the prefix of a partition's."""
    return retired(partition, HORIZON) + (b"" if time is None else time.to_bytes(8, "big") + origin)


def split_log(key: bytes) -> tuple[int, Dot]:
    """The partition and the dot of a key that `log` made."""
    return int.from_bytes(key[1:3], "big"), Dot.unpack(key[3 : 3 + DOT_BYTES])


@lru_cache(maxsize=MEMOIZED_MAX)
def object_rows(partition: int, kind: Kind, space: str, name: str) -> bytes:
    """The prefix of an object's rows."""
    return OBJECT + partition.to_bytes(2, "big") + _identity(kind, space, name)


def split_object(key: bytes) -> tuple[int, Kind, str, str, bytes]:
    """Partition, kind, space, name and the row's own key. It also splits keys below `index_rows`, and of `listed`."""
    space_ends = _space_ends(key)
    name_ends = space_ends + 2 + int.from_bytes(key[space_ends : space_ends + 2], "big")
    kind = kind_of(key[3])
    space, name = key[_SPACE_BEGINS:space_ends].decode(), key[space_ends + 2 : name_ends].decode()
    return int.from_bytes(key[1:3], "big"), kind, space, name, key[name_ends:]


def object_of(key: bytes) -> bytes:
    """The beginning of the keys of all rows of an object, given one that `split_object` splits; it is not checked."""
    space_ends = _space_ends(key)
    return key[: space_ends + 2 + int.from_bytes(key[space_ends : space_ends + 2], "big")]


def space_of(key: bytes) -> bytes:
    """The same of all objects of this kind in the object's space."""
    return key[: _space_ends(key)]


def catalog_of_listed(key: bytes) -> bytes:
    """The catalog's entry of an object, given its key in the list of its partition."""
    space_ends = _space_ends(key)
    return CATALOG + key[4:space_ends] + key[3:4] + key[space_ends + 2 :]


@lru_cache(maxsize=MEMOIZED_MAX)
def index_rows(partition: int, kind: Kind, space: str, name: str) -> bytes:
    """The prefix of the rows of an object's indexes."""
    return INDEX + partition.to_bytes(2, "big") + _identity(kind, space, name)


def snapshot(partition: int, kind: Kind, space: str, name: str) -> bytes:
    """The row of a document's snapshot."""
    return SNAPSHOT + partition.to_bytes(2, "big") + _identity(kind, space, name)


def garbage(partition: int, dot: Dot, nth: int) -> bytes:
    """The row of the garbage that the `nth` mutation of an operation left."""
    return GARBAGE + partition.to_bytes(2, "big") + dot.pack() + nth.to_bytes(2, "big")


def split_garbage(key: bytes) -> tuple[int, Dot]:
    """The partition and the dot of a key that `garbage` made."""
    return int.from_bytes(key[1:3], "big"), Dot.unpack(key[3 : 3 + DOT_BYTES])


def listed(partition: int, kind: Kind, space: str, name: str) -> bytes:
    """The row of an object in the list of its partition."""
    return LISTED + partition.to_bytes(2, "big") + _identity(kind, space, name)


def staged(partition: int, piece: int | None = None) -> bytes:
    """The row of a staged piece, or with None the prefix of a partition's."""
    return STAGED + partition.to_bytes(2, "big") + (b"" if piece is None else piece.to_bytes(4, "big"))


def rows_of(table: bytes, partition: int) -> tuple[bytes, bytes]:
    """The key range of a partition's rows in one of its tables."""
    return table + partition.to_bytes(2, "big"), table + (partition + 1).to_bytes(2, "big")


def request_key(partition: int, key: str) -> bytes:
    """The row of an idempotency key in the idempotency table."""
    return KEY + partition.to_bytes(2, "big") + key.encode()


@lru_cache(maxsize=MEMOIZED_MAX)
def catalog(space: str, kind: Kind, name: str = "") -> bytes:
    """An object's entry; with an empty name (none is legal) the prefix of its kind."""
    return catalog_of(space) + bytes([kind]) + name.encode()


def catalog_of(space: str) -> bytes:
    """The prefix of a space's entries in the catalog."""
    return CATALOG + _sized(space)


def split_catalog(key: bytes) -> tuple[str, Kind, str]:
    """Space, kind and name of a key that `catalog` made for an object."""
    space, rest = _take(key[1:])
    return space.decode(), Kind(rest[0]), rest[1:].decode()


OPEN = 6
"""The code of threads that run and have an open step, which the position of the oldest one follows."""
ASKING = 7
"""The code of threads in which a graph waits for an answer. They may stand under `OPEN` too."""
_TIMED_BYTES = 5  # This code, and such a time.


def status(space: str, standing: bytes, name: str = "") -> bytes:
    """A thread's entry among those of a standing: the code of a status, or `open_since`. Without a name, the prefix of all.

    Of a position it has the time in units of about a minute. So a thread that makes many short steps has its entry under few
    keys: rows that were deleted delay a scan until they are compacted.
    """
    return STATUS + _sized(space) + listed_under(standing) + name.encode()


def listed_under(standing: bytes) -> bytes:
    """The part of a standing that is in a key of `status`."""
    return standing[:_TIMED_BYTES]


def open_since(position: bytes) -> bytes:
    """The standing of a thread whose oldest open step has this position."""
    return bytes([OPEN]) + position.ljust(_TIMED_BYTES - 1, b"\0")


def split_status(key: bytes) -> tuple[str, bytes, str]:
    """Space, standing, and name of a key that `status` made."""
    space, rest = _take(key[1:])
    size = _TIMED_BYTES if rest[:1] == bytes([OPEN]) else 1
    return space.decode(), rest[:size], rest[size:].decode()


def _space_ends(key: bytes) -> int:
    return _SPACE_BEGINS + int.from_bytes(key[4:_SPACE_BEGINS], "big")


def _identity(kind: Kind, space: str, name: str) -> bytes:
    return bytes([kind]) + _sized(space) + _sized(name)


def _sized(part: str) -> bytes:
    encoded = part.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def _take(packed: bytes) -> tuple[bytes, bytes]:
    end = 2 + int.from_bytes(packed[:2], "big")
    return packed[2:end], packed[end:]


_MARK = meta("mark/")  # node₁₆ partition₂ origin₁₆ → sequence₈
_ADDRESS = meta("marked/")  # node₁₆ → the address at which it was reached last.
_NODE_BYTES = 16
_PLACE_BYTES = 2 + ORIGIN_BYTES + 1  # Longer than any place.


def entry(node: bytes, partition: int, origin: Origin) -> bytes:
    """The key of the entry of an origin in the mark of a node."""
    return _MARK + node + partition.to_bytes(2, "big") + origin


def split_entry(key: bytes) -> tuple[bytes, int, Origin] | None:
    """The node, the partition and the origin in the key of an entry; None: it is another key."""
    if not key.startswith(_MARK):
        return None
    node, place = key[len(_MARK) : len(_MARK) + _NODE_BYTES], key[len(_MARK) + _NODE_BYTES :]
    return node, int.from_bytes(place[:2], "big"), Origin(place[2:])


def entries(node: bytes) -> tuple[bytes, bytes]:
    """The range of all entries of a node."""
    first = _MARK + node
    return first, first + b"\xff" * _PLACE_BYTES


def address(node: bytes) -> bytes:
    """The key of the address at which a node was reached last."""
    return _ADDRESS + node


def addresses(storage: Storage) -> Iterator[tuple[bytes, bytes]]:
    """The nodes with the addresses at which each was reached last, by node."""
    for key, found in storage.scan(_ADDRESS, successor(_ADDRESS)):
        yield key[len(_ADDRESS) :], found


def vectors(storage: Storage) -> dict[bytes, dict[int, VersionVector]]:
    """The marks, by node and partition."""
    found: dict[bytes, dict[int, dict[Origin, int]]] = defaultdict(lambda: defaultdict(dict))
    for key, sequence in storage.scan(_MARK, successor(_MARK)):
        split = split_entry(key)
        assert split is not None
        node, partition, origin = split
        found[node][partition][origin] = int.from_bytes(sequence, "big")
    return {node: {partition: VersionVector(vector) for partition, vector in each.items()} for node, each in found.items()}


def is_any(storage: Storage) -> bool:
    """Whether another node was ever reached."""
    return bool(list(storage.scan(_ADDRESS, successor(_ADDRESS), limit=1)))


def without(storage: Storage, partition: int, origins: Collection[Origin]) -> dict[bytes, bytes | None]:
    """The rows that delete what all marks say of these origins."""
    nodes = [node for node, _ in addresses(storage)]
    return {entry(node, partition, origin): None for node in nodes for origin in sorted(origins)}
