"""Run `make test` on each supported version of Python that this machine has, and name those that it has not.

    python -m tests.versions          # 3.11 to 3.14
    python -m tests.versions 3.13     # one
    python -m tests.versions lowest   # the oldest packages that pyproject.toml admits, on the Python that runs this

Each has an environment of its own, `.venv/python-VERSION` or `.venv/lowest`, which is made anew, with the packages of
constraints.txt (not so the oldest). The last lines say of each whether the tests passed, failed, or could not be run, with
counts. The exit code is 0 if they passed on all that were found; at least one must be found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.everything import run

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LOWEST = "lowest"
_UV = str(Path(sys.executable).with_name("uv"))
_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"  # Its shims answer only for the chosen ones.


def found(version: str) -> str:
    """The interpreter of this version; empty if this machine has none. Nothing is downloaded."""
    if version == LOWEST:
        return sys.executable
    command = [_UV, "python", "find", "--no-python-downloads", "--system", version]
    on_path = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return on_path or next((str(python) for python in sorted(_PYENV.glob(f"{version}.*/bin/python"))), "")


def installed(version: str, python: str) -> Path | None:
    """An environment of this version, made anew; None if that failed, which is shown."""
    place = ROOT / ".venv" / (version if version == LOWEST else f"python-{version}")
    bounds = ["--resolution", "lowest-direct"] if version == LOWEST else ["-c", "constraints.txt"]
    make = [_UV, "venv", "--quiet", "--clear", "--python", python, str(place)]
    install = [_UV, "pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *bounds, "-e", ".[test,check]"]
    if any(subprocess.run(command, cwd=ROOT, check=False).returncode for command in (make, install)):
        return None
    (place / ".ready").touch()
    return place


def tested(version: str, python: str) -> tuple[bool, str]:
    """Whether the tests passed, and what is to be said of it."""
    place = installed(version, python)
    if place is None:
        return False, "FAILED: its packages cannot be installed"
    # Whatever is set for `make versions` holds for this one as well: WORKERS, for example.
    result = run("test", f"BIN={place}/bin", f"DEV={place}/.ready")
    return result.passed, f"{'passed' if result.passed else 'FAILED'}: {result.summary}"


def main(versions: Sequence[str]) -> int:
    """Return the exit code."""
    rows, passed = [], []
    for version in versions or PYTHONS:
        name = "the lowest versions" if version == LOWEST else f"Python {version}"
        python = found(version)
        if python:
            ok, told = tested(version, python)
            passed.append(ok)
            rows.append(f"{name}: {told} ({python})")
        else:
            rows.append(f"{name}: not found on this machine, so nothing was run")
    print("\n" + "\n".join(rows), flush=True)
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
