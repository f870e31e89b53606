"""Bugs of exclusive claims: two workers at one item, or a completion that is lost or made twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shoal.kinds.lease.state.table import Decider, Group, HandedOut, HandOut, Table
from shoal.kinds.worklist import state as queue
from shoal.kinds.worklist.serving import queues as tries
from shoal.kinds.worklist.serving.claims import Claims
from shoal.kinds.worklist.state import RankedEntry
from shoal.node.handler import WriteContext
from shoal.protocol.requests import CompleteItem, Durability, FailItem, ObjectWrite, Term
from tests.mutants.mutant import Mutant


def a_completion_under_an_ended_claim_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """No fencing: whoever once had the item may complete it."""

    def claimed(context: WriteContext, request: CompleteItem | FailItem) -> RankedEntry:
        entry = queue.entry(context.rows, request.worklist, bytes.fromhex(request.id))
        assert entry is not None
        tries.finished(entry, request)
        return entry

    def terms(self: Claims, writes: Sequence[ObjectWrite[Any]]) -> list[Term]:
        return []

    patch.setattr(tries, "_claimed", claimed)
    patch.setattr(Claims, "terms", terms)


def a_completion_is_acknowledged_without_copies(patch: pytest.MonkeyPatch) -> None:
    """Neither the attempt nor the completion waits for a quorum, nor catches up with one."""

    def durability(self: Claims, asked: Durability) -> Durability:
        return "local"

    patch.setattr(Claims, "durability", durability)


def an_item_is_handed_out_again_while_it_is_claimed(patch: pytest.MonkeyPatch) -> None:
    sound = Table.hand_out

    def hand_out(self: Table, wanted: HandOut, group_of: Callable[[bytes], Group], turn: Decider) -> HandedOut:
        tokens = {claim.token for claim in wanted.claims}
        for name, grant in list(self.grants.items()):
            if name.name.startswith(wanted.mark) and grant.claim.token not in tokens and grant.via != turn.node:
                del self.grants[name]
        return sound(self, wanted, group_of, turn)

    patch.setattr(Table, "hand_out", hand_out)


MUTANTS = (
    Mutant(a_completion_under_an_ended_claim_is_accepted, "an item is completed under a claim that has ended", ("24",)),
    Mutant(a_completion_is_acknowledged_without_copies, "a claimed item's completion needs no copies", ("24",)),
    Mutant(an_item_is_handed_out_again_while_it_is_claimed, "another node hands out an item that is claimed", ("24",)),
)
