"""A counter: keyed adds, and one total per origin.

Laws:
- The value is the sum of all adds that count. An add without a key counts. If several
  adds have one key, the one with the least (dot, nth) counts, on every replica and in
  any order of arrival.
- Another amount under the same key stays visible: per key and amount the least
  (dot, nth) that claims it is kept. This map joins by minimum, so that the order in which
  it grew does not show; retries of one add leave a single claim.
- Totals are updated when adds arrive, and so is their sum: reading the value reads one
  row. A total of zero has no row.

Integers are unbounded: two's complement, big-endian, of the least length.

Rows:
    V                            the value
    T origin₁₆                   the origin's total
    K key                        dot₂₄ nth₂ amount: the claim that counts
    X keylength₂ key amount      dot₂₄ nth₂: a claim that does not
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.crdt.dot import DOT_BYTES, ORIGIN_BYTES, Dot, Origin
from shoal.crdt.rows import Rows, Stamp

VALUE, TOTAL, KEY, CONFLICT = b"V", b"T", b"K", b"X"
_CLAIM_BYTES = DOT_BYTES + 2


class Add(msgspec.Struct, array_like=True, frozen=True, tag="add"):
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
        _count(rows, stamp.dot.pack(), add.amount)
    else:
        _claim(rows, add.key.encode(), stamp.dot.pack() + stamp.nth.to_bytes(2, "big"), add.amount)


def value(rows: Rows) -> int:
    """The sum of all adds that count."""
    return _sum(rows, VALUE)


def total(rows: Rows, origin: Origin) -> int:
    """The sum of one origin's adds that count."""
    return _sum(rows, TOTAL + origin)


def find(rows: Rows, key: str) -> int | None:
    """The amount that counts under `key`; None if no add has it."""
    winner = rows.get(KEY + key.encode())
    return None if winner is None else unpack(winner[_CLAIM_BYTES:])


def conflicts(rows: Rows) -> list[Conflict]:
    """The adds that do not count, by key and amount."""
    return [_conflict(row, claim) for row, claim in rows.scan(CONFLICT)]


def _claim(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    winner = rows.get(KEY + key)
    if winner is None:
        _win(rows, key, claim, amount)
        return
    best, counted = winner[:_CLAIM_BYTES], unpack(winner[_CLAIM_BYTES:])
    if claim >= best:
        if amount != counted:
            _lose(rows, key, claim, amount)
        return
    _count(rows, best, -counted)
    if amount != counted:
        _lose(rows, key, best, counted)
        rows.delete(_conflict_row(key, amount))  # Claimed by a greater dot, if at all.
    _win(rows, key, claim, amount)


def _win(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    rows.put(KEY + key, claim + pack(amount))
    _count(rows, claim, amount)


def _lose(rows: Rows, key: bytes, claim: bytes, amount: int) -> None:
    row = _conflict_row(key, amount)
    earlier = rows.get(row)
    rows.put(row, claim if earlier is None else min(earlier, claim))


def _count(rows: Rows, claim: bytes, amount: int) -> None:
    for row in (VALUE, TOTAL + claim[:ORIGIN_BYTES]):
        if total := _sum(rows, row) + amount:
            rows.put(row, pack(total))
        else:
            rows.delete(row)


def _sum(rows: Rows, row: bytes) -> int:
    stored = rows.get(row)
    return 0 if stored is None else unpack(stored)


def _conflict_row(key: bytes, amount: int) -> bytes:
    return CONFLICT + len(key).to_bytes(2, "big") + key + pack(amount)


def _conflict(row: bytes, claim: bytes) -> Conflict:
    end = 3 + int.from_bytes(row[1:3], "big")
    return Conflict(row[3:end].decode(), unpack(row[end:]), Dot.unpack(claim[:DOT_BYTES]))


def pack(number: int) -> bytes:
    """The bytes of an integer: two's complement, big-endian, of the least length."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def unpack(packed: bytes) -> int:
    """The integer in bytes from `pack`."""
    return int.from_bytes(packed, "big", signed=True)
