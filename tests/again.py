"""Run pytest; then run each failed test again, alone, and name those that pass as unsteady.

    python -m tests.again [options of pytest] [-- files and folders]

Laws:
- The run passes only if every test passed, in the run or alone afterwards.
- At most `TRIED_AGAIN_MAX` failed tests are tried again. More than that are no matter of chance, so the run fails.
- An unsteady test is named in the last lines, and in the file that `UNSTEADY` names, so that somebody mends it.
- An error of collection, an internal error and an interrupted run fail at once. A crashed worker is a failure of its test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TRIED_AGAIN_MAX = 10
_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_TESTS_FAILED = 1  # pytest's exit code. 2 to 5: interrupted, an internal error, wrong usage, no tests.


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _alone(test: str, arguments: Sequence[str]) -> bool:
    """Whether `test` passes in a process of its own, without the workers that `arguments` ask for."""
    return _pytest(*arguments, "-p", "no:cacheprovider", "-n", "0", test) == 0


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0 if all passed, and that of pytest otherwise."""
    _FAILED.unlink(missing_ok=True)
    code = _pytest(*arguments)
    if code != _TESTS_FAILED or not _FAILED.exists():
        return code
    failed = sorted(json.loads(_FAILED.read_text()))
    if len(failed) > TRIED_AGAIN_MAX or not all("::" in test for test in failed):
        return code
    print(f"{len(failed)} failed. Each runs again, alone.", flush=True)
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    unsteady = [test for test in failed if _alone(test, options)]
    for test in unsteady:
        print(f"unsteady: {test} failed among the others and passed alone", flush=True)
    if (record := os.environ.get("UNSTEADY")) and unsteady:
        with Path(record).open("a") as file:
            file.writelines(f"{test}\n" for test in unsteady)
    return 0 if unsteady == failed else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
