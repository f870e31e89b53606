"""Run a command's coroutine, and turn how it ends into an exit code.

    0    it did what it says
    1    the operation failed: the error's own text is on standard error
    2    the command was not understood (typer says so itself)
    130  Ctrl-C
    141  whoever read the output went away
    143  SIGTERM (and 129 SIGHUP), for commands that clean up first

No way out shows a traceback, but for a bug.
"""

from __future__ import annotations

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

T = TypeVar("T")


class Commands(TyperGroup):
    """The root of all commands. What one of them refuses before its work begins ends as its work would."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with hinted():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with hinted():
                return super().invoke(ctx)
        except ShoalError as error:
            raise failure(error.message) from None


FAILED = 1
_ENDING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_BROKEN_PIPE = 128 + 13  # SIGPIPE's number; Windows has no such signal.


def execute(work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end on an event loop of its own, and flush what it printed.

    Raises:
        typer.Exit: with the code for an error or a reader that went away.
    """
    try:
        from uvloop import run
    except ImportError:  # Windows has none.
        from asyncio import run  # type: ignore[assignment]

    # What cannot be printed in the terminal's encoding is escaped, not fatal.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = run(work)
        sys.stdout.flush()
    except ShoalError as error:
        raise failure(error.message) from None
    except BrokenPipeError:
        # The interpreter flushes once more as it ends; that must find somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    return result


def failure(message: str) -> typer.Exit:
    """Say `message` on standard error; the exception to raise for it."""
    typer.echo(f"shoal: {message}", err=True)
    return typer.Exit(FAILED)


async def interruptible(work: Coroutine[None, None, T]) -> T:
    """Await `work`; SIGTERM and SIGHUP cancel it as Ctrl-C does, so that it cleans up.

    Raises:
        typer.Exit: 128 and the signal's number, once `work` has ended by one of them.
    """
    import asyncio  # Here, since `shoal --help` needs none of it: it is a fifth of that command's time.

    task = asyncio.ensure_future(work)
    caught: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        caught.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # Windows' loops: Ctrl-C alone ends a command there.
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
