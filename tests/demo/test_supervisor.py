"""The supervisor, with small scripts in the worker's place: what it does with deaths and lies."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.demo.messages import Message, Plan, Saved, read_message, read_plan, to_line
from shoal.demo.progress import Kill, Progress
from shoal.demo.supervisor import KILLS, MODULES_MIN, plan_kills, supervise, totals
from shoal.demo.workers import WorkerFailed

# Works its modules off without a store: what is done is the number of lines in a file.
HONEST = """
import pathlib, sys, time
from shoal.demo.messages import *
plan = read_plan(sys.stdin.buffer.readline())
done = pathlib.Path(plan.data) / "done"
done.touch()
pathlib.Path(plan.data, "pids").open("a").write(f"{__import__('os').getpid()}\\n")
def say(message):
    sys.stdout.buffer.write(to_line(message)); sys.stdout.buffer.flush()
position = len(done.read_text().splitlines())
say(Ready([position]))
for nth in range(position, plan.modules_max):
    say(Writing(0, plan.modules[nth]))
    with done.open("a") as file: file.write("x\\n")
    say(Saved(0, plan.modules[nth], nth + 1, "id", 4))
if plan.modules_max < len(plan.modules):
    sys.stdin.buffer.read()
say(Finished())
"""

# Says that it is ready, and then neither works nor listens.
DEAF = """
import os, pathlib, sys, time
from shoal.demo.messages import *
plan = read_plan(sys.stdin.buffer.readline())
pathlib.Path(plan.data, "pid").write_text(str(os.getpid()))
sys.stdout.buffer.write(to_line(Ready([0]))); sys.stdout.buffer.flush()
time.sleep(60)
"""


class Witness:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.kills: list[Kill] = []

    def saw(self, message: Message) -> None:
        self.messages.append(message)

    def saw_kill(self, kill: Kill) -> None:
        self.kills.append(kill)


def plan_in(data: Path, modules: int = 12) -> Plan:
    names = [f"m{nth}.py" for nth in range(modules)]
    return Plan(data=str(data), temporary=False, root="", modules=names, agents=1, modules_max=modules)


async def run_script(script: str, data: Path, witness: Witness) -> Progress:
    plan = plan_in(data)
    progress = Progress(totals(plan))
    clock = itertools.count()
    await supervise(
        plan,
        progress=progress,
        audience=witness,
        random=Random(1),
        now_s=lambda: float(next(clock)),
        command=(sys.executable, "-c", script),
    )
    return progress


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@given(st.integers(MODULES_MIN, 3000), st.integers(1, 64), st.randoms(use_true_random=False))
def test_each_kill_has_a_module_to_fall_on(total: int, agents: int, random: Random) -> None:
    plans = plan_kills(total, agents=agents, random=random)
    assert len(plans) == KILLS
    assert all(0 <= plan.after < plan.modules_max < total for plan in plans)
    assert all(later.modules_max > earlier.modules_max for earlier, later in itertools.pairwise(plans))


def test_kills_fall_near_the_thirds() -> None:
    first, second = plan_kills(1800, agents=9, random=Random(1))
    assert 600 <= first.after <= 609
    assert 1200 <= second.after <= 1209


async def test_the_worker_is_killed_twice_and_the_survey_still_ends(tmp_path: Path) -> None:
    witness = Witness()
    progress = await run_script(HONEST, tmp_path, witness)
    assert (progress.done, progress.total) == (12, 12)
    assert len(progress.kills) == len(witness.kills) == KILLS
    assert all(kill.resumed_s is not None for kill in progress.kills)


async def test_no_worker_outlives_the_survey(tmp_path: Path) -> None:
    await run_script(HONEST, tmp_path, Witness())
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == KILLS + 1
    assert not any(is_running(int(pid)) for pid in pids)


async def test_a_cancelled_survey_leaves_no_worker(tmp_path: Path) -> None:
    seen = asyncio.Event()

    class Noticing(Witness):
        def saw(self, message: Message) -> None:
            seen.set()

    task = asyncio.create_task(run_script(DEAF, tmp_path, Noticing()))
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(int((tmp_path / "pid").read_text()))


async def test_a_worker_that_dies_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"ended by itself \(exit code 3\).*boom"):
        await run_script("import sys; sys.stdin.readline(); print('boom', file=sys.stderr); sys.exit(3)", tmp_path, Witness())


async def test_a_worker_that_cannot_go_on_says_why(tmp_path: Path) -> None:
    script = "import sys; from shoal.demo.messages import *; sys.stdout.buffer.write(to_line(Failed('disk full')))"
    with pytest.raises(WorkerFailed, match="disk full"):
        await run_script(script, tmp_path, Witness())


async def test_a_worker_that_ends_early_but_in_order_is_not_taken_for_finished(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"exit code 0\).*nothing"):
        await run_script("import sys; sys.stdin.readline()", tmp_path, Witness())


def test_a_plan_survives_its_line() -> None:
    plan = plan_in(Path("/tmp/a\nb"))
    line = to_line(plan)
    assert line.count(b"\n") == 1
    assert read_plan(line) == plan


def test_a_message_survives_its_line() -> None:
    message = Saved(1, "a\n.py", 3, "f" * 64, 4)
    assert read_message(to_line(message)) == message
