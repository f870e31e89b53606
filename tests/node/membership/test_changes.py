"""Members join, leave and are replaced while the cluster works: real nodes over memory storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Accept
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Membership, Standing
from shoal.errors import ChangeUnderWay, InvalidInput, NoQuorum, NotAMember, OutcomeUnknown, PeerRefused, RegisterChanged
from shoal.logs import events
from shoal.logs.lines import captured
from shoal.node.membership.changes import Changes
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet

SETTINGS: dict[str, Any] = {
    "quorum_register_retry_s": 0.01,
    "quorum_register_found_s": 0.05,
    "members_tell_s": 0.05,
    "quorum_timeout_s": 5.0,
}


@asynccontextmanager
async def cluster(names: str = "abc", **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet whose register is founded, so that a node may be lost."""
    async with Fleet(names, **(SETTINGS | settings)) as fleet:
        await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in names))
        yield fleet


def changes(fleet: Fleet, name: str) -> Changes:
    return fleet[name].replicator.memberships.changes


def record(fleet: Fleet, name: str) -> Record:
    return fleet[name].replicator.quorum.members.roster.record


def is_done(fleet: Fleet, members: str, names: str = "") -> bool:
    """Whether these nodes agree that these are the members, and no change is under way."""
    wanted = tuple(f"{name}:1" for name in members)
    return all(record(fleet, name).members == wanted and record(fleet, name).change is None for name in names or members)


def is_prepared(fleet: Fleet, names: str) -> bool:
    """Whether these nodes know of a change that is not joint yet."""
    changes = [record(fleet, name).change for name in names]
    return all(change is not None and not change.is_joint for change in changes)


def progress(fleet: Fleet, name: str, address: str) -> str:
    """What a node shows of the member at this address while a change is under way; empty if it knows of none."""
    return {seat.name: seat.progress for seat in fleet[name].replicator.memberships.members().members}.get(address, "")


def is_record(message: bytes) -> bool:
    """Whether a message tells the record of the members, or asks for a vote for it, so that the target looks it up."""
    return isinstance(messages.decode(messages.unstamped(message)[1]), Membership | Accept)


async def asked(fleet: Fleet, coroutine: Coroutine[object, object, Record]) -> Record:
    """The outcome of a change; nodes dial meanwhile."""
    task = asyncio.create_task(coroutine)
    await fleet.until(task.done)
    return await task


async def saved(fleet: Fleet, name: str, *, durability: str = "quorum", times: int = 1) -> None:
    store = fleet[name].store()
    for _ in range(times):
        await store.space("crew").counter("c").add(1, durability=durability)  # type: ignore[arg-type]


async def total(fleet: Fleet, name: str) -> int:
    return await fleet[name].store().space("crew").counter("c").value()


@pytest.mark.answers("members-change-safely")
async def test_a_node_is_added_while_clients_write() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", times=20)
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        writing = asyncio.create_task(saved(fleet, "b", times=50))
        await fleet.until(lambda: is_done(fleet, "abcd"))
        await writing
        await fleet.converged()
        assert await total(fleet, "d") == 70
        await saved(fleet, "d", durability="all")
        assert record(fleet, "d").epoch == 3


async def test_a_node_that_was_added_counts() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="b:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "abcd"))
        await fleet.crash("c")
        await saved(fleet, "a")
        await fleet.crash("b")
        with pytest.raises(NoQuorum, match="3 of 4"):
            await saved(fleet, "a")


@pytest.mark.answers("members-change-safely")
async def test_a_drained_node_leaves_its_data_to_the_others_and_refuses_writes() -> None:
    async with cluster() as fleet:
        for other in "ab":
            await fleet.cut("c", other)
            fleet.apart.add(("c", other))
        await saved(fleet, "c", durability="local", times=5)  # Nobody else has these.
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        fleet.apart.clear()
        await fleet.until(lambda: is_done(fleet, "ab", "abc"))
        assert await total(fleet, "a") == 5
        for durability in ("local", "quorum"):  # Before it waits for a quorum that it never reaches.
            with pytest.raises(NotAMember, match="it was drained in epoch 3"):
                await saved(fleet, "c", durability=durability)
        with pytest.raises(NotAMember, match="c:1 is no member"):
            await asked(fleet, changes(fleet, "c").change("drain", leaves="a:1"))
        await saved(fleet, "a", durability="all")


@pytest.mark.answers("members-change-safely")
async def test_every_member_logs_a_step_that_any_of_them_asks_for() -> None:
    """Commands of operators are not signed, so one that lies may ask for it: no other one misses that."""
    with captured() as lines:
        async with cluster() as fleet:
            await asked(fleet, changes(fleet, "c").change("drain", leaves="b:1"))
            await fleet.until(lambda: is_done(fleet, "ac"))
    logged = [line.fields["epoch"] for line in lines if line.event is events.MEMBERS_ENTERED and line.fields["change"]]
    assert logged.count(1) == 3


async def test_a_dead_node_is_forgotten_and_refused_when_it_returns() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", times=3)
        left = await fleet.crash("c")
        await fleet.until(lambda: "c:1" not in fleet["a"].replicator.quorum.members.reached)
        await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab"))
        await saved(fleet, "b", durability="all")
        returned = fleet.start("c", left, linked=False)
        with pytest.raises(PeerRefused, match="was forgotten in epoch 3"):
            fleet.link("c", "a")
        await fleet.dial()
        with pytest.raises(NotAMember, match="was forgotten"):
            await saved(fleet, "c", durability="local")
        assert returned.replicator.identity().node == fleet["a"].replicator.quorum.members.roster.record.removed[0].directory


async def test_a_dead_node_is_replaced_in_one_change() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", times=3)
        await fleet.crash("c")
        fleet.start("d", MemoryStorage(), linked=False, join="a:1,b:1")
        await asked(fleet, changes(fleet, "b").change("replace", leaves="c:1", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "abd"))
        await fleet.crash("a")
        await saved(fleet, "d")
        assert await total(fleet, "d") == 4


async def test_one_of_two_operators_who_ask_at_once_is_told_of_the_other() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        asked = [changes(fleet, "a").change("add", joins="d:1"), changes(fleet, "b").change("add", joins="e:1")]
        found = await asyncio.gather(*asked, return_exceptions=True)
        [refused] = [each for each in found if isinstance(each, Exception)]
        assert isinstance(refused, ChangeUnderWay)
        assert "add" in str(refused.detail["change"])


async def test_the_same_change_asked_for_twice_is_made_once() -> None:
    async with cluster() as fleet:
        first = await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        assert await asked(fleet, changes(fleet, "b").change("add", joins="d:1")) == first


async def test_a_change_that_waits_for_a_node_that_never_comes_is_cancelled() -> None:
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: record(fleet, "b").epoch == 1)
        await asked(fleet, changes(fleet, "b").cancel())
        await fleet.until(lambda: is_done(fleet, "abc"))
        with pytest.raises(InvalidInput, match="nothing to cancel"):
            await asked(fleet, changes(fleet, "a").cancel())


@pytest.mark.answers("majority-of-the-register-is-lost")
async def test_without_a_majority_of_the_register_a_change_is_refused_and_local_writes_go_on() -> None:
    async with cluster(quorum_timeout_s=0.3) as fleet:
        left = await fleet.crash("b")
        await fleet.crash("c")
        with pytest.raises(NoQuorum, match="b:1 cannot be reached"):
            await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
        await saved(fleet, "a", durability="local")
        fleet.start("b", left, linked=False)
        await fleet.until(lambda: "b:1" in fleet["a"].replicator.quorum.members.reached)
        await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab"))
        assert await total(fleet, "b") == 1


@pytest.mark.answers("members-change-safely")
async def test_a_change_goes_on_when_the_node_that_was_asked_is_lost() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="b:1,c:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.crash("a")
        await fleet.until(lambda: is_done(fleet, "abcd", "bcd"))


@pytest.mark.answers("new-node-is-killed-while-it-replaces-another")
async def test_a_node_that_is_killed_while_it_replaces_another_stops_no_writes_and_goes_on_when_it_is_back() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", times=3)
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "b").change("replace", leaves="c:1", joins="d:1"))
        left = await fleet.crash("d")
        await saved(fleet, "a", times=3)
        await fleet.until(lambda: progress(fleet, "a", "d:1") == "cannot be reached; start it")
        fleet.start("d", left, linked=False, join="a:1")
        await fleet.until(lambda: is_done(fleet, "abd"))
        await fleet.crash("c")
        await saved(fleet, "d", durability="all")
        assert await total(fleet, "d") == 7


@pytest.mark.answers("member-of-another-cluster-is-added")
async def test_a_member_of_another_cluster_is_not_added_and_disturbs_nothing() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="d:1")
        fleet.start("e", MemoryStorage(), linked=False, join="d:1")
        await asked(fleet, changes(fleet, "d").change("add", joins="e:1"))
        await fleet.until(lambda: is_done(fleet, "de"))
        await saved(fleet, "d")
        with pytest.raises(PeerRefused, match="not in this node's list"):
            fleet.link("d", "a")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_prepared(fleet, "abc"))
        await saved(fleet, "a", durability="all")
        await asked(fleet, changes(fleet, "a").cancel())
        await fleet.until(lambda: is_done(fleet, "abc"))
        assert (await total(fleet, "a"), await total(fleet, "d")) == (1, 1)
        assert is_done(fleet, "de")


async def test_a_removed_directory_that_is_added_again_is_named_as_the_reason_why_the_change_waits() -> None:
    async with cluster() as fleet:
        left = await fleet.crash("c")
        await fleet.until(lambda: "c:1" not in fleet["a"].replicator.quorum.members.reached)
        await asked(fleet, changes(fleet, "a").change("forget", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab"))
        fleet.start("c", left, linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="c:1"))
        await fleet.until(lambda: "was forgotten in epoch 3" in changes(fleet, "a").problems.get("c:1", ""))
        await fleet.crash("c")
        fleet.start("c", MemoryStorage(), linked=False, join="a:1")
        await fleet.until(lambda: is_done(fleet, "abc"))


@pytest.mark.answers("node-counts-copies-of-an-epoch")
async def test_a_node_that_knows_of_a_newer_epoch_counts_no_copies_until_it_has_that_record() -> None:
    async with cluster(quorum_timeout_s=0.5) as fleet:
        fleet.spoil = lambda source, target, message: None if target == "a" and is_record(message) else message
        fleet.start("d", MemoryStorage(), linked=False, join="b:1,c:1")
        await asked(fleet, changes(fleet, "b").change("add", joins="d:1"))
        await fleet.until(lambda: record(fleet, "b").epoch == record(fleet, "c").epoch == 1)
        await fleet.until(lambda: not fleet["a"].replicator.quorum.members.roster.is_current)
        with pytest.raises((NoQuorum, OutcomeUnknown)):
            await saved(fleet, "a")
        assert record(fleet, "a").epoch == 0
        fleet.spoil = lambda source, target, message: message
        await fleet.until(lambda: is_done(fleet, "abcd"))
        await fleet.until(lambda: "d:1" in fleet["a"].replicator.quorum.members.reached)
        await saved(fleet, "a", durability="all")


async def test_a_node_that_was_away_learns_the_members_from_whoever_it_meets() -> None:
    async with cluster() as fleet:
        left = await fleet.crash("c")
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "abcd", "abd"))
        fleet.start("c", left, linked=False)
        await fleet.until(lambda: is_done(fleet, "abcd"))


async def test_a_restarted_node_uses_its_record_and_not_its_configuration() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "abcd"))
        fleet.start("d", await fleet.crash("d"), linked=False, join="a:1")
        assert record(fleet, "d").members == ("a:1", "b:1", "c:1", "d:1")
        assert sorted(fleet["d"].replicator.memberships.addresses) == ["a:1", "b:1", "c:1"]


async def test_a_node_with_data_from_before_is_not_added_and_says_why() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="d:1")
        await saved(fleet, "d", durability="local")
        fleet.start("d", await fleet.crash("d"), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: "d:1 holds data from before" in changes(fleet, "a").problems.get("d:1", ""))
        assert record(fleet, "a").change is not None
        assert await total(fleet, "a") == 0


@pytest.mark.answers("refused-node-with-data-is-taken-by-one-member")
async def test_a_node_with_data_from_before_brings_none_to_a_member_that_does_not_know_that_its_change_was_taken_back() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="d:1")
        await saved(fleet, "d", durability="local")
        fleet.start("d", await fleet.crash("d"), linked=False, join="a:1,b:1,c:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_prepared(fleet, "abc"))
        await fleet.until(lambda: changes(fleet, "b").problems)
        fleet.spoil = lambda source, target, message: None if target == "b" and is_record(message) else message
        await asked(fleet, changes(fleet, "a").cancel())
        await fleet.until(lambda: is_done(fleet, "abc", "acd"))
        for _ in range(100):
            await fleet.dial()
            await asyncio.sleep(0.005)
        assert record(fleet, "b").epoch == 1
        assert await total(fleet, "b") == 0


async def test_a_node_that_waits_to_be_added_writes_nothing() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await fleet.dial()
        with pytest.raises(NotAMember, match="shoal cluster add d:1"):
            await saved(fleet, "d", durability="local")
        assert list(changes(fleet, "a").waiting) == ["d:1"]


@pytest.mark.answers("only-configured-member-leaves")
async def test_a_node_that_waits_is_added_though_the_only_member_that_it_was_told_of_has_left() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", times=3)
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await fleet.until(lambda: all("d:1" in changes(fleet, name).waiting for name in "abc"))
        await asked(fleet, changes(fleet, "b").change("drain", leaves="a:1"))
        await fleet.until(lambda: is_done(fleet, "bc"))
        await fleet.crash("a")
        with pytest.raises(NotAMember, match="shoal cluster add d:1"):
            await saved(fleet, "d", durability="local")
        await asked(fleet, changes(fleet, "b").change("add", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "bcd"))
        await saved(fleet, "d", durability="all")
        assert await total(fleet, "d") == 4


@pytest.mark.answers("added-node-writes-too-early")
async def test_a_node_that_is_being_added_writes_nothing_before_it_knows_the_epoch_in_which_it_is_taken() -> None:
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        await fleet.dial()
        fleet.spoil = lambda source, target, message: None if target == "d" and is_record(message) else message
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: ("d", "a") in fleet.wires)
        with pytest.raises(NotAMember, match="shoal cluster add d:1"):
            await saved(fleet, "d", durability="local")
        fleet.spoil = lambda source, target, message: message
        await fleet.until(lambda: is_done(fleet, "abcd"))
        await saved(fleet, "d", durability="all")


@pytest.mark.answers("seed-400399")
async def test_an_empty_directory_that_a_member_refused_takes_nothing_of_one_that_knows_no_more() -> None:
    async with cluster() as fleet:
        before = fleet["b"].storage.left_by_crash(0)
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab"))
        await fleet.crash("c")
        fleet.apart |= {("b", "c"), ("c", "b")}
        fleet.start("c", MemoryStorage(), linked=False, join="a:1,b:1,c:1")
        await fleet.until(lambda: fleet["c"].replicator.quorum.members.roster.waits)
        await fleet.set_back("b", before)
        fleet.apart = {("a", "b"), ("b", "a")}
        await fleet.until(lambda: {("b", "c"), ("c", "b")} <= fleet.wires.keys())
        await saved(fleet, "b", durability="local")
        for _ in range(50):
            await fleet.dial()
            await asyncio.sleep(0.005)
        assert fleet["c"].replicator.quorum.view().members[0].operations == 0
        with pytest.raises(NotAMember, match="shoal cluster add c:1"):
            await saved(fleet, "c", durability="local")


@pytest.mark.answers("seed-330006")
async def test_an_empty_directory_at_a_removed_address_takes_nothing_before_it_is_added() -> None:
    async with cluster(members_tell_s=1.0) as fleet:
        await saved(fleet, "a", times=3)
        await asked(fleet, changes(fleet, "a").change("drain", leaves="c:1"))
        await fleet.until(lambda: is_done(fleet, "ab", "abc"))
        await fleet.crash("c")
        heard: list[type] = []

        def spoil(source: str, target: str, message: bytes) -> bytes:
            if target == "c":
                heard.append(type(messages.decode(messages.unstamped(message)[1])))
            return message

        fleet.spoil = spoil
        fleet.start("c", MemoryStorage(), linked=False)
        await fleet.until(lambda: ("a", "c") in fleet.wires)  # The members go on dialling the address for a while.
        await fleet["a"].store().space("other").counter("c").add(1)  # It depends on nothing, so it could be applied.
        await fleet.until(lambda: messages.Push in heard[:-1])
        with pytest.raises(NotAMember, match="shoal cluster add c:1"):
            await saved(fleet, "c", durability="local")
        assert fleet.rows("c") == {}
        await asked(fleet, changes(fleet, "a").change("add", joins="c:1"))
        await fleet.until(lambda: is_done(fleet, "abc"))
        await saved(fleet, "c", durability="all")
        assert await total(fleet, "c") == 4


async def test_a_cluster_of_one_grows() -> None:
    async with cluster("a") as fleet:
        await saved(fleet, "a", times=3)
        fleet.start("b", MemoryStorage(), linked=False, join="a:1")
        await asked(fleet, changes(fleet, "a").change("add", joins="b:1"))
        await fleet.until(lambda: is_done(fleet, "ab"))
        await saved(fleet, "b", durability="all")
        fleet.start("a", await fleet.crash("a"), linked=False)
        await fleet.until(lambda: fleet["a"].replicator.register.is_voting)
        await asked(fleet, changes(fleet, "b").change("drain", leaves="b:1"))
        await fleet.until(lambda: is_done(fleet, "a"))
        await saved(fleet, "a")


@pytest.mark.answers("node-that-is-added-again-is-never-counted")
async def test_a_node_that_has_a_link_when_it_is_added_counts() -> None:
    """As one that is added again while the link to the directory before it has not ended yet."""
    async with cluster() as fleet:
        fleet.start("d", MemoryStorage(), linked=False, join="a:1")
        fleet._wanted["a"].append("d:1")
        fleet.link("a", "d")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_done(fleet, "abcd"))
        assert "d:1" in fleet["a"].replicator.quorum.members.reached


async def test_members_take_the_next_step_in_turn() -> None:
    async with cluster() as fleet:
        for name in "abc":
            changes(fleet, name).heard("b:1", b"", Standing(0, True, True))
            changes(fleet, name).heard("a:1", b"", Standing(0, True, True))
        at_once, later = 1.0, 100.0  # As seconds since their epoch began.
        for name in "abc":
            changes(fleet, name)._since = 1.0
        assert [changes(fleet, name)._is_turn(at_once) for name in "abc"] == [True, False, False]
        assert all(changes(fleet, name)._is_turn(later) for name in "abc")


async def test_a_step_from_an_older_record_is_not_made() -> None:
    async with cluster() as fleet:
        before = record(fleet, "a")
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        other = epochs.begin(before, "add", joins="e:1", leaves="", hands_over=False, directories={})
        with pytest.raises(RegisterChanged):
            await changes(fleet, "a")._asked(before, other)
        assert "d:1" in record(fleet, "a").everyone


async def test_a_change_that_comes_second_names_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked_late(*_: Record) -> Record:
        raise RegisterChanged("the key has another version. Nothing was written.", version=1)

    async with cluster() as fleet:
        first = await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        monkeypatch.setattr(changes(fleet, "a"), "_asked", asked_late)
        with pytest.raises(ChangeUnderWay, match="`shoal cluster add d:1` came first"):
            await changes(fleet, "a")._set(first, epochs.cancel(first, directories={}))


def untold(_source: str, _target: str, message: bytes) -> bytes | None:
    """Whatever is chosen is heard of by votes alone."""
    return None if isinstance(messages.decode(messages.unstamped(message)[1]), Membership) else message


def knows_itself_alone(fleet: Fleet, name: str, patch: pytest.MonkeyPatch) -> None:
    """A node that has not learned yet which directories the others have."""
    patch.setattr(changes(fleet, name), "_directories", lambda _record: {f"{name}:1": fleet[name].identity().node})


@pytest.mark.instant_syncs("where nobody is told of what was chosen, the second hears of it by votes that wait for no disk")
async def test_the_second_to_take_a_step_has_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with captured() as lines:
        async with cluster() as fleet:
            await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
            await fleet.until(lambda: is_prepared(fleet, "abc"))
            before = record(fleet, "a")
            fleet.start("d", MemoryStorage(identity=b"d"), linked=False, join="a:1,b:1,c:1")
            knows_itself_alone(fleet, "b", monkeypatch)
            fleet.spoil = untold
            await asyncio.gather(*(changes(fleet, name)._step(before) for name in "ab"))
            assert [changes(fleet, name).trouble for name in "ab"] == ["", ""]
            fleet.spoil = lambda _source, _target, message: message
            await fleet.until(lambda: is_done(fleet, "abcd"))
    assert [line for line in lines if line.event is events.CHANGE_STANDS] == []


async def test_a_step_of_a_change_that_was_cancelled_meanwhile_is_no_trouble() -> None:
    async with cluster() as fleet:
        await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
        await fleet.until(lambda: is_prepared(fleet, "abc"))
        before = record(fleet, "a")
        fleet.spoil = untold
        await changes(fleet, "a").cancel()
        await changes(fleet, "b")._step(before)
        assert changes(fleet, "b").trouble == ""


async def test_of_two_who_ask_for_the_same_change_both_are_told_that_it_began() -> None:
    async with cluster() as fleet:
        before = record(fleet, "b")
        fleet.spoil = untold
        first = await changes(fleet, "a").change("add", joins="d:1")
        same = epochs.begin(before, "add", joins="d:1", directories={"b:1": fleet["b"].identity().node})
        assert same.directories != first.directories
        assert await changes(fleet, "b")._set(before, same) == first
