"""What is left of a cluster that lost its majority goes on: the recipes of docs/DISKS_AND_NODES_LOST.md, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Ballot, Value
from shoal.cluster.consensus.ballots import Term as VotersTerm
from shoal.cluster.consensus.recovery import COUNTS_AHEAD, Foundation, Remains
from shoal.cluster.membership import notices as rebuilds
from shoal.cluster.membership.epochs import REBUILD_AHEAD, Record
from shoal.cluster.membership.notices import Founding, Inquiry, Report
from shoal.errors import InvalidInput, LeaseHeld, NoQuorum, NotAMember, PeerRefused, ShoalError, Unavailable
from shoal.node.membership.rebuilding import Survey
from shoal.protocol.requests import AcquireLease, RebuildView, Term
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet

SETTINGS: dict[str, Any] = {
    "quorum_register_retry_s": 0.01,
    "quorum_register_hello_s": 0.1,
    "quorum_register_found_s": 0.05,
    "members_tell_s": 0.05,
    "quorum_timeout_s": 1.0,
}
ROOT = Path(__file__).parents[3]
T = TypeVar("T")


@asynccontextmanager
async def cluster(names: str = "abc", **settings: Any) -> AsyncIterator[Fleet]:
    """A fleet whose register is founded and has granted leases."""
    async with Fleet(names, **(SETTINGS | settings)) as fleet:
        await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in names))
        yield fleet


async def asked(fleet: Fleet, coroutine: Awaitable[T]) -> T:
    """The outcome of a request; nodes dial meanwhile."""
    task = asyncio.ensure_future(coroutine)
    await fleet.until(task.done)
    return await task


async def fence(fleet: Fleet, name: str, lease: str = "nightly") -> int:
    """Take a lease, and give it back; returns its fencing number."""

    async def take() -> int:
        async with fleet[name].store().space("s").lease(lease, ttl=2.0) as held:
            return held.fence

    return await asked(fleet, take())


async def rebuilt(fleet: Fleet, name: str, *, leases_after: float | None = 0.0) -> RebuildView:
    """Look at what is left, and go on with it."""
    store = fleet[name].store()
    plan = (await asked(fleet, store.rebuild_cluster())).plan
    return await asked(fleet, store.rebuild_cluster(plan, leases_after=leases_after))


async def saved(fleet: Fleet, name: str, durability: str = "quorum") -> None:
    await asked(fleet, fleet[name].store().space("s").counter("c").add(1, durability=durability))  # type: ignore[arg-type]


async def total(fleet: Fleet, name: str) -> int:
    return await fleet[name].store().space("s").counter("c").value()


async def condition(fleet: Fleet, name: str) -> str:
    """What the status of a node says of the register."""
    return (await fleet[name].store().status()).register


def copied(left: MemoryStorage, identity: bytes = b"") -> MemoryStorage:
    """A copy of a directory: the same bytes in another file."""
    return MemoryStorage(dict(left.scan(b"", b"\xff" * 9)), identity=identity or b"copy of " + left.identity)


def is_done(fleet: Fleet, members: str) -> bool:
    """Whether these nodes agree that these are the members, and no change is under way."""
    records = [fleet[name].replicator.quorum.members.roster.record for name in members]
    return all(found.members == tuple(f"{name}:1" for name in members) and found.change is None for found in records)


async def all_crash(fleet: Fleet, names: str = "abc") -> dict[str, MemoryStorage]:
    return {name: await fleet.crash(name) for name in names}


async def start_copies(fleet: Fleet, left: dict[str, MemoryStorage], identity: bytes = b"") -> None:
    for name, storage in left.items():
        fleet.start(name, copied(storage, identity), linked=False)
    await fleet.until(
        lambda: all(
            f"{name}:1" in fleet[left_name].replicator.quorum.members.reached
            for name in left
            for left_name in left
            if name != left_name
        )
    )


@pytest.mark.answers("lost-majorities-are-rebuilt")
async def test_one_node_dead_and_one_disk_lost() -> None:
    async with cluster() as fleet:
        before = await fence(fleet, "a")
        await saved(fleet, "a", "all")
        await fleet.crash("b")
        await fleet.crash("a")
        fleet.start("a", MemoryStorage(identity=b"new"), linked=False)
        await fleet.until(lambda: "a:1" in fleet["c"].replicator.quorum.members.reached)
        with pytest.raises(NoQuorum, match=r"no quorum since .*a:1 .*b:1 cannot be reached.*`shoal cluster rebuild`"):
            await fence(fleet, "c")
        assert "b:1 cannot be reached, since" in await condition(fleet, "c")
        view = await asked(fleet, fleet["c"].store().rebuild_cluster())
        assert [each.name for each in view.survivors] == ["a:1", "c:1"]
        assert [each.name for each in view.given_up] == ["a:1", "b:1"]  # The old disk of a, and b.
        made = await asked(fleet, fleet["c"].store().rebuild_cluster(view.plan, leases_after=0.0))
        assert made.epoch >= REBUILD_AHEAD
        await saved(fleet, "a")
        assert await fence(fleet, "a") > before + COUNTS_AHEAD - 1
        assert [await total(fleet, name) for name in "ac"] == [2, 2]
        assert await condition(fleet, "a") == ""
        fleet.start("d", MemoryStorage(identity=b"d"), linked=False, join="a:1")
        await asked(fleet, fleet["c"].store().add_member("d:1"))
        await fleet.until(lambda: is_done(fleet, "acd"))
        await saved(fleet, "d", "all")
        assert await fence(fleet, "d") > before + COUNTS_AHEAD


@pytest.mark.answers("lost-majorities-are-rebuilt")
async def test_one_survivor_of_three_goes_on_alone() -> None:
    async with cluster() as fleet:
        before = await fence(fleet, "a")
        left = await all_crash(fleet, "ab")
        made = await rebuilt(fleet, "c")
        assert await fence(fleet, "c") > before
        await saved(fleet, "c")
        for name, storage in left.items():  # An old majority comes back: it is refused, and decides nothing.
            fleet.start(name, storage, linked=False)
        await fleet.until(lambda: not any(fleet[name].replicator.register.is_voting for name in "ab"))
        for name in "ab":
            with pytest.raises(NotAMember, match=f"in epoch {made.epoch}"):
                await saved(fleet, name, "local")
            with pytest.raises(NotAMember):
                await fence(fleet, name)
            with pytest.raises(PeerRefused, match="was forgotten"):
                fleet.link(name, "c")
        await fleet.crash("a")
        fleet.start("a", MemoryStorage(identity=b"wiped"), linked=False)
        await asked(fleet, fleet["c"].store().add_member("a:1"))
        await fleet.until(lambda: is_done(fleet, "ac"))
        await saved(fleet, "a", "all")


async def test_old_members_that_return_after_a_restart_stay_barred() -> None:
    async with cluster() as fleet:
        left = await all_crash(fleet, "ab")
        await rebuilt(fleet, "c")
        for name, storage in left.items():
            fleet.start(name, storage, linked=False)
        await fleet.until(lambda: not any(fleet[name].replicator.register.is_voting for name in "ab"))
        await fleet.durable()
        left = await all_crash(fleet, "ab")
        await fleet.crash("c")
        for name, storage in left.items():
            fleet.start(name, storage, linked=False)
        with pytest.raises(NotAMember):
            await fence(fleet, "a")


async def test_a_node_that_was_given_up_rebuilds_nothing() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", "all")
        left = await all_crash(fleet, "ab")
        await rebuilt(fleet, "c")
        fleet.start("a", left["a"], linked=False)
        await fleet.until(lambda: not fleet["a"].replicator.register.is_voting)
        with pytest.raises(NotAMember, match=r"cannot tell what is left.* Ask a member"):
            await asked(fleet, fleet["a"].store().rebuild_cluster())
        await fence(fleet, "c")
        await fleet.crash("c")  # For good. A copy of what was given up is another store, with the data.
        fleet.start("a", copied(await fleet.crash("a", None)), linked=False, join="a:1")
        await saved(fleet, "a")
        await fence(fleet, "a")
        assert await total(fleet, "a") == 2


async def test_of_two_rebuilds_at_once_one_is_complete() -> None:
    async with cluster("abcde") as fleet:
        await all_crash(fleet, "abc")
        stores = [fleet[name].store() for name in "de"]
        plans = [(await asked(fleet, store.rebuild_cluster())).plan for store in stores]
        both = asyncio.gather(
            *(store.rebuild_cluster(plan, leases_after=0.0) for store, plan in zip(stores, plans, strict=True)),
            return_exceptions=True,
        )
        made = await asked(fleet, both)
        assert [each for each in made if isinstance(each, RebuildView)], made
        await fence(fleet, "d")


async def test_a_register_with_a_quorum_is_not_rebuilt() -> None:
    async with cluster() as fleet:
        await fleet.crash("b")
        await fleet.until(lambda: "b:1" not in fleet["a"].replicator.quorum.members.reached)
        view = await asked(fleet, fleet["a"].store().rebuild_cluster())
        assert (view.plan, view.reason) == ("", "the register has a quorum, so there is nothing to rebuild")
        with pytest.raises(InvalidInput, match="has a quorum"):
            await asked(fleet, fleet["a"].store().rebuild_cluster("0123", leases_after=0.0))
        await fence(fleet, "a")


async def test_a_plan_that_has_changed_is_refused() -> None:
    async with cluster() as fleet:
        left = await all_crash(fleet, "ab")
        plan = (await asked(fleet, fleet["c"].store().rebuild_cluster())).plan
        fleet.start("b", copied(left["b"]), linked=False)
        await fleet.until(lambda: "b:1" in fleet["c"].replicator.quorum.members.reached)
        with pytest.raises(InvalidInput, match="what is left has changed"):
            await asked(fleet, fleet["c"].store().rebuild_cluster(plan, leases_after=0.0))


async def test_a_member_that_is_linked_and_silent_is_not_given_up() -> None:
    async with cluster() as fleet:
        left = await all_crash(fleet, "ab")
        fleet.start("b", copied(left["b"]), linked=False)
        await fleet.until(lambda: "b:1" in fleet["c"].replicator.quorum.members.reached)
        fleet.spoil = lambda source, target, message: None if source == "b" else message  # As one of an older version.
        view = await asked(fleet, fleet["c"].store().rebuild_cluster())
        assert (view.plan, view.reason) == ("", "b:1 can be reached and does not answer: update or restart it, and look again")
        with pytest.raises(Unavailable, match="b:1 can be reached and does not answer"):
            await asked(fleet, fleet["c"].store().rebuild_cluster("0123", leases_after=0.0))


async def test_a_survivor_that_vanishes_while_halted_leaves_nothing_founded() -> None:
    async with cluster() as fleet:
        left = await all_crash(fleet, "ab")
        fleet.start("b", copied(left["b"]), linked=False)
        await fleet.until(lambda: "b:1" in fleet["c"].replicator.quorum.members.reached)
        store = fleet["c"].store()
        plan = (await asked(fleet, store.rebuild_cluster())).plan
        looks = 0

        def spoil(source: str, _target: str, message: bytes) -> bytes | None:
            nonlocal looks
            looks += source == "b" and b"b:1" in message
            return None if source == "b" and looks > 2 else message

        fleet.spoil = spoil
        with pytest.raises(Unavailable):
            await asked(fleet, store.rebuild_cluster(plan, leases_after=0.0))
        fleet.spoil = lambda source, target, message: message
        assert fleet["c"].replicator.memberships.identity().epoch == 0
        made = await rebuilt(fleet, "c")
        await fleet.until(lambda: fleet["b"].replicator.memberships.identity().epoch == made.epoch)
        await fence(fleet, "b")


@pytest.mark.parametrize("names", ["c", "bc"])
async def test_survivors_that_are_copies_go_on_and_write(names: str) -> None:
    async with cluster() as fleet:
        before = await fence(fleet, "a")
        await saved(fleet, "a", "all")
        await fleet.durable()
        left = await all_crash(fleet)
        await start_copies(fleet, {name: left[name] for name in names})
        assert not fleet[names[0]].replicator.quorum.refilling  # It takes sessions, so it can be asked.
        await rebuilt(fleet, names[0])
        await fleet.until(lambda: not any(fleet[name].replicator.quorum.is_learner for name in names))
        assert await fence(fleet, names[-1]) > before
        await saved(fleet, names[-1], "all")
        assert await total(fleet, names[0]) == 2


async def test_leases_that_only_lost_members_knew_are_waited_for() -> None:
    async with cluster(lease_ttl_s_max=20.0) as fleet:
        await all_crash(fleet, "ab")
        await rebuilt(fleet, "c", leases_after=5.0)
        with pytest.raises(LeaseHeld, match="may still be held by a client of a member that was lost"):
            await fence(fleet, "c")
        await asyncio.sleep(6.0)
        await fence(fleet, "c")


async def test_leases_that_an_older_copy_lacks_are_waited_for() -> None:
    async with cluster(lease_ttl_s_max=20.0) as fleet:
        await fence(fleet, "b")
        await fleet.durable()
        olds = {name: copied(fleet[name].storage.left_by_crash(0)) for name in "ac"}
        original = await fleet.crash("b", None)  # What the others decide from now on it never learns.
        claimed = AcquireLease("s", "late", ttl=15_000, holder="before")
        assert (await asked(fleet, fleet["a"].node.leases.acquire(claimed))).granted
        await all_crash(fleet, "ac")
        fleet.start("b", original, linked=False)
        for name, old in olds.items():
            fleet.start(name, old, linked=False)
        await fleet.until(lambda: len(fleet["b"].replicator.quorum.members.reached) == 2)
        view = await asked(fleet, fleet["b"].store().rebuild_cluster())
        assert "the originals of the copies at a:1, c:1 may have voted later" in view.may_be_lost[0]
        await asked(fleet, fleet["b"].store().rebuild_cluster(view.plan))
        with pytest.raises(LeaseHeld, match="may still be held by a client of a member that was lost"):
            await fence(fleet, "a", "late")


async def test_a_term_of_before_a_rebuild_is_over() -> None:
    async with cluster() as fleet:
        claimed = AcquireLease("s", "nightly", ttl=30_000, holder="before")
        granted = await asked(fleet, fleet["c"].node.leases.acquire(claimed))
        await all_crash(fleet, "ab")
        await rebuilt(fleet, "c")
        with pytest.raises(LeaseHeld):
            await fence(fleet, "c")  # Until its ttl is over.
        term = Term("s", "nightly", False, granted.fence, granted.token)
        assert (await asked(fleet, fleet["c"].node.leases.renew([term]))).lost == [0]


async def test_copies_of_all_members_go_on_by_themselves() -> None:
    async with cluster() as fleet:
        before = await fence(fleet, "a")
        await saved(fleet, "a", "all")
        await fleet.durable()
        await start_copies(fleet, await all_crash(fleet))
        await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in "abc"))
        assert await fence(fleet, "b") > before + COUNTS_AHEAD - 1
        await saved(fleet, "c", "all")
        assert await total(fleet, "a") == 2
        assert await condition(fleet, "a") == ""
        originals = {removal.directory for removal in fleet["a"].replicator.quorum.members.roster.record.removed}
        assert len(originals) == 3


async def test_originals_that_return_after_their_copies_are_barred() -> None:
    async with cluster() as fleet:
        await fleet.durable()  # A copy that lacks the term of its original waits for an operator.
        left = await all_crash(fleet)
        await start_copies(fleet, left)
        await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in "abc"))
        await fleet.crash("a")
        fleet.start("a", left["a"], linked=False)
        await fleet.until(lambda: not fleet["a"].replicator.register.is_voting)
        with pytest.raises(NotAMember):
            await saved(fleet, "a", "local")


@pytest.mark.answers("lost-majorities-are-rebuilt")
async def test_copies_wait_while_one_original_lives() -> None:
    async with cluster() as fleet:
        left = await all_crash(fleet)
        fleet.start("a", left["a"], linked=False)
        for name in "bc":
            fleet.start(name, copied(left[name]), linked=False)
        await fleet.until(lambda: len(fleet["a"].replicator.quorum.members.reached) == 2)
        for _ in range(10):
            await fleet.dial()
            await asyncio.sleep(0.2)
        assert not fleet["b"].replicator.register.is_voting
        assert "b:1 may have forgotten votes" in await condition(fleet, "a")
        await rebuilt(fleet, "a")  # An operator knows that nothing else lives.
        await fence(fleet, "b")


@pytest.mark.answers("lost-majorities-are-rebuilt")
async def test_one_copy_that_is_older_than_the_others_holds_them_up() -> None:
    async with cluster() as fleet:
        await fleet.durable()
        old = copied(fleet["b"].storage.left_by_crash(0))
        await fence(fleet, "a")
        await fence(fleet, "b")
        await fleet.durable()
        left = await all_crash(fleet)
        left["b"] = old
        await start_copies(fleet, left)
        await fleet.until(lambda: fleet["a"].replicator.memberships.rebuilding.trouble)
        assert "the copy of b:1 is older than that of" in await condition(fleet, "a")
        await rebuilt(fleet, "c")
        await fence(fleet, "b")


async def test_all_nodes_restored_from_an_older_backup_go_on_by_themselves() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", "all")
        await fleet.durable()
        backup = {name: copied(fleet[name].storage.left_by_crash(0)) for name in "abc"}
        before = await fence(fleet, "a")
        await saved(fleet, "a", "all")
        await all_crash(fleet)
        await start_copies(fleet, backup)
        await fleet.until(lambda: all(fleet[name].replicator.register.is_voting for name in "abc"))
        assert await fence(fleet, "a") > before  # Though the backup knows of no lease.
        await saved(fleet, "a", "all")
        assert await total(fleet, "b") == 2


async def test_one_node_restored_from_an_old_backup_votes_again() -> None:
    async with cluster() as fleet:
        backup = copied(fleet["c"].storage.left_by_crash(0))
        before = await fence(fleet, "a")
        await saved(fleet, "a", "all")
        await fleet.crash("c")
        fleet.start("c", backup, linked=False)
        await fleet.until(lambda: fleet["c"].replicator.register.is_voting)
        await fleet.crash("a")
        assert before < await fence(fleet, "c") < COUNTS_AHEAD
        await saved(fleet, "c")


async def test_one_lost_disk_is_filled_and_its_directory_forgotten() -> None:
    async with cluster() as fleet:
        await saved(fleet, "a", "all")
        await fleet.crash("c")
        fleet.start("c", MemoryStorage(identity=b"new"), linked=False)
        await fleet.until(lambda: fleet["c"].replicator.register.is_voting)
        [lost] = (await fleet["a"].store().members()).lost
        await asked(fleet, fleet["a"].store().forget_member(lost.node[:8]))
        await saved(fleet, "c", "all")


async def test_one_dead_node_is_replaced() -> None:
    async with cluster() as fleet:
        await fleet.crash("c")
        fleet.start("d", MemoryStorage(identity=b"d"), linked=False, join="a:1")
        await fleet.until(lambda: "c:1" not in fleet["a"].replicator.quorum.members.reached)
        await asked(fleet, fleet["a"].store().replace_member("c:1", "d:1"))
        await fleet.until(lambda: is_done(fleet, "abd"))
        await saved(fleet, "d", "all")


async def test_a_lone_node_that_was_moved_grants_higher_numbers() -> None:
    async with Fleet("a", **(SETTINGS | {"join": ""})) as fleet:
        before = await fence(fleet, "a")
        left = await fleet.crash("a")
        fleet.start("a", copied(left), linked=False)
        assert await fence(fleet, "a") > before + COUNTS_AHEAD - 1


async def test_one_of_two_rebuilds_bars_the_other() -> None:
    async with cluster() as fleet:
        await fleet.crash("b")
        for pair in (("a", "c"), ("c", "a")):
            fleet.apart.add(pair)
            await fleet.cut(*pair)
        made = {name: (await rebuilt(fleet, name)).epoch for name in "ac"}
        fleet.apart.clear()
        later, earlier = sorted("ac", key=lambda name: -made[name])
        await fleet.until(lambda: not fleet[earlier].replicator.register.is_voting)
        await fence(fleet, later)
        with pytest.raises(ShoalError):
            await fence(fleet, earlier)


async def left_alone(fleet: Fleet, name: str) -> None:
    """Cut a node off from the others, so that it sees no quorum."""
    fleet.apart.update(pair for other in "abc" for pair in ((name, other), (other, name)))
    await fleet.isolate(name)


async def test_a_halted_member_votes_no_more() -> None:
    async with cluster() as fleet:
        await left_alone(fleet, "a")
        rebuilding = fleet["a"].replicator.memberships.rebuilding
        await rebuilding._answer(Inquiry(bytes(16), epoch=7))
        assert not fleet["a"].replicator.register.is_voting


async def test_a_member_that_sees_a_quorum_is_not_halted() -> None:
    async with cluster() as fleet:
        register = fleet["a"].replicator.register
        await fleet.until(lambda: register.can_decide)
        report = await fleet["a"].replicator.memberships.rebuilding._answer(Inquiry(bytes(16), epoch=7))
        assert (report.epoch, register.is_voting) == (0, True)


def test_a_survivor_takes_no_founding_that_contradicts_it() -> None:
    record = Record(7, ("a:1", "b:1"), {"a:1": b"a" * 16, "b:1": b"b" * 16})
    value, ballot = Value(5, b"held", ()), Ballot(1, b"p")
    remains = Remains(b"a" * 16, "forgotten", b"", "", VotersTerm(0, b"", 0), {}, [("k", ballot, ballot, value)])

    def refused(record: Record = record, version: int = 6, reached: tuple[str, ...] = ("b:1",)) -> str:
        slots = [("k", ballot, ballot, value._replace(version=version))]
        return rebuilds.why_refused(Founding(b"i", record, Foundation(b"i", {}, slots)), "a:1", remains, reached)

    assert refused() == ""
    assert "leaves c:1 out" in refused(reached=("b:1", "c:1"))
    assert "lacks what a:1 has of 'k'" in refused(version=5)
    assert "a:1 is no member" in refused(Record(7, ("b:1",)))
    assert "a:1 is no member" in refused(Record(7, ("a:1", "b:1"), {"a:1": b"x" * 16}))


def test_a_report_of_what_cannot_follow_is_left_out() -> None:
    own, invented = Record(0, ("a:1", "b:1")), Record(2, ("x:1", "z:1"))
    reports = {
        address: Report(bytes(16), 0, record, Remains(b"", "empty", b"", "", VotersTerm(0, b"", 0), {}, []), False, 0, {}, {})
        for address, record in (("a:1", own), ("z:1", invented))
    }
    assert rebuilds.newest(reports, own="a:1") == own
    assert rebuilds.newest(reports, own="z:1") == invented


async def test_a_member_halted_again_refuses_the_older_founding() -> None:
    async with cluster() as fleet:
        await left_alone(fleet, "a")
        rebuilding = fleet["a"].replicator.memberships.rebuilding
        older, later = b"o" * 16, b"l" * 16
        await rebuilding._answer(Inquiry(older, epoch=7))
        await rebuilding._answer(Inquiry(later, epoch=8))
        for id, epoch in ((older, 7), (later, 7), (older, 8)):
            with pytest.raises(Unavailable, match="not halted for this founding"):
                await rebuilding._begin(Founding(id, Record(epoch, ("a:1",)), Foundation(id, {}, [])))


async def test_a_founding_and_its_votes_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as fleet:
        roster, storage = fleet["a"].replicator.quorum.members.roster, fleet["a"].storage
        written: list[set[bytes]] = []
        write = storage.write

        def noted(rows: Mapping[bytes, bytes | None], ranges: Any = ()) -> int:
            written.append(set(rows))
            return write(rows, ranges)

        monkeypatch.setattr(storage, "write", noted)
        vote = keys.meta("a vote")
        roster.rebuilt(Record(7, ("a:1", "b:1", "c:1")), {vote: b"v"}, then=lambda: None)
        await roster.reach(7)
        [together] = [rows for rows in written if vote in rows]
        assert keys.meta("members") in together


async def test_a_survivor_of_another_epoch_is_asked() -> None:
    async with cluster() as fleet:
        await left_alone(fleet, "a")
        memberships = fleet["a"].replicator.memberships
        peer = fleet["b"].identity()._replace(epoch=9)
        memberships.heard(peer, Inquiry(bytes(16), epoch=7))
        await fleet.until(lambda: not fleet["a"].replicator.register.is_voting)


def test_copies_wait_while_an_original_was_met() -> None:
    def report(name: str, *met: bytes) -> Report:
        voter = name[:1].encode() * 16
        term = VotersTerm(1, voter, 1)
        remains = Remains(b"copy of " + voter[:8], "forgotten", voter, name, term, {}, [])
        return Report(bytes(16), 0, record, remains, False, 0, {}, {}, list(met))

    record = Record(0, ("a:1", "b:1"))
    alone = Survey(record, {name: report(name) for name in record.members}, {}, [])
    assert alone.whole == ""
    met = Survey(record, {"a:1": report("a:1", b"b" * 16), "b:1": report("b:1")}, {}, [])
    assert "that of b:1 is a copy is in use" in met.whole


async def test_no_founding_is_sent_before_all_have_halted() -> None:
    async with cluster() as fleet:
        left = await all_crash(fleet, "ab")
        fleet.start("b", copied(left["b"]), linked=False)
        await fleet.until(lambda: "b:1" in fleet["c"].replicator.quorum.members.reached)
        store = fleet["c"].store()
        plan = (await asked(fleet, store.rebuild_cluster())).plan
        sent: list[Founding] = []

        def spoil(source: str, target: str, message: bytes) -> bytes | None:
            """b hears nothing of a halt."""
            found = messages.decode(messages.unstamped(message)[1])
            sent.extend([found] if isinstance(found, Founding) else [])
            return None if target == "b" and isinstance(found, Inquiry) and found.epoch else message

        fleet.spoil = spoil
        with pytest.raises(Unavailable, match="while it was halted"):
            await asked(fleet, store.rebuild_cluster(plan, leases_after=0.0))
        assert sent == []


# ── the page ──────────────────────────────────────────────────────────────────

RECIPES = {
    "One node is dead for good": test_one_dead_node_is_replaced,
    "One disk is lost": test_one_lost_disk_is_filled_and_its_directory_forgotten,
    "One node is dead and one disk is lost": test_one_node_dead_and_one_disk_lost,
    "Two of three nodes are dead": test_one_survivor_of_three_goes_on_alone,
    "All directories were moved or copied": test_copies_of_all_members_go_on_by_themselves,
    "All nodes were restored from the same backup": test_all_nodes_restored_from_an_older_backup_go_on_by_themselves,
    "One node was restored from an old backup": test_one_node_restored_from_an_old_backup_votes_again,
    "Some directories were moved and others were not": test_copies_wait_while_one_original_lives,
    "A lone node was moved": test_a_lone_node_that_was_moved_grants_higher_numbers,
    "A dead node returns after a rebuild": test_one_survivor_of_three_goes_on_alone,
}
"""The headings of docs/DISKS_AND_NODES_LOST.md, and the tests that do what it says there.

`end_to_end/test_disks_and_nodes_lost.py` does some of it with the commands and real processes.
"""


def test_every_recipe_of_the_page_is_run() -> None:
    page = (ROOT / "docs" / "DISKS_AND_NODES_LOST.md").read_text()
    headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert headings == [*RECIPES, "What a rebuild does"]
