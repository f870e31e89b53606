"""Each condition is made true on real nodes, is seen in every face within 15 s, and is gone 15 s after what mends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

import msgspec
import pytest

from shoal.errors import Overloaded, ShoalError, StoreCorrupt
from shoal.kinds.thread.state.dag import CHUNK
from shoal.node.conditions.table import CONDITIONS
from shoal.node.environment import LOOK_S
from shoal.node.service import Credentials
from shoal.protocol.requests import BackupView, DeclareBackup, Watch
from shoal.storage.memory import MemoryStorage
from simulation.world.bucket import SimulatedBucket
from simulation.world.fleet import Fleet
from tests.node.conditions.conftest import NOTICED_S, faces, has_alert, logged, names, noticed
from tests.node.membership.test_changes import asked, changes, cluster
from tests.node.peers.test_bad_peers import break_push
from tests.node.peers.test_members import replaced
from tests.node.peers.test_read_repair import DAMAGES, load, saved, spoil

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EXPIRED = Credentials(tokens_refused={"expired": 3})


class Made(NamedTuple):
    """A condition that is true at a node."""

    fleet: Fleet
    at: str  # The node that is to notice it.


Fleets = AsyncExitStack
Case = Callable[[Fleets], AsyncIterator[Made]]
"""Makes a condition true, and goes on once it was seen: to mend it is its end. Nodes run on afterwards."""


async def three(stack: Fleets, **settings: Any) -> Fleet:
    """Three nodes, whose register is founded."""
    return await stack.enter_async_context(cluster(**settings))


async def one(stack: Fleets, **settings: Any) -> Fleet:
    """A store without peers."""
    return await stack.enter_async_context(Fleet("a", join="", **settings))


async def restarted(fleet: Fleet, name: str) -> None:
    fleet.start(name, await fleet.crash(name, None))


# ── the cluster ───────────────────────────────────────────────────────────────


async def no_quorum(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    left = {name: await fleet.crash(name, None) for name in "bc"}
    yield Made(fleet, "a")
    for name, storage in left.items():
        fleet.start(name, storage)


async def no_member(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    fleet.start("d", MemoryStorage(identity=b"d"), linked=False, join="a:1")
    await fleet.dial()
    yield Made(fleet, "d")
    await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))


async def asks_to_join(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    fleet.start("d", MemoryStorage(identity=b"d"), linked=False, join="a:1")
    await fleet.dial()
    yield Made(fleet, "a")
    await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))


async def catching_up(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    await fleet.crash("c")
    fleet.apart |= {(one, other) for one in "abc" for other in "abc" if "c" in (one, other)}
    fleet.start("c", MemoryStorage(identity=b"new"), linked=False)
    yield Made(fleet, "c")
    fleet.apart.clear()


async def learning(stack: Fleets) -> AsyncIterator[Made]:
    """Its directory is a copy, and one of the others is away."""
    fleet = await three(stack)
    await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    left = await fleet.crash("b", None)
    storage = await fleet.crash("c")
    storage.identity = b"copy"
    fleet.start("c", storage, linked=False)
    yield Made(fleet, "c")
    fleet.start("b", left, linked=False)


async def member_away(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    left = await fleet.crash("c", None)
    yield Made(fleet, "a")
    fleet.start("c", left)


async def member_behind(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    fleet.spoil = lambda source, target, message: None if target == "c" else message
    await fleet["a"].store().space("crew").counter("n").add(1)
    for member in fleet.members.values():
        member.simulated.now_ms += 20_000
    yield Made(fleet, "a")
    fleet.spoil = lambda source, target, message: message


async def clock_wrong(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack, clock_skew_max_ms=10_000, clock_interval_s=0.05)
    fleet["a"].simulated.now_ms += HOUR_MS
    yield Made(fleet, "a")
    fleet["a"].simulated.now_ms -= HOUR_MS


async def clocks_differ(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack, clock_skew_max_ms=10_000, clock_interval_s=0.05)
    fleet["a"].simulated.now_ms += HOUR_MS
    yield Made(fleet, "b")
    fleet["a"].simulated.now_ms -= HOUR_MS


async def clock_behind(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    await fleet["a"].store().space("crew").counter("n").add(1)
    fleet["a"].simulated.now_ms -= HOUR_MS
    yield Made(fleet, "a")
    fleet["a"].simulated.now_ms += HOUR_MS


async def members_differ(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await stack.enter_async_context(Fleet("abc"))
    await replaced(fleet, "c", join="a:1,b:1,c:1,d:1")
    yield Made(fleet, "a")
    await replaced(fleet, "c")


async def directory_lost(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    await fleet["a"].store().space("crew").counter("n").add(1, durability="all")
    await fleet.crash("c")
    fleet.start("c", MemoryStorage(identity=b"new"), linked=False)
    await fleet.until(lambda: fleet["c"].replicator.register.is_voting)
    yield Made(fleet, "a")
    async with fleet["a"].store() as store:
        [lost] = (await store.members()).lost
        forgotten = asyncio.create_task(store.forget_member(lost.node[:8]))
        await fleet.until(forgotten.done)


async def versions_mixed(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    memberships = fleet["b"].replicator.memberships
    sound = memberships.identity
    memberships.identity = lambda: sound()._replace(software="shoal 0.0.9")  # type: ignore[method-assign]
    await fleet.isolate("b")
    fleet.link_all("b")
    yield Made(fleet, "a")
    memberships.identity = sound  # type: ignore[method-assign]
    await fleet.isolate("b")
    fleet.link_all("b")


async def change_under_way(stack: Fleets) -> AsyncIterator[Made]:
    """A node is to be added that is not there yet."""
    fleet = await three(stack)
    await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))
    yield Made(fleet, "a")
    async with fleet["a"].store() as store:
        taken_back = asyncio.create_task(store.cancel_change())
        await fleet.until(taken_back.done)


async def quarantine(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack, quarantine_s=0.02)
    fleet.spoil = lambda source, target, message: break_push(message) if (source, target) == ("a", "b") else message
    fleet.apart.add(("c", "b"))
    await fleet.cut("c", "b")
    await fleet["a"].store().space("crew").counter("n").add(1)
    await fleet.until(lambda: fleet["b"].replicator.quorum.view().quarantined)
    yield Made(fleet, "b")
    fleet.spoil = lambda source, target, message: message
    fleet.apart.clear()


async def sweep_waits(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack)
    counter = fleet["a"].store().space("crew").counter("n")
    await counter.add(1, durability="all")
    left = await fleet.crash("c", None)
    await counter.delete()
    yield Made(fleet, "a")
    fleet.start("c", left)


def backed_up(fault: str) -> Case:
    """A case of a store that ships to a bucket, with which something is wrong."""

    async def shipped(stack: Fleets) -> AsyncIterator[Made]:
        fleet = await one(stack)
        node, simulated = fleet["a"].node, fleet["a"].simulated
        bucket = simulated.bucket = SimulatedBucket()
        await node.session().call(DeclareBackup("s3://simulated/prod"))
        sound = node.backups.view

        def view() -> BackupView:
            return msgspec.structs.replace(sound(), **FAULTS[fault](simulated.now_ms))

        node.service.back_up({}, view)
        yield Made(fleet, "a")
        verified_ms = simulated.now_ms
        node.service.back_up({}, lambda: msgspec.structs.replace(sound(), lag_ms=0, trouble="", verified_ms=verified_ms))
        assert bucket is simulated.bucket

    return shipped


FAULTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "late": lambda now_ms: {"lag_ms": HOUR_MS, "verified_ms": now_ms},
    "failing": lambda now_ms: {"trouble": "the bucket cannot be reached", "state": "failing", "verified_ms": now_ms},
    "unverified": lambda now_ms: {"lag_ms": 0, "verified_ms": now_ms - 15 * DAY_MS},
}


# ── one node ──────────────────────────────────────────────────────────────────


async def read_only(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack)
    fleet["a"].storage.fail_next("sync")
    with pytest.raises(ShoalError):
        await fleet["a"].store().space("crew").counter("n").add(1)
    yield Made(fleet, "a")
    await restarted(fleet, "a")


async def disk_nearly_full(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack)
    fleet["a"].simulated.volume = 1 << 20, 1 << 40
    yield Made(fleet, "a")
    fleet["a"].simulated.volume = 1 << 39, 1 << 40


async def disk_fills(stack: Fleets) -> AsyncIterator[Made]:
    """Its free bytes went down from hour to hour, as it noted itself."""
    fleet = await one(stack)
    a, free = fleet["a"], 1 << 38
    async with a.store() as store:
        for hours in (3, 2, 1):
            a.storage.bytes_free = lambda hours=hours: free + (hours << 36)  # type: ignore[method-assign, misc]
            await store.usage()
            while (await store.usage()).is_counting:
                await asyncio.sleep(0.01)
            a.simulated.now_ms += HOUR_MS
    a.simulated.volume = free, 1 << 40
    yield Made(fleet, "a")
    a.simulated.volume = 1 << 46, 1 << 47


async def disk_slow(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack)
    fleet["a"].simulated.hold_syncs()
    writing = asyncio.create_task(fleet["a"].store().space("crew").counter("n").add(1))
    yield Made(fleet, "a")
    fleet["a"].simulated.release_syncs()
    await writing


async def repair_failed(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack, repair_wait_s=0.05)
    await saved(fleet)
    for name in "abc":
        spoil(fleet[name], DAMAGES["deleted"], CHUNK)
    with pytest.raises(StoreCorrupt):
        await load(fleet["b"])
    yield Made(fleet, "b")
    await restarted(fleet, "b")


async def rows_repaired(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await three(stack, repair_wait_s=0.05)
    await saved(fleet)
    spoil(fleet["b"], DAMAGES["flipped"], CHUNK)
    await load(fleet["b"])
    yield Made(fleet, "b")
    await restarted(fleet, "b")


def presents(bad: Callable[[int], Credentials], good: Callable[[int], Credentials]) -> Case:
    """A case of what the credentials of a node say; the argument is its clock, in milliseconds."""

    async def presented(stack: Fleets) -> AsyncIterator[Made]:
        fleet = await one(stack)
        service, now_ms = fleet["a"].node.service, fleet["a"].simulated.now_ms
        service.present(lambda: bad(now_ms))
        yield Made(fleet, "a")
        service.present(lambda: good(now_ms))

    return presented


async def quota_reached(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack)
    space = fleet["a"].store().space("crew")
    await space.set_quota(objects=1)
    await space.counter("one").add(1)
    while not (await space.quota()).is_counted:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await space.counter("two").add(1)
    yield Made(fleet, "a")
    await space.set_quota(objects=10)
    await space.counter("two").add(1)


async def slow_consumer(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack, subscription_bytes_max=2000)
    space = fleet["a"].store().space("crew")
    async with fleet["a"].node.session().subscribe(Watch("crew")):
        for number in range(50):
            await space.counter(f"n{number}").add(1)
        yield Made(fleet, "a")


async def near_bound(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack, subscribers_max=5)
    async with AsyncExitStack() as watches:
        for _ in range(4):
            await watches.enter_async_context(fleet["a"].node.session().subscribe(Watch("crew")))
        yield Made(fleet, "a")


async def space_overloads(stack: Fleets) -> AsyncIterator[Made]:
    fleet = await one(stack)
    sharing = fleet["a"].node._context.sharing
    lane = sharing.lane("crew")
    sharing.entered(lane)
    waiting = [asyncio.get_running_loop().create_future() for _ in range(300)]
    lane.begun.extend(waiting)
    yield Made(fleet, "a")
    lane.begun.clear()
    sharing.left(lane)


CASES: dict[str, Case] = {
    "no-quorum": no_quorum,
    "no-member": no_member,
    "asks-to-join": asks_to_join,
    "catching-up": catching_up,
    "learning": learning,
    "member-away": member_away,
    "member-behind": member_behind,
    "clock-wrong": clock_wrong,
    "clocks-differ": clocks_differ,
    "clock-behind": clock_behind,
    "members-differ": members_differ,
    "directory-lost": directory_lost,
    "versions-mixed": versions_mixed,
    "change-under-way": change_under_way,
    "quarantine": quarantine,
    "sweep-waits": sweep_waits,
    "backup-late": backed_up("late"),
    "backup-failing": backed_up("failing"),
    "backup-unverified": backed_up("unverified"),
    "read-only": read_only,
    "disk-nearly-full": disk_nearly_full,
    "disk-fills": disk_fills,
    "disk-slow": disk_slow,
    "repair-failed": repair_failed,
    "rows-repaired": rows_repaired,
    "quota-reached": quota_reached,
    "slow-consumer": slow_consumer,
    "near-bound": near_bound,
    "space-overloads": space_overloads,
    "certificate": presents(lambda now: Credentials(now + DAY_MS, "it ends"), lambda now: Credentials(now + 90 * DAY_MS)),
    "certificate-expired": presents(
        lambda now: Credentials(now - 1, "it has ended"), lambda now: Credentials(now + 90 * DAY_MS)
    ),
    "tokens-end": presents(lambda _: Credentials(tokens_ending=["ann until tomorrow"]), lambda _: Credentials()),
    "tokens-expired": presents(lambda _: EXPIRED, lambda _: EXPIRED),
    "cluster-key": presents(lambda _: Credentials(cluster_key_trouble="the file is empty"), lambda _: Credentials()),
    "keys-change": presents(lambda _: Credentials(cluster_keys=["old", "new"]), lambda _: Credentials(cluster_keys=["new"])),
}


ELSEWHERE = {
    "change-stands": "tests/node/membership shows that a change tells its trouble; a pure look is in test_table.py",
    "rows-differ": "nodes repair it within milliseconds of virtual time; tests/node/verification/test_scrubbing.py has it",
    "log-unshown": "it takes a peer that lies; tests/node/verification/test_scrubbing.py has it",
    "left-behind": "it lasts until the snapshot is here; tests/node/collection/test_truncating.py has it",
    "retention-waits": "it takes rules and a clock that jumps; tests/node/collection/test_retention.py has it",
    "tiering-fails": "it takes a bucket that fails; tests/node/tiering/test_keeping.py has it",
}
"""Conditions that this file does not make true on nodes: the text that they read is made true elsewhere."""


def test_each_condition_is_made_true_or_said_not_to_be() -> None:
    assert {*CASES, *ELSEWHERE} == {*CONDITIONS}
    assert not CASES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("name", CASES)
async def test_it_is_noticed_in_every_face_and_gone_when_mended(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        steps = CASES[name](stack)
        made = await anext(steps)
        fleet, at = made
        node = fleet[at].node
        began = asyncio.get_running_loop().time()
        await noticed(fleet, lambda: name in names(fleet[at]))
        shown = await faces(fleet[at])
        assert {face for face, found in shown.items() if name in found} == set(shown)
        assert has_alert(name)
        await noticed(fleet, lambda: logged(caplog, name))
        assert asyncio.get_running_loop().time() - began < NOTICED_S
        await asyncio.sleep(LOOK_S)  # Another node may have been the first to tell.
        [line] = logged(caplog, name)[:1]
        assert CONDITIONS[name].means in line
        with suppress(StopAsyncIteration):
            await anext(steps)
        await noticed(fleet, lambda: name not in names(fleet[at]))
        assert name not in set().union(*(await faces(fleet[at])).values())
        lines = logged(caplog, name)
        assert fleet[at].node is not node or any(line.startswith(f"condition {name} is gone") for line in lines)
