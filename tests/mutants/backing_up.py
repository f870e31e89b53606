"""Bugs in backups: in manifests, cuts, bases, merging, what is kept, and in what is said of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shoal.backup import keeping
from shoal.crdt.dot import COUNTER_BITS
from shoal.node.backup.shipper import Shipper
from shoal.protocol.requests import BackupView
from tests.mutants.mutant import Mutant, Plant
from tests.node.backup import test_keeping as kept
from tests.node.backup import test_together as together


def a_backup_is_always_said_to_be_current(patch: pytest.MonkeyPatch) -> None:
    sound = Shipper.told
    patch.setattr(Shipper, "told", lambda self, view: replace(sound(self, view), state="current"))


def a_backup_is_said_to_reach_now(patch: pytest.MonkeyPatch) -> None:
    sound = Shipper.told

    def told(self: Shipper, view: BackupView) -> BackupView:
        made = sound(self, view)
        return replace(made, covered_ms=self._environment.now_ms()) if made.covered_ms else made

    patch.setattr(Shipper, "told", told)


def a_base_that_is_needed_goes(patch: pytest.MonkeyPatch) -> None:
    """Restores to the first moments that are kept begin from one that came after them."""
    sound = keeping.first_bases
    patch.setattr(keeping, "first_bases", lambda catalogue, since: sound(catalogue, since + (3_000 << COUNTER_BITS)))


def _of(*plants: tuple[Plant, str]) -> tuple[Mutant, ...]:
    return tuple(Mutant(plant, breaks, ("42",), profile="shipped") for plant, breaks in plants)


MUTANTS = _of(
    (together.a_manifest_skips_a_segment, "a manifest names one pack of operations less than was shipped"),
    (together.a_cut_takes_a_later_operation, "a restore to a moment takes later operations"),
    (together.a_cut_loses_an_operation, "a restore to a moment lacks the last operations before it"),
    (together.a_base_lacks_rows, "a base lacks the rows of objects"),
    (together.a_segment_is_named_before_it_is_put, "a manifest names a pack before it is in the bucket"),
    (together.a_vector_grows_beyond_what_was_put, "the vector of a backup covers operations that were not shipped"),
    (together.a_restore_keeps_its_identity, "a restored directory takes itself for a member"),
    (kept.a_merge_loses_a_part, "merging loses a part of a pack"),
    (kept.a_pack_that_replaces_others_is_not_named, "the pack that takes the place of others is not named"),
    (kept.pieces_of_a_merged_base_are_mixed_up, "the pieces of a merged base are in another order"),
    (kept.a_needed_pack_of_operations_goes, "a pack of operations goes that no base covers"),
    (a_base_that_is_needed_goes, "the base goes from which restores to moments that are kept begin"),
    (kept.nothing_ever_goes, "a rule says for how long moments are kept, and nothing goes"),
    (a_backup_is_always_said_to_be_current, "a backup that lacks something is said to be current"),
    (a_backup_is_said_to_reach_now, "a backup is said to reach until now, whatever it lacks"),
)
