"""Documents: Yjs updates as rows. `shoal.kinds.document.state.live` builds their content.

Law: the updates are the document. A row is put once and never changed, so that
replicas which hold the same operations hold equal rows, in any order.

Rows:

    U position₃₄      a Yjs v1 update (HLC order is a causal order)
    R name            [[kind, dot₂₄], …]: the kinds that the root was declared as, least dot first
    I name            the same for the kinds that were inferred, from updates of clients that declare none
    A client₈         [author, dot₂₄]: who edits under this Yjs client id, by the operation with the least dot
    G hash₃₂          [client, clocks, [position₃₄, …], roots]: a genesis, and the updates that brought it, in order

Root types carry no kind on the wire, so their kind travels beside the update.
Of two concurrent declarations the one with the least dot counts; the other stays listed, and
its content stays in the document. A declared kind counts before an inferred one
(`shoal.kinds.document.state.structs`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.document.state import repeats, yjs
from shoal.kinds.document.state.yjs import RootKind as RootKind
from shoal.raising import held
from shoal.records import NamedTuple

_UPDATE, _ROOT, _INFERRED, _AUTHOR = b"U", b"R", b"I", b"A"
_GENESIS = b"G"
# No update begins so: it would have 2³² − 1 clients. Snapshots without it may have surrogate pairs that the engine has split.
_FORM = b"\xff\xff\xff\xff\x0f"


class Update(msgspec.Struct, array_like=True, frozen=True, tag="update"):
    """The mutation. Its payload is the Yjs update."""

    digest: bytes  # SHA-256 of the payload.
    roots: dict[str, RootKind] = {}  # Declared.
    authors: dict[int, str] = {}  # By Yjs client id; the sender comes first.
    inferred: dict[str, RootKind] = {}  # By this update's use of roots that nobody declared.
    genesis: bytes = b""  # The hash of the beginning, if the update is one.
    attempt: repeats.Attempt | None = None  # The request of an edit that a node made.

    @property
    def kinds(self) -> dict[str, RootKind]:
        """Declared and inferred kinds together, by root."""
        return {**self.inferred, **self.roots}


Page = list[tuple[bytes, bytes]]
"""Some positions and updates."""


class Pace(NamedTuple):
    """How many stored updates are looked at before others get a turn."""

    updates: int
    bytes: int  # The first one may have more.
    whole: int  # Bytes of a merged update or a snapshot that is read in one step where somebody waits for the document.

    def is_full(self, page: Page) -> bool:
        """Whether a page of positions and updates takes no more."""
        return len(page) >= self.updates or sum(len(update) for _, update in page) >= self.bytes


class Declaration(NamedTuple):
    """A kind of a root, and the operation that declared it."""

    kind: RootKind
    dot: Dot


def apply(rows: Rows, stamp: Stamp, update: Update, payload: bytes) -> None:
    """Write an operation's rows. Total: `LiveDocument.check` decides whether the update may be issued at all."""
    rows.put(_UPDATE + stamp.pack_position(), payload)
    declare(rows, stamp, update)
    if update.genesis:
        row, position = _GENESIS + update.genesis, stamp.pack_position()
        with held("the Yjs engine failed at the beginning of a document", "Nothing was written."):
            from pycrdt import get_state  # The engine takes long to import, and a store may have no document.

            state = get_state(payload)
        client, clocks = next(iter(yjs.parse_state(state).items()), (0, 0))
        genesis = Beginning(client, clocks, [position], update.roots)
        if (packed := rows.get(row)) is not None:
            known = _unpack_genesis(packed)
            positions = sorted({*known.positions, position})
            # Clients bring beginnings too, and one might be wrong: the first in the order of all replicas counts.
            genesis = (genesis if positions[0] == position else known)._replace(positions=positions)
        rows.put(row, msgspec.msgpack.encode(tuple(genesis)))


def declare(rows: Rows, stamp: Stamp, update: Update) -> None:
    """Write the rows that go with an update: kinds of roots, authors, and the request."""
    if update.attempt is not None:
        repeats.note(rows, stamp, update.attempt)
    for row, kinds in ((_ROOT, update.roots), (_INFERRED, update.inferred)):
        for name, kind in kinds.items():
            found = {declared.kind: declared.dot for declared in _unpack(rows.get(row + name.encode()))}
            found[kind] = min(stamp.dot, found.get(kind, stamp.dot))
            ordered = sorted((dot.pack(), kind) for kind, dot in found.items())
            rows.put(row + name.encode(), msgspec.msgpack.encode([(kind, dot) for dot, kind in ordered]))
    for client, author in update.authors.items():
        row = _AUTHOR + client.to_bytes(8, "big")
        packed = rows.get(row)
        if packed is None or stamp.dot.pack() < _unpack_author(packed)[1]:
            rows.put(row, msgspec.msgpack.encode((author, stamp.dot.pack())))


class Beginning(NamedTuple):
    """A genesis, and the updates that brought it."""

    client: int
    clocks: int
    positions: list[bytes]  # Of its updates, which are equal: one from each node that made it without knowing of the others.
    roots: dict[str, RootKind]


def lost_geneses(rows: Rows, *, known: Callable[[bytes], bool] = lambda position: True) -> list[Beginning]:
    """The geneses that do not count: of those at known positions, all but the one with the least hash.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    return [genesis for genesis in _geneses(rows) if any(map(known, genesis.positions))][1:]


def beginnings(rows: Rows) -> set[bytes]:
    """The positions of the geneses' updates."""
    return {position for genesis in _geneses(rows) for position in genesis.positions}


def begun_with(rows: Rows) -> dict[bytes, dict[str, RootKind]]:
    """The hashes of all geneses, the one that counts first, and their roots."""
    return {row[1:]: _unpack_genesis(packed).roots for row, packed in rows.scan(_GENESIS)}


def is_begun_with(rows: Rows, digest: bytes) -> bool:
    """Whether the document has a genesis with this hash, counting or not."""
    return rows.get(_GENESIS + digest) is not None


def _geneses(rows: Rows) -> list[Beginning]:
    return [_unpack_genesis(packed) for _, packed in rows.scan(_GENESIS)]


def withdrawn(rows: Rows, *, known: Callable[[bytes], bool] = lambda position: True) -> bytes:
    """An update that deletes the content of geneses and repeats that do not count; it is empty if there are none."""
    deletes = [(lost.client, 0, lost.clocks) for lost in lost_geneses(rows, known=known) if lost.clocks]
    deletes += repeats.deletes(rows, known=known)
    return b"\x00" + yjs.pack_delete_set(deletes)


def repeated(rows: Rows, *, known: Callable[[bytes], bool]) -> bytes:
    """An update that deletes the content of repeats at known positions that do not count."""
    return b"\x00" + yjs.pack_delete_set(list(repeats.deletes(rows, known=known)))


def _unpack_genesis(packed: bytes) -> Beginning:
    try:
        return Beginning(*msgspec.msgpack.decode(packed, type=tuple[int, int, list[bytes], dict[str, RootKind]]))
    except ValueError as error:
        raise StoreCorrupt(
            f"a document's beginning cannot be read ({error}). Nothing was written; run `shoal verify`."
        ) from None


def payload_of(rows: Rows, stamp: Stamp, update: Update) -> bytes:
    """The Yjs update that was applied under `stamp`.

    Raises:
        StoreCorrupt: its row is missing or changed.
    """
    payload = rows.get(_UPDATE + stamp.pack_position())
    if payload is None or hashlib.sha256(payload).digest() != update.digest:
        raise StoreCorrupt(f"a document's update {stamp.dot} is missing or damaged. Nothing was written; run `shoal verify`.")
    return payload


def row_of(position: bytes) -> bytes:
    """The key of an update's row."""
    return _UPDATE + position


def holds(rows: Rows, stamp: Stamp) -> bool:
    """Whether the row of the update that was applied under `stamp` still exists."""
    return rows.get(row_of(stamp.pack_position())) is not None


def updates(rows: Rows, *, after: bytes | None = None, at: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Positions and updates in causal order: those strictly after position `after`, or the one at position `at`.

    A snapshot serves as the start only while it contains every update at or below its
    position; an operation that arrives below makes it void.
    """
    for key, payload in rows.scan(_UPDATE + at, after=None if after is None else _UPDATE + after):
        yield key[1:], payload


def pages(rows: Callable[[], Rows], pace: Pace, *, after: bytes | None = None) -> Iterator[Page]:
    """Positions and updates in causal order, some at a time, from strictly above position `after`.

    `rows` gives them as they are now. A page shows no update that came below the last one shown.
    """
    while True:
        page: Page = []
        size = 0
        for position, update in updates(rows(), after=after):
            page.append((position, update))
            size += len(update)
            if len(page) >= pace.updates or size >= pace.bytes:
                break
        if page:
            after = page[-1][0]
            yield page
        else:
            return


class Snapshot(NamedTuple):
    """A stored snapshot: the document as one update, and the position of the last update in it."""

    position: bytes
    update: bytes

    def pack(self) -> bytes:
        """The bytes to store; they begin with the position."""
        return self.position + _FORM + self.update

    @classmethod
    def unpack(cls, stored: bytes | None) -> Snapshot | None:
        """The snapshot in stored bytes; None if there are none, or if an older version made them."""
        if stored is None or not stored.startswith(_FORM, POSITION_BYTES):
            return None
        return cls(stored[:POSITION_BYTES], stored[POSITION_BYTES + len(_FORM) :])


def declarations(rows: Rows, name: str) -> list[Declaration]:
    """The kinds that a root was declared as, the one that counts first.

    Raises:
        StoreCorrupt: its row cannot be read.
    """
    return _unpack(rows.get(_ROOT + name.encode()))


def declared_by(rows: Rows, name: str) -> list[Dot]:
    """The operations that declared a root, or from which its kind was inferred."""
    return [declared.dot for row in (_ROOT, _INFERRED) for declared in _unpack(rows.get(row + name.encode()))]


def roots(rows: Rows) -> dict[str, RootKind]:
    """The roots and their kinds, by name.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    return {**_kinds(rows, _INFERRED), **declared_roots(rows)}


def declared_roots(rows: Rows) -> dict[str, RootKind]:
    """As `roots`, without those whose kind was only inferred."""
    return _kinds(rows, _ROOT)


def _kinds(rows: Rows, row: bytes) -> dict[str, RootKind]:
    geneses = _geneses(rows)
    lost = {dot_of(position) for genesis in geneses[1:] for position in genesis.positions}
    kinds: dict[str, RootKind] = {}
    for key, packed in rows.scan(row):
        name, first = key[1:].decode(), _unpack(packed)[0]
        # A declaration by a beginning that does not count yields to the beginning that does.
        kinds[name] = geneses[0].roots.get(name, first.kind) if first.dot in lost else first.kind
    return kinds


def dot_of(position: bytes) -> Dot:
    """The operation at a position."""
    return Dot.unpack(position[8 : 8 + DOT_BYTES])


def authors(rows: Rows) -> dict[int, str]:
    """The authors that gave their names, by Yjs client id.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    return {int.from_bytes(key[1:], "big"): _unpack_author(packed)[0] for key, packed in rows.scan(_AUTHOR)}


def is_named(rows: Rows, client: int) -> bool:
    """Whether the author of a Yjs client's content is known."""
    return rows.get(_AUTHOR + client.to_bytes(8, "big")) is not None


def _unpack_author(packed: bytes) -> tuple[str, bytes]:
    try:
        return msgspec.msgpack.decode(packed, type=tuple[str, bytes])
    except ValueError as error:
        raise StoreCorrupt(
            f"an author of a document cannot be read ({error}). Nothing was written; run `shoal verify`."
        ) from None


def _unpack(packed: bytes | None) -> list[Declaration]:
    if packed is None:
        return []
    try:
        found = msgspec.msgpack.decode(packed, type=list[tuple[RootKind, bytes]])
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"a document's root cannot be read ({error}). Nothing was written; run `shoal verify`.") from None
    return [Declaration(kind, Dot.unpack(dot)) for kind, dot in found]
