"""`python deploy/install.py -e .`: install into the environment that runs this, and show how far that is. For the Makefile.

Laws:
- Only the standard library is there yet.
- It installs into that environment, whatever the user's settings of pip say of other places.
- Ctrl-C ends it with 130, without a traceback. Run again, it goes on; an environment whose pip is missing is given one.
- pip's output is shown if it fails; otherwise there is one line at the end, and on a terminal one that changes until then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from queue import Empty, Queue
from threading import Thread

TICK_S = 1.0
INTERRUPTED = 130
ELSEWHERE = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
"""Variables that would have pip install into another place than the environment that runs this."""


def doing(line: str, fetched: int) -> str:
    """What a line of pip's output says is done now; empty if it says nothing of interest."""
    first, _, rest = line.strip().partition(" ")
    match first:
        case "Collecting":
            return f"package {fetched + 1}: {rest.split(' (')[0]}"
        case "Installing" if rest.startswith("collected packages:"):
            return f"installing {rest.count(',') + 1} packages"
        case "Building" | "Preparing" | "Getting" | "Installing":
            return f"building {'what Shoal is built with' if 'dependencies' in rest else 'Shoal'}"
    return ""


def shown(text: str, seconds: float, *, columns: int) -> str:
    """One line of a terminal, which replaces the one before."""
    return f"\r\x1b[K{f'  {seconds:3.0f} s  {text}'[: columns - 1]}"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    try:
        return _installed(arguments)
    except KeyboardInterrupt:
        say("\nInterrupted; the same command goes on with the installation.\n")
        return INTERRUPTED


def _installed(arguments: list[str]) -> int:
    if not os.access(".", os.W_OK):
        say(f"{os.getcwd()} cannot be written, and an installation writes to it. Copy the checkout to where you may write.\n")
        return 1
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    if find_spec("pip") is None and (code := _heal(environment)):
        return code
    began_s, is_terminal = time.monotonic(), sys.stdout.isatty()
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    process = subprocess.Popen(
        [*command, "-c", "constraints.txt", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    output, now, fetched = list[str](), "starting pip", 0
    for line in _lines(process):
        if line:
            output.append(line)
            now = doing(line, fetched) or now
            fetched += line.startswith("Collecting")
        if is_terminal:
            say(shown(now, time.monotonic() - began_s, columns=shutil.get_terminal_size().columns))
    if is_terminal:
        say("\r\x1b[K")
    if process.wait():
        say("".join(output))
        say("The packages could not be installed; above is what pip said. Run the same command again once that is mended.\n")
        return 1
    say(f"Installed in {time.monotonic() - began_s:.0f} s.\n")
    return 0


def _heal(environment: Mapping[str, str]) -> int:
    """Give the environment the pip that it lacks, as after Ctrl-C while it was made; the exit code."""
    command = [sys.executable, "-m", "ensurepip", "--default-pip"]
    healed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if healed.returncode:
        say(f"{healed.stdout}{healed.stderr}{sys.prefix} has no pip: `make clean` removes it. Then run this again.\n")
    return healed.returncode


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Each line as it comes, and an empty one whenever none has come for a while."""
    lines: Queue[str | None] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    reader = Thread(target=read, daemon=True)
    with process:
        reader.start()
        while True:
            try:
                line = lines.get(timeout=TICK_S)
            except Empty:
                line = ""
            if line is None:
                break
            yield line
        reader.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
