"""The judge of a run: silent about a sound one, and each planted break is told by its number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal.crdt.rows import successor
from shoal.protocol.requests import Add, Durability
from shoal.protocol.session import Session
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.judging import judge as judging
from simulation.judging.found import Found, find
from simulation.judging.history import Acknowledged, Event, Failed, History, Invoked, LetGo, Refused, Resent, Shown, amount
from simulation.judging.judge import judge, judged, lost_with_a_minority
from simulation.judging.ledger import Ledger
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.plan import Act, ActKind, Leave, Plan, Wipe
from simulation.workload.agents import Agents
from simulation.world.cluster import SimulatedCluster
from simulation.world.trace import Trace

SAVED: list[Event] = [Invoked(1, "save", "a", "s"), Acknowledged(1, "id-1", node="n1", at_s=1.0)]
KINDS: list[ActKind] = ["save", "append", "add", "add-keyed", "assign", "edit", "batch"]


# ── over a whole cluster ──────────────────────────────────────────────────────


async def nothing(cluster: SimulatedCluster, agents: Agents) -> None: ...


def verdict(
    spoil: Callable[[SimulatedCluster, Agents], Awaitable[None]] = nothing, *, durability: Durability = "local"
) -> list[Violation]:
    """On every kind of write, by three agents, after which `spoil` is done to the cluster."""
    acts = [Act(at=0.0, agent=n % 3, kind=kind, durability=durability) for n, kind in enumerate(KINDS)]
    plan = Plan(seed=1, acts=acts)

    async def main() -> list[Violation]:
        trace = Trace(asyncio.get_running_loop().time)
        async with SimulatedCluster(plan, trace=trace) as cluster:
            agents = Agents(cluster, plan, trace=trace)
            for act in plan.acts:
                await agents.act(act)
            await cluster.heal()
            await cluster.converged()
            await spoil(cluster, agents)
            return await judge(cluster, agents)

    return run(main())


@pytest.mark.answers("seed-3132")
def test_disks_are_compared_after_nodes_own_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = judging._scrubs

    async def scrubs(cluster: SimulatedCluster) -> list[Violation]:
        found = await sound(cluster)
        await cluster.hosts["n1"].node.session().call(Add("another", "c", 1))  # As a transfer of rights.
        return found

    monkeypatch.setattr(judging, "_scrubs", scrubs)
    assert verdict() == []


def invariants(violations: list[Violation]) -> set[str]:
    return {violation.invariant for violation in violations}


def alter(name: str, table: bytes) -> Callable[[SimulatedCluster, Agents], Awaitable[None]]:
    """Change the last row of a table on the disk of one node."""

    async def altered(cluster: SimulatedCluster, agents: Agents) -> None:
        host = cluster.hosts[name]
        host.kill()
        await host.gone()
        storage = host.disk.copy()
        [(key, value)] = storage.scan(table, successor(table), reverse=True, limit=1)
        storage.write({key: value[:-1] + bytes([value[-1] ^ 1])})
        storage.sync()
        host.disk.put_back(storage)
        host.start()

    return altered


def test_a_sound_run_breaks_nothing() -> None:
    assert verdict() == []


@pytest.mark.answers("state-is-a-fold", "judge-misses-what-it-repairs")
def test_a_row_that_differs_is_found_though_a_read_would_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mends: list[Callable[[], None]] = []

    async def spoilt(cluster: SimulatedCluster, agents: Agents) -> None:
        disk = cluster.hosts["n2"].disk
        [(key, value)] = disk.copy().scan(keys.OBJECT, successor(keys.OBJECT), limit=1)

        def write(row: bytes) -> None:
            disk._storage.write({key: row})
            disk._storage.sync()

        write(value + b"!")
        mends.append(lambda: write(value))

    async def mending(session: Session) -> Found:
        mends[0]()
        return await find(session)

    monkeypatch.setattr(judging, "find", mending)
    assert "4" in invariants(verdict(spoilt))


@pytest.mark.parametrize("table", [keys.OBJECT, keys.KEY])
def test_a_row_that_differs_on_one_node_is_found(table: bytes) -> None:
    assert "4" in invariants(verdict(alter("n2", table)))


def test_a_node_that_is_down_when_all_is_healed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CONVERGED_S_MAX", 5.0)

    async def killed(cluster: SimulatedCluster, agents: Agents) -> None:
        cluster.hosts["n3"].kill()

    assert invariants(verdict(killed)) >= {"4", "9"}


def test_nodes_that_did_not_come_to_agree_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    converged = SimulatedCluster.converged

    async def noted(self: SimulatedCluster, seconds: float = 20.0) -> None:
        waits.append(seconds)
        await converged(self, seconds)

    async def killed(cluster: SimulatedCluster, agents: Agents) -> None:
        cluster.hosts["n3"].kill()
        waits.clear()

    monkeypatch.setattr(SimulatedCluster, "converged", noted)
    verdict(killed)
    assert waits == [judging.CONVERGED_S_MAX, 0.0, 0.0, 0.0]


def test_the_loss_of_what_was_acknowledged_is_found() -> None:
    async def wiped(cluster: SimulatedCluster, agents: Agents) -> None:
        for host in cluster.hosts.values():
            host.kill()
            await host.gone()
            host.disk.wipe()
        for host in cluster.hosts.values():
            host.start()

    assert {"3", "5"} <= invariants(verdict(wiped))


@pytest.mark.answers("judge-misses-what-it-repairs")
@pytest.mark.answers("acknowledged-writes-survive", note="a quorum's")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_quorums_lost_write_is_found_before_healing(replaced: bool) -> None:
    async def emptied(cluster: SimulatedCluster, agents: Agents) -> None:
        for name in ("n2", "n3"):
            disk = cluster.hosts[name].disk
            cluster.hosts[name].kill()
            if replaced and name == "n3":
                disk.wipe()
            else:
                disk._storage = MemoryStorage()
        lost_with_a_minority(cluster, agents)
        await cluster.heal()

    found = verdict(emptied, durability="quorum")
    assert any("is left on" in text for _, text in found) == (not replaced)


@pytest.mark.answers("erased-data-stays-erased", note="if no disk was lost, no node sweeps data that a later save builds on")
def test_a_node_that_had_swept_what_a_later_save_needs_is_found() -> None:
    async def swept(cluster: SimulatedCluster, agents: Agents) -> None:
        cluster.hosts["n2"].peer.scrubber.incomplete.add(b"a thread")

    assert verdict(swept) == [Violation("15", "n2 had swept what a save in b'a thread' builds on")]


def test_violations_seen_on_the_way_are_in_the_verdict() -> None:
    async def noted(cluster: SimulatedCluster, agents: Agents) -> None:
        agents.record.violated("11", "planted")

    assert verdict(noted) == [Violation("11", "planted")]


# ── over what was told ────────────────────────────────────────────────────────


def broken(*events: Event, parents: dict[str, list[str]] | None = None, plan: Plan | None = None, **held: object) -> set[str]:
    """What is broken if this was told, and this is held by every node."""
    ledger = Ledger(lambda invariant, text: None)
    ledger.shelf("n1", MemoryStorage())
    ledger.parents["a"] = parents or {}
    founds = {name: Found(**held) for name in ("n1", "n2")}  # type: ignore[arg-type]
    return invariants(judged(History(events), Losses(plan or Plan(seed=1)), founds, ledger))


def test_acknowledged_writes_must_be_there() -> None:
    assert broken(*SAVED, threads={"a": {"id-1": 1}}) == set()
    assert broken(*SAVED) == {"3"}


def test_unpromised_data_need_not_be_there() -> None:
    assert broken(*SAVED, plan=Plan(seed=1, faults=[Wipe(at=2.0, node="n1")])) == set()
    assert broken(*SAVED, plan=Plan(seed=1, faults=[Wipe(at=2.0, node="n2")])) == {"3"}


def test_a_save_that_was_sent_again_must_make_one_checkpoint() -> None:
    again: list[Event] = [Resent(1), Acknowledged(1, "id-2", node="n2", at_s=1.0, again=True)]
    assert broken(*SAVED, *again, threads={"a": {"id-1": 1}}) == {"6"}
    assert broken(*SAVED, Resent(1), Acknowledged(1, "id-1", node="n2", again=True), threads={"a": {"id-1": 1}}) == set()


def test_a_checkpoint_that_was_shown_and_never_stored_is_found() -> None:
    shown = Shown("s", "save", "a", ids=["id-1"], node="n1", at_s=1.0)
    assert broken(*SAVED, shown, parents={"id-1": []}, threads={"a": {"id-1": 1}}) == set()
    assert broken(*SAVED, shown, threads={"a": {"id-1": 1}}) == {"10"}


def test_an_event_that_was_shown_and_never_written_is_found() -> None:
    assert "10" in broken(Shown("s", "append", "a", numbers=[9], node="n1"), journals={"a": {"x": 9}})


def test_a_session_that_goes_back_is_found() -> None:
    added: list[Event] = [Invoked(1, "add", "a", "s"), Acknowledged(1, value=amount(1), node="n1", at_s=1.0)]
    assert broken(*added, Shown("s", "add", "a", value=0, node="n2"), counters={"a": amount(1)}) == {"7"}
    assert broken(*added, Shown("s", "add", "a", value=amount(1), node="n2"), counters={"a": amount(1)}) == set()


def test_an_add_that_was_shown_and_that_nobody_made_is_found() -> None:
    added: list[Event] = [Invoked(1, "add", "a", by=4), Acknowledged(1, value=4, node="n1", at_s=1.0)]
    held: dict[str, object] = {"counters": {"a": 4}}
    assert broken(*added, Shown("s", "add", "a", value=4), **held) == set()  # type: ignore[arg-type]
    assert "10" in broken(*added, Shown("s", "add", "a", value=4 + 16), **held)  # type: ignore[arg-type]
    assert "10" in broken(*added, Shown("s", "add", "a", value=8), **held)  # type: ignore[arg-type]


BATCH: list[Event] = [Invoked(1, "save", "b", batch=0), Invoked(2, "append", "b", batch=1), Invoked(3, "add", "b", batch=1)]


def test_a_batch_may_be_there_or_not() -> None:
    assert broken(*BATCH) == set()
    assert broken(*BATCH, threads={"b": {"x": 1}}, journals={"b": {"y": 2}}, counters={"b": amount(3)}) == set()


@pytest.mark.parametrize(
    "held",
    [
        {"threads": {"b": {"x": 1}}, "counters": {"b": amount(3)}},
        {"journals": {"b": {"y": 2}}, "counters": {"b": amount(3)}},
        {"threads": {"b": {"x": 1}}, "journals": {"b": {"y": 2}}},
        {"counters": {"b": amount(3)}},
    ],
    ids=["no event", "no checkpoint", "nothing added", "added alone"],
)
def test_a_batch_that_is_there_in_part_is_found(held: dict[str, object]) -> None:
    assert broken(*BATCH, **held) == {"6"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [Refused("s", "a", "not-found"), LetGo("s", "a", "invalid-value"), Failed(1, "unknown", "error")],
    ids=["a read", "a session", "a write"],
)
def test_an_error_that_no_fault_explains_is_found(event: Event) -> None:
    assert broken(Invoked(1, "add", "a"), event) == {"9"}


@pytest.mark.answers("seed-330021")
def test_an_error_that_a_fault_explains_is_none() -> None:
    assert broken(Invoked(1, "add", "a"), Failed(1, "no", "no-quorum"), Refused("s", "a", "session-behind")) == set()
    assert broken(Refused("s", "a", "disconnected"), Refused("t", "a", "unreachable")) == set()
    removed = Plan(seed=1, faults=[Leave(at=1.0, node="n1")])
    assert broken(Refused("s", "a", "not-a-member"), plan=removed) == set()
    assert broken(Refused("s", "a", "not-a-member")) == {"9"}


def test_a_write_refused_with_nothing_written_must_not_be_there_though_its_node_lost_its_disk() -> None:
    refused: list[Event] = [Invoked(1, "append", "a"), Failed(1, "no", "overloaded", "n1")]
    plan = Plan(seed=1, faults=[Wipe(at=2.0, node="n1")])
    assert broken(*refused, plan=plan, journals={"a": {"x": 1}}) == {"13"}
