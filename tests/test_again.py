"""A test that fails among the others runs again, alone, and is named if it passes then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import TRIED_AGAIN_MAX

ROOT = Path(__file__).parents[1]
STEADY = "def test_good(): pass\n"
BAD = "def test_bad(): raise ValueError\n"
# It passes only in a run that nothing failed before it: alone.
UNSTEADY = """
import pathlib
def test_moody():
    mark = pathlib.Path(__file__).with_name('mark')
    seen = mark.exists()
    mark.touch()
    assert seen
"""


def again(folder: Path, content: str, *options: str) -> tuple[int, str, str]:
    """Returns the exit code, the output, and the record of unsteady tests."""
    (folder / "test_it.py").write_text(content)
    record = folder / "record"
    # What else is installed takes longer to load than these tests to run.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "UNSTEADY": str(record), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "tests.again", "-p", "xdist", *options, "--", "test_it.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, record.read_text() if record.exists() else ""


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_test_that_passes_alone_is_named(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, said, record = again(tmp_path, STEADY + UNSTEADY, *options)
    assert code == 0, said
    assert "unsteady: test_it.py::test_moody" in said.splitlines()[-1]
    assert record == "test_it.py::test_moody\n"


def test_a_test_that_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    code, said, record = again(tmp_path, STEADY + UNSTEADY + BAD)
    assert code == 1
    assert "unsteady: test_it.py::test_moody" in said
    assert record == "test_it.py::test_moody\n"


def test_a_run_without_failures_runs_once(tmp_path: Path) -> None:
    code, said, record = again(tmp_path, STEADY)
    assert (code, record) == (0, "")
    assert said.count("1 passed") == 1


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    bad = "".join(BAD.replace("test_bad", f"test_bad_{n}") for n in range(TRIED_AGAIN_MAX + 1))
    code, said, _ = again(tmp_path, bad)
    assert code == 1
    assert "again" not in said


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    code, _, record = again(tmp_path, "import nothing_of_this_name\n")
    assert (code, record) == (2, "")


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    assert again(tmp_path, "")[0] == 5
