"""A directory that was set back as a whole cannot notice it: its peers remember what it held, and tell it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from shoal.cluster import messages
from shoal.cluster.messages import Vectors
from shoal.cluster.peer_state import Mark
from shoal.errors import CatchingUp, NoQuorum, Overloaded, PeerRefused
from shoal.node import incarnation
from shoal.protocol.requests import BeginStep, CatchUp, Step
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.world.fleet import Fleet, Member

WAIT_S = 30.0


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(mark_interval_s=0.01) as fleet:
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.converged()
        yield fleet


def image(fleet: Fleet, name: str) -> MemoryStorage:
    """A snapshot of the whole device: no file system tells it from its original."""
    return imaged(fleet[name].storage)


def imaged(storage: MemoryStorage) -> MemoryStorage:
    copy = storage.left_by_crash(0)
    copy.identity = storage.identity
    return copy


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def recorded(fleet: Fleet) -> None:
    """Wait until each node has recorded what the others hold. It hears of that later than they hold it."""
    await fleet.converged(WAIT_S)
    for member in fleet.members.values():
        await until(lambda member=member: has_recorded(member))  # type: ignore[misc]


def has_recorded(member: Member) -> bool:
    quorum, protocol = member.replicator.quorum, member.replicator._protocol
    own = quorum.view().members[0].operations
    return all(protocol.known(node).totals.operations == own and not protocol.mark(node).unwritten for node in quorum.linked)


async def restarted(fleet: Fleet, name: str) -> None:
    fleet._make(name, imaged(await fleet.crash(name)))


async def set_back(fleet: Fleet, name: str, copy: MemoryStorage) -> None:
    await fleet.crash(name)
    fleet._make(name, copy)


def link(fleet: Fleet, one: str, other: str) -> None:
    fleet.link(one, other)
    fleet.link(other, one)


def is_learner(member: Member) -> bool:
    return member.replicator.quorum.is_learner


async def begun(member: Member, attempt: str) -> bool:
    step = BeginStep("crew", "t", "charge-42", "charge", attempt)
    reply = await member.node.session().call(step, durability="quorum", key=attempt)
    assert isinstance(reply, Step)
    return reply.begun


async def add(member: Member, amount: int = 1) -> int:
    return await member.store().space("crew").counter("n").add(amount)


@pytest.mark.answers("set-back-directories-do-not-count", "set-back-machine-does-not-notice")
@pytest.mark.parametrize("restart", [False, True], ids=["in memory", "on disk"])
async def test_a_node_that_was_set_back_is_told_and_counts_in_no_quorum(fleet: Fleet, restart: bool) -> None:
    """A step that c and a hold is not begun again by c and b, because b knows that c held more."""
    copy = image(fleet, "c")
    await add(fleet["a"])
    await recorded(fleet)
    await fleet.isolate("b")
    assert await begun(fleet["a"], "first")
    if restart:
        await restarted(fleet, "b")
    await set_back(fleet, "c", copy)
    assert not is_learner(fleet["c"]), "it cannot know by itself"
    await fleet.isolate("a")
    link(fleet, "b", "c")
    for name in "cb":
        with pytest.raises(NoQuorum, match="has fetched what the others hold"):
            await begun(fleet[name], f"again at {name}")
    assert is_learner(fleet["c"])
    fleet.link_all("a")
    await fleet.admitted(WAIT_S)
    assert not await begun(fleet["b"], "healed")


@pytest.mark.answers("set-back-machine-does-not-notice", note="its twin")
async def test_without_marks_it_is_begun_twice(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failing twin of the test above."""
    monkeypatch.setattr(Mark, "note", lambda self, partition, vector: None)
    copy = image(fleet, "c")
    await add(fleet["a"])
    await fleet.converged(WAIT_S)
    await fleet.isolate("b")
    assert await begun(fleet["a"], "first")
    await set_back(fleet, "c", copy)
    await fleet.isolate("a")
    link(fleet, "b", "c")
    assert await begun(fleet["b"], "again")


async def test_a_node_that_was_set_back_writes_nothing_until_it_has_caught_up(fleet: Fleet) -> None:
    copy = image(fleet, "c")
    await add(fleet["a"])
    await recorded(fleet)
    await set_back(fleet, "c", copy)
    link(fleet, "c", "a")
    await until(lambda: is_learner(fleet["c"]))
    for _ in range(2):
        with pytest.raises(CatchingUp, match="set back: a:1 knows that it once held more"):
            await add(fleet["c"])
        await fleet.durable()
        await restarted(fleet, "c")  # It knows so after a restart, too, without any peer.
        assert is_learner(fleet["c"])
    fleet.link_all("c")
    await fleet.admitted(WAIT_S)
    assert await add(fleet["c"]) == 3


def without_operations_to(*names: str) -> Callable[[str, str, bytes], bytes | None]:
    """Nodes say what they hold, and these get none of it."""
    return lambda source, target, message: None if target in names and message[1] in (1, 7) else message  # Push, Supply.


@pytest.mark.answers("set-back-machine-does-not-notice")
async def test_lost_holdings_are_fetched_from_their_last_holder() -> None:
    """Of five, d holds it and is away; all that the other three hold would be enough without marks."""
    async with Fleet("abcde", mark_interval_s=0.01) as fleet:
        copy = image(fleet, "e")
        fleet.spoil = without_operations_to("a", "b", "c")
        await add(fleet["e"])
        node = fleet["e"].identity().node
        await until(lambda: fleet["d"].digest() == fleet["e"].digest())
        await until(lambda: fleet["a"].replicator._protocol.known(node).totals.operations == 1)
        await fleet.isolate("d")
        await set_back(fleet, "e", copy)
        fleet.spoil = lambda source, target, message: message
        for name in "abc":
            link(fleet, "e", name)
        await until(lambda: is_learner(fleet["e"]))
        progress = fleet["e"].replicator.quorum
        await until(lambda: progress.learning[1:] == [*(f"{name}:1: all fetched" for name in "abc"), "d:1: not heard yet"])
        with pytest.raises(CatchingUp):
            await add(fleet["e"])
        fleet.link_all("d")
        fleet.link_all("e")
        await fleet.admitted(WAIT_S)
        assert await add(fleet["e"]) == 2


@pytest.mark.answers("mark-can-never-be-reached")
async def test_an_operation_lost_everywhere_waits_for_all_owners(fleet: Fleet) -> None:
    """The set-back disk had a local write whose push reached nobody, though b heard of it."""
    copy = image(fleet, "c")
    await fleet.isolate("a")
    fleet.spoil = without_operations_to("b")
    await add(fleet["c"], 40)
    node, known = fleet["c"].identity().node, fleet["b"].replicator._protocol.known
    await until(lambda: known(node).totals.operations == 2)
    await set_back(fleet, "c", copy)
    fleet.spoil = lambda source, target, message: message
    link(fleet, "b", "c")
    await until(lambda: is_learner(fleet["c"]))
    with pytest.raises(CatchingUp):
        await add(fleet["c"])
    fleet.link_all("a")
    fleet.link_all("c")
    await fleet.admitted(WAIT_S)
    assert await add(fleet["c"]) == 2
    await until(lambda: counts(fleet, "b", "c"))
    await fleet["b"].store().space("crew").counter("n").add(1, durability="all")
    await recorded(fleet)
    for name in "bc":  # Nor is it told of it again.
        await restarted(fleet, name)
        fleet.link_all(name)
        await until(lambda: counts(fleet, "b", "c") and counts(fleet, "c", "b"))
        assert not is_learner(fleet["c"])


@pytest.mark.answers("mark-can-never-be-reached")
async def test_the_mark_of_a_directory_that_was_replaced_does_not_keep_the_new_one_out(fleet: Fleet) -> None:
    await recorded(fleet)
    before = fleet["c"].identity().node
    await fleet.crash("c")
    fleet.start("c", MemoryStorage())
    await fleet.admitted(WAIT_S)
    await fleet["c"].store().space("crew").counter("n").add(1, durability="all")
    for name in "ab":
        storage, lost = fleet[name].storage, keys.meta("lost/") + before
        await until(lambda storage=storage, lost=lost: [k for k, _ in storage.scan(b"M", b"N") if before in k] == [lost])  # type: ignore[misc]


async def test_all_nodes_set_back_to_one_moment_come_up(fleet: Fleet) -> None:
    await recorded(fleet)
    copies = {name: image(fleet, name) for name in "abc"}
    await add(fleet["a"])
    await recorded(fleet)
    for name, copy in copies.items():
        await set_back(fleet, name, copy)
    for name in "abc":
        fleet.link_all(name)
    await fleet.converged(WAIT_S)
    assert not any(map(is_learner, fleet.members.values()))
    assert await fleet["b"].store().space("crew").counter("n").add(1, durability="all") == 2


@pytest.mark.answers("mark-can-never-be-reached")
async def test_all_nodes_set_back_to_different_moments_come_up(fleet: Fleet) -> None:
    copies = {}
    for name in "abc":
        copies[name] = image(fleet, name)
        await add(fleet[name])
        await recorded(fleet)
    for name, copy in copies.items():
        await set_back(fleet, name, copy)
    for name in "abc":
        fleet.link_all(name)
    await fleet.converged(WAIT_S)
    await fleet.admitted(WAIT_S)
    await until(lambda: all(counts(fleet, one, other) for one in "abc" for other in "abc" if one != other))
    assert await fleet["b"].store().space("crew").counter("n").add(1, durability="all") == 4


def counts(fleet: Fleet, one: str, other: str) -> bool:
    return fleet[one].replicator._protocol.is_member(fleet[other].identity().node)


async def test_a_lone_store_that_was_set_back_goes_on() -> None:
    async with Fleet("a", join="") as fleet:
        copy = image(fleet, "a")
        await add(fleet["a"])
        await set_back(fleet, "a", copy)
        assert await add(fleet["a"]) == 1


async def test_a_mark_is_dropped_with_the_member_whose_it_was(fleet: Fleet) -> None:
    await recorded(fleet)
    node = fleet["c"].identity().node
    left = await fleet.crash("a")
    assert [key for key, _ in left.scan(b"M", b"N") if node in key]
    async with Fleet("ab", join="a:1,b:1", mark_interval_s=0.01) as smaller:
        await smaller.crash("a")
        smaller.start("a", left)
        storage = smaller["a"].storage
        await until(lambda: not [key for key, _ in storage.scan(b"M", b"N") if node in key])


async def test_a_restart_with_nothing_lost_is_told_of_nothing(fleet: Fleet) -> None:
    for name in "abcabc":
        await add(fleet[name])
        await recorded(fleet)
        await restarted(fleet, name)
        fleet.link_all(name)
        await fleet.converged(WAIT_S)
        assert not is_learner(fleet[name])


async def test_an_older_twin_is_refused_while_its_original_is_linked(fleet: Fleet) -> None:
    """It would be told that it was set back, and must not be counted as its original, nor its original as it."""
    copy = image(fleet, "c")
    await add(fleet["c"])
    await recorded(fleet)
    twin = Member("c", copy, fleet["c"].config, 77)
    try:
        with pytest.raises(PeerRefused, match="a copy"):
            fleet["a"].replicator.admit(twin.identity())
        assert counts(fleet, "a", "c")
        await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    finally:
        await twin.node.stop()


async def test_words_of_before_a_set_back_do_not_count(fleet: Fleet) -> None:
    """A message of its last process may arrive after its next one has begun a link."""
    copy = image(fleet, "c")
    await add(fleet["c"])
    await recorded(fleet)
    a, before, replica = fleet["a"].replicator, fleet["c"].identity(), fleet["c"].replicator._protocol._replica
    [number] = replica.partitions()
    said = messages.encode(Vectors([(number, replica.durable(number).pack())], answer=False))
    await set_back(fleet, "c", copy)
    fleet.spoil = without_operations_to("c")
    a.admit(fleet["c"].identity())
    await a.received(before, said)
    assert not a._protocol.mark(before.node).is_held
    link(fleet, "c", "a")
    await until(lambda: is_learner(fleet["c"]))


@pytest.mark.answers("set-back-node-confirms-an-answer")
def test_a_node_that_hears_that_it_was_set_back_while_it_catches_up_confirms_nothing() -> None:
    """c has heard from b what b holds, and waits for that, when a tells it that it once held more."""

    async def main() -> None:
        async with Fleet(mark_interval_s=0.01, quorum_timeout_s=5) as fleet:
            copy = image(fleet, "c")
            await fleet.isolate("b")
            assert await begun(fleet["a"], "first")
            await until(lambda: fleet["a"].digest() == fleet["c"].digest())
            await fleet["b"].store().space("crew").thread("t").save({"x": 1})
            await set_back(fleet, "c", copy)
            await fleet.isolate("a")
            fleet.spoil = without_operations_to("c")
            link(fleet, "b", "c")
            asked = asyncio.create_task(fleet["c"].node.session().call(CatchUp("crew", "t")))
            await until(lambda: any(fleet["c"].replicator.quorum._reaching.values()))
            link(fleet, "a", "c")
            await until(lambda: is_learner(fleet["c"]))
            fleet.spoil = lambda source, target, message: None if source == "a" and message[1] in (1, 7) else message
            answer = await asked
            assert (answer.quorum, "this node does not count until" in answer.reason) == (False, True)

    run(main())  # In virtual time: what was asked is answered when its time is over.


async def test_both_sides_say_that_a_directory_was_set_back(fleet: Fleet) -> None:
    copy = image(fleet, "c")
    await add(fleet["a"])
    await recorded(fleet)
    fleet.spoil = without_operations_to("c")
    await set_back(fleet, "c", copy)
    link(fleet, "c", "a")
    await until(lambda: is_learner(fleet["c"]))
    view = await fleet["c"].store().cluster()
    assert view.learning[0] == "set back, as a:1 knows: 1 operations once held are still missing"
    status = await fleet["c"].store().status()
    assert status.state == "refilling"
    assert "set back" in status.reason
    assert "b:1: not heard yet" in status.reason
    [reason] = [member.reason for member in (await fleet["a"].store().cluster()).members if member.name == "c:1"]
    assert "was set back" in reason


async def test_a_fall_that_a_busy_disk_did_not_record_is_over_with_the_admission(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = image(fleet, "c")
    await add(fleet["a"])
    await recorded(fleet)
    await set_back(fleet, "c", copy)
    replicator, refused = fleet["c"].replicator, 0
    sound = replicator._commit.write

    def write(rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = ()) -> int:
        nonlocal refused
        if rows.get(incarnation._RESTORED) is not None:
            refused += 1
            raise Overloaded("too many writes wait for a sync. Nothing was written.")
        return sound(rows, ranges)

    monkeypatch.setattr(replicator._commit, "write", write)
    fleet.link_all("c")
    await until(lambda: refused > 0 and not is_learner(fleet["c"]))
    await add(fleet["c"])
    ticks = 0

    def record(*_: object) -> None:
        nonlocal ticks
        ticks += 1

    monkeypatch.setattr(replicator._marking, "record", record)
    await until(lambda: ticks > 2)
    assert not is_learner(fleet["c"])


async def test_marks_are_written_at_most_once_an_interval() -> None:
    async with Fleet(mark_interval_s=3600.0) as fleet:
        await recorded(fleet)
        for _ in range(20):
            await add(fleet["a"])
        await fleet.converged(WAIT_S)
        replicator = fleet["a"].replicator
        assert any(replicator._protocol.mark(node).unwritten for node in replicator.quorum.linked)


@pytest.mark.answers(
    "node-with-an-empty-disk-remembers", note="nor does a node keep it that never lives for as long as marks wait to be written"
)
async def test_entries_that_a_start_drops_go_at_once(fleet: Fleet) -> None:
    """The first record is due at the start: a node that lives for less than an interval each time records too."""
    await recorded(fleet)
    node = fleet["c"].identity().node
    await fleet.durable()
    left = await fleet.crash("a")

    def stored(storage: MemoryStorage) -> list[bytes]:
        return [key for key, _ in storage.scan(keys.meta("mark/") + node, keys.meta("mark/") + node + b"\xff")]

    assert stored(left)
    async with Fleet("abc", join="a:1,b:1,c:1", mark_interval_s=3600.0) as longer:
        await longer.crash("a")
        again = longer.start("a", left, linked=False)
        mark = again.replicator._protocol.mark(node)
        for partition, vector in list(mark._vectors.items()):
            mark.retire(partition, list(vector))  # As if all of it were retired.
        await until(lambda: not stored(again.storage))
