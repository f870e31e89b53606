"""Bugs in a thread's queues."""

from __future__ import annotations

import pytest

from shoal.kinds.worklist import state as queue
from shoal.kinds.worklist.state import RankedEntry
from tests.mutants.mutant import Mutant


def a_taken_message_waits_again(patch: pytest.MonkeyPatch) -> None:
    sound = queue._listed

    def listed(name: str, id: bytes, entry: RankedEntry) -> dict[bytes, bytes]:
        found = sound(name, id, entry)
        return {**found, **sound(name, id, entry._replace(finishes=[]))} if entry.finishes else found

    patch.setattr(queue, "_listed", listed)


MUTANTS = (Mutant(a_taken_message_waits_again, "a message that was taken still waits", ("4", "16")),)
