"""Another version of the program runs from the sources of its revision. `make upgrade-test` rolls a cluster from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chaos.upgrade import Outcome, built, checked_out, last_release, of_hundred, present

pytestmark = pytest.mark.skipif(
    not (present().sources / ".git").exists(), reason="revisions are in git, and this is no checkout"
)


def test_a_revision_runs_from_its_own_sources_wherever_it_is_called(tmp_path: Path) -> None:
    version = checked_out("HEAD", tmp_path)
    command = [*version.python, "-c", "import shoal; print(shoal.__file__)"]
    found = subprocess.run(command, capture_output=True, check=True, text=True, cwd=present().sources).stdout
    assert Path(found.strip()) == tmp_path / "shoal" / "__init__.py"


def test_a_revision_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no-such-version"):
        checked_out("no-such-version", tmp_path)


def test_a_revision_is_built_as_its_users_have_it(tmp_path: Path) -> None:
    version = built("HEAD", tmp_path)
    command = [*version.python, "-c", "import shoal, shoal.page; print(shoal.__file__)"]
    found = subprocess.run(command, capture_output=True, check=True, text=True, cwd=present().sources).stdout
    assert Path(found.strip()) == tmp_path / "package" / "shoal" / "__init__.py"
    assert (tmp_path / "package" / "shoal" / "py.typed").exists()


def test_the_last_release_is_a_revision() -> None:
    known = subprocess.run(["git", "-C", str(present().sources), "rev-parse", "--verify", last_release()], check=False)
    assert known.returncode == 0


@pytest.mark.parametrize(
    ("numbers", "found"), [([], 0.0), ([1.0], 1.0), ([*map(float, range(1, 101))], 99.0), ([1.0] * 99 + [9.0], 1.0)]
)
def test_ninety_nine_of_hundred(numbers: list[float], found: float) -> None:
    assert of_hundred(99, numbers) == found


def test_the_figures_say_what_clients_felt() -> None:
    told = Outcome(9, [], {"shutting-down": 2}, 299.6, 0.010, 0.025, 0.5).figures
    assert "2 × shutting-down" in told
    assert "p99 before 10 ms, meanwhile 25 ms: 2.5 × (at most 3)" in told
    assert "none" in Outcome(9, [], {}, 299.6, 0.010, 0.025, 0.5).figures
