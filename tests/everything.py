"""Run every target of the Makefile that proves something, one after another, and print one table of the results.

    python -m tests.everything            # all
    python -m tests.everything sim chaos  # some

A target that fails does not keep the later ones from running. The exit code is 0 if all passed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

TARGETS = ("check", "resolve", "sim", "test", "thorough", "slow-disks", "chaos", "compose", "integrations")


@dataclass(frozen=True)
class Result:
    """How one target ended."""

    target: str
    passed: bool
    seconds: float
    last_line: str


def run(target: str) -> Result:
    """Run `make target`, show what it prints, and keep its last line."""
    begun, last = time.monotonic(), ""
    process = subprocess.Popen(["make", target], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    return Result(target, process.wait() == 0, time.monotonic() - begun, last)


def table(results: Sequence[Result]) -> str:
    """One row for each target."""
    rows = [
        f"{result.target:14}{'passed' if result.passed else 'FAILED':8}{result.seconds:7,.0f} s  {result.last_line[:96]}"
        for result in results
    ]
    return "\n".join(rows)


def main(targets: Sequence[str]) -> int:
    """Return the exit code."""
    results = [run(target) for target in targets or TARGETS]
    print(f"\n{table(results)}", flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
