"""Which members count as voting, and since when they do not."""

from __future__ import annotations

import msgspec

from shoal.cluster.consensus.ballots import NO_BALLOT, NO_TERM, NOTHING, Ask, Electorate, Known, Refusal, Term, Vote
from shoal.node.consensus.condition import Condition

MEMBERS = Electorate((frozenset("abc"),))


def condition() -> Condition:
    """That of a, in a register that was founded."""
    made = Condition("a")
    made.heard("b", Known({}))
    return made


def told(seen: Condition, linked: str, *, now_ms: int = 0) -> str:
    seen.look(MEMBERS, linked, "voting", now_ms=now_ms, has_failed=False)
    return seen.told(MEMBERS)


def vote(refusal: Refusal) -> Vote:
    return Vote("k", NO_BALLOT, False, refusal, NO_BALLOT, NO_BALLOT, NOTHING, NO_TERM, {})


def test_a_member_votes_unless_it_said_otherwise() -> None:
    seen = condition()
    assert told(seen, "b") == ""
    seen.heard("b", vote("not-voting"))
    assert "b may have forgotten votes" in told(seen, "b")
    seen.heard("b", vote("beaten"))
    assert told(seen, "b") == ""
    seen.heard("b", Ask(Term(2, b"", 0), {}))
    assert "b may have forgotten votes" in told(seen, "b")
    seen.heard("b", Ask(NO_TERM, {}))
    assert "b has no votes yet" in told(seen, "b")


def test_a_member_without_a_link_does_not_count() -> None:
    assert "b cannot be reached" in told(condition(), "")


def test_a_time_is_that_of_the_last_change_seen() -> None:
    seen = condition()
    told(seen, "", now_ms=1_000)
    assert "b cannot be reached, since 1970-01-01T00:00:01Z" in told(seen, "", now_ms=9_000)
    told(seen, "b", now_ms=20_000)
    assert "b cannot be reached, since 1970-01-01T00:00:30Z" in told(seen, "", now_ms=30_000)


def test_only_members_that_said_so_are_a_quorum() -> None:
    seen = condition()
    told(seen, "bc")
    assert seen.can_decide(MEMBERS)
    seen.heard("b", vote("not-voting"))
    told(seen, "bc")
    assert not seen.can_decide(MEMBERS), "c has said nothing yet"


def test_a_register_will_be_founded_while_all_are_up() -> None:
    seen = Condition("a")
    for linked, able in (("bc", True), ("b", False)):
        seen.look(MEMBERS, linked, "empty", now_ms=0, has_failed=False)
        assert seen.can_decide(MEMBERS) is able


def test_a_member_that_refuses_a_value_votes() -> None:
    seen = condition()
    seen.heard("b", msgspec.structs.replace(vote("not-voting"), unfit=True))
    assert told(seen, "b") == ""
