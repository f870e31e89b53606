"""Bugs that sweep what may still be needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shoal.cluster import truncation as stability
from shoal.cluster.truncation import Holding, Waiting
from shoal.node.peers.quorum import Quorum
from tests.mutants.mutant import Mutant


def owners_that_are_away_stop_no_sweep(patch: pytest.MonkeyPatch) -> None:
    sound = Quorum.holdings

    def holdings(self: Quorum, partition: int, /) -> dict[str, Holding]:
        linked = {member.address for member in self.members.all if member.outlet is not None}
        return {name: holding for name, holding in sound(self, partition).items() if name in linked}

    patch.setattr(Quorum, "holdings", holdings)


def stability_takes_one_step(patch: pytest.MonkeyPatch) -> None:
    def is_stable(waiting: Waiting, owners: Sequence[Holding]) -> bool:
        return all(owner.vector.covers(waiting.dot) for owner in owners)

    patch.setattr(stability, "is_stable", is_stable)


def a_bound_outlives_what_it_names(patch: pytest.MonkeyPatch) -> None:
    sound = stability.advanced

    def advanced(waiting: Waiting, owners: Sequence[Holding]) -> Waiting:
        return sound(waiting, owners) if waiting.bound is None else waiting

    patch.setattr(stability, "advanced", advanced)


MUTANTS = (
    Mutant(
        a_bound_outlives_what_it_names,
        "a sweep waits for an operation that was lost with a disk",
        ("15",),
        "composed",
        frozenset({"set_back", "stale_copy", "pruned_unheard"}),
    ),
    Mutant(
        owners_that_are_away_stop_no_sweep,
        "an owner that is away does not stop a sweep",
        ("3", "4", "7", "10", "15"),
        "composed",
        frozenset({"pruned_unheard"}),
    ),
    Mutant(
        stability_takes_one_step,
        "erased rows are swept once all owners hold the operation that erased them",
        ("3", "4", "7", "10", "15"),
        "composed",
        frozenset({"pruned_unheard"}),
    ),
)
