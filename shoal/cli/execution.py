"""Run a command's coroutine, and turn its end into an exit code.

    0    success
    1    the operation failed; the error's text is on standard error
    2    the command line is wrong (typer reports this itself)
    130  Ctrl-C
    141  the reader of the output ended
    143  SIGTERM (and 129 SIGHUP), for commands that clean up first

Only a bug shows a traceback.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from shoal.cli.mistakes import hinted
from shoal.errors import ShoalError
from shoal.extras import needed

T = TypeVar("T")


class Commands(TyperGroup):
    """The root of all commands. An error before a command's work begins ends as an error of the work does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as click does; adds a hint to a usage error."""
        with hinted():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run as click does; a `ShoalError` that is raised before the command's work begins ends as its work would."""
        try:
            with hinted(), needed():
                return super().invoke(ctx)
        except ShoalError as error:
            raise failure(error.message) from None


FAILED = 1
_ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_STARTED_S = 1.0  # By then a command has imported what it needs. Most have ended.
_BROKEN_PIPE = 128 + 13  # SIGPIPE's number; Windows has no such signal.


def execute(work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end on an event loop of its own, and flush what it printed.

    Raises:
        typer.Exit: with the code for an error, or for a reader of the output that ended.
    """
    try:
        from uvloop import run
    except ImportError:  # Windows has none.
        from asyncio import run  # type: ignore[assignment]

    # Characters that the terminal's encoding lacks are escaped, not fatal.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = run(_collecting(work))
        sys.stdout.flush()
    except ShoalError as error:
        raise failure(error.message) from None
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    return result


async def _collecting(work: Coroutine[None, None, T]) -> T:
    """Do the work; once it has lasted for a while, garbage is collected, which `shoal.cli.main` leaves until then."""
    from asyncio import get_running_loop

    collects = get_running_loop().call_later(_STARTED_S, gc.enable)
    try:
        return await work
    finally:
        collects.cancel()


def failure(message: str) -> typer.Exit:
    """Print `message` on standard error, and return the exception to raise."""
    typer.echo(f"shoal: {message}", err=True)
    return typer.Exit(FAILED)


async def interruptible(work: Coroutine[None, None, T]) -> T:
    """Await `work`; SIGTERM and SIGHUP cancel it as Ctrl-C does, so that it cleans up.

    Raises:
        typer.Exit: 128 plus the signal's number, after `work` has ended because of one of them.
    """
    import asyncio  # Imported here, because `shoal --help` does not need it, and it takes a fifth of that command's time.

    task = asyncio.ensure_future(work)
    caught: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        caught.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # On Windows only Ctrl-C ends a command.
        for number in _ENDING:
            loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise typer.Exit(128 + caught[0]) from None
        raise
    finally:
        with suppress(NotImplementedError):
            for number in _ENDING:
                loop.remove_signal_handler(number)
