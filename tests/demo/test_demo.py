"""The embedded form as people run it: a process of its own, real kills, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import sys
import textwrap
import time
from pathlib import Path
from random import Random

import pytest
from rich.console import Console
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.demo import run
from shoal.demo.crew import SPACE, thread_name
from shoal.demo.run import Options
from tests.demo.processes import PATIENCE_S, assert_nothing_is_left, run_demo, running
from tests.support import forked
from tests.support.forked import Forked


def test_nine_agents_survive_a_kill_and_agree_with_the_recount(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--embedded", "--limit", "30")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^kill -9 the process of the store and its agents, after", done.stdout, re.MULTILINE)) == 1
    assert re.findall(r"^resumed (agent-\d) from checkpoint \w+ at [1-9]", done.stdout, re.MULTILINE)
    assert re.search(r"modules +│ +30 ", done.stdout)
    assert "agreed: document, counters, journals and threads equal the recount." in done.stdout
    assert_nothing_is_left(tmp_path)


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--embedded") as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, "")
    assert_nothing_is_left(tmp_path)


def stopped_beside_its_worker(supervisor: Forked) -> int:
    """Stop a supervisor while its worker runs, which it kills: if both are killed, nobody is there to clean up."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        supervisor.send_signal(signal.SIGSTOP)
        for worker in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split():
            if Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return int(worker)
        supervisor.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline, "it has no worker"
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a way to wait for a process that is no child: pidfd")
def test_the_worker_of_a_killed_supervisor_ends_and_cleans_up(tmp_path: Path) -> None:
    with running(tmp_path, "--embedded") as process:
        worker = os.pidfd_open(stopped_beside_its_worker(process))
        try:
            process.kill()
            assert select.select([worker], [], [], PATIENCE_S)[0], "the worker is still there"
        finally:
            os.close(worker)
    assert_nothing_is_left(tmp_path)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of a demo in this process are forked."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forked.create_subprocess_exec)


async def run_with(tmp_path: Path, crew: str | None, **options: object) -> tuple[bool, str]:
    """The demo in this process, with a crew's process that runs `crew`."""
    command = (sys.executable, "-c", textwrap.dedent(crew)) if crew is not None else Options().command
    chosen = Options(agents=2, limit=12, embedded=True, command=command, **options)  # type: ignore[arg-type]
    with (tmp_path / "said").open("w") as file:
        agreed = await run.run_demo(chosen, console=Console(file=file, width=160), random=Random(7), now_s=lambda: 0.0)
    return agreed, (tmp_path / "said").read_text()


MISCOUNTING = """
    from shoal.client.batch import BatchCounter
    from shoal.demo import crew
    count, add = crew.figures_of, BatchCounter.add
    crew.figures_of = lambda file: count(file)._replace(classes=count(file).classes + 1)
    BatchCounter.add = lambda self, amount=1, *, key=None: add(self, amount - (amount == 1), key=key)
    crew.main()
"""
KEYLESS_EVENT = """
    from shoal.kinds.journal.handle import Journal
    from shoal.demo import crew
    true = Journal.append
    async def twice(self, event, *, key=None, **more):
        await true(self, event)
        await true(self, event)
    Journal.append = twice
    crew.main()
"""
RASH = """
    from shoal.demo import crew
    true = crew.Agent.resume
    async def one_too_far(self):
        await true(self)
        self.skipped = int(self.position > 0)
    crew.Agent.resume = one_too_far
    crew.Agent.remaining = property(lambda self: self._modules[len(self._done) + self.skipped :])
    crew.main()
"""


@pytest.mark.answers("worker-of-the-demonstration-that-miscounts")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("worker", "where"),
    [
        (KEYLESS_EVENT, "the store: agent-1, events for"),
        (RASH, "the store: agent-1, checkpoints"),
    ],
    ids=["events without their key", "agents that resume one too far"],
)
async def test_a_worker_with_a_planted_fault_is_found_out(tmp_path: Path, worker: str, where: str) -> None:
    agreed, said = await run_with(tmp_path, worker)
    assert not agreed
    assert "differences from the recount" in said
    assert where in said


@pytest.mark.usefixtures("forks")
def test_a_wrong_figure_and_a_lost_add_are_exit_code_1_and_a_difference_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shoal.demo.run.tempfile.tempdir", str(tmp_path))
    worker = (sys.executable, "-c", textwrap.dedent(MISCOUNTING))
    monkeypatch.setattr("shoal.demo.run.Options", lambda **given: Options(**given, command=worker))
    result = CliRunner().invoke(app, ["demo", "--embedded", "--limit", "12"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "the store: library, " in result.stdout
    assert "the store: {totals}/modules" in result.stdout
    assert_nothing_is_left(tmp_path)


@pytest.mark.usefixtures("forks")
async def test_a_kept_store_can_be_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shoal.demo.run.tempfile.tempdir", str(tmp_path))
    agreed, said = await run_with(tmp_path, None, keep=True)
    assert agreed
    [data] = re.findall(r"^The store is kept in (\S+)\.$", said, re.MULTILINE)
    assert f"shoal threads --data {data} --space survey" in said
    async with shoal.open(data) as store:
        assert [name async for name in store.space(SPACE).threads()] == [thread_name(0), thread_name(1)]


def test_running_nodes_and_nodes_of_its_own_are_refused_together() -> None:
    for option in ("--embedded", "--keep", "--watch"):
        result = CliRunner().invoke(app, ["demo", "--url", "http://127.0.0.1:1", option])
        assert result.exit_code == 2
        assert "--url names nodes that run already" in re.sub(r"[\s│]+", " ", result.stderr)


@pytest.mark.usefixtures("forks")
def test_a_worker_that_fails_is_exit_code_1_and_one_plain_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shoal.demo.run.tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(
        "shoal.demo.run.Options", lambda **given: Options(**given, command=(sys.executable, "-c", "raise SystemExit(3)"))
    )
    result = CliRunner().invoke(app, ["demo", "--embedded", "--limit", "3"])
    assert result.exit_code == 1
    assert result.stderr.startswith("shoal: the demo failed: the crew ended by itself (exit code 3).")
    assert_nothing_is_left(tmp_path)
