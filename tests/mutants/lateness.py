"""Bugs in what becomes of writes to an object that is deleted meanwhile, and of requests that come late or twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from shoal.cluster.knowledge import Knowledge
from shoal.kinds.document.state import repeats
from shoal.node.database import Database
from shoal.node.writes import issuing
from tests.mutants.mutant import Mutant


def a_dead_write_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Database, "dead", lambda self, issued: [])


def a_copy_counts_whatever_its_node_has_deleted(patch: pytest.MonkeyPatch) -> None:
    sound = Knowledge.take

    def take(self: Knowledge, held: Iterable[Any], *, proven: bool = False) -> None:
        sound(self, held, proven=True)

    patch.setattr(Knowledge, "take", take)


def a_patch_at_two_nodes_is_carried_out_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repeats, "deletes", lambda rows, *, known: iter(()))


def a_removal_that_found_nothing_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(issuing, "_is_remembered", lambda write: False)


MUTANTS = (
    Mutant(
        a_removal_that_found_nothing_is_forgotten,
        "a removal that found nothing is not recorded",
        ("3", "6"),
        "composed",
        frozenset({"removed_late"}),
    ),
    Mutant(
        a_patch_at_two_nodes_is_carried_out_twice,
        "a patch that reached two nodes inserts twice",
        ("10",),
        "composed",
        frozenset({"edited_twice"}),
    ),
    Mutant(
        a_dead_write_is_acknowledged,
        "a write that died with its object is acknowledged by copies",
        ("3",),
        "composed",
        frozenset({"deleted_unheard"}),
    ),
    Mutant(
        a_copy_counts_whatever_its_node_has_deleted,
        "copies count at nodes that hold a deletion which the writer's does not",
        ("3",),
        "composed",
        frozenset({"deleted_unheard"}),
    ),
)
