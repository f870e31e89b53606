"""To which spaces a row belongs, and which part of its key is hidden.

Laws:
- Row keys stay in order, because everything above storage scans them. So the names in them are readable on disk: of
  spaces, objects, branches, steps, items and fields, and the keys that users chose.
- A part of a row key that is content, or a hash of content, is hidden: members of sets, values in indexes, chunks'
  hashes, checkpoints' ids. It runs to the end of the key, and all keys that share the part before it (a *group*) hide it.
- The row of an object's generation, which stays forever and holds no content, belongs to no space.
- The content of an operation, or of the answer to a request's key, belongs to the spaces of the objects that it names.

Keys and values are those of docs/STORAGE.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from shoal.storage import keys
from shoal.storage.keys import Kind

STORE: Final = b""
"""The scope of rows that belong to no space. No space has an empty name."""
STAGED: Final = b"\x00"
"""The scope of staged snapshots of peers, which hold rows of many spaces. No space has this name."""

_LISTING_TABLES: Final = frozenset(keys.SNAPSHOT + keys.LISTED)
_CATALOG_TABLES: Final = frozenset(keys.CATALOG + keys.STATUS)
HIDING_TABLES: Final = frozenset(keys.OBJECT + keys.INDEX)
"""The tables of which keys may have hidden parts."""
STORE_TABLES: Final = frozenset(keys.META + keys.VECTOR + keys.BASE + keys.RETIRED + keys.GARBAGE)
"""The tables of which all rows are in the scope `STORE`."""
_LOG, _KEY, _STAGED, _INDEX = keys.LOG[0], keys.KEY[0], keys.STAGED[0], keys.INDEX[0]
_CHAIN_BYTES, _DOT_BYTES, _GENERATION_BYTES = 32, 24, 5
_KEPT_AT = _DOT_BYTES + 8


class _Operation(msgspec.Struct, array_like=True, gc=False):
    """An operation, as far as it is read here."""

    hlc: int
    wall_ms: int
    context: msgspec.Raw
    key: msgspec.Raw
    payload: bytes


class _Change(msgspec.Struct, array_like=True, gc=False):
    """A mutation, or an object that an operation changed, as far as it is read here."""

    kind: int
    space: str


class _Kept(msgspec.Struct, array_like=True, gc=False):
    receipt: bytes
    changed: list[_Change]


_operation = msgspec.msgpack.Decoder(_Operation)
_changes = msgspec.msgpack.Decoder(list[_Change])
_kept = msgspec.msgpack.Decoder(_Kept)


def scopes_of(key: bytes, value: bytes) -> tuple[bytes, ...]:
    """The spaces under whose keys a row is sealed, or `STORE` or `STAGED` alone. The first is the innermost layer."""
    table = key[0] if key else 0
    if table == _LOG:
        return _spaces_of(value)
    if table in HIDING_TABLES:
        return (place_of(key)[0],)
    if table in _LISTING_TABLES:
        return (_space_in(key),)
    if table in _CATALOG_TABLES:
        return (key[3 : 3 + int.from_bytes(key[1:3], "big")],)
    if table == _KEY:
        return _kept_spaces(value)
    return (STAGED,) if table == _STAGED else (STORE,)


def _space_in(key: bytes) -> bytes:
    return key[6 : 6 + int.from_bytes(key[4:6], "big")]


def _spaces_of(value: bytes) -> tuple[bytes, ...]:
    try:
        changes = _changes.decode(_operation.decode(value[_CHAIN_BYTES:]).payload)
    except ValueError:
        return (STORE,)  # It is no operation: `shoal verify` says so.
    return _named(changes)


def _kept_spaces(value: bytes) -> tuple[bytes, ...]:
    if len(value) <= _DOT_BYTES:
        return (STORE,)
    try:
        kept = _kept.decode(value[_KEPT_AT:])
        return _named(kept.changed) if kept.receipt else (STORE,)
    except ValueError:
        return (STORE,)


def _named(changes: list[_Change]) -> tuple[bytes, ...]:
    if len(changes) == 1:
        return (changes[0].space.encode(),)
    return tuple(dict.fromkeys([change.space.encode() for change in changes])) or (STORE,)


def hidden_from(key: bytes) -> int:
    """The index in a row key from which it is hidden; its length or more if nothing is."""
    return place_of(key)[1] if key and key[0] in HIDING_TABLES else len(key)


def place_of(key: bytes) -> tuple[bytes, int]:
    """The scope of a row of one of `HIDING_TABLES`, and `hidden_from` of its key."""
    try:
        at = 6 + (key[4] << 8) + key[5]
        space = key[6:at]
        at += 2 + (key[at] << 8) + key[at + 1]
        first = key[at]
        if first == 0:
            if at + 1 == len(key):
                return STORE, at + 1
            at += _GENERATION_BYTES
            first = key[at]
        rule = (_INDEXES if key[0] == _INDEX else _RULES[key[3]]).get(first)
    except (IndexError, KeyError):
        return _space_in(key), len(key)  # It is shorter than a row's key: the end of a range, or a row that hides nothing.
    if rule is None:
        return space, len(key)
    return space, at + (rule if rule.__class__ is int else rule(key[at:]))  # type: ignore[operator]


def _moment(row: bytes) -> int:  # A branch 0 wall_ms₈ token₃₂
    zero = row.find(b"\0")
    return len(row) if zero < 0 else zero + 9


def _step_value(row: bytes) -> int:  # Sv len₂ step digest₃₂
    return 4 + int.from_bytes(row[2:4], "big") if row[1:2] == b"v" else len(row)


def _expiring(row: bytes) -> int:
    return 2 if row[1:2] == b"X" else len(row)


def _budget(row: bytes) -> int:
    if row[1:2] == b"X":
        return 2
    return 3 if row[1:3] == b"EX" else len(row)


def _member(row: bytes) -> int:  # E key 0 s E element
    zero = row.find(b"\0")
    return zero + 3 if zero > 0 and row[zero + 1 : zero + 3] == b"sE" else len(row)


def _index(row: bytes) -> int:  # V len₂ field value path
    return 3 + int.from_bytes(row[1:3], "big")


_Rules = dict[int, int | Callable[[bytes], int]]  # By the first byte of a row: how much of the row is not hidden.
_INDEXES: Final[_Rules] = {ord("V"): _index}
_RULES: Final[dict[int, _Rules]] = {
    Kind.THREAD: {**dict.fromkeys(b"CDMRT", 1), ord("A"): _moment, ord("S"): _step_value},
    Kind.DOCUMENT: {ord("G"): 1},
    Kind.COUNTER: {ord("X"): 1, ord("E"): _expiring},
    Kind.REGISTER: {},
    Kind.ITEMS: {},
    Kind.SCHEMA: {ord("V"): 5},
    Kind.SET: {ord("E"): 1},
    Kind.BUDGET: {ord("G"): _budget, ord("S"): _budget},
    Kind.MAP: {ord("E"): _member},
}
