"""The director: its script, and small programs in the crew's place that die, lie or work without a store."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shoal.demo.course import Course, Message, Outage, Plan
from shoal.demo.crew import share
from shoal.demo.nodes import DemoFailed
from shoal.demo.run import MODULES_MIN, Director, Script, pages, write_script
from shoal.demo.screen import Screen

NAMES = ["h:1", "h:2", "h:3"]

# Works its modules off without a store: what is done is the number of lines in a file.
HONEST = """
import pathlib, sys, os
import msgspec
from shoal.demo.course import *
orders = open(0, "rb", buffering=0)
plan = msgspec.json.decode(orders.readline(), type=Plan)
done = pathlib.Path(plan.directory) / "done"
done.touch()
pathlib.Path(plan.directory, "pids").open("a").write(f"{os.getpid()}\\n")
def say(what, position, **more):
    sys.stdout.buffer.write(msgspec.json.encode(Message(what, 0, position, "id" if position else "", "n", **more)) + b"\\n")
    sys.stdout.buffer.flush()
position = len(done.read_text().splitlines())
say("resumed", position, reason="start")
for nth in range(position, plan.limit):
    if plan.gate is not None and nth >= plan.gate:
        orders.readline()
    say("writing", nth, module=f"m{nth}.py")
    with done.open("a") as file: file.write("x\\n")
    say("saved", nth + 1)
"""

# Says that it is there, and then neither works nor listens.
DEAF = """
import os, pathlib, sys, time
import msgspec
from shoal.demo.course import *
plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
pathlib.Path(plan.directory, "pid").write_text(str(os.getpid()))
sys.stdout.buffer.write(msgspec.json.encode(Message("resumed", 0, 0, "", "n")) + b"\\n"); sys.stdout.buffer.flush()
time.sleep(60)
"""


class Witness(Screen):
    """A screen that remembers what it was shown, and shows nobody."""

    def __init__(self, course: Course) -> None:
        super().__init__(Console(file=io.StringIO()), course)
        self.kills: list[Outage] = []
        self.seen = asyncio.Event()

    def saw(self, message: Message) -> None:
        self.seen.set()

    def saw_kill(self, outage: Outage) -> None:
        self.kills.append(outage)


def plan_in(data: Path, modules: int = 12) -> Plan:
    return Plan(str(data), [], False, modules, 1, [0])


async def run_script(program: str, data: Path, witness: Witness, course: Course) -> None:
    clock = itertools.count()
    script = write_script(course, random=Random(1))
    director = Director(script, nodes=[], course=course, screen=witness, now_s=lambda: float(next(clock)))
    await director.direct([plan_in(data)], command=(sys.executable, "-c", program))


def one_agent() -> tuple[Course, Witness]:
    course = Course([12])
    return course, Witness(course)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def written(modules: int, agents: int, random: Random, *, nodes: list[str] = NAMES) -> tuple[Course, Script]:
    names = [str(nth) for nth in range(modules)]
    course = Course([len(share(names, agent, agents=agents)) for agent in range(agents)], nodes=nodes)
    return course, write_script(course, random=random)


@given(st.integers(MODULES_MIN, 3000), st.integers(1, 64), st.booleans(), st.randoms(use_true_random=False))
def test_the_kill_is_due_before_the_gate(modules: int, agents: int, embedded: bool, random: Random) -> None:
    course, script = written(modules, agents, random, nodes=[] if embedded else NAMES)
    assert script.victim is not None
    total = sum(agent.total for agent in course.of_crew(script.victim))
    # When the last module before the gate is begun, it is in the air, and the others are done soon.
    assert 0 <= script.kill_after < script.gate <= total
    assert script.gate < total or total == 1


def test_the_kill_comes_at_two_fifths_and_the_return_at_seven_tenths() -> None:
    _, script = written(1800, 9, Random(1))
    assert (script.kill_after, script.return_after) == (240, 1260)


def test_any_node_may_be_the_victim() -> None:
    assert {written(90, 9, Random(seed))[1].victim for seed in range(20)} == {0, 1, 2}


def test_a_node_without_work_is_no_victim() -> None:
    assert {written(90, 1, Random(seed))[1].victim for seed in range(20)} == {0}


async def test_a_killed_crew_starts_again_and_ends_its_work(tmp_path: Path) -> None:
    course, witness = one_agent()
    await run_script(HONEST, tmp_path, witness, course)
    assert (course.done, course.total, len(witness.kills)) == (12, 12, 1)
    assert course.outage is not None
    assert course.outage.back_s.keys() == {0}


async def test_no_process_outlives_the_survey(tmp_path: Path) -> None:
    course, witness = one_agent()
    await run_script(HONEST, tmp_path, witness, course)
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    assert not any(is_running(int(pid)) for pid in pids)


async def test_a_cancelled_survey_leaves_no_process(tmp_path: Path) -> None:
    course, witness = one_agent()
    task = asyncio.create_task(run_script(DEAF, tmp_path, witness, course))
    await witness.seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("print('boom', file=sys.stderr); sys.exit(3)", r"ended by itself \(exit code 3\).*boom"),
        ("import os; os.kill(os.getpid(), 15)", r"ended by itself \(signal 15\).*nothing"),
    ],
    ids=["an error", "a signal"],
)
async def test_a_crew_that_ends_by_itself_is_reported(tmp_path: Path, program: str, error: str) -> None:
    course, witness = one_agent()
    with pytest.raises(DemoFailed, match=error):
        await run_script(f"import sys; sys.stdin.readline(); {program}", tmp_path, witness, course)


@pytest.mark.parametrize("victim", range(3))
def test_the_page_to_watch_is_the_killed_node_s(victim: int) -> None:
    urls = [f"http://n{number}" for number in range(3)]
    watched, meanwhile = pages(urls, victim)
    assert f"{urls[victim]}/;" in watched
    assert urls[victim] not in meanwhile
