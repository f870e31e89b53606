"""Another version of the program runs from the sources of its revision. `make upgrade-test` rolls a cluster from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chaos.upgrade import checked_out, present

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
