"""Claims under keys that clients made leave once they expired and are stable; the sums stay, and nothing counts twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import KeyExpired, KeyReused
from shoal.node.collection.expiring import expires
from shoal.node.handler import Target
from shoal.node.replicas import SingleNode
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.protocol.requests import Add, AddEntry, Grant, ReadBudget, Spend
from shoal.protocol.session import RANDOM_BYTES, make_key
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from shoal.testing.machines import run
from simulation.plan import Crash, Cut, Plan
from simulation.world.environment import START_MS, SimulatedEnvironment
from tests.node.conftest import Bench, Opener
from tests.simulation.scene import ADD, Scene, on

WINDOW_S = 20
LONG_S = 60.0  # Until each node has looked twice at what has expired.
PLAN = Plan(seed=1, duration_s=1.0, settings={"key_window_s": WINDOW_S, "scrub_interval_s": 5.0})


def claims(scene: Scene, node: str) -> list[bytes]:
    """The rows on a node's disk that may expire."""
    return expiring_rows(scene.cluster.hosts[node].disk.copy())


def expiring_rows(storage: MemoryStorage) -> list[bytes]:
    split = (keys.split_object(key) for key, _ in storage.scan(keys.OBJECT, successor(keys.OBJECT)))
    return [row for _, kind, _, _, row in split if expires(kind, row)]


def key_now(scene: Scene, number: int = 0) -> str:
    return make_key(START_MS + int(scene.loop.time() * 1000), number.to_bytes(RANDOM_BYTES, "big"))


@pytest.mark.answers("each-add-that-a-client-sends-leaves-a-row")
def test_claims_of_clients_keys_leave_every_node_and_the_sums_stay() -> None:
    async def story(scene: Scene) -> None:
        client = scene.client("n1")
        for _ in range(5):
            await client.call(ADD)
        await client.call(Grant("s", "b", 100))
        await client.call(Spend("s", "b", 30))
        await client.call(Add("s", "c", 2, "order-17"))
        await scene.cluster.converged()
        assert [len(claims(scene, node)) for node in scene.cluster.hosts] == [7, 7, 7]
        await asyncio.sleep(LONG_S)
        assert [claims(scene, node) for node in scene.cluster.hosts] == [[], [], []]
        for node in scene.cluster.hosts:
            assert await scene.count(node) == 7
            assert (await scene.client(node).call(ReadBudget("s", "b"))).remaining == 70
            assert verify(scene.cluster.hosts[node].disk.copy(), config=Config()).problems == []

    on(story, PLAN)


@pytest.mark.answers("request-that-two-nodes-took-counts-twice-once")
def test_a_key_that_a_user_chose_counts_once_for_ever() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(Add("s", "c", 2, "order-17"))
        await scene.client("n1").call(ADD, key="my-own-key")
        await scene.cluster.converged()
        await asyncio.sleep(LONG_S)
        assert not (await scene.client("n2").call(Add("s", "c", 2, "order-17"))).added
        assert (await scene.client("n2").call(ADD, key="my-own-key")).value == 3
        with pytest.raises(KeyReused):
            await scene.client("n2").call(Add("s", "c", 5), key="my-own-key")
        assert await scene.count("n2") == 3

    on(story, PLAN)


def test_nothing_leaves_before_the_window_is_over() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD)
        await scene.cluster.converged()
        await asyncio.sleep(WINDOW_S)
        assert [len(claims(scene, node)) for node in scene.cluster.hosts] == [1, 1, 1]

    on(story, PLAN)


def test_claims_leave_a_store_that_has_no_peers() -> None:
    """Those of this opening too: it may last for years."""

    async def story() -> None:
        bench = Bench(MemoryStorage(), SimulatedEnvironment(1), Config(key_window_s=WINDOW_S))
        key = make_key(bench.simulated.now_ms, bytes(RANDOM_BYTES))
        await bench.node.session().call(ADD, key=key)
        assert len(expiring_rows(bench.storage)) == 1
        for _ in range(int(LONG_S)):
            bench.simulated.now_ms += 1000
            await asyncio.sleep(1.0)
        assert expiring_rows(bench.storage) == []
        await bench.node.stop()

    run(story())


def test_nobody_looks_once_nothing_can_expire() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD)
        await scene.cluster.converged()
        assert [looks(scene, node) for node in scene.cluster.hosts] == [True, True, True]
        await asyncio.sleep(LONG_S)
        assert [looks(scene, node) for node in scene.cluster.hosts] == [False, False, False]

    on(story, PLAN)


def looks(scene: Scene, node: str) -> bool:
    """Whether a node looks for what has expired, now and then."""
    running = scene.cluster.hosts[node].node
    assert running is not None
    return running._database.claims._task is not None


async def test_a_learner_folds_nothing(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have forgotten a removal of what it would fold."""
    node, target = open_bench().node, Target(Kind.MAP, "s", "m")
    database = node._database
    await node.session().call(AddEntry("s", "m", "k", 1))
    origins = set(database.vector(target))
    with monkeypatch.context() as patch:
        patch.setattr(SingleNode, "learning", ["what the others hold"])
        assert await database.claims.fold_all(target.partition, origins) == origins
    assert await database.claims.fold_all(target.partition, origins) == set()


@pytest.mark.answers("request-that-two-nodes-took-counts-twice-once")
def test_an_add_that_two_nodes_took_across_a_long_cut_counts_once() -> None:
    """Nothing is swept while a node is away, though its window is long over: it may bring the same request."""

    async def story(scene: Scene) -> None:
        key = key_now(scene)
        await scene.cluster.founded()
        cut = scene.begin(Cut(at=0.0, sources=["n3"], targets=["n1", "n2"], for_s=LONG_S * 2))
        await asyncio.sleep(0.1)
        for node in ("n1", "n3"):
            await scene.client(node).call(ADD, key=key)
        await asyncio.sleep(LONG_S)
        assert [len(claims(scene, node)) for node in scene.cluster.hosts] == [1, 1, 1]
        for node in ("n1", "n2"):
            with pytest.raises(KeyExpired):
                await scene.client(node).call(ADD, key=key_before(scene))
        await cut
        await scene.cluster.converged()
        await asyncio.sleep(LONG_S)
        assert [len(claims(scene, node)) for node in scene.cluster.hosts] == [0, 0, 0]
        assert [await scene.count(node) for node in scene.cluster.hosts] == [1, 1, 1]

    on(story, PLAN)


def key_before(scene: Scene) -> str:
    return make_key(START_MS + int((scene.loop.time() - 2 * WINDOW_S) * 1000), b"\xff" * RANDOM_BYTES)


@pytest.mark.answers("request-that-two-nodes-took-counts-twice-once")
def test_a_request_that_comes_again_after_the_sweep_adds_nothing() -> None:
    async def story(scene: Scene) -> None:
        key = key_now(scene)
        await scene.client("n1").call(ADD, key=key)
        await scene.cluster.converged()
        await asyncio.sleep(LONG_S)
        for node in scene.cluster.hosts:
            with suppress(KeyExpired):  # Its answer is still known, or it is too old: nothing else.
                await scene.client(node).call(ADD, key=key)
        assert [await scene.count(node) for node in scene.cluster.hosts] == [1, 1, 1]

    on(story, PLAN)


@pytest.mark.answers("each-add-that-a-client-sends-leaves-a-row")
def test_rows_of_an_earlier_opening_are_swept_too() -> None:
    async def story(scene: Scene) -> None:
        await scene.client("n1").call(ADD)
        await scene.cluster.converged()
        for node in list(scene.cluster.hosts):
            await scene.begin(Crash(at=0.0, node=node, down_s=WINDOW_S * 2.0))
        await scene.cluster.converged()
        assert await scene.count("n1") == 1
        await asyncio.sleep(LONG_S)
        assert [claims(scene, node) for node in scene.cluster.hosts] == [[], [], []]

    on(story, PLAN)


def adds(scene: Scene, node: str) -> list[bytes]:
    """The rows of adds to keys of maps on a node's disk."""
    rows = scene.cluster.hosts[node].disk.copy().scan(keys.OBJECT, successor(keys.OBJECT))
    split = (keys.split_object(key) for key, _ in rows)
    return [row for _, kind, _, _, row in split if kind is Kind.MAP and row.split(b"\x00", 1)[-1][:1] in (b"u", b"k")]


async def entry(scene: Scene, node: str, key: str) -> int | None:
    return (await scene.client(node).call(requests.ReadMap("s", "m", [key]))).entries[0].count


@pytest.mark.answers("each-add-that-a-client-sends-leaves-a-row")
def test_adds_to_a_key_of_a_map_become_few_rows_on_every_node_and_the_sum_stays() -> None:
    async def story(scene: Scene) -> None:
        for node in ("n1", "n2"):
            for _ in range(40):
                await scene.client(node).call(requests.AddEntry("s", "m", "k", 2))
        await scene.cluster.converged()
        assert [len(adds(scene, node)) for node in scene.cluster.hosts] == [80, 80, 80]
        await asyncio.sleep(LONG_S)
        assert [len(adds(scene, node)) for node in scene.cluster.hosts] == [2, 2, 2]
        for node in scene.cluster.hosts:
            assert await entry(scene, node, "k") == 160
            assert verify(scene.cluster.hosts[node].disk.copy(), config=Config()).problems == []

    on(story, PLAN)


@pytest.mark.answers("request-that-two-nodes-took-counts-twice-once")
def test_an_add_to_a_map_that_two_nodes_took_across_a_long_cut_counts_once_though_others_are_folded() -> None:
    async def story(scene: Scene) -> None:
        made = [key_now(scene, number) for number in range(20)]
        await scene.cluster.founded()
        cut = scene.begin(Cut(at=0.0, sources=["n3"], targets=["n1", "n2"], for_s=LONG_S * 2))
        await asyncio.sleep(0.1)
        for key in made:
            await scene.client("n1").call(requests.AddEntry("s", "m", "k", 2), key=key)
        await scene.client("n3").call(requests.AddEntry("s", "m", "k", 2), key=made[0])
        await cut
        await scene.cluster.converged()
        await asyncio.sleep(LONG_S)
        assert [len(adds(scene, node)) for node in scene.cluster.hosts] == [2, 2, 2]
        assert [await entry(scene, node, "k") for node in scene.cluster.hosts] == [40, 40, 40]

    on(story, PLAN)


def test_adds_to_a_map_under_keys_that_users_chose_are_folded_too() -> None:
    async def story(scene: Scene) -> None:
        for number in range(40):
            await scene.client("n1").call(requests.AddEntry("s", "m", "k", 2), key=f"my-own-{number}")
        await asyncio.sleep(LONG_S)
        assert [len(adds(scene, node)) for node in scene.cluster.hosts] == [1, 1, 1]
        assert await entry(scene, "n1", "k") == 80

    on(story, PLAN)


@pytest.mark.answers("each-add-that-a-client-sends-leaves-a-row")
async def test_a_program_that_opens_adds_and_ends_again_and_again_leaves_few_rows_in_a_map(open_bench: Opener) -> None:
    storage = MemoryStorage()
    for number in range(100):
        bench = open_bench(storage, seed=number + 1)
        await bench.space.map("m").add("k", 1)
        await bench.node.stop()
        storage = bench.storage.left_by_crash()
    bench = open_bench(storage)
    assert await bench.space.map("m").get("k") == 100
    rows = [row for row, _ in storage.scan(keys.OBJECT, successor(keys.OBJECT))]
    assert len(rows) < 40


@pytest.mark.answers("batch-that-two-nodes-took-counts-twice")
def test_a_batch_that_went_to_two_nodes_counts_once_though_its_first_write_changed_one_of_them_only() -> None:
    async def story(scene: Scene) -> None:
        key = key_now(scene)
        removal = requests.AlterSet("s", "{t}/x", [], [b"\xa1e"])
        batch = requests.Batch([removal, Add("s", "{t}/c", 1)])
        cut = scene.begin(Cut(at=0.0, sources=["n3"], targets=["n1", "n2"], for_s=2.0))
        await asyncio.sleep(0.1)
        await scene.client("n3").call(requests.AlterSet("s", "{t}/x", [b"\xa1e"], []))
        for node in ("n1", "n3"):
            await scene.client(node).call(batch, key=key)
        await cut
        await scene.cluster.converged()
        assert (await scene.client("n1").call(requests.ReadCounter("s", "{t}/c"))).value == 1

    on(story, PLAN)
