"""Standing rules: what they let go, who carries them out, and when nothing goes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from shoal import values
from shoal.config import Config
from shoal.errors import InvalidInput, NotFound, Pruned, StoreCorrupt, Unavailable
from shoal.kinds.retention import state
from shoal.kinds.retention.flows import CarryOutRetention, UnsetRetentionRule
from shoal.kinds.retention.serving import keeper
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol.requests import Annotate, PutEntry, Save
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Bench, Opener
from tests.support.asking import OUTPUT, question, write

DAY_MS = 86_400_000
DAY = timedelta(days=1)


async def saved(thread: Thread, count: int, *, start: int = 0) -> list[str]:
    return [(await thread.save({"n": n})).id for n in range(start, start + count)]


async def shown(thread: Thread) -> list[str]:
    return [found.id async for found in thread.history()][::-1]


async def test_a_rule_prunes_what_it_lets_go(bench: Bench) -> None:
    one, other = bench.space.thread("agent"), bench.space.thread("other")
    ids, others = await saved(one, 8), await saved(other, 8)
    await bench.space.retention.set(prefix="agent", keep_last=3)
    await bench.node.service.keeper.look()
    assert await shown(one) == ids[-3:]
    assert await shown(other) == others
    status = await bench.store.status()
    assert (status.retention_checkpoints, status.retention_due, status.retention_waits_for) == (5, 0, "")
    assert status.retention_bytes > 0
    await bench.node.service.keeper.look()
    assert (await bench.store.status()).retention_checkpoints == 5


async def test_a_thread_has_the_longest_prefix(bench: Bench) -> None:
    retention = bench.space.retention
    await retention.set(keep_last=2)
    await retention.set(prefix="agent", keep_last=4)
    one, other = bench.space.thread("agent-1"), bench.space.thread("b")
    ids, others = await saved(one, 6), await saved(other, 6)
    await bench.node.service.keeper.look()
    assert (await shown(one), await shown(other)) == (ids[-4:], others[-2:])
    trying = UnsetRetentionRule(bench.space.name, "agent", dry_run=True)
    tried = await trying.run(bench.store.connection, key=None, durability="local")
    assert [rule.prefix for rule in tried.rules] == [""]
    assert tried == await retention.unset("agent", dry_run=True)
    assert [rule.prefix for rule in (await retention.get()).rules] == ["", "agent"]
    view = await retention.unset("agent")
    assert [(rule.prefix, rule.keep_last) for rule in view.rules] == [("", 2)]
    await bench.node.service.keeper.look()
    assert await shown(one) == ids[-2:]


async def test_age_and_number_must_both_allow_it(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 4)
    bench.simulated.now_ms += 10 * DAY_MS
    ids += await saved(thread, 4, start=4)
    await bench.space.retention.set(keep_last=2, older_than=5 * DAY)
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids[4:]
    bench.simulated.now_ms += 6 * DAY_MS
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids[6:]


async def test_labels_steps_and_forks_stay(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 3)
    label = (await thread.save({"n": 3}, label="release")).id
    async with thread.begin("pay", key="call-1") as step:
        later = await saved(thread, 3, start=4)
        await thread.branch("what-if", at=ids[1])
        await bench.space.retention.set(keep_last=1, yes=True)
        await bench.node.service.keeper.look()
        for id in (ids[1], label, later[-1]):
            await thread.load(id)
        with pytest.raises(Pruned):
            await thread.load(ids[2])
        await step.finish("paid")


async def test_a_dry_run_says_what_would_go(bench: Bench) -> None:
    await saved(bench.space.thread("a"), 5)
    await saved(bench.space.thread("b"), 2)
    before = dict(bench.storage.scan(b"", None))
    found = await bench.space.retention.preview(keep_last=3)
    assert [(each.thread, each.checkpoints) for each in found.by_thread] == [("a", 2)]
    assert (found.looked_at, found.checkpoints, found.leaves_nothing, found.dry_run) == (2, 2, False, True)
    assert found.bytes > 0
    assert dict(bench.storage.scan(b"", None)) == before
    await bench.space.retention.set(keep_last=3)
    done = await bench.space.retention.run()
    assert (done.checkpoints, done.bytes) == (found.checkpoints, found.bytes)


async def test_a_rule_about_checkpoints_that_all_have_labels_is_told(bench: Bench) -> None:
    """As LangGraph's saver makes them: no rule about checkpoints ever lets one go."""
    retention = bench.space.retention
    assert not (await retention.set(keep_last=2)).all_labelled
    graph = bench.space.thread("graph")
    for nth in range(4):
        await graph.save({"n": nth}, label=f"l{nth}")
    assert (await retention.set(keep_last=2)).all_labelled
    assert (await retention.set(older_than=DAY)).all_labelled
    assert not (await retention.set(threads_older_than=DAY)).all_labelled
    found = await retention.preview(keep_last=2)
    assert (found.checkpoints, found.stays) == (0, {"head": 1, "recent": 1, "labelled": 2})
    await saved(bench.space.thread("plain"), 3)
    assert not (await retention.set(keep_last=2)).all_labelled
    assert (await retention.set(prefix="g", keep_last=2)).all_labelled


async def test_a_rule_that_leaves_nothing_needs_a_yes(bench: Bench) -> None:
    await saved(bench.space.thread("a"), 5)
    retention = bench.space.retention
    with pytest.raises(InvalidInput, match="nothing but the heads"):
        await retention.set(keep_last=1)
    assert (await retention.get()).rules == []
    bench.simulated.now_ms += 3 * DAY_MS
    with pytest.raises(InvalidInput, match="or no thread at all"):
        await retention.set(threads_older_than=DAY)
    await saved(bench.space.thread("b"), 2)
    await retention.set(threads_older_than=DAY)
    await retention.set(keep_last=1, yes=True)


async def test_a_rule_without_bounds_is_rejected(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="needs one of"):
        await bench.space.retention.set()
    with pytest.raises(InvalidInput, match="keep_last must be at least 1"):
        await bench.space.retention.set(keep_last=0)
    with pytest.raises(InvalidInput, match="the nodes themselves"):
        await bench.store.space(".shoal").retention.set(keep_last=3)


async def test_idle_threads_go_only_if_declared(bench: Bench) -> None:
    old, young = bench.space.thread("old"), bench.space.thread("young")
    await saved(old, 3)
    bench.simulated.now_ms += 40 * DAY_MS
    await saved(young, 3)
    await bench.space.retention.set(older_than=30 * DAY)
    await bench.node.service.keeper.look()
    assert [name async for name in bench.space.threads()] == ["old", "young"]
    await bench.space.retention.set(threads_older_than=30 * DAY)
    await bench.node.service.keeper.look()
    assert [name async for name in bench.space.threads()] == ["young"]
    assert (await bench.store.status()).retention_threads == 1


@pytest.mark.parametrize("sign", ["step", "message", "approval", "event", "branch", "work", "file", "question"])
async def test_a_thread_with_life_in_it_stays(bench: Bench, sign: str) -> None:
    thread = bench.space.thread("old")
    ids = await saved(thread, 3)
    if sign == "step":
        await thread.begin("pay", key="call-1").__aenter__()
    if sign == "message":
        await thread.inbox.send({"hello": 1})
    if sign == "approval":
        await thread.request_approval("may I?")
    if sign == "question":
        await bench.node.session().call(Save("crew", "old", {}, label="/1"))
        await bench.node.session().call(Annotate("crew", "old", "/1", [question("task")]))
    bench.simulated.now_ms += 40 * DAY_MS
    if sign == "event":
        await thread.journal.append({"at": 1})
    if sign == "branch":
        await thread.branch("what-if", at=ids[0])
    if sign == "file":
        await thread.put_file("page.txt", b"a page")
    if sign == "work":
        await thread.step("look", key="call-2", call=lambda: 1)
    await bench.space.retention.set(threads_older_than=30 * DAY, yes=True)
    await bench.node.service.keeper.look()
    assert [name async for name in bench.space.threads()] == ["old"]
    tried = await bench.space.retention.preview(threads_older_than=20 * DAY)
    assert (tried.looked_at, tried.threads, tried.by_thread) == (1, 0, [])


async def test_a_graph_that_was_answered_keeps_no_thread(bench: Bench) -> None:
    await bench.space.thread("old").save({"n": 1}, label="/1")
    await bench.node.session().call(Annotate("crew", "old", "/1", [question("task"), write("task", OUTPUT)]))
    bench.simulated.now_ms += 40 * DAY_MS
    await bench.space.retention.set(threads_older_than=30 * DAY, yes=True)
    await bench.node.service.keeper.look()
    assert [name async for name in bench.space.threads()] == []


async def test_a_label_keeps_its_thread_if_declared(bench: Bench) -> None:
    await bench.space.thread("a").save({"n": 1}, label="release")
    await bench.space.thread("b").save({"n": 1})
    bench.simulated.now_ms += 40 * DAY_MS
    await bench.space.retention.set(threads_older_than=30 * DAY, keep_labelled=True, yes=True)
    await bench.node.service.keeper.look()
    assert [name async for name in bench.space.threads()] == ["a"]


async def test_old_events_go(bench: Bench) -> None:
    journal = bench.space.thread("agent").journal
    for n in range(4):
        await journal.append({"n": n})
    bench.simulated.now_ms += 10 * DAY_MS
    await journal.append({"n": 4})
    await bench.space.retention.set(events_older_than=5 * DAY)
    await bench.node.service.keeper.look()
    assert [event.event async for event in journal.read()] == [{"n": 4}]
    assert (await bench.store.status()).retention_events == 4


async def test_a_record_from_the_future_lets_nothing_go(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 5)
    await bench.space.retention.set(keep_last=3)
    rules = bench.store.space(".shoal").map("retention")
    record = {"space": "crew", "prefix": "agent", "keep_last": 2, "keep_green": True}
    await rules.set(state.key_of("crew", "agent"), record)
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids
    view = await bench.space.retention.get()
    assert [(rule.prefix, rule.trouble) for rule in view.rules][1] == ("agent", "its record has no meaning here for keep_green")
    assert "keep_green" in view.waits_for


async def test_a_record_that_says_nothing_lets_nothing_go(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    ids = await saved(thread, 5)
    await bench.space.retention.set(keep_last=3)
    rules = bench.store.space(".shoal").map("retention")
    await rules.set(state.key_of("crew", "agent"), "not a rule")
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids
    assert "cannot be read" in (await bench.space.retention.get()).waits_for
    await rules.remove(state.key_of("crew", "agent"))
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids[-3:]


async def test_more_rules_than_are_read_let_nothing_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_PAGE", 2)
    monkeypatch.setattr(keeper, "_PAGES_MAX", 2)
    thread = bench.space.thread("agent")
    ids = await saved(thread, 5)
    await bench.space.retention.set(keep_last=3)
    for prefix in ("a", "ag", "age", "agen"):
        await bench.space.retention.set(prefix=prefix, keep_last=100)
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids
    assert "more than 4 rules" in (await bench.space.retention.get()).waits_for
    await bench.space.retention.unset(prefix="age")
    await bench.space.retention.unset(prefix="agen")
    await bench.space.retention.unset(prefix="ag")
    await bench.space.retention.unset(prefix="a")
    await bench.node.service.keeper.look()
    assert await shown(thread) == ids[-3:]


# ── clocks ────────────────────────────────────────────────────────────────────


class Jumping(SimulatedEnvironment):
    """A machine whose wall clock can be set without time passing."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.steady_s = 0.0
        self.environment = dataclasses.replace(self.environment, monotonic=lambda: self.steady_s)

    def passed(self, ms: int) -> None:
        self.now_ms += ms
        self.steady_s += ms / 1000


@pytest.fixture
async def jumping() -> AsyncIterator[Bench]:
    made = Bench(MemoryStorage(), Jumping(1), Config())
    yield made
    await made.node.stop()


def machine(bench: Bench) -> Jumping:
    assert isinstance(bench.simulated, Jumping)
    return bench.simulated


async def test_a_clock_that_jumps_ahead_prunes_nothing(jumping: Bench) -> None:
    thread, clock = jumping.space.thread("agent"), machine(jumping)
    ids = await saved(thread, 4)
    await jumping.space.retention.set(older_than=30 * DAY, yes=True)
    await jumping.node.service.keeper.look()
    clock.passed(60_000)
    clock.now_ms += 400 * DAY_MS
    await jumping.node.service.keeper.look()
    assert await shown(thread) == ids
    assert "400 days ahead" in (await jumping.store.status()).retention_waits_for
    with pytest.raises(Unavailable, match="400 days ahead"):
        await jumping.space.retention.run()
    clock.now_ms -= 400 * DAY_MS
    clock.passed(40 * DAY_MS)
    await jumping.node.service.keeper.look()
    assert (await jumping.store.status()).retention_waits_for == ""
    assert await shown(thread) == ids[-1:]


async def test_setting_the_rule_again_confirms_a_clock(jumping: Bench) -> None:
    thread, clock = jumping.space.thread("agent"), machine(jumping)
    ids = await saved(thread, 4)
    await jumping.space.retention.set(older_than=30 * DAY, yes=True)
    await jumping.node.service.keeper.look()
    clock.now_ms += 400 * DAY_MS
    await jumping.node.service.keeper.look()
    assert await shown(thread) == ids
    await jumping.space.retention.set(older_than=30 * DAY, yes=True)
    await jumping.node.service.keeper.look()
    assert await shown(thread) == ids[-1:]


async def test_a_directory_that_was_closed_for_long_waits(jumping: Bench) -> None:
    thread = jumping.space.thread("agent")
    ids = await saved(thread, 4)
    await jumping.space.retention.set(older_than=30 * DAY, yes=True)
    await jumping.node.service.keeper.look()
    storage = jumping.storage.left_by_crash(None)
    machine(jumping).now_ms += 40 * DAY_MS
    later = Bench(storage, jumping.simulated, Config())
    await later.node.service.keeper.look()
    assert await shown(later.space.thread("agent")) == ids
    assert "later than all that this directory has seen" in (await later.space.retention.get()).waits_for
    await later.space.retention.set(older_than=30 * DAY, yes=True)
    await later.node.service.keeper.look()
    assert await shown(later.space.thread("agent")) == ids[-1:]
    await later.node.stop()


async def test_a_save_by_a_slow_clock_is_not_old(bench: Bench) -> None:
    thread = bench.space.thread("agent")
    await saved(thread, 2)
    bench.simulated.now_ms -= 300 * DAY_MS
    ids = await saved(thread, 3, start=2)
    bench.simulated.now_ms += 300 * DAY_MS + 60_000
    await bench.space.retention.set(older_than=30 * DAY)
    await bench.node.service.keeper.look()
    assert (await shown(thread))[-3:] == ids


# ── a cluster ─────────────────────────────────────────────────────────────────


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def look(fleet: Fleet) -> None:
    """All nodes look at once."""
    for member in list(fleet.members.values()):
        member.node.service.keeper._rules, member.node.service.keeper._vector = {}, None
    await asyncio.gather(*(member.node.service.keeper.look() for member in fleet.members.values()))


def pruned(fleet: Fleet) -> dict[str, int]:
    found = {name: member.node.service.keeper.checkpoints for name, member in fleet.members.items()}
    return {name: count for name, count in found.items() if count}


@pytest.mark.virtual_time
async def test_one_node_carries_a_rule_out(fleet: Fleet) -> None:
    space = fleet["a"].store().space("crew")
    ids = await saved(space.thread("agent"), 6)
    await space.retention.set(keep_last=2)
    await fleet.converged()
    await look(fleet)
    assert list(pruned(fleet).values()) == [4]
    await fleet.converged()
    for name in "abc":
        assert await shown(fleet[name].store().space("crew").thread("agent")) == ids[-2:]
        assert (await fleet[name].store().space("crew").retention.get()).is_in_charge == (name in pruned(fleet))


@pytest.mark.virtual_time
async def test_nothing_goes_while_an_owner_is_away(fleet: Fleet) -> None:
    space = fleet["a"].store().space("crew")
    ids = await saved(space.thread("agent"), 6)
    await space.retention.set(keep_last=2)
    await fleet.converged()
    for name in "abc":
        await fleet.isolate(name)
        await look(fleet)
        assert pruned(fleet) == {}
        fleet.link_all(name)
    waiting = [member.node.service.keeper.waits_for for member in fleet.members.values()]
    assert sum("owner" in text for text in waiting) == 1
    await fleet.converged()
    await look(fleet)
    await fleet.converged()
    assert await shown(fleet["b"].store().space("crew").thread("agent")) == ids[-2:]


async def held_up(fleet: Fleet) -> tuple[Member, str, MemoryStorage]:
    """A rule by which four checkpoints may go: at the node that looks after it. Another one is away, and what is left of it."""
    space = fleet["a"].store().space("crew")
    await saved(space.thread("agent"), 6)
    await fleet.converged()
    in_charge = next(name for name in "abc" if fleet[name].node.service.keeper._is_mine("crew"))
    away = next(name for name in "abc" if name != in_charge)
    left = await fleet.crash(away, None)
    await fleet[in_charge].store().space("crew").retention.set(keep_last=2)
    return fleet[in_charge], away, left


@pytest.mark.virtual_time
async def test_entries_that_wait_for_an_owner_are_counted(fleet: Fleet) -> None:
    member, away, left = await held_up(fleet)
    keeper = member.node.service.keeper
    await keeper.look()
    assert (keeper.due, "owner" in keeper.waits_for) == (4, True)
    await keeper.look()
    assert keeper.due == 4
    fleet.start(away, left)
    await fleet.converged()
    await look(fleet)
    assert (keeper.due, keeper.waits_for) == (0, "")


@pytest.mark.virtual_time
async def test_a_hindrance_is_noticed_soon_and_its_end(fleet: Fleet) -> None:
    member, away, left = await held_up(fleet)
    keeper = member.node.service.keeper
    await fleet.until(lambda: keeper.due and keeper.waits_for, 12)
    fleet.start(away, left)
    await fleet.until(lambda: not keeper.waits_for and not keeper.due, 12)
    assert pruned(fleet) == {member.name: 4}


@pytest.mark.virtual_time
async def test_two_rules_set_at_once_both_hold(fleet: Fleet) -> None:
    ids = await saved(fleet["a"].store().space("crew").thread("agent"), 9)
    await fleet.converged()
    for name in "abc":
        await fleet.isolate(name)
    await fleet["a"].store().space("crew").retention.set(keep_last=2)
    await fleet["b"].store().space("crew").retention.set(keep_last=5)
    for name in "abc":
        fleet.link_all(name)
    await fleet.converged()
    for name in "abc":
        [rule] = (await fleet[name].store().space("crew").retention.get()).rules
        assert (rule.keep_last, rule.rivals) == (5, 1)
    await look(fleet)
    assert await shown(fleet["c"].store().space("crew").thread("agent")) == ids[-5:]
    await fleet["c"].store().space("crew").retention.set(keep_last=2)
    await fleet.converged()
    await look(fleet)
    await fleet.converged()
    assert await shown(fleet["a"].store().space("crew").thread("agent")) == ids[-2:]


@pytest.mark.virtual_time
async def test_a_head_that_only_a_peer_has_is_fetched_first(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("agent")
    ids = await saved(thread, 4)
    await fleet["a"].store().space("crew").retention.set(keep_last=3)
    await fleet.converged()
    in_charge = next(name for name in "abc" if fleet[name].node.service.keeper._is_mine("crew"))
    other = next(name for name in "abc" if name != in_charge)
    fleet.spoil = lambda source, target, message: None if source == other else message
    far = fleet[other].store().space("crew").thread("agent")
    await far.load()
    branch = await far.branch("what-if", at=ids[0])
    fleet.spoil = lambda source, target, message: message
    await look(fleet)
    await fleet.converged()
    await far.load(branch.heads[0])
    assert pruned(fleet) == {}


@pytest.mark.virtual_time
async def test_clocks_that_differ_prune_nothing() -> None:
    # Of two nodes no majority says which clock is wrong, so both write.
    async with Fleet("ab", clock_skew_max_ms=1000, clock_interval_s=0.05) as fleet:
        store = fleet["a"].store()
        ids = await saved(store.space("crew").thread("agent"), 4)
        await store.space("crew").retention.set(older_than=timedelta(days=30), yes=True)
        await fleet.converged()
        in_charge = next(name for name in "ab" if fleet[name].node.service.keeper._is_mine("crew"))
        fleet[in_charge].simulated.now_ms += 400 * DAY_MS
        await asyncio.sleep(1)
        await look(fleet)
        assert pruned(fleet) == {}
        assert await shown(store.space("crew").thread("agent")) == ids


# ── crashes ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keep", [0, None])
async def test_a_pass_that_is_cut_anywhere_goes_on(open_bench: Opener, keep: int | None) -> None:
    made = open_bench(prune_together=2)
    kept: dict[str, list[str]] = {}
    for name in ("a", "b"):
        kept[name] = (await saved(made.space.thread(name), 7))[-2:]
    await made.space.retention.set(keep_last=2)
    await made.node.service.close()
    begun = made.storage.left_by_crash(None)
    turns, is_over = 0, False
    while not is_over:
        under_way = open_bench(begun.left_by_crash(None))
        look = asyncio.ensure_future(under_way.node.service.keeper.look())
        for _ in range(turns):
            await asyncio.sleep(SimulatedEnvironment.sync_s / 10)  # On a slow disk a turn takes time, else an fsync never ends.
        is_over = look.done()
        after = open_bench(under_way.storage.left_by_crash(keep))
        look.cancel()
        await asyncio.gather(look, return_exceptions=True)
        await after.node.service.keeper.look()
        assert {name: await shown(after.space.thread(name)) for name in kept} == kept
        turns += 3
    assert turns > 30


@pytest.mark.parametrize("turns", range(0, 24, 2))
async def test_a_save_during_the_look_keeps_its_thread(open_bench: Opener, turns: int) -> None:
    bench = open_bench()
    await saved(bench.space.thread("old"), 300)
    bench.simulated.now_ms += 40 * DAY_MS
    await bench.space.retention.set(threads_older_than=30 * DAY, yes=True)
    look = asyncio.ensure_future(bench.node.service.keeper.look())
    for _ in range(turns):
        await asyncio.sleep(0)
    late = await bench.space.thread("old").save({"late": True}, overwrite=True)
    await look
    assert (await bench.space.thread("old").load(late.id)).state == {"late": True}


async def test_a_thread_without_a_time_stays(bench: Bench) -> None:
    async with bench.space.thread("held").lease(ttl=30):
        pass
    await bench.space.thread("old").save({"n": 1})
    bench.simulated.now_ms += 40 * DAY_MS
    await bench.space.retention.set(threads_older_than=30 * DAY, yes=True)
    await bench.node.service.keeper.look()
    assert [name async for name in bench.space.threads()] == ["held"]


async def test_a_rule_that_is_unset_while_the_others_are_asked_ends_no_retention(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await saved(bench.space.thread("agent"), 4)
    kept = await saved(bench.store.space("other").thread("agent"), 4)
    looking = bench.node.service.keeper
    for space in ("a-third", "other"):
        await bench.store.space(space).retention.set(keep_last=3)
    await bench.space.retention.set(keep_last=3)
    asked = looking._replicas.catch_up

    async def unset_meanwhile(partition: int, need: Any) -> None:
        await bench.store.space("other").retention.unset()
        await asked(partition, need)

    monkeypatch.setattr(looking._replicas, "catch_up", unset_meanwhile)
    await looking.look()
    assert await shown(bench.space.thread("agent")) == ids[1:]
    assert await shown(bench.store.space("other").thread("agent")) == kept


async def test_a_damaged_thread_holds_up_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await saved(bench.space.thread("a"), 6)
    ids = await saved(bench.space.thread("b"), 6)
    await bench.space.retention.set(keep_last=2)
    database = bench.node.service._database
    retains = database.retains

    def damaged(request: Any) -> Any:
        if request.thread == "a":
            raise StoreCorrupt("a row is damaged")
        return retains(request)

    monkeypatch.setattr(database, "retains", damaged)
    await bench.node.service.keeper.look()
    assert await shown(bench.space.thread("b")) == ids[-2:]


async def done_items(bench: Bench, name: str, keys: list[str]) -> None:
    work = bench.space.thread(name).worklist("pages")
    await work.add({key: key * 10 for key in keys})
    for key in keys:
        await work.done(key, result={"of": key})


async def left_of(bench: Bench, name: str) -> list[str]:
    return [item.key async for item in bench.space.thread(name).worklist("pages").finished() if item.key is not None]


async def test_done_items_go_once_they_are_old(bench: Bench) -> None:
    await bench.space.thread("agent").inbox.send("hello", key="m-1")
    await done_items(bench, "agent", ["a", "b"])
    await done_items(bench, "other", ["x"])
    await bench.space.thread("agent").worklist("pages").add({"waits": 1})
    bench.simulated.now_ms += 4 * DAY_MS
    await done_items(bench, "agent", ["c"])
    bench.simulated.now_ms += 4 * DAY_MS
    before = dict(bench.storage.scan(b"", None))
    found = await bench.space.retention.preview(prefix="agent", finished_older_than=7 * DAY)
    assert [(each.thread, each.finished, each.deletes) for each in found.by_thread] == [("agent", 2, False)]
    assert (found.finished, found.checkpoints, found.leaves_nothing) == (2, 0, False)
    assert found.bytes > 0
    assert dict(bench.storage.scan(b"", None)) == before
    await bench.space.retention.set(prefix="agent", finished_older_than=7 * DAY)
    await bench.node.service.keeper.look()
    assert (await left_of(bench, "agent"), await left_of(bench, "other")) == (["c"], ["x"])
    assert [item.key async for item in bench.space.thread("agent").worklist("pages").pending()] == ["waits"]
    assert (await bench.space.retention.get()).finished == 2
    assert (await bench.space.retention.get()).due == 0
    bench.simulated.now_ms += 4 * DAY_MS
    await bench.node.service.keeper.look()
    assert await left_of(bench, "agent") == []
    assert await bench.space.thread("agent").worklist("pages").add({"a": "again"})  # It is forgotten, so it can be added.


@pytest.mark.parametrize("count", [255, 256, 257, 600])
async def test_many_done_items_go_in_slices(bench: Bench, count: int) -> None:
    await done_items(bench, "agent", [f"{nth:04}" for nth in range(count)])
    bench.simulated.now_ms += 8 * DAY_MS
    found = await bench.space.retention.preview(finished_older_than=7 * DAY)
    assert found.finished == count
    await bench.space.retention.set(finished_older_than=7 * DAY)
    assert (await bench.space.retention.run()).finished == count
    assert await left_of(bench, "agent") == []


async def test_concurrent_rules_keep_the_done_items_that_one_keeps() -> None:
    def record(**bounds: Any) -> tuple[bytes, int]:
        return state.packed(state.Rule("crew", **bounds)), 1

    key = state.key_of("crew", "")
    rule = state.read(key, [record(finished_older_than_ms=5), record(finished_older_than_ms=9, keep_last=1)])
    assert rule is not None
    assert (rule.finished_older_than_ms, rule.keep_last, rule.trouble) == (9, None, "")
    rule = state.read(key, [record(finished_older_than_ms=5), record(keep_last=1)])
    assert rule is not None
    assert rule.finished_older_than_ms is None


async def test_a_rule_in_trouble_holds_up_no_other_space(bench: Bench) -> None:
    for space in ("a", "b", "c"):
        await saved(bench.store.space(space).thread("agent"), 5)
    await bench.store.space("a").retention.set(keep_last=2)
    restored = state.packed_restored(bench.simulated.now_ms)
    await bench.store.connection.write(PutEntry(".shoal", state.RULES, state.RESTORED, restored), key=None, durability=None)
    bench.simulated.now_ms += 1
    for space in ("b", "c"):
        await bench.store.space(space).retention.set(keep_last=2)
    await bench.node.service.keeper.look()
    assert [len(await shown(bench.store.space(space).thread("agent"))) for space in ("a", "b", "c")] == [5, 2, 2]
    told = [(await bench.store.space(space).retention.get()).waits_for for space in ("a", "b")]
    assert ("restored from a backup" in told[0], told[1]) == (True, "")
    assert "restored from a backup" in (await bench.store.status()).retention_waits_for


@pytest.mark.parametrize("record", [7, {"until_ms": -1}, {"until_ms": True}, {"until_ms": 1, "new": 2}])
async def test_a_record_of_a_restore_that_is_not_known_holds_all_back(bench: Bench, record: object) -> None:
    await saved(bench.space.thread("agent"), 5)
    await bench.space.retention.set(keep_last=2)
    entry = PutEntry(".shoal", state.RULES, state.RESTORED, values.encode(record))
    await bench.store.connection.write(entry, key=None, durability=None)
    await bench.node.service.keeper.look()
    assert len(await shown(bench.space.thread("agent"))) == 5
    assert "record of a restore" in (await bench.space.retention.get()).waits_for


async def test_the_latest_of_several_restores_holds() -> None:
    assert state.read_restored([state.packed_restored(5), state.packed_restored(9), state.packed_restored(7)]) == 9
    assert state.read_restored([state.packed_restored(5), b"\xc1"]) is None


async def test_one_request_looks_at_a_bounded_number(open_bench: Opener) -> None:
    bench = open_bench(retention_threads_max=2)
    for name in ("a", "b", "c"):
        await saved(bench.space.thread(name), 5)
    await bench.space.retention.set(keep_last=2)
    connection = bench.space.retention._connection
    first = await CarryOutRetention("crew").run(connection, key=None, durability="local")
    assert (first.looked_at, first.checkpoints, first.more, first.after) == (2, 6, True, "b")
    rest = await CarryOutRetention("crew", after=first.after).run(connection, key=None, durability="local")
    assert (rest.looked_at, rest.checkpoints, rest.more) == (1, 3, False)


@pytest.mark.virtual_time
async def test_a_look_takes_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("a", retention_look_s=60.0) as fleet:
        began: list[float] = []

        async def long() -> None:
            began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(100)

        monkeypatch.setattr(fleet["a"].node.service.keeper, "look", long)
        while len(began) < 2:
            await asyncio.sleep(10)
        assert began[1] - began[0] >= 299


@pytest.mark.parametrize("seed", range(12))
async def test_a_rule_lets_go_what_its_model_does(open_bench: Opener, seed: int) -> None:
    """The model knows what was saved where and when, and which bound keeps what."""
    bench, random = open_bench(seed=seed), Random(seed)
    thread = bench.space.thread("agent")
    parents: dict[str, str | None] = {}
    branch_of, made_ms, labelled = dict[str, str](), dict[str, int](), set[str]()
    heads: dict[str, str] = {}
    based: set[str] = set()
    for n in range(60):
        bench.simulated.now_ms += random.choice((1, 3_600_000, DAY_MS))
        branch = random.choice([*heads] or ["main"])
        if heads and len(heads) < 4 and random.random() < 0.1:
            at, name = random.choice(list(parents)), f"b{n}"
            await thread.branch(name, at=at)
            heads[name] = at
        elif heads and random.random() < 0.05:
            await bench.space.thread("agent").begin("pay", key=f"call-{n}").__aenter__()
            based |= {
                max((id for id in parents if branch_of[id] == each), key=made_ms.__getitem__, default="") for each in heads
            }
        else:
            handle = bench.space.thread("agent")
            if heads:
                await handle.load(branch=branch)
            label = f"l{n}" if random.random() < 0.08 else ""
            cp = await handle.save({"n": n}, branch=branch, label=label)
            parents[cp.id], branch_of[cp.id], made_ms[cp.id] = heads.get(branch), branch, bench.simulated.now_ms
            heads[branch] = cp.id
            labelled |= {cp.id} if label else set()
            thread = handle
    keep_last, days = random.choice((None, 1, 3, 8)), random.choice((None, 2, 10))
    if keep_last is None and days is None:
        keep_last = 2
    kept = {*heads.values(), *labelled, *based}
    for head in heads.values():
        line: str | None = head
        for _ in range(keep_last or 1):
            if line is not None:
                kept.add(line)
                line = parents.get(line)
    if days is not None:
        kept |= {id for id, at_ms in made_ms.items() if at_ms > bench.simulated.now_ms - days * DAY_MS}
    children: dict[str, list[str]] = {}
    for id, parent in parents.items():
        children.setdefault(parent or "", []).append(id)
    kept |= {id for id, of in children.items() if len(of) > 1 or any(branch_of[each] != branch_of.get(id) for each in of)}
    older = None if days is None else days * DAY
    await bench.space.retention.set(keep_last=keep_last, older_than=older, yes=True)
    await bench.node.service.keeper.look()
    there = set[str]()
    for id in parents:
        with suppress(Pruned, NotFound):
            there.add((await bench.space.thread("agent").load(id)).id)
    assert there == kept & set(parents)
