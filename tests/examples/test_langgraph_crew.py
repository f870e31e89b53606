"""The example, killed in the middle and started again: each answer that was stored is not asked for again."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.support.forked import LANGGRAPH, Forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_crew.py"


def started(directory: Path) -> Forked:
    return Forked(["--", str(EXAMPLE), str(directory)], clean_environment(), imports=LANGGRAPH)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_graph_that_was_killed_or_drained_goes_on_where_it_was(how: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path / "state") as first:
        asked = [first.stdout.readline() for _ in range(3)]
        first.send_signal(how)
        asked += first.stdout.readlines()
        first.wait(PATIENCE_S)
    assert first.returncode == (-how if how is signal.SIGKILL else 0)
    with started(tmp_path / "state") as second:
        told = second.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert second.returncode == 0
    counts = Counter(line.strip() for line in [*asked, *told] if line.startswith("asked for the "))
    assert len(counts) == 6
    # What each of the two was asking when it was stopped may be asked again.
    assert sum(counts.values()) <= 8
    assert told[-2:] == [
        f"writer-{number} has finished: introduction on {topic}, method on {topic}, results on {topic}"
        for number, topic in ((1, "tea"), (2, "coffee"))
    ]
