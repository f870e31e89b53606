"""Documents: Yjs updates as rows, and the live replica that they build.

Laws:
- The updates are the document. A row is put once and never changed, so that
  replicas which hold the same operations hold equal rows, in any order.
- A live document holds whole causal histories only: `check` decides whether an
  update is ready, well formed and within bounds before the engine sees it.
- Equal `canonical` bytes mean equal documents. A state vector alone is no
  digest, for deletions do not move it.

Rows:

    U position₃₄      a Yjs v1 update (HLC order is a causal order)
    R name            [[kind, dot₂₄], …]: what the root was declared as, least dot first
    I name            the same for what it was taken for, by an update of a client that declares nothing
    A client₈         [author, dot₂₄]: who edits under this Yjs client id, as the least dot says
    G hash₃₂          [client, clocks, position₃₄, roots]: a genesis, as its least position brought it

Root types carry no kind on the wire, so their kind travels beside the update.
Of two concurrent declarations the least dot counts; the other stays listed, and
its content stays in the document. What a root was declared as counts before what
it was taken for (`shoal.crdt.inference`). Numbers are floats to the engine: an integer
within ±(2⁵³ − 1) comes back as it was (and an integral float as an integer); a
longer one is kept only in the memory of the replica that set it, and is rounded
on the wire and on disk, which is why it is shown rounded everywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pycrdt

from shoal import values
from shoal.crdt import yjs
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.inference import infer
from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.yjs import RootKind as RootKind
from shoal.errors import InvalidValue, RootConflict, ShoalError, StoreCorrupt, TooLarge
from shoal.names import check_name

EMPTY = b"\x00\x00"
"""The update that brings nothing."""

EMPTY_STATE = b"\x00"
# Shared types within shared types: the engine frees them recursively, and overflows its stack past some 10,000.
# With `VALUE_DEPTH_MAX` it also keeps every document within the depth that `shoal.values` shows as JSON, 128.
NESTING_MAX = 64
EXACT_INTEGER_MAX = 2**53 - 1
_TYPES_KNOWN_MAX = 65_536  # Ids of shared types whose depth is remembered; past it they are forgotten.

_KINDS: dict[RootKind, type[Any]] = {"map": pycrdt.Map, "array": pycrdt.Array, "text": pycrdt.Text}
_UPDATE, _ROOT, _INFERRED, _AUTHOR = b"U", b"R", b"I", b"A"
_GENESIS = b"G"
_MERGED_AT_ONCE = 32  # The engine's merge takes time that grows with the square of what it merges.


class Update(msgspec.Struct, array_like=True, frozen=True, tag="update"):
    """The mutation. Its payload is the Yjs update."""

    digest: bytes  # SHA-256 of the payload.
    roots: dict[str, RootKind] = {}  # Declared.
    authors: dict[int, str] = {}  # By Yjs client id; the sender comes first.
    inferred: dict[str, RootKind] = {}  # What roots were taken for.
    genesis: bytes = b""  # Of a beginning: its hash.

    @property
    def kinds(self) -> dict[str, RootKind]:
        return {**self.inferred, **self.roots}


class Declaration(NamedTuple):
    kind: RootKind
    dot: Dot


def apply(rows: Rows, stamp: Stamp, update: Update, payload: bytes) -> None:
    """Put an operation's rows. Total: whether the update may be issued at all is `LiveDocument.check`'s business."""
    rows.put(_UPDATE + stamp.pack_position(), payload)
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

    if update.genesis:
        row, position = _GENESIS + update.genesis, stamp.pack_position()
        before = rows.get(row)
        if before is None or position < _unpack_genesis(before).position:
            client, clocks = next(iter(yjs.parse_state(pycrdt.get_state(payload)).items()), (0, 0))
            rows.put(row, msgspec.msgpack.encode((client, clocks, position, update.roots)))


class Beginning(NamedTuple):
    """A genesis."""

    client: int
    clocks: int
    position: bytes  # Of its update.
    roots: dict[str, RootKind]


def lost_geneses(rows: Rows, *, known: Callable[[bytes], bool] = lambda position: True) -> list[Beginning]:
    """Of those at known positions all but that with the least hash.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    return [genesis for genesis in _geneses(rows) if known(genesis.position)][1:]


def _geneses(rows: Rows) -> list[Beginning]:
    return [_unpack_genesis(packed) for _, packed in rows.scan(_GENESIS)]


def withdrawn(rows: Rows, *, known: Callable[[bytes], bool] = lambda position: True) -> bytes:
    """An update that deletes what geneses brought that do not count; `EMPTY` if there are none."""
    deletes = [(lost.client, 0, lost.clocks) for lost in lost_geneses(rows, known=known) if lost.clocks]
    return b"\x00" + yjs.pack_delete_set(deletes)


def _unpack_genesis(packed: bytes) -> Beginning:
    try:
        return Beginning(*msgspec.msgpack.decode(packed, type=tuple[int, int, bytes, dict[str, RootKind]]))
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


def updates(rows: Rows, *, after: bytes | None = None, at: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Positions and updates in causal order, from strictly above position `after`, or that at a position.

    A snapshot serves as the start only while every update at or below its
    position is in it; an operation that arrives below makes it void.
    """
    for key, payload in rows.scan(_UPDATE + at, after=None if after is None else _UPDATE + after):
        yield key[1:], payload


def declarations(rows: Rows, name: str) -> list[Declaration]:
    """What a root was declared as, the one that counts first.

    Raises:
        StoreCorrupt: its row cannot be read.
    """
    return _unpack(rows.get(_ROOT + name.encode()))


def declared_by(rows: Rows, name: str) -> list[Dot]:
    """The operations that declared a root, or took it for something."""
    return [declared.dot for row in (_ROOT, _INFERRED) for declared in _unpack(rows.get(row + name.encode()))]


def roots(rows: Rows) -> dict[str, RootKind]:
    """The roots and their kinds, by name.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    return {**_kinds(rows, _INFERRED), **declared_roots(rows)}


def declared_roots(rows: Rows) -> dict[str, RootKind]:
    """Those that somebody declared; raises as `roots` does."""
    return _kinds(rows, _ROOT)


def _kinds(rows: Rows, row: bytes) -> dict[str, RootKind]:
    geneses = _geneses(rows)
    lost = {dot_of(genesis.position) for genesis in geneses[1:]}
    kinds: dict[str, RootKind] = {}
    for key, packed in rows.scan(row):
        name, first = key[1:].decode(), _unpack(packed)[0]
        # What a beginning that does not count declared is no more than what the one that counts did.
        kinds[name] = geneses[0].roots.get(name, first.kind) if first.dot in lost else first.kind
    return kinds


def dot_of(position: bytes) -> Dot:
    """The operation at a position."""
    return Dot.unpack(position[8 : 8 + DOT_BYTES])


def authors(rows: Rows) -> dict[int, str]:
    """Who edits, by Yjs client id, of those who said so.

    Raises:
        StoreCorrupt: a row cannot be read.
    """
    return {int.from_bytes(key[1:], "big"): _unpack_author(packed)[0] for key, packed in rows.scan(_AUTHOR)}


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


class Together(NamedTuple):
    """Updates of several clients, as one that was applied."""

    update: bytes
    inferred: dict[str, RootKind]  # What the roots that nobody had declared were taken for.


class LiveDocument:
    """A document in memory. It never edits by itself; `fork` does."""

    def __init__(
        self,
        *,
        bytes_max: int,
        roots_max: int,
        snapshot: bytes = EMPTY,
        updates: Iterable[bytes] = (),
        roots: Mapping[str, RootKind] = {},
        declared: Iterable[str] | None = None,
    ) -> None:
        """Build it from a snapshot and the updates after it, in causal order; of its `roots` all are `declared`, or these.

        Raises:
            StoreCorrupt: they cannot be read, or one of them builds on another that is missing.
        """
        self._bytes_max, self._roots_max = bytes_max, roots_max
        self.sound = True  # False once the engine refused what had passed the check: to be built again.
        self.roots: dict[str, RootKind] = dict(roots)
        self._inferred = set() if declared is None else set(roots).difference(declared)
        self._doc, held = _built(snapshot, updates)
        self._state = yjs.parse_state(self._doc.get_state())
        self._bytes = held  # An upper bound of the whole state's size.
        # How deep shared types nest: an upper bound too, measured when it matters. To begin with, nothing is known.
        self._deepest = NESTING_MAX if self._state else 0
        self._shared: dict[tuple[int, int], int] = {}

    def integrate(self, update: bytes, roots: Mapping[str, RootKind]) -> None:
        """Apply an update, or leave the document as it is.

        Raises:
            NotReady, InvalidValue, RootConflict, TooLarge: as `check` says.
        """
        self._apply(update, roots, self._checked(update, roots))

    def integrate_all(self, updates: Sequence[bytes]) -> Together | None:
        """Apply updates of clients that declare no roots, all of them or none; None if they bring nothing new.

        Raises:
            NotReady, InvalidValue, InvalidName, RootConflict, TooLarge: as `check` says; one of them is to blame.
        """
        for update in updates:
            self._check_update_size(len(update))
        parsed = yjs.joined([yjs.parse(update) for update in updates])
        inferred = infer(parsed, self.roots)
        self._check_roots(inferred)
        self._check_use(parsed, {**self.roots, **inferred})
        update = merged(updates)
        self._check_size(len(update))
        advanced = self._advanced(parsed)
        deleted = self._deleted() if advanced.state == self._state else None  # Only deletions can be new.
        self._apply(update, inferred, advanced)
        self._inferred.update(inferred)
        if deleted is not None and deleted == self._deleted():
            return None
        return Together(update, inferred)

    def merge(self, update: bytes) -> None:
        """Apply an update that another replica has checked, whose bounds and roots were that one's to decide.

        Raises:
            NotReady, InvalidValue: it cannot be applied; build the document again from its rows.
        """
        self._apply(update, {}, self._advanced(yjs.parse(update)))

    def _apply(self, update: bytes, roots: Mapping[str, RootKind], advanced: yjs.Advanced) -> None:
        self.sound = False
        with engine("an update was refused by the Yjs engine"):
            self._doc.apply_update(update)
        self.sound = True
        self.roots.update(roots)
        self._inferred.difference_update(roots)
        self._state = advanced.state
        self._bytes += len(update)
        self._deepest = advanced.deepest
        if len(self._shared) > _TYPES_KNOWN_MAX:
            self._shared.clear()
        self._shared.update(advanced.shared)

    def check(self, update: bytes, roots: Mapping[str, RootKind]) -> None:
        """Decide whether `integrate` would apply an update.

        Raises:
            NotReady: it depends on one that is missing here.
            InvalidValue: it is no Yjs update of values, maps, arrays and texts, or uses a root without declaring it.
            InvalidName: a root's name is not legal.
            RootConflict: a root is, or is used, as another kind.
            TooLarge: the update or the document would be over its bound.
        """
        self._checked(update, roots)

    @property
    def size(self) -> int:
        """An upper bound of the bytes of the whole state, encoded."""
        return self._bytes

    @property
    def clients(self) -> list[int]:
        """The Yjs clients that edited it."""
        return sorted(self._state)

    def state(self) -> bytes:
        """The state vector, clients in order."""
        return yjs.pack_state(self._state)

    def update_since(self, state: bytes) -> bytes:
        """What a replica with this state vector lacks. Deletions come whole.

        Raises:
            InvalidValue: `state` is no state vector.
        """
        yjs.parse_state(state)
        with engine("the state vector was refused by the Yjs engine"):
            return self._doc.get_update(state)

    def snapshot(self) -> bytes:
        """The whole document as one update."""
        return self._doc.get_update(EMPTY_STATE)

    def canonical(self) -> bytes:
        """Equal, byte for byte, on all replicas that applied the same updates, in any causal order.

        It holds kinds, state vector, deletions, and a SHA-256 of the content,
        which differs even where two clients shared an id by mistake.
        """
        deletes = yjs.parse(self._deleted()).deletes
        content = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")).encode()
        parts = (sorted(self.roots.items()), self.state(), yjs.pack_deletes(deletes), hashlib.sha256(content).digest())
        return msgspec.msgpack.encode(parts)

    def to_py(self) -> dict[str, Any]:
        """The content by root, as dicts (keys in order), lists, str and plain values."""
        return {name: to_py(open_root(self._doc, name, kind)) for name, kind in sorted(self.roots.items())}

    def to_json(self) -> Any:
        """The same as JSON, where bytes, long integers and non-finite floats are tagged as `shoal.values` does."""
        return values.to_json(self.to_py())

    def _deleted(self) -> bytes:
        """An update of nothing but what is deleted."""
        return self._doc.get_update(self._doc.get_state())

    def fork(self, *, client_id: int) -> pycrdt.Doc[Any]:
        """A copy to edit, under a client id that was never used before."""
        copy: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
        copy.apply_update(self.snapshot())
        return copy

    def _checked(self, update: bytes, roots: Mapping[str, RootKind]) -> yjs.Advanced:
        self._check_update_size(len(update))
        self._check_roots(roots)
        parsed = yjs.parse(update)
        self._check_use(parsed, {**self.roots, **roots})
        self._check_size(len(update))
        return self._advanced(parsed)

    def _check_update_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise TooLarge(f"the update has {size} bytes; {self._bytes_max} are allowed. Nothing was written.")

    def _check_roots(self, roots: Mapping[str, RootKind]) -> None:
        for name, kind in roots.items():
            check_name("document root", name)
            check_kind(name, kind, kind if self._yields(name, kind) else self.roots.get(name, kind))
        if len(self.roots.keys() | roots.keys()) > self._roots_max:
            raise TooLarge(f"a document has at most {self._roots_max} roots; this would be one more. Nothing was written.")

    def _yields(self, name: str, kind: RootKind) -> bool:
        """Whether a root that was only taken for what it is may be declared as another kind: it shows nothing yet."""
        return name in self._inferred and "map" not in (kind, self.roots[name]) and not self._shows(name)

    def _shows(self, name: str) -> bool:
        shared = open_root(self._doc, name, self.roots[name])
        return bool(str(shared) if isinstance(shared, pycrdt.Text) else len(shared))

    def _check_use(self, parsed: yjs.Parsed, kinds: Mapping[str, RootKind]) -> None:
        for name in sorted(parsed.keyed | parsed.listed):
            if name not in kinds:
                raise InvalidValue(
                    f"the update uses the root {name[:80]!r}, which nobody declared. Nothing was written.", undeclared=name[:80]
                )
            if name in (parsed.listed if kinds[name] == "map" else parsed.keyed):
                raise RootConflict(f"the root {name[:80]!r} is used as another kind than {kinds[name]}. Nothing was written.")

    def _check_size(self, more: int) -> None:
        if self._bytes + more > self._bytes_max:
            self._bytes = len(self.snapshot())
        if self._bytes + more > self._bytes_max:
            raise TooLarge(
                f"the document would have more than {self._bytes_max} bytes (document_bytes_max). Nothing was written."
            )

    def _advanced(self, parsed: yjs.Parsed) -> yjs.Advanced:
        advanced = yjs.advance(parsed, self._state, deepest=self._deepest, shared=self._shared)
        if advanced.deepest > NESTING_MAX:
            self._deepest, self._shared = _nesting(self._doc, self.roots), {}
            advanced = yjs.advance(parsed, self._state, deepest=self._deepest)
        if advanced.deepest > NESTING_MAX:
            raise TooLarge(f"shared types would nest deeper than {NESTING_MAX}. Nothing was written; store flatter values.")
        return advanced


def open_root(doc: pycrdt.Doc[Any], name: str, kind: RootKind) -> Any:
    """The shared type behind a root: a pycrdt Map, Array or Text."""
    return doc.get(name, type=_KINDS[kind])


def check_kind(name: str, kind: str, declared: str) -> None:
    """
    Raises:
        InvalidValue: `kind` is none.
        RootConflict: the root was declared as another kind.
    """
    if kind not in _KINDS:
        raise InvalidValue(f"the root {name[:80]!r} is to be {kind!r}; it must be map, array or text. Nothing was written.")
    if kind != declared:
        raise RootConflict(f"the root {name[:80]!r} is of kind {declared}, not {kind}. Nothing was written.", declared=declared)


def to_py(value: Any) -> Any:
    """A shared type or a value that pycrdt returned, as plain Python; integral floats become integers again."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return int(value) if _is_integer(float(value)) else float(value)
    if isinstance(value, pycrdt.Text):
        return str(value)
    if isinstance(value, pycrdt.Array | list):
        items = []
        for item in value:  # No comprehension: each would be one more frame per level.
            items.append(to_py(item))  # noqa: PERF401
        return items
    if isinstance(value, pycrdt.Map | dict):
        entries = {}
        for key in sorted(value.keys()):
            entries[key] = to_py(value[key])
        return entries
    return bytes(value) if isinstance(value, bytearray) else value


def _is_integer(value: float) -> bool:
    # −0.0 is integral too, but an integer has no sign to keep.
    return value.is_integer() and abs(value) <= EXACT_INTEGER_MAX and (value != 0.0 or str(value) == "0.0")


def _nesting(doc: pycrdt.Doc[Any], kinds: Mapping[str, RootKind]) -> int:
    """How deep shared types nest, roots not counted."""
    deepest = 0
    waiting: list[tuple[Any, int]] = [(open_root(doc, name, kind), 0) for name, kind in kinds.items() if kind != "text"]
    while waiting:
        shared, depth = waiting.pop()
        deepest = max(deepest, depth)
        inside = shared.values() if isinstance(shared, pycrdt.Map) else shared
        waiting.extend((item, depth + 1) for item in inside if isinstance(item, pycrdt.Map | pycrdt.Array))
    return deepest


def _built(snapshot: bytes, updates: Iterable[bytes]) -> tuple[pycrdt.Doc[Any], int]:
    # It never edits, so that its client id never meets another's.
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
    applied = list(updates)
    try:
        with engine("a stored update was refused by the Yjs engine"), doc.transaction():
            # Not `merge_updates`, whose cost grows with the square of their number.
            for update in (snapshot, *applied):
                doc.apply_update(update)
        state = yjs.parse_state(doc.get_state())
        complete = all(_is_in(update, doc, state) for update in applied)
    except ShoalError as error:
        raise StoreCorrupt(f"a document cannot be rebuilt: {error.message} Run `shoal verify`.") from None
    if not complete:
        raise StoreCorrupt("a document cannot be rebuilt: an update that others build on is missing. Run `shoal verify`.")
    return doc, len(snapshot) + sum(map(len, applied))


def _is_in(update: bytes, doc: pycrdt.Doc[Any], state: yjs.StateVector) -> bool:
    """True if the engine integrated all of it: what remains has no structs, and deletes only what is there."""
    rest = pycrdt.get_update(update, doc.get_state())
    return rest[0] == 0 and all(clock + length <= state.get(client, 0) for client, clock, length in yjs.parse(rest).deletes)


def merged(updates: Sequence[bytes]) -> bytes:
    """Several updates as one, in pieces. Hostile bytes must not come here: see `shoal.crdt.yjs`.

    Raises:
        InvalidValue: the engine refuses one of them.
    """
    with engine("updates were refused by the Yjs engine"):
        while len(updates) > 1:
            pieces = range(0, len(updates), _MERGED_AT_ONCE)
            updates = [pycrdt.merge_updates(*updates[i : i + _MERGED_AT_ONCE]) for i in pieces]
    return updates[0] if updates else EMPTY


@contextmanager
def engine(what: str) -> Iterator[None]:
    """Turn the engine's errors into InvalidValue: also its panics, which are no `Exception`.

    Raises:
        InvalidValue: `what`, and the engine's reason.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
            raise InvalidValue(f"{what}: {str(error)[:200]}. Nothing was written.") from None
        raise
