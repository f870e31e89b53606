"""Bugs of leases and fencing: two holders at once, or one that never comes.

Drawn plans do not show a missing margin for drift, nor a dead lease or an offer that is kept;
`cluster/leases/test_table.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from msgspec.structs import replace

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.label import state as marks
from shoal.kinds.lease.handle.tenure import Tenure
from shoal.kinds.lease.serving import leases
from shoal.kinds.lease.serving.requests import LeaseRequests
from shoal.kinds.lease.state.table import Decider, Grant, LeaseName, Table
from shoal.node.writes.issuing import Located
from shoal.protocol.requests import Term
from tests.mutants.mutant import Mutant, patch_applier


def a_write_of_an_ended_term_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """No fencing: the node trusts the client's own check."""

    async def admit(self: LeaseRequests, located: Located, key: str | None, terms: Sequence[Term]) -> None:
        return None

    async def still(self: LeaseRequests, terms: Sequence[Term]) -> None:
        return None

    patch.setattr(LeaseRequests, "admit", admit)
    patch.setattr(LeaseRequests, "still", still)


def a_node_never_forgets_a_term(patch: pytest.MonkeyPatch) -> None:
    """It accepts writes of a term that it has once stored, for ever."""
    patch.setattr(leases, "holds_s", lambda ttl_ms, drift: 1e9)


def a_term_has_the_time_of_whoever_applies_it(patch: pytest.MonkeyPatch) -> None:
    """The time in a row is not the operation's."""
    times = count(1)

    def apply(rows: Rows, stamp: Stamp, term: marks.TimedMark) -> None:
        marks.apply_term(rows, replace(stamp, hlc=next(times)), term)

    patch_applier(patch, marks.TimedMark, apply)


def a_renewal_cannot_be_told_from_the_one_before(patch: pytest.MonkeyPatch) -> None:
    sound = Table._renewed

    def renewed(self: Table, name: LeaseName, grant: Grant, turn: Decider) -> Grant:
        return sound(self, name, grant, turn._replace(beat=grant.beat))

    patch.setattr(Table, "_renewed", renewed)


def a_holder_counts_on_more_than_its_ttl(patch: pytest.MonkeyPatch) -> None:
    """Twice as long, from when the renewal was answered."""

    def renewed(self: Tenure, sent_s: float) -> None:
        now = self._connection.uptime()
        self._until_s = max(self._until_s, now + self.ttl_s * 2)
        self.due_s = sent_s + self.ttl_s / 3

    patch.setattr(Tenure, "renewed", renewed)


def a_fencing_number_is_used_again(patch: pytest.MonkeyPatch) -> None:
    sound = Table._pass_on

    def pass_on(self: Table, name: LeaseName, grant: Grant, turn: Decider) -> None:
        sound(self, name, grant, turn)
        if name not in self.grants:
            self.last = max((each.fence for each in self.grants.values()), default=0)

    patch.setattr(Table, "_pass_on", pass_on)


def an_answer_that_was_long_on_its_way_is_relied_on(patch: pytest.MonkeyPatch) -> None:
    """Whoever is told late that it holds a lease tries to renew it, and takes it for held whether that succeeds or not."""
    sound = Tenure.holds

    async def holds(self: Tenure) -> bool:
        await sound(self)
        return True

    patch.setattr(Tenure, "holds", holds)


MUTANTS = (
    Mutant(a_write_of_an_ended_term_is_accepted, "a write of an ended term is accepted: no fencing", ("23",)),
    Mutant(a_term_has_the_time_of_whoever_applies_it, "a term has the time of whoever applies its mark", ("4",)),
    Mutant(a_node_never_forgets_a_term, "a node accepts writes of a term for ever", ("23",)),
    Mutant(a_renewal_cannot_be_told_from_the_one_before, "a renewed lease is taken for a dead one", ("23",)),
    Mutant(a_holder_counts_on_more_than_its_ttl, "a holder counts on its lease for too long", ("23",)),
    Mutant(an_answer_that_was_long_on_its_way_is_relied_on, "a lease that has ended is taken for held", ("23",)),
    Mutant(a_fencing_number_is_used_again, "a fencing number is used again", ("23",)),
)
