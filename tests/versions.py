"""Run the tests on each supported version of Python that this machine has, and name those that it has not.

    python -m tests.versions          # 3.11 to 3.14
    python -m tests.versions 3.13     # one

Each has an environment of its own, `.venv/python-VERSION`, with the packages of constraints.txt. The exit code is 0 if
the tests passed on all that were found; at least one must be found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_UV = str(Path(sys.executable).with_name("uv"))
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"  # Its shims answer only for the chosen ones.


def found(version: str) -> str:
    """The interpreter of this version; empty if this machine has none. Nothing is downloaded."""
    command = [_UV, "python", "find", "--no-python-downloads", "--system", version]
    on_path = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return on_path or next((str(python) for python in sorted(_PYENV.glob(f"{version}.*/bin/python"))), "")


def tested(version: str, python: str) -> bool:
    """Run the tests in an environment of this version, which is made if it is not there."""
    place = ROOT / ".venv" / f"python-{version}"
    own = str(place / "bin" / "python")
    if not Path(own).exists():
        subprocess.run([_UV, "venv", "--quiet", "--python", python, str(place)], cwd=ROOT, check=True)
    install = [_UV, "pip", "install", "--quiet", "--python", own, "-c", "constraints.txt", "-e", ".[test,check]"]
    subprocess.run(install, cwd=ROOT, check=True)
    workers = str((os.cpu_count() or 1) + 1)
    command = [own, "-m", "pytest", "-p", "no:cacheprovider", "-n", workers, "--dist", "worksteal"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main(versions: Sequence[str]) -> int:
    """Return the exit code."""
    rows, passed = [], []
    for version in versions or PYTHONS:
        python = found(version)
        if python:
            passed.append(tested(version, python))
            rows.append(f"Python {version}: {'passed' if passed[-1] else 'FAILED'} ({python})")
        else:
            rows.append(f"Python {version}: not on this machine, so nothing was run")
    print("\n" + "\n".join(rows), flush=True)
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
