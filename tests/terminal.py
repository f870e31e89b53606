"""A command in a pseudo-terminal: what a person would see, and not what a pipe gets.

On a terminal programs draw, colour and ask; a test that captures their output
through a pipe never runs that code.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.forked import Forked

PATIENCE_S = 120
ROWS = 40
SIZES = (80, 200)  # Columns: the least that people have, and more than any table needs.
_CHUNK_BYTES = 65536
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[34]\d(;[0-9;]*)?m|\x1b\[[0-9;]*9[0-7]m")


class Shown(NamedTuple):
    """What a command wrote to its terminal, and how it ended."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without escape sequences. What was drawn again and again is there again and again."""
        return _ESCAPE.sub("", self.raw)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_coloured(self) -> bool:
        return _COLOUR.search(self.raw) is not None


def plain_environment() -> dict[str, str]:
    """Ours, without what would configure a `shoal` or tell it what its terminal can do."""
    told = {"NO_COLOR", "FORCE_COLOR", "CLICOLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES", "COLORTERM"}
    # pytest-xdist and CI systems set some of them; a person's terminal does not.
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "PYTEST"))}
    return {name: value for name, value in ours.items() if name not in told and name != "GITHUB_ACTIONS"} | {
        "TERM": "xterm-256color"
    }


def in_terminal(
    *command: str | Path,
    columns: int = 80,
    rows: int = ROWS,
    environment: Mapping[str, str] | None = None,
    typed: str = "",
    cwd: Path | None = None,
) -> Shown:
    """Run `command` to its end in a terminal of that size; `typed` is what a person types, and ends with Ctrl-D."""

    def start(theirs: int, environment: Mapping[str, str]) -> subprocess.Popen[Any]:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )

    return _shown(start, columns=columns, rows=rows, environment=environment, typed=typed)


def shoal_in_terminal(
    *arguments: str | Path, module: str = "shoal", columns: int = 80, environment: Mapping[str, str] | None = None
) -> Shown:
    """The same for `shoal` itself, or another `module`, forked from a process that has imported `shoal`."""

    def start(theirs: int, environment: Mapping[str, str]) -> subprocess.Popen[Any]:
        return Forked(["-m", module, *map(str, arguments)], environment, terminal=theirs)

    return _shown(start, columns=columns, environment=environment)


def _shown(
    start: Callable[[int, Mapping[str, str]], subprocess.Popen[Any]],
    *,
    columns: int,
    rows: int = ROWS,
    environment: Mapping[str, str] | None,
    typed: str = "",
) -> Shown:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with start(theirs, {**plain_environment(), **(environment or {})}) as process:
        os.close(theirs)
        try:
            if typed:
                os.write(ours, typed.encode() + b"\x04")
            written = _all_of(ours)
            return Shown(process.wait(timeout=PATIENCE_S), written.decode(errors="backslashreplace").replace("\r\n", "\n"))
        finally:
            process.kill()
            os.close(ours)


def _all_of(handle: int) -> bytes:
    """What comes until the last process that has the terminal open is gone."""
    parts: list[bytes] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while select.select([handle], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        try:
            part = os.read(handle, _CHUNK_BYTES)
        except OSError:
            part = b""  # Linux says so; macOS reads nothing.
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise AssertionError(f"still at work after {PATIENCE_S} s; it showed: {_tail(parts)}")


def _tail(parts: Sequence[bytes]) -> str:
    return b"".join(parts)[-2000:].decode(errors="replace")
