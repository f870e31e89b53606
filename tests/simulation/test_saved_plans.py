"""Plans that failed once: each still is a plan. `make sim` runs them before anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.execution import execute
from simulation.plan import from_json, to_json

PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))
LONGEST = {
    "a-question-that-found-no-room",
    "owners-that-heard-a-deletion-late",
    "two-names-lead-to-one-node-and-logs-are-truncated",
}
"""Two seconds or three, which `make sim` takes each time."""


@pytest.mark.answers("mirror-takes-kinds-of-a-lost-beginning")
@pytest.mark.answers("client-is-told-late-of-its-lease", note="`a-lease-that-ended-before-its-answer-came`")
@pytest.mark.answers("seed-372556", note="`a-link-that-loses-each-large-message`")
@pytest.mark.answers("seed-372515", note="`a-swap-that-is-repeated-after-a-clock-jumped`")
@pytest.mark.answers("seed-408060", note="`a-member-wiped-twice-and-disowned`")
@pytest.mark.answers("seed-408150", note="`a-member-forgotten-before-the-cluster-was-complete`")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.thorough] if path.stem in LONGEST else [], id=path.stem) for path in PLANS],
)
def test_a_saved_plan_breaks_nothing_any_more(path: Path) -> None:
    assert execute(from_json(path.read_bytes())).violations == []


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_saved_plan_is_written_as_the_command_writes_it(path: Path) -> None:
    assert to_json(from_json(path.read_bytes())) == path.read_bytes()
