"""Bugs in branches that are moved, and in saves of what changed."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.crdt.rows import Rows
from shoal.kinds.thread.serving import shapes
from shoal.kinds.thread.state import dag
from tests.mutants.mutant import Mutant


def a_change_is_made_of_the_winner(patch: pytest.MonkeyPatch) -> None:
    sound = shapes.draft

    def draft(rows: Rows, request: Any, parent: bytes | None, known: Any) -> Any:
        heads = dag.heads(rows, request.branch)
        if request.delta and heads and heads[0].id != parent:
            return sound(rows, request, heads[0].id, None)
        return sound(rows, request, parent, known)

    patch.setattr(shapes, "draft", draft)


MUTANTS = (
    Mutant(a_change_is_made_of_the_winner, "a save of what changed builds on the winner's state, not its parent's", ("10",)),
)
