"""Which agents a machine takes and gives up: pure rules, with machines that share a view."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.crew.declaration import BALANCE, CrewRecord, Decision, Declared, Outcome, Taker, View, decide, standbys

ROUNDS_MAX = 60


def agents(**counts: int) -> dict[str, Declared]:
    return {name: Declared(count=count, initial=count, version=1, ttl=10.0, tries=5) for name, count in counts.items()}


def taker(capacity: int = 10, *labels: str, version: int = 1, drained: bool = False) -> Taker:
    return Taker(capacity=capacity, versions={"a": version, "b": version}, labels=labels, drained=drained)


class Crowd:
    """Machines that all see the same, and act one after the other."""

    def __init__(self, record: CrewRecord, **settings: Any) -> None:
        self.record = record
        self.alive = set(record.machines)
        self.holders: dict[str, str] = dict.fromkeys(record.names(), "")
        self.last: dict[str, str] = {}
        self.given: list[tuple[str, str]] = []
        self.settings = {"calm": True, **settings}

    def decision(self, me: str, **settings: Any) -> Decision:
        return decide(self.view(me, **settings))

    def view(self, me: str, **settings: Any) -> View:
        mine = {name for name, holder in self.holders.items() if holder == me}
        return View(me, self.record, self.alive, self.holders, self.last, mine, **{**self.settings, **settings})

    def round(self) -> bool:
        """All decide at once, and then act; False if nobody does anything."""
        decisions = {me: self.decision(me) for me in sorted(self.alive)}
        for me, decision in decisions.items():
            for name in decision.take:
                assert self.holders[name] == ""
                self.holders[name] = me
            for name in decision.give:
                assert self.holders[name] == me
                self.holders[name], self.last[name] = "", me
                self.given.append((name, me))
        return any(decision.take or decision.give for decision in decisions.values())

    def settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not self.round():
                return
        raise AssertionError(f"it does not settle: {self.holders}, {self.given[-10:]}")

    def of(self, machine: str) -> list[str]:
        return sorted(name for name, holder in self.holders.items() if holder == machine)


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    labels = st.sets(st.sampled_from(["gpu", "eu"]), max_size=2).map(sorted).map(tuple)
    machines = {
        name: Taker(capacity=draw(st.integers(0, 8)), versions={"a": 1, "b": draw(st.integers(1, 2))}, labels=draw(labels))
        for name in "xyz"[: draw(st.integers(1, 3))]
    }
    declared = {
        name: replace(each, labels=draw(labels))
        for name, each in agents(a=draw(st.integers(0, 6)), b=draw(st.integers(0, 6))).items()
    }
    crowd = Crowd(CrewRecord(agents=declared, machines=machines))
    for name in crowd.holders:
        crowd.holders[name] = draw(st.sampled_from(["", *machines]))
    for machine, each in machines.items():
        for name in crowd.of(machine)[each.capacity :]:
            crowd.holders[name] = ""
    return crowd


@pytest.mark.answers("agents-have-one-driver")
@given(crowds())
def test_machines_settle_and_no_agent_is_left_that_one_has_room_for(crowd: Crowd) -> None:
    crowd.settle()
    for machine, each in crowd.record.machines.items():
        assert len(crowd.of(machine)) <= each.capacity
    for name, holder in crowd.holders.items():
        if holder == "":
            assert not any(crowd.decision(me, overdue={name}).take for me in crowd.alive)


@given(st.integers(0, 30), st.integers(1, 6))
def test_equal_machines_have_equally_many(count: int, machines: int) -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=count), machines={f"m{n}": taker(30) for n in range(machines)}))
    crowd.settle()
    loads = [len(crowd.of(machine)) for machine in crowd.record.machines]
    assert sum(loads) == count
    assert max(loads) - min(loads) < BALANCE
    assert crowd.given == []


def test_a_machine_that_joins_gets_agents_in_steps() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=6), machines={"x": taker()}))
    crowd.settle()
    crowd.record = replace(crowd.record, machines={"x": taker(), "y": taker()})
    crowd.alive = {"x", "y"}
    assert len(crowd.decision("x").give) == 1
    assert crowd.decision("x", calm=False).give == {}
    crowd.settle()
    assert (len(crowd.of("x")), len(crowd.of("y"))) == (3, 3)
    assert len(crowd.given) == 3


def test_the_agents_of_a_dead_machine_are_spread_over_the_others() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=6), machines={name: taker() for name in "xyz"}))
    crowd.settle()
    orphans = crowd.of("x")
    for name in orphans:
        crowd.holders[name], crowd.last[name] = "", "x"
    # Its own lease may end a little later than those of its agents.
    assert {name for me in "yz" for name in crowd.decision(me).take} == set(orphans)
    crowd.alive = {"y", "z"}
    crowd.settle()
    assert [len(crowd.of(name)) for name in "xyz"] == [0, 3, 3]


def test_one_machine_is_on_standby_for_each_agent_and_takes_it_when_its_machine_dies() -> None:
    declared = {"a": replace(agents(a=6)["a"], standby=1)}
    crowd = Crowd(CrewRecord(agents=declared, machines={name: taker() for name in "xyz"}))
    crowd.settle()
    ahead = {me: standbys(crowd.view(me)) for me in "xyz"}
    assert sorted(name for names in ahead.values() for name in names) == sorted(crowd.holders)
    orphans = crowd.of("x")
    for name in orphans:
        crowd.holders[name], crowd.last[name] = "", "x"
    assert all(set(crowd.decision(me).take) <= set(ahead[me]) for me in "yz")
    assert {name for me in "yz" for name in crowd.decision(me).take} == set(orphans)


def test_an_agent_without_a_standby_has_none() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=6), machines={name: taker() for name in "xyz"}))
    crowd.settle()
    assert [standbys(crowd.view(me)) for me in "xyz"] == [[], [], []]


def test_an_agent_that_stays_free_is_taken_out_of_turn() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=1), machines={"x": taker(), "y": taker()}))
    [turn] = [me for me in "xy" if crowd.decision(me).take]
    other = "y" if turn == "x" else "x"
    assert crowd.decision(other, overdue={"a-1"}).take == ["a-1"]


def test_an_unknown_lease_is_not_taken() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=1), machines={"x": taker()}))
    crowd.holders.clear()
    assert crowd.decision("x") == ([], {})


def test_only_machines_with_the_labels_take_an_agent() -> None:
    declared = {"a": replace(agents(a=2)["a"], labels=("gpu",))}
    crowd = Crowd(CrewRecord(agents=declared, machines={"x": taker(), "y": taker(10, "eu", "gpu")}))
    crowd.settle()
    assert crowd.of("y") == ["a-1", "a-2"]
    assert crowd.decision("x", overdue={"a-1"}).take == []


def test_a_drained_machine_gives_up_everything_and_takes_nothing() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=4), machines={"x": taker(), "y": taker()}))
    crowd.settle()
    crowd.record = replace(crowd.record, machines={"x": taker(drained=True), "y": taker()})
    assert len(crowd.decision("x").give) == 2
    crowd.settle()
    assert crowd.of("y") == ["a-1", "a-2", "a-3", "a-4"]


def test_a_moved_agent_goes_there_and_stays() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=2), machines={"x": taker(), "y": taker()}))
    crowd.settle()
    [there] = crowd.of("x")
    crowd.record = replace(crowd.record, pins={there: "y"})
    assert crowd.decision("x").give == {there: "it moves to 'y'"}
    crowd.settle()
    assert there in crowd.of("y")
    assert (there, "y") not in crowd.given


def test_an_agent_whose_place_is_full_or_dead_runs_elsewhere() -> None:
    pins = {"a-1": "y"}
    crowd = Crowd(CrewRecord(agents=agents(a=1), machines={"x": taker(), "y": taker(0)}, pins=pins))
    crowd.settle()
    assert crowd.of("x") == ["a-1"]
    crowd.record = replace(crowd.record, machines={"x": taker(), "y": taker()})
    crowd.alive = {"x"}
    assert crowd.decision("x").give == {}


def test_a_newer_version_takes_over_agent_by_agent_and_only_where_it_has_room() -> None:
    old = CrewRecord(agents=agents(a=3), machines={"x": taker()})
    crowd = Crowd(old)
    crowd.settle()
    newer = {"a": replace(old.agents["a"], version=2)}
    crowd.record = replace(old, agents=newer)
    assert crowd.decision("x").give == {}
    crowd.record = replace(old, agents=newer, machines={"x": taker(), "y": taker(2, version=2)})
    crowd.alive = {"x", "y"}
    assert len(crowd.decision("x").give) == 1
    mine = frozenset(crowd.of("x"))
    assert decide(View("x", crowd.record, crowd.alive, crowd.holders, {}, mine, leaving=frozenset(["a-1"]))).give == {}
    crowd.settle()
    assert (len(crowd.of("x")), len(crowd.of("y"))) == (1, 2)


def test_agents_that_ended_or_are_not_desired_any_more_are_given_up() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=3), machines={"x": taker()}))
    crowd.settle()
    outcomes = {"a-1": Outcome(state="failed", version=1), "a-2": Outcome(state="retrying", version=1)}
    crowd.record = replace(crowd.record, agents=agents(a=2), outcomes=outcomes)
    assert sorted(crowd.decision("x").give) == ["a-1", "a-3"]


def test_a_machine_that_is_not_in_the_record_does_nothing() -> None:
    crowd = Crowd(CrewRecord(agents=agents(a=1), machines={"x": taker()}))
    assert crowd.decision("stranger", overdue={"a-1"}) == ([], {})
