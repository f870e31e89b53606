"""The example, killed in the middle and started again: each answer that was stored is not asked for again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE_S, clean_environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_crew.py"


def start(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(directory)], env=clean_environment(), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_graph_that_was_killed_or_drained_goes_on_where_it_was(how: signal.Signals, tmp_path: Path) -> None:
    first = start(tmp_path / "state")
    assert first.stdout is not None
    asked = [first.stdout.readline() for _ in range(3)]
    first.send_signal(how)
    asked += first.stdout.readlines()
    first.stdout.close()
    first.wait(PATIENCE_S)
    assert first.returncode == (-how if how is signal.SIGKILL else 0)
    second = start(tmp_path / "state")
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
