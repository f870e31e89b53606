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
from shoal.demo.agent import SPACE, thread_name
from shoal.demo.embedded import run_embedded as run
from shoal.demo.stage import Options
from shoal.errors import InvalidInput
from tests.demo.processes import PATIENCE_S, assert_nothing_is_left, run_demo, running
from tests.support import forked
from tests.support.forked import Forked


def test_nine_agents_survive_two_kills_and_agree_with_the_recount(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--embedded", "--limit", "30")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("kill -9 number") == 2
    assert done.stdout.count("resumed from the agents' checkpoints") == 2
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
    """Stop a supervisor while its worker runs, which it kills twice: if both are killed, nobody is there to clean up."""
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


async def run_with(tmp_path: Path, worker: str | None, **options: object) -> tuple[bool, str]:
    """The demo in this process, with a worker that runs `worker` before it starts."""
    command = (sys.executable, "-c", textwrap.dedent(worker)) if worker is not None else Options().worker
    chosen = Options(agents=2, limit=12, worker=command, **options)  # type: ignore[arg-type]
    with (tmp_path / "said").open("w") as file:
        agreed = await run(chosen, console=Console(file=file, width=160), random=Random(7), now_s=lambda: 0.0)
    return agreed, (tmp_path / "said").read_text()


MISCOUNTING = """
    from shoal.client.batch import BatchCounter
    from shoal.demo import worker
    count, add = worker.figures_of, BatchCounter.add
    worker.figures_of = lambda source: count(source)._replace(classes=count(source).classes + 1)
    BatchCounter.add = lambda self, amount=1, *, key=None: add(self, amount - (amount == 1), key=key)
    worker.main()
"""
KEYLESS_EVENT = """
    from shoal.kinds.journal.handle import Journal
    from shoal.demo import worker
    true = Journal.append
    async def twice(self, event, *, key=None, **more):
        await true(self, event)
        await true(self, event)
    Journal.append = twice
    worker.main()
"""
RASH = """
    from shoal.demo import agent, worker
    true = agent.Agent.resume
    async def one_too_far(self):
        await true(self)
        self.skipped = int(self.position > 0)
    agent.Agent.resume = one_too_far
    agent.Agent.remaining = property(lambda self: self._modules[len(self._done) + self.skipped :])
    worker.main()
"""


@pytest.mark.answers("worker-of-the-demonstration-that-miscounts")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("worker", "where"),
    [
        (KEYLESS_EVENT, "journal of agent-1, events for"),
        (RASH, "thread agent-1, checkpoints"),
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
    monkeypatch.setattr("shoal.demo.stage.tempfile.tempdir", str(tmp_path))
    worker = (sys.executable, "-c", textwrap.dedent(MISCOUNTING))
    monkeypatch.setattr("shoal.demo.stage.Options", lambda **given: Options(**given, worker=worker))
    result = CliRunner().invoke(app, ["demo", "--embedded", "--limit", "12"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "document library, " in result.stdout
    assert "counter {totals}/modules" in result.stdout
    assert_nothing_is_left(tmp_path)


@pytest.mark.usefixtures("forks")
async def test_a_kept_store_can_be_looked_at(tmp_path: Path) -> None:
    data = tmp_path / "kept"
    agreed, said = await run_with(tmp_path, None, data=data)
    assert agreed
    assert f"shoal threads --data {data} --space survey" in said
    async with shoal.open(data) as store:
        assert [name async for name in store.space(SPACE).threads()] == [thread_name(0), thread_name(1)]


async def test_a_directory_in_use_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("Call me Ishmael.")
    with pytest.raises(InvalidInput, match="is not an empty directory"):
        await run(Options(data=tmp_path), console=Console(quiet=True), random=Random(1), now_s=lambda: 0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["novel.txt"]


def test_a_refused_directory_is_exit_code_1_and_one_plain_line(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    result = CliRunner().invoke(app, ["demo", "--data", str(taken)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"shoal: {taken} is not an empty directory.")


@pytest.mark.usefixtures("forks")
def test_a_worker_that_fails_is_exit_code_1_and_one_plain_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shoal.demo.stage.tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(
        "shoal.demo.stage.Options", lambda **given: Options(**given, worker=(sys.executable, "-c", "raise SystemExit(3)"))
    )
    result = CliRunner().invoke(app, ["demo", "--embedded", "--limit", "3"])
    assert result.exit_code == 1
    assert result.stderr.startswith("shoal: the demo's worker failed: the worker ended by itself (exit code 3).")
    assert_nothing_is_left(tmp_path)
