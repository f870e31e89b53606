"""Bugs of `compare_and_set`: writes that come back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.values import register
from tests.mutants.mutant import Mutant, patch_applier


def a_swap_that_comes_late_counts(patch: pytest.MonkeyPatch) -> None:
    """Replicas ignore the number."""

    def apply(rows: Rows, stamp: Stamp, swap: register.Swap) -> Any:
        known = register.fence(rows)
        register.apply_swap(rows, stamp, replace(swap, fence=known.number + 1))

    patch_applier(patch, register.Swap, apply)


_UNHEARD = frozenset({"overtaken"})

MUTANTS = (
    Mutant(
        a_swap_that_comes_late_counts,
        "of two swaps that which comes last counts, whatever their numbers",
        ("8",),
        "composed",
        _UNHEARD,
    ),
)
