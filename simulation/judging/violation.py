"""A promise that was broken."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """`invariant` is its number in docs/VERIFICATION.md."""

    invariant: str
    text: str
