"""The script of a run: whoever is killed, and when, there is work left for it to fall on."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.demo.course import Course
from shoal.demo.director import Script, write_script
from shoal.demo.survey import share

NAMES = ["h:1", "h:2", "h:3"]


def written(modules: int, agents: int, random: Random) -> tuple[Course, Script]:
    names = [str(nth) for nth in range(modules)]
    course = Course([len(share(names, agent, agents=agents)) for agent in range(agents)], nodes=NAMES)
    return course, write_script(course, random=random)


@given(st.integers(1, 3000), st.integers(1, 64), st.randoms(use_true_random=False))
def test_the_kill_is_due_before_the_victims_crew_can_have_passed_its_gate(modules: int, agents: int, random: Random) -> None:
    course, script = written(modules, agents, random)
    crew = course.crew(script.victim)
    working = [agent for agent in crew if course.agents[agent].total]
    assert working
    # When the last module before the gate is begun, each other agent has at most one under way.
    assert 0 <= script.kill_after <= sum(script.gates[0][agent] for agent in crew) - len(working)


@given(st.integers(1, 3000), st.integers(1, 64), st.randoms(use_true_random=False))
def test_the_return_is_due_once_all_stand_at_the_second_gate(modules: int, agents: int, random: Random) -> None:
    course, script = written(modules, agents, random)
    assert script.return_after <= sum(script.gates[1])
    assert all(gate <= agent.total for gate, agent in zip(script.gates[1], course.agents, strict=True))


def test_the_kill_falls_at_two_fifths_and_the_return_at_seven_tenths() -> None:
    _, script = written(1800, 9, Random(1))
    assert (script.kill_after, script.return_after) == (240, 1260)


def test_only_the_victims_crew_waits_for_the_kill() -> None:
    course, script = written(1800, 9, Random(1))
    waiting = [agent for agent in range(9) if script.gates[0][agent] < course.agents[agent].total]
    assert waiting == list(course.crew(script.victim))


def test_any_node_may_be_the_victim() -> None:
    assert {written(90, 9, Random(seed))[1].victim for seed in range(20)} == {0, 1, 2}


def test_a_node_without_work_is_no_victim() -> None:
    assert {written(90, 1, Random(seed))[1].victim for seed in range(20)} == {0}
