"""What a directory must know before it votes, and by what it learns that it has forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shoal.cluster.consensus.acceptor import Acceptor, Limits
from shoal.cluster.consensus.ballots import (
    ANYTHING,
    COUNTS_FREE,
    COUNTS_STEP,
    NO_BALLOT,
    NOTHING,
    Accept,
    Answer,
    AnyMotion,
    Ask,
    Ballot,
    Electorate,
    Known,
    Prepare,
    Rules,
    Term,
    Value,
    Vote,
)

MEMBERS = "abc"
ELECTORATE = Electorate((frozenset(MEMBERS),))
ONE, TWO = Ballot(1, b"p"), Ballot(2, b"p")
VALUE = Value(1, b"one", (b"change",))


def acceptor(
    member: str = "a",
    rows: Mapping[bytes, bytes] | None = None,
    *,
    directory: bytes = b"",
    electorate: Electorate = ELECTORATE,
    rules: Rules = ANYTHING,
) -> Acceptor:
    return Acceptor(
        member,
        directory or member.encode(),
        rows if rows is not None else {},
        electorate=electorate,
        nonce=lambda: b"nonce",
        limits=Limits(keys_max=2, value_bytes_max=8),
        rules=rules,
    )


def voter(member: str = "a", rules: Rules = ANYTHING) -> Acceptor:
    found = acceptor(member, rules=rules)
    found.receive("founder", Known({each: Term(1, each.encode(), 0) for each in MEMBERS}, founding=True))
    assert found.term is not None
    return found


def restarted(before: Acceptor, **changes: bytes) -> Acceptor:
    rows = {key: value for key, value in before.rows.items() if value is not None}
    return acceptor(before.member, rows, **changes)  # type: ignore[arg-type]


def vote(voting: Acceptor, motion: AnyMotion) -> Vote:
    [(_, answer)] = voting.receive("p", motion)
    assert isinstance(answer, Vote)
    return answer


def answer(voting: Acceptor, source: str, motion: Ask) -> Answer:
    [(_, found)] = voting.receive(source, motion)
    assert isinstance(found, Answer)
    return found


def test_a_promise_and_an_accepted_value_survive_a_restart() -> None:
    before = voter()
    vote(before, Prepare("k", TWO, {}))
    vote(before, Accept("k", TWO, VALUE, {}))
    again = restarted(before)
    refused = vote(again, Prepare("k", ONE, {}))
    assert (refused.refusal, refused.promised) == ("beaten", TWO)
    shown = vote(again, Prepare("k", Ballot(3, b"p"), {}))
    assert (shown.refusal, shown.accepted, shown.value) == ("", TWO, VALUE)


def test_votes_must_be_durable_before_they_are_sent_and_a_repeated_vote_writes_nothing() -> None:
    voting = voter()
    voting.written()
    vote(voting, Prepare("k", ONE, {}))
    assert voting.is_due
    voting.written()
    assert vote(voting, Prepare("k", ONE, {})).refusal == ""
    assert vote(voting, Prepare("k", NO_BALLOT, {})).refusal == "beaten"
    assert not voting.is_due


def test_a_new_directory_a_copy_and_one_that_cannot_be_read_do_not_vote() -> None:
    before = voter()
    vote(before, Prepare("k", ONE, {}))
    for forgotten in (
        acceptor(),
        restarted(before, directory=b"copy"),
        Acceptor("a", b"a", None, electorate=ELECTORATE, nonce=lambda: b"", limits=Limits(keys_max=2, value_bytes_max=8)),
    ):
        assert vote(forgotten, Prepare("k", TWO, {})).refusal == "not-voting"


@pytest.mark.answers("register-is-linearizable")
def test_fewer_votes_than_others_know_of_prove_that_a_directory_was_set_back() -> None:
    voting = voter()
    vote(voting, Prepare("k", ONE, {}))
    old = restarted(voting)
    told = vote(voting, Accept("k", ONE, VALUE, {})).term
    assert vote(old, Prepare("k", TWO, {"a": told})).refusal == "not-voting"
    assert restarted(old).term is None


@pytest.mark.answers("seed-622")
def test_votes_that_a_crash_may_take_back_are_told_by_nothing_but_themselves() -> None:
    voting = voter()
    before = restarted(voting)
    vote(voting, Prepare("k", ONE, {"b": Term(1, b"b", 7)}))
    assert voting.told == {"a": Term(1, b"a", 0), "b": Term(1, b"b", 7), "c": Term(1, b"c", 0)}
    before.hear(voting.told)
    assert before.term == Term(1, b"a", 0)


def test_a_later_term_of_its_own_proves_that_another_directory_votes_for_the_member() -> None:
    voting = voter()
    voting.receive("b", Known({"a": Term(2, b"other", 0)}))
    assert voting.term is None


def test_a_directory_that_forgot_votes_again_with_what_enough_voters_report() -> None:
    others = {member: voter(member) for member in "bc"}
    vote(others["b"], Prepare("k", TWO, {}))
    vote(others["c"], Accept("k", ONE, VALUE, {}))
    wiped = acceptor(directory=b"new")
    wiped.receive("b", Known(dict(others["b"].terms)))
    asked = dict(wiped.questions())
    for member in "bc":
        assert wiped.term is None
        wiped.receive(member, others[member].receive("a", asked[member])[0][1])
    assert wiped.term == Term(2, b"nonce", 0)
    assert vote(wiped, Prepare("k", ONE, {})).refusal == "beaten"
    assert vote(wiped, Prepare("k", Ballot(3, b"p"), {})).value == VALUE


def test_an_answer_of_before_its_sender_lost_its_disk_does_not_count() -> None:
    others = {member: voter(member) for member in "bc"}
    wiped = acceptor(directory=b"new")
    wiped.receive("b", Known(dict(others["b"].terms)))
    asked = dict(wiped.questions())
    old = others["b"].receive("a", asked["b"])[0][1]
    others["c"].receive("b", Ask(Term(2, b"later", 0), {}))  # b has lost its disk since, and c has granted it a term.
    wiped.receive("b", old)
    wiped.receive("c", others["c"].receive("a", asked["c"])[0][1])
    assert wiped.term is None


def test_a_voter_does_not_grant_a_term_that_is_not_later() -> None:
    voting = voter("b")
    granted = answer(voting, "a", Ask(Term(3, b"x", 0), {}))
    assert granted.grants
    assert not answer(voting, "a", Ask(Term(2, b"y", 0), {})).grants
    assert answer(voting, "a", Ask(Term(3, b"x", 0), {})).grants
    assert not answer(voting, "a", Ask(Term(0, b"", 1), {})).grants


def test_only_the_member_with_the_least_address_founds_and_only_when_all_are_empty() -> None:
    members = {member: acceptor(member) for member in MEMBERS}
    asked = {member: dict(members[member].questions()) for member in MEMBERS}
    for member in MEMBERS:
        for other in MEMBERS.replace(member, ""):
            answered = members[other].receive(member, asked[member][other])[0][1]
            told = members[member].receive(other, answered)
            is_last = other == max(MEMBERS.replace(member, ""))
            assert [target for target, _ in told] == (["b", "c"] if member == "a" and is_last else [])
    assert members["a"].term == Term(1, b"a", 0)
    told_by_a = Known({each: Term(1, each.encode(), 0) for each in MEMBERS}, founding=True)
    members["b"].receive("a", told_by_a)
    assert members["b"].term == Term(1, b"b", 0)
    another = acceptor("c", directory=b"replaced")
    another.receive("a", told_by_a)
    assert another.term is None


def test_an_empty_directory_that_was_set_back_takes_no_first_term_from_a_voter() -> None:
    given = {"a": Term(1, b"a", 0)}
    for founding in (False, True):
        suspect = acceptor()
        suspect.forget()
        suspect.receive("b", Known(given, founding=founding))
        assert (suspect.term is not None) == founding


def test_votes_of_a_store_alone_do_not_count() -> None:
    lone = acceptor(electorate=Electorate((frozenset("a"),)))
    assert lone.questions() == []
    vote(lone, Prepare("k", ONE, {}))
    vote(lone, Accept("k", ONE, VALUE, {}))
    among_others = restarted(lone)
    assert among_others.term is None
    assert among_others.recovery.empty
    again = acceptor("a", {key: value for key, value in lone.rows.items() if value}, electorate=lone.electorate)
    assert vote(again, Prepare("k", TWO, {})).value == VALUE


def test_keys_and_values_beyond_the_bounds_are_refused() -> None:
    voting = voter()
    for key in "xy":
        assert vote(voting, Prepare(key, ONE, {})).refusal == ""
    assert vote(voting, Prepare("z", ONE, {})).refusal == "full"
    assert vote(voting, Accept("x", ONE, Value(1, b"123456789", ()), {})).refusal == "full"


def test_two_groups_decide_together() -> None:
    joint = Electorate((frozenset("abc"), frozenset("cde")))
    assert joint.members == list("abcde")
    assert not joint.decides("ab")
    assert not joint.decides("abd")
    assert joint.decides("bcd")
    assert joint.restores("a", "bc")
    assert joint.restores("d", "bc")
    assert not joint.restores("a", "b")
    assert not joint.restores("a", "bde")
    assert not Electorate((frozenset("a"), frozenset("ab"))).restores("a", "")
    assert Electorate((frozenset("ab"),)).restores("a", "b")


def test_terms_of_others_than_members_are_ignored() -> None:
    voting = voter()
    voting.written()
    voting.hear({"x": Term(9, b"x", 0)})
    assert "x" not in voting.terms
    assert voting.rows == {}


def test_a_halted_directory_neither_votes_nor_asks() -> None:
    halted = voter()
    halted.halt()
    assert halted.questions() == []
    assert vote(halted, Prepare("k", ONE, {})).refusal == "not-voting"
    halted.receive("b", Known({"a": Term(1, b"a", 0)}, founding=True))
    assert halted.term is None


def test_terms_of_others_are_kept_with_the_next_vote() -> None:
    voting = voter()
    before = dict(voting.rows)
    voting.written()
    later = Term(3, b"later", 0)
    voting.hear({"b": later})
    assert not voting.is_due
    vote(voting, Prepare("k", ONE, {}))
    assert voting.is_due
    rows = {key: value for key, value in (before | voting.rows).items() if value is not None}
    assert acceptor("a", rows).terms["b"] == later


def test_a_granted_term_is_written_at_once() -> None:
    voting = voter("b")
    voting.written()
    assert answer(voting, "a", Ask(Term(3, b"x", 0), {})).grants
    assert voting.is_due


def test_each_answer_carries_the_terms_that_are_known() -> None:
    voting = voter()
    later = Term(3, b"later", 0)
    voting.hear({"c": later})
    assert vote(voting, Prepare("k", ONE, {})).terms["c"] == later
    assert answer(voting, "b", Ask(Term(2, b"x", 0), {})).terms["c"] == later


def test_no_other_member_than_the_first_founds() -> None:
    members = {member: acceptor(member) for member in MEMBERS}
    for other, question in members["b"].questions():
        [(_, empty)] = members[other].receive("b", question)
        assert members["b"].receive(other, empty) == []
    assert members["b"].term is None


NOT_ONE = Rules(fits=lambda key, value: value != VALUE)


def test_a_value_that_cannot_be_one_is_not_accepted() -> None:
    for rules in (NOT_ONE, Rules(objects=lambda key, value: value == VALUE)):
        found = vote(voter(rules=rules), Accept("k", ONE, VALUE, {}))
        assert (found.refusal, found.unfit) == ("not-voting", True)


def test_a_vote_is_repeated_for_the_same_value() -> None:
    objections: list[Value] = []
    found = voter(rules=Rules(objects=lambda key, value: value in objections))
    assert not vote(found, Accept("k", ONE, VALUE, {})).refusal
    objections.append(VALUE)
    assert not vote(found, Accept("k", TWO, VALUE, {})).refusal


@pytest.mark.parametrize("rules", [NOT_ONE, Rules(objects=lambda key, value: value == VALUE)])
def test_a_value_that_is_not_allowed_is_not_learnt(rules: Rules) -> None:
    lost = acceptor("a", directory=b"new", rules=rules)
    others = {name: voter(name) for name in "bc"}
    for name, other in others.items():
        vote(other, Accept("k", ONE, VALUE, {}))
        lost.receive(name, answer(other, "a", Ask(Term(0, b"", 1), {})))
    for name, question in lost.questions():
        assert isinstance(question, Ask)
        lost.receive(name, answer(others[name], "a", question))
    assert (lost.state, lost.value_of("k"), lost.promised("k")) == ("voting", NOTHING, ONE)


FAR = (1 << 62) - 2


def test_a_ballot_that_no_member_reaches_gets_no_vote() -> None:
    voting = voter()
    for motion in (Prepare("k", Ballot(FAR, b"z"), {}), Accept("k", Ballot(FAR, b"z"), VALUE, {})):
        told = vote(voting, motion)
        assert (told.refusal, told.unfit) == ("not-voting", True)
    assert vote(voting, Accept("k", ONE, Value(FAR, b"one", ()), {})).unfit
    assert vote(voting, Accept("k", ONE, VALUE, {}, Ballot(FAR, b"z"))).unfit
    assert vote(voting, Prepare("k", ONE, {})).refusal == ""
    assert vote(voting, Accept("k", Ballot(COUNTS_FREE, b"p"), VALUE, {})).refusal == ""


def test_a_far_ballot_that_is_repeated_is_believed_in_steps() -> None:
    voting = voter()
    ballot = Ballot(COUNTS_FREE + 3 * COUNTS_STEP + 1, b"p")
    assert [vote(voting, Prepare("k", ballot, {})).refusal for _ in range(4)] == [*["not-voting"] * 3, ""]
    assert vote(restarted(voting), Prepare("k", ballot._replace(counter=ballot.counter + 1), {})).refusal == ""


def test_a_far_term_leaves_later_terms_to_its_member() -> None:
    voting = voter()
    voting.receive("c", Known({"a": Term(FAR, b"z", FAR), "b": Term(FAR, b"z", FAR)}))
    assert voting.term is None  # It may have forgotten.
    assert max(term.number for term in voting.terms.values()) <= COUNTS_FREE + COUNTS_STEP
    assert not answer(voter("b"), "c", Ask(Term(FAR, b"n", 0), {})).grants
