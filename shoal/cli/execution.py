"""Run a command's coroutine, and turn its end into an exit code; usage errors get hints for the mistakes that newcomers make.

    0    success
    1    the operation failed, or was not agreed to; the error's text is on standard error
    2    the command line is wrong (typer reports this itself)
    3    `shoal doctor` could not look at everything, and found nothing
    130  Ctrl-C
    141  the reader of the output ended
    143  SIGTERM (and 129 SIGHUP), for commands that clean up first

Only a bug shows a traceback.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from shoal.errors import ShoalError
from shoal.raising import needed

T = TypeVar("T")


class Commands(TyperGroup):
    """The root of all commands. An error before a command's work begins ends as an error of the work does.

    Each command that prints JSON takes `-o` too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for command in self.commands.values():
            _add_output(command)

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


def _add_output(command: Any) -> None:
    """Let a command, or each of a group, take `-o` if it takes `--json`, which is then short for `-o json`."""
    for inner in getattr(command, "commands", {}).values():
        _add_output(inner)
    for json in [each for each in command.params if each.name == "json" and each.default is False]:
        from shoal.cli import output  # Here: what lists the commands imports little.

        vars(json).update(default=output.is_for_machines, show_default=False)
        command.params.append(output.option())


is_process = False
"""Whether this process was started for one command, and is nobody else's."""

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

    from shoal.cli.output import note
    from shoal.protocol.session import noting

    collects = get_running_loop().call_later(_STARTED_S, gc.enable)
    try:
        with noting() as replaced:
            return await work
    finally:
        collects.cancel()
        for each in replaced:
            note(f"redacted before it was stored: {each.count} × {each.rule} at {each.path or '/'}")


def agreed(question: str, *, yes: bool) -> None:
    """Ask on a terminal, unless `yes`.

    Raises:
        typer.Abort: the answer is no.
        typer.Exit: there is nobody to ask.
    """
    if yes:
        return
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)
        raise failure("not agreed to. Nothing was written. --dry-run shows what would go; --yes agrees.") from None


def failure(message: str, *, code: int = FAILED) -> typer.Exit:
    """Print `message` on standard error, and return the exception to raise."""
    typer.echo(f"shoal: {message}", err=True)
    return typer.Exit(code)


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


# click's. Older versions of typer use that package, and later ones have it within.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

_NEAR_MAX = 3
_OTHER_WORDS = {
    **dict.fromkeys(("list", "ls", "get"), "`shoal threads` lists threads, and `shoal doc list` documents."),
    **dict.fromkeys(("start", "run", "server", "up"), "`shoal serve --data ./state` runs a node."),
    **dict.fromkeys(("init", "create", "new", "make"), "`shoal serve --data DIR` makes a store, and so does `shoal.open`."),
    **dict.fromkeys(("history", "checkpoints", "ps"), "`shoal log THREAD` lists a thread's checkpoints."),
    **dict.fromkeys(("tree", "dag", "branches"), "`shoal graph THREAD` draws a thread's branches."),
    **dict.fromkeys(("cat", "load", "state"), "`shoal show THREAD` prints a thread's state."),
    "help": "`shoal --help` lists the commands, and `shoal COMMAND --help` explains one.",
    "version": "`shoal --version` prints it.",
}


@contextmanager
def hinted() -> Iterator[None]:
    """Add to a usage error in this context what may have been meant."""
    try:
        yield
    except _UsageError as error:
        if hint := _hint(error):
            error.message = f"{error.message} {hint}".lstrip()
        raise


def near(name: str, names: Iterable[str]) -> str:
    """A sentence, after a space, with those of `names` that are similar to this one; empty if none is."""
    there = list(names)
    found = [each for each in there if each.startswith(name)] or difflib.get_close_matches(name, there, n=_NEAR_MAX)
    return f" Did you mean {', '.join(map(repr, found[:_NEAR_MAX]))}?" if found else ""


def _hint(error: Any) -> str:
    command = "" if error.ctx is None else error.ctx.command_path
    if early := _meant_for_all(error):
        return early
    if type(error).__name__ == "NoSuchOption" and error.ctx is not None and hasattr(error.ctx.command, "commands"):
        group = f"{command} COMMAND"
        return f"Options come after the command: {group} {error.option_name} …"
    if unknown := re.match(r"No such command '([^']*)'", error.message):
        return _OTHER_WORDS.get(unknown[1].lower(), "")
    if extra := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", error.message, re.DOTALL):
        return _about_extra(extra[1])
    if command == "shoal serve" and error.ctx is not None and "data" in str(getattr(error, "param", "")):
        return "For example: shoal serve --data ./state"
    return ""


def _meant_for_all(error: Any) -> str:
    """Where an option goes that is `shoal`'s own, and was given to a command; empty if the error is another one."""
    if error.ctx is None or error.ctx.parent is None:
        return ""
    root = error.ctx.find_root()
    own = {name for option in root.command.params for name in option.opts}
    words = [getattr(error, "option_name", ""), *re.findall(r"--[\w-]+", error.message)]
    meant = next((word for word in words if word in own and word != "--help"), "")
    command = error.ctx.command_path.removeprefix(f"{root.command_path} ")
    return f"It stands before the command: {root.command_path} {meant} … {command} …" if meant else ""


def _about_extra(words: str) -> str:
    if re.search(r"[{}\[\]\"]", words):
        return "Put JSON in single quotes, so that the shell leaves it as it is: '{\"step\": 1}'."
    if "://" in words:
        return f"A node is named by --url: --url {words.split()[0]}"
    if "/" in words or words.startswith("."):
        return f"A store's directory is named by --data: --data {words.split()[0]}"
    return "A name that has spaces is put in quotes."
