"""Bugs in what is removed once keys expired.

That claims leave before their window is over is found by `node/collection/test_expiring.py`; drawn plans do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shoal.crdt import deletion
from shoal.crdt.deletion import KeyUse
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Rows
from shoal.kinds.counter import state as counter
from shoal.kinds.map import state as ormap
from shoal.node.collection.expiring import KeySweeper
from tests.mutants.mutant import Mutant


def claims_are_swept_before_they_are_stable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeySweeper, "_stable", _held)


def a_learner_sweeps_claims(patch: pytest.MonkeyPatch) -> None:
    sound = KeySweeper._stable

    def stable(self: KeySweeper, number: int) -> VersionVector:
        assert self._replicas is not None
        return _held(self, number) if self._replicas.learning else sound(self, number)

    patch.setattr(KeySweeper, "_stable", stable)


def the_sum_goes_with_the_claim(patch: pytest.MonkeyPatch) -> None:
    sound = deletion.rows_of

    def rows_of(rows: Rows, claim: KeyUse) -> Iterator[bytes]:
        yield from sound(rows, claim)
        yield counter.VALUE

    patch.setattr(deletion, "rows_of", rows_of)


def adds_to_maps_are_folded_before_they_are_stable(patch: pytest.MonkeyPatch) -> None:
    def settled(self: KeySweeper, partition: int) -> Callable[[ormap.Part], bool]:
        before_ms = self._now_ms() - self._span_ms
        return lambda add: add.request is None or deletion.is_made_before(add.request, before_ms)

    patch.setattr(KeySweeper, "settled", settled)


def _held(self: KeySweeper, number: int) -> VersionVector:
    return self._partitions.load(number).durable


_APART = frozenset({"expired_apart"})
_TWICE = ("2", "3", "4", "5", "6", "10", "15")

MUTANTS = (
    Mutant(
        claims_are_swept_before_they_are_stable,
        "a node forgets a request's key while another node may bring the same request",
        _TWICE,
        "composed",
        _APART,
    ),
    Mutant(a_learner_sweeps_claims, "a learner forgets keys of requests", _TWICE, "composed", _APART),
    Mutant(the_sum_goes_with_the_claim, "the sum goes with the key of the request", _TWICE, "composed", _APART),
    Mutant(
        adds_to_maps_are_folded_before_they_are_stable,
        "adds to a key of a map are merged while another node may bring one of them",
        _TWICE,
        "composed",
        _APART,
    ),
)
