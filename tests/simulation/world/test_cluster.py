"""A simulated cluster: real clients of real nodes, and what each fault does to them."""

from __future__ import annotations

import asyncio
import gc

import pytest

from shoal.errors import OutcomeUnknown, ShoalError
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    Add,
    Added,
    Assign,
    CounterValue,
    Patch,
    ReadRegister,
    Save,
    Siblings,
    Watch,
)
from simulation.plan import (
    ClockDrift,
    ClockJump,
    CorruptBlock,
    Crash,
    CrashAt,
    CrashPoint,
    Cut,
    Fault,
    FullDisk,
    Pause,
    Plan,
    Restore,
    SlowDisk,
    Stop,
    Weather,
    Wipe,
)
from simulation.world.network import CLIENT
from tests.simulation.scene import ADD, READ, Scene, on

# ── a day without faults ──────────────────────────────────────────────────────


def test_a_write_at_one_node_is_read_at_another() -> None:
    async def story(scene: Scene) -> None:
        bookmark = Bookmark()
        await scene.client("n1", bookmark=bookmark).call(ADD)
        reply = await scene.client("n3", bookmark=bookmark).call(READ)
        assert reply == CounterValue(1)

    on(story)


def test_a_quorum_answers_and_then_all_agree() -> None:
    async def story(scene: Scene) -> None:
        await scene.client().call(ADD, durability="all")
        await scene.cluster.converged(1.0)
        assert [await scene.count(node) for node in scene.cluster.hosts] == [1, 1, 1]

    on(story)


def test_a_subscription_is_pushed_what_another_client_writes_elsewhere() -> None:
    async def story(scene: Scene) -> None:
        async with scene.client("n1").subscribe(Watch(space="s")) as pushes:
            await scene.client("n2").call(Save(space="s", thread="t", channels={}, metadata=b"\xc0"))
            await anext(pushes)

    on(story)


def test_a_refusal_reaches_the_client_as_its_error() -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(ShoalError) as refused:
            await scene.client().call(Add(space="", counter="c", amount=1))
        assert refused.value.code == "invalid-name"

    on(story)


async def busy(scene: Scene) -> None:
    """Some of everything, in trouble."""
    client = scene.client()
    faults = [
        scene.begin(Crash(at=0, node="n1", keep=1)),
        scene.begin(Weather(at=0, for_s=3.0, loss=0.3, duplicate=0.3, reorder=0.3, delay_s=0.1)),
        scene.begin(Cut(at=0, sources=["n2"], targets=["n3"], for_s=2.0)),
        scene.begin(ClockJump(at=0, node="n3", by_ms=60_000)),
    ]
    for number in range(10):
        for request in (
            ADD,
            Assign(space="s", register="r", value=bytes([number])),
            Patch(space="s", document="d", patch=b'[{"op":"add","path":"/a","value":{}}]'),
        ):
            await asyncio.gather(client.call(request), return_exceptions=True)
        await asyncio.sleep(0.2)
    await scene.cluster.heal()
    await asyncio.gather(*faults)
    await scene.cluster.converged()


def test_a_plan_gives_one_run_and_another_seed_another() -> None:
    first, again, other = (on(busy, Plan(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


# ── faults of nodes ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        Crash(at=0, node="n1"),
        Crash(at=0, node="n1", keep=None),
        Stop(at=0, node="n1"),
        Pause(at=0, node="n1", for_s=4.0),
        Cut(at=0, sources=["n1"], targets=["n2", "n3"], for_s=4.0),
        Cut(at=0, sources=["n1"], targets=["n2"], for_s=4.0, both=False),
        Cut(at=0, sources=[CLIENT], targets=["n1"], for_s=4.0),
        Weather(at=0, for_s=4.0, loss=0.5, duplicate=0.5, reorder=0.5, delay_s=0.2),
        ClockJump(at=0, node="n1", by_ms=-3_600_000),
        ClockDrift(at=0, node="n1", rate=0.1),
        SlowDisk(at=0, node="n1", sync_s=0.5, for_s=4.0),
        FullDisk(at=0, node="n1", operation="write"),
        FullDisk(at=0, node="n1", operation="sync"),
        CorruptBlock(at=0, node="n1"),
        Wipe(at=0, node="n1"),
    ],
    ids=lambda fault: str(fault.__struct_config__.tag),
)
def test_a_cluster_goes_through_a_fault_and_agrees_after_it(fault: Fault) -> None:
    async def story(scene: Scene) -> None:
        client = scene.client()
        await client.call(ADD, durability="all")
        begun = scene.begin(fault)
        for _ in range(20):
            await asyncio.gather(client.call(ADD), return_exceptions=True)
            await asyncio.sleep(0.1)
        await begun
        await scene.cluster.converged(5.0)
        assert scene.cluster.fired[str(fault.__struct_config__.tag)] == 1
        assert [await scene.count(node) for node in scene.cluster.hosts] == [await scene.count("n2")] * 3

    on(story)


def test_a_client_leaves_a_crashed_node_for_the_next_one() -> None:
    async def story(scene: Scene) -> None:
        client = scene.client("n1", "n2")
        await client.call(ADD, durability="all")
        begun = scene.begin(Crash(at=0, node="n1", down_s=60.0))
        await asyncio.sleep(0.1)
        assert await client.call(ADD) == Added(2, added=True)
        assert not scene.cluster.hosts["n1"].up
        await scene.cluster.heal()
        await begun

    on(story)


def test_calls_without_a_node_end_in_time() -> None:
    async def story(scene: Scene) -> None:
        begun = scene.begin(Cut(at=0, sources=[CLIENT], targets=list(scene.cluster.hosts), for_s=60.0))
        await asyncio.sleep(0)
        with pytest.raises(ShoalError):
            await scene.client().call(ADD)
        assert scene.loop.time() < 2 * scene.cluster.config.request_timeout_s
        await scene.cluster.heal()
        await begun

    on(story)


def test_a_cut_of_one_direction_still_lets_the_other_through_for_a_while() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.converged()
        await asyncio.sleep(1.0)
        begun = scene.begin(Cut(at=0, sources=["n1"], targets=["n2", "n3"], for_s=60.0, both=False))
        await asyncio.sleep(0)
        await scene.client("n2").call(ADD)
        await scene.client("n1").call(ADD)
        await asyncio.sleep(0.2)
        assert await scene.count("n1") == 2
        assert await scene.count("n2") == 1
        await scene.cluster.heal()
        await begun

    on(story)


def test_a_wiped_node_is_another_one_and_fetches_everything() -> None:
    async def story(scene: Scene) -> None:
        await scene.client().call(ADD, durability="all")
        before = scene.cluster.hosts["n1"].peer.identity().node
        await scene.cluster.carry_out(Wipe(at=0, node="n1"))
        await scene.cluster.converged()
        assert scene.cluster.hosts["n1"].peer.identity().node != before
        assert await scene.count("n1") == 1

    on(story)


def test_a_restored_node_goes_back_to_its_copy() -> None:
    restore = Restore(at=3.0, node="n1", copied_at=1.0, down_s=0.5)

    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD, durability="all")
        await asyncio.sleep(2.0 - scene.loop.time())
        await scene.client("n1").call(ADD, durability="all")
        cut = scene.begin(Cut(at=0, sources=["n1"], targets=["n2", "n3"], for_s=60.0))
        await scene.cluster.carry_out(restore)
        assert await scene.count("n1") == 1
        await scene.cluster.heal()
        await cut
        await scene.cluster.converged()
        assert await scene.count("n1") == 2

    on(story, Plan(seed=1, faults=[restore]))


def test_a_copy_that_was_never_made_is_not_put_back() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.carry_out(Restore(at=0, node="n1", copied_at=9.0))
        assert not scene.cluster.fired

    on(story)


def test_a_full_disk_is_read_until_the_node_is_restarted() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD)
        begun = scene.begin(FullDisk(at=0, node="n1", down_s=2.0))
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(ShoalError):
                await scene.client("n1").call(ADD)
        assert await scene.count("n1") == 1
        await begun
        await scene.client("n1").call(ADD)

    on(story)


def test_a_corrupt_row_is_an_error_and_no_other_answer() -> None:
    async def story(scene: Scene) -> None:
        client = scene.client("n1")
        for number in range(12):
            await client.call(Assign(space="s", register=str(number), value=b"\x01"), durability="all")
        begun = scene.begin(CorruptBlock(at=0, node="n1", down_s=2.0))
        await asyncio.sleep(0)
        outcomes = await asyncio.gather(
            *(client.call(ReadRegister(space="s", register=str(number))) for number in range(12)), return_exceptions=True
        )
        corrupt = [outcome for outcome in outcomes if isinstance(outcome, ShoalError)]
        assert {error.code for error in corrupt} == {"store-corrupt"}
        whole = [outcome for outcome in outcomes if isinstance(outcome, Siblings)]
        assert len(corrupt) + len(whole) == 12
        assert all(len(answer.siblings) == 1 for answer in whole)
        await begun
        await scene.cluster.converged()

    on(story)


# ── crash points ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("point", "keep", "left"), [("appended", 0, 0), ("appended", 1, 1), ("synced", 0, 1), ("answered", 0, 1)]
)
def test_a_crash_point_strikes_before_anybody_is_told(point: CrashPoint, keep: int, left: int) -> None:
    async def story(scene: Scene) -> None:
        await asyncio.sleep(1.0)
        armed = scene.begin(CrashAt(at=0, node="n1", point=point, keep=keep, down_s=20.0))
        cut = scene.begin(Cut(at=0, sources=["n1"], targets=["n2", "n3"], for_s=60.0))
        await asyncio.sleep(0)
        with pytest.raises(OutcomeUnknown):
            await scene.client("n1").call(ADD)
        await armed
        assert scene.cluster.fired[f"crash-at {point}"] == scene.cluster.fired["crash-at"] == 1
        assert await scene.count("n1") == left
        await scene.cluster.heal()
        await cut

    on(story)


def test_nothing_that_was_not_synced_left_a_node_that_crashed_between() -> None:
    async def story(scene: Scene) -> None:
        await asyncio.sleep(1.0)
        armed = scene.begin(CrashAt(at=0, node="n1", point="appended", down_s=1.0))
        await asyncio.sleep(0)
        await asyncio.gather(scene.client("n1").call(ADD, key="k" * 20), return_exceptions=True)
        await armed
        await scene.cluster.converged()
        # The client sent it again, with its key, to the node that came back.
        assert [await scene.count(node) for node in scene.cluster.hosts] == [1, 1, 1]

    on(story)


def test_frames_sent_before_a_crash_arrive() -> None:
    async def story(scene: Scene) -> None:
        await asyncio.sleep(1.0)
        armed = scene.begin(CrashAt(at=0, node="n1", point="answered", down_s=60.0))
        asking = asyncio.create_task(scene.client("n1").call(ADD))
        await asyncio.sleep(1.0)
        assert not scene.cluster.hosts["n1"].up
        assert await scene.count("n2") == 1
        asking.cancel()
        await scene.cluster.heal()
        await armed

    on(story)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_within_a_snapshot_costs_nothing_that_was_promised(nth: int) -> None:
    async def story(scene: Scene) -> None:
        client = scene.client("n1")
        armed = scene.begin(CrashAt(at=0, node="n1", point="snapshot", nth=nth, keep=None))
        for number in range(12):
            patch = b'[{"op":"add","path":"/k%d","value":{}}]' % number
            await client.call(Patch(space="s", document="d", patch=patch))
        await armed
        assert scene.cluster.fired["crash-at snapshot"] == 1
        await scene.cluster.converged()

    on(story, Plan(seed=1, settings={"document_snapshot_updates": 4}))


# ── what is skipped, healed and reported ──────────────────────────────────────


def test_a_fault_of_a_node_that_is_down_is_skipped() -> None:
    async def story(scene: Scene) -> None:
        begun = scene.begin(Crash(at=0, node="n1", down_s=5.0))
        await asyncio.sleep(1.0)
        for fault in (Crash(at=0, node="n1"), Stop(at=0, node="n1"), Wipe(at=0, node="n1"), Pause(at=0, node="nobody")):
            await scene.cluster.carry_out(fault)
        assert scene.cluster.fired == {"crash": 1}
        await begun

    on(story)


def test_a_node_that_is_down_at_the_end_stays_down() -> None:
    async def story(scene: Scene) -> None:
        scene.begin(Crash(at=0, node="n1", down_s=900.0))
        await asyncio.sleep(1.0)

    on(story)


def test_all_faults_end_when_the_cluster_is_healed() -> None:
    async def story(scene: Scene) -> None:
        faults: list[Fault] = [
            Crash(at=0, node="n1", down_s=900.0),
            CorruptBlock(at=0, node="n2", down_s=900.0),
            FullDisk(at=0, node="n3", down_s=900.0),
            CrashAt(at=0, node="n3", point="answered", nth=900),
            Weather(at=0, for_s=900.0, loss=1.0),
            Cut(at=0, sources=["n1"], targets=["n2", "n3"], for_s=900.0),
            SlowDisk(at=0, node="n2", sync_s=9.0, for_s=900.0),
        ]
        begun = [scene.begin(fault) for fault in faults]
        await asyncio.sleep(10.0)
        await scene.cluster.heal()
        assert all(host.up for host in scene.cluster.hosts.values())
        await asyncio.gather(*begun)
        await asyncio.sleep(2.0)
        await scene.client().call(ADD, durability="all")
        await scene.cluster.carry_out(Crash(at=0, node="n1"))
        assert scene.cluster.fired["crash"] == 1
        assert scene.loop.time() < 60.0

    on(story)


async def bug(seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        raise KeyError("nobody looks")


def test_an_untaken_error_of_a_node_is_a_problem() -> None:
    async def story(scene: Scene) -> None:
        scene.cluster.hosts["n1"].life.begin(bug(0.5))
        await asyncio.sleep(1.0)
        gc.collect()
        assert ["nobody looks" in problem for problem in scene.cluster.problems] == [True]
        scene.cluster.problems.clear()

    on(story)


def test_a_kill_leaves_nothing_behind() -> None:
    async def story(scene: Scene) -> None:
        life = scene.cluster.hosts["n1"].life
        life.begin(bug(9.0))
        life.run(asyncio.get_running_loop().call_later, 2.0, life.check)
        await asyncio.sleep(1.0)
        await scene.cluster.carry_out(Crash(at=0, node="n1", down_s=5.0))
        gc.collect()

    on(story)


def test_nodes_that_never_agree_are_told_apart() -> None:
    async def story(scene: Scene) -> None:
        await scene.cluster.founded()
        begun = scene.begin(Cut(at=0, sources=["n1"], targets=["n2", "n3"], for_s=900.0))
        await asyncio.sleep(0)
        await scene.client("n1").call(ADD)
        with pytest.raises(TimeoutError):
            await scene.cluster.converged(5.0)
        await scene.cluster.heal()
        await begun
        await scene.cluster.converged(5.0)

    on(story)
