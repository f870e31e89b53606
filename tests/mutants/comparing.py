"""Bugs of `compare_and_set`: what one node knows, and writes that come back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.register import state as register
from shoal.node.peers.quorum import Quorum
from tests.mutants.mutant import Mutant, patch_applier


def a_register_is_compared_on_what_one_node_knows(patch: pytest.MonkeyPatch) -> None:
    async def catch_up(self: Quorum, partition: int, durability: object = "quorum", /) -> None:
        return None

    patch.setattr(Quorum, "catch_up", catch_up)


def a_swap_that_comes_late_counts(patch: pytest.MonkeyPatch) -> None:
    """Replicas ignore the number."""

    def apply(rows: Rows, stamp: Stamp, swap: register.Swap) -> Any:
        known = register.fence(rows)
        register.apply_swap(rows, stamp, replace(swap, fence=known.number + 1))

    patch_applier(patch, register.Swap, apply)


_UNHEARD = frozenset({"overtaken"})

MUTANTS = (
    Mutant(
        a_register_is_compared_on_what_one_node_knows,
        "a register is compared without asking a quorum",
        ("8",),
        "composed",
        _UNHEARD,
    ),
    Mutant(
        a_swap_that_comes_late_counts,
        "of two swaps that which comes last counts, whatever their numbers",
        ("8",),
        "composed",
        _UNHEARD,
    ),
)
