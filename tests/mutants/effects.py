"""Bugs in the ledger of steps, and in what is asked before an effect is caused."""

from __future__ import annotations

import pytest

from shoal.kinds.step import state as step_log
from shoal.kinds.step.handler import Steps
from shoal.kinds.step.state import StepEntry
from shoal.node.handler import Contest
from shoal.node.peers.quorum import Quorum
from shoal.node.writes.acknowledging import Acknowledging
from shoal.node.writes.issuing import Located
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply
from tests.mutants.mutant import Mutant


def an_intent_is_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    async def looked_again(
        self: Acknowledging, contest: Contest, located: Located, reply: AnyReply, bookmark: Bookmark
    ) -> AnyReply:
        return reply

    patch.setattr(Acknowledging, "looked_again", looked_again)


def a_step_is_begun_on_what_one_node_knows(patch: pytest.MonkeyPatch) -> None:
    async def catch_up(self: Quorum, partition: int, /) -> None:
        return None

    patch.setattr(Quorum, "catch_up", catch_up)
    an_intent_is_not_looked_at_again(patch)


def an_open_step_is_called_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Steps, "_may_begin", lambda self, entry, request: True)


def a_result_is_lost_where_an_error_came_too(patch: pytest.MonkeyPatch) -> None:
    sound = StepEntry.state.fget  # type: ignore[attr-defined]

    def state(self: StepEntry) -> step_log.State:
        return "failed" if self.results and self.failures else sound(self)

    patch.setattr(StepEntry, "state", property(state))


MUTANTS = (
    Mutant(an_intent_is_not_looked_at_again, "of two intents at once neither is told of the other", ("14",)),
    Mutant(a_step_is_begun_on_what_one_node_knows, "a step is begun without asking what a quorum knows of it", ("14",)),
    Mutant(an_open_step_is_called_again, "a step whose outcome nobody knows is called again", ("14",)),
    Mutant(a_result_is_lost_where_an_error_came_too, "a step that failed first is not done by its result", ("3", "7", "14")),
)
