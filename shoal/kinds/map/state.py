"""A map of registers, counters and sets by key: changes of different keys never conflict.

Laws (observed-remove map, as in Riak's: Brown et al. 2014, with causal delivery in place of tombstones):
- A key's entry has a part of each type: a register's siblings, a counter's adds, a set's members. Each
  merges as that type does by itself. The key exists while any part holds something.
- A removal names the content that its origin showed of the key, part by part, and removes just that. Concurrent
  writes stay. So an update wins over a removal, and a removed key leaves nothing.
- A counter here is its live adds. An origin's new add replaces its last one without a key, and holds the
  sum of both; so there is one such row for each origin. If a removal did not see the new add, the new add
  stays whole. Of the adds that one request made on several nodes, the one with the least dot counts.
- A *fold* merges adds of its issuer's directory into one, which takes the place of the last of them. All are stable and their
  keys expired, as are those that lose to them. So every removal that the issuer has not seen names all of
  them or none: the merged add is removed just where its parts are. Nobody else folds these adds, until the
  directory is removed from the cluster: then its heir does (`shoal.node.collection.retiring`).
- A merged add names the directory that merged it, so that its later openings can fold it, whatever they still know of the
  origins of earlier ones.

Rows:
    E key 00 r row               the register's
    E key 00 s row               the set's
    E key 00 u dot₂₄ nth₂        adds without a key: msgpack [amount, nil]; folded ones: [amount, nil, directory]
    E key 00 k dot₂₄ nth₂        one with a key: msgpack [amount, the request's key]
    N                            keys₈; no row if there are none
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from shoal.crdt.applier import NO_EFFECTS, Appliers, Effects, always, bare
from shoal.crdt.deletion import check_key
from shoal.crdt.dot import DOT_BYTES, ORIGIN_BYTES, Dot, Origin
from shoal.crdt.rows import Rows, Stamp, Within
from shoal.errors import BadOperation
from shoal.kinds import Kind
from shoal.kinds.counter.state import SHOWN_MAX
from shoal.kinds.register import state as register
from shoal.kinds.set import state as orset
from shoal.kinds.set.state import Named
from shoal.records import NamedTuple

REPLACED_MAX = 64  # Adds that one replaces: its origin has made one before, as a rule.
ADDS_FOLDED_MIN = 16  # An operation merges at least so many adds to a key of a map: it costs more than a few rows.

ENTRY, COUNT = b"E", b"N"
_REGISTER, _SET, _UNKEYED, _KEYED = b"r", b"s", b"u", b"k"

ADD_BYTES = DOT_BYTES + 2
"""The key of an add: its dot and nth."""

Dots = tuple[tuple[bytes, int], ...]


class Put(msgspec.Struct, array_like=True, frozen=True, tag="put-entry"):
    """A mutation: assigns a value to a key's register."""

    key: str
    value: bytes
    context: tuple[tuple[bytes, int], ...]  # Of the key's register.
    request: str | None = None  # The request's own key.


class Add(msgspec.Struct, array_like=True, frozen=True, tag="add-entry"):
    """A mutation: adds to a key's counter."""

    key: str
    amount: int  # With the amounts of the adds that it replaces.
    over: Dots = ()  # The adds that it replaces.
    request: str | None = None


class Fold(msgspec.Struct, array_like=True, frozen=True, tag="fold-entry"):
    """A mutation: merges adds to a key's counter. It changes no value."""

    key: str
    over: tuple[bytes, ...]  # The adds: dot₂₄ nth₂ each.
    amount: int  # The sum of those that count.
    lost: tuple[bytes, ...] = ()  # Other adds with requests of these, which do not count.
    directory: bytes = b""  # The id of the issuer's.


class Alter(msgspec.Struct, array_like=True, frozen=True, tag="alter-entry"):
    """A mutation: adds members to a key's set, and removes members."""

    key: str
    add: tuple[Named, ...] = ()
    remove: tuple[Named, ...] = ()


class Remove(msgspec.Struct, array_like=True, frozen=True, tag="remove-entry"):
    """A mutation: removes what its issuer saw of a key."""

    key: str
    siblings: tuple[tuple[bytes, int], ...]  # The context of the key's register.
    adds: Dots  # The dots of its counter's adds.
    members: tuple[Named, ...]  # Its set's members, each with the adds of it that were seen.


Change = Put | Add | Fold | Alter | Remove


class Part(NamedTuple):
    """An add to a key's counter."""

    dot: Dot
    amount: int
    request: str | None
    directory: bytes = b""  # That merged it from others; empty: it was not merged.


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    amount: int
    request: str | None
    directory: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


# ── changes ───────────────────────────────────────────────────────────────────


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """Apply a mutation of any kind, and count the keys."""
    before = holds(rows, change.key)
    match change:
        case Put(key, value, context, request):
            register.apply(register_of(rows, key), stamp, register.Assign(value, context, request))
        case Add():
            _add(rows, stamp, change)
        case Fold():
            _fold(rows, change)
        case Alter(key, add, remove):
            orset.apply(set_of(rows, key), stamp, orset.Alter(add, remove))
        case Remove():
            _remove(rows, stamp, change)
    grown = holds(rows, change.key) - before
    if grown:
        _count(rows, size(rows) + grown)


def _add(rows: Rows, stamp: Stamp, change: Add) -> None:
    unkeyed = _adds(rows, change.key, _UNKEYED)
    for dot in change.over:
        for row, _ in list(unkeyed.scan(Dot(Origin(dot[0]), dot[1]).pack())):
            unkeyed.delete(row)
    adds = unkeyed if change.request is None else _adds(rows, change.key, _KEYED)
    adds.put(stamp.dot.pack() + stamp.nth.to_bytes(2, "big"), _encoder.encode((change.amount, change.request)))


def _fold(rows: Rows, change: Fold) -> None:
    unkeyed, keyed = _adds(rows, change.key, _UNKEYED), _adds(rows, change.key, _KEYED)
    live = [row for row in change.over if unkeyed.get(row) is not None or keyed.get(row) is not None]
    if not live:
        return  # A removal took all of them.
    for row in live:
        unkeyed.delete(row)
        keyed.delete(row)
    merged = (change.amount, None, change.directory) if change.directory else (change.amount, None)
    unkeyed.put(max(live), _encoder.encode(merged))
    for row in change.lost:
        if keyed.get(row) is not None:
            keyed.put(row, _encoder.encode((0, None)))


def _remove(rows: Rows, stamp: Stamp, change: Remove) -> None:
    siblings = register_of(rows, change.key)
    seen = register.context_from(change.siblings)
    left = [entry for entry in register.entries(siblings) if not seen.covers(entry.dot) and entry.dot != stamp.dot]
    register.store(siblings, left)
    named = {*change.adds, stamp.dot}
    for adds in (_adds(rows, change.key, _UNKEYED), _adds(rows, change.key, _KEYED)):
        for row, _ in list(adds.scan(b"")):
            if Dot.unpack(row[:DOT_BYTES]) in named:
                adds.delete(row)
    orset.apply(set_of(rows, change.key), stamp, orset.Alter(remove=change.members))


# ── reads ─────────────────────────────────────────────────────────────────────


def size(rows: Rows) -> int:
    """How many keys there are."""
    stored = rows.get(COUNT)
    return 0 if stored is None else int.from_bytes(stored, "big")


def holds(rows: Rows, key: str) -> bool:
    """Whether the key exists."""
    return next(iter(rows.scan(_entry(key), limit=1)), None) is not None


def keys(rows: Rows, *, prefix: str = "", after: str | None = None) -> Iterator[str]:
    """The keys that begin with `prefix`, in the order of their bytes; `after` is exclusive."""
    # No key holds a control character, so all rows of a key come before this.
    last = None if after is None else _past(after)
    while True:
        row = next(iter(rows.scan(ENTRY + prefix.encode(), after=last, limit=1)), None)
        if row is None:
            return
        key = row[0][1 : row[0].index(b"\x00")].decode()
        yield key
        last = _past(key)


def register_of(rows: Rows, key: str) -> Rows:
    """The rows of a key's register, for `register`."""
    return Within(rows, _entry(key) + _REGISTER)


def set_of(rows: Rows, key: str) -> Rows:
    """The rows of a key's set, for `orset`."""
    return Within(rows, _entry(key) + _SET)


def unkeyed(rows: Rows, key: str, origin: Origin) -> list[Part]:
    """An origin's adds without a key to the counter of `key`: one, or none."""
    return list(_parts(_adds(rows, key, _UNKEYED), origin))


def value(rows: Rows, key: str) -> int | None:
    """The counter of `key`; None if nothing was added to it."""
    total, count = summed(rows, key)
    return total if count else None


def summed(rows: Rows, key: str) -> tuple[int, int]:
    """The counter of `key`, and the number of its adds."""
    counted: dict[str, int] = {}  # The least dot comes first.
    total = count = 0
    for kind in (_UNKEYED, _KEYED):
        for _, stored in _adds(rows, key, kind).scan(b""):
            add = _decoder.decode(stored)
            count += 1
            if add.request is None:
                total += add.amount
            else:
                counted.setdefault(add.request, add.amount)
    return total + sum(counted.values()), count


def fold(
    rows: Rows,
    key: str,
    *,
    directory: bytes,
    own: Callable[[Part], bool],
    settled: Callable[[Part], bool],
    least: int,
    most: int,
) -> Fold | None:
    """The fold of at most `most` adds; None if fewer than `least` can be folded, or one that this directory has merged already.

    `directory` is the id of the issuer's. `own` tells the adds that it may fold, `settled` those that are stable and whose keys
    expired.
    """
    adds = list(_all_rows(rows, key))
    counts: dict[str, bytes] = {}  # By request, the add that counts: the least dot comes first.
    contested: set[str] = set()
    for row, part in adds:
        if part.request is not None:
            counts.setdefault(part.request, row)
            if not settled(part):
                contested.add(part.request)
    over = [(row, part) for row, part in adds if own(part) and settled(part) and part.request not in contested][:most]

    def total() -> int:
        return sum(part.amount for row, part in over if part.request is None or counts[part.request] == row)

    while abs(total()) > SHOWN_MAX:
        over.pop()  # No row holds so large a sum. Others are added up, so that it stays readable.
    if len(over) < max(1, least) or (len(over) == 1 and over[0][1].directory == directory):
        return None
    folded = {row for row, _ in over}
    won = {part.request for row, part in over if part.request is not None and counts[part.request] == row}
    return Fold(
        key,
        tuple(row for row, _ in over),
        total(),
        tuple(row for row, part in adds if part.request in won and row not in folded),
        directory,
    )


def adds_of(rows: Rows, key: str, own: Callable[[Part], bool], most: int) -> int:
    """How many adds the counter of `key` has for which `own` is true; counting stops at `most`."""
    return sum(1 for _ in islice((part for part in _all_parts(rows, key) if own(part)), most))


def adders(rows: Rows, key: str, wanted: Callable[[Part], bool]) -> set[Origin]:
    """The origins of those adds of the counter of `key` for which `wanted` is true."""
    return {part.dot.origin for part in _all_parts(rows, key) if wanted(part)}


def removal(rows: Rows, key: str) -> Remove:
    """The removal of everything that these rows show of a key."""
    siblings, members = register_of(rows, key), set_of(rows, key)
    return Remove(
        key,
        register.context_entries(register.context_of(siblings)),
        tuple(sorted({part.dot for part in _all_parts(rows, key)})),
        tuple(orset.named(members, element) for element in orset.members(members)),
    )


def _all_parts(rows: Rows, key: str) -> Iterator[Part]:
    return (part for _, part in _all_rows(rows, key))


def _all_rows(rows: Rows, key: str) -> Iterator[tuple[bytes, Part]]:
    for kind in (_UNKEYED, _KEYED):
        for row, stored in _adds(rows, key, kind).scan(b""):
            yield row, _part(row, stored)


def _part(row: bytes, stored: bytes) -> Part:
    add = _decoder.decode(stored)
    return Part(Dot.unpack(row[:DOT_BYTES]), add.amount, add.request, add.directory)


def _parts(adds: Rows, prefix: bytes = b"") -> Iterator[Part]:
    """In the order of their dots."""
    for row, stored in adds.scan(prefix):
        yield _part(row, stored)


def _adds(rows: Rows, key: str, kind: bytes) -> Rows:
    return Within(rows, _entry(key) + kind)


def _entry(key: str) -> bytes:
    return ENTRY + key.encode() + b"\x00"


def _past(key: str) -> bytes:
    return ENTRY + key.encode() + b"\x01"


def _count(rows: Rows, keys: int) -> None:
    if keys:
        rows.put(COUNT, keys.to_bytes(8, "big"))
    else:
        rows.delete(COUNT)


def _member(row: bytes) -> int:  # E key 0 s E element
    zero = row.find(b"\0")
    return zero + 3 if zero > 0 and row[zero + 1 : zero + 3] == b"sE" else len(row)


HIDDEN = {ord("E"): _member}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""


def _check(_stamp: Stamp, change: Change) -> None:
    if isinstance(change, Add):
        check_key(change.request)
        if len(change.over) > REPLACED_MAX:
            raise BadOperation(
                f"an add to a map replaces more than {REPLACED_MAX} others. Nothing was written.", reason="content"
            )
    elif isinstance(change, Fold):
        if any(len(row) != ADD_BYTES for row in (*change.over, *change.lost)):
            raise BadOperation("a fold names impossible adds. Nothing of it was written.", reason="content")
        if len(change.directory) not in (0, ORIGIN_BYTES):
            raise BadOperation("a fold names an impossible directory. Nothing of it was written.", reason="content")


def _in_parts(change: Change, most: int) -> Iterator[Change]:
    match change:
        case Alter(key, add, remove):
            for part in orset.parts(orset.Alter(add, remove), most):
                yield Alter(key, part.add, part.remove)
        case Remove(key, siblings, adds, members):
            yield Remove(key, siblings, adds, members[:most])
            for part in orset.parts(orset.Alter(remove=members[most:]), most):
                yield Alter(key, remove=part.remove)
        case _:
            yield change


APPLIERS: Appliers = {
    kind: bare(Kind.MAP, apply, _check, id_of=lambda _name, _stamp, change: change.key, effects=effects)._replace(
        parts=_in_parts
    )
    for kind, effects in (
        (Put, NO_EFFECTS),
        (Add, NO_EFFECTS),
        (Fold, NO_EFFECTS),
        (Alter, NO_EFFECTS),
        (Remove, Effects(frees=always)),
    )
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    for key in keys(rows):
        value(rows, key)
        register.entries(register_of(rows, key))
        list(orset.members(set_of(rows, key)))
