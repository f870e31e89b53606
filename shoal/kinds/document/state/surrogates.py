"""Pairs of UTF-16 surrogates in texts: which of them the engine may hold whole.

A Yjs client counts UTF-16 code units, so it may insert, delete or format between the two units of a character beyond the
basic plane. Yjs then shows U+FFFD for each of them. The engine cannot: its texts are UTF-8, and when it is asked to split a
character it keeps the whole of it on the left, so that what it shows depends on the order, and its lengths are wrong.

Laws:
- A pair is shown as two U+FFFD if any update cuts it: if a struct begins or ends within it, if an origin, a right origin or a
  deletion borders on its middle, or if another update has other characters at its clocks. So what is shown is a function of
  the set of updates, it is what Yjs shows, and all lengths and clocks stay.
- The engine is never asked to split a pair: what it is fed has U+FFFD in its place before (`fit`), and if it holds a pair
  that a later update cuts, it is built again (`rewritten`) before that update is applied.
- Every update that a node applies to a document of the engine goes through `Replica`. Mirrors, which are edited in place, do
  the same for themselves.
- Updates are stored and relayed as they came. Only what the engine is fed is rewritten, and what is encoded from it.
- `Pairs` has four bytes for each pair, as the text itself: it never takes more room than the document.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain

from shoal.kinds.document.shared.doc import Doc
from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.yjs import Parsed, StateVector, Wide
from shoal.records import NamedTuple

Cut = tuple[int, int]
"""A client and a clock: the border between the character at this clock and the one before. A pair is named by its middle."""

_EMPTY_STATE = b"\x00"
_WIDE = re.compile(rb"[\xf0-\xf4][\x80-\xbf]{3}")
_BEYOND = re.compile("[\U00010000-\U0010ffff]")
_BROKEN = "\ufffd\ufffd".encode("utf-16-be")
_SURROGATE, _HIGH = 0xFC, 0xD8  # The bits of a unit's first byte that tell the first of a pair.
_NONE: frozenset[Cut] = frozenset()


class Replica:
    """A document of the engine that only updates change, and its pairs. `doc` may be another one after each update."""

    __slots__ = ("doc", "pairs")

    def __init__(self) -> None:
        # It never edits, so that its client id never meets another's.
        self.doc = Doc(client_id=0)
        self.pairs = Pairs()

    def apply(self, updates: Sequence[bytes]) -> None:
        """Apply updates in causal order. All must have passed `shoal.kinds.document.state.yjs.parse`."""
        if not self.pairs and not any(map(is_wide, updates)):
            self.feed(Fitted(updates, _NONE, ()))
        else:
            self.feed(fit(updates, [yjs.parse(update) for update in updates], self.pairs, self.state))

    def feed(self, fitted: Fitted) -> None:
        """Apply what was prepared for the document as it is."""
        if fitted.broken:
            self._rebuild(fitted.broken)
        # Neither `merge_updates` nor one transaction: the cost of either grows with the square of what is in it.
        for update in fitted.updates:
            self.doc.apply_update(update)
        if fitted.whole:
            self.pairs.add(fitted.whole)

    def state(self) -> StateVector:
        """The state vector. It is a transaction of the engine's, which looks at all that is deleted."""
        return yjs.parse_state(self.doc.get_state())

    def update_since(self, state: bytes) -> bytes:
        """The update that a replica with this state vector lacks. It holds all deletions."""
        return self.doc.get_update(self.pairs.backed(state))

    def snapshot(self) -> bytes:
        """The whole document as one update."""
        return self.doc.get_update(_EMPTY_STATE)

    def _rebuild(self, broken: Collection[Cut]) -> None:
        snapshot = self.snapshot()
        wanted = rewritten(snapshot, broken)
        if wanted is not snapshot:  # Else they are deleted.
            self.doc = Doc(client_id=0)
            self.doc.apply_update(wanted)
        self.pairs.remove(broken)


class Pairs:
    """The pairs that a document of the engine holds whole. Some may be deleted by now."""

    __slots__ = ("_middles",)

    def __init__(self) -> None:
        self._middles: dict[int, array[int]] = {}  # By client, in order.

    def __bool__(self) -> bool:
        return bool(self._middles)

    def __contains__(self, cut: Cut) -> bool:
        middles = self._middles.get(cut[0])
        if middles is None or cut[1] > middles[-1]:
            return False
        at = bisect_left(middles, cut[1])
        return middles[at] == cut[1]

    def within(self, client: int, start: int, stop: int) -> Sequence[int]:
        """The middles of a client's pairs that lie between two clocks, both excluded."""
        middles = self._middles.get(client)
        return () if middles is None else middles[bisect_left(middles, start + 1) : bisect_left(middles, stop)]

    def add(self, cuts: Iterable[Cut]) -> None:
        """Note pairs by their middles."""
        for client, middle in cuts:
            middles = self._middles.get(client)
            if middles is None:
                self._middles[client] = array("I", (middle,))
            elif middles[-1] < middle:
                middles.append(middle)
            elif (client, middle) not in self:
                insort(middles, middle)

    def remove(self, cuts: Iterable[Cut]) -> None:
        """Forget pairs that it has."""
        for client, middle in cuts:
            middles = self._middles[client]
            del middles[bisect_left(middles, middle)]
            if not middles:
                del self._middles[client]

    def backed(self, state: bytes) -> bytes:
        """A state vector without a clock within a pair: the engine would have to split that pair to encode what comes after it.

        Raises:
            InvalidValue: `state` is no state vector.
        """
        clocks = yjs.parse_state(state)
        within = [cut for cut in clocks.items() if cut in self] if self else []
        return yjs.pack_state({**clocks, **{client: clock - 1 for client, clock in within}}) if within else state


class Fitted(NamedTuple):
    """Updates as the engine may be fed them."""

    updates: Sequence[bytes]
    broken: Collection[Cut]  # Pairs that the document holds whole and must not: see `rewritten`.
    whole: Sequence[Cut]  # Pairs that the updates bring, to be noted once they are applied.


def is_wide(update: bytes) -> bool:
    """Whether an update may have characters beyond the basic plane. False for sure, true perhaps: its bytes are not read."""
    return _WIDE.search(update) is not None


def fit(updates: Sequence[bytes], parts: Sequence[Parsed], held: Pairs, state: Callable[[], StateVector]) -> Fitted:
    """Prepare updates, which are `parts`, for a document at `state` that holds the pairs `held`."""
    if len(parts) == 1:
        wide = parts[0].wide
        if not wide and not held:
            return Fitted(updates, _NONE, ())
        if _cuts_nothing(parts[0], held, state()):
            return Fitted(updates, _NONE, _pairs(wide[0]) if wide else ())
    elif not held and not any(part.wide for part in parts):
        return Fitted(updates, _NONE, ())
    clocks = state()
    own = [{cut for each in part.wide for cut in _pairs(each)} for part in parts]
    brought = set().union(*own)
    cuts = {cut for part in parts for cut in _borders(part) if cut in brought or cut in held}
    # Where the document ends now, a struct ends.
    cuts.update(cut for cut in brought if clocks.get(cut[0], 0) == cut[1])
    new = Pairs()
    if len(parts) > 1:  # A single one does not contradict itself.
        new.add(sorted(brought))
    for part, has in zip(parts, own, strict=True):
        cuts.update(_contradicted(part, has, new, held, clocks))
    broken = {cut for cut in cuts if cut in held}
    whole = [cut for cut in sorted(brought - cuts) if clocks.get(cut[0], 0) < cut[1]]
    if not cuts.isdisjoint(brought):
        updates = [_replaced(update, part.wide, cuts) for update, part in zip(updates, parts, strict=True)]
    return Fitted(updates, broken, whole)


def _cuts_nothing(part: Parsed, held: Pairs, state: StateVector) -> bool:
    """Whether this is clear at a glance, as it is for almost all updates: one struct, new, that builds on what is known."""
    if len(part.structs) > 1:
        return False
    for client, structs in part.structs.items():
        struct = structs[0]
        if len(structs) > 1 or struct.clock < state.get(client, 0):
            return False
        if held and not struct.inside:
            for at, (origin, clock) in enumerate(struct.needs):
                is_right = struct.right and at == len(struct.needs) - 1
                if (origin, clock if is_right else clock + 1) in held:
                    return False
        # One update may hold a string and a deletion within it: Yjs merges updates so.
        within = range(struct.clock + 1, struct.clock + struct.length) if part.wide else range(0)
        if any(of == client and (clock in within or clock + length in within) for of, clock, length in part.deletes):
            return False
    return not any((client, clock) in held or (client, clock + length) in held for client, clock, length in part.deletes)


def pairs_of(update: bytes) -> list[Cut]:
    """The pairs in an update that was made here, and cuts none."""
    return [cut for each in yjs.parse(update).wide for cut in _pairs(each)]


def rewritten(snapshot: bytes, broken: Collection[Cut]) -> bytes:
    """A whole document as one update, with U+FFFD in the place of these pairs."""
    return _replaced(snapshot, yjs.parse(snapshot).wide, broken)


def _borders(part: Parsed) -> Iterator[Cut]:
    for client, structs in part.structs.items():
        for struct in structs:
            if struct.gap:
                continue
            yield client, struct.clock
            yield client, struct.clock + struct.length
            if struct.needs and not struct.inside:
                if struct.right:
                    yield struct.needs[-1]
                if len(struct.needs) > struct.right:
                    origin, clock = struct.needs[0]
                    yield origin, clock + 1
    for client, clock, length in part.deletes:
        yield client, clock
        yield client, clock + length


def _contradicted(part: Parsed, own: set[Cut], new: Pairs, held: Pairs, state: StateVector) -> Iterator[Cut]:
    """The pairs at whose clocks an update has other characters: updates that were merged no longer have the borders within."""
    for client, structs in part.structs.items():
        known = state.get(client, 0)
        for struct in structs:
            if struct.content == yjs.STRING:
                end = struct.clock + struct.length
                there = chain(new.within(client, struct.clock, end), held.within(client, struct.clock, min(end, known)))
                yield from ((client, middle) for middle in there if (client, middle) not in own)


def _pairs(wide: Wide) -> list[Cut]:
    """The pairs in a string, in order."""
    if len(wide.text) == 1:
        return [(wide.client, wide.clock + 1)]
    return [(wide.client, wide.clock + found.start() + nth) for nth, found in enumerate(_BEYOND.finditer(wide.text), 1)]


def _replaced(update: bytes, strings: Sequence[Wide], cuts: Iterable[Cut]) -> bytes:
    # Anyone may have a large document built again, by a deletion of ten bytes: the work in Python grows with the cuts alone.
    middles = Pairs()
    middles.add(sorted(cuts))
    parts: list[bytes] = []
    at = 0
    for each in strings:
        within = middles.within(each.client, each.clock, each.clock + 2 * len(each.text))
        broken = _broken(each, within) if within else each.text
        if broken != each.text:
            packed = broken.encode()
            parts += (update[at : each.start], yjs.pack_varuint(len(packed)), packed)
            at = each.end
    return b"".join([*parts, update[at:]]) if parts else update


def _broken(wide: Wide, middles: Iterable[int]) -> str:
    """A string with U+FFFD for each unit of the pairs in it that have these middles."""
    units = bytearray(wide.text, "utf-16-be")
    for middle in middles:
        at = 2 * (middle - wide.clock)
        if at < len(units) and units[at - 2] & _SURROGATE == _HIGH:
            units[at - 2 : at + 2] = _BROKEN
    return units.decode("utf-16-be")
