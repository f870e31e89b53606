"""Resolve Shoal beside the newest version of what people run it with, and print one row for each.

    python -m tests.resolve                 # all
    python -m tests.resolve ray streamlit   # some

Law: a row passes only if one set of packages holds Shoal and the version of the framework that is chosen without Shoal.
An older version that fits does not count: an installer that goes back to one changes what the user had.
Nothing is installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHON = "3.12"  # Each of the frameworks has a version for it.
FRAMEWORKS = (
    "langgraph-api",
    "langgraph-cli[inmem]",
    "openai-agents",
    "google-adk",
    "pydantic-ai",
    "crewai",
    "agent-framework",
    "claude-agent-sdk",
    "mcp",
    "litellm[proxy]",
    "temporalio",
    "dbos",
    "ray",
    "streamlit",
)
EXTRAS = "security,schemas"
AT_ONCE = 7  # A resolution waits for the registry most of the time.


def _compiled(*lines: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", PYTHON, *options, "-"]
    return subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)


def row(framework: str) -> tuple[bool, str]:
    """Whether Shoal and the newest version fit together, and a line that says so."""
    alone = _compiled(framework)
    if alone.returncode:
        return False, f"{framework:22} does not resolve by itself: {' '.join(alone.stderr.split())}"
    name = canonicalize_name(framework.partition("[")[0])
    version = next(line.partition("==")[2] for line in alone.stdout.splitlines() if line.startswith(f"{name}=="))
    found = _compiled(f"shoal[{EXTRAS}] @ {ROOT.as_uri()}", f"{framework}=={version}")
    if found.returncode:
        return False, f"{framework:22} {version:12} clashes with Shoal: {' '.join(found.stderr.split())}"
    return True, f"{framework:22} {version:12} beside Shoal: {len(found.stdout.splitlines())} packages"


def main(frameworks: Sequence[str]) -> int:
    """Return the exit code: 0 if all fit."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = []
        for fits, line in pool.map(row, frameworks or FRAMEWORKS):
            rows.append(fits)
            print(line, flush=True)
    print(f"{sum(rows)} of {len(rows)} resolve beside Shoal on Python {PYTHON}", flush=True)
    return 0 if all(rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
