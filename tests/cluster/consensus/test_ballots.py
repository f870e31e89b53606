"""Changes are recognised, and made once."""

from __future__ import annotations

from shoal.cluster.consensus.ballots import (
    COUNTS_FREE,
    COUNTS_STEP,
    NOTHING,
    RECENT_MAX,
    Ballot,
    Ballots,
    Change,
    Value,
    Verdict,
)


def grown(versions: int) -> Value:
    value = NOTHING
    for version in range(versions):
        value = Change(b"%d" % version, version, b"content").apply(value)
    return value


def test_a_change_of_the_expected_version_is_made_and_named() -> None:
    change = Change(b"x", 0, b"new")
    value = change.apply(NOTHING)
    assert value == Value(1, b"new", (b"x",))
    assert change.judge(value) is Verdict.MADE


def test_a_change_of_another_version_changes_nothing_and_is_refused() -> None:
    value = grown(3)
    change = Change(b"x", 1, b"new")
    assert change.apply(value) == value
    assert change.judge(value) is Verdict.REFUSED
    assert Change(b"x", 9, b"new").judge(value) is Verdict.REFUSED


def test_a_change_is_made_once_and_found_among_later_ones() -> None:
    value = grown(5)
    change = Change(b"2", 2, b"content")
    assert change.apply(value) == value
    assert value.version_of(b"2") == 3
    assert Change(b"4", 5, b"content").apply(value) == value


def test_a_change_that_is_older_than_all_that_are_named_is_not_decided() -> None:
    value = grown(RECENT_MAX + 2)
    assert len(value.recent) == RECENT_MAX
    assert Change(b"0", 0, b"content").judge(value) is Verdict.UNKNOWN
    assert Change(b"1", 1, b"content").judge(value) is Verdict.UNKNOWN
    assert Change(b"2", 2, b"content").judge(value) is Verdict.MADE
    assert Change(b"other", 2, b"content").judge(value) is Verdict.REFUSED


def test_a_ballot_is_above_all_that_were_used_or_seen() -> None:
    ballots, others = Ballots(b"a"), Ballots(b"b")
    first = ballots.next()
    others.saw(first)
    second = others.next()
    assert first < second
    ballots.saw(second)
    assert second < ballots.next()


def test_a_far_ballot_of_another_uses_up_no_numbers() -> None:
    ballots = Ballots(b"p")
    ballots.saw(Ballot((1 << 62) - 1, b"z"), ahead=16)
    assert ballots.next().counter == COUNTS_FREE + COUNTS_STEP + 1
