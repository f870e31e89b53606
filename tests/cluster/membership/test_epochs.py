"""The rule of epochs: which changes are allowed, and that what decides in one epoch meets what decides in the next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, pairwise

import msgspec
import pytest

from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Change, Kind, Record, Removal
from shoal.errors import ChangeUnderWay, InvalidInput, InvalidValue

KNOWN = {f"{name}:1": name.encode() * 16 for name in "abcdefg"}


def addresses(names: str) -> list[str]:
    return [f"{name}:1" for name in names]


def begun(kind: Kind, members: str = "abc", *, joins: str = "", leaves: str = "", hands_over: bool = False) -> Record:
    named = {"joins": "".join(addresses(joins)), "leaves": "".join(addresses(leaves))}
    return epochs.begin(epochs.founded(addresses(members)), kind, directories=KNOWN, hands_over=hands_over, **named)


def steps(record: Record) -> list[Record]:
    """All records of a change, the one before it first."""
    joint = epochs.advance(record, directories=KNOWN)
    return [epochs.founded(record.members), record, joint, epochs.advance(joint, directories=KNOWN)]


def changes(members: str) -> Iterator[Record]:
    for kind in ("add", "drain", "forget", "replace"):
        for name in members:
            joins = "g" if kind in ("add", "replace") else ""
            leaves = "" if kind == "add" else name
            if len(members) > 1 or joins:
                yield begun(kind, members, joins=joins, leaves=leaves)


def subsets(names: list[str]) -> Iterator[frozenset[str]]:
    return map(frozenset, chain.from_iterable(combinations(names, size) for size in range(len(names) + 1)))


@pytest.mark.answers("members-change-safely", note="every change of lists of up to five")
@pytest.mark.parametrize("members", ["a", "ab", "abc", "abcd", "abcde"])
def test_deciders_of_successive_epochs_share_a_member(members: str) -> None:
    for change in changes(members):
        made = steps(change)
        cancelled = [(record, epochs.cancel(record, directories=KNOWN)) for record in made[1:3]]
        for before, after in [*pairwise(made), *cancelled]:
            assert after.epoch == before.epoch + 1
            everyone = sorted({*before.everyone, *after.everyone})
            deciding = [each for each in subsets(everyone) if before.electorate.decides(each)]
            for decided in deciding:
                rest = frozenset(everyone) - decided
                assert not after.electorate.decides(rest), (before, after, decided)


@pytest.mark.parametrize("members", ["a", "ab", "abc", "abcd"])
def test_a_member_that_forgot_hears_a_voter_of_whatever_was_decided_in_its_epoch_and_the_one_before(members: str) -> None:
    for change in changes(members):
        made = steps(change)
        for before, here in [*pairwise(made), (made[2], epochs.cancel(made[2], directories=KNOWN))]:
            everyone = sorted({*before.everyone, *here.everyone})
            decided = [each for each in subsets(everyone) if before.electorate.decides(each) or here.electorate.decides(each)]
            for member in here.electorate.members:
                others = frozenset(here.electorate.members) - {member}
                for heard in subsets(sorted(others)):
                    if here.electorate.restores(member, heard):  # A voter that nobody else can be is nobody's to hear.
                        assert all(each & heard for each in decided if each & others), (here, member, heard)


@pytest.mark.answers("joint-change-never-ends")
@pytest.mark.parametrize("members", ["a", "ab", "abc", "abcd", "abcde"])
def test_two_recoveries_of_a_member_share_a_voter_also_in_epochs_that_follow_each_other(members: str) -> None:
    for change in changes(members):
        made = steps(change)
        for before, after in [
            *pairwise(made),
            (made[2], epochs.cancel(made[2], directories=KNOWN)),
            *zip(made, made, strict=True),
        ]:
            for member in set(before.electorate.members).intersection(after.electorate.members):
                first, second = (
                    [
                        each
                        for each in subsets(sorted({*here.electorate.members} - {member}))
                        if here.electorate.restores(member, each)
                    ]
                    for here in (before, after)
                )
                assert all(one & other for one in first for other in second if one and other), (before, after, member)


@pytest.mark.answers("joint-change-never-ends")
@pytest.mark.parametrize("members", ["abc", "abcd", "abcde"])
def test_members_that_forgot_do_not_wait_for_each_other_while_a_change_is_joint(members: str) -> None:
    for change in changes(members):
        joint = steps(change)[2]
        few = min(len(joint.members), len(joint.target))
        for forgot in subsets(list(set(joint.members) & set(joint.target))):
            if len(forgot) <= (few - 1) // 2:  # A minority of both lists; a node that joins has no vote either.
                voters = set(joint.members) - forgot
                for member in {*forgot, change.change.joins if change.change else ""} - {""}:
                    assert joint.electorate.restores(member, voters), (joint, forgot, member)


def test_two_steps_apart_they_need_not_so_a_joint_step_must_be_decided_before_the_new_list_is_used() -> None:
    before, _, joint, after = steps(begun("replace", "abc", joins="g", leaves="c"))
    assert before.electorate.decides(addresses("ac"))
    assert after.electorate.decides(addresses("bg"))
    assert not joint.electorate.decides(addresses("bg"))
    assert not joint.electorate.decides(addresses("ac"))


def test_a_node_that_joins_counts_in_nothing_until_the_change_is_joint() -> None:
    _, prepared, joint, after = steps(begun("add", joins="d"))
    assert [len(record.electorate.groups) for record in (prepared, joint, after)] == [1, 2, 1]
    assert not any("d:1" in group for group in prepared.electorate.groups)
    assert "d:1" in prepared.everyone
    assert [record.state_of("d:1") for record in (prepared, joint, after)] == ["joining", "joining", "member"]


def test_a_node_that_left_is_remembered_by_its_directory() -> None:
    after = steps(begun("replace", joins="d", leaves="c", hands_over=True))[-1]
    assert after.members == tuple(addresses("abd"))
    [removal] = after.removed
    assert removal == epochs.Removal("c:1", b"c" * 16, 3, True)
    assert after.removal_of(b"c" * 16) is removal
    assert after.removal_of(b"") is None
    assert after.state_of("c:1") == "removed"
    assert set(after.directories) == set(after.members)


def test_the_removed_directories_are_bounded_and_the_oldest_are_dropped() -> None:
    record = epochs.founded(addresses("abc"))
    for number in range(epochs.REMOVED_MAX + 3):
        joins = f"n{number}:1"
        leaves = record.members[-1]
        record = epochs.begin(record, "replace", joins=joins, leaves=leaves, directories={leaves: bytes([number]) * 16})
        record = epochs.advance(epochs.advance(record, directories={}), directories={})
    assert len(record.removed) == epochs.REMOVED_MAX
    assert record.removed[-1].epoch == record.epoch
    epochs.check(record)


def test_one_change_is_made_at_a_time_and_the_same_one_begins_once() -> None:
    record = begun("add", joins="d")
    assert epochs.begin(record, "add", joins="d:1", directories={}) is record
    with pytest.raises(ChangeUnderWay, match="add d:1") as refused:
        epochs.begin(record, "forget", leaves="a:1", directories={})
    assert refused.value.detail == {"change": "add d:1"}


@pytest.mark.parametrize(
    ("kind", "joins", "leaves", "why"),
    [
        ("add", "a:1", "", "a member already"),
        ("add", "nowhere", "", "HOST:PORT"),
        ("add", "d:99999", "", "HOST:PORT"),
        ("drain", "", "z:1", "not a member"),
        ("forget", "d:1", "a:1", "names other nodes"),
        ("replace", "d:1", "", "names other nodes"),
    ],
)
def test_an_impossible_change_says_why(kind: Kind, joins: str, leaves: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        epochs.begin(epochs.founded(addresses("abc")), kind, joins=joins, leaves=leaves, directories={})


@pytest.mark.parametrize(
    ("kind", "joins", "leaves"), [("add", "d:1", ""), ("drain", "", "c:1"), ("forget", "", "c:1"), ("replace", "d:1", "c:1")]
)
def test_a_later_record_tells_whether_a_change_was_begun(kind: Kind, joins: str, leaves: str) -> None:
    before = epochs.founded(["a:1", "b:1", "c:1"])
    asked = epochs.begin(before, kind, joins=joins, leaves=leaves, directories={})
    joint = epochs.advance(asked, directories={})
    done = epochs.advance(joint, directories={})
    later = epochs.begin(done, "add", joins="e:1", leaves="", directories={})
    assert [epochs.tells(record, asked) for record in (before, asked, joint, done)] == [False, True, True, True]
    assert not epochs.tells(later, asked), "it names another change, and may follow one that was taken back"
    other = epochs.begin(before, "add", joins="e:1", leaves="", directories={})
    taken_back = epochs.cancel(asked, directories={})
    assert not any(epochs.tells(record, asked) for record in (other, epochs.advance(other, directories={}), taken_back))


def test_a_node_that_was_forgotten_was_not_drained() -> None:
    """Whoever asked for a drain must not believe that the others hold what only that node had."""
    before = epochs.founded(["a:1", "b:1", "c:1"])
    drain = epochs.begin(before, "drain", leaves="c:1", directories={}, hands_over=True)
    forget = epochs.begin(before, "forget", leaves="c:1", directories={})
    drained, forgotten = (epochs.advance(epochs.advance(each, directories={}), directories={}) for each in (drain, forget))
    assert epochs.tells(drained, drain)
    assert epochs.tells(drained, forget)
    assert epochs.tells(forgotten, forget)
    assert not epochs.tells(forgotten, drain)


def test_a_change_is_done_if_its_node_left_so_and_the_one_for_it_came() -> None:
    def done(record: Record, kind: Kind, joins: str = "", leaves: str = "c:1") -> bool:
        return epochs.is_done(record, kind, joins=joins, leaves=leaves)

    def made(record: Record, kind: Kind, joins: str = "", leaves: str = "", *, hands_over: bool = False) -> Record:
        begun = epochs.begin(record, kind, joins=joins, leaves=leaves, directories={}, hands_over=hands_over)
        joint = epochs.advance(begun, directories={})
        assert not any(done(each, kind, joins, leaves) for each in (record, begun, joint))
        return epochs.advance(joint, directories={})

    before = epochs.founded(["a:1", "b:1", "c:1"])
    drained = made(before, "drain", leaves="c:1", hands_over=True)
    forgotten = made(before, "forget", leaves="c:1")
    replaced = made(before, "replace", "d:1", "c:1")
    assert (done(drained, "drain"), done(drained, "forget")) == (True, True)
    assert (done(forgotten, "drain"), done(forgotten, "forget")) == (False, True)
    assert (done(replaced, "replace", "d:1"), done(drained, "replace", "d:1")) == (True, False)
    back = made(drained, "add", "c:1")
    assert not any(done(back, kind) for kind in ("drain", "forget"))
    assert not done(back, "add", "c:1", "")
    assert not done(before, "drain", leaves="x:1")


def test_the_last_member_stays() -> None:
    with pytest.raises(InvalidInput, match="last member"):
        begun("forget", "a", leaves="a")


def test_a_change_becomes_joint_only_once_the_joining_node_and_enough_others_have_caught_up() -> None:
    prepared = begun("add", joins="d")

    def ready(names: str) -> bool:
        return epochs.is_ready(prepared, caught_up=addresses(names), voting=[])

    assert not ready("abc")
    assert not ready("ad")
    assert ready("abd")


def test_a_node_that_hands_over_must_be_up_before_its_change_is_joint() -> None:
    prepared = begun("drain", leaves="c", hands_over=True)
    assert not epochs.is_ready(prepared, caught_up=addresses("ab"), voting=[])
    assert epochs.is_ready(prepared, caught_up=addresses("abc"), voting=[])


def test_a_joint_change_is_done_once_a_majority_of_the_new_list_holds_all_and_both_lists_vote() -> None:
    joint = steps(begun("replace", joins="d", leaves="c"))[2]

    def ready(names: str, voting: str) -> bool:
        return epochs.is_ready(joint, caught_up=addresses(names), voting=addresses(voting))

    assert not ready("a", "abd")
    assert not ready("ac", "abd")
    assert not ready("ab", "ad")
    assert ready("ad", "ab")


def test_a_record_keeps_its_meaning_as_bytes_and_others_are_refused() -> None:
    record = steps(begun("replace", joins="d", leaves="c"))[2]
    assert epochs.decode(epochs.encode(record)) == record
    spoilt = [
        b"",
        b"\xc0",
        epochs.encode(msgspec.structs.replace(record, epoch=0)),
        epochs.encode(msgspec.structs.replace(record, members=())),
        epochs.encode(msgspec.structs.replace(record, members=("b:1", "a:1"))),
        epochs.encode(msgspec.structs.replace(record, members=("x",))),
        epochs.encode(msgspec.structs.replace(record, directories={"a:1": b"short"})),
    ]
    for packed in spoilt:
        with pytest.raises(InvalidValue):
            epochs.decode(packed)


def test_a_lost_directory_is_forgotten_and_the_members_stay() -> None:
    before = epochs.founded(addresses("abc"))
    after = epochs.forget_directory(before, b"l" * 16, "b:1", directories=KNOWN)
    assert (after.epoch, after.members, after.change) == (1, before.members, None)
    assert after.directories["b:1"] == KNOWN["b:1"]
    assert "b:1" not in epochs.forget_directory(before, KNOWN["b:1"], "b:1", directories=KNOWN).directories
    removal = after.removal_of(b"l" * 16)
    assert removal is not None
    assert (removal.address, removal.epoch, removal.handed_over) == ("b:1", 1, False)
    assert epochs.decode(epochs.encode(after)) == after


def test_no_directory_is_forgotten_while_members_change() -> None:
    with pytest.raises(ChangeUnderWay, match="Nothing was written"):
        epochs.forget_directory(begun("add", joins="d"), b"l" * 16, "b:1", directories=KNOWN)


def test_a_copy_of_a_removed_directory_is_removed_unless_it_is_a_members() -> None:
    record = epochs.forget_directory(epochs.founded(addresses("abc")), b"l" * 16, "b:1", directories=KNOWN)
    assert record.removal_of(b"x" * 16, [b"y" * 16, b"l" * 16]) == record.removed[0]
    assert record.removal_of(b"x" * 16, [b"y" * 16]) is None
    assert record.removal_of(KNOWN["b:1"], [b"l" * 16]) is None


# ── what peers tell ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("members", ["a", "abc", "abcd"])
def test_each_step_of_a_change_is_one(members: str) -> None:
    for change in changes(members):
        walk = steps(change)
        assert all(epochs.is_step(before, after) for before, after in pairwise(walk))
        for record in walk[1:3]:
            assert epochs.is_step(record, epochs.cancel(record, directories=KNOWN))
        assert not epochs.is_step(walk[0], walk[2])


def test_a_member_that_returned_can_leave_again() -> None:
    gone = steps(begun("drain", leaves="b"))[-1]
    back = epochs.begin(gone, "add", joins="b:1", directories=KNOWN | {"b:1": b"n" * 16})
    for _ in range(2):
        back = epochs.advance(back, directories=KNOWN | {"b:1": b"n" * 16})
    again = epochs.begin(back, "drain", leaves="b:1", directories={}, hands_over=True)
    joint = epochs.advance(again, directories={})
    assert epochs.is_step(again, joint)
    assert epochs.is_step(joint, epochs.advance(joint, directories={}))


def test_forgetting_a_directory_is_a_step() -> None:
    record = epochs.founded(addresses("abc"))
    assert epochs.is_step(record, epochs.forget_directory(record, b"x" * 16, "c:1", directories=KNOWN))


@pytest.mark.parametrize(
    "invented",
    [
        Record(1, ("a:1", "b:1")),
        Record(1, ("a:1", "b:1", "c:1")),
        Record(7, ("a:1", "b:1", "c:1"), {}, Change("forget", "", "c:1")),
        Record(1, ("a:1", "b:1", "c:1"), {}, Change("forget", "", "c:1", is_joint=True)),
        Record(1, ("a:1", "b:1", "c:1"), {}, Change("forget", "", "x:1")),
        Record(1, ("a:1", "b:1", "x:1"), {}, Change("add", "d:1", "")),
        Record(epochs.REBUILD_AHEAD, ("a:1",)),
    ],
)
def test_an_invented_record_is_no_step(invented: Record) -> None:
    assert not epochs.is_step(epochs.founded(addresses("abc")), invented)


def test_nobody_votes_for_the_end_of_a_node_that_is_up() -> None:
    record, up = epochs.founded(addresses("abc")), {"a:1": KNOWN["a:1"], "c:1": KNOWN["c:1"]}
    forgets = epochs.begin(record, "forget", leaves="c:1", directories=KNOWN)
    assert epochs.objection(record, forgets, up) == "c:1 is up"
    assert epochs.objection(record, forgets, {"a:1": KNOWN["a:1"]}) == ""
    drains = epochs.begin(record, "drain", leaves="c:1", directories=KNOWN, hands_over=True)
    assert epochs.objection(record, drains, up) == ""


def test_nobody_votes_for_the_end_of_a_directory_in_use() -> None:
    record, up = epochs.founded(addresses("abc")), {address: KNOWN[address] for address in addresses("abc")}
    forgets = epochs.forget_directory(record, KNOWN["b:1"], "b:1", directories={})
    assert "in use" in epochs.objection(record, forgets, up)
    lost = epochs.forget_directory(record, b"x" * 16, "b:1", directories={})
    assert epochs.objection(record, lost, up) == ""
    assert "not all members" in epochs.objection(record, lost, {"a:1": KNOWN["a:1"]})


@pytest.mark.parametrize("members", ["abc", "abcd"])
def test_records_after_changes_follow(members: str) -> None:
    for change in changes(members):
        walk = steps(change)
        assert all(epochs.follows(walk[early], walk[late]) for early, late in combinations(range(4), 2))
        assert not any(epochs.follows(walk[late], walk[early]) for early, late in combinations(range(4), 2))


def test_more_than_the_steps_can_change_does_not_follow() -> None:
    record = epochs.founded(addresses("abc"))
    gone = (Removal("b:1", b"", 3, False), Removal("c:1", b"", 3, False))
    assert not epochs.follows(record, Record(3, ("a:1",), {}, None, gone))
    assert not epochs.follows(record, Record(3, ("a:1", "b:1")))
    assert not epochs.follows(record, Record(1, ("a:1", "b:1", "c:1", "d:1", "e:1")))
    assert epochs.follows(record, Record(6, ("a:1",), {}, None, gone))
