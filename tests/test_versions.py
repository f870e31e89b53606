"""The last lines of `make versions` and `make lowest` say of each Python how the tests ended there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import versions
from tests.everything import Result, counted

PLACES = {"3.11": "/usr/bin/python3.11", "3.12": "/usr/bin/python3.12", "3.13": "/usr/bin/python3.13", "lowest": "/venv/python"}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has three Pythons; on 3.12 a test fails, and on 3.13 nothing can be installed."""

    def run(target: str, *settings: str) -> Result:
        passed = "BIN=/env/3.12/bin" not in settings
        return Result(target, passed, 1.0, "7,900 passed" if passed else "1 failed, 7,899 passed")

    monkeypatch.setattr(versions, "found", lambda version: PLACES.get(version, ""))
    monkeypatch.setattr(versions, "installed", lambda version, python: None if version == "3.13" else Path("/env", version))
    monkeypatch.setattr(versions, "run", run)


def test_each_python_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert versions.main([]) == 1
    assert capsys.readouterr().out.strip().splitlines() == [
        "Python 3.11: passed: 7,900 passed (/usr/bin/python3.11)",
        "Python 3.12: FAILED: 1 failed, 7,899 passed (/usr/bin/python3.12)",
        "Python 3.13: FAILED: its packages cannot be installed (/usr/bin/python3.13)",
        "Python 3.14: not found on this machine, so nothing was run",
    ]


def test_one_that_is_not_there_fails_nothing() -> None:
    assert versions.main(["3.11", "3.14"]) == 0


def test_none_at_all_fails() -> None:
    assert versions.main(["3.14"]) == 1


def test_the_lowest_versions_have_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert versions.main(["lowest"]) == 0
    assert capsys.readouterr().out.strip() == "the lowest versions: passed: 7,900 passed (/venv/python)"


def test_the_counts_of_all_runs_are_added() -> None:
    runs = ["20 failed, 7728 passed, 1 skipped in 1434.89s (0:23:54)", "== 300 passed in 9.1s ==", "in 3s: 4 passed"]
    assert sum(map(counted, runs), counted("")) == {"failed": 20, "passed": 8028, "skipped": 1}
