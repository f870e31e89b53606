"""`make everything` names a wrong target first, and Ctrl-C keeps the rows that are there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import everything
from tests.everything import Result


def test_an_unknown_target_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everything, "run", lambda target: pytest.fail(f"{target} was run"))
    assert everything.main(["check", "tset"]) == 2
    assert "no such target: tset; there is: check" in capsys.readouterr().err


def test_ctrl_c_shows_the_rows_so_far(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(target: str) -> Result:
        if target == "sim":
            raise KeyboardInterrupt
        return Result(target, True, 3.0, "12 passed")

    monkeypatch.setattr(everything, "run", run)
    assert everything.main(["check", "sim", "test"]) == 130
    assert capsys.readouterr().out.splitlines()[1:] == [
        "check         passed        3 s  12 passed",
        "sim was cut off, and nothing after it was run",
    ]


def test_a_row_ends_with_what_the_target_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text("said:\n\t@echo 3 of 3 fit\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAKELEVEL", "1")
    monkeypatch.setenv("MAKEFLAGS", "w")
    assert subprocess.run(["make", "said"], capture_output=True, text=True, check=True).stdout.count("directory") == 2
    assert everything.run("said").summary == "3 of 3 fit"
