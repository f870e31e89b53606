"""A watch that is resumed: each durable change once, in causal order, whatever node goes on; and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from shoal import values
from shoal.errors import InvalidValue, StorageFull, Unavailable
from shoal.node.watching.changelog import ResumableWatch
from shoal.protocol import requests
from shoal.protocol.position import Position
from shoal.protocol.requests import Change, Push, Reset, Watching
from shoal.protocol.session import Session
from shoal.storage import keys
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

SPACE = "crew"


class Watcher:
    """A client that watches where it is told to, and keeps its position."""

    def __init__(self, position: Position | None = None, **narrowed: Any) -> None:
        self.position = position
        self.changes: list[Change] = []
        self.resets: list[str] = []
        self.narrowed = narrowed

    @property
    def names(self) -> list[str]:
        return [change.name for change in self.changes]

    def note(self, push: Push) -> None:
        match push:
            case Watching():
                self.position = Position.unpack(push.position)
            case Reset():
                self.position = Position.unpack(push.position)
                self.resets.append(push.reason)
            case Change():
                assert self.position is not None
                self.position.note(push)
                self.changes.append(push)

    @property
    def request(self) -> requests.Watch:
        packed = b"" if self.position is None else self.position.pack()
        return requests.Watch(SPACE, after=packed, **self.narrowed)

    async def follow(self, session: Session, *, limit: int | None = None) -> None:
        """Until nothing more comes, or `limit` changes have."""
        async with session.subscribe(self.request) as pushes:
            while limit is None or limit > 0:
                push = await quick(pushes)
                if push is None:
                    return
                self.note(push)
                limit = None if limit is None else limit - isinstance(push, Change)


async def quick(pushes: AsyncIterator[Push]) -> Push | None:
    """The next push; None if none comes while the others are idle."""
    taking = asyncio.ensure_future(anext(pushes))
    for _ in range(200):
        await asyncio.sleep(0)
        if taking.done():
            return taking.result()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    return None


async def begun(session: Session, **narrowed: Any) -> Watcher:
    watcher = Watcher(**narrowed)
    await watcher.follow(session)
    return watcher


async def add(session: Session, *names: str) -> None:
    writes: list[requests.BatchWrite] = [requests.Add(SPACE, name, 1) for name in names]
    await session.call(writes[0] if len(writes) == 1 else requests.Batch(writes))


async def test_a_watch_is_told_what_came_while_nobody_watched(bench: Bench) -> None:
    session = bench.node.session()
    await add(session, "before")
    watcher = await begun(session)
    assert watcher.changes == []
    for n in range(250):
        await add(session, f"n{n}")
    await watcher.follow(session, limit=120)
    await watcher.follow(session)
    await watcher.follow(session)
    assert watcher.names == [f"n{n}" for n in sorted(range(250), key=lambda n: watcher.names.index(f"n{n}"))]
    assert sorted(watcher.names) == sorted(f"n{n}" for n in range(250))


async def test_writes_while_the_log_is_read_follow_once(bench: Bench) -> None:
    session = bench.node.session()
    watcher = await begun(session)
    for n in range(150):
        await add(session, f"{{t}}{n}")
    async with session.subscribe(watcher.request) as pushes:
        for n in range(150, 300):
            push = await quick(pushes)
            assert push is not None
            watcher.note(push)
            await add(session, f"{{t}}{n}")
        while (push := await quick(pushes)) is not None:
            watcher.note(push)
    assert watcher.names == [f"{{t}}{n}" for n in range(300)]


async def test_an_operation_of_which_some_was_told_goes_on_with_the_rest(bench: Bench) -> None:
    session = bench.node.session()
    watcher = await begun(session)
    await add(session, *(f"{{t}}{n}" for n in range(5)))
    for limit in (1, 2, None):
        await watcher.follow(session, limit=limit)
    assert watcher.names == [f"{{t}}{n}" for n in range(5)]


async def test_a_watch_that_is_narrowed_is_told_of_its_own_alone(bench: Bench) -> None:
    session = bench.node.session()
    watcher = await begun(session, kinds=["counter", "register"], prefix="a")
    for name in ("a1", "b1"):
        await add(session, name)
        await session.call(requests.Assign(SPACE, name, values.encode(1)))
        await session.call(requests.Append(SPACE, name, values.encode(1)))
        await session.call(requests.Add("other", name, 1))
    await watcher.follow(session)
    assert [(change.kind, change.name) for change in watcher.changes] == [("counter", "a1"), ("register", "a1")]


async def test_an_empty_position_is_told_all_that_there_is(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.Save(SPACE, "{t}gone", {}))
    await session.call(requests.DeleteThread(SPACE, "{t}gone"))
    await add(session, "{t}n")
    watcher = Watcher(Position())
    await watcher.follow(session)
    assert [(change.name, change.what) for change in watcher.changes] == [("{t}gone", "delete"), ("{t}n", "add")]


async def test_a_deletion_is_told_though_nothing_is_left(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.Save(SPACE, "t", {}))
    watcher = await begun(session)
    await session.call(requests.DeleteThread(SPACE, "t"))
    await watcher.follow(session)
    assert [change.what for change in watcher.changes] == ["delete"]


async def test_writes_not_durable_at_the_start_are_not_told(bench: Bench) -> None:
    session = bench.node.session()
    async with session.subscribe(Watcher().request):
        writing = asyncio.ensure_future(add(session, "n"))
        await asyncio.sleep(0)
        watcher = await begun(session)
        await writing
        assert watcher.changes == []
        await watcher.follow(session)
    assert watcher.changes == []


@pytest.mark.answers("resumed-watch-shows-data-that-is-not-durable")
async def test_a_resumed_watch_shows_nothing_of_a_write_whose_sync_failed(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(requests.Add("crew", "n", 1))
    async with session.subscribe(requests.Watch("crew", after=b"")) as pushes:
        began = await anext(pushes)
        assert isinstance(began, requests.Watching)
    bench.storage.fail_next("sync")
    with pytest.raises(StorageFull):
        await session.call(requests.Add("crew", "n", 41))
    with pytest.raises(StorageFull):
        async with bench.node.session().subscribe(requests.Watch("crew", after=began.position)):
            raise AssertionError("a power cut would take back what it is shown")


async def test_malformed_positions_are_refused(bench: Bench) -> None:
    with pytest.raises(InvalidValue):
        async with bench.node.session().subscribe(requests.Watch(SPACE, after=b"\x01garbage")):
            pass


@pytest.mark.answers("watchers-see-each-change-once", "watcher-misses-changes-made-while-it-was-away")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 6))])
async def test_each_change_is_told_once_over_many_nodes_that_are_cut_off_and_come_back(seed: int) -> None:
    random = Random(seed)
    async with Fleet("abc", seed=seed) as fleet:
        watchers = [await begun(fleet[name].node.session()) for name in "abc"]
        chain = fleet["a"].node.session()
        written: list[str] = []
        for step in range(60):
            node = random.choice("abc")
            match random.randrange(6):
                case 0:
                    await fleet.isolate(node)
                case 1:
                    fleet.link_all(node)
                case 2:
                    tag = random.randrange(3)
                    names = [f"{{t{tag}}}{step}-{n}" for n in range(random.randrange(1, 5))]
                    await add(fleet[node].node.session(), *names)
                    written += names
                case 3:
                    name = f"{{chain}}{step:04}"
                    other = fleet[node].node.session(chain.bookmark)
                    try:
                        await add(other, name)
                    except Unavailable:
                        continue  # It is cut off from what this chain stands on.
                    written.append(name)
                    chain = other
                case _:
                    watcher = random.choice(watchers)
                    await watcher.follow(fleet[node].node.session(), limit=random.choice([None, 1, 2, 3]))
        for name in "abc":
            fleet.link_all(name)
        await fleet.converged()
        for watcher in watchers:
            await watcher.follow(fleet[random.choice("abc")].node.session())
            assert sorted(watcher.names) == sorted(written)
            told = [name for name in watcher.names if name.startswith("{chain}")]
            assert told == sorted(told)
            assert watcher.resets == []


async def causal_histories(fleet: Fleet, random: Random) -> dict[str, set[str]]:
    """Write over many partitions and nodes that come and go; returns what the node had told before each change, by name."""
    causes: dict[str, set[str]] = {}
    async with AsyncExitStack() as stack:
        told: dict[str, set[str]] = {}
        streams = {}
        for node in "abc":
            streams[node] = await stack.enter_async_context(fleet[node].node.session().subscribe(Watcher().request))
            told[node] = set()
        for step in range(80):
            node = random.choice("abc")
            match random.randrange(8):
                case 0:
                    await fleet.isolate(node)
                case 1:
                    fleet.link_all(node)
                case 2:
                    await asyncio.sleep(0.05)
                case _:
                    while (push := await quick(streams[node])) is not None:
                        if isinstance(push, Change):
                            told[node].add(push.name)
                    tag = random.randrange(40)
                    names = [f"{{t{tag}}}{step}-{n}" for n in range(random.choice([1, 1, 1, 3]))]
                    await add(fleet[node].node.session(), *names)
                    for n, name in enumerate(names):
                        causes[name] = told[node] | set(names[:n])
        for node in "abc":
            fleet.link_all(node)
        await fleet.converged()
    return causes


@pytest.mark.answers("watchers-see-each-change-once")
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 40))])
async def test_every_prefix_of_a_resumed_watch_is_causally_closed(seed: int) -> None:
    random = Random(seed)
    async with Fleet("abc", seed=seed) as fleet:
        begun_at = await begun(fleet["a"].node.session())
        causes = await causal_histories(fleet, random)
        narrowed = {"prefix": random.choice(["", "{t1", "{t"])}
        watcher = Watcher(Position() if random.random() < 0.5 else begun_at.position, **narrowed)
        seen: set[str] = set()
        wanted = {name for name in causes if name.startswith(narrowed["prefix"])}
        while seen != wanted:
            before = len(watcher.changes)
            await watcher.follow(fleet[random.choice("abc")].node.session(), limit=random.choice([1, 2, 5, 20, None]))
            assert len(watcher.changes) > before
            for change in watcher.changes[before:]:
                assert change.name not in seen
                assert causes[change.name] & wanted <= seen
                seen.add(change.name)
        assert watcher.resets == []


async def test_an_effect_comes_after_its_cause_in_another_partition(bench: Bench) -> None:
    session = bench.node.session()
    watcher = await begun(session)
    names = [f"n{n}" for n in range(300)]
    for name in names:
        await add(session, name)
    await watcher.follow(session, limit=150)
    await watcher.follow(session)
    assert watcher.names == names


async def test_a_node_that_is_behind_does_not_tell_again_what_it_gets_later() -> None:
    async with Fleet("ab") as fleet:
        here, there = fleet["a"].node.session(), fleet["b"].node.session()
        watcher = await begun(here)
        await fleet.isolate("b")
        await add(here, "{t}one")
        await add(here, "{t}1", "{t}2", "{t}3")
        await watcher.follow(here, limit=3)
        await add(there, "{t}two")
        async with there.subscribe(watcher.request) as pushes:
            fleet.link_all("b")
            await fleet.converged()
            while (push := await quick(pushes)) is not None:
                watcher.note(push)
        assert watcher.names == ["{t}one", "{t}1", "{t}2", "{t}two", "{t}3"]


async def test_a_node_that_lost_its_power_tells_nobody_twice() -> None:
    async with Fleet("abc") as fleet:
        watcher = await begun(fleet["a"].node.session())
        await add(fleet["a"].node.session(), "one")
        await watcher.follow(fleet["a"].node.session())
        await fleet.converged()
        left = await fleet.crash("a")
        await add(fleet["b"].node.session(), "two")
        await watcher.follow(fleet["b"].node.session())
        fleet.start("a", left)
        await add(fleet["a"].node.session(), "three")
        await fleet.converged()
        await watcher.follow(fleet["a"].node.session())
        await watcher.follow(fleet["c"].node.session())
        assert watcher.names == ["one", "two", "three"]


# ── what cannot be told ───────────────────────────────────────────────────────


@pytest.mark.answers("watcher-misses-changes-made-while-it-was-away")
async def test_one_that_stalls_among_many_costs_its_budget_and_gets_one_reset(open_bench: Opener) -> None:
    bench = open_bench(subscription_bytes_max=20_000)
    session = bench.node.session()
    async with AsyncExitStack() as stack:
        stalled, *others = [await stack.enter_async_context(session.subscribe(Watcher().request)) for _ in range(50)]
        watchers = [Watcher() for _ in others]
        for n in range(500):
            await add(session, f"{{t}}{n}")
            for watcher, pushes in zip(watchers, others, strict=True):
                while len(watcher.changes) <= n:
                    watcher.note(await anext(pushes))
            assert isinstance(stalled, ResumableWatch)
            assert stalled._bytes <= 20_000
        assert all(watcher.names == [f"{{t}}{n}" for n in range(500)] for watcher in watchers)
        late, from_reset = Watcher(Position()), Watcher(Position())
        while (push := await quick(stalled)) is not None:
            late.note(push)
            if isinstance(push, Reset):
                from_reset.note(push)
    assert len(late.resets) == 1
    # What came after the reset is told; what it left out is covered: who resumes is not told it either.
    assert late.names == [f"{{t}}{n}" for n in range(500 - len(late.names), 500)]
    await add(session, "{t}last")
    await late.follow(session)
    await from_reset.follow(session)
    assert late.names[-1] == "{t}last"
    assert from_reset.names == late.names
    assert len(late.resets) == len(from_reset.resets) == 1


async def test_one_that_is_too_far_behind_is_reset_and_goes_on(open_bench: Opener) -> None:
    bench = open_bench(watch_replay_operations_max=5)
    session = bench.node.session()
    watcher = await begun(session)
    for n in range(5):
        await add(session, f"near{n}")
    await watcher.follow(session)
    assert (len(watcher.changes), watcher.resets) == (5, [])
    for n in range(6):
        await add(session, f"far{n}")
    await watcher.follow(session)
    assert (len(watcher.changes), len(watcher.resets)) == (5, 1)
    await add(session, "after")
    await watcher.follow(session)
    assert watcher.names[5:] == ["after"]
    assert len(watcher.resets) == 1


async def test_a_hole_in_the_log_is_a_reset(bench: Bench) -> None:
    session = bench.node.session()
    watcher = await begun(session)
    for n in range(3):
        await add(session, f"{{t}}{n}")
    rows = [key for key, _ in bench.storage.scan(keys.LOG, None) if key.startswith(keys.LOG)]
    bench.storage.write({rows[1]: None})
    await watcher.follow(session)
    assert (watcher.names, len(watcher.resets)) == ([], 1)
    await add(session, "{t}after")
    await watcher.follow(session)
    assert watcher.names == ["{t}after"]


@pytest.mark.answers("watches-name-changes-differently")
async def test_a_change_has_the_same_id_whether_it_is_told_at_once_or_read_from_the_log(bench: Bench) -> None:
    session = bench.node.session()
    away = await begun(session)
    async with session.subscribe(requests.Watch(SPACE)) as pushes:
        saved = await session.call(requests.Save(SPACE, "t", {"n": values.encode(1)}, label="first"))
        await session.call(requests.Move(SPACE, "t", "aside", saved.id, new=True))
        await session.call(requests.Append(SPACE, "t", values.encode("said")))
        put = await session.call(requests.Enqueue(SPACE, "t", "inbox", [requests.QueueItem("k", values.encode(1))]))
        await session.call(requests.Enqueue(SPACE, "t", "inbox", [requests.QueueItem(None, values.encode(2))]))
        await session.call(requests.Dequeue(SPACE, "t", "inbox", put.ids[0]))
        await session.call(requests.Annotate(SPACE, "t", "first", [requests.Note(b"w", values.encode(1))]))
        await session.call(requests.PutEntry(SPACE, "m", "key", values.encode(1)))
        await session.call(requests.PutItem(SPACE, "memory", ["user"], "likes", values.encode("tea")))
        await session.call(requests.Add(SPACE, "n", 1))
        told = []
        while (push := await quick(pushes)) is not None:
            assert isinstance(push, Change)
            told.append(push)
    await away.follow(session)
    assert {(change.what, change.hlc, change.id) for change in told} == {
        (change.what, change.hlc, change.id) for change in away.changes
    }
    assert {change.what: change.id for change in told}["move"] == saved.id
    assert [change.what for change in told if not change.id] == ["add"]
