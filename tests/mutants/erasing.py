"""Bugs in deletion, in pruning, and in what is swept after them."""

from __future__ import annotations

import pytest

from tests.mutants.mutant import Mutant


def a_deletion_leaves_its_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.node.garbage._generation", lambda entries: iter(()))


MUTANTS = (Mutant(a_deletion_leaves_its_rows, "a deletion leaves its rows on the disk", ("15",)),)
