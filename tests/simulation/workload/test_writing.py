"""What was acknowledged is looked for on the disks, unless the answer says that nothing was to be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from shoal.protocol.requests import AnyReply, BeginStep, Begun, ConsumerState, Move, Moved, Step
from simulation.judging.ledger import Ledger
from simulation.workload.writing import Assurance
from simulation.world.client import Sent

MOVE = Sent(Move("crew", "t", "main", "ab"), "key", "local")


@dataclass
class Looked:
    """In place of a ledger: for which keys it was asked."""

    keys: list[str] = field(default_factory=list)

    def copied(self, partition: int, key: str, copies: int, **_: Any) -> None:
        self.keys.append(key)


@pytest.mark.parametrize(
    ("reply", "looked"),
    [
        (Moved("main", "ab", ["cd"], ["ab"]), ["key"]),
        (Moved("main", "ab", ["ab"], ["ab"]), []),
        (ConsumerState("reader", 0, 1, b""), []),
        (Begun(created=True), ["key"]),
        (Begun(created=False), []),
    ],
)
def test_an_answer_that_nothing_was_to_be_done_needs_no_copy(reply: AnyReply, looked: list[str]) -> None:
    ledger = Looked()
    Assurance(3, cast(Ledger, ledger), lambda durability: 1).copied(MOVE, [], reply, who="agent", node="n1")
    assert ledger.keys == looked


@pytest.mark.parametrize(("begun", "looked"), [(True, ["key"]), (False, [])])
def test_a_step_that_is_not_begun_needs_no_copy_of_the_request(begun: bool, looked: list[str]) -> None:
    step = Step("s", "", "", "open", 0, 0, "", b"", b"", "", "", "", 0, [], begun=begun)
    ledger = Looked()
    sent = Sent(BeginStep("crew", "t", "s", "pay"), "key", "quorum")
    Assurance(3, cast(Ledger, ledger), lambda durability: 1).copied(sent, [], step, who="agent", node="n1")
    assert ledger.keys == looked
