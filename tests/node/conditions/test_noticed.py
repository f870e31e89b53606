"""Each condition is made true on real nodes, is seen in every face within 15 s, and is gone 15 s after what mends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Accept, Prepare
from shoal.cluster.messages import SnapshotPiece
from shoal.errors import Overloaded, RedactionFailed, ShoalError, StoreCorrupt
from shoal.kinds.redaction.serving.hooks import Hook, Writing
from shoal.kinds.thread.state.dag import CHUNK
from shoal.node.conditions.watcher import CONDITIONS
from shoal.node.environment import LOOK_S
from shoal.node.service import Credentials
from shoal.protocol.requests import BackupView, DeclareBackup, Watch
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.bucket import SimulatedBucket
from simulation.world.fleet import Fleet, Spoil
from tests.node.collection.test_retention import held_up
from tests.node.collection.test_truncating import left_behind
from tests.node.conditions.conftest import NOTICED_S, Page, Times, faces, has_alert, logged, names, noticed
from tests.node.membership.test_changes import asked, changes, cluster
from tests.node.peers.test_bad_peers import break_push
from tests.node.peers.test_members import replaced
from tests.node.peers.test_read_repair import DAMAGES, load, saved, spoil
from tests.node.verification.test_scrubbing import SETTINGS, altered, lies, objects, truncated

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


@contextmanager
def spoilt(fleet: Fleet, spoil: Spoil) -> Iterator[None]:
    """Alter messages, beside what alters them already: two conditions may stand at once, and end in any order."""
    others = fleet.spoil
    is_on = True

    def both(source: str, target: str, message: bytes) -> bytes | None:
        left = others(source, target, message)
        return spoil(source, target, left) if is_on and left is not None else left

    fleet.spoil = both
    yield
    is_on = False


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


async def change_stands(stack: Fleets) -> AsyncIterator[Made]:
    """The new node is there, and nobody can ask for votes."""
    fleet = await three(stack, quorum_timeout_s=2.0)
    await asked(fleet, changes(fleet, "a").change("add", joins="d:1"))

    def unasked(_source: str, _target: str, message: bytes) -> bytes | None:
        return None if isinstance(messages.decode(messages.unstamped(message)[1]), Prepare | Accept) else message

    with spoilt(fleet, unasked):
        fleet.start("d", MemoryStorage(identity=b"d"), linked=False, join="a:1")
        yield Made(fleet, "a")


async def quarantine(stack: Fleets) -> AsyncIterator[Made]:
    """Whoever brings it an operation, it comes altered."""
    fleet = await three(stack, quarantine_s=0.02)
    with spoilt(fleet, lambda _source, target, message: break_push(message) if target == "b" else message):
        await fleet["a"].store().space("crew").counter("n").add(1)
        await fleet.until(lambda: fleet["b"].replicator.quorum.view().quarantined)
        yield Made(fleet, "b")


async def rows_differ(stack: Fleets) -> AsyncIterator[Made]:
    """Of three copies of a row two were altered differently, and the log that made it is gone."""
    fleet = await three(stack, **SETTINGS)
    await fleet["a"].store().space("crew").register("goal").set("aim")
    await fleet.converged()
    await truncated(fleet)
    [(key, right)] = [row for row in objects(fleet, "a").items() if keys.split_object(row[0])[4]][-1:]
    fleet["b"].storage.write({key: altered(right)})
    fleet["c"].storage.write({key: altered(right)[::-1]})
    yield Made(fleet, "a")
    fleet["b"].storage.write({key: right})  # Its disk is mended, so that two of three agree.


async def log_unshown(stack: Fleets) -> AsyncIterator[Made]:
    """A member says that its log makes the rows that it altered."""
    fleet = await three(stack, **SETTINGS | {"repair_wait_s": 0.2})
    await fleet["a"].store().space("crew").register("goal").set("aim")
    await fleet.converged()
    await truncated(fleet)
    [(key, right)] = [row for row in objects(fleet, "c").items() if keys.split_object(row[0])[4]][-1:]
    with pytest.MonkeyPatch.context() as patch:
        lies(patch, fleet, "c", {key: altered(right)})
        yield Made(fleet, "a")
    fleet["c"].storage.write({key: right})
    await restarted(fleet, "a")


async def sent_no_snapshot(stack: Fleets) -> AsyncIterator[Made]:
    """It lacks what has left the logs of the others, and is sent no snapshot."""
    fleet = await three(stack)
    await left_behind(fleet)

    def unsent(_source: str, _target: str, message: bytes) -> bytes | None:
        return None if isinstance(messages.decode(messages.unstamped(message)[1]), SnapshotPiece) else message

    fleet.spoil = unsent
    fleet.link_all("c")
    yield Made(fleet, "c")
    fleet.spoil = lambda _source, _target, message: message


async def retention_waits(stack: Fleets) -> AsyncIterator[Made]:
    """A rule lets checkpoints go while a member is away."""
    fleet = await three(stack)
    member, away, left = await held_up(fleet)
    yield Made(fleet, member.name)
    fleet.start(away, left)


async def tiering_fails(stack: Fleets) -> AsyncIterator[Made]:
    """The bucket refuses what this node fetches."""
    fleet = await one(stack)
    a = fleet["a"]
    bucket = a.simulated.bucket = SimulatedBucket(now_ms=lambda: a.simulated.now_ms)
    space = a.store().space("crew")
    id = (await space.thread("agent").save({"text": Random(1).randbytes(60_000).hex()})).id
    await space.tiering.set("s3://simulated/cold", idle=3600)
    a.simulated.now_ms += 2 * HOUR_MS
    await space.tiering.run()
    a.node._database._kinds.shapes._entries.clear()
    bucket.refused = "403 no permission"
    with pytest.raises(ShoalError):
        await space.thread("agent").load(id)
    yield Made(fleet, "a")
    bucket.refused = ""
    await space.thread("agent").load(id)


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


async def part_ended(stack: Fleets) -> AsyncIterator[Made]:
    """As if its program had a bug."""
    fleet = await one(stack)
    keeper = fleet["a"].node.service.keeper

    async def broken() -> None:
        raise KeyError("a rule that was unset")

    keeper.look = broken  # type: ignore[method-assign]
    assert keeper._task is not None
    await asyncio.wait({keeper._task})
    yield Made(fleet, "a")
    await restarted(fleet, "a")


async def redaction_fails(stack: Fleets) -> AsyncIterator[Made]:
    """A hook is down, until it answers again."""
    fleet = await one(stack)
    is_down = True

    async def hook(_: Writing) -> None:
        if is_down:
            raise ConnectionError

    fleet["a"].node.service.redactor._hooks = {"dlp": Hook("dlp", function=hook)}
    space = fleet["a"].store().space("crew")
    await space.redaction.set(hooks=["dlp"])
    with pytest.raises(RedactionFailed):
        await space.register("r").set("text")
    yield Made(fleet, "a")
    is_down = False
    await space.register("r").set("text")


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
    "change-stands": change_stands,
    "quarantine": quarantine,
    "rows-differ": rows_differ,
    "log-unshown": log_unshown,
    "left-behind": sent_no_snapshot,
    "retention-waits": retention_waits,
    "tiering-fails": tiering_fails,
    "sweep-waits": sweep_waits,
    "backup-late": backed_up("late"),
    "backup-failing": backed_up("failing"),
    "backup-unverified": backed_up("unverified"),
    "read-only": read_only,
    "part-ended": part_ended,
    "redaction-fails": redaction_fails,
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


def test_each_condition_is_made_true() -> None:
    assert {*CASES} == {*CONDITIONS}


@pytest.mark.parametrize("name", CASES)
async def test_it_is_noticed_in_every_face_and_gone_when_mended(
    name: str, caplog: pytest.LogCaptureFixture, page: Page | None, times: Times
) -> None:
    async with AsyncExitStack() as stack:
        steps = CASES[name](stack)
        made = await anext(steps)
        fleet, at = made
        node = fleet[at].node
        clock = asyncio.get_running_loop().time
        began = clock()
        await noticed(fleet, lambda: name in names(fleet[at]))
        seen_s = clock() - began
        shown = await faces(fleet[at], page)
        assert {face for face, found in shown.items() if name in found} == set(shown)
        assert has_alert(name)
        await noticed(fleet, lambda: logged(caplog, name))
        told_s = clock() - began
        assert told_s < NOTICED_S
        await asyncio.sleep(LOOK_S)  # Another node may have been the first to tell.
        [line] = logged(caplog, name)[:1]
        assert CONDITIONS[name].means in line
        with suppress(StopAsyncIteration):
            await anext(steps)
        began = clock()
        await noticed(fleet, lambda: name not in names(fleet[at]))
        times[name] = seen_s, told_s, clock() - began
        assert name not in set().union(*(await faces(fleet[at], page)).values())
        lines = logged(caplog, name)
        assert fleet[at].node is not node or any(line.startswith(f"condition {name} is gone") for line in lines)
