"""Agents of a plan: what each kind of act does, and what they note of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar, get_args

import pytest

from shoal.testing.machines import run
from simulation.judging.found import Found, find
from simulation.judging.history import Acknowledged, Failed, Invoked, LetGo, Refused, Resent, Shown
from simulation.parts.all import FAMILIES
from simulation.plan import Act, ActKind, Cut, Fault, Leave, Pause, Plan, Replace, SlowDisk
from simulation.workload.agents import Agents
from simulation.workload.probing import PROBED, probes
from simulation.world.client import Client
from simulation.world.cluster import SimulatedCluster
from simulation.world.network import CLIENT
from simulation.world.trace import Trace

T = TypeVar("T")

WRITES: list[ActKind] = ["save", "append", "add", "add-keyed", "assign", "edit", "batch"]
READS: list[ActKind] = ["load", "read-journal", "count", "read-register", "read-document"]


def scene(work: Callable[[SimulatedCluster, Agents], Awaitable[T]], plan: Plan | None = None) -> tuple[T, Trace]:
    """What comes of `work` among agents of a cluster without faults, but for those that it carries out itself."""
    plan = plan or Plan(seed=1)

    async def main() -> tuple[T, Trace]:
        trace = Trace(asyncio.get_running_loop().time)
        async with SimulatedCluster(plan, trace=trace) as cluster:
            agents = Agents(cluster, plan, trace=trace)
            await asyncio.sleep(1)  # A node that is new takes no sessions once a peer has something that it lacks.
            done = await work(cluster, agents)
            await agents.finish()
            await agents.close()
            return done, trace

    return run(main())


def act(kind: ActKind, *, agent: int = 0, name: str = "a", repeat: bool = False, at: float = 0.0) -> Act:
    return Act(at=at, agent=agent, kind=kind, name=name, repeat=repeat)


async def read(cluster: SimulatedCluster, node: str = "n1") -> Found:
    await cluster.converged()
    client = Client(cluster, [node], name="reader", random=Plan(seed=0).random_for("reader"))
    try:
        return await find(client.session)
    finally:
        await client.session.close()


def test_there_is_an_act_of_every_kind() -> None:
    assert set(WRITES) | set(READS) | set(FAMILIES) == set(get_args(ActKind))


@pytest.mark.parametrize("kind", WRITES)
def test_every_write_is_noted_and_is_there(kind: ActKind) -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[Agents, Found]:
        await agents.act(act(kind))
        return agents, await read(cluster)

    (agents, found), _ = scene(work)
    written = [event for event in agents.history.events if isinstance(event, Invoked)]
    assert written
    assert [event.node for event in agents.history.acknowledged.values()] == ["n1"] * len(written)
    for write in written:
        assert write.kind == "add" or write.number in found.numbers(write.place)
        assert write.kind != "add" or found.counters[write.name] == agents.history.amount(write.number)


@pytest.mark.parametrize("kind", READS)
def test_every_read_notes_what_it_was_shown(kind: ActKind) -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        for write in WRITES:
            await agents.act(act(write))
        await agents.act(act(kind))
        return agents

    agents, _ = scene(work)
    shown = [event for event in agents.history.events if isinstance(event, Shown)][-1]
    assert shown.ids or shown.numbers or shown.value
    assert shown.session == "agent-0"
    assert shown.node in ("n1", "n2", "n3")  # It may have gone elsewhere to read.


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_that_is_sent_again_elsewhere_counts_once(kind: ActKind) -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[Agents, Found]:
        await agents.act(act(kind, repeat=True))
        return agents, await read(cluster)

    (agents, found), _ = scene(work)
    events = Counter(type(event) for event in agents.history.events)
    if kind != "edit":  # What a mirror's update holds is known to the mirror alone.
        assert events[Resent] == events[Invoked] > 0
        nodes = [answer.node for answers in agents.history.answers.values() for answer in answers if answer.again]
        assert nodes, "it was answered"
        assert "n1" not in nodes
    for write in agents.history.writes.values():
        assert write.kind == "add" or found.numbers(write.place).count(write.number) == 1
        assert write.kind != "add" or found.counters[write.name] == agents.history.amount(write.number)


def test_agents_prefer_different_nodes() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        for number in range(3):
            await agents.act(act("add", agent=number))
        return agents

    agents, _ = scene(work)
    assert [answer.node for answer in agents.history.acknowledged.values()] == ["n1", "n2", "n3"]


def test_an_agent_does_one_thing_at_a_time_with_one_name_and_others_meanwhile() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        await asyncio.gather(*(agents.act(act("add", name=name)) for name in "aab"))
        return agents

    agents, _ = scene(work)
    assert [write.name for write in agents.history.writes.values()] == ["a", "b"]


def test_an_act_of_an_agent_that_is_not_there_is_skipped() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        await agents.act(act("add", agent=7))
        return agents

    assert scene(work)[0].history.events == []


def test_a_key_that_is_used_for_another_request_is_refused() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        for nth in range(40):
            await agents.act(act("save", at=nth / 100))
            await agents.act(act("append", at=nth / 100))
            await agents.act(act("add-keyed", at=nth / 100))
        return agents

    agents, _ = scene(work)
    refused = {
        agents.history.writes[event.number].kind
        for event in agents.history.events
        if isinstance(event, Failed) and event.code == "key-reused"
    }
    assert refused == {"save", "append", "add"}
    assert agents.violations == []


def test_a_session_that_is_behind_is_noted_and_goes_on_once_it_lets_go() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        with cluster.network.cut(["n1"], ["n2", "n3"], both=True):
            await agents.act(act("add"))
            with cluster.network.cut([CLIENT], ["n1"], both=True):
                for nth in range(8):
                    await agents.act(act("count", at=nth))
        return agents

    agents, _ = scene(work)
    events = agents.history.events
    refused = [event for event in events if isinstance(event, Refused)]
    assert {event.code for event in refused} == {"session-behind"}
    [let_go] = [event for event in events if isinstance(event, LetGo)]
    shown = [event for event in events[events.index(let_go) :] if isinstance(event, Shown)]
    assert shown, "from then on it reads what is there"
    assert shown[0].value == 0


def test_unanswered_writes_are_unknown_or_were_not_made() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        with cluster.network.cut([CLIENT], ["n1", "n2", "n3"], both=True):
            await agents.act(act("add"))
        return agents

    agents, _ = scene(work)
    [failed] = [event for event in agents.history.events if isinstance(event, Failed)]
    assert (failed.code, failed.written) == ("unreachable", "no")
    assert [write.number for write in agents.history.refused] == [1]


def test_one_plan_is_one_trace_and_another_seed_another() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> None:
        for kind in [*WRITES, *READS]:
            await agents.act(act(kind, repeat=True))

    digests = [scene(work, Plan(seed=seed))[1].digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


# ── probes ────────────────────────────────────────────────────────────────────

CUT = Cut(at=4.0, sources=["n1"], targets=["n2", "n3"], for_s=4.0)


def probed(*faults: Fault) -> set[str]:
    return {probe.node for probe in probes(Plan(seed=1, faults=[CUT, *faults]))}


@pytest.mark.answers("seed-330021")
def test_every_node_that_a_cut_isolates_is_probed_unless_it_has_an_excuse() -> None:
    assert probed() == {"n1", "n2", "n3"}
    assert probed(Pause(at=5.5, node="n2")) == {"n1", "n3"}
    assert probed(SlowDisk(at=1.0, node="n3", sync_s=1.0, for_s=9.0)) == {"n1", "n2"}
    assert probed(Cut(at=5.0, sources=["client"], targets=["n1"])) == set()
    assert probed(Pause(at=18.0, node="n2")) == {"n1", "n2", "n3"}
    assert probed(Leave(at=1.0, node="n2")) == {"n1", "n3"}  # However long it takes.
    assert probed(Replace(at=1.0, node="n2", by="n3")) == {"n1"}
    assert probed(Leave(at=18.0, node="n2")) == {"n1", "n2", "n3"}


@pytest.mark.answers("seed-94050")
def test_cuts_of_the_same_moment_probe_a_node_once() -> None:
    again = Cut(at=CUT.at, for_s=CUT.for_s, sources=CUT.targets, targets=CUT.sources)
    assert sorted(probe.node for probe in probes(Plan(seed=1, faults=[CUT, again]))) == ["n1", "n2", "n3"]


def test_a_probe_of_a_node_that_answers_breaks_nothing_and_one_of_another_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> Agents:
        await asyncio.sleep(5.0)
        cluster.hosts["n2"].kill()
        await asyncio.sleep(20.0)
        return agents

    agents, _ = scene(work, Plan(seed=1, faults=[CUT]))
    assert [violation.invariant for violation in agents.violations] == ["9"]
    assert "probe-n2" in agents.violations[0].text
    answered = [event for event in agents.history.events if isinstance(event, Acknowledged)]
    assert sorted(event.node for event in answered) == ["n1", "n3"]
    assert {write.name for write in agents.history.writes.values()} == {PROBED}
