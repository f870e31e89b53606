"""The judge of backups: a cluster that ships to a bucket that fails, and what it is blamed for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast, get_args

import pytest

from shoal.backup.bucket import Bucket
from shoal.backup.format import MANIFESTS, SEGMENTS, names_of
from shoal.crdt.dot import Origin, wall_ms_of
from shoal.errors import BackupConflict, BackupUnreachable
from shoal.protocol.requests import BackupView
from shoal.storage import keys
from shoal.testing.machines import run
from simulation.drawing import draw
from simulation.execution import execute
from simulation.judging import backups
from simulation.judging.backups import BACKED_UP, BackupWatch, Judged, judge_backup, lacking_of, ships, vectors_of
from simulation.judging.judge import judge
from simulation.plan import Act, BucketTrouble, CrashAt, Plan, Ship, ShippingPoint, SpoilBucket, from_json, to_json
from simulation.profiles import PROFILES
from simulation.shipping import BOUNDS
from simulation.workload.agents import Agents
from simulation.world.bucket import SimulatedBucket
from simulation.world.cluster import SimulatedCluster
from simulation.world.trace import Trace

ACTS = [Act(at=1.0 + nth / 5, agent=nth % 3, kind="append" if nth % 2 else "add", name="a") for nth in range(20)]
SHIPPED = Plan(seed=3, duration_s=6.0, settings=BOUNDS, faults=[Ship(at=0.7)], acts=ACTS)


def on(story: Callable[[SimulatedCluster, BackupWatch], None], plan: Plan = SHIPPED) -> Judged:
    """A cluster that has shipped what its agents wrote; then the story, and the verdict."""

    async def main() -> Judged:
        trace = Trace(asyncio.get_running_loop().time)
        async with SimulatedCluster(plan, trace=trace) as cluster:
            agents = Agents(cluster, plan, trace=trace)
            await cluster.declare_backup(0.0, lambda: False)
            for act in plan.acts:
                await agents.act(act)
            await cluster.heal()
            assert [each for each in await judge(cluster, agents) if each.invariant != BACKED_UP] == []
            assert agents.backup is not None
            story(cluster, agents.backup)
            return await judge_backup(cluster, plan, agents.backup)

    return run(main())


def _nothing(cluster: SimulatedCluster, watch: BackupWatch) -> None:
    """The bucket stays as it is."""


def _a_pack_is_gone(cluster: SimulatedCluster, watch: BackupWatch) -> None:
    del cluster.bucket.objects[cluster.bucket.names(SEGMENTS)[0]]


def _a_pack_is_damaged(cluster: SimulatedCluster, watch: BackupWatch) -> None:
    name = cluster.bucket.names(SEGMENTS)[0]
    cluster.bucket.objects[name] = cluster.bucket.objects[name][:-1] + b"\x00"


def _a_manifest_is_gone(cluster: SimulatedCluster, watch: BackupWatch) -> None:
    del cluster.bucket.objects[cluster.bucket.names(MANIFESTS)[0]]


def _the_disks_hold_more(cluster: SimulatedCluster, watch: BackupWatch) -> None:
    for host in cluster.hosts.values():
        found = next(key for key, _ in host.disk.copy().scan(keys.OBJECT, keys.OBJECT + b"\xff"))
        host.disk._storage.alter(found, b"other")


def test_a_sound_backup_is_not_blamed() -> None:
    judged = on(_nothing)
    assert judged.broken == []
    assert next(judged.restored[0].scan(keys.LOG, keys.LOG + b"\xff"), None) is not None


@pytest.mark.answers("backups-say-what-is-so")
@pytest.mark.parametrize("spoil", [_a_pack_is_gone, _a_pack_is_damaged, _a_manifest_is_gone, _the_disks_hold_more])
def test_a_spoiled_backup_is_found(spoil: Callable[[SimulatedCluster, BackupWatch], None]) -> None:
    assert on(spoil).broken


def test_claims_of_nodes_are_held_against_manifests() -> None:
    told: list[str] = []

    def story(cluster: SimulatedCluster, watch: BackupWatch) -> None:
        held = vectors_of(cluster.hosts["n1"])
        more = {place: sequence + 1 for place, sequence in held.items()}
        watch._violated = lambda _invariant, text: told.append(text)
        current, behind = (BackupView("u", "c", state, covered_ms=5) for state in ("current", "behind"))
        watch.judge("n1", current, held, held)
        watch.judge("n1", behind, held, more)
        assert told == []
        watch.judge("n1", current, held, more)
        watch.judge("n1", behind, more, more)

    assert on(story).broken == []
    assert ["current" in text for text in told] == [True, False]


def test_a_cut_at_a_wrong_place_is_found() -> None:
    place = 1, Origin(b"o" * 16)
    watch = cast(BackupWatch, type("Watch", (), {"times": {place: {1: 10, 2: 20, 3: 30}}}))
    final = {place: 2}  # The third one was lost with a disk.
    assert backups._cut_wrongly({place: 1}, watch, final, 20) == ""
    assert backups._cut_wrongly({place: 2}, watch, final, 99) == ""
    assert "2 operations" in backups._cut_wrongly({place: 2}, watch, final, 20)
    assert "0 operations" in backups._cut_wrongly({}, watch, final, 20)


@pytest.mark.parametrize("lacks", ["nothing", "a pack", "operations"])
def test_a_first_moment_that_is_not_whole_is_found(lacks: str) -> None:
    told: list[str] = []

    def story(cluster: SimulatedCluster, watch: BackupWatch) -> None:
        watch._violated = lambda _invariant, text: told.append(text)
        shipped = (each for each in watch.times.items() if each[1] and watch.catalogue.vector(each[0][0]))
        place, times = next(shipped)
        watch._first = wall_ms_of(max(times.values())), dict(cluster.bucket.objects)
        if lacks == "a pack":
            del watch._first[1][cluster.bucket.names(SEGMENTS)[0]]
        if lacks == "operations":  # Of those that were written the restore has one too many.
            del watch.times[place][max(times)]

    on(story)
    assert bool(told) is (lacks != "nothing")
    assert all("the first moment that is kept" in text for text in told)


def test_a_pack_that_a_manifest_names_too_early_is_found() -> None:
    told: list[str] = []

    def story(cluster: SimulatedCluster, watch: BackupWatch) -> None:
        watch._violated = lambda _invariant, text: told.append(text)
        number, name = max(names_of(cluster.bucket.names(MANIFESTS))), cluster.bucket.names(SEGMENTS)[0]
        content = cluster.bucket.objects.pop(name)
        watch.catalogue = type(watch.catalogue)()
        for each in range(1, number + 1):
            for kept in cluster.bucket.names(MANIFESTS):
                if each in names_of([kept]):
                    watch._kept(kept, cluster.bucket.objects[kept])
        cluster.bucket.objects[name] = content
        assert lacking_of(watch.catalogue, cluster.bucket.objects) == []

    on(story)
    assert any("is not in the bucket" in text for text in told)


@pytest.mark.parametrize("kind", get_args(BucketTrouble))
def test_a_spoiled_bucket_works_again(kind: BucketTrouble) -> None:
    async def main() -> None:
        bucket = SimulatedBucket(now_ms=lambda: 7)
        bucket.slow_s = 0.1
        reading = Bucket(bucket, cluster=b"ours", now=lambda: 0.0)
        with bucket.spoiled(SpoilBucket(at=0.0, kind=kind)):
            for name in ("one", "two"):
                try:
                    await bucket.put_new(name, b"content")
                    await reading.refresh()
                except (BackupUnreachable, BackupConflict):
                    continue
                assert kind == "slow"
        await bucket.put_new("three", b"content")
        assert (await reading.refresh()).number == 0

    run(main())


def test_plans_of_backups_draw_every_trouble_and_crash() -> None:
    faults = [fault for seed in range(60) for fault in draw(seed, profile="shipped").faults]
    assert {fault.kind for fault in faults if isinstance(fault, SpoilBucket)} == set(get_args(BucketTrouble))
    assert {fault.point for fault in faults if isinstance(fault, CrashAt)} >= set(get_args(ShippingPoint))
    assert {fault.keep_s > 0 for fault in faults if isinstance(fault, Ship)} == {True, False}
    plan = draw(0, profile="shipped")
    assert from_json(to_json(plan)) == plan


PROFILES_WITH_BACKUPS = {"shipped", "cold-shipped"}
"""The profiles of which plans may have a backup."""


def test_other_profiles_have_no_backup() -> None:
    assert not any(
        ships(draw(seed, profile=profile)) for profile in PROFILES.keys() - PROFILES_WITH_BACKUPS for seed in range(5)
    )


def test_a_crash_while_it_ships_stops_no_backup() -> None:
    points: list[tuple[float, ShippingPoint]] = [(1.0, "putting"), (3.0, "put")]
    crashes = [CrashAt(at=at, node=node, point=point, down_s=0.5) for at, point in points for node in ("n1", "n2", "n3")]
    outcome = execute(Plan(seed=5, duration_s=8.0, settings=BOUNDS, faults=[Ship(at=0.7), *crashes], acts=ACTS))
    assert outcome.violations == []
    assert outcome.fired["crash-at putting"] > 0
    assert outcome.fired["crash-at put"] > 0
