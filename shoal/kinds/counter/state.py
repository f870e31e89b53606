"""A counter: keyed adds, and their sum.

Laws:
- The value is the sum of all adds that count. An add without a key counts. If several
  adds have one key, the one with the least (dot, nth) counts, on every replica and in
  any order of arrival.
- Another amount under the same key stays visible: per key and amount the least
  (dot, nth) that claims it is kept. This map joins by minimum, so that the order in which
  it grew does not show; retries of one add leave a single claim.
- The sum is updated when adds arrive: reading the value reads one row. Causal delivery applies
  an operation once, so the sum needs no parts by origin.
- Claims under keys that users chose stay. Those under keys that clients made expire
  (`shoal.crdt.deletion`): each replica removes them by itself once no operation with such a
  key can still arrive. By then only the sum is needed.

Integers are unbounded: two's complement, big-endian, of the least length.

Rows:
    V                            the value; no row if it is 0
    K key                        dot₂₄ nth₂ amount: the claim that counts
    X keylength₂ key amount      dot₂₄ nth₂: a claim that does not
    E row                        rows K and X of keys that clients made
"""

from __future__ import annotations

import msgspec

from shoal.crdt import deletion
from shoal.crdt.applier import Appliers, bare
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds import Kind
from shoal.records import NamedTuple

VALUE, KEY, CONFLICT = b"V", b"K", b"X"
_EXPIRING_KEY, _EXPIRING_CONFLICT = deletion.PREFIX + KEY, deletion.PREFIX + CONFLICT
_CLAIM_BYTES = DOT_BYTES + 2
SHOWN_MAX = 2**63 - 1  # As messages have signed integers of 64 bits.


class Add(msgspec.Struct, array_like=True, frozen=True, tag="add", gc=False):
    """The mutation: adds an amount, which may be negative."""

    amount: int
    key: str | None = None


class Conflict(NamedTuple):
    """An add that does not count, because another amount counts under its key."""

    key: str
    amount: int
    dot: Dot


def apply(rows: Rows, stamp: Stamp, add: Add) -> None:
    """Add the amount, unless its key was claimed by a lesser (dot, nth)."""
    if add.key is None:
        _count(rows, add.amount)
    else:
        _claim(rows, add.key.encode(), stamp.dot.pack() + stamp.nth.to_bytes(2, "big"), add.amount)


def value(rows: Rows) -> int:
    """The sum of all adds that count."""
    stored = rows.get(VALUE)
    return 0 if stored is None else unpack(stored)


def shown(total: int) -> int:
    """A sum as it is told: no message holds a greater one than `SHOWN_MAX`. Nodes that are apart may have added more."""
    return max(-SHOWN_MAX, min(total, SHOWN_MAX))


def grows_too_large(total: int, amount: int) -> bool:
    """Whether an add should be refused: the sum would be one that cannot be told, and further from 0 than it is."""
    return abs(total + amount) > SHOWN_MAX and abs(total + amount) > abs(total)


def find(rows: Rows, key: str) -> int | None:
    """The amount that counts under `key`; None if no add has it."""
    winner = rows.get(_key_row(key.encode()))
    return None if winner is None else unpack(winner[_CLAIM_BYTES:])


def conflicts(rows: Rows) -> list[Conflict]:
    """The adds that do not count, by key and amount: first those with keys that users chose."""
    return [_conflict(row[len(kind) :], claim) for kind in (CONFLICT, _EXPIRING_CONFLICT) for row, claim in rows.scan(kind)]


def _claim(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    winner = rows.get(_key_row(key))
    if winner is None:
        _win(rows, key, claim, amount)
        return
    best, counted = winner[:_CLAIM_BYTES], unpack(winner[_CLAIM_BYTES:])
    if claim >= best:
        if amount != counted:
            _lose(rows, key, claim, amount)
        return
    _count(rows, -counted)
    if amount != counted:
        _lose(rows, key, best, counted)
        rows.delete(_conflict_row(key, amount))  # Claimed by a greater dot, if at all.
    _win(rows, key, claim, amount)


def _win(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    rows.put(_key_row(key), claim + pack(amount))
    _count(rows, amount)


def _lose(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    row = _conflict_row(key, amount)
    earlier = rows.get(row)
    rows.put(row, claim if earlier is None else min(earlier, claim))


def _count(rows: Rows, amount: int) -> None:
    if total := value(rows) + amount:
        rows.put(VALUE, pack(total))
    else:
        rows.delete(VALUE)


def _key_row(key: bytes) -> bytes:
    return (_EXPIRING_KEY if key.startswith(deletion.MARK) else KEY) + key


def _conflict_row(key: bytes, amount: int) -> bytes:
    kind = _EXPIRING_CONFLICT if key.startswith(deletion.MARK) else CONFLICT
    return kind + len(key).to_bytes(2, "big") + key + pack(amount)


def _conflict(row: bytes, claim: bytes) -> Conflict:
    end = 2 + int.from_bytes(row[:2], "big")
    return Conflict(row[2:end].decode(), unpack(row[end:]), Dot.unpack(claim[:DOT_BYTES]))


def pack(number: int) -> bytes:
    """The bytes of an integer: two's complement, big-endian, of the least length."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def unpack(packed: bytes) -> int:
    """The integer in bytes from `pack`."""
    return int.from_bytes(packed, "big", signed=True)


def _expiring(row: bytes) -> int:
    return 2 if row[1:2] == b"X" else len(row)


HIDDEN = {ord("X"): 1, ord("E"): _expiring}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""


def _check_add(_stamp: Stamp, add: Add) -> None:
    deletion.check_key(add.key)


APPLIERS: Appliers = {Add: bare(Kind.COUNTER, apply, _check_add)}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    value(rows)
    conflicts(rows)
