"""Wishes of one node, decided by another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.cluster import messages
from shoal.errors import InvalidValue
from shoal.kinds.lease.state.table import ITEM_BYTES, Claim, Decider, Group, Handed, HandOut, Table, item_name, worklist_mark
from shoal.kinds.lease.state.wishes import CLAIMS_MAX, ITEMS_MAX, Choice, Ended, Granted, Wishes

MARK = worklist_mark("t", "w")
ITEMS = [bytes([number]) * 32 for number in range(4)]
CLAIMS = [Claim(bytes([number]) * 16, f"worker {number}", 60_000) for number in range(2)]
TURN = Decider(b"n", b"beat", lambda name, grant: False, lambda name, grant: False, 4, 1 << 14)


def wishes(*claims: Claim, **other: Any) -> Wishes:
    choices = [Choice(item[:ITEM_BYTES], "g", 2) for item in ITEMS]
    return replace(Wishes(1, "lease/0", [], "s", MARK, choices, list(claims)), **other)


@pytest.mark.answers("items-have-one-worker")
def test_another_node_decides_what_the_asking_one_would() -> None:
    here, there = Table(), Table()
    asked = messages.decode(messages.encode(wishes(*CLAIMS)))
    assert isinstance(asked, Wishes)
    outcome = asked.decide(there, TURN)
    own = here.hand_out(HandOut("s", MARK, ITEMS, CLAIMS), lambda item: Group("g", 2), TURN)
    assert there.pack() == here.pack()
    assert [found and found.grant for found in outcome.found] == [found and found.grant for found in own.found]
    assert {grant.via for grant in there.grants.values()} == {b"n"}


def test_an_answer_is_understood_as_it_was_given() -> None:
    outcome = wishes(CLAIMS[0]).decide(Table(), TURN)
    answer = Granted(1, True, [*outcome.found, None], is_full=True)
    decoded = messages.decode(messages.encode(answer))
    assert decoded == answer
    assert isinstance(decoded, Granted)
    assert isinstance(decoded.found[0], Handed)


def test_claims_that_have_ended_make_room_for_those_that_ask() -> None:
    table = Table()
    [first] = wishes(CLAIMS[0], items=wishes().items[:1]).decide(table, TURN).found
    assert first is not None
    ended = Ended("s", item_name("s", MARK, first.item).name, first.grant.fence, CLAIMS[0].token)
    [second] = wishes(CLAIMS[1], ended=[ended], items=wishes().items[:1]).decide(table, TURN).found
    assert second is not None
    assert (second.item, second.grant.fence) == (first.item, 2)


def test_a_claim_that_is_asked_for_again_gets_what_it_got() -> None:
    table = Table()
    first, again = wishes(CLAIMS[0]).decide(table, TURN), wishes(CLAIMS[0]).decide(table, TURN)
    assert first == again
    assert len(table.grants) == 1


@pytest.mark.parametrize(
    "message",
    [
        wishes(items=[Choice(b"x")] * (ITEMS_MAX + 1)),
        wishes(*CLAIMS * CLAIMS_MAX),
        wishes(items=[Choice(b"x" * (ITEM_BYTES + 1))]),
        wishes(Claim(b"short", "", 1)),
        wishes(Claim(b"x" * 16, "", 0)),
        wishes(space="x" * 2000),
        Granted(1, True, [None] * (CLAIMS_MAX + 1)),
    ],
)
def test_an_impossible_message_is_refused(message: Wishes | Granted) -> None:
    with pytest.raises(InvalidValue, match="Nothing was written"):
        messages.decode(messages.encode(message))
