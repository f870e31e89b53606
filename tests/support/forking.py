"""The process that `tests.support.forked` forks: it has imported what the commands of `shoal` need, and waits.

It may be such a fork itself, that imports further modules: `python -m tests.support.forking MODULE …`.

Its standard input is a socket. Each byte that comes there brings five descriptors: a pipe with a request, the standard
input, output and error of a new process, and a pipe for its end. The answer is the number of the process.

Law: it has one thread, and opens no store and no port, so that whatever it forks is as a new interpreter is.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from typer.main import get_command

import shoal.access.access
import shoal.cli.serving  # noqa: F401  # What commands import only once they run.
from shoal.api.server import create_app
from shoal.cli.main import MODULES, app_of
from shoal.config import Config
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.session import Session
from tests.support.forked import NUMBER

_UNFLUSHED = 120  # An interpreter's code if what was printed could not be written.


def prepare(modules: Sequence[str]) -> None:
    """Have imported and made what most commands need, and `modules`."""
    for each in modules:
        importlib.import_module(each)
    commands: Any = get_command(app_of(MODULES))
    commands.commands["serve"].make_context("serve", ["--data", "unused"])  # The parser imports more for its first options.
    asyncio.run(_routes())  # Their patterns are compiled once.
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()


async def _routes() -> None:
    def open_session(_bookmark: Bookmark, /) -> Session:
        raise AssertionError

    create_app(open_session, config=Config(), node="", version="", now_s=time.time)


def forked_for() -> dict[str, Any]:
    """Fork for each request; returns it, in the new process alone.

    Raises:
        SystemExit: in the first process, once nobody asks any more.
    """
    asking = socket.socket(fileno=os.dup(0))
    ends: dict[int, int] = {}
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        _tell_ends(ends, woken, asking)
        asked, given, _, _ = socket.recv_fds(asking, 1, 5)
        if not asked:
            raise SystemExit
        request, *streams, end = given
        with open(request, "rb") as reading:
            wanted: dict[str, Any] = json.load(reading)
        process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Ignored if `nohup` began the tests.
            _become(wanted, streams)
            return wanted
        ends[process] = end
        for each in streams:
            os.close(each)
        asking.sendall(NUMBER.pack(process))


def _tell_ends(ends: dict[int, int], woken: int, asking: socket.socket) -> None:
    """Tell how processes ended, until somebody asks for another."""
    while True:
        ready, _, _ = select.select([woken, asking.fileno()], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 1 << 16)
            for process in list(ends):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    with suppress(BrokenPipeError):  # Nobody waits for it.
                        os.write(ends[process], NUMBER.pack(os.waitstatus_to_exitcode(status)))
                    os.close(ends.pop(process))
        if asking.fileno() in ready:
            return


def _become(wanted: dict[str, Any], streams: Sequence[int]) -> None:
    """Be as a new process is that was started so."""
    if wanted["is_session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    # Its own, because those of the first process stay as what that had at its start lets them be.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.closerange(3, 1 + max(map(int, os.listdir("/dev/fd"))))
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = [wanted["arguments"][0], *wanted["arguments"][2:]]


def run(kind: str, program: str) -> None:
    """Be the interpreter of `-m MODULE`, `-c CODE` or `-- FILE`."""
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(program, run_name="__main__")


def end(kind: str, program: str) -> NoReturn:
    """Run it and end as its interpreter would, but free nothing: to free what was imported takes longer than most programs do.

    Threads are waited for, functions of `atexit` are called, what was printed is flushed. An interrupt ends it as the signal.
    """
    code: Any = 0
    is_interrupted = False
    try:
        run(kind, program)
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code, is_interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:
            code = _UNFLUSHED
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    prepare(sys.argv[1:])
    end(*forked_for()["arguments"][:2])
