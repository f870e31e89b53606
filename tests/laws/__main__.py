"""`python -m tests.laws`: take out the line that holds each law, and see its test fail. Exit status 1 if one does not."""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.laws.guard import ROOT, Guard, guards, without_its_line
from tests.laws.pythons import python_of

_COPIED = (
    "shoal",
    "simulation",
    "chaos",
    "benchmarks",
    "tests",
    "pyproject.toml",
    "docs",
    "deploy",
    "docker-compose.yml",
    "examples",
    "clients/js/src",
)
_TIMEOUT_S = 300.0  # A test that hangs without its line has noticed, too.
_TOGETHER = 25  # Tests of the sound program that are run at once, and so have that time together.
_FAILED, _PASSED = 1, 0  # As pytest ends.
_SAID_MAX = 2000


class Tried(NamedTuple):
    """The outcome of taking one line out."""

    guard: Guard
    complaint: str  # Empty: the test failed, as it should.


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = [
        guard for guard in guards(options.areas) if guard.test and any(part in guard.module for part in options.only or [""])
    ]
    if options.since:
        altered = _altered(options.since)
        chosen = [guard for guard in chosen if not altered.isdisjoint((guard.module, guard.at, guard.test.partition("::")[0]))]
    untried = [guard for guard in chosen if python_of(guard.test) is None]
    for guard in untried:
        _say(f"not tried  {guard.module}: {guard.law}")
    chosen = [guard for guard in chosen if guard not in untried]
    if failing := _failing({guard.test for guard in chosen}):
        _say(f"these fail in the sound program:\n{failing}")
        return 1
    bad = 0
    with _copies(options.jobs) as copies, ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for done in as_completed([pool.submit(_tried, copies, guard) for guard in chosen]):
            guard, complaint = done.result()
            bad += bool(complaint)
            _say(f"{'NOT GUARDED' if complaint else 'guarded'}  {guard.module}: {guard.law}")
            if complaint:
                _say(f"    {complaint}")
    _say(f"\n{len(chosen) - bad} of {len(chosen)} guarded")
    if untried:
        _say(f"{len(untried)} were not tried: their tests need environments that `make integrations` makes")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.laws", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help="the laws of tests/laws/AREA.laws; default: of all")
    parser.add_argument(
        "--only", action="append", metavar="PART", help="the laws of modules whose path has this part, or one of several"
    )
    parser.add_argument(
        "--since", metavar="REVISION", help="those whose law, line or test is in a file that was changed since this revision"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many copies of the tree are tried at once")
    return parser


def _altered(revision: str) -> set[str]:
    """The files that differ from those of a revision, from the root."""
    command = ["git", "diff", "--name-only", revision]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


@contextmanager
def _copies(count: int) -> Iterator[queue.Queue[Path]]:
    """Copies of the tree, each for one trial at a time."""
    with tempfile.TemporaryDirectory(prefix="shoal-laws-") as directory:
        found: queue.Queue[Path] = queue.Queue()
        for nth in range(count):
            root = Path(directory) / str(nth)
            root.mkdir()
            for name in _COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("node_modules"))
                else:
                    shutil.copy2(source, root / name)
            found.put(root)
        yield found


def _tried(copies: queue.Queue[Path], guard: Guard) -> Tried:
    root = copies.get()
    path = root / guard.at
    sound, times = path.read_text(), path.stat()
    try:
        path.write_text(without_its_line(guard, sound))
        os.utime(path, (times.st_atime, times.st_mtime - 1))  # Compiled code is told apart by whole seconds.
        status, said = _run(root, [guard.test])
    finally:
        path.write_text(sound)
        os.utime(path, (times.st_atime, times.st_mtime))
        copies.put(root)
    if status == _FAILED:
        return Tried(guard, "")
    how = "passes without the line" if status == _PASSED else f"ended with status {status}: {said[-_SAID_MAX:]}"
    return Tried(guard, f"{guard.test} {how}")


def _failing(tests: Collection[str]) -> str:
    """What is said of the tests that fail in the sound program."""
    together: defaultdict[Path | None, list[str]] = defaultdict(list)
    for test in sorted(tests):
        together[python_of(test)].append(test)
    for some in together.values():
        for start in range(0, len(some), _TOGETHER):
            status, said = _run(ROOT, some[start : start + _TOGETHER])
            if status != _PASSED:
                return said[-_SAID_MAX:] or f"no end within {_TIMEOUT_S:.0f} s: one of {some[start : start + _TOGETHER]}"
    return ""


def _run(root: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests of one environment."""
    python = python_of(tests[0]) or sys.executable
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=line", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _FAILED, ""
    return done.returncode, done.stdout + done.stderr


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
