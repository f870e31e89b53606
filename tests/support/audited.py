"""What code does while it decodes, told by the interpreter's audit hooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FORBIDDEN = (
    "import",
    "exec",
    "compile",
    "open",
    "subprocess",
    "os.",
    "socket",
    "ctypes",
    "pickle",
    "marshal",
    "shutil",
    "sys.",
)
RUNS_CODE = (
    "exec",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "subprocess",
    "pickle",
    "marshal",
    "ctypes.dlopen",
)
_watching: list[tuple[int, tuple[str, ...], list[str]]] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    for thread, forbidden, seen in _watching or ():  # At the interpreter's end it is None.
        if thread in (0, threading.get_ident()) and event.startswith(forbidden):
            seen.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_hook)  # For good: an audit hook cannot be removed. It does nothing while nobody watches.


@contextmanager
def audited(forbidden: tuple[str, ...] = FORBIDDEN, *, everywhere: bool = False) -> Iterator[list[str]]:
    """The events that begin with one of `forbidden`, as they come: of this thread, or of all."""
    seen: list[str] = []
    _watching.append((0 if everywhere else threading.get_ident(), forbidden, seen))
    try:
        yield seen
    finally:
        _watching.pop()
