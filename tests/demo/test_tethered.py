"""A node on a tether: it ends with whoever holds the other end, unless that lets it go."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.demo.nodes import RELEASE
from tests.demo.processes import PATIENCE_S, environment


@contextmanager
def tethered(root: Path, directory: str) -> Iterator[subprocess.Popen[bytes]]:
    """A node that serves, in `root`/node."""
    command = [sys.executable, "-m", "shoal.demo.nodes", directory, "serve", "--data", str(root / "node")]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(root),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http://")
            yield process
        finally:
            process.kill()


def cut(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_a_node_whose_tether_is_cut_stops_and_removes_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    root.mkdir()
    with tethered(root, str(root)) as process:
        cut(process)
        process.wait(PATIENCE_S)
    assert not root.exists()


def test_a_node_that_was_released_lives_on(tmp_path: Path) -> None:
    with tethered(tmp_path, str(tmp_path)) as process:
        assert process.stdin is not None
        process.stdin.write(RELEASE)
        cut(process)
        process.send_signal(signal.SIGTERM)
        # Stopped as `shoal serve` is: a cut tether would have removed its directory.
        assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "node").is_dir()
