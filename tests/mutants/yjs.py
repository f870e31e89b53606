"""Bugs in what standard Yjs clients meet."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from shoal.crdt import document, live
from shoal.crdt.rows import Rows, Stamp
from tests.mutants.mutant import Mutant


def of_several_updates_the_last_is_lost(patch: pytest.MonkeyPatch) -> None:
    sound = live.merged

    def merged(updates: Sequence[bytes]) -> bytes:
        return sound(updates[:-1] if len(updates) > 1 else updates)

    patch.setattr(live, "merged", merged)


def an_inferred_kind_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    sound = document.apply

    def apply(rows: Rows, stamp: Stamp, update: document.Update, payload: bytes) -> None:
        sound(rows, stamp, msgspec.structs.replace(update, inferred={}), payload)

    patch.setattr(document, "apply", apply)


MUTANTS = (
    Mutant(of_several_updates_the_last_is_lost, "of updates that become one operation, one is not in it", ("3",)),
    Mutant(an_inferred_kind_is_not_kept, "a node forgets what it took a root for", ("3",)),
)
