"""Drawn plans on nodes whose directories are encrypted: the same faults, judged by the same checkers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.node.collection.sealing import KeyKeeper
from shoal.storage.encrypted.keyring import Keyring
from simulation.drawing import draw
from simulation.execution import execute
from simulation.world import disk
from simulation.world.sealed import SealedDisk, SealedMemory

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 6))]


class Counted:
    """What the keepers of a run did."""

    def __init__(self) -> None:
        self.keepers: list[KeyKeeper] = []


@contextmanager
def encrypted(counted: Counted) -> Iterator[None]:
    """Disks are encrypted; data keys are replaced every few seconds, and those of spaces without objects destroyed soon."""
    begin = KeyKeeper.__init__

    def hasty(self: KeyKeeper, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._erase_ms, self._rotate_ms, self._look_s = 1500, 5000, 0.7
        counted.keepers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "MemoryStorage", SealedMemory)
        patch.setattr(disk, "SimulatedDisk", SealedDisk)
        patch.setattr(KeyKeeper, "__init__", hasty)
        yield


@pytest.mark.answers(
    "encrypted-files-show-nothing", note="drawn plans run on encrypted disks, while keys are replaced and destroyed"
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_plan_breaks_nothing_on_encrypted_disks(seed: int) -> None:
    counted = Counted()
    outcome = execute(draw(seed), patches=[lambda: encrypted(counted)])
    assert outcome.violations == [], f"seed {seed}"
    assert sum(keeper.destroyed for keeper in counted.keepers) > 0


def test_a_key_that_is_destroyed_too_early_is_found() -> None:
    """The control: the checkers see it when rows cannot be opened any more."""
    counted = Counted()

    @contextmanager
    def careless() -> Iterator[None]:
        sound = Keyring.rotate

        def rotate(self: Keyring, scopes: Any) -> None:
            listed = list(scopes)
            gone = [key.number for scope in listed for key in self.scopes[scope].keys]
            sound(self, listed)
            self.adopt(self.renewed(), destroyed=gone)

        with encrypted(counted), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Keyring, "rotate", rotate)
            yield

    assert execute(draw(0), patches=[careless]).violations
