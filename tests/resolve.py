"""Resolve Shoal beside the newest version of what people run it with, and print one row for each.

    python -m tests.resolve                 # all
    python -m tests.resolve ray streamlit   # some

Law: a row passes only if one set of packages holds Shoal and the version of the framework that is chosen without Shoal.
An older version that fits does not count: an installer that goes back to one changes what the user had.
Nothing is installed. A framework clashes only if the resolver says that there is no solution, of requirements alone: a registry
that did not answer, that refused a package or did not find it, and a package that could not be built, say nothing about it.
Exit codes: 0 if all fit, 1 if one clashes, 3 if none clashes and some are not known.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

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
NO_SOLUTION = "No solution found"  # Of requirements that contradict each other; also of a package that it was not given.
NOT_GIVEN = re.compile(
    r"not found in the package registry|Failed to (?:build|fetch|download|read)|could not be queried|"
    r"returned a [45]\d\d|\b[45]\d\d (?:Forbidden|Not Found|Unauthorized)|network (?:was|connectivity is) disabled"
)
"""What the resolver says of a package that the registry did not give it. It words some of these as a missing solution."""

End = Literal["fits", "clashes", "unknown"]


class Row(NamedTuple):
    """How one framework ended, and the line that says so."""

    end: End
    line: str


def _compiled(*lines: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", PYTHON, *options, "-"]
    return subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)


def row(framework: str) -> Row:
    """Resolve the newest version by itself, and that version with Shoal."""
    alone = _compiled(framework)
    if alone.returncode:
        return Row("unknown", f"{framework:22} was not resolved by itself: {_said(alone)}")
    name = canonicalize_name(framework.partition("[")[0])
    version = next(line.partition("==")[2] for line in alone.stdout.splitlines() if line.startswith(f"{name}=="))
    found = _compiled(f"shoal[{EXTRAS}] @ {ROOT.as_uri()}", f"{framework}=={version}")
    if not found.returncode:
        return Row("fits", f"{framework:22} {version:12} beside Shoal: {len(found.stdout.splitlines())} packages")
    if NO_SOLUTION in found.stderr and not NOT_GIVEN.search(_said(found)):
        return Row("clashes", f"{framework:22} {version:12} clashes with Shoal: {_said(found)}")
    return Row("unknown", f"{framework:22} {version:12} was not resolved: {_said(found)}")


def _said(ended: subprocess.CompletedProcess[str]) -> str:
    return " ".join(ended.stderr.split())


def main(frameworks: Sequence[str]) -> int:
    """Return the exit code."""
    ends: Counter[End] = Counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for end, line in pool.map(row, frameworks or FRAMEWORKS):
            ends[end] += 1
            print(line, flush=True)
    print(
        f"{ends['fits']} of {ends.total()} resolve beside Shoal on Python {PYTHON}, {ends['clashes']} clash, "
        f"{ends['unknown']} are not known",
        flush=True,
    )
    return 1 if ends["clashes"] else 3 if ends["unknown"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
