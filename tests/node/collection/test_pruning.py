"""Pruning: what goes, what stays and why; and that what stays can be read, whatever was freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from random import Random

import pytest

from shoal.config import Config
from shoal.errors import InvalidInput, NotFound, OutcomeUnknown, Overloaded, Pruned
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.thread.serving import pruning
from shoal.kinds.thread.serving.pruning import Marking
from shoal.node.collection import garbage as garbage_module
from shoal.node.handler import Target
from shoal.node.verification.verify import verify
from shoal.node.writes.issuing import Issued, Issuer, Located
from shoal.protocol.requests import Discard
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound, garbage, swept, wiped
from tests.support.turns import Turns

LARGE = [f"message {n} " * 60 for n in range(120)]


@pytest.fixture
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with Fleet(seed=getattr(request, "param", 1)) as fleet:
        yield fleet


async def saved(thread: Thread, count: int, *, start: int = 0) -> list[str]:
    return [(await thread.save({"n": n, "log": LARGE[: 3 * n]})).id for n in range(start, start + count)]


def records(storage: MemoryStorage) -> int:
    return sum(1 for key, _ in storage.scan(keys.OBJECT, b"P") if keys.split_object(key)[4][:1] == b"C")


async def test_the_last_of_a_branch_stay_and_the_rest_goes(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 12)
    report = await thread.prune(keep_last=4)
    assert (report.gone, report.count, report.stays) == (ids[:8], 8, {"head": 1, "recent": 3})
    assert [found.id async for found in thread.history()] == ids[:7:-1]
    for n, id in enumerate(ids):
        if n < 8:
            with pytest.raises(Pruned):
                await thread.load(id)
        else:
            assert (await thread.load(id)).state == {"n": n, "log": LARGE[: 3 * n]}
    await swept(bench.storage)
    for n, id in list(enumerate(ids))[8:]:
        assert (await thread.load(id)).state == {"n": n, "log": LARGE[: 3 * n]}
    with pytest.raises(Pruned):
        await thread.load(ids[0])
    check_sound(bench.storage)


async def test_a_dry_run_says_what_would_go_and_changes_nothing(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 6)
    before = dict(bench.storage.scan(b"", None))
    report = await thread.prune(keep_last=2, dry_run=True)
    assert (report.gone, report.dry_run) == (ids[:4], True)
    assert dict(bench.storage.scan(b"", None)) == before
    assert (await thread.prune(keep_last=2)).gone == ids[:4]


async def test_the_bytes_that_are_promised_are_freed(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    random = Random(1)
    for _ in range(8):
        await thread.save({"blob": random.randbytes(40_000)})
    await swept(bench.storage)

    def stored() -> int:
        rows = ((keys.split_object(key)[4], value) for key, value in bench.storage.scan(keys.OBJECT, b"P"))
        # A record's own stamp is not counted.
        return sum(len(value) - 40 * (row[:1] == b"C") for row, value in rows if row[:1] in (b"C", b"D"))

    before = stored()
    report = await thread.prune(keep_last=1)
    await swept(bench.storage)
    assert report.bytes == before - stored()
    assert report.bytes > 7 * 40_000


@pytest.mark.answers("retention-breaks-what-it-keeps")
async def test_forks_labels_and_other_branches_stay(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 3)
    labelled = (await thread.save({"n": 3}, label="release")).id
    later = await saved(thread, 5, start=4)
    await thread.branch("what-if", at=ids[1])
    await thread.load(branch="what-if")
    side = (await thread.save({"side": 1}, branch="what-if")).id
    report = await thread.prune(keep_last=1)
    assert report.stays == {"head": 2, "labelled": 1, "fork": 1}
    for id in (ids[1], labelled, later[-1], side):
        await thread.load(id)
    await swept(bench.storage)
    assert (await thread.load(ids[1])).state == {"n": 1, "log": LARGE[:3]}
    check_sound(bench.storage)


@pytest.mark.answers("retention-breaks-what-it-keeps")
async def test_the_base_of_an_open_step_stays(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 3)
    async with thread.begin("pay", key="call-1") as step:
        later = await saved(thread, 4, start=3)
        assert (await thread.prune(keep_last=1)).stays == {"head": 1, "open step": 1}
        assert [found.id async for found in thread.history()] == [later[-1]]
        assert (await thread.load(ids[-1])).state["n"] == 2
        await step.finish("paid")
    assert (await thread.prune(keep_last=1)).gone == [ids[-1]]
    check_sound(bench.storage)


async def test_only_what_is_old_and_beyond_the_last_goes(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    old = await saved(thread, 4)
    bench.simulated.now_ms += 3_600_000
    young = await saved(thread, 4, start=4)
    assert (await thread.prune(keep_last=1, older_than=timedelta(minutes=30))).gone == old
    assert [found.id async for found in thread.history()] == young[::-1]
    with pytest.raises(InvalidInput):
        await thread.prune(keep_last=None)
    with pytest.raises(InvalidInput):
        await thread.prune(keep_last=0)


async def test_a_pruned_checkpoint_is_no_parent_or_place(bench: Bench) -> None:
    thread, behind = bench.space.thread("agent"), bench.space.thread("agent")
    ids = await saved(thread, 4)
    await behind.load(ids[0])
    await thread.prune(keep_last=1)
    with pytest.raises(Pruned):
        await thread.branch("back", at=ids[0])
    with pytest.raises(Pruned):
        await behind.save({"n": 9})
    await swept(bench.storage)
    with pytest.raises(Pruned):
        await thread.rollback(ids[0])


@pytest.mark.answers("retention-breaks-what-it-keeps")
async def test_pruned_again_and_again_while_it_grows(bench: Bench) -> None:
    thread, random = bench.space.thread("agent"), Random(3)
    log: list[str] = []
    for n in range(60):
        log += LARGE[n : n + random.randrange(4)]
        await thread.save({"n": n, "log": log, "same": LARGE[:40], "flips": LARGE[: 20 * (n % 3)]})
        if n % 7 == 0:
            await thread.prune(keep_last=1 + random.randrange(5))
            if random.random() < 0.5:
                await swept(bench.storage)
    await swept(bench.storage)
    async for found in thread.history():
        assert (await thread.load(found.id)).state["same"] == LARGE[:40]
    assert (await thread.load()).state["log"] == log
    check_sound(bench.storage)


async def test_a_prune_that_ends_half_way_does_not_say_that_nothing_was_written(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(prune_together=2)
    thread = bench.space.thread("a")
    ids = await saved(thread, 6)
    issue, pieces = Issuer.issue, 0

    def full(self: Issuer, located: Located, key: str | None) -> Issued:
        nonlocal pieces
        pieces += isinstance(located.request, Discard)
        if pieces == 2:
            raise Overloaded("full. Nothing was written.")
        return issue(self, located, key)

    monkeypatch.setattr(Issuer, "issue", full)
    with pytest.raises(OutcomeUnknown, match="2 checkpoints are pruned, and the next part failed: full") as caught:
        await thread.prune(keep_last=1)
    assert caught.value.written == "unknown"
    assert [checkpoint.id async for checkpoint in thread.history()] == ids[:1:-1]
    assert (await thread.prune(keep_last=1)).count == 3


async def test_a_crash_in_the_middle_of_a_sweep_is_made_good(open_bench: Opener) -> None:
    bench = open_bench()
    thread = bench.space.thread("agent")
    await saved(thread, 40)
    await thread.prune(keep_last=2)
    left = bench.storage.left_by_crash(0)
    assert garbage(left) == 1
    again = open_bench(left, seed=2)
    await swept(again.storage)
    assert (await again.space.thread("agent").load()).state == {"n": 39, "log": LARGE[:117]}
    check_sound(again.storage)


async def test_a_save_that_says_again_what_was_pruned_wins(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    await thread.save({"blob": LARGE})
    await thread.save({"blob": "small"})
    await thread.save({"blob": "smaller"})
    await thread.prune(keep_last=1)
    # On a branch of its own it has no parent whose chunks it could share.
    other = bench.space.thread("agent")
    again = await other.save({"blob": LARGE}, branch="other")
    await swept(bench.storage)
    assert (await other.load(again.id)).state == {"blob": LARGE}
    check_sound(bench.storage)


# ── with peers ────────────────────────────────────────────────────────────────


async def test_every_node_frees_the_same(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    await saved(thread, 30)
    await thread.prune(keep_last=3)
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    for name in "abc":
        assert len([found async for found in fleet[name].store().space("crew").thread("agent").history()]) == 3
        assert records(fleet[name].storage) < 30
        check_sound(fleet[name].storage)


@pytest.mark.answers("prune-frees-a-chunk-that-a-concurrent-save-reuses")
async def test_a_chunk_that_a_concurrent_save_names_by_its_hash_stays(fleet: Fleet) -> None:
    """The prune and the save know nothing of each other, and the save's chunks are the pruned checkpoint's."""
    thread = fleet["a"].store().space("crew").thread("agent")
    await thread.save({"blob": LARGE})
    await thread.save({"blob": "small"})
    await fleet.converged()
    await fleet.isolate("c")
    await thread.prune(keep_last=1)
    late = fleet["c"].store().space("crew").thread("agent")
    again = await late.save({"blob": LARGE}, branch="other")
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        found = await fleet[name].store().space("crew").thread("agent").load(again.id)
        assert found.state == {"blob": LARGE}
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    assert fleet.refusals == []


@pytest.mark.answers("pruned-content-is-saved-again")
async def test_a_node_that_sweeps_late_keeps_no_more(fleet: Fleet) -> None:
    """What was pruned is saved again between two nodes' sweeps; the save itself brings the chunks."""
    thread = fleet["a"].store().space("crew").thread("agent")
    await thread.save({"blob": LARGE})
    await thread.save({"blob": "small"})
    await fleet.converged()
    with fleet["c"].node._database.garbage.held(Target(Kind.THREAD, "crew", "agent")):
        await thread.prune(keep_last=1)
        await fleet.converged()
        await swept(fleet["a"].storage, fleet["b"].storage)
        again = await fleet["a"].store().space("crew").thread("agent").save({"blob": LARGE}, branch="other")
        await fleet.converged()
        assert garbage(fleet["c"].storage) == 1
    await swept(fleet["c"].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    assert (await fleet["c"].store().space("crew").thread("agent").load(again.id)).state == {"blob": LARGE}
    check_sound(fleet["c"].storage)


async def test_a_branch_that_is_moved_there_without_knowing_saves_a_checkpoint(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    ids = await saved(thread, 6)
    await fleet.converged()
    await fleet.isolate("c")
    await thread.prune(keep_last=1)
    await fleet["c"].store().space("crew").thread("agent").rollback(ids[2])
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        there = fleet[name].store().space("crew").thread("agent")
        assert (await there.load(ids[2])).state == {"n": 2, "log": LARGE[:6]}
        with pytest.raises(Pruned):
            await there.load(ids[1])
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_saves_on_checkpoints_pruned_elsewhere_can_be_read(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    ids = await saved(thread, 6)
    await fleet.converged()
    await fleet.isolate("c")
    late = fleet["c"].store().space("crew").thread("agent")
    await late.load(ids[2])
    made = await late.save({"late": True, "log": [*LARGE[:6], "more"]}, on_conflict="fork")
    await thread.prune(keep_last=1)
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        there = fleet[name].store().space("crew").thread("agent")
        assert (await there.load(made.id)).state == {"late": True, "log": [*LARGE[:6], "more"]}
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")


async def test_chunks_that_a_save_shares_with_its_pruned_parent_stay(fleet: Fleet) -> None:
    """The save brings only the chunk that changed; those after it are named, and were the parent's alone."""
    thread = fleet["a"].store().space("crew").thread("agent")
    base = await thread.save({"log": LARGE})
    await thread.save({"log": ["other", *LARGE[:3]]})
    await fleet.converged()
    await fleet.isolate("c")
    late = fleet["c"].store().space("crew").thread("agent")
    await late.load(base.id)
    changed = ["changed", *LARGE[1:]]
    made = await late.save({"log": changed}, on_conflict="fork")
    await thread.prune(keep_last=1)
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    await fleet.crash("b")
    fleet.start("b", MemoryStorage())
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    for name in "abc":
        assert (await fleet[name].store().space("crew").thread("agent").load(made.id)).state == {"log": changed}
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    assert fleet.refusals == []


async def test_a_small_change_of_a_large_list_writes_little(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = bench.space.thread("agent")
    random = Random(1)
    log = [f"message {number} of {random.getrandbits(128):x}: {random.random()}" for number in range(15_000)]
    await thread.save({"log": log})
    state = {"log": ["changed", *log[1:]]}
    written: list[int] = []
    begin_write = bench.storage.begin_write

    def begun(rows: Mapping[bytes, bytes | None], /) -> Callable[[], int]:
        written.extend(len(key) + len(value or b"") for key, value in rows.items())
        return begin_write(rows)

    monkeypatch.setattr(bench.storage, "begin_write", begun)
    made = await thread.save(state)
    assert 0 < sum(written) < 64 * 1024
    assert (await thread.load(made.id)).state == state
    check_sound(bench.storage)


async def test_a_node_that_lost_its_disk_gets_what_stayed(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    await saved(thread, 40)
    await thread.prune(keep_last=2)
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    await fleet.crash("c")
    fleet.start("c", MemoryStorage())
    await fleet.converged()
    await swept(*(fleet[name].storage for name in "abc"))
    there = fleet["c"].store().space("crew").thread("agent")
    assert [found.id async for found in there.history()] == [found.id async for found in thread.history()]
    assert (await there.load()).state == {"n": 39, "log": LARGE[:117]}
    check_sound(fleet["c"].storage)
    assert fleet.rows("a") == fleet.rows("c")


@pytest.mark.answers("prune-frees-a-chunk-that-a-concurrent-save-reuses")
@pytest.mark.instant_syncs("sweeps are over before a save is durable")
async def test_saves_during_a_sweep_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves say again what is being swept, at every point of it, under parents that know nothing of it."""
    monkeypatch.setattr(pruning, "SLICE", 1)
    monkeypatch.setattr(garbage_module, "SLICE", 1)
    thread = bench.space.thread("agent")
    blobs = [[f"{n} {line}" for line in LARGE[:20]] for n in range(200)]
    for blob in blobs:
        await thread.save({"blob": blob})
    await thread.prune(keep_last=1)
    again: dict[str, int] = {}
    under_way = 0
    for n in range(0, 190, 3):
        other = bench.space.thread("agent")
        under_way += bool(bench.node._database.garbage.markings)
        again[(await other.save({"blob": blobs[n]}, branch=f"b{n}", expect_head="")).id] = n
    assert under_way > 10
    await swept(bench.storage)
    for id, n in again.items():
        assert (await thread.load(id)).state == {"blob": blobs[n]}
    check_sound(bench.storage)


# ── the cost ──────────────────────────────────────────────────────────────────


@pytest.mark.answers("maintenance-stalls-requests")
@pytest.mark.parametrize("count", [40, 80])
async def test_a_prune_looks_at_a_bounded_number_of_checkpoints_at_a_time(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    bench = open_bench(prune_together=4)
    monkeypatch.setattr(pruning, "_COMPARED_AT_ONCE", 4)
    thread = bench.space.thread("agent")
    for n in range(count):
        await thread.save({"n": n})
    turns = Turns(monkeypatch, pruning, "_labelled", lambda *_: 1)
    assert (await thread.prune(keep_last=1)).count == count - 1
    assert turns.most <= 4
    assert turns.all <= 2 * count  # In planning, and when it goes.


@pytest.mark.answers("maintenance-stalls-requests")
async def test_a_prune_lets_go_of_few_checkpoints_in_one_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = bench.space.thread("agent")
    async with bench.space.batch() as batch:
        for n in range(300):
            batch.thread("agent").save({"n": n}, overwrite=True)
    discards = Turns(monkeypatch, pruning, "_goes", lambda *_: 1)
    removed = Turns(monkeypatch, pruning, "freed", lambda _rows, _marking, ids: len(ids))
    assert (await thread.prune(keep_last=1)).count == discards.all == 299
    await swept(bench.storage)
    assert removed.all == 299
    assert (discards.most, removed.most) == (64, 32)


@pytest.mark.answers("maintenance-stalls-requests")
async def test_one_look_for_what_is_unused_follows_a_prune_of_many_pieces(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(prune_together=4)
    thread = bench.space.thread("agent")
    for n in range(40):
        await thread.save({"n": n})
    looks = Turns(monkeypatch, Marking, "run", lambda *_: 1)
    await thread.prune(keep_last=1)
    await swept(bench.storage)
    assert looks.all == 2  # When it is planned, and when it is swept.


# ── where branches were ───────────────────────────────────────────────────────


def rows_of_thread(storage: MemoryStorage) -> Counter[bytes]:
    return Counter(keys.split_object(key)[4][:1] for key, _ in storage.scan(keys.OBJECT, b"P"))


async def saved_and_rolled_back(bench: Bench, count: int) -> Thread:
    """In each round, once no request of the one before can be repeated any more."""
    thread = bench.space.thread("agent")
    for _ in range(count):
        bench.simulated.now_ms += 2 * bench.config.key_window_s * 1000
        await saved(thread, 4)
        head = [found.id async for found in thread.history()][1]
        await thread.rollback(head)
        await thread.prune(keep_last=2)
    await swept(bench.storage)
    return thread


@pytest.mark.answers("pruned-thread-keeps-rows-of-saves")
async def test_rows_of_a_pruned_thread_do_not_grow(open_bench: Opener) -> None:
    """But for the events of its journal, that a trim removes."""
    few, many = open_bench(seed=1), open_bench(seed=2)
    await saved_and_rolled_back(few, 3)
    await saved_and_rolled_back(many, 30)
    for bench in (few, many):
        await bench.space.thread("agent").journal.trim(keep=1)
        await swept(bench.storage)
        check_sound(bench.storage)
    assert rows_of_thread(many.storage) == rows_of_thread(few.storage)


async def test_a_time_before_what_is_left_is_answered_with_nothing(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    for number in range(6):
        bench.simulated.now_ms += 1000
        await saved(thread, 1, start=number)
    await thread.prune(keep_last=2)
    await swept(bench.storage)
    oldest = [found async for found in thread.history()][-1]
    assert (await thread.load(as_of=oldest.time)).id == oldest.id
    with pytest.raises(NotFound):
        await thread.load(as_of=oldest.time - timedelta(seconds=1))


@pytest.mark.answers("pruned-thread-keeps-rows-of-saves")
async def test_a_pruned_checkpoint_is_passed_over_before_it_is_swept_and_after(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    first = await thread.save({"n": 1}, label="kept")
    bench.simulated.now_ms += 1000
    second = await thread.save({"n": 2})
    bench.simulated.now_ms += 1000
    await thread.save({"n": 3})
    assert (await thread.load(as_of=second.time)).id == second.id
    await thread.prune(keep_last=1)
    assert (await thread.load(as_of=second.time)).id == first.id
    await swept(bench.storage)
    assert (await thread.load(as_of=second.time)).id == first.id


@pytest.mark.answers("pruned-thread-keeps-rows-of-saves")
async def test_a_branch_that_was_rolled_back_onto_another_did_not_begin_there(bench: Bench) -> None:
    """Its first saves are pruned, so that the move is the first that is known of it."""
    thread = bench.space.thread("agent")
    main = await thread.save({"n": 1})
    start = main.time
    bench.simulated.now_ms += 1000
    other = bench.space.thread("agent")
    await other.save({"side": 1}, branch="side", parent="")
    bench.simulated.now_ms += 1000
    await other.rollback(main.id, branch="side")
    await thread.prune(keep_last=1)
    await swept(bench.storage)
    assert (await thread.load(branch="side")).id == main.id
    with pytest.raises(NotFound):
        await thread.load(branch="side", as_of=start + timedelta(milliseconds=500))
    check_sound(bench.storage)


@pytest.mark.answers("pruned-thread-keeps-rows-of-saves")
async def test_a_wiped_node_gets_the_same_rows_of_a_pruned_thread(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    ids = await saved(thread, 6)
    await thread.rollback(ids[4])
    await saved(thread, 3)
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    await wiped(fleet, "c")
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    check_sound(fleet["c"].storage)


@pytest.mark.answers("pruned-thread-keeps-rows-of-saves")
async def test_a_node_that_was_set_back_rolls_back_again_to_what_was_pruned_and_it_changes_nothing(fleet: Fleet) -> None:
    """It does not know what it has forgotten, and takes a repeated request as long as its key may be repeated."""
    thread = fleet["a"].store().space("crew").thread("agent")
    ids = await saved(thread, 3)
    await fleet.converged()
    before = fleet["c"].storage.left_by_crash(None)
    await thread.rollback(ids[1], key="k")
    last = await saved(thread, 3)
    for _ in range(2):  # The second prune takes the checkpoint at the fork.
        await thread.prune(keep_last=1)
        await fleet.converged()
        await swept(*(member.storage for member in fleet.members.values()))
    with pytest.raises(Pruned):
        await thread.load(ids[1])
    await fleet.set_back("c", before)
    await fleet["c"].store().space("crew").thread("agent").rollback(ids[1], key="k")
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        assert (await fleet[name].store().space("crew").thread("agent").load()).id == last[-1]
        assert len((await fleet[name].store().space("crew").thread("agent").heads())["main"]) == 1


async def test_a_new_head_of_meanwhile_stays(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 3)
    request = Discard("crew", "agent", ids)
    reply = await bench.node.session().call(request)
    assert reply.gone == ids[:2]
    assert (await thread.load()).id == ids[2]


async def test_a_checkpoint_labelled_meanwhile_stays(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    labelled = await thread.save({"n": 1}, label="release")
    later = await thread.save({"n": 2})
    await thread.save({"n": 3})
    reply = await bench.node.session().call(Discard("crew", "agent", [labelled.id, later.id]))
    assert reply.gone == [later.id]


async def test_a_kept_checkpoint_counts_under_its_first_reason(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    for n in range(4):
        await thread.save({"n": n}, label=f"label {n}")
    report = await thread.prune(keep_last=2, dry_run=True)
    assert report.stays == {"head": 1, "recent": 1, "labelled": 2}


@pytest.mark.parametrize("fleet", [1, 2], indirect=True, ids=["greater dot", "lesser dot"])
async def test_a_repeated_save_brings_no_pruned_checkpoint_back(fleet: Fleet) -> None:
    """By a node that was set back and does not know what it has forgotten."""
    thread = fleet["a"].store().space("crew").thread("agent")
    await saved(thread, 1)
    await fleet.converged()
    before = fleet["c"].storage.left_by_crash(None)
    again = await thread.save({"n": "again"}, key="k")
    last = await saved(thread, 3)
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    await fleet.set_back("c", before)
    there = fleet["c"].store().space("crew").thread("agent")
    await there.load()
    fleet["c"].simulated.now_ms += 1000
    assert (await there.save({"n": "again"}, key="k")).id == again.id
    fleet.link_all("c")
    await fleet.converged()
    for name in "abc":
        check_sound(fleet[name].storage)  # Before it is swept again, too.
    await swept(*(member.storage for member in fleet.members.values()))
    for name in "abc":
        assert (await fleet[name].store().space("crew").thread("agent").load()).id == last[-1]
        assert len((await fleet[name].store().space("crew").thread("agent").heads())["main"]) == 1
        check_sound(fleet[name].storage)
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    assert not any(key.endswith(b"C" + bytes.fromhex(again.id)) for key, _ in fleet["a"].storage.scan(keys.OBJECT, b"P"))


async def test_an_altered_repetition_is_a_flaw(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    await saved(thread, 1)
    await fleet.converged()
    before = fleet["c"].storage.left_by_crash(None)
    again = await thread.save({"n": "again"}, key="k")
    await saved(thread, 3)
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    await fleet.set_back("c", before)
    there = fleet["c"].store().space("crew").thread("agent")
    await there.load()
    await there.save({"n": "again"}, key="k")
    fleet.link_all("c")
    await fleet.converged()
    left = fleet["a"].storage.left_by_crash(None)
    [(key, value)] = [row for row in left.scan(keys.OBJECT, b"P") if row[0].endswith(b"C" + bytes.fromhex(again.id))]
    left.write({key: value[:23] + b"\x09" + value[24:]})  # No such operation saved it.
    assert not verify(left, config=Config()).sound


async def test_the_outcome_of_a_repeated_save_is_shown(fleet: Fleet) -> None:
    """The node that was set back went on from it: that is another branch's end, and whole everywhere."""
    thread = fleet["a"].store().space("crew").thread("agent")
    await saved(thread, 1)
    await fleet.converged()
    before = fleet["c"].storage.left_by_crash(None)
    await thread.save({"n": "again", "log": LARGE}, key="k")
    last = await saved(thread, 3)
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    await fleet.set_back("c", before)
    there = fleet["c"].store().space("crew").thread("agent")
    await there.load()
    await there.save({"n": "again", "log": LARGE}, key="k")
    other = await there.save({"n": "on", "log": [*LARGE, "on"]})
    fleet.link_all("c")
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    for name in "abc":
        shown = fleet[name].store().space("crew").thread("agent")
        assert set((await shown.heads())["main"]) == {last[-1], other.id}
        assert (await shown.load(other.id)).state["log"] == [*LARGE, "on"]
        check_sound(fleet[name].storage)
    # The record of the other save is not left everywhere: the scrub brings it where it is needed.
    await fleet.until(lambda: fleet.rows("a") == fleet.rows("b") == fleet.rows("c"))


async def test_a_swept_checkpoint_is_forgotten_with_its_key(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    for number in range(3):
        for each in range(4):
            await thread.save({"n": [number, each]})
        await thread.prune(keep_last=1)
        await swept(bench.storage)
        remembered = sum(1 for key, _ in bench.storage.scan(keys.OBJECT, b"P") if keys.split_object(key)[4][:1] == b"W")
        assert remembered == 3 + (number > 0)
        bench.simulated.now_ms += 2 * bench.config.key_window_s * 1000
        check_sound(bench.storage)


async def test_a_sweep_takes_nothing_of_a_worklist(bench: Bench) -> None:
    """Both have rows that begin with W."""
    thread = bench.space.thread("agent")
    await saved(thread, 6)
    for n in range(40):
        await thread.worklist("pages").add({f"page {n}": n})
    before = await thread.worklists()
    assert before["pages"].pending == 40
    await thread.prune(keep_last=1)
    await swept(bench.storage)
    assert await thread.worklists() == before
    assert len([item async for item in thread.worklist("pages").pending()]) == 40
    check_sound(bench.storage)


async def test_a_swept_checkpoint_is_no_worklist(bench: Bench) -> None:
    """The ids of some begin as a worklist's row does."""
    thread = bench.space.thread("agent")
    ids = [(await thread.save({"n": n})).id for n in range(700)]
    assert any(id.startswith("4e") for id in ids)  # N.
    await thread.prune(keep_last=1)
    await swept(bench.storage)
    assert await thread.worklists() == {}
    check_sound(bench.storage)
