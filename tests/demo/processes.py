"""The demo as people run it, and what it must not leave behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.forked import Forked

DEMO = (sys.executable, "-m", "shoal", "demo")
PATIENCE_S = 60


def environment(tmp_path: Path) -> dict[str, str]:
    """Ours, with `tmp_path` for whatever is temporary; every process of a demo inherits it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return {**kept, "TMPDIR": str(tmp_path), "COLUMNS": "160"}


def processes_of(tmp_path: Path) -> dict[int, str]:
    """Running processes whose environment is `environment(tmp_path)`, or that hold something below it open."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inherited = f"TMPDIR={tmp_path}".encode() in (process / "environ").read_bytes().split(b"\0")
            if inherited or any(_target(handle).startswith(str(tmp_path)) for handle in (process / "fd").iterdir()):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # It is gone, or another user's.
    return found


def started_by(supervisor: subprocess.Popen[str], tmp_path: Path, *, count: int) -> list[int]:
    """The processes of a demo but for its supervisor, once there are `count`: the last may start after others work."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [pid for pid in processes_of(tmp_path) if pid != supervisor.pid]) != count:
        assert time.monotonic() < deadline, f"{len(found)} processes, not {count}"
        time.sleep(0.05)
    return found


def _target(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except FileNotFoundError:
        return ""  # The process has closed it meanwhile.


def assert_nothing_is_left(tmp_path: Path) -> None:
    left = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    assert left == [], left[:9]
    assert processes_of(tmp_path) == {}


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[Forked]:
    """The demo, once its agents are at work. It is forked, and starts its other processes as it always does."""
    with Forked([*DEMO[1:], "--limit", "150", *arguments], environment(tmp_path)) as process:
        try:
            for line in process.stdout:
                if re.match(r"\d+ of \d+ modules", line):
                    break
            yield process
        finally:
            process.kill()


def run_demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The demo, to its end."""
    return subprocess.run(
        [*DEMO, *arguments], env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
