"""The pure state of threads: the rows, and how changes fold into them. It does no I/O and reads no clock."""

from __future__ import annotations


def _moment(row: bytes) -> int:  # A branch 0 wall_ms₈ token₃₂
    zero = row.find(b"\0")
    return len(row) if zero < 0 else zero + 9


def _step_value(row: bytes) -> int:  # Sv len₂ step digest₃₂
    return 4 + int.from_bytes(row[2:4], "big") if row[1:2] == b"v" else len(row)


HIDDEN = {**dict.fromkeys(b"CDMRT", 1), ord("A"): _moment, ord("S"): _step_value}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""
