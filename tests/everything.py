"""Run every target of the Makefile that proves something, one after another, and print one table of the results.

    python -m tests.everything            # all
    python -m tests.everything sim chaos  # some

A target that fails does not keep the later ones from running. Ctrl-C ends with the table of what was run by then, and with 130.
A target that is not one of these is named before anything runs. The exit code is 0 if all passed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TARGETS = ("check", "resolve", "sim", "test", "thorough", "slow-disks", "chaos", "compose", "integrations", "page")
INTERRUPTED = 130  # As a shell says it of a command that Ctrl-C ended.

_CLOSING = re.compile(r"=* ?(\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s")


@dataclass(frozen=True)
class Result:
    """How one target ended. `summary` is what its test runs counted, added up, or its last line if it ran no tests."""

    target: str
    passed: bool
    seconds: float
    summary: str


def run(target: str, *settings: str) -> Result:
    """Run `make target`, and show what it prints. `settings` are of the kind NAME=VALUE."""
    command = ["make", "--no-print-directory", target, *settings]  # Below another make its last line names a directory.
    begun, last, counts = time.monotonic(), "", Counter[str]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
            counts += counted(line)
    counts_told = ", ".join(f"{number:,} {outcome}" for outcome, number in counts.items())
    return Result(target, process.returncode == 0, time.monotonic() - begun, counts_told or last)


def counted(line: str) -> Counter[str]:
    """The outcomes that pytest's closing line counts; none in another line."""
    closing = _CLOSING.match(line)
    pairs = (part.split() for part in closing[1].split(", ")) if closing else ()
    return Counter({outcome: int(number) for number, outcome in pairs})


def table(results: Sequence[Result]) -> str:
    """One row for each target."""
    rows = [
        f"{result.target:14}{'passed' if result.passed else 'FAILED':8}{result.seconds:7,.0f} s  {result.summary[:96]}"
        for result in results
    ]
    return "\n".join(rows)


def main(targets: Sequence[str]) -> int:
    """Return the exit code."""
    if unknown := [target for target in targets if target not in TARGETS]:
        print(f"no such target: {', '.join(unknown)}; there is: {', '.join(TARGETS)}. Nothing was run.", file=sys.stderr)
        return 2
    results: list[Result] = []
    try:
        for target in targets or TARGETS:
            results.append(run(target))
    except KeyboardInterrupt:
        print(f"\n{table(results)}\n{target} was cut off, and nothing after it was run", flush=True)
        return INTERRUPTED
    print(f"\n{table(results)}", flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
