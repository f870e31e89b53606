"""A document in memory: the live replica that its updates build, with the Yjs engine.

Laws:
- A live document holds whole causal histories only: `check` decides whether an
  update is ready, well formed and within bounds before the engine sees it.
- Of two edits with the same clocks the engine keeps the one that it gets first. So after a peer's update with clocks that were
  known the document is built again: in the order of its rows, which is that of all replicas.
- The engine is fed what `shoal.kinds.document.state.surrogates` makes of an update.
- Equal `canonical` bytes mean equal documents. A state vector alone is no
  digest, because deletions do not change it.

Only the replica that set a long integer has it exactly, and in memory alone: it is
rounded on the wire and on disk, so it is shown rounded everywhere.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pycrdt

from shoal import values
from shoal.errors import InvalidValue, RootConflict, ShoalError, StoreCorrupt, TooLarge
from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state import readiness, untold, yjs
from shoal.kinds.document.state.content import Walk, check_kind, open_root, to_py
from shoal.kinds.document.state.readiness import Early, Lacking
from shoal.kinds.document.state.structs import brings, infer
from shoal.kinds.document.state.surrogates import Fitted, Replica, fit
from shoal.kinds.document.state.untold import Census
from shoal.kinds.document.state.yjs import RootKind
from shoal.names import check_name
from shoal.raising import is_panic
from shoal.records import NamedTuple

EMPTY = b"\x00\x00"
"""The empty update."""

# Shared types within shared types: the engine frees them recursively, and overflows its stack past some 10,000.
# With `VALUE_DEPTH_MAX` it also keeps every document within the depth that `shoal.values` shows as JSON, 192: an
# element of XML is shown two levels deep, and a format in it five more.
NESTING_MAX = 64
_TYPES_KNOWN_MAX = 65_536  # Ids of shared types whose depth is remembered. Beyond it all are forgotten.

_MERGED_AT_ONCE = 32  # The engine's merge takes time that grows with the square of the number of updates.


class Together(NamedTuple):
    """Updates of several clients that were applied as one."""

    update: bytes
    inferred: dict[str, RootKind]  # The kinds of roots that nobody had declared.
    clients: Collection[int]  # Whose content it brings.


class Checked(NamedTuple):
    """An update as it was found before the engine gets it."""

    parsed: yjs.Parsed
    advanced: readiness.Advanced


class Integrated(NamedTuple):
    """The outcome of several updates."""

    together: Together | None  # None if those that were ready brought nothing new.
    early: list[Early]  # Those that were not ready, and were left out.


class Building:
    """A document that stored updates build, some at a time, in causal order."""

    def __init__(self, snapshot: bytes = EMPTY) -> None:
        """Begin with a snapshot.

        Raises:
            StoreCorrupt: it cannot be read.
        """
        self.replica = Replica()
        self.bytes = 0  # Of all that was added.
        self._apply([snapshot])

    def add(self, updates: Sequence[bytes]) -> None:
        """
        Raises:
            StoreCorrupt: they cannot be read, or one of them builds on another that is missing.
        """
        if not updates:
            return
        self._apply(updates)
        try:
            packed = (
                self.replica.doc.get_state()
            )  # Once: it is a transaction of the engine's, which looks at all that is deleted.
            state = yjs.parse_state(packed)
            complete = all(_is_in(update, packed, state) for update in updates)
        except ShoalError as error:
            raise _unbuilt(error) from None
        if not complete:
            raise StoreCorrupt("a document cannot be rebuilt: an update that others build on is missing. Run `shoal verify`.")

    def _apply(self, updates: Sequence[bytes]) -> None:
        try:
            with engine("a stored update was refused by the Yjs engine"):
                self.replica.apply(updates)
        except ShoalError as error:
            raise _unbuilt(error) from None
        self.bytes += sum(map(len, updates))

    def snapshot(self) -> bytes:
        """The updates that were added so far, as one update."""
        return self.replica.snapshot()


class LiveDocument:
    """A document in memory. It makes no edits of its own: those are made on a `fork`."""

    def __init__(
        self,
        *,
        bytes_max: int,
        roots_max: int,
        built: Building | None = None,
        updates: Iterable[bytes] = (),
        roots: Mapping[str, RootKind] = {},
        declared: Iterable[str] | None = None,
    ) -> None:
        """Build it from what is `built`, then from updates in causal order.

        Of `roots`, those in `declared` were declared, and the others inferred; None: all were declared.

        Raises:
            StoreCorrupt: they cannot be read, or one of them builds on another that is missing.
        """
        self._bytes_max, self._roots_max = bytes_max, roots_max
        self._applied = True  # False once the engine refused an update that had passed the check.
        self.fed = 0
        """How many updates it has taken: equal numbers mean that nothing came meanwhile."""
        self.roots: dict[str, RootKind] = dict(roots)
        self._inferred = set() if declared is None else set(roots).difference(declared)
        built = Building() if built is None else built
        built.add(list(updates))
        self._replica = built.replica
        self._state = self._replica.state()
        self._bytes = built.bytes  # An upper bound of the whole state's size.
        # How deep shared types nest: an upper bound too, counted only when it exceeds the limit.
        self._deepest = NESTING_MAX if self._state else 0
        self._shared: dict[tuple[int, int], int] = {}
        self._census: Census | None = None  # Counted once it is needed.
        self._meanwhile: list[list[yjs.Parsed]] = []  # What came while it is counted in steps; one list for each who counts.

    def integrate(
        self,
        update: bytes,
        roots: Mapping[str, RootKind],
        *,
        structs_max: int = yjs.CLOCK_MAX,
        checked: Checked | None = None,
    ) -> None:
        """Apply an update, which may have so many items and deletions, or leave the document as it is. `checked` is what
        `checking` found, if nothing was fed since.

        Raises:
            NotReady, InvalidValue, RootConflict, TooLarge: as `check` says.
        """
        parsed, advanced = self._checked(update, roots, structs_max) if checked is None else checked
        if checked is not None and self.is_empty:
            self._census = Census()  # There is nothing to be counted before it.
        self._feed(self._fitted([update], [parsed]), roots, advanced, parsed)

    def checking(self, update: bytes, roots: Mapping[str, RootKind]) -> Generator[None, None, Checked]:
        """The checks before `integrate`, in two steps, each of which takes some time. Raises as it."""
        self._check_update_size(len(update))
        yjs.parse(update)
        yield
        return self._checked(update, roots, yjs.CLOCK_MAX)

    def integrate_all(self, updates: Sequence[bytes]) -> Integrated:
        """Apply updates of clients that declare no roots: all that are ready.

        Raises:
            InvalidValue, InvalidName, RootConflict, TooLarge: as `check` says; one of them is to blame, and none was applied.
        """
        for update in updates:
            self._check_update_size(len(update))
        parts = self._parsed_all(updates)
        early: list[Early] = []
        if isinstance(readiness.attempt(yjs.joined(parts), self._state), Lacking):
            early = readiness.early(parts, self._state)
            left_out = {each.which for each in early}
            updates = [update for index, update in enumerate(updates) if index not in left_out]
            parts = [part for index, part in enumerate(parts) if index not in left_out]
        return Integrated(self._integrate_ready(updates, parts) if parts else None, early)

    def _parsed_all(self, updates: Sequence[bytes]) -> list[yjs.Parsed]:
        """Parse updates that become one. Raises as `check`."""
        left, parts = yjs.STRUCTS_MAX, list[yjs.Parsed]()
        for update in updates:
            parts.append(yjs.parse(update, structs_max=left))
            left -= parts[-1].weight
        return parts

    def _integrate_ready(self, updates: Sequence[bytes], parts: Sequence[yjs.Parsed]) -> Together | None:
        parsed = yjs.joined(parts)
        inferred = infer(parsed, self.roots)
        self._check_roots(inferred)
        self._check_use(parsed, {**self.roots, **inferred})
        fitted = self._fitted(updates, parts)
        update = updates[0]
        if len(updates) > 1:  # The engine would split pairs to merge them as they came.
            update = merged(fitted.updates)
            fitted = fitted._replace(updates=[update])
        self._check_size(len(update))
        advanced = self._advanced(parsed)
        deleted = self._deleted() if advanced.state == self._state else None  # Only deletions can be new.
        self._feed(fitted, inferred, advanced, parsed)
        self._inferred.update(inferred)
        if deleted is not None and deleted == self._deleted():
            return None
        return Together(update, inferred, parsed.structs.keys())

    def merge(self, update: bytes) -> bool:
        """Apply an update that another replica has checked. Bounds and roots were that replica's to decide.

        Returns whether all its clocks were new. If not, build the document again from its rows: an honest client has sent the
        same edit over two nodes, or another one two different edits.

        Raises:
            NotReady, InvalidValue: it cannot be applied; build the document again from its rows.
            TooLarge: it has more items than one step should take; the same.
        """
        parsed = yjs.parse(update, structs_max=yjs.STRUCTS_MAX)
        is_new = not any(_is_known(structs, self._state.get(client, 0)) for client, structs in parsed.structs.items())
        self._feed(self._fitted([update], [parsed]), {}, self._advanced(parsed), parsed)
        return is_new

    def _fitted(self, updates: Sequence[bytes], parts: Sequence[yjs.Parsed]) -> Fitted:
        return fit(updates, parts, self._replica.pairs, lambda: self._state)

    def _feed(self, fitted: Fitted, roots: Mapping[str, RootKind], advanced: readiness.Advanced, parsed: yjs.Parsed) -> None:
        self._applied = False
        self.fed += 1
        with engine("an update was refused by the Yjs engine"):
            self._replica.feed(fitted)
        self._applied = True
        self.roots.update(roots)
        self._inferred.difference_update(roots)
        self._state = advanced.state
        self._bytes += sum(map(len, fitted.updates))
        self._deepest = advanced.deepest
        for came in self._meanwhile:
            came.append(parsed)
        if self._census is not None:
            self._census.add(parsed)
            return
        if len(self._shared) > _TYPES_KNOWN_MAX:
            self._shared.clear()
        self._shared.update(advanced.shared)

    def check(self, update: bytes, roots: Mapping[str, RootKind]) -> None:
        """Decide whether `integrate` would apply an update.

        Raises:
            NotReady: it depends on an update that is missing here.
            InvalidValue: it is no Yjs update of values and shared types, or uses a root without declaring it.
            InvalidName: a root's name is not legal.
            RootConflict: a root is declared or used as another kind than it has.
            TooLarge: the update or the document would be over its bound.
        """
        self._checked(update, roots, yjs.CLOCK_MAX)

    def check_room(self, size: int, roots: Iterable[str]) -> None:
        """Check that the document may grow by `size` bytes and have these roots.

        Raises:
            TooLarge: the document would be over its bound.
        """
        self._check_size(size)
        self._check_root_count(roots)

    @property
    def sound(self) -> bool:
        """False once the engine panicked, or refused an update that had passed the check: build the document again."""
        return self._applied and not self._replica.doc.broken

    @property
    def is_empty(self) -> bool:
        """Whether it has no content, nor had any, and no roots."""
        return not self._state and not self.roots

    @property
    def size(self) -> int:
        """An upper bound of the bytes of the whole state, encoded."""
        return self._bytes

    @property
    def clients(self) -> list[int]:
        """The Yjs client ids that edited it."""
        return sorted(self._state)

    def state(self) -> bytes:
        """The state vector, clients in order."""
        return yjs.pack_state(self._state)

    def update_since(self, state: bytes) -> bytes:
        """The update that a replica with this state vector lacks. It holds all deletions.

        Raises:
            InvalidValue: `state` is no state vector.
        """
        yjs.parse_state(state)
        with engine("the state vector was refused by the Yjs engine"):
            return self._replica.update_since(state)

    def snapshot(self) -> bytes:
        """The whole document as one update."""
        return self._replica.snapshot()

    def canonical(self) -> bytes:
        """`comparing`, at once."""
        steps = self.comparing(sys.maxsize)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: bytes = done.value
                return result

    def comparing(self, structs_max: int) -> Generator[None, None, bytes]:
        """Bytes that are equal on all replicas that applied the same updates, in any causal order; in steps of so many items.
        They are of the document as it is when the first step is taken.

        They hold kinds, state vector, deletions, and a SHA-256 each of the content as the engine's JSON tells it, and of what
        JSON does not tell (`untold`), which differ even if two clients used one id by mistake.
        """
        content = json.dumps(values.to_json(self._shown(Walk())), sort_keys=True, separators=(",", ":")).encode()
        kinds, state, snapshot, deletes = (
            sorted(self.roots.items()),
            self.state(),
            self.snapshot(),
            yjs.parse(self._deleted()).deletes,
        )
        yield
        rest = yield from untold.digest(snapshot, deletes, structs_max=structs_max)
        return msgspec.msgpack.encode((kinds, state, yjs.pack_deletes(deletes), hashlib.sha256(content).digest(), rest))

    def extent(self) -> tuple[bytes, bytes]:
        """State vector and deletions: what is equal for all replicas that applied the same updates, whatever they show."""
        return self.state(), yjs.pack_deletes(yjs.parse(self._deleted()).deletes)

    def to_py(self) -> dict[str, Any]:
        """The content by root, as dicts (keys in order), lists, str and plain values.

        Raises:
            TooLarge: one of its lists has too many objects (`shoal.kinds.document.state.content.Walk`).
        """
        return self._shown(self.walk())

    def _shown(self, walk: Walk) -> dict[str, Any]:
        return {name: to_py(open_root(self._replica.doc, name, kind), walk) for name, kind in sorted(self.roots.items())}

    def to_json(self) -> Any:
        """As `to_py`, but as JSON: bytes, long integers and non-finite floats are tagged as in `shoal.values`. Raises as it."""
        return values.to_json(self.to_py())

    def _deleted(self) -> bytes:
        """An update of deletions alone."""
        doc = self._replica.doc
        return doc.get_update(doc.get_state())

    def fork(self, *, client_id: int) -> Doc:
        """A copy to edit, under a client id that was never used before."""
        copy = Doc(client_id=client_id)
        copy.apply_update(self.snapshot())
        return copy

    def _checked(self, update: bytes, roots: Mapping[str, RootKind], structs_max: int) -> Checked:
        self._check_update_size(len(update))
        self._check_roots(roots)
        parsed = yjs.parse(update, structs_max=structs_max)
        self._check_use(parsed, {**self.roots, **roots})
        self._check_size(len(update))
        return Checked(parsed, self._advanced(parsed))

    def _check_update_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise TooLarge(f"the update has {size} bytes; {self._bytes_max} are allowed. Nothing was written.")

    def _check_roots(self, roots: Mapping[str, RootKind]) -> None:
        for name, kind in roots.items():
            check_name("document root", name)
            check_kind(name, kind, kind if self._yields(name, kind) else self.roots.get(name, kind))
        self._check_root_count(roots)

    def _check_root_count(self, more: Iterable[str]) -> None:
        if len(self.roots.keys() | more) > self._roots_max:
            raise TooLarge(f"a document has at most {self._roots_max} roots; this would be one more. Nothing was written.")

    def _yields(self, name: str, kind: RootKind) -> bool:
        """Whether a root whose kind was only inferred may be declared as another kind: it is still empty."""
        return name in self._inferred and "map" not in (kind, self.roots[name]) and not self._shows(name)

    def _shows(self, name: str) -> bool:
        shared = open_root(self._replica.doc, name, self.roots[name])
        if isinstance(shared, pycrdt.XmlFragment):
            return len(shared.children) > 0
        return bool(shared.diff() if isinstance(shared, pycrdt.Text) else len(shared))

    def _check_use(self, parsed: yjs.Parsed, kinds: Mapping[str, RootKind]) -> None:
        for name in sorted(parsed.keyed | parsed.listed):
            if name not in kinds:
                raise InvalidValue(
                    f"the update uses the root {name[:80]!r}, which is not declared. Nothing was written. Declare it first.",
                    undeclared=name[:80],
                )
            # The keys of a fragment are the attributes of a client for which the root is an XML text.
            is_map = kinds[name] == "map"
            otherwise = parsed.listed if is_map else parsed.keyed
            # Deleted items show nothing, and a mirror may send the deleted items of a beginning that has lost.
            if kinds[name] != "xml" and name in otherwise and brings(parsed, name, keyed=not is_map):
                raise RootConflict(
                    f"the root {name[:80]!r} is declared as {kinds[name]}, and the update uses it as another kind. "
                    "Nothing was written."
                )

    def _check_size(self, more: int) -> None:
        if self._bytes + more > self._bytes_max:
            self._bytes = len(self.snapshot())
        if self._bytes + more > self._bytes_max:
            raise TooLarge(
                f"the document would have more than {self._bytes_max} bytes (document_bytes_max). Nothing was written."
            )

    def _advanced(self, parsed: yjs.Parsed) -> readiness.Advanced:
        if self._census is None:
            advanced = readiness.advance(parsed, self._state, deepest=self._deepest, shared=self._shared)
            if advanced.deepest <= NESTING_MAX:
                return advanced
        census = self._counted()
        advanced = readiness.advance(parsed, self._state, deepest=census.deepest, shared=census)
        if advanced.deepest > NESTING_MAX:
            raise TooLarge(f"shared types would nest deeper than {NESTING_MAX}. Nothing was written; store flatter values.")
        return advanced

    def is_uncounted(self, bytes_max: int) -> bool:
        """Whether its items ought to be counted in steps before they are needed: it has more bytes, and no good counts."""
        return self._bytes > bytes_max if self._census is None else self._census.is_loose

    def walk(self) -> Walk:
        """The steps that showing or editing it may take."""
        census = self._counted()
        return Walk(census.listed, census.written, census.odd)

    def counting(self, structs_max: int) -> Generator[None, None, None]:
        """Count its items in steps, so that what needs the counts has them. Updates that come meanwhile count, too."""
        if self._census is not None and not self._census.is_loose:
            return
        census, came = Census(), list[yjs.Parsed]()
        self._meanwhile.append(came)
        try:
            yield from census.read(self.snapshot(), structs_max)
        finally:
            self._meanwhile = [each for each in self._meanwhile if each is not came]
        for parsed in came:
            census.add(parsed)
        self._census = census

    def _counted(self) -> Census:
        """The counts of its items, types that no reader sees included."""
        if self._census is None:
            for _ in self.counting(sys.maxsize):
                pass
        assert self._census is not None
        return self._census


def _unbuilt(error: ShoalError) -> StoreCorrupt:
    return StoreCorrupt(f"a document cannot be rebuilt: {error.message} Run `shoal verify`.")


def _is_known(structs: list[yjs.Struct], until: int) -> bool:
    """Whether one of these, in clock order, has content below a clock."""
    return any(struct.clock < until and not struct.gap for struct in structs[:2])  # A gap is followed by content.


def _is_in(update: bytes, packed: bytes, state: yjs.StateVector) -> bool:
    """Whether the engine integrated all of it: the rest has no structs, and its deletions are of known content."""
    with engine("a stored update was refused by the Yjs engine"):
        rest = pycrdt.get_update(update, packed)
    return rest[0] == 0 and all(clock + length <= state.get(client, 0) for client, clock, length in yjs.parse(rest).deletes)


def merged(updates: Sequence[bytes]) -> bytes:
    """Several updates as one. All must have passed `shoal.kinds.document.state.yjs.parse`: hostile bytes can kill the process.

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
    """Turn the engine's errors, and its panics, which are no `Exception`, into InvalidValue.

    Raises:
        InvalidValue: `what`, and the engine's reason.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise InvalidValue(f"{what}: {str(error)[:200]}. Nothing was written.") from None
        raise
