"""A tethered node: the command `shoal` in a process that ends when its standard input ends.

    python -m shoal.demo.tethered DIRECTORY serve --data …

The other end of the pipe is the demo's supervisor. When that ends, for any reason, the
node stops, and the nodes remove DIRECTORY ("-": nothing is
removed). After the line `release` the node continues without the supervisor.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
from typing import NoReturn

RELEASE = b"release\n"
KEEP = "-"
# A node that has not stopped by then is ended by a signal.
ORPHAN_S_MAX = 20


def main() -> None:
    """Run `shoal` with the arguments after the first."""
    directory, *arguments = sys.argv[1:]
    # Until `serve` handles the signal itself. An exit, unlike the signal's default, runs the cleaning below.
    signal.signal(signal.SIGTERM, _exit)
    cut = threading.Event()
    threading.Thread(target=_watch, args=(cut,), name="tether", daemon=True).start()
    sys.argv = ["shoal", *arguments]
    try:
        runpy.run_module("shoal.cli", run_name="__main__")
    finally:
        if cut.is_set() and directory != KEEP:
            shutil.rmtree(directory, ignore_errors=True)


def _watch(cut: threading.Event) -> None:
    # Unbuffered, because a buffered reader's lock, held by this thread, would block the interpreter at its end.
    if os.read(sys.stdin.fileno(), len(RELEASE)) == RELEASE:
        return
    cut.set()
    signal.alarm(ORPHAN_S_MAX)
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
