"""Branches that are made and moved: what every handle then sees, and what the journal tells."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shoal import values
from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import Stamp
from shoal.errors import BranchTaken, HeadMoved, InvalidInput, NotFound, Pruned, TooLarge, Unavailable
from shoal.kinds.thread.serving.saves import head_ids
from shoal.kinds.thread.state import dag
from shoal.node.writes.issuing import Outbound
from shoal.protocol import requests
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.support.rows import DictRows


async def three(bench: Bench) -> list[str]:
    thread = bench.space.thread("a")
    return [(await thread.save({"n": n})).id for n in range(3)]


async def rollbacks(bench: Bench) -> list[dict[str, object]]:
    return [event.event async for event in bench.space.thread("a").journal.read()]


async def test_a_branch_is_where_it_was_made_and_grows_on_its_own(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    made = await thread.branch("what-if", at=ids[0])
    assert (made.name, made.head, made.forked) == ("what-if", ids[0], False)
    side = await thread.save({"n": "side"}, branch="what-if")
    assert side.parents == (ids[0],)
    assert await thread.heads() == {"main": [ids[2]], "what-if": [side.id]}
    assert [branch.name for branch in await thread.branches()] == ["main", "what-if"]


async def test_a_branch_that_was_made_shows_its_own_heads(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").branch("what-if", at=ids[0])
    loaded = await bench.space.thread("a").load(branch="what-if")
    assert (loaded.id, loaded.heads, loaded.branch) == (ids[0], (ids[0],), "main")
    by_id = await bench.space.thread("a").load(ids[0])
    assert by_id.heads == (ids[2],)


async def test_a_branch_is_built_on_where_it_was_loaded(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").branch("what-if", at=ids[0])
    other = bench.space.thread("a")
    await other.load(branch="what-if")
    assert (await other.save({"n": "side"}, branch="what-if")).parents == (ids[0],)
    assert (await other.update({"n": "main"})).parents == (ids[2],)


async def test_a_branch_begins_where_its_handle_stands(bench: Bench) -> None:
    ids = await three(bench)
    assert (await bench.space.thread("a").branch("x")).head == ids[2]
    with pytest.raises(NotFound, match="no checkpoint to branch at"):
        await bench.space.thread("empty").branch("x")


async def test_a_name_that_is_taken_is_refused_unless_it_is_just_there(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.branch("x", at=ids[0])
    await thread.branch("x", at=ids[0])
    with pytest.raises(BranchTaken) as taken:
        await thread.branch("x", at=ids[1])
    assert taken.value.detail["heads"] == [ids[0]]
    assert (await thread.heads())["x"] == [ids[0]]


async def test_a_rollback_moves_the_branch_and_deletes_nothing(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    moved = await thread.rollback(ids[0], reason="wrong turn", by="reviewer")
    assert moved.head == ids[0]
    assert (await bench.space.thread("a").load()).state == {"n": 0}
    assert (await bench.space.thread("a").load(ids[2])).state == {"n": 2}
    assert (await thread.save({"n": "again"})).parents == (ids[0],)


async def test_a_rollback_is_told_by_the_journal_in_the_same_operation(bench: Bench) -> None:
    ids = await three(bench)
    before = (await bench.store.status()).operations
    await bench.space.thread("a").rollback(ids[0], reason="wrong turn", by="reviewer")
    assert (await bench.store.status()).operations == before + 1
    told = {"kind": "rollback", "branch": "main", "from": [ids[2]], "to": ids[0], "by": "reviewer", "reason": "wrong turn"}
    assert await rollbacks(bench) == [told]


async def test_a_rollback_to_where_the_branch_is_changes_nothing(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").rollback(ids[2])
    assert await rollbacks(bench) == []


async def test_a_writer_that_missed_a_rollback_is_refused(bench: Bench) -> None:
    other = bench.space.thread("a")
    ids = await three(bench)
    await other.load()
    await bench.space.thread("a").rollback(ids[0])
    with pytest.raises(HeadMoved) as refused:
        await other.save({"n": 3})
    assert refused.value.detail["heads"] == [ids[0]]


async def test_one_key_rolls_back_once(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").rollback(ids[0], key="k")
    await bench.space.thread("a").save({"n": "on"}, overwrite=True)
    assert (await bench.space.thread("a").rollback(ids[0], key="k")).head == ids[0]
    assert (await bench.space.thread("a").load()).state == {"n": "on"}
    assert len(await rollbacks(bench)) == 1


async def test_a_rollback_joins_a_fork_on_one_of_its_heads(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.save({"n": "fork"}, parent=ids[0], on_conflict="fork")
    assert (await thread.rollback(ids[2])).heads == (ids[2],)


@pytest.mark.parametrize("call", ["rollback", "branch"])
async def test_another_threads_checkpoint_is_refused_and_nothing_is_lost(bench: Bench, call: str) -> None:
    ids = await three(bench)
    foreign = await bench.space.thread("other").save({"n": "foreign"})
    thread = bench.space.thread("a")
    with pytest.raises(NotFound, match="has no checkpoint"):
        await (thread.rollback(foreign.id) if call == "rollback" else thread.branch("x", at=foreign.id))
    assert await thread.heads() == {"main": [ids[2]]}
    assert await rollbacks(bench) == []


async def test_a_branch_that_is_not_there_cannot_be_rolled_back(bench: Bench) -> None:
    ids = await three(bench)
    with pytest.raises(NotFound, match="no branch 'x'"):
        await bench.space.thread("a").rollback(ids[0], branch="x")


async def test_a_reason_is_bounded(bench: Bench) -> None:
    ids = await three(bench)
    with pytest.raises(TooLarge, match="a reason"):
        await bench.space.thread("a").rollback(ids[0], reason="x" * 5000)
    with pytest.raises(NotFound):
        await bench.space.thread("a").rollback("no id")


async def test_a_crash_keeps_a_move_that_was_acknowledged(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").rollback(ids[1])
    again = bench.crashed()
    assert await again.space.thread("a").heads() == {"main": [ids[1]]}
    await again.node.stop()


async def test_a_save_that_could_not_know_of_a_rollback_stays_beside_it() -> None:
    async with Fleet() as fleet:
        here, there = (fleet[name].store().space("crew").thread("t") for name in "ac")
        root = await here.save({"n": 0})
        await here.save({"n": 1})
        await fleet.converged()
        await there.load()
        await fleet.isolate("c")
        await here.rollback(root.id)
        late = await there.save({"n": 2})
        fleet.link_all("c")
        await fleet.converged()
        assert set((await here.heads())["main"]) == set((await there.heads())["main"]) == {root.id, late.id}
        assert (await here.save({"n": 3})).forked
        assert (await there.save({"n": 4})).forked


async def test_a_move_that_reaches_two_nodes_is_one() -> None:
    async with Fleet() as fleet:
        thread = fleet["a"].store().space("crew").thread("t")
        root, _ = await thread.save({"n": 0}), await thread.save({"n": 1})
        await fleet.converged()
        await fleet.isolate("c")
        move = requests.Move("crew", "t", "main", root.id, reason="once")
        for name in "ac":
            await fleet[name].node.session().call(move, key="one-request")
        await thread.load()
        await thread.save({"n": 2})
        fleet.link_all("c")
        await fleet.converged()
        heads = (await fleet["c"].store().space("crew").thread("t").heads())["main"]
        assert len(heads) == 1
        assert heads != [root.id]
        events = [event async for event in fleet["b"].store().space("crew").thread("t").journal.read()]
        assert len(events) == 1


async def test_a_deleted_branch_leaves_its_checkpoints(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.branch("what-if", at=ids[0])
    side = await thread.save({"n": "side"}, branch="what-if")
    gone = await thread.delete_branch("what-if")
    assert gone is not None
    assert (gone.name, gone.heads) == ("what-if", (side.id,))
    assert await thread.heads() == {"main": [ids[2]]}
    assert (await thread.load(side.id)).state == {"n": "side"}
    with pytest.raises(NotFound):
        await thread.load(branch="what-if")
    assert (await thread.branch("what-if", at=side.id)).head == side.id


async def test_a_deletion_is_told_in_the_same_operation(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.branch("what-if", at=ids[0])
    before = (await bench.store.status()).operations
    await thread.delete_branch("what-if")
    assert (await bench.store.status()).operations == before + 1
    assert await rollbacks(bench) == [{"kind": "delete-branch", "branch": "what-if", "from": [ids[0]]}]


async def test_deleting_no_branch_writes_nothing(bench: Bench) -> None:
    await three(bench)
    before = (await bench.store.status()).operations
    assert await bench.space.thread("a").delete_branch("what-if") is None
    assert (await bench.store.status()).operations == before


async def test_main_cannot_be_deleted(bench: Bench) -> None:
    ids = await three(bench)
    with pytest.raises(InvalidInput, match="by default"):
        await bench.space.thread("a").delete_branch("main")
    assert await bench.space.thread("a").heads() == {"main": [ids[2]]}


async def test_one_key_deletes_once(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.branch("x", at=ids[0])
    for _ in range(2):
        await thread.delete_branch("x", key="k")
        await thread.branch("x", at=ids[1])
    assert await bench.space.thread("a").delete_branch("nothing", key="early") is None
    await thread.branch("nothing", at=ids[0])
    await thread.delete_branch("nothing", key="early")
    assert await thread.heads() == {"main": [ids[2]], "x": [ids[1]], "nothing": [ids[0]]}


async def test_a_prune_frees_what_only_the_branch_reached(bench: Bench) -> None:
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.branch("what-if", at=ids[2])
    side = await thread.save({"n": "side" * 1000}, branch="what-if")
    assert side.id not in (await thread.prune(keep_last=10)).gone
    await thread.delete_branch("what-if")
    assert (await thread.prune(keep_last=10)).gone == [side.id]
    with pytest.raises(Pruned):
        await thread.load(side.id)
    assert (await thread.load(ids[2])).state == {"n": 2}


async def test_the_handle_that_deletes_begins_anew(bench: Bench) -> None:
    ids = await three(bench)
    thread, other = bench.space.thread("a"), bench.space.thread("a")
    await thread.branch("x", at=ids[0])
    await other.load(branch="x")
    await thread.delete_branch("x")
    late = await other.save({"n": "late"}, branch="x")
    assert late.parents == (ids[0],), "a handle that knows nothing of it goes on, and the branch is there again"
    assert (await thread.delete_branch("x")) is not None
    assert (await thread.save({"n": "new"}, branch="x")).parents == ()


async def test_a_save_that_knew_no_deletion_stays() -> None:
    async with Fleet() as fleet:
        here, there = (fleet[name].store().space("crew").thread("t") for name in "ac")
        root = await here.save({"n": 0})
        await here.branch("x", at=root.id)
        await fleet.converged()
        await there.load(branch="x")
        await fleet.isolate("c")
        await here.delete_branch("x")
        assert await here.heads() == {"main": [root.id]}
        late = await there.save({"n": 1}, branch="x")
        fleet.link_all("c")
        await fleet.converged()
        assert await here.heads() == await there.heads() == {"main": [root.id], "x": [late.id]}


async def test_deleting_frees_room_for_other_branches(open_bench: Opener) -> None:
    bench = open_bench(branches_max=4)
    ids = await three(bench)
    thread = bench.space.thread("a")
    for n in range(40):
        await thread.branch(f"b{n}", at=ids[0])
        await thread.delete_branch(f"b{n}")
    assert list(await thread.heads()) == ["main"]


async def test_a_batch_deletes_a_branch(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").branch("x", at=ids[0])
    async with bench.space.batch() as batch:
        batch.thread("a").save({"n": 3}, parent=ids[2])
        batch.thread("a").delete_branch("x")
    assert list(await bench.space.thread("a").heads()) == ["main"]


async def test_a_headless_checkpoint_is_found_by_label(open_bench: Opener) -> None:
    bench = open_bench(branches_max=1)
    ids = await three(bench)
    parent: str | None = None
    for n in range(20):
        saved = await bench.node.session().call(save_of(n, parent or requests.NO_HEAD))
        assert saved.heads == []
        parent = saved.id
    thread = bench.space.thread("a")
    assert await thread.heads() == {"main": [ids[2]]}
    assert (await thread.load(label="run/7")).state == {"n": 7}
    assert (await thread.prune(keep_last=1)).count == 2, "labels keep the others"
    again = bench.crashed()
    assert await again.space.thread("a").heads() == {"main": [ids[2]]}
    await again.node.stop()


async def test_a_headless_checkpoint_needs_a_label(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="needs a label"):
        await bench.node.session().call(replace(save_of(1, requests.NO_HEAD), label=""))


async def test_an_older_peer_gets_no_deletion(bench: Bench) -> None:
    ids = await three(bench)
    await bench.space.thread("a").branch("x", at=ids[0])
    bench.node._database.issuer.replicate(Outbound(lambda _: None, lambda _: None, spoken=lambda: 6))
    with pytest.raises(Unavailable, match="older version"):
        await bench.space.thread("a").delete_branch("x")
    saved = await bench.node.session().call(save_of(1, requests.NO_HEAD))
    assert saved.heads == [saved.id], "it becomes a head, as it did before"


def save_of(n: int, parent: str) -> requests.Save:
    channels = {"n": values.encode(n)}
    return requests.Save("crew", "a", channels, branch="run", parent=parent, fork=True, label=f"run/{n}", headless=True)


async def test_branches_are_bounded(open_bench: Opener) -> None:
    bench = open_bench(branches_max=2)
    ids = await three(bench)
    thread = bench.space.thread("a")
    await thread.branch("what-if", at=ids[0])
    for refused in (thread.branch("more", at=ids[0]), thread.save({"n": 9}, branch="more")):
        with pytest.raises(TooLarge, match="has 2 branches, which is the maximum"):
            await refused
    assert (await thread.branch("what-if", at=ids[0])).head == ids[0], "it is there already"
    await thread.save({"n": 9}, branch="what-if")
    assert list(await thread.heads()) == ["main", "what-if"]


@pytest.mark.answers("retention-breaks-what-it-keeps")
def test_no_branch_is_left_out_however_many_there_are() -> None:
    """Nodes that make branches at the same time pass the bound together; a prune must keep the heads of them all."""
    rows, ids = DictRows(), [bytes([n >> 8, n & 255]) * 16 for n in range(5000)]
    for n, id in enumerate(ids):
        dag.apply_move(rows, Stamp(Dot(Origin(bytes(16)), n + 1), n + 1, 0, NOTHING_SEEN), dag.Move(id, f"b{n}", id))
    assert head_ids(rows) == set(ids)


async def test_pages_of_branches_hold_each_once(bench: Bench) -> None:
    thread = bench.space.thread("many")
    first = await thread.save({"n": 0})
    names = sorted(["main", *(f"b{number:02}" for number in range(30)), "ö"])
    for name in names:
        if name != "main":
            await thread.branch(name, at=first.id)
    session = bench.node.session()
    found: dict[str, list[str]] = {}
    after, more = "", True
    while more:
        page = await session.call(requests.Heads("crew", "many", after=after, limit=7))
        assert len(page.branches) <= 7
        found |= page.branches
        after, more = list(page.branches)[-1], page.more
    assert list(found) == names
    assert found == (await session.call(requests.Heads("crew", "many"))).branches
    named = await session.call(requests.Heads("crew", "many", names=["main", "nowhere", "b07", "main"]))
    assert (list(named.branches), named.more) == (["b07", "main"], False)
