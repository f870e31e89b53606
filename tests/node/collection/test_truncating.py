"""A node's logs are truncated; everything that read them has an answer for what has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal import values
from shoal.cluster import messages
from shoal.cluster.messages import Truncated
from shoal.cluster.operation import Tip, partition_of
from shoal.cluster.peer_state import Reset
from shoal.cluster.truncation import Holding
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import successor
from shoal.errors import DeletedMeanwhile, KeyExpired, KeyReused
from shoal.node.collection.answers import Expiry
from shoal.node.peers.admission import Resets
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.protocol.session import make_key
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Bench, Opener

HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000
ONE = values.encode(1)
N = partition_of("crew", "n")


def logged(storage: MemoryStorage) -> int:
    return sum(1 for _ in storage.scan(keys.LOG, successor(keys.LOG)))


def keyed(storage: MemoryStorage) -> int:
    return sum(1 for _ in storage.scan(keys.KEY, successor(keys.KEY)))


async def look(node: Bench | Member, *, after_ms: int = 0) -> None:
    """Let time pass, and let the node look at all of its logs."""
    node.simulated.now_ms += after_ms
    truncator = node.node._database.truncator
    await truncator.look(truncator.due())


def add(name: str = "n", amount: int = 1) -> requests.Add:
    return requests.Add("crew", name, amount)


# ── the log ───────────────────────────────────────────────────────────────────


@pytest.mark.answers("log-grows-for-ever")
async def test_old_operations_leave_and_what_they_made_stays(bench: Bench) -> None:
    for _ in range(5):
        await bench.space.counter("n").add(1)
    await look(bench, after_ms=HOUR_MS // 2)
    assert logged(bench.storage) == 5
    await look(bench, after_ms=HOUR_MS)
    assert logged(bench.storage) == 0
    assert await bench.space.counter("n").value() == 5
    report = verify(bench.storage, config=Config())
    assert (report.sound, report.operations, report.truncated) == (True, 0, 5), report.problems


async def test_young_operations_stay_behind_the_base(bench: Bench) -> None:
    await bench.space.counter("n").add(1)
    bench.simulated.now_ms += HOUR_MS + 1
    await bench.space.counter("n").add(1)
    await look(bench)
    partition = bench.node._database.partitions.load(N)
    assert (list(partition.base.values()), list(partition.vector.values()), logged(bench.storage)) == ([1], [2], 1)
    assert verify(bench.storage, config=Config()).sound


@pytest.mark.answers("operation-leaves-at-once-because-its-issuers-clock")
async def test_an_operation_is_not_old_because_the_clock_was_behind_when_it_was_issued(bench: Bench) -> None:
    """Its hybrid time says that it is young: it follows one that is. Owners that lack it would be left behind."""
    await bench.space.counter("another").add(1)
    bench.simulated.now_ms -= 30 * DAY_MS
    await bench.space.counter("n").add(1)
    await look(bench, after_ms=30 * DAY_MS)
    assert logged(bench.storage) == 2


@pytest.mark.answers("log-grows-for-ever")
async def test_a_log_that_is_too_large_gives_up_young_operations(open_bench: Opener) -> None:
    bench = open_bench(log_bytes_max=1000)
    for _ in range(5):
        await bench.space.register("r").set("x" * 500)
    await look(bench)  # It learns how large the log is.
    await look(bench)
    assert logged(bench.storage) < 5
    assert bench.node._database.truncator.log_bytes <= 1000


@pytest.mark.answers("logs-lose-only-what-all-hold", "base-and-log-rows-differ")
async def test_the_rows_and_the_base_go_in_one_write(bench: Bench) -> None:
    for n in range(20):
        await bench.node.session().call(add(), key=f"k{n}")
    await look(bench, after_ms=2 * HOUR_MS)
    for keep in (0, 1, None):
        left = bench.storage.left_by_crash(keep)
        assert verify(left, config=Config()).sound


@pytest.mark.answers("base-and-log-rows-differ")
async def test_a_store_that_lost_its_log_rows_without_a_base_is_not_sound(bench: Bench) -> None:
    for _ in range(3):
        await bench.space.counter("n").add(1)
    await look(bench, after_ms=2 * HOUR_MS)
    for key, _ in list(bench.storage.scan(keys.BASE, successor(keys.BASE))):
        bench.storage.write({key: None})
    assert not verify(bench.storage, config=Config()).sound


async def test_a_registers_history_outlives_the_log(bench: Bench) -> None:
    goal = bench.space.register("goal")
    await goal.set("Mars", by="ada")
    await goal.set("Venus", by="bo")
    await look(bench, after_ms=2 * DAY_MS)
    assert logged(bench.storage) == 0
    assert [(past.value, past.by) for past in await goal.history()] == [("Venus", "bo"), ("Mars", "ada")]
    report = verify(bench.storage, config=Config())
    assert (report.sound, report.truncated) == (True, 2), report.problems


async def test_a_truncated_store_opens_after_a_crash_and_goes_on(open_bench: Opener) -> None:
    first = open_bench()
    for _ in range(3):
        await first.space.counter("n").add(1)
    await look(first, after_ms=2 * HOUR_MS)
    second = open_bench(first.storage.left_by_crash(None), seed=2)
    assert logged(second.storage) == 0
    assert second.node.resumed_after_crash
    await second.space.counter("n").add(1)
    assert await second.space.counter("n").value() == 4
    assert verify(second.storage, config=Config()).sound


@pytest.mark.answers("log-grows-for-ever")
async def test_a_program_that_opens_its_store_for_a_moment_only_truncates_it_too() -> None:
    storage, now_ms = MemoryStorage(), 1_700_000_000_000
    for opening in range(20):
        bench = Bench(storage, SimulatedEnvironment(opening, start_ms=now_ms), Config())
        await bench.space.thread("t").journal.append(opening)
        await bench.node.stop()
        storage, now_ms = storage.left_by_crash(0), now_ms + HOUR_MS // 2
    assert logged(storage) <= 3
    assert verify(storage, config=Config()).sound


async def test_a_used_log_is_truncated_before_a_stop(bench: Bench) -> None:
    await bench.node.session().call(add())
    bench.simulated.now_ms += 2 * HOUR_MS
    assert logged(bench.storage) == 1
    await bench.node.stop()
    assert logged(bench.storage.left_by_crash(0)) == 0


async def test_one_that_is_killed_each_time_truncates_too() -> None:
    storage, now_ms = MemoryStorage(), 1_700_000_000_000
    for opening in range(20):
        bench = Bench(storage, SimulatedEnvironment(opening, start_ms=now_ms), Config())
        await bench.space.thread("t").journal.append(opening)
        await bench.node.session().call(add("{t}"))
        storage, now_ms = storage.left_by_crash(None), now_ms + HOUR_MS // 2
    assert logged(storage) < 20


# ── what read the log ─────────────────────────────────────────────────────────


@pytest.mark.answers("repeated-request-outlives-its-operation")
@pytest.mark.parametrize("again", [False, True], ids=["the same opening", "the next opening"])
async def test_a_repeated_request_gets_its_answer_when_its_operation_has_left(open_bench: Opener, again: bool) -> None:
    bench = open_bench()
    save = requests.Save("crew", "t", {"x": ONE})
    first = await bench.node.session().call(save, key="turn-1")
    await look(bench, after_ms=2 * HOUR_MS)
    assert logged(bench.storage) == 0
    if again:
        bench = open_bench(bench.storage.left_by_crash(None), seed=2)
    assert await bench.node.session().call(save, key="turn-1") == first
    with pytest.raises(KeyReused):
        await bench.node.session().call(requests.Save("crew", "t", {"x": values.encode(2)}), key="turn-1")
    assert logged(bench.storage) == 0


@pytest.mark.answers("repeated-request-outlives-its-operation")
@pytest.mark.parametrize("truncated", [False, True])
async def test_a_repeated_write_to_a_deleted_object_says_so_whether_it_is_in_the_log_or_not(
    bench: Bench, truncated: bool
) -> None:
    session = bench.node.session()
    await session.call(add(), key="k")
    if truncated:
        await look(bench, after_ms=2 * HOUR_MS)
        assert logged(bench.storage) == 0
    await session.call(requests.DeleteCounter("crew", "n"))
    with pytest.raises(DeletedMeanwhile):
        await session.call(add(), key="k", durability="quorum")


@pytest.mark.answers("reader-skips-truncated-operations")
async def test_a_watch_below_the_base_is_told_to_start_again(bench: Bench) -> None:
    session = bench.node.session()
    async with session.subscribe(requests.Watch("crew", after=b"")) as pushes:
        begun = await anext(pushes)
    assert isinstance(begun, requests.Watching)
    for _ in range(3):
        await session.call(add())
    await look(bench, after_ms=2 * HOUR_MS)
    await session.call(add())
    async with session.subscribe(requests.Watch("crew", after=begun.position or b"")) as pushes:
        first = await anext(pushes)
    assert isinstance(first, requests.Reset)
    assert "start again from the present state" in first.reason


@pytest.mark.answers("reader-skips-truncated-operations")
async def test_a_journal_is_read_on_from_a_cursor_below_the_base(bench: Bench) -> None:
    journal = bench.space.thread("t").journal
    await journal.append("first")
    page = await bench.node.session().call(requests.ReadJournal("crew", "t", limit=10))
    await journal.append("second")
    await look(bench, after_ms=2 * HOUR_MS)
    await journal.append("third")
    found = await bench.node.session().call(requests.ReadJournal("crew", "t", after=page.cursor, limit=10))
    assert [values.decode(event.event) for event in found.events] == ["second", "third"]


# ── keys ──────────────────────────────────────────────────────────────────────


@pytest.mark.answers("log-grows-for-ever")
@pytest.mark.parametrize("key", ["order-17", make_key(1_700_000_000_000, b"r" * 10)], ids=["a user's", "a client's"])
async def test_a_key_expires_after_its_window(bench: Bench, key: str) -> None:
    assign = requests.Assign("crew", "r", ONE)
    await bench.node.session().call(assign, key=key)
    await look(bench, after_ms=2 * HOUR_MS)
    await look(bench, after_ms=DAY_MS - 3 * HOUR_MS)
    assert keyed(bench.storage) == 1
    await look(bench, after_ms=2 * HOUR_MS)
    await look(bench, after_ms=2 * HOUR_MS)
    assert keyed(bench.storage) == 0
    if key.startswith("c0"):
        with pytest.raises(KeyExpired):
            await bench.node.session().call(assign, key=key)
    else:
        await bench.node.session().call(assign, key=key)
        assert logged(bench.storage) == 1
    assert verify(bench.storage, config=Config()).sound


async def test_a_key_stays_while_its_operation_is_in_the_log(open_bench: Opener) -> None:
    bench = open_bench(log_keep_s=10 * 24 * 3600.0)
    await bench.node.session().call(add(), key="k")
    for _ in range(3):
        await look(bench, after_ms=DAY_MS)
    assert keyed(bench.storage) == 1


async def test_all_of_many_keys_expire(bench: Bench) -> None:
    for n in range(600):
        await bench.node.session().call(
            add(), key=f"order-{n}" if n % 2 else make_key(bench.simulated.now_ms, bytes([n % 256]) * 10)
        )
    await look(bench, after_ms=2 * HOUR_MS)
    for _ in range(3):
        await look(bench, after_ms=DAY_MS)
    assert keyed(bench.storage) == 0


async def test_a_pass_over_keys_goes_on_in_the_next_opening(open_bench: Opener) -> None:
    first = open_bench()
    for n in range(300):
        await first.node.session().call(add(), key=f"order-{n:03}")
    await look(first, after_ms=2 * HOUR_MS)
    left = first.storage.left_by_crash(None)
    expiry = Expiry(left, Config(key_window_s=DAY_MS))
    owners = [Holding(VersionVector(), VersionVector())]
    assert expiry.expired(N, owners, first.simulated.now_ms).more
    left.write(expiry.left())
    again = Expiry(left, Config(key_window_s=DAY_MS))
    assert not again.expired(N, owners, first.simulated.now_ms).more
    left.write(again.left())
    assert left.get(keys.meta("expiring")) is None


# ── among peers ───────────────────────────────────────────────────────────────


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def _known(fleet: Fleet, among: str = "abc") -> None:
    """Return once each of these nodes knows that the others hold what it holds."""
    async with asyncio.timeout(30):
        for name in among:
            partition = fleet[name].node._database.partitions.load(N)
            for address, holding in fleet[name].replicator.quorum.holdings(N).items():
                while address[0] in among and not holding.vector.dominates(partition.vector):
                    await asyncio.sleep(0.005)
                    holding = fleet[name].replicator.quorum.holdings(N)[address]


async def test_operations_that_all_owners_hold_leave_on_each(fleet: Fleet) -> None:
    for name in "abc":
        await fleet[name].node.session().call(add())
    await fleet.converged()
    await _known(fleet)
    for name in "abc":
        await look(fleet[name], after_ms=2 * HOUR_MS)
        assert logged(fleet[name].storage) == 0
        report = verify(fleet[name].storage.left_by_crash(None), config=Config())
        assert report.sound, report.problems


@pytest.mark.answers("operation-leaves-that-an-owner-still-needs")
async def test_an_owner_that_is_away_holds_the_log_up_until_it_is_forgotten(fleet: Fleet) -> None:
    await fleet.isolate("c")
    await fleet["a"].node.session().call(add())
    await _known(fleet, "ab")
    await look(fleet["a"], after_ms=2 * HOUR_MS)
    assert logged(fleet["a"].storage) == 1
    await look(fleet["a"], after_ms=7 * DAY_MS)
    assert logged(fleet["a"].storage) == 0


async def test_an_owner_that_is_away_does_not_hold_up_a_log_that_is_too_large() -> None:
    async with Fleet(log_bytes_max=100) as fleet:
        await fleet.isolate("c")
        await fleet["a"].node.session().call(add())
        await _known(fleet, "ab")
        await look(fleet["a"])
        await look(fleet["a"])
        assert logged(fleet["a"].storage) == 0


async def test_operations_below_a_quorum_never_leave() -> None:
    async with Fleet(log_bytes_max=100) as fleet:
        await fleet.isolate("a")
        await fleet["a"].node.session().call(add())
        await look(fleet["a"], after_ms=30 * DAY_MS)
        await look(fleet["a"])
        assert logged(fleet["a"].storage) == 1


async def left_behind(fleet: Fleet) -> None:
    """c lacks an operation that has left the logs of a and b."""
    await fleet.isolate("c")
    await fleet["a"].node.session().call(add())
    await _known(fleet, "ab")
    for name in "ab":
        await look(fleet[name], after_ms=8 * DAY_MS)
        assert logged(fleet[name].storage) == 0


@pytest.mark.answers("reader-skips-truncated-operations")
async def test_an_owner_that_was_left_behind_is_told_and_says_so(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    sound = Resets.note

    def note(self: Resets, reset: Reset) -> None:
        """It says so until the snapshot is here, which may be before anybody looks again."""
        sound(self, reset)
        told.extend(fleet["c"].replicator.quorum.view().truncated)

    monkeypatch.setattr(Resets, "note", note)
    await left_behind(fleet)
    fleet.link_all("c")
    async with asyncio.timeout(30):
        while not told:
            await asyncio.sleep(0.005)
    assert f"partition {N}: this node lacks 1 operations that have left the log of" in told[0]


async def test_a_want_below_the_base_is_answered_with_the_base(fleet: Fleet) -> None:
    seen: list[Truncated] = []

    def spoil(source: str, target: str, message: bytes) -> bytes:
        if target == "c" and isinstance(found := messages.decode(message), Truncated):
            seen.append(found)
        return message

    await left_behind(fleet)
    fleet.spoil = spoil
    fleet.link_all("c")
    async with asyncio.timeout(30):
        while not seen:
            await asyncio.sleep(0.005)
    assert {found.base for found in seen} == {fleet["a"].node._database.partitions.load(N).base.pack()}


async def test_new_operations_reach_an_owner_that_lacks_none_of_what_left(fleet: Fleet) -> None:
    await fleet["a"].node.session().call(add())
    await fleet.converged()
    await _known(fleet)
    for name in "ab":
        await look(fleet[name], after_ms=2 * HOUR_MS)
    await fleet.isolate("c")
    await fleet["a"].node.session().call(add())
    fleet.link_all("c")
    await fleet.converged()
    assert fleet["c"].replicator.quorum.view().truncated == []
    assert logged(fleet["c"].storage) == 2


async def test_nodes_that_truncated_differently_hold_the_same_state(fleet: Fleet) -> None:
    for name in "abc":
        for _ in range(3):
            await fleet[name].node.session().call(add())
    await fleet.converged()
    await _known(fleet)
    await look(fleet["a"], after_ms=2 * HOUR_MS)

    def rows(name: str) -> dict[bytes, bytes]:
        return {key: value for key, value in fleet.rows(name).items() if key[:1] not in (keys.LOG, keys.BASE, keys.KEY)}

    assert rows("a") == rows("b") == rows("c")
    bases: list[Any] = [Tip.unpack(tip) for _, tip in fleet["a"].storage.scan(keys.BASE, successor(keys.BASE))]
    assert len(bases) == 3


async def test_a_key_that_is_used_again_after_its_window_names_the_new_operation_on_every_node() -> None:
    async with Fleet("ab") as fleet:
        assign = [requests.Assign("crew", "n", values.encode(number)) for number in (1, 2)]
        await fleet["a"].node.session().call(assign[0], key="k")
        await fleet.converged()
        await _known(fleet, "ab")
        for member in fleet.members.values():
            member.simulated.now_ms += DAY_MS + HOUR_MS
        async with asyncio.timeout(30):
            while keyed(fleet["a"].storage):
                await look(fleet["a"], after_ms=HOUR_MS)
                await asyncio.sleep(0.01)
        assert keyed(fleet["b"].storage) == 1
        fleet["b"].simulated.now_ms = fleet["a"].simulated.now_ms
        second = await fleet["a"].node.session().call(assign[1], key="k")
        await fleet.converged()
        assert await fleet["b"].node.session().call(assign[1], key="k") == second
        assert {name: fleet[name].storage.get(keys.request_key(N, "k")) for name in "ab"} == dict.fromkeys(
            "ab", fleet["a"].storage.get(keys.request_key(N, "k"))
        )


async def test_nothing_leaves_before_it_is_durable(bench: Bench) -> None:
    await bench.space.counter("n").add(1)
    bench.simulated.hold_syncs()
    await bench.space.counter("n").add(1, durability="memory")
    looking = asyncio.create_task(look(bench, after_ms=2 * HOUR_MS))
    await asyncio.sleep(1)
    before = logged(bench.storage)
    bench.simulated.release_syncs()
    await looking
    assert (before, logged(bench.storage)) == (2, 0)


async def test_one_turn_takes_a_bounded_number_of_operations(bench: Bench) -> None:
    for number in range(300):
        await bench.node.session().call(add(), key=f"k{number}")
    bench.simulated.now_ms += 2 * HOUR_MS
    truncator = bench.node._database.truncator
    assert await truncator._look(N)
    assert logged(bench.storage) == 300 - 256
