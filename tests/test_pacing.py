"""Tests of simulated nodes run in virtual time: else they hold on a fast machine only."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
NODES = "from simulation.world.fleet import"
VIRTUAL = ("pytest.mark.virtual_time", "from shoal.testing.loop import", "from shoal.testing import loop")
MODULES = [
    path
    for path in sorted(ROOT.rglob("test_*.py"))
    if path != Path(__file__) and ROOT / "node" not in path.parents and NODES in path.read_text()
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_with_a_fleet_run_in_virtual_time(path: Path) -> None:
    text = path.read_text()
    assert any(each in text for each in VIRTUAL)
