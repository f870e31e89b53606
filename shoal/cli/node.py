"""Serves in this process, begun anew without the libraries that read a command line, and sets up its log.

A node would keep 12 MB of those libraries for ever. Its log goes to standard error, in the form that `log_format` names.

Laws:
- A process never waits for whoever reads its standard error. Lines that nobody reads are left out, and counted.
- The process keeps its number, its streams and its name, so whoever manages it sees one process.
- The configuration goes through memory that no other process sees. Secrets are in no argument, variable or file of it.
- Where the system cannot do that, this is not a process of its own, it has another thread, or another Shoal might be found,
  nothing is begun anew.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, TextIO

import msgspec

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.logs import events
from shoal.logs.lines import JsonForm, TextForm, log
from shoal.raising import needed
from shoal.traces import spans

_M_ARENA_MAX = -8  # Of malloc.h.


class UnreadHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream; of one without a file descriptor, as `logging` does."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._unread = 0  # Lines that were left out, and not told yet.
        self._is_torn = False  # Only a part of the last line was written.

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, if that does not block. A disk that is full, or a stream that is closed, is no error."""
        try:
            into = self.stream.fileno()
        except (OSError, ValueError, AttributeError):  # In a program that has put another stream there.
            super().emit(record)
            return
        try:
            if self._unread and _is_ready(into):
                unread, self._unread = self._unread, 0
                log(events.LINES_UNREAD, count=unread)
            self._write(into, f"{self.format(record)}{self.terminator}".encode(errors="backslashreplace"))
        except OSError:
            self._unread += 1

    def _write(self, into: int, line: bytes) -> None:
        line = b"\n" + line if self._is_torn else line
        for start in range(0, len(line), select.PIPE_BUF):  # So much is written without waiting where anything is.
            if not _is_ready(into):
                raise BlockingIOError
            os.write(into, line[start : start + select.PIPE_BUF])
            self._is_torn = True
        self._is_torn = False


def _is_ready(into: int) -> bool:
    """Whether a write does not block; one that fails at once does not."""
    asked = select.poll()
    asked.register(into, select.POLLOUT)
    return bool(asked.poll(0))


def configure(config: Config) -> None:
    """Write the lines of `log_level` and above to standard error, also those of libraries."""
    is_text = config.log_format == "text" or (config.log_format == "auto" and sys.stderr.isatty())
    handler = UnreadHandler(sys.stderr)
    handler.setFormatter(TextForm() if is_text else JsonForm())
    logging.basicConfig(level=logging.getLevelNamesMapping()[config.log_level.upper()], handlers=[handler], force=True)


def warn(warnings: Iterable[str]) -> None:
    """Log what is odd about how this process was started, but does not keep it from starting."""
    for each in warnings:
        log(events.ENVIRONMENT, reason=each)


_FAILED, _BROKEN_PIPE = 1, 128 + 13  # As in `shoal.cli.execution`.


def begin_anew(data: Path, config: Config) -> None:
    """Return only if this process is to serve as it is."""
    from shoal.cli import execution

    if not execution.is_process or "shoal.cli.serving" in sys.modules or not hasattr(os, "memfd_create"):
        return
    if threading.active_count() > 1:  # Another thread would end unheard.
        return
    if not _is_found_again():
        return
    if sys.gettrace() is not None or sys.getprofile() is not None:  # A debugger, or what measures, would lose it.
        return
    with suppress(OSError, UnicodeError):  # A path that is not UTF-8 cannot be handed over.
        settings = msgspec.msgpack.encode((str(data), config))
        # Modules are looked for in the working directory only if they were until now.
        safe = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
        # Warnings, isolation, the mode of development and so on, as the interpreter was told.
        told = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        held = os.memfd_create("shoal", 0)
        try:
            with open(held, "wb", closefd=False) as writing:
                writing.write(settings)
            os.lseek(held, 0, os.SEEK_SET)
            os.execv(sys.executable, [sys.executable, *told, *safe, "-m", "shoal.cli.node", str(held), *sys.argv[1:]])
        finally:
            os.close(held)


def _is_found_again() -> bool:
    """Whether a new interpreter finds this Shoal: it was run as a module, or by the script that was installed beside Python.

    A program or an archive may have changed where modules are looked for.
    """
    begun = sys.modules["__main__"]
    if begun.__spec__ is not None:
        return begun.__spec__.name.startswith("shoal.")
    script = getattr(begun, "__file__", None)
    return script is not None and Path(script).absolute().parent == Path(sys.executable).absolute().parent


def tell_traces(reason: str) -> None:
    """Log why there are no traces."""
    log(events.TRACES_OFF, reason=reason)


@contextmanager
def traced(instance: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Within, spans are sent where the environment says, if it does; `instance` names this process among others."""
    finish = spans.started(os.environ, instance=instance, warn=warn)
    try:
        yield
    finally:
        finish()


def main() -> NoReturn:
    """Serve until a signal comes, and end with the code of `shoal serve`."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text("shoal")
    with open(int(sys.argv[1]), "rb") as reading:
        data, config = msgspec.msgpack.decode(reading.read(), type=tuple[str, Config])
    sys.argv = ["shoal", "serve"]  # Whoever finds the directory in use is told of this command.
    try:
        with needed():
            caught = _served(Path(data), config)
    except ShoalError as error:
        sys.stderr.write(f"shoal: {error.message}\n")
        sys.exit(_FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(_BROKEN_PIPE)
    except KeyboardInterrupt:  # Before the node takes signals.
        caught = signal.SIGINT
    sys.exit(0 if caught is signal.SIGTERM else 128 + caught)


def _let_go() -> None:
    """Free what this process would hold for ever and never uses.

    aiohttp keeps a TLS context for requests that look at no certificate, with every CA of the system: 0.8 MB. A node makes no
    such request. The context that takes its place trusts nobody.
    """
    from aiohttp import connector

    connector._SSL_CONTEXT_UNVERIFIED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _share_heap() -> None:
    """Have all threads take memory from one heap, unless `MALLOC_ARENA_MAX` says otherwise. Only GNU's C library has several.

    Each thread would have a heap of its own, and what is free in one is of no use to the others: of a file that passes through
    several threads a node held 66 MB, and holds 50 MB so. Python's own objects are in heaps of Python's.
    """
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _served(data: Path, config: Config) -> signal.Signals:
    _share_heap()
    _let_go()  # Before the other modules, which take the room.
    from shoal.cli.serving import serving

    configure(config)
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run  # type: ignore[assignment]
    with traced(config.advertise or f"{config.listen_host}:{config.listen_port}", tell_traces):
        return run(serving(data, config))


if __name__ == "__main__":
    main()
