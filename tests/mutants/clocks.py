"""Bugs in how a node judges its clock."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from shoal.cluster.comparing import Clocks, Leads
from shoal.node.peers.replica import ClockComparison
from tests.mutants.mutant import Mutant

_OFF = frozenset({"clock_off"})


def a_wrong_clock_is_reported_and_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClockComparison, "check", lambda self, now_ms: None)


def a_peer_alone_proves_a_clock_wrong(patch: pytest.MonkeyPatch) -> None:
    """A majority of those that were heard is taken for one of all members."""
    sound = Clocks.allowed

    def allowed(self: Clocks, peers: Collection[bytes], *, size: int) -> Leads:
        heard = [peer for peer in peers if peer in self._leads]
        return sound(self, heard, size=min(size, len(heard)))

    patch.setattr(Clocks, "allowed", allowed)


def a_step_of_the_clock_shows_with_the_next_comparison(patch: pytest.MonkeyPatch) -> None:
    """An operation's time is judged by the lead that the peers were told last."""
    sound = ClockComparison.check

    def check(self: ClockComparison, now_ms: int) -> None:
        told = self._told_lead
        sound(self, now_ms if told is None else round(told + self._environment.monotonic() * 1000))

    patch.setattr(ClockComparison, "check", check)
    patch.setattr("shoal.node.peers.replica._STEPPED_MS", 1 << 60)


MUTANTS = (
    Mutant(a_wrong_clock_is_reported_and_used, "a node issues times that it knows to be wrong", ("21",), "composed", _OFF),
    Mutant(a_peer_alone_proves_a_clock_wrong, "one peer whose clock is off stops a node", ("9",), "composed", _OFF, 3),
    Mutant(
        a_step_of_the_clock_shows_with_the_next_comparison,
        "a clock that is set is noticed when the peers tell the time the next time",
        ("21",),
        "composed",
        _OFF,
    ),
)
