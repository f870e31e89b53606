"""Bugs in a thread's queues."""

from __future__ import annotations

import pytest

from tests.mutants.mutant import Mutant


def a_taken_message_waits_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.crdt.thread.queue.RankedEntry.is_pending", property(lambda self: bool(self.puts)))


MUTANTS = (Mutant(a_taken_message_waits_again, "a message that was taken still waits", ("4", "16")),)
