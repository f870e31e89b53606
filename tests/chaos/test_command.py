"""What is asked for wrongly is refused before a process is started, and what was tried is not lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.__main__ import app
from chaos.evidence import Evidence
from simulation.judging.history import History


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "flood"], "'flood' is no fault; there is: kill"),
        (["--faults", ","], "name at least one of: kill"),
        (["--nodes", "2", "--faults", "wipe"], "'wipe' takes 3 nodes, so that a majority stays"),
        (["--durability", "local", "--faults", "composed"], "'step-wipe-cut' takes disks, and local writes with them"),
        (["--backend", "compose", "--faults", "clock"], "'clock' cannot be made with compose"),
        (["--backend", "compose", "--nodes", "5"], "docker-compose.yml has 3 nodes"),
        (["--nodes", "0"], "greater than or equal to 1|not in the range"),
        (["--kills", "0"], "greater than or equal to 1|not in the range"),
        (["--durability", "memory"], "'memory' is not one of"),
        (["--report", "/nowhere/at/all.html"], "there is no directory /nowhere/at"),
        (["--report", "/proc/version"], "/proc/version cannot be written ("),
        (["--agents", "none"], "a valid integer"),
    ],
)
def test_a_mistake_is_told_and_ends_with_2(arguments: list[str], said: str) -> None:
    refused = CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert any(words in told for words in said.split("|"))  # Releases of typer put it in their own words.


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, history: History, evidence: Evidence) -> Path:
    """Where the directory of a trial is, which ends at once and has kept every promise."""

    async def trial(*_: object, **__: object) -> tuple[History, Evidence]:
        return history, evidence

    (directory := tmp_path / "kept").mkdir()
    monkeypatch.setattr("chaos.__main__.run_trial", trial)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(directory))
    return directory


def test_a_trial_stays_if_its_report_cannot_be_written(tried: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.symlink_to("/dev/full")  # It can be opened, and takes nothing.
    ended = CliRunner().invoke(app, ["run", "--report", str(report)])
    assert ended.exit_code == 1
    assert "the report could not be written" in ended.output
    assert f"kept: {tried}" in ended.output
    assert (tried / "evidence.json").exists()


def test_a_trial_that_kept_every_promise_leaves_nothing(tried: Path, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["run", "--report", str(tmp_path / "report.html")])
    assert ended.exit_code == 0, ended.output
    assert not tried.exists()


def test_a_name_reaches_neither_terminal_nor_report_raw(tried: Path, tmp_path: Path, evidence: Evidence) -> None:
    evidence.damage["n1"] = ["\x1b]0;title\x07 of a name"]
    ended = CliRunner().invoke(app, ["run", "--report", str(tmp_path / "report.html")])
    for shown in (ended.output, (tmp_path / "report.html").read_text()):
        assert "\\u001b]0;title\\u0007 of a name" in shown
        assert "\x1b]" not in shown


def test_without_the_extra_only_what_needs_it_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "jwt.py").write_text("raise ModuleNotFoundError(\"No module named 'jwt'\", name='jwt')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "300", "NO_COLOR": "1"}

    def said(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "chaos", *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    assert said("run", "--help")[0] == 0
    code, told = said("fuzz", "--frames", "4")
    assert code == 1
    assert "pip install '.[security]'" in told
    assert "Traceback" not in told
