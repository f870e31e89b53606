"""A sample of what `make slow-disks` runs: tests that rely on a fast disk show up before they are many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SYNC_S = 0.03
SAMPLE = [  # Where messages, sweeps, leases, flows and crews wait for what is durable.
    "tests/node/peers/test_steps.py",
    "tests/node/collection/test_pruning.py",
    "tests/node/document/test_equivocation.py",
    "tests/node/leases/test_handouts.py",
    "tests/workflows/test_moments.py",
    "tests/crew/test_driving.py",
]


def test_a_sample_passes_on_slow_disks() -> None:
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short", "--sync-s", str(SYNC_S)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--", *SAMPLE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
