"""Three real nodes over wires: what one acknowledges, all come to hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from shoal.cluster.operation import partition_of
from shoal.errors import BookmarkLost, NoQuorum, OutcomeUnknown, SessionBehind
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.writes.test_erasing import swept


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def check_same(fleet: Fleet, names: str) -> None:
    """Once these hold the same operations, and what was dropped is swept, they have the same rows."""
    await fleet.converged()
    await swept(*(fleet[name].storage for name in names))
    assert all(fleet.rows(name) == fleet.rows(names[0]) for name in names)


async def write_everything(fleet: Fleet, name: str, count: int = 3) -> None:
    space = fleet[name].store().space("crew")
    for n in range(count):
        await space.thread(f"{name}-agent").save({"n": n, "log": ["x" * 50] * n}, overwrite=True)
        await space.thread("shared").save({"by": name, "n": n}, on_conflict="fork")
        await space.thread("shared").journal.append({"by": name, "n": n}, key=f"{name}-{n}")
        await space.counter("tokens").add(n + 1)
        await space.register("goal").set(f"{name}-{n}")
        await space.items.put(("memory", name), f"k{n}", {"n": n}, ttl=timedelta(days=1))
        await space.items.put(("memory", "shared"), "k", {"by": name, "n": n})
    await labelled(fleet, name)
    document = await space.document("plan")
    document.map("tasks")[name] = count
    document.text("notes").insert(0, f"{name} ")
    await document.close()


async def labelled(fleet: Fleet, name: str) -> None:
    """Checkpoints and notes under labels that the others use too; one is taken away again."""
    store = fleet[name].store()
    thread = store.space("crew").thread("labelled")
    for label in ("release", name):
        await thread.save({"by": name}, label=label, on_conflict="fork")
        note = requests.Note(b"from", name.encode(), first=label == "release")
        await store.connection.write(requests.Annotate("crew", "labelled", label, [note]), key=None, durability=None)
    await thread.unlabel(name)
    await store.connection.write(requests.Claim("crew", "labelled"), key=None, durability=None)


async def test_all_nodes_hold_each_others_writes_byte_for_byte(fleet: Fleet) -> None:
    await asyncio.gather(*(write_everything(fleet, name) for name in "abc"))
    await check_same(fleet, "abc")
    space = fleet["b"].store().space("crew")
    assert await space.counter("tokens").value() == 18
    document = await space.document("plan")
    assert document.to_py()["tasks"] == {"a": 3, "b": 3, "c": 3}
    await document.close()


@pytest.mark.answers("partitioned-nodes-answer")
async def test_a_node_that_was_cut_off_catches_up(fleet: Fleet) -> None:
    await fleet.isolate("c")
    await write_everything(fleet, "a")
    await write_everything(fleet, "c")
    fleet.link_all("c")
    await check_same(fleet, "abc")


async def test_lost_pushes_are_fetched_by_sync(fleet: Fleet) -> None:
    fleet.spoil = lambda source, target, message: None if message[1] == 1 else message
    await write_everything(fleet, "a", 5)
    await check_same(fleet, "ac")


async def test_a_crashed_node_returns_with_what_was_durable_and_catches_up(fleet: Fleet) -> None:
    await write_everything(fleet, "a")
    left = await fleet.crash("a")
    await write_everything(fleet, "b")
    fleet.start("a", left)
    await check_same(fleet, "abc")


async def test_a_wiped_node_fetches_everything(fleet: Fleet) -> None:
    await write_everything(fleet, "a")
    await fleet.converged()
    await fleet.crash("a")
    fleet.start("a", MemoryStorage())
    await check_same(fleet, "ab")


async def test_data_of_a_wiped_node_counts_no_more(fleet: Fleet) -> None:
    await fleet.isolate("b")
    await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")  # On a and c.
    await fleet.crash("c")
    await fleet.crash("b")
    fleet.start("c", MemoryStorage())
    fleet.spoil = lambda source, target, message: None  # It is linked, and learns nothing.
    view = fleet["a"].replicator.quorum.view()
    assert [(member.name, member.operations) for member in view.members if member.name == "c:1"] == [("c:1", 0)]


async def test_a_node_that_restarted_claims_nothing_of_peers_unheard(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    await fleet.isolate("a")
    left = await fleet.crash("a")
    fleet.start("a", left)
    shown = [member.shown() for member in fleet["a"].replicator.quorum.view().members]
    unknown = {"operations": None, "lacks": None, "ahead": None, "lag_ms": None, "told": False}
    assert [{name: member[name] for name in unknown} == unknown for member in shown] == [False, True, True]


async def test_a_node_that_restarted_knows_its_peers_once_they_told(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    fleet.start("a", await fleet.crash("a"))
    await fleet.converged()
    await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    view = fleet["a"].replicator.quorum.view()
    assert [(member.told, member.lacks, member.ahead) for member in view.members] == [(True, 0, 0)] * 3


async def test_a_quorum_write_is_on_two_nodes_when_it_is_acknowledged(fleet: Fleet) -> None:
    await fleet.isolate("c")
    saved = await fleet["a"].store().space("crew").thread("t").save({"n": 1}, durability="quorum")
    left = await fleet.crash("a")
    assert left is not None
    loaded = await fleet["b"].store().space("crew").thread("t").load()
    assert loaded.id == saved.id


@pytest.mark.answers("partitioned-nodes-answer")
async def test_without_a_majority_a_quorum_write_is_refused_and_nothing_is_written(fleet: Fleet) -> None:
    await fleet.isolate("a")
    with pytest.raises(NoQuorum, match="needs 2 of 3 replicas"):
        await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")
    assert await fleet["a"].store().space("crew").counter("n").value() == 0


async def test_copies_that_do_not_come_in_time_are_an_unknown_outcome_that_says_who_acknowledged(fleet: Fleet) -> None:
    for target in "bc":
        fleet.wires["a", target].open.clear()
    with pytest.raises(OutcomeUnknown) as raised:
        await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")
    assert raised.value.detail["acknowledged"] == ["a:1"]


async def test_all_waits_for_every_owner(fleet: Fleet) -> None:
    for source in "ab":
        fleet.wires[source, "c"].open.clear()
    with pytest.raises(OutcomeUnknown) as raised:
        await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    assert raised.value.detail["acknowledged"] == ["a:1", "b:1"]


async def test_a_bookmark_makes_another_node_wait_for_what_was_written(fleet: Fleet) -> None:
    bookmark = Bookmark()
    for target in "bc":
        fleet.wires["a", target].open.clear()
    await fleet["a"].store(bookmark).space("crew").counter("n").add(7)
    reading = asyncio.create_task(fleet["b"].store(bookmark).space("crew").counter("n").value())
    await asyncio.sleep(0.02)
    fleet.wires["a", "b"].open.set()
    assert await reading == 7


async def test_a_node_that_cannot_catch_up_says_so_and_shows_older_state_only_when_asked(fleet: Fleet) -> None:
    bookmark = Bookmark()
    await fleet.isolate("a")
    await fleet["a"].store(bookmark).space("crew").counter("n").add(7)
    session = fleet["b"].node.session(bookmark)
    read = requests.ReadCounter("crew", "n")
    with pytest.raises(SessionBehind, match="a:1 cannot be reached"):
        await session.call(read)
    assert await session.call(read, stale=True) == requests.CounterValue(0)
    assert await session.call(read) == requests.CounterValue(0), "the bookmark let go of what was lost"


@pytest.mark.answers("seed-185")
async def test_a_shown_document_is_shown_by_the_next_node(fleet: Fleet) -> None:
    bookmark = Bookmark()
    await fleet.isolate("a")
    async with await fleet["a"].store().space("crew").document("plan") as document:
        document.map("tasks")["t1"] = 1
    follow = requests.Follow("crew", "plan")
    async with fleet["a"].node.session(bookmark).subscribe(follow):
        pass
    with pytest.raises(SessionBehind):
        async with fleet["b"].node.session(bookmark).subscribe(follow):
            pass


@pytest.mark.answers("seed-185")
@pytest.mark.parametrize("subscription", [requests.Follow("crew", "plan"), requests.Watch("crew")])
async def test_a_pushed_change_is_shown_by_the_next_node(fleet: Fleet, subscription: requests.Subscription) -> None:
    bookmark = Bookmark()
    await fleet.isolate("a")
    async with fleet["a"].node.session(bookmark).subscribe(subscription) as pushes:
        if isinstance(subscription, requests.Follow):
            await anext(pushes)  # What there is: nothing.
        async with await fleet["a"].store().space("crew").document("plan") as document:
            document.map("tasks")["t1"] = 1
        assert not bookmark, "nothing was taken yet"
        await anext(pushes)
    with pytest.raises(SessionBehind):
        await fleet["b"].node.session(bookmark).call(requests.ReadDocument("crew", "plan"))


async def test_an_operation_that_no_node_holds_is_lost(fleet: Fleet) -> None:
    bookmark = Bookmark()
    await fleet.isolate("a")
    await fleet["a"].store(bookmark).space("crew").counter("n").add(7)
    await fleet.crash("a")
    fleet.start("a", MemoryStorage())
    with pytest.raises(BookmarkLost):
        await fleet["b"].store(bookmark).space("crew").counter("n").value()


@pytest.mark.answers("retry-makes-a-second-checkpoint")
async def test_one_request_sent_to_two_nodes_counts_once(fleet: Fleet) -> None:
    await fleet.isolate("a")
    writes: list[requests.AnyRequest] = [
        requests.Add("crew", "n", 5),
        requests.Append("crew", "t", b"\x01"),
        requests.Assign("crew", "r", b"\x02"),
        requests.Save("crew", "t", {"x": b"\x03"}, parent=None),
    ]
    replies = {}
    for name in "ab":
        for nth, write in enumerate(writes):
            replies[name, nth] = await fleet[name].node.session().call(write, key=f"key-{nth}")
    fleet.link_all("a")
    await fleet.converged()
    for name in "abc":
        space = fleet[name].store().space("crew")
        assert await space.counter("n").value() == 5
        assert [event.event async for event in space.thread("t").journal.read()] == [1]
        assert len([checkpoint async for checkpoint in space.thread("t").history()]) == 1
        siblings = await fleet[name].node.session().call(requests.ReadRegister("crew", "r"))
        assert isinstance(siblings, requests.Siblings)
        assert [sibling.value for sibling in siblings.siblings] == [b"\x02"]
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_a_request_that_reached_a_dead_node_is_answered_by_another_as_it_was_there(fleet: Fleet) -> None:
    first = await fleet["a"].node.session().call(requests.Save("crew", "t", {"x": b"\x01"}), key="k")
    await fleet.converged()
    assert await fleet["b"].node.session().call(requests.Save("crew", "t", {"x": b"\x01"}), key="k") == first


async def test_watchers_and_followers_see_what_other_nodes_write(fleet: Fleet) -> None:
    session = fleet["b"].node.session()
    async with session.subscribe(requests.Watch("crew")) as changes, session.subscribe(requests.Follow("crew", "d")) as edits:
        assert isinstance(await anext(edits), requests.DocumentState)
        document = await fleet["a"].store().space("crew").document("d")
        document.map("m")["x"] = 1
        await document.close()
        change = await anext(changes)
        assert isinstance(change, requests.Change)
        assert (change.name, change.what) == ("d", "update")
        assert isinstance(await anext(edits), requests.Edit)


async def test_the_view_says_who_is_behind_and_by_how_much(fleet: Fleet) -> None:
    await fleet.isolate("c")
    for _ in range(5):
        await fleet["a"].store().space("crew").counter("n").add(1)
    await fleet["a"].store().space("crew").counter("n").add(1, durability="quorum")
    view = fleet["a"].node.replicator.quorum.view()  # type: ignore[union-attr]
    assert (view.size, view.quorum) == (3, 2)
    assert {member.name: (member.state, member.lacks) for member in view.members} == {
        "a:1": ("self", 0),
        "b:1": ("linked", 0),
        "c:1": ("unreachable", 6),
    }


async def test_a_node_that_never_wrote_is_the_same_one_after_a_crash(fleet: Fleet) -> None:
    await asyncio.sleep(0.02)
    before = fleet["c"].identity()
    fleet.start("c", await fleet.crash("c"))
    assert fleet["c"].identity().node == before.node


async def test_a_lost_direction_leaves_the_other() -> None:
    async with Fleet("ab") as fleet:
        await fleet.cut("a", "b")
        await fleet["b"].store().space("crew").counter("n").add(1)
        await fleet.converged()
        assert await fleet["a"].store().space("crew").counter("n").value() == 1


async def test_a_late_write_names_its_holders(fleet: Fleet) -> None:
    await fleet["a"].store().space("crew").counter("n").add(1)
    await fleet.converged()
    await asyncio.sleep(1)
    quorum, number = fleet["a"].replicator.quorum, partition_of("crew", "n")
    late = quorum._late(number, fleet["a"].node._database.vector_of(number), "quorum")
    assert late.detail["acknowledged"] == ["a:1", "b:1", "c:1"]


async def test_a_write_builds_on_what_its_session_has_seen(fleet: Fleet) -> None:
    bookmark = Bookmark()
    await fleet.isolate("a")
    await fleet["a"].store(bookmark).space("crew").counter("n").add(7)
    with pytest.raises(SessionBehind):
        await fleet["b"].node.session(bookmark).call(requests.Add("crew", "n", 1))
    assert await fleet["b"].store().space("crew").counter("n").value() == 0
