"""Bugs in watches."""

from __future__ import annotations

import pytest

from shoal.crdt.dot import NOTHING_SEEN
from shoal.node.watching.changelog import Merge, ResumableWatch, SeenChange
from shoal.protocol.requests import Push
from tests.mutants.mutant import Mutant


def a_resumed_watch_forgets_what_was_written_between(patch: pytest.MonkeyPatch) -> None:
    def forget(self: ResumableWatch) -> None:
        self._merge = Merge((), bytes_max=1)

    patch.setattr(ResumableWatch, "_read_on", forget)


def a_watch_covers_what_is_still_to_come(patch: pytest.MonkeyPatch) -> None:
    sound = ResumableWatch._pushed

    def pushed(self: ResumableWatch, told: SeenChange) -> Push:
        here = self._here.get(told.change.partition, NOTHING_SEEN)
        return sound(self, told._replace(seen=told.seen.join(here)))

    patch.setattr(ResumableWatch, "_pushed", pushed)


MUTANTS = (
    Mutant(a_resumed_watch_forgets_what_was_written_between, "a watch that is resumed begins now", ("18",)),
    Mutant(a_watch_covers_what_is_still_to_come, "a bookmark of a watch covers what its node holds", ("18",)),
)
